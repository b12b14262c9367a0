"""Charts as hand-written SVG: lines, bars, intervals, points. No scripts, no fonts, no styles from elsewhere.

Every chart is drawn for a given width, so that a page can have one for wide and one for narrow screens with
letters of the same size. What a tooltip says is in `data-tip`, and in a `<title>` for those without scripts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from grassia.report.axes import Axis

__all__ = ["SERIES", "Canvas", "Series", "hit", "legend"]

#: Classes of the colours of series, in order; `grassia.report.style` has the colours.
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")

_LEFT, _RIGHT, _TOP, _BOTTOM = 57.0, 12.0, 12.0, 44.0


@dataclass(frozen=True, slots=True)
class Series:
    """A line with its name; NaN leaves a hole."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"  # or "steps", "dots", "dashed"


@dataclass
class Canvas:
    """A picture of `width` by `height` with two axes; what is drawn is collected in `parts`."""

    width: float
    height: float
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)

    @property
    def inner(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the area of data."""
        return _LEFT, _TOP, self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM

    def px(self, value: float) -> float:
        """Where a number lies, from the left."""
        left, _, width, _ = self.inner
        return left + width * self.x.at(value)

    def py(self, value: float) -> float:
        """Where a number lies, from the top."""
        _, top, _, height = self.inner
        return top + height * (1.0 - self.y.at(value))

    # -- what can be drawn ------------------------------------------------------------------------

    def axes(self, *, x_ticks: bool = True) -> None:
        """Grid, ticks and the names of the axes."""
        left, top, width, height = self.inner
        for value, text in self.y.ticks:
            y = self.py(value)
            self.parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}h{width:.1f}"/>')
            self._text(left - 6, y + 4, text, "end")
        for value, text in self.x.ticks if x_ticks else ():
            x = self.px(value)
            self.parts.append(f'<path class="tick" d="M{x:.1f} {top + height:.1f}v4"/>')
            self._text(x, top + height + 17, text, "middle")
        self.parts.append(f'<path class="axis" d="M{left:.1f} {top + height:.1f}h{width:.1f}"/>')
        self._text(left + width / 2, self.height - 8, self.x.label, "middle", "name")
        middle = top + height / 2
        self.parts.append(
            f'<text class="name" text-anchor="middle" transform="translate(11 {middle:.1f}) rotate(-90)">'
            f"{escape(self.y.label)}</text>"
        )

    def draw(self, series: Series, colour: str) -> None:
        """A line, steps or dots."""
        shown = [
            (self.px(x), self.py(y)) if _usable(y, self.y) else None
            for x, y in zip(series.x, series.y, strict=True)
        ]
        if series.kind == "dots":
            dots = (f"M{p[0]:.1f} {p[1]:.1f}h0" for p in shown if p is not None)
            self.parts.append(f'<path class="dots {colour}" d="{"".join(dots)}"/>')
            return
        d, pen = [], False
        before = (0.0, 0.0)
        for point in shown:
            if point is None:
                pen = False
                continue
            x, y = point
            if pen and series.kind == "steps":
                d.append(f"H{x:.1f}V{y:.1f}")
            else:
                d.append(f"{'L' if pen else 'M'}{x:.1f} {y:.1f}")
            pen, before = True, point
        if len([point for point in shown if point is not None]) == 1:
            d = [f"M{before[0]:.1f} {before[1]:.1f}h0"]  # a round cap makes it a dot
        dashed = " dashed" if series.kind == "dashed" else ""
        self.parts.append(f'<path class="line {colour}{dashed}" d="{"".join(d)}"/>')

    def level(self, value: float, text: str) -> None:
        """A dashed line across, with a word on it."""
        left, top, width, _ = self.inner
        if not _usable(value, self.y):
            return
        y = self.py(value)
        self.parts.append(f'<path class="level" d="M{left:.1f} {y:.1f}h{width:.1f}"/>')
        self._text(left + 5, y - 5 if y > top + 12.0 else y + 15, text, "start", "mark")

    def upright(self, value: float, text: str, anchor: str = "start") -> None:
        """A dashed line upright, with a word beside it."""
        _, top, _, height = self.inner
        x = self.px(value)
        self.parts.append(f'<path class="level" d="M{x:.1f} {top:.1f}v{height:.1f}"/>')
        self._text(x + (5 if anchor == "start" else -5), top + 11, text, anchor, "mark")

    def band(self, start: float, low: float, high: float, text: str) -> None:
        """A shaded band from a place to the right."""
        left, width = self.px(start), self.px(self.x.high) - self.px(start)
        y, below = self.py(high), self.py(low)
        self.parts.append(
            f'<rect class="band" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{below - y:.1f}"/>'
        )
        self._text(left + width - 3, y - 5, text, "end", "mark")

    def bar(self, low: float, high: float, value: float, colour: str, tip: str) -> None:
        """A bar from zero (or the bottom) between two places."""
        x, right = self.px(low), self.px(high)
        ends = sorted((self.py(value), self.py(self.y.low if self.y.log else 0.0)))
        width, height = max(right - x, 0.8), max(ends[1] - ends[0], 0.8)
        place = f'x="{x:.1f}" y="{ends[0]:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect class="bar {colour}" {place} {tipped(tip)}</rect>')

    def whisker(self, x: float, low: float, high: float, colour: str, tip: str, half: float = 5.0) -> None:
        """An interval, drawn as a capped line."""
        place, top, bottom = self.px(x), self.py(high), self.py(low)
        self.parts.append(
            f'<path class="whisker {colour}" d="M{place:.1f} {top:.1f}V{bottom:.1f}'
            f"M{place - half:.1f} {top:.1f}h{2 * half:.1f}M{place - half:.1f} {bottom:.1f}h{2 * half:.1f}"
            f'" {tipped(tip)}</path>'
        )

    def hits(self, x: Sequence[float], tips: Sequence[str], most: int = 60) -> None:
        """Invisible bands that have the tooltips of a chart of lines, each around one of the points."""
        _, top, _, height = self.inner
        taken = list(range(0, len(x), max(1, math.ceil(len(x) / most))))
        if len(x) and taken[-1] != len(x) - 1:
            taken.append(len(x) - 1)
        places = [self.px(x[i]) for i in taken]
        for n, i in enumerate(taken):
            a = places[n] if n == 0 else (places[n - 1] + places[n]) / 2
            b = places[n] if n == len(taken) - 1 else (places[n] + places[n + 1]) / 2
            self.parts.append(hit(a, top, max(b - a, 1.0), height, tips[i]))

    def _text(self, x: float, y: float, text: str, anchor: str, kind: str = "") -> None:
        if text:
            more = f' class="{kind}"' if kind else ""
            self.parts.append(
                f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
            )

    def svg(self) -> str:
        """What is inside of the picture."""
        return "".join(self.parts)


def _usable(value: float, axis: Axis) -> bool:
    return math.isfinite(value) and (value > 0.0 or not axis.log)


def tipped(tip: str) -> str:
    """The end of an opening tag, and a title: what a tooltip says."""
    said = escape(tip, quote=True)
    return f'data-tip="{said}"><title>{said}</title>'


def hit(x: float, y: float, width: float, height: float, tip: str) -> str:
    """An invisible rectangle with a tooltip."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="hit" {place} {tipped(tip)}</rect>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names with their colours, as HTML beside a chart."""
    items = "".join(f'<li><span class="key {kind}"></span>{escape(name)}</li>' for kind, name in entries)
    return f'<ul class="legend">{items}</ul>'
