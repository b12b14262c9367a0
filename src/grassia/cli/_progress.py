"""Progress of a run: a live display on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from grassia.run import Progress

REDRAW_SECONDS = 0.1
LINE_SECONDS = 2.0
MOST_BARS = 16


class Watcher:
    """A callback for `grassia.eigenspace` that shows nothing; the others are made of it.

    Parameters
    ----------
    console : rich Console
    names : sequence of str
        What to call the components.
    notes : sequence of str
        A word beside each, such as "10x slow".
    """

    interval = math.inf

    def __init__(self, console: Console, names: Sequence[str], notes: Sequence[str]) -> None:
        self.console, self.names, self.notes = console, names, notes
        self._next = 0.0
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + self.interval
            self.show(progress)

    def show(self, progress: Progress) -> None:
        """Show where the run is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""


class Lines(Watcher):
    """One line every two seconds, and at every new phase."""

    interval = LINE_SECONDS

    def __call__(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase, self._next = progress.phase, 0.0
        super().__call__(progress)

    def show(self, progress: Progress) -> None:
        counts = progress.answers
        answers = "/".join(map(str, counts[:MOST_BARS])) + ("/..." if len(counts) > MOST_BARS else "")
        line = f"{progress.time:7.1f} s  {progress.phase:<10} updates {progress.version:<6d}"
        line += f" passes {progress.passes:<7.1f} {_residual(progress)} answers {answers}"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


class Bars(Watcher):
    """A few lines drawn over again: phase, residual against target, answers of each worker."""

    interval = REDRAW_SECONDS

    def __init__(self, console: Console, names: Sequence[str], notes: Sequence[str]) -> None:
        super().__init__(console, names, notes)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._first = math.nan

    def show(self, progress: Progress) -> None:
        self._live.update(self._picture(progress), refresh=True)

    def _picture(self, progress: Progress) -> RenderableType:
        width = self.console.width
        head = f"{progress.phase:<11} {progress.time:6.1f} s   updates {progress.version:<6d}"
        head += f" passes {progress.passes:<8.1f} events {progress.events}"
        if math.isnan(self._first) and progress.residual > 0.0:
            self._first = progress.residual
        rows = [
            _line(head, "bold"),
            _line(f"{_residual(progress)} {_bar(self._done(progress), max(4, width - 46))}"),
        ]
        counts = progress.answers
        most = max(1, *counts)
        wide = max(len(name) for name in self.names)
        for name, note, count in list(zip(self.names, self.notes, counts, strict=True))[:MOST_BARS]:
            bar = _bar(count / most, max(4, width - wide - 30))
            rows.append(_line(f"{name:<{wide}} {bar} {count:>6d} {note}", "yellow" if note else ""))
        if len(counts) > MOST_BARS:
            rows.append(_line(f"... and {len(counts) - MOST_BARS} more", "dim"))
        return Group(*rows)

    def _done(self, progress: Progress) -> float:
        residual, target = progress.residual, progress.target
        if not (residual > 0.0 and 0.0 < target < self._first):
            return 0.0
        fraction = math.log(self._first / residual) / math.log(self._first / target)
        return min(1.0, max(0.0, fraction))

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)


def watcher(console: Console, names: Sequence[str], notes: Sequence[str], quiet: bool = False) -> Watcher:
    """The display that suits the console."""
    if quiet:
        return Watcher(console, names, notes)
    return (Bars if console.is_terminal else Lines)(console, names, notes)


def _residual(progress: Progress) -> str:
    residual = "-" if math.isnan(progress.residual) else f"{progress.residual:.2e}"
    target = "-" if math.isnan(progress.target) else f"{progress.target:.2e}"
    return f"residual {residual:>8} (target {target:>8})"


def _bar(fraction: float, width: int) -> str:
    filled = round(fraction * width)
    return "█" * filled + "·" * (width - filled)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")
