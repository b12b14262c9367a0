"""All of it: compute what is missing, draw, and write down what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

import grassia
from grassia.experiments import figures, problems, protocol, report, scaling, table1
from grassia.experiments.curves import FLOOR, Store, Task
from grassia.experiments.protocol import Group, Plan
from grassia.experiments.report import Results

PARTS = ("fig1", "fig2", "table1")


class Display(Protocol):
    """Where progress is shown."""

    def __call__(
        self,
        what: str,
        work: Sequence[Any],
        do: Callable[[Any, Callable[[float], None]], Any],
        name: Callable[[Any], str],
    ) -> None:
        """Do each piece of the work, telling how far it is."""


@dataclass(frozen=True)
class Reproduction:
    """One reproduction into a folder. What the folder has already of it is not computed again.

    Parameters
    ----------
    output : Path
    display : Display
    data : {"real", "made"}
        The paper's data, or small made sets.
    quick : bool
        Two seeds and a tenth of the ranges.
    extended : bool
        Add methods the paper does not have.
    grid : bool
        Repeat the search for steps.
    """

    output: Path
    display: Display
    data: Literal["real", "made"] = "real"
    quick: bool = False
    extended: bool = False
    grid: bool = False

    @property
    def plan(self) -> Plan:
        return protocol.plan(self.data, self.quick)

    def run(self, parts: Sequence[str] = PARTS) -> Path:
        """Do the parts and write everything; returns the path of the summary.

        That is `summary.md` for all of them, else named after what was done.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        store = Store(self.output / "curves", cache(problems.get))
        chapters = []
        if "fig1" in parts:
            chapters += self._serial(store)
        if "fig2" in parts:
            chapters += self._cluster(store)
        if "table1" in parts:
            chapters += self._scaling()
        head = [
            "# The paper's experiments, reproduced",
            f"grassia {grassia.__version__}, NumPy {np.__version__}. Data: {self.data}. "
            + report.protocol_text(self.plan),
        ]
        text = "\n\n".join(head + chapters) + "\n"
        path = self.output / ("summary.md" if set(parts) == set(PARTS) else f"{'-'.join(parts)}.md")
        path.write_text(text, encoding="utf-8")
        return path

    # -- figure 1 -------------------------------------------------------------------------------

    def _serial(self, store: Store) -> list[str]:
        plan = self.plan
        found = self._measure("figure 1", plan.serial, store)
        others = self._measure("orders and steps", plan.variants, store)
        self._write("fig1", report.panels(found), found)
        self._write("fig1-variants", report.panels(others), others)
        text = ["## Figure 1: serial k-PCA", _picture("fig1")]
        text += [f"### {one.group.data}\n\n{report.serial_table(one)}" for one in found]
        if self.data == "real":
            text += ["### Claims", self._judged(lambda: report.serial_claims(found))]
        text += ["### Orders of the batches, and steps", _picture("fig1-variants")]
        text += [f"{one.group.data}:\n\n{report.serial_table(one)}" for one in others]
        if self.extended:
            text += self._extended("fig1", plan.serial, store)
        if self.grid:
            text += self._search("fig1", plan.serial, protocol.SERIAL_GRID, store)
        return text

    # -- figure 2 -------------------------------------------------------------------------------

    def _cluster(self, store: Store) -> list[str]:
        plan = self.plan
        found = self._measure("figure 2", [plan.cluster], store)
        delays = self._measure("delay models", [plan.delays], store)
        self._write("fig2", self._both(found), found)
        self._write("delays", report.panels(delays, low=FLOOR), delays)
        text = ["## Figure 2: distributed k-PCA", _picture("fig2"), report.cluster_table(found[0])]
        if self.data == "real":
            text += ["### Claims", self._judged(lambda: report.cluster_claims(found[0]))]
        text += ["### Delay models", _picture("delays"), report.cluster_table(delays[0])]
        text += [report.seeds_above(delays[0])]
        if self.extended:
            text += self._extended("fig2", [plan.cluster], store)
        if self.grid:
            text += self._search("fig2", [plan.cluster], protocol.CLUSTER_GRID, store)
        return text

    def _judged(self, claims: Callable[[], Sequence[object]]) -> str:
        if self.quick:
            return "The claims are about the whole range; this is a tenth of it, and they are not judged."
        return "\n".join(map(str, claims()))

    @staticmethod
    def _both(found: Sequence[Results]) -> list[figures.Panel]:
        return report.panels(found, "gap", low=1e-12) + report.panels(found, low=FLOOR)

    # -- table 1 --------------------------------------------------------------------------------

    def _scaling(self) -> list[str]:
        seeds = self.plan.seeds[:1] if self.quick else self.plan.seeds
        store = table1.Store(self.output / "curves" / "table1.json", seeds)
        wanted = [
            point for row in table1.ROWS for some in table1.points(row, self.quick).values() for point in some
        ]
        self.display("table 1", store.missing(wanted), store.add, lambda point: point.row.label)
        figures.draw(scaling.scaling_panels(store, self.quick), self.output / "table1")
        scaling.write_scaling_csv(self.output / "table1.csv", store, self.quick)
        return [
            "## Table 1: component products, measured",
            (table1.__doc__ or "").partition("\n\n")[2].strip(),
            "Exponents fitted by least squares, the paper's in brackets:",
            scaling.scaling_table(store, self.quick),
            _picture("table1"),
        ]

    # -- what the figures share -----------------------------------------------------------------

    def _measure(self, what: str, groups: Sequence[Group], store: Store) -> list[Results]:
        seeds = self.plan.seeds
        tasks = [task for group in groups for task in group.tasks(seeds)]
        self._compute(what, tasks, store)
        return [Results.of(group, store, seeds, store.rows(group.data)) for group in groups]

    def _compute(self, what: str, tasks: Sequence[Task], store: Store) -> None:
        def name(task: Task) -> str:
            step = "" if task.method.step is None else f", step {task.method.step:.2g}"
            return f"{task.data}, {task.method.label}{step}, seed {task.seed}"

        self.display(what, store.missing(tasks), store.add, name)

    def _write(self, name: str, panels: Sequence[figures.Panel], found: Sequence[Results]) -> None:
        figures.draw(panels, self.output / name)
        report.write_csv(self.output / f"{name}.csv", found)

    def _extended(self, name: str, groups: Sequence[Group], store: Store) -> list[str]:
        plan = self.plan
        found = self._measure(f"{name}, extended", [plan.extend(group) for group in groups], store)
        drawn = report.panels(found, low=FLOOR) if found[0].samples else self._both(found)
        self._write(f"{name}-extended", drawn, found)
        tables = [report.serial_table(one) if one.samples else report.cluster_table(one) for one in found]
        return [
            "### Beyond the paper",
            _picture(f"{name}-extended"),
            "The added methods run with their default parameters, ask for blocks of k columns, and on the "
            "cluster are evaluated at dispatch, the harder model. FedPower and one-shot averaging make "
            "several products for one answer; the clock charges the answer.",
            *tables,
            "\n".join(f"- {report.not_the_best(one)}" for one in found),
        ]

    def _search(self, name: str, groups: Sequence[Group], grid: Sequence[float], store: Store) -> list[str]:
        """Every step of the grid with the first seed; the best of each method with all."""
        seed = self.plan.seeds[:1]
        rows, best = [], []
        for group in groups:
            tried = {
                method.label: Group(group.data, tuple(method.with_step(step) for step in grid), group.range)
                for method in group.methods
            }
            self._compute(f"{name}, grid", [t for one in tried.values() for t in one.tasks(seed)], store)
            winners = []
            for method in group.methods:
                ends = []
                for task in tried[method.label].tasks(seed):
                    curve = store.get(task)
                    end = max(float(curve.distance[-1]), FLOOR)
                    ends.append((end, curve.reaches(end), float(task.method.step or 0.0)))
                end, _, step = min(ends)
                winners.append(method.with_step(step))
                cells = [report.number(one[0]) for one in ends]
                rows.append([group.data, method.label, f"{method.step:.2g}", f"{step:.2g}", *cells])
            best.append(Group(group.data, tuple(winners), group.range))
        found = self._measure(f"{name}, best steps", best, store)
        drawn = report.panels(found, low=FLOOR) if found[0].samples else self._both(found)
        self._write(f"{name}-grid", drawn, found)
        head = ["data", "method", "paper's step", "best step", *(f"{step:g}" for step in grid)]
        return [
            "### Steps searched anew",
            "Distance at the end of the range for each step of the grid (first seed); of steps that end "
            "alike, the one that is there first is the best.",
            report.table(head, rows),
            "With the best step of each, all seeds:",
            _picture(f"{name}-grid"),
            *(report.serial_table(one) if one.samples else report.cluster_table(one) for one in found),
            "\n".join(f"- {one.group.data}: {report.who_leads(one, list(one.curves))}" for one in found),
        ]


def _picture(name: str) -> str:
    return f"![{name}]({name}.png)"
