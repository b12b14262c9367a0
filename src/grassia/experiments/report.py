"""Tables and sentences of a reproduction: what was measured, claim by claim."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grassia.experiments.curves import Curve, Method, Store
from grassia.experiments.figures import Line, Panel
from grassia.experiments.protocol import GRASSIA, Group, Plan
from grassia.messages import Array

PASSES = (10, 50, 100, 200)
TICKS = (50, 100, 200, 300, 600)
LEVELS = (1e-1, 1e-2, 1e-4, 1e-6)
# A claim about all places that fails at fewer than one in twenty is said to hold at the others.
NEARLY = 0.95


@dataclass(frozen=True, eq=False)
class Results:
    """The curves of a group, seed by seed."""

    group: Group
    curves: dict[str, list[Curve]]
    rows: int

    @classmethod
    def of(cls, group: Group, store: Store, seeds: tuple[int, ...], rows: int) -> Results:
        curves = {
            method.label: [store.get(task) for task in Group(group.data, (method,), group.range).tasks(seeds)]
            for method in group.methods
        }
        return cls(group, curves, rows)

    @property
    def samples(self) -> bool:
        return self.group.range.axis == "samples"

    @property
    def places(self) -> Array:
        """Where the curves are compared: the places at which they were measured, the start left out."""
        scale = self.rows if self.samples else 1.0
        return scale * np.linspace(0.0, self.group.range.until, self.group.range.points)

    def distances(self, label: str, x: Array | float) -> Array:
        """Distances of every seed."""
        return np.array([curve.at(x) for curve in self.curves[label]])

    def gaps(self, label: str, x: Array | float) -> Array:
        """Objective gaps of every seed."""
        return np.array([curve.gap_at(x) for curve in self.curves[label]])

    def smallest(self, labels: Iterable[str]) -> list[str]:
        """Who has the smallest mean distance at each place, from the second on."""
        means = {label: self.distances(label, self.places[1:]).mean(axis=0) for label in labels}
        names = list(means)
        return [names[i] for i in np.argmin(np.stack(list(means.values())), axis=0)]


def panels(found: Sequence[Results], what: str = "distance", low: float | None = None) -> list[Panel]:
    """One panel for each group, of distances or objective gaps."""
    made = []
    for one in found:
        values = one.distances if what == "distance" else one.gaps
        lines = [
            Line(label, one.places, values(label, one.places), style)
            for style, label in enumerate(one.curves)
        ]
        title = one.group.data if what == "distance" and len(found) > 1 else ""
        xlabel = "samples passed" if one.samples else "clock time (ticks)"
        ylabel = "geodesic distance" if what == "distance" else r"objective gap $F(W)-F(W^*)$"
        made.append(Panel(title, xlabel, ylabel, lines, low=low))
    return made


def write_csv(path: Path, found: Sequence[Results]) -> None:
    """Every measured point of every seed."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        axis = "samples" if found[0].samples else "time"
        writer.writerow(["data", "method", "step", "evaluate", "seed", axis, "calls", "distance", "gap"])
        for one in found:
            for method in one.group.methods:
                for seed, curve in enumerate(one.curves[method.label]):
                    head = [one.group.data, method.label, method.step, method.evaluate, seed]
                    columns = zip(curve.x, curve.calls, curve.distance, curve.gap, strict=True)
                    writer.writerows(
                        [*head, f"{x:g}", calls, f"{d:.6g}", f"{g:.6g}"] for x, calls, d, g in columns
                    )


# -- words --------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Two digits.

    >>> number(0.0123), number(float("inf"))
    ('1.2e-02', '-')
    """
    return f"{value:.1e}" if math.isfinite(value) else "-"


def _step(method: Method) -> str:
    return "-" if method.step is None else f"{method.step:.2g}"


def serial_table(one: Results) -> str:
    """Distances after so many passes."""
    until = one.group.range.until
    marks = sorted({min(mark, until) for mark in PASSES})
    rows = []
    for method in one.group.methods:
        cells = []
        for mark in marks:
            seen = one.distances(method.label, mark * one.rows)
            cells.append(f"{number(seen.mean())} ± {seen.std():.0e}")
        rows.append([method.label, _step(method), *cells])
    return table(["method", "step", *(f"after {mark:g} passes" for mark in marks)], rows)


def cluster_table(one: Results) -> str:
    """Ticks to distances, and distances at ticks."""
    until = one.group.range.until
    marks = sorted({min(mark, until) for mark in TICKS})
    rows = []
    for method in one.group.methods:
        curves = one.curves[method.label]
        ticks = [float(np.median([curve.reaches(level) for curve in curves])) for level in LEVELS]
        cells = [f"{tick:g}" if math.isfinite(tick) else f"> {until:g}" for tick in ticks]
        seen = [number(one.distances(method.label, float(mark)).mean()) for mark in marks]
        rows.append([method.label, _step(method), *cells, *seen])
    head = [
        "method",
        "step",
        *(f"ticks to {level:g}" for level in LEVELS),
        *(f"at {mark:g}" for mark in marks),
    ]
    return table(head, rows)


def who_leads(one: Results, labels: Sequence[str]) -> str:
    """Where GRASSIA has the smallest mean distance, and who has it elsewhere."""
    leaders = one.smallest(labels)
    unit = "passes" if one.samples else "ticks"
    scale = one.rows if one.samples else 1.0
    share = leaders.count(GRASSIA) / len(leaders)
    text = (
        f"GRASSIA has the smallest mean distance at {100 * share:.0f} % of the {len(leaders)} places measured"
    )
    for other in sorted(set(leaders) - {GRASSIA}):
        at = [one.places[1 + i] / scale for i, leader in enumerate(leaders) if leader == other]
        text += f"; {other} at {len(at)} of them, between {min(at):g} and {max(at):g} {unit}"
    return text + "."


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper's section on experiments, the share of places where it holds, the numbers."""

    text: str
    share: float
    found: str

    @property
    def verdict(self) -> str:
        """A word on it."""
        if self.share >= 1.0:
            return "Confirmed"
        return f"Confirmed at {100 * self.share:.0f} %" if self.share >= NEARLY else "Not confirmed"

    def __str__(self) -> str:
        return f"- **{self.verdict}.** {self.text} {self.found}"


def serial_claims(found: Sequence[Results]) -> list[Claim]:
    """The claims on figure 1."""
    claims = []
    for one in found:
        labels = list(one.curves)
        ends = {label: float(one.distances(label, one.places[-1]).mean()) for label in labels}
        least = min(ends, key=lambda label: ends[label])
        leaders = one.smallest(labels)
        said = ", ".join(f"{label} {number(end)}" for label, end in ends.items())
        claims.append(
            Claim(
                "“GRASSIA attains the smallest geodesic distance … over the reported sample range” "
                f"({one.group.data}).",
                leaders.count(GRASSIA) / len(leaders),
                f"At the end: {said}; smallest: {least}. {who_leads(one, labels)}",
            )
        )
        own = ends[GRASSIA]
        slow = ("IARG with deflation", "Block Oja")
        claims.append(
            Claim(
                f"“The deflation baseline and Oja remain at noticeably larger errors” ({one.group.data}).",
                float(all(ends[label] > 2.0 * own for label in slow)),
                "They end at "
                + " and ".join(f"{ends[label] / own:.2g}" for label in slow)
                + " times GRASSIA's.",
            )
        )
        level = min(ends["VR-PCA"], ends["RGD"])
        reach = {
            label: float(np.median([curve.reaches(level) for curve in one.curves[label]])) / one.rows
            for label in (GRASSIA, "VR-PCA", "RGD")
        }
        claims.append(
            Claim(
                f"“VR-PCA and RGD improve more slowly than GRASSIA” ({one.group.data}).",
                float(reach[GRASSIA] < min(reach["VR-PCA"], reach["RGD"])),
                f"Passes to a distance of {number(level)}: "
                + ", ".join(f"{label} {_or_more(value, one)}" for label, value in reach.items())
                + ".",
            )
        )
    return claims


def _or_more(value: float, one: Results) -> str:
    return f"{value:.0f}" if math.isfinite(value) else f"> {one.group.range.until:g}"


def cluster_claims(one: Results) -> list[Claim]:
    """The claims on figure 2."""
    labels = list(one.curves)
    end = one.places[-1]
    ends = {label: float(one.distances(label, end).mean()) for label in labels}
    gap_leaders = np.argmin(
        np.stack([one.gaps(label, one.places[1:]).mean(axis=0) for label in labels]), axis=0
    )
    gap_share = float(np.mean(gap_leaders == labels.index(GRASSIA)))
    leaders = one.smallest(labels)
    ticks = {
        label: [
            float(np.median([curve.reaches(level) for curve in one.curves[label]])) for level in (1e-2, 1e-4)
        ]
        for label in labels
    }
    said = ", ".join(
        f"{label} {' / '.join(_or_more(tick, one) for tick in found)}" for label, found in ticks.items()
    )
    rgd, own = ticks["Distributed RGD"], ticks[GRASSIA]
    stagnate = ("Delayed-Oja", "Oja")
    half = {label: float(one.distances(label, end / 2).mean()) for label in labels}
    return [
        Claim(
            "“GRASSIA attains lower objective gaps and geodesic distances than the compared methods at the "
            "same wall-clock times over the reported range.”",
            min(gap_share, leaders.count(GRASSIA) / len(leaders)),
            f"{who_leads(one, labels)} Its mean objective gap is the smallest at {100 * gap_share:.0f} %. "
            f"Ticks to 1e-2 / 1e-4: {said}.",
        ),
        Claim(
            "“Distributed RGD also exhibits stable descent, but … substantially slower.”",
            float(ends["Distributed RGD"] < half["Distributed RGD"] and own[0] < rgd[0]),
            f"Ticks to 1e-2: GRASSIA {_or_more(own[0], one)}, RGD {_or_more(rgd[0], one)}; at the end RGD is "
            f"at {number(ends['Distributed RGD'])}.",
        ),
        Claim(
            "“Delayed-Oja and Oja stagnate at significantly larger error levels.”",
            float(all(ends[label] > max(10.0 * ends[GRASSIA], 0.5 * half[label]) for label in stagnate)),
            "Halfway and at the end: "
            + ", ".join(
                f"{label} {number(half[label])}, {number(ends[label])}" for label in (GRASSIA, *stagnate)
            )
            + ".",
        ),
    ]


def seeds_above(one: Results, level: float = 1e-2) -> str:
    """How many seeds of each method end above a distance: a mean over seeds does not tell."""
    end = one.places[-1]
    counts = {label: int(np.sum(one.distances(label, end) > level)) for label in one.curves}
    said = "; ".join(f"{label}: {count} of {len(one.curves[label])}" for label, count in counts.items())
    return f"Seeds that end above {level:g}: {said}."


def not_the_best(one: Results) -> str:
    """Who of all methods shown, the added ones too, does better than GRASSIA at the end or on the way."""
    end = one.places[-1]
    own = float(one.distances(GRASSIA, end).mean())
    ahead = []
    for label in one.curves:
        if label == GRASSIA:
            continue
        mean = one.distances(label, one.places[1:]).mean(axis=0)
        mine = one.distances(GRASSIA, one.places[1:]).mean(axis=0)
        share = float(np.mean(mean < mine))
        if share > 0.5:
            ahead.append(f"{label} ({100 * share:.0f} % of the places; at the end {number(float(mean[-1]))})")
    if not ahead:
        return f"{one.group.data}: nobody is ahead of GRASSIA ({number(own)} at the end) most of the time."
    return (
        f"{one.group.data}: ahead of GRASSIA ({number(own)} at the end) most of the time: {', '.join(ahead)}."
    )


def protocol_text(plan: Plan) -> str:
    """What was run, in a paragraph."""
    serial, cluster = plan.serial[0].range, plan.cluster.range
    return (
        f"{len(plan.seeds)} seeds; means, with bands of one standard deviation. Figure 1: batches of 50 rows "
        "in the order of the file, the last one short, drawn at random by the incremental methods; "
        f"{serial.until:g} passes; each answer counts the rows of its batch. Figure 2: 20 workers, times "
        "drawn from 1 to 5, gradients evaluated at return (Delayed-Oja: at dispatch), first product free; "
        f"{cluster.until:g} ticks. Runs end at a distance of 1e-13."
    )
