"""What the demo found: on the terminal, as sections of its report, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from grassia.faults import Fault
from grassia.messages import Array
from grassia.report.contents import Section
from grassia.report.figures import curve
from grassia.report.parts import table
from grassia.report.words import in_words
from grassia.result import Result

SHOWN_EVENTS = 8


@dataclass(frozen=True)
class Demo:
    """A run of the demo.

    Attributes
    ----------
    leading : ndarray (k + 1,)
        The eigenvalues of the dense oracle; the last is the one after the cut.
    sine : float
        Sine of the largest angle between the answer and the oracle, measured.
    certifying : (float, float) or None
        When the accepted certificate was made.
    """

    what: str
    faults: Sequence[str]
    seed: int
    names: Sequence[str]
    notes: Sequence[str]
    result: Result
    leading: Array
    oracle_seconds: float
    sine: float
    times: Array
    distances: Array
    certifying: tuple[float, float] | None
    virtual: bool

    @property
    def caption(self) -> str:
        """One line above the plot."""
        slowed = f", {self.names[0]} {self.notes[0]}" if self.notes[0] else ""
        return f"{len(self.names)} workers ({self.result.stats['backend']}){slowed}"

    def verdict(self) -> str:
        """One line: how it ended."""
        stats = self.result.stats
        clock = "virtual seconds" if self.virtual else "s"
        head = f"{self.result.status.name}: {stats['updates']} updates, "
        head += f"{stats['passes']:.1f} passes, {stats['seconds']:.1f} {clock}; "
        return head + f"sine to the oracle {self.sine:.2g}"

    def show(self, console: Console) -> None:
        """Print eigenvalues, certificate, straggler table and events."""
        console.print("\n[bold]Eigenvalues[/bold]")
        console.print(_aligned(("", "grassia", "dense oracle", "error", "bound"), self._values()))
        console.print("[bold]Certificate[/bold]")
        for sentence in in_words(self.result.certificate):
            console.print(f"- {sentence}", markup=False)
        console.print(f"- Measured against the oracle: sine {self.sine:.3g}.")
        console.print("\n[bold]Workers[/bold]")
        console.print(_aligned(("", "answers", "ms each", ""), self._workers()))
        console.print(self._straggler(), markup=False)
        events = self._events()
        if events:
            console.print("\n[bold]Events[/bold]")
            console.print(_aligned(("s", "update", "worker", "what"), [e[:4] for e in events[:SHOWN_EVENTS]]))
            if len(events) > SHOWN_EVENTS:
                console.print(f"... and {len(events) - SHOWN_EVENTS} more, see the report")

    def sections(self, tol: float) -> list[Section]:
        """What only a demo knows, for its HTML report."""
        after = "The dense oracle (one covariance and eigh) took "
        after += f"{self.oracle_seconds:.2f} s: at this size it is the better tool, and it is here to check "
        after += f"the answer. Measured against it, the sine is {self.sine:.3g}."
        head = ("", "grassia", "dense oracle", "error", "certified bound")
        distance = curve(
            "chart-distance",
            "Distance to the dense oracle over time",
            "Geodesic distance of the iterate. Logarithmic.",
            "distance",
            self.times.tolist(),
            self.distances.tolist(),
            tol,
        )
        parts = [f"<p>{escape(after)}</p>", distance, table("Eigenvalues", head, self._values())]
        return [Section("Oracle", "".join(parts))]

    def save(self, path: Path) -> None:
        """Write everything that is a number to one `.npz` file."""
        result, certificate = self.result, self.result.certificate
        mean = result.stats["mean"]
        np.savez(
            path,
            vectors=result.vectors,
            values=result.values,
            mean=np.zeros(0) if mean is None else mean,
            status=np.array(result.status.name),
            tol=np.array(result.stats["tol"]),
            sin_theta=np.array(np.nan if certificate is None else certificate.sin_theta.value),
            residual_norm=np.array(np.nan if certificate is None else certificate.residual_norm),
            oracle_values=self.leading,
            oracle_sine=np.array(self.sine),
            times=self.times,
            distances=self.distances,
            answers=np.array(result.stats["answers"]),
            busy_seconds=np.array(result.stats["busy_seconds"]),
        )

    def _values(self) -> list[tuple[str, ...]]:
        certificate = self.result.certificate
        rows: list[tuple[str, ...]] = []
        for i, (value, true) in enumerate(zip(self.result.values, self.leading, strict=False)):
            bound = "-" if certificate is None else f"{certificate.eigenvalue_errors[i]:.1e}"
            rows.append((f"{i + 1}", f"{value:.10f}", f"{true:.10f}", f"{abs(value - true):.1e}", bound))
        after = "-" if certificate is None else f"<= {certificate.next_value.value:.6f}"
        rows.append((f"{len(rows) + 1}", after, f"{self.leading[-1]:.10f}", "", "after the cut"))
        return rows

    def _workers(self) -> list[tuple[str, ...]]:
        stats = self.result.stats
        return [
            (name, f"{answers}", f"{1e3 * busy / max(1, answers):.2f}", note)
            for name, answers, busy, note in zip(
                self.names, stats["answers"], stats["busy_seconds"], self.notes, strict=True
            )
        ]

    def _straggler(self) -> str:
        stats = self.result.stats
        answers = np.array(stats["answers"])
        pace = np.array(stats["busy_seconds"]) / np.maximum(answers, 1)
        slowest = int(np.argmax(pace))
        others = np.delete(pace, slowest)
        if others.size == 0 or not np.median(others) > 0.0:
            return ""
        factor = pace[slowest] / np.median(others)
        name = self.names[slowest]
        text = f"Slowest: {name}, {factor:.1f} times the median of the others."
        if stats["backend"] != "serial" and factor > 2.0:
            text += f" It answered {answers[slowest]} times while the iterate moved "
            text += f"{stats['updates']} times: only the start and the certificate waited for it."
        return text

    def _events(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{event.time:.2f}",
                f"{event.version}",
                "-" if event.component is None else f"{event.component}",
                event.kind,
                event.text,
            )
            for event in self.result.history.events
        ]


def notes(workers: int, faults: Sequence[str]) -> list[str]:
    """A word on what is done to each worker."""
    said: list[list[str]] = [[] for _ in range(workers)]
    for rule in faults:
        fault = Fault.parse(rule)
        text = f"{fault.value:g}x slow" if fault.kind == "slow" and fault.at is None else fault.kind
        for i in range(workers) if fault.components is None else fault.components:
            said[i].append(text)
    return [", ".join(words) for words in said]


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(head):
        last = i == len(head) - 1 and name in ("", "what")
        table.add_column(name, justify="left" if last or i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
