"""The figures of a report, each made from `Contents`: how it converged, the spectrum, traffic, rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from grassia.data.loaders import size_text
from grassia.report.axes import Axis, linear, logarithmic
from grassia.report.charts import SERIES, Canvas, Series, legend, tipped
from grassia.report.contents import Contents, Scatter
from grassia.report.parts import figure, table, thinned
from grassia.report.words import number

__all__ = ["convergence", "curve", "scatter", "spectrum", "staleness", "traffic", "variance"]

_ROWS = 60
_FEW = 30  # so few points of a line are marked
_MARKERS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "m-3-3h6v6h-6z",
    "m0-4l4 7h-8z",
    "m0-4l4 4l-4 4l-4-4z",
)


def convergence(contents: Contents) -> str | None:
    """Certified bound and current estimate over time; None where nothing is known."""
    samples = contents.samples
    times = [sample.time for sample in samples]
    estimates = [sample.estimate for sample in samples]
    bounds = [sample.bound for sample in samples]
    estimated = any(math.isfinite(value) for value in estimates)
    name = "estimate of the sine" if estimated else "residual (estimate)"
    shown = estimates if estimated else [sample.residual for sample in samples]
    seen = [value for value in [*shown, *bounds] if math.isfinite(value) and value > 0.0]
    if not seen:
        return None
    lines = [Series(name, times, shown), Series("certified bound", times, bounds, "steps")]
    tips = [
        f"{sample.time:.4g} s, {sample.version} updates ({sample.phase})\n{name} {number(value)}\n"
        f"certified bound {number(sample.bound)}"
        for sample, value in zip(samples, shown, strict=True)
    ]

    def draw(width: float) -> tuple[str, float]:
        tol = [contents.tol] if contents.tol and estimated else []
        y = logarithmic([*seen, *tol], "sine of the largest angle" if estimated else "residual norm")
        canvas = Canvas(width, 330.0, _time_axis(times, width), y)
        canvas.axes()
        if tol and contents.tol:
            canvas.level(contents.tol, f"asked: {contents.tol:g}")
        for series, colour in zip(lines, SERIES, strict=False):
            canvas.draw(series, colour)
            if sum(map(math.isfinite, series.y)) <= _FEW:
                canvas.draw(replace(series, kind="dots"), colour)
        canvas.hits(times, tips, 60 if width > 500 else 30)
        return canvas.svg(), canvas.height

    rows = [
        (f"{s.time:.4g}", s.phase, f"{s.version}", f"{s.passes:.1f}", number(s.residual), number(s.target),
         number(s.estimate), number(s.bound))
        for s in (samples[i] for i in thinned(len(samples), _ROWS))
    ]  # fmt: skip
    head = ("seconds", "phase", "updates", "passes", "residual", "target", "estimate", "certified")
    final = next((value for value in reversed(bounds) if math.isfinite(value)), math.nan)
    return figure(
        "chart-convergence",
        "Bound and estimate over time",
        "What the solver estimates on the way proves nothing; the certified bound does. Logarithmic.",
        draw,
        table(_caption("Moments of the run", len(rows), len(samples)), head, rows, texts=[1]),
        said=f"{name}: {number(shown[-1])} after {times[-1]:.3g} s; certified bound: {number(final)}.",
        legend=legend([(SERIES[0], name), (SERIES[1], "certified bound")]),
    )


def curve(
    ident: str, title: str, text: str, name: str, x: Sequence[float], y: Sequence[float], tol: float
) -> str:
    """One line over time on a logarithmic scale, with its numbers."""
    tips = [f"{t:.4g} s\n{name} {number(value)}" for t, value in zip(x, y, strict=True)]

    def draw(width: float) -> tuple[str, float]:
        canvas = Canvas(width, 300.0, _time_axis(x, width), logarithmic([*y, tol], name))
        canvas.axes()
        canvas.level(tol, f"asked: {tol:g}")
        canvas.draw(Series(name, x, y), SERIES[0])
        canvas.hits(x, tips, 60 if width > 500 else 30)
        return canvas.svg(), canvas.height

    rows = [(f"{x[i]:.4g}", number(y[i])) for i in thinned(len(x), _ROWS)]
    said = f"From {number(y[0])} to {number(y[-1])} in {x[-1]:.3g} s."
    numbers = table(_caption(title, len(rows), len(x)), ("seconds", name), rows)
    return figure(ident, title, text, draw, numbers, said=said)


def spectrum(contents: Contents) -> str | None:
    """The eigenvalues with their errors, the one after the cut, and the gap."""
    certificate, values = contents.certificate, list(contents.values)
    if certificate is None or not values or not all(map(math.isfinite, values)):
        return None
    k = len(values)
    errors = [float(error) for error in certificate.eigenvalue_errors]
    low, high = certificate.next_lower, certificate.next_value.value
    if not math.isfinite(high):
        high = values[-1]
    low = min(low, high) if math.isfinite(low) else high
    gap = certificate.gap.value
    positive = [value for value in [*values, high] if value > 0.0]
    log = len(positive) == k + 1 and max(positive) / min(positive) > 30.0

    def draw(width: float) -> tuple[str, float]:
        every = max(1, math.ceil((k + 1) / (24 if width > 500 else 10)))
        ticks = tuple((float(i), str(i)) for i in range(1, k + 2, every))
        x = Axis(0.4, k + 1.6, ticks, label="number of the eigenvalue")
        seen = [*values, high] + ([] if log else [low])
        y = (
            logarithmic([*seen, min(positive) * 0.8], "eigenvalue")
            if log
            else linear(seen, "eigenvalue", ticks=6, zero=True)
        )
        canvas = Canvas(width, 300.0, x, y)
        if gap > 0.0 and values[-1] > high:
            canvas.band(k + 0.3, high, values[-1], f"gap ≥ {gap:.3g}")
        canvas.axes()
        for i, value in enumerate(values):
            tip = f"eigenvalue {i + 1}\n{value:.8g}\nat most {errors[i]:.2g} too small"
            canvas.bar(i + 0.7, i + 1.3, value, "c0", tip)
        after = f"eigenvalue {k + 1}, after the cut\nbetween {number(low)} and {number(high)}"
        floor = max(low, canvas.y.low)
        canvas.whisker(k + 1.0, floor, max(high, floor), "c1", after)
        canvas.upright(k + 0.5, "cut", "end")
        return canvas.svg(), canvas.height

    rows = [
        (
            f"{i + 1}",
            f"{value:.10g}",
            number(errors[i], ".2g"),
            number(float(certificate.residuals[i]), ".2g"),
        )
        for i, value in enumerate(values)
    ]
    how = "" if certificate.next_value.rigorous else f", confidence {certificate.next_value.confidence:g}"
    rows.append((f"{k + 1} (after the cut)", f"{number(low)} to {number(high)}{how}", "–", "–"))
    said = f"{k} eigenvalues from {values[0]:.4g} to {values[-1]:.4g}; the next is at most {number(high)}."
    keys = [("c0", "wanted eigenvalues"), ("c1", "where the next one can be")]
    keys += [("band", "certified gap")] if gap > 0.0 and values[-1] > high else []
    return figure(
        "chart-spectrum",
        "Spectrum, gap and cut",
        "The leading eigenvalues, and between which bounds the first one after the cut lies."
        + (" Logarithmic." if log else ""),
        draw,
        table("Eigenvalues", ("", "eigenvalue", "error at most", "residual"), rows),
        said=said,
        legend=legend(keys),
    )


def variance(contents: Contents) -> str | None:
    """Explained variance of each component, and of all up to it."""
    certificate, values = contents.certificate, list(contents.values)
    if certificate is None or not certificate.total or certificate.total <= 0.0 or not values:
        return None
    ratios = [max(value, 0.0) / certificate.total for value in values]
    together = [min(float(value), 1.0) for value in np.cumsum(ratios)]
    k = len(values)
    places = [float(i + 1) for i in range(k)]

    def draw(width: float) -> tuple[str, float]:
        every = max(1, math.ceil(k / (24 if width > 500 else 10)))
        x = Axis(0.4, k + 0.6, tuple((float(i), str(i)) for i in range(1, k + 1, every)), label="component")
        y = linear([0.0, 100.0 * together[-1]], "explained, %", zero=True)
        canvas = Canvas(width, 280.0, x, y)
        canvas.axes()
        for i, ratio in enumerate(ratios):
            tip = (
                f"component {i + 1}\n{100 * ratio:.4g} % of the variance\n{100 * together[i]:.4g} % together"
            )
            canvas.bar(i + 0.7, i + 1.3, 100.0 * ratio, "c0", tip)
        canvas.draw(Series("together", places, [100.0 * value for value in together]), "c1")
        return canvas.svg(), canvas.height

    rows = [
        (f"{i + 1}", f"{100 * r:.4g}", f"{100 * t:.4g}")
        for i, (r, t) in enumerate(zip(ratios, together, strict=True))
    ]
    return figure(
        "chart-variance",
        "Explained variance",
        f"Of the total variance {certificate.total:.6g}.",
        draw,
        table("Explained variance in percent", ("component", "alone", "together"), rows),
        said=f"{k} components explain {100 * together[-1]:.4g} % of the variance.",
        legend=legend([("c0", "each"), ("c1", "together")]),
    )


def staleness(contents: Contents) -> str | None:
    """How many times the iterate had moved between question and answer."""
    counts = [(int(value), int(count)) for value, count in contents.staleness]
    total = sum(count for _, count in counts)
    if not total:
        return None
    most = max(value for value, _ in counts)
    edges = _edges(most)
    shown = [
        (low, high - 1, sum(count for value, count in counts if low <= value < high))
        for low, high in pairwise(edges)
    ]
    least = min(count for *_, count in shown if count)
    log = max(count for *_, count in shown) > 100 * least  # a few late answers are what one looks for

    def name(low: int, high: int) -> str:
        return f"{low}" if low == high else f"{low} to {high}"

    def draw(width: float) -> tuple[str, float]:
        every = max(1, math.ceil(len(shown) / (20 if width > 500 else 7)))
        ticks = tuple((i + 0.5, f"{shown[i][0]}") for i in range(0, len(shown), every))
        x = Axis(0.0, float(len(shown)), ticks, label="staleness, in updates")
        heights = [float(count) for *_, count in shown if count]
        y = (
            logarithmic([*heights, 0.5 * least], "updates")
            if log
            else linear(heights, "updates", zero=True, whole=True)
        )
        canvas = Canvas(width, 240.0, x, y)
        canvas.axes()
        for i, (low, high, count) in enumerate(shown):
            if count:
                tip = f"staleness {name(low, high)}\n{count} updates ({100 * count / total:.3g} %)"
                canvas.bar(i + 0.08, i + 0.92, float(count), "c0", tip)
        return canvas.svg(), canvas.height

    rows = [(name(low, high), f"{count}", f"{100 * count / total:.3g} %") for low, high, count in shown]
    mean = sum(value * count for value, count in counts) / total
    return figure(
        "chart-staleness",
        "Staleness",
        "How often the iterate had moved between a question and its answer; the largest of each update."
        + (" Logarithmic." if log else ""),
        draw,
        table("Updates by staleness", ("staleness", "updates", "share"), rows),
        said=f"{total} updates, staleness {mean:.3g} on average and {most} at most.",
    )


def _edges(most: int) -> list[int]:
    """Where bins begin and end: one for each number, or, where that would be many, twice as wide as the last.

    >>> _edges(3), _edges(100)
    ([0, 1, 2, 3, 4], [0, 1, 2, 4, 8, 16, 32, 64, 128])
    """
    if most <= 40:
        return list(range(most + 2))
    return [0, *(2**p for p in range(most.bit_length() + 1))]


def traffic(contents: Contents) -> str | None:
    """Bytes moved, over time or in all."""
    samples = [sample for sample in contents.samples if sample.sent or sample.received]
    sent, received = contents.stats.get("bytes_sent"), contents.stats.get("bytes_received")
    if samples and sent is None:
        sent, received = samples[-1].sent, samples[-1].received
    if sent is None or received is None:
        return None
    unit, name = next(
        (pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if max(sent, received) >= pair[0]),
        (1.0, "B"),
    )
    times = [sample.time for sample in samples]
    said = f"{size_text(int(sent))} sent to the workers, {size_text(int(received))} received from them."

    def draw(width: float) -> tuple[str, float]:
        if len(samples) < 2:
            x = Axis(0.0, 2.0, ((0.5, "sent"), (1.5, "received")))
            canvas = Canvas(width, 240.0, x, linear([0.0, sent / unit, received / unit], name, zero=True))
            canvas.axes()
            canvas.bar(0.2, 0.8, sent / unit, "c0", f"sent\n{size_text(int(sent))}")
            canvas.bar(1.2, 1.8, received / unit, "c1", f"received\n{size_text(int(received))}")
            return canvas.svg(), canvas.height
        a, b = [s.sent / unit for s in samples], [s.received / unit for s in samples]
        canvas = Canvas(width, 260.0, _time_axis(times, width), linear([0.0, *a, *b], name, zero=True))
        canvas.axes()
        canvas.draw(Series("sent", times, a), "c0")
        canvas.draw(Series("received", times, b), "c1")
        tips = [
            f"{s.time:.4g} s\nsent {size_text(s.sent)}\nreceived {size_text(s.received)}" for s in samples
        ]
        canvas.hits(times, tips, 60 if width > 500 else 30)
        return canvas.svg(), canvas.height

    rows = [(f"{samples[i].time:.4g}", f"{samples[i].sent}", f"{samples[i].received}")
            for i in thinned(len(samples), _ROWS)]  # fmt: skip
    rows.append(("in all", f"{int(sent)}", f"{int(received)}"))
    return figure(
        "chart-traffic",
        "Traffic",
        said,
        draw,
        table("Bytes so far", ("seconds", "sent", "received"), rows),
        said=said,
        legend=legend([("c0", "sent to workers"), ("c1", "received from workers")]),
    )


def scatter(rows: Scatter) -> str:
    """Rows along the first two components, by their labels."""
    names = Counter(rows.labels).most_common()
    kept = [name for name, _ in names[: 8 if len(names) <= 8 else 7]]
    groups: dict[str, list[tuple[float, float]]] = {name: [] for name in kept}
    for i, point in enumerate(rows.points):
        label = rows.labels[i] if rows.labels else "rows"
        groups.setdefault(label if label in kept or not rows.labels else "others", []).append(point)
    wanted = [point for point in rows.points if all(map(math.isfinite, point))]

    def draw(width: float) -> tuple[str, float]:
        x = linear([point[0] for point in wanted], "first component", ticks=6)
        canvas = Canvas(
            width,
            min(440.0, width + 30.0),
            x,
            linear([point[1] for point in wanted], "second component", ticks=7),
        )
        canvas.axes()
        # The largest group lies behind the others.
        for i, (name, points) in sorted(enumerate(groups.items()), key=lambda one: -len(one[1][1])):
            shape = _MARKERS[i % len(_MARKERS)]
            d = "".join(f"M{canvas.px(a):.1f} {canvas.py(b):.1f}{shape}" for a, b in points)
            canvas.parts.append(
                f'<path class="point {SERIES[i]}" d="{d}" {tipped(_group(name, len(points)))}</path>'
            )
        return canvas.svg(), canvas.height

    lines = []
    for name, points in groups.items():
        array = np.array(points).reshape(-1, 2)
        mean, spread = array.mean(axis=0), array.std(axis=0)
        lines.append((name, f"{len(points)}", *(f"{value:.4g}" for value in (*mean, *spread))))
    shown = f"{len(rows.points)} of {rows.rows} rows" if len(rows.points) < rows.rows else f"{rows.rows} rows"
    head = (
        "label" if rows.labels else "",
        "rows",
        "mean, first",
        "mean, second",
        "spread, first",
        "spread, second",
    )
    keys = legend([(SERIES[i], name) for i, name in enumerate(groups)]) if rows.labels else ""
    return figure(
        "chart-rows",
        "Rows along the first two components",
        f"{shown}, taken at random." if len(rows.points) < rows.rows else f"{shown}.",
        draw,
        table("Groups of rows", head, lines),
        said=f"{shown} in {len(groups)} groups." if rows.labels else f"{shown}.",
        legend=keys,
        square=True,
    )


def _group(name: str, count: int) -> str:
    return f"{name}\n{count} {'row' if count == 1 else 'rows'} shown"


def _time_axis(times: Sequence[float], width: float) -> Axis:
    end = max((time for time in times if math.isfinite(time)), default=1.0)
    axis = linear([0.0, end or 1.0], "seconds", ticks=8 if width > 500 else 4, zero=True)
    kept = tuple((value, text) for value, text in axis.ticks if value <= end * 1.0001) or axis.ticks
    return Axis(0.0, max(end, 1e-9), kept, label="seconds") if end > 0.0 else axis


def _caption(text: str, shown: int, count: int) -> str:
    return text if shown >= count else f"{text}: {shown} of {count}"
