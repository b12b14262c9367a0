"""What the demo found, in words: on the terminal, as Markdown, as arrays."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import grassia
from grassia.certificate import Certificate
from grassia.faults import Fault
from grassia.messages import Array
from grassia.result import Result

MOST_EVENTS = 200
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
        console.print(_table(("", "grassia", "dense oracle", "error", "bound"), self._values()))
        console.print("[bold]Certificate[/bold]")
        for sentence in in_words(self.result.certificate):
            console.print(f"- {sentence}", markup=False)
        console.print(f"- Measured against the oracle: sine {self.sine:.3g}.")
        console.print("\n[bold]Workers[/bold]")
        console.print(_table(("", "answers", "ms each", ""), self._workers()))
        console.print(self._straggler(), markup=False)
        events = self._events()
        if events:
            console.print("\n[bold]Events[/bold]")
            console.print(_table(("s", "update", "worker", "what"), [e[:4] for e in events[:SHOWN_EVENTS]]))
            if len(events) > SHOWN_EVENTS:
                console.print(f"... and {len(events) - SHOWN_EVENTS} more, see report.md")

    def markdown(self, picture: str | None, missing: str | None) -> str:
        """The report."""
        certificate = self.result.certificate
        parts = [
            "# grassia demo",
            f"{self.what}. Seed {self.seed}. Faults: {_codes(self.faults)}.",
            f"grassia {grassia.__version__}, Python {platform.python_version()}, NumPy {np.__version__}.",
            f"**{self.verdict()}.** {self.result.status.advice}",
            "## Eigenvalues",
            _markdown(("", "grassia", "dense oracle", "error", "certified bound"), self._values()),
            "## Certificate",
            "\n".join(f"- {sentence}" for sentence in in_words(certificate))
            + f"\n- Measured against the oracle: sine {self.sine:.3g}.",
        ]
        if certificate is not None:
            parts.append(f"```text\n{certificate}\n```")
        parts += [
            "## Workers",
            _markdown(("", "answers", "ms each", "fault"), self._workers()),
            self._straggler(),
            "## Distance to the oracle",
            f"![Geodesic distance to the dense oracle over time]({picture})"
            if picture
            else f"No plot: {missing}",
            "The curve is in `result.npz` (`times`, `distances`). It ends at "
            f"{self.distances[-1]:.3g}. The dense oracle (one covariance and `eigh`) took "
            f"{self.oracle_seconds:.2f} s: at this size it is the better tool, and it is here to "
            "check the answer.",
            "## Events",
        ]
        events = self._events()
        if events:
            parts.append(_markdown(("s", "update", "worker", "what", "text"), events[:MOST_EVENTS]))
        else:
            parts.append("None.")
        if len(events) > MOST_EVENTS:
            parts.append(f"... and {len(events) - MOST_EVENTS} more.")
        return "\n\n".join(parts) + "\n"

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


def in_words(certificate: Certificate | None) -> list[str]:
    """A certificate as sentences."""
    if certificate is None:
        return ["None: the run ended before all workers had looked at the same iterate."]
    k = len(certificate.values)
    sine, gap = certificate.sin_theta, certificate.gap
    how = "a theorem" if sine.rigorous else f"confidence {sine.confidence:g}"
    if certificate.converged:
        said = [
            f"Certified: the answer is within a sine of {sine.value:.3g} of the leading {k}-space "
            f"(asked: {certificate.tol:g}; {how})."
        ]
    else:
        said = [
            f"Not certified: the bound on the sine is {sine.value:.3g}, asked: {certificate.tol:g}."
            f" The leading {certificate.identified} of {k} vectors are identified."
        ]
    residual_how = how if certificate.claimed else "rigorous"
    said.append(f"Residual norm {certificate.residual_norm:.3g}, {residual_how}.")
    if gap.value > 0.0:
        gap_how = "rigorous" if gap.rigorous else f"confidence {gap.confidence:g}"
        said.append(f"Eigengap after {k} at least {gap.value:.3g}, {gap_how}.")
    ratio = certificate.captured_ratio
    captured = f"Captured variance {certificate.captured:.6g}"
    if ratio is not None and certificate.total is not None:
        captured += f" of {certificate.total:.6g} ({100 * ratio:.2f} %)"
    said.append(f"{captured}; the best {k}-space captures no less.")
    said.append(f"It took {certificate.sweeps} sweeps in which every worker saw the same iterate.")
    return said


def notes(workers: int, faults: Sequence[str]) -> list[str]:
    """A word on what is done to each worker."""
    said: list[list[str]] = [[] for _ in range(workers)]
    for rule in faults:
        fault = Fault.parse(rule)
        text = f"{fault.value:g}x slow" if fault.kind == "slow" and fault.at is None else fault.kind
        for i in range(workers) if fault.components is None else fault.components:
            said[i].append(text)
    return [", ".join(words) for words in said]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(head):
        last = i == len(head) - 1 and name in ("", "what")
        table.add_column(name, justify="left" if last or i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells)


def _codes(rules: Sequence[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in rules) or "none"
