"""The timeline of every worker: busy, idle or lost, worked out from samples and drawn as strips."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from grassia.messages import Array
from grassia.report.axes import linear
from grassia.report.charts import tipped
from grassia.report.contents import Contents
from grassia.report.sample import Sample
from grassia.result import Event

__all__ = ["MOST_ROWS", "busy_shares", "draw", "lost_spells", "shares"]

MOST_ROWS = 256
LEVELS = 4


def busy_shares(samples: Sequence[Sample]) -> tuple[Array, Array]:
    """Times (m + 1,), and the share of each stretch between them that each worker was busy (workers, m).

    What a task took is known when its answer comes: it is laid back from there. A question that is still out
    counts from when it was asked.
    """
    usable = [sample for sample in samples if sample.busy]
    if not usable:
        return np.zeros(1), np.zeros((0, 0))
    times = np.maximum.accumulate(np.array([0.0, *(sample.time for sample in usable)]))
    keep = np.flatnonzero(np.diff(times) > 0.0)  # stretches of no length
    busy = np.vstack([np.zeros(len(usable[0].busy)), *[sample.busy for sample in usable]])
    lengths = np.diff(times)
    shares = np.zeros((busy.shape[1], len(lengths)))
    owed = np.zeros(busy.shape[1])
    for i in range(len(lengths) - 1, -1, -1):
        owed += np.maximum(busy[i + 1] - busy[i], 0.0)
        if lengths[i] <= 0.0:
            continue
        done = np.minimum(owed, lengths[i])
        owed -= done
        out = np.minimum(usable[i].waited, lengths[i])
        shares[:, i] = np.maximum(done, out) / lengths[i]
    return np.concatenate([[times[0]], times[keep + 1]]), shares[:, keep]


def lost_spells(
    events: Sequence[Event], groups: Sequence[Sequence[int]], end: float
) -> list[list[tuple[float, float]]]:
    """For each worker, from when until when it was out of reach."""
    owner = {component: worker for worker, group in enumerate(groups) for component in group}
    since: dict[int, float] = {}
    spells: list[list[tuple[float, float]]] = [[] for _ in groups]
    for event in events:
        worker = -1 if event.component is None else owner.get(event.component, -1)
        if worker < 0:
            continue
        if event.kind in ("worker lost", "left out"):
            since.setdefault(worker, event.time)
        elif event.kind == "worker restored" and worker in since:
            spells[worker].append((since.pop(worker), event.time))
    for worker, moment in since.items():
        spells[worker].append((moment, end))
    return spells


def shares(contents: Contents) -> tuple[Array, Array, list[list[tuple[float, float]]]]:
    """Times, busy shares and spells of loss of a run."""
    times, busy = busy_shares(contents.samples)
    end = float(times[-1])
    return times, busy, lost_spells(contents.events, contents.groups, end)


def draw(contents: Contents, width: float, columns: int) -> tuple[str, float]:
    """The strips, and the height of the picture."""
    times, busy, spells = shares(contents)
    rows = min(len(busy), MOST_ROWS)
    thick = 18.0 if rows <= 24 else 11.0 if rows <= 64 else 4.0
    names = rows <= 64
    left = 12.0 + (6.6 * max(len(contents.name(w)) for w in range(rows)) if names and rows else 0.0)
    end = float(times[-1]) or 1.0
    axis = linear([0.0, end], ticks=8 if width > 500 else 4, zero=True)
    area = width - left - 14.0

    def place(moment: float) -> float:
        return left + area * min(moment / end, 1.0)

    edges = np.linspace(0.0, end, columns + 1)
    binned = _binned(times, busy[:rows], edges)
    parts: list[str] = []
    for w in range(rows):
        y = 8.0 + w * (thick + 2.0)
        parts.append(f'<rect class="idle" x="{left:.1f}" y="{y:.1f}" width="{area:.1f}" height="{thick}"/>')
        parts += _strips(binned[w], edges, place, y, thick)
        for a, b in spells[w]:
            wide = max(place(b) - place(a), 3.0)
            parts.append(
                f'<rect class="gone" x="{place(a):.1f}" y="{y:.1f}" width="{wide:.1f}" height="{thick}"/>'
            )
        said = f"{contents.name(w)}: busy {100 * _overall(times, busy[w]):.0f} % of the time"
        if spells[w]:
            said += f", lost {len(spells[w])} times, for {sum(b - a for a, b in spells[w]):.3g} s"
        parts.append(
            f'<rect class="hit" x="0" y="{y:.1f}" width="{width:.1f}" height="{thick + 2.0}" '
            f"{tipped(said)}</rect>"
        )
        if names:
            parts.append(
                f'<text x="{left - 6:.1f}" y="{y + thick / 2 + 4:.1f}" text-anchor="end">'
                f"{escape(contents.name(w))}</text>"
            )
    bottom = 8.0 + rows * (thick + 2.0)
    for value, text in (tick for tick in axis.ticks if tick[0] <= end * 1.0001):
        x = place(value)
        parts.append(f'<path class="tick" d="M{x:.1f} {bottom:.1f}v4"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{text}</text>')
    middle = left + area / 2
    parts.append(
        f'<text class="name" x="{middle:.1f}" y="{bottom + 36:.1f}" text-anchor="middle">seconds</text>'
    )
    return "".join(parts), bottom + 44.0


def _strips(levels: Array, edges: Array, place: object, y: float, thick: float) -> list[str]:
    """Neighbours of the same level as one rectangle."""
    assert callable(place)
    found, start = [], 0
    for i in range(1, len(levels) + 1):
        if i < len(levels) and levels[i] == levels[start]:
            continue
        if levels[start] > 0:
            a, b = place(float(edges[start])), place(float(edges[i]))
            found.append(
                f'<rect class="b{int(levels[start])}" x="{a:.1f}" y="{y:.1f}" width="{b - a:.1f}" '
                f'height="{thick}"/>'
            )
        start = i
    return found


def _binned(times: Array, busy: Array, edges: Array) -> Array:
    """Levels of being busy, 0 to `LEVELS`, for each worker in each column."""
    if not busy.size:
        return np.zeros((len(busy), len(edges) - 1), dtype=int)
    worked = np.hstack([np.zeros((len(busy), 1)), np.cumsum(busy * np.diff(times), axis=1)])
    at = np.array([np.interp(edges, times, row) for row in worked])
    share = np.diff(at, axis=1) / np.diff(edges)
    return np.ceil(np.clip(share, 0.0, 1.0) * LEVELS - 0.2).astype(int)


def _overall(times: Array, busy: Array) -> float:
    total = float(times[-1] - times[0])
    return float(busy @ np.diff(times)) / total if total > 0.0 else 0.0
