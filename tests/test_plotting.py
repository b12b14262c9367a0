"""Pictures: what must hold of a chart whatever the curve."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grassia.errors import InvalidInput
from grassia.plotting import distance_plot, text_chart

curves = st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e3)), min_size=1, max_size=40).map(
    lambda points: np.array(points).T
)


@given(curve=curves, width=st.integers(30, 160), height=st.integers(2, 30), ascii_only=st.booleans())
def test_a_chart_keeps_within_its_width_and_its_height(curve, width, height, ascii_only):
    times, distances = curve
    lines = text_chart(times, distances, width=width, height=height, tol=1e-6, ascii_only=ascii_only).split(
        "\n"
    )
    assert len(lines) == height + 2
    assert max(map(len, lines)) <= width
    assert not ascii_only or "\n".join(lines).isascii()


def test_a_falling_curve_falls_in_the_chart():
    t = np.linspace(0.0, 10.0, 200)
    lines = text_chart(t, np.exp(-2.0 * t), width=60, height=12).split("\n")[:12]
    margin = lines[0].index("┤") + 1
    rows = [r for r, line in enumerate(lines) for mark in line[margin:] if mark in "─╮╰│"]
    first = [line[margin:] for line in lines]
    assert first[0].startswith("─")
    assert first[-1].rstrip()[-1] in "─╰"
    assert rows == sorted(rows)


def test_points_that_are_not_finite_are_left_out():
    with_nan = text_chart([0.0, 1.0, 2.0], [1.0, math.nan, 0.1])
    assert with_nan == text_chart([0.0, 2.0], [1.0, 0.1])


@pytest.mark.parametrize(
    ("times", "distances"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [math.nan]), ([[1.0]], [[1.0]])]
)
def test_a_curve_that_is_none_is_refused(times, distances):
    with pytest.raises(InvalidInput, match="times"):
        text_chart(times, distances)


def _size(png: Path) -> tuple[int, int]:
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_the_plot_has_the_size_asked_for(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "distance.png"
    distance_plot(
        [0.0, 1.0, 2.0],
        [1.0, 1e-3, 0.0],
        path,
        tol=1e-6,
        marks=[(0.5, "worker lost"), (0.7, "worker restored"), (1.5, "worker lost")],
        span=(1.5, 2.0),
        title="three points",
        size=(4.0, 3.0),
        dpi=100,
    )
    assert _size(path) == (400, 300)


def test_the_plot_leaves_matplotlib_as_it_was(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    distance_plot([0.0, 1.0], [1.0, 0.1], tmp_path / "a.pdf")
    assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
