"""Pictures of a run: a chart in plain text, and the same for print (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from grassia._optional import require
from grassia.errors import InvalidInput
from grassia.messages import Array

SMALLEST = 1e-16  # a distance of zero has no place on a logarithmic axis


def distance_plot(
    times: ArrayLike,
    distances: ArrayLike,
    path: str | PathLike[str],
    *,
    tol: float | None = None,
    marks: Sequence[tuple[float, str]] = (),
    span: tuple[float, float] | None = None,
    span_label: str = "certifying",
    title: str | None = None,
    xlabel: str = "wall-clock time (s)",
    ylabel: str = "geodesic distance to the oracle",
    size: tuple[float, float] = (5.6, 3.5),
    dpi: int = 200,
) -> None:
    """Draw distance against time on a logarithmic axis and write it to a file.

    Readable in grey: curves differ by line style, not by colour alone. No global state of
    matplotlib is touched. Needs the extra `plot`.

    Parameters
    ----------
    times, distances : array_like (m,)
        The curve.
    path : path
        Where to; the ending (.png, .pdf, .svg) decides the format.
    tol : float, optional
        Drawn as a dashed line.
    marks : sequence of (time, text)
        Events, drawn as thin vertical lines; the same text is named once in the legend.
    span : (float, float), optional
        A stretch of time to shade, named `span_label`.
    title, xlabel, ylabel : str
        Texts.
    size : (float, float)
        Inches.
    dpi : int
        Dots an inch, for formats made of dots.

    Raises
    ------
    MissingExtra
        If matplotlib is not installed.
    """
    t, y = _series(times, distances)
    require("matplotlib", "plot")
    figures: Any = require("matplotlib.figure", "plot")
    tickers: Any = require("matplotlib.ticker", "plot")
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    if span is not None:
        axes.axvspan(*span, color="0.88", linewidth=0, label=span_label)
    seen: dict[str, tuple[Any, ...]] = {}
    styles = [(1, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (1, 3)), (0, (6, 2))]
    for when, text in marks:
        style = seen.get(text)
        label = text if style is None else None
        if style is None:
            style = seen[text] = styles[len(seen) % len(styles)]
        axes.axvline(when, color="0.35", linewidth=0.9, linestyle=style, label=label)
    if tol is not None:
        axes.axhline(tol, color="black", linewidth=0.9, linestyle="--", label=f"tolerance {tol:g}")
    axes.plot(t, y, color="#0b5394", linewidth=1.6, label="iterate", drawstyle="steps-post")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(tickers.LogLocator(numticks=10))
    axes.set_xlim(left=0.0, right=max(float(t[-1]), *(span or (0.0,))) * 1.02 or 1.0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if title:
        axes.set_title(title, fontsize="medium", loc="left")
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="best")
    figure.savefig(path, dpi=dpi)


def text_chart(
    times: ArrayLike,
    distances: ArrayLike,
    *,
    width: int = 72,
    height: int = 12,
    tol: float | None = None,
    ascii_only: bool = False,
) -> str:
    """The same curve in characters: logarithmic down, linear along, `width` columns at most.

    >>> print(text_chart([0, 1, 2, 3], [1.0, 0.1, 0.01, 0.001], width=24, height=4))
       1 ┤──────╮
     0.1 ┤      ╰─────╮
    0.01 ┤            ╰────╮
    1e-3 ┤                 ╰
         └──────────────────
         0 s             3 s
    """
    t, y = _series(times, distances)
    logs = np.log10(y)
    values = [*logs, math.log10(tol)] if tol is not None else list(logs)
    top, bottom = math.ceil(max(values) - 1e-9), math.floor(min(values) + 1e-9)
    bottom = min(bottom, top - 1)
    labels = {decade: _label(decade) for decade in range(bottom, top + 1)}
    margin = max(map(len, labels.values())) + 1
    height, columns = max(2, height), max(10, width - margin - 1)

    def row(value: float) -> int:
        place: float = (top - value) / (top - bottom) * (height - 1)
        return round(place)

    grid = [[" "] * columns for _ in range(height)]
    if tol is not None:
        grid[row(math.log10(tol))] = ["┄"] * columns
    moments = np.linspace(0.0, t[-1], columns)
    at = np.searchsorted(t, moments + 1e-12 * t[-1], side="right") - 1
    levels = [row(float(logs[i])) if i >= 0 else None for i in at]
    before: int | None = None
    for column, level in enumerate(levels):
        if level is None:
            continue
        if before is None or before == level:
            grid[level][column] = "─"
        else:
            down = level > before
            grid[before][column] = "╮" if down else "╯"
            grid[level][column] = "╰" if down else "╭"
            for between in range(min(before, level) + 1, max(before, level)):
                grid[between][column] = "│"
        before = level
    at_row = {row(decade): label for decade, label in labels.items()}
    lines = [
        f"{at_row.get(r, ''):>{margin - 1}} {'┤' if r in at_row else '│'}{''.join(cells)}".rstrip()
        for r, cells in enumerate(grid)
    ]
    lines.append(" " * margin + "└" + "─" * columns)
    lines.append(" " * margin + "0 s" + f"{t[-1]:.3g} s".rjust(columns - 2))
    text = "\n".join(lines)
    return text.translate(_ASCII) if ascii_only else text


_ASCII = str.maketrans("─│┤└╮╯╰╭┄", "-||+...'.")


def _label(decade: int) -> str:
    return f"{10.0**decade:g}" if -2 <= decade <= 1 else f"1e{decade}"


def _series(times: ArrayLike, distances: ArrayLike) -> tuple[Array, Array]:
    t, y = np.asarray(times, dtype=np.float64), np.asarray(distances, dtype=np.float64)
    if t.ndim != 1 or t.shape != y.shape or t.size == 0:
        raise InvalidInput(
            f"`times` and `distances` must be equally long and not empty; got {t.shape}, {y.shape}."
        )
    keep = np.isfinite(t) & np.isfinite(y)
    if not keep.any():
        raise InvalidInput("`times` and `distances` must hold a finite point; got none.")
    t, y = t[keep], np.maximum(y[keep], SMALLEST)
    order = np.argsort(t, kind="stable")
    return t[order], y[order]
