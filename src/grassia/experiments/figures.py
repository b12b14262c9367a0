"""Figures for print (extra `plot`): mean curves with bands of one standard deviation, readable in grey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grassia._optional import require
from grassia.messages import Array

# The colours of Okabe and Ito first, which the colour-blind can tell apart. In grey, dashes and markers do.
_COLOURS = (
    *("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#7F7F7F", "#882255", "#332288", "#8C564B", "#117733", "#999933", "#AA4499"),
)
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (4, 1.2, 1, 1.2)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8")
_SMALLEST = 1e-17


@dataclass(frozen=True, eq=False)
class Line:
    """One method in a panel: its values (seeds, points) at places x.

    `style` numbers its colour, dashes and marker: the same method looks the same in every panel.
    """

    label: str
    x: Array
    values: Array
    style: int


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    log_x: bool = False
    low: float | None = None


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Write panels as `.png` and `.pdf`."""
    figure = compose(panels)
    figure.savefig(path.with_suffix(".png"), dpi=170)
    # Without the time of writing the same figure is the same file.
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def compose(panels: Sequence[Panel], *, height: float = 3.1) -> Any:
    """A matplotlib figure of panels side by side, with one legend below them that covers nothing."""
    require("matplotlib", "plot")
    figures: Any = require("matplotlib.figure", "plot")
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    width = 3.6 * max(len(panels), 1.45)
    # Of eight points: the handle, the space after it and before the next, and letters of half an em or so.
    entry = 8 / 72 * (3.6 + 0.8 + 1.4 + 0.6 * max(map(len, labels)))
    rows = math.ceil(len(labels) / max(1, int(width / entry)))
    columns = math.ceil(len(labels) / rows)
    size = (width, height + 0.2 * rows)
    figure = figures.Figure(figsize=size, layout="constrained")
    handles: dict[str, Any] = {}
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _panel(axes, panel, handles)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=3.6,
        columnspacing=1.4,
    )
    return figure


def _panel(axes: Any, panel: Panel, handles: dict[str, Any]) -> None:
    tickers: Any = require("matplotlib.ticker", "plot")
    for line in panel.lines:
        mean, spread = line.values.mean(axis=0), line.values.std(axis=0)
        if panel.low is not None:
            mean = _down_to(panel.low, mean)
        colour = _COLOURS[line.style % len(_COLOURS)]
        # Clipped, not cut off: where the deviation exceeds the mean a logarithmic axis has no place for it.
        low = np.maximum(mean - spread, 0.2 * mean)
        axes.fill_between(
            line.x,
            np.maximum(low, _SMALLEST),
            np.maximum(mean + spread, _SMALLEST),
            color=colour,
            alpha=0.15,
            lw=0,
        )
        drawn = axes.plot(
            line.x,
            np.maximum(mean, _SMALLEST),
            color=colour,
            linestyle=_DASHES[line.style % len(_DASHES)],
            marker=_MARKERS[line.style % len(_MARKERS)],
            markevery=1 if line.x.size <= 10 else (0.02 + 0.013 * (line.style % 7), 0.14),
            markersize=4.2,
            markerfacecolor="white",
            markeredgewidth=0.9,
            linewidth=1.4,
        )
        handles.setdefault(line.label, drawn[0])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(tickers.LogLocator(numticks=9))
    if panel.low is not None:
        axes.set_ylim(bottom=panel.low)
    if panel.log_x:
        axes.set_xscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if high < 300.0 * low:  # too few powers of ten to read anything off
                axis.set_major_locator(tickers.LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter(tickers.FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(tickers.NullFormatter())
    else:
        axes.set_xlim(0.0, max(float(line.x[-1]) for line in panel.lines))
        axes.xaxis.set_major_formatter(tickers.FuncFormatter(_short))
        axes.xaxis.set_major_locator(tickers.MaxNLocator(6))
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_xlabel(panel.xlabel, fontsize=9)
    axes.set_ylabel(panel.ylabel, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _down_to(low: float, mean: Array) -> Array:
    """A curve that meets the lower edge where it first passes below, and is not drawn from there on."""
    below = np.flatnonzero(mean <= low)
    cut = np.array(mean)
    if below.size:
        cut[below[0]], cut[below[0] + 1 :] = low, np.nan
    return cut


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"
