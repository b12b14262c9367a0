"""The parts of a report: colours, axes, who was busy or lost when, which rows it shows, what it remembers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia.errors import InvalidInput
from grassia.report import Sample, Watch
from grassia.report.axes import linear, logarithmic
from grassia.report.contents import scatter_of
from grassia.report.style import COLOURS
from grassia.report.timeline import busy_shares, lost_spells
from grassia.result import Event

ROOT = Path(__file__).resolve().parent.parent


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_and_series_told_from_the_paper():
    for behind in ("paper", "shade"):
        for name in ("text", "soft", "c0"):
            assert contrast(COLOURS[name], COLOURS[behind]) >= 4.5
    for badge in ("good", "bad", "busy", "soft"):
        assert contrast(COLOURS["paper"], COLOURS[badge]) >= 4.5
    for i in range(8):
        assert contrast(COLOURS[f"c{i}"], COLOURS["paper"]) >= 4.5


def sample(moment, busy, waited=None, states=None):
    n = len(busy)
    plain = {"phase": "solving", "version": 0, "passes": 0.0, "residual": 1.0, "target": 1.0, "estimate": 1.0}
    more = {
        "bound": math.nan,
        "answers": [0] * n,
        "staleness": [0] * n,
        "sent": 0,
        "received": 0,
        "events": 0,
    }
    return Sample(
        time=moment, busy=busy, waited=waited or [0.0] * n, states=states or "i" * n, **plain, **more
    )


def test_work_is_laid_back_from_when_its_answer_came():
    # Worker 0 answers at 4 what took it 3 seconds; worker 1 is out since 2 and never answers.
    samples = [
        sample(t, [3.0 if t == 4 else 0.0, 0.0], [0.0, max(0.0, t - 2.0)]) for t in (1.0, 2.0, 3.0, 4.0)
    ]
    times, shares = busy_shares(samples)
    np.testing.assert_allclose(times, [0.0, 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(shares, [[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])


def test_a_worker_is_lost_from_its_loss_to_its_return_or_to_the_end():
    events = [Event(1.0, 0, "worker lost", 2, ""), Event(3.0, 0, "worker restored", 2, "")]
    events += [Event(5.0, 0, "worker lost", 0, ""), Event(6.0, 0, "certificate refused", None, "")]
    assert lost_spells(events, [[0, 1], [2]], 9.0) == [[(5.0, 9.0)], [(1.0, 3.0)]]


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [3.0, 3.0], [-5.0, 1e6], [1e-9, 2e-9], [0.0, 0.0], [7.3], [math.nan]]
)
def test_axes_hold_all_values_between_their_ends(values):
    for axis in (linear(values), linear(values, zero=True), logarithmic(values)):
        assert axis.low < axis.high
        assert len(axis.ticks) >= 2
        for value in values:
            if math.isfinite(value) and (value > 0.0 or not axis.log):
                assert axis.low <= value * (1 + 1e-9) or axis.low <= value
                assert value <= axis.high * (1 + 1e-9) or value <= axis.high
                assert 0.0 <= axis.at(value) <= 1.0


def test_of_many_rows_a_fair_selection_is_shown_and_what_does_not_fit_is_refused():
    labels = [f"{i % 4}" for i in range(10_000)]  # every so many-th row would miss most of them
    found = scatter_of(np.arange(30_000.0).reshape(-1, 3), labels, most=1000)
    assert (len(found.points), found.rows) == (1000, 10_000)
    assert all(200 <= found.labels.count(label) <= 300 for label in "0123")
    rows = [int(point[0]) // 3 for point in found.points]
    assert rows == sorted(set(rows))
    assert [labels[row] for row in rows] == found.labels
    assert scatter_of(np.zeros((5, 1))) is None
    with pytest.raises(InvalidInput, match="labels"):
        scatter_of(np.zeros((5, 2)), labels=["a"])


def test_the_citation_is_that_of_the_project():
    from grassia.report import citing

    project = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'title: "{citing.TITLE}"' in project
    names = re.findall(r"family-names: (\S+)\n\s+given-names: (\S+)", project)
    assert [(family, given) for given, family in citing.AUTHORS] == names


def test_what_is_remembered_is_bounded_however_long_a_run_is():
    watch = Watch(most=8)
    X = np.random.default_rng(0).standard_normal((200, 6)) * np.arange(6, 0, -1)
    with pytest.warns(ConvergenceWarning):
        grassia.eigenspace(
            grassia.from_rows(X, n_components=2), 2, solver="oja", callbacks=watch, rng=0, max_passes=500
        )
    assert 2 <= len(watch.samples) <= 9
    times = [one.time for one in watch.samples]
    assert times == sorted(times)
