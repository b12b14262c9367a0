"""Progress of a run: a live display on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from grassia.report.forecast import SLOW
from grassia.report.sample import Sample, Throttle, forecast
from grassia.report.words import duration, number
from grassia.run import Progress

REDRAW_SECONDS = 0.25
LINE_SECONDS = 2.0
MOST_BARS = 16
MOST_SAMPLES = 240


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
        self._throttle = Throttle(self.interval, share=0.01)
        self._samples: list[Sample] = []
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        if self._throttle.due():
            self._look(progress)
            self._throttle.done()

    def _look(self, progress: Progress) -> None:
        if len(self._samples) >= MOST_SAMPLES:
            self._samples = self._samples[::2]
        self._samples.append(Sample.of(progress))
        self.show(progress, self._samples[-1])

    def show(self, progress: Progress, sample: Sample) -> None:
        """Show where the run is."""

    @property
    def left(self) -> str:
        """How long it may take, in words."""
        return duration(forecast(self._samples))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""


class Silent(Watcher):
    """Shows nothing, and does not look."""

    def __call__(self, progress: Progress) -> None:
        pass


class Lines(Watcher):
    """One line every two seconds, and at every new phase."""

    interval = LINE_SECONDS

    def __call__(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            self._throttle.soon()
        super().__call__(progress)

    def show(self, progress: Progress, sample: Sample) -> None:
        counts = sample.answers
        answers = "/".join(map(str, counts[:MOST_BARS])) + ("/..." if len(counts) > MOST_BARS else "")
        line = f"{sample.time:7.1f} s  {sample.phase:<10} updates {sample.version:<6d}"
        line += f" passes {sample.passes:<7.1f} estimate {_short(sample.estimate):>7}"
        line += f" certified {_short(sample.bound):>7} left {self.left:<10} answers {answers}"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


class Bars(Watcher):
    """A few lines drawn over again: phase, estimate, bound, time left; each worker's rate and staleness.

    Whoever takes much longer than the others is marked, and so is whoever is lost; where there are more
    workers than lines, those come first.
    """

    interval = REDRAW_SECONDS

    def __init__(self, console: Console, names: Sequence[str], notes: Sequence[str]) -> None:
        super().__init__(console, names, notes)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._first = math.nan

    def show(self, progress: Progress, sample: Sample) -> None:
        groups = [where.components for where in progress.workers]
        self._live.update(self.picture(sample, groups, float(progress.asked["tol"]), self._losses(progress)))
        self._live.refresh()

    def _losses(self, progress: Progress) -> int:
        return progress.history.count("worker lost")

    def picture(
        self, sample: Sample, groups: Sequence[Sequence[int]], tol: float, losses: int
    ) -> RenderableType:
        """The lines."""
        width = self.console.width
        if math.isnan(self._first) and sample.residual > 0.0 and sample.target > 0.0:
            self._first = sample.residual / sample.target
        head = f"{sample.phase:<11} {duration(sample.time):<10} updates {sample.version:<7d}"
        head += f" passes {sample.passes:<8.1f} losses {losses:<3d} events {sample.events}"
        known = f"estimate {_short(sample.estimate):<8} certified {_short(sample.bound):<8} asked {tol:<8.2g}"
        rows = [
            _line(head, "bold"),
            _line(f"{known} time left {self.left}"),
            _line(f"{_residual(sample)} {_bar(self._done(sample), max(4, width - 46))}"),
        ]
        slow = sample.slowness
        order = sorted(range(len(groups)), key=lambda w: _rank(sample, slow, w))
        shown = sorted(order[:MOST_BARS])
        names = [self._name(w, len(groups)) for w in range(len(groups))]
        wide = max((len(names[w]) for w in shown), default=0)
        most = max(1, *sample.answers)
        for w in shown:
            mark, style = _mark(sample, slow, w)
            count, rate = sample.answers[w], sample.answers[w] / max(sample.time, 1e-9)
            bar = _bar(count / most, max(4, width - wide - 54))
            note = " ".join(word for word in (mark, self._note(groups[w])) if word)
            numbers = f"{count:>6d} {_rate(rate):>8}/s stale {sample.staleness[w]:<4d}"
            rows.append(_line(f"{names[w]:<{wide}} {bar} {numbers} {note}", style))
        if len(groups) > MOST_BARS:
            rows.append(_line(f"... and {len(groups) - MOST_BARS} more", "dim"))
        return Group(*rows)

    def _name(self, worker: int, count: int) -> str:
        return self.names[worker] if len(self.names) == count else f"worker {worker}"

    def _note(self, components: Sequence[int]) -> str:
        said = (self.notes[i] for i in components if i < len(self.notes))
        return ", ".join(dict.fromkeys(note for note in said if note))

    def _done(self, sample: Sample) -> float:
        residual, target = sample.residual, sample.target
        if not (residual > 0.0 and target > 0.0 and self._first > 1.0):
            return 0.0
        fraction = 1.0 - math.log(residual / target) / math.log(self._first)
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
        return Silent(console, names, notes)
    # A notebook gives `!grassia ...` a terminal, but draws one line below the other wherever the cursor is.
    drawn_over = console.is_terminal and "JPY_PARENT_PID" not in os.environ
    return (Bars if drawn_over else Lines)(console, names, notes)


def _rank(sample: Sample, slow: Sequence[float], worker: int) -> tuple[bool, float, int]:
    """Who is to be seen first: the lost, then the slow, then the others in their order."""
    return sample.states[worker] != "l", -slow[worker] if slow[worker] >= SLOW else 0.0, worker


def _mark(sample: Sample, slow: Sequence[float], worker: int) -> tuple[str, str]:
    if sample.states[worker] == "l":
        return "LOST", "bold red"
    if slow[worker] >= SLOW:
        return f"STRAGGLER {slow[worker]:.3g}x", "yellow"
    return ("idle", "dim") if sample.states[worker] == "i" else ("", "")


def _residual(sample: Sample) -> str:
    return f"residual {_short(sample.residual, 2):>8} (target {_short(sample.target, 2):>8})"


def _short(value: float, digits: int = 1) -> str:
    return number(value, f".{digits}e").replace("–", "-")


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100.0 else f"{rate:.1f}" if rate >= 0.095 else f"{rate:.3f}"


def _bar(fraction: float, width: int) -> str:
    filled = round(fraction * width)
    return "█" * filled + "·" * (width - filled)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")
