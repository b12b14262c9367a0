"""Callbacks that look on: `Watch` remembers where a run was, `Announce` tells the standard `logging`."""

from __future__ import annotations

import html
import logging
from collections.abc import Callable, Sequence
from typing import Any

from grassia._checks import require_count
from grassia.errors import InvalidInput
from grassia.report.forecast import SLOW
from grassia.report.sample import Sample, Throttle, forecast
from grassia.report.words import duration, number
from grassia.result import Event, Result
from grassia.run import Progress

__all__ = ["Announce", "Watch", "summary"]

_SOONEST = 0.001
_FREE = 0.005
MOST_ROWS = 16


class Watch:
    """A callback that keeps samples of a run, evenly thinned, and hands each to whoever wants it.

    Looking costs about half a percent of the run's time at most, and five milliseconds: it looks less often
    where it takes longer.
    In a notebook, an object of this class shows itself as a small table.

    Parameters
    ----------
    each : callable, optional
        Called with every `Sample`.
    every : float
        Seconds from one sample to the next at least. Default: as short as is of use; when there are `most` of
        them every second one is dropped, and they are taken half as often.
    most : int
        So many samples are kept.

    Attributes
    ----------
    samples : list of Sample
    asked : dict
        k, tol, solver, components.
    groups : list of list of int
        The components of each worker.
    result : Result or None
        Once the run has ended.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.report import Watch
    >>> X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
    >>> watch = Watch()
    >>> result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, callbacks=watch, rng=0)
    >>> watch.samples[-1].bound == result.certificate.sin_theta.value
    True
    """

    def __init__(
        self, each: Callable[[Sample], Any] | None = None, *, every: float = 0.0, most: int = 600
    ) -> None:
        if each is not None and not callable(each):
            raise InvalidInput(f"`each` must be a callable; got {each!r}.")
        if not every >= 0.0:
            raise InvalidInput(f"`every` must be seconds >= 0; got {every!r}.")
        require_count(most, "`most`", least=4)
        self._each, self._most = each, most
        self._throttle = Throttle(max(float(every), _SOONEST), free=_FREE)
        self._progress: Progress | None = None
        self.samples: list[Sample] = []
        self.asked: dict[str, Any] = {}
        self.groups: list[list[int]] = []
        self.result: Result | None = None

    def __call__(self, progress: Progress) -> None:
        if not self._throttle.due():
            return
        if progress is not self._progress:
            self._begin(progress)
        self._take(progress)
        self._throttle.done()

    def _begin(self, progress: Progress) -> None:
        self._progress, self.result = progress, None
        self.samples.clear()
        self.asked = dict(progress.asked)
        self.groups = [list(where.components) for where in progress.workers]

    def _take(self, progress: Progress) -> None:
        if len(self.samples) >= self._most:
            self.samples = self.samples[::2]
            self._throttle.interval *= 2.0
        sample = Sample.of(progress)
        self.samples.append(sample)
        if self._each is not None:
            self._each(sample)

    def run_ended(self, result: Result) -> None:
        """A last sample."""
        if self._progress is not None:
            self._take(self._progress)
        self.result = result

    @property
    def progress(self) -> Progress | None:
        """That of the run that is watched."""
        return self._progress

    @property
    def events(self) -> list[Event]:
        """What has happened so far."""
        return [] if self._progress is None else list(self._progress.history.events)

    @property
    def seconds_left(self) -> float | None:
        """Until the estimate is at its target, if it goes on falling as it did; None: unknown."""
        return forecast(self.samples)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        if not self.samples:
            return "nothing seen yet"
        if self.result is None:
            return summary(self.samples[-1], self.seconds_left)
        return f"{self.result.status.name}: {_figures(self.samples[-1])}"

    def _repr_html_(self) -> str:
        if not self.samples:
            return "<p>nothing seen yet</p>"
        last = self.samples[-1]
        slow, count = last.slowness, len(last.answers)
        # Where there are more workers than a person reads, the lost and the slow are shown.
        order = sorted(
            range(count), key=lambda w: (last.states[w] != "l", -slow[w] if slow[w] >= SLOW else 0.0, w)
        )
        rows = "".join(
            f"<tr><td>worker {w}</td><td>{last.answers[w]}</td><td>{last.busy[w]:.3g}</td>"
            f"<td>{last.staleness[w]}</td><td>{_state(last, slow, w)}</td></tr>"
            for w in sorted(order[:MOST_ROWS])
        )
        if count > MOST_ROWS:
            rows += f'<tr><td colspan="5">... and {count - MOST_ROWS} more</td></tr>'
        head = "<tr><th></th><th>answers</th><th>seconds</th><th>staleness</th><th></th></tr>"
        return f"<p>{html.escape(str(self))}</p><table>{head}{rows}</table>"


class Announce:
    """A callback that tells the standard `logging` now and then where a run is.

    Parameters
    ----------
    every : float
        Seconds from one line to the next.
    logger : str
    level : int

    Examples
    --------
    >>> import logging
    >>> Announce(every=30.0, level=logging.DEBUG).every
    30.0
    """

    def __init__(
        self, every: float = 10.0, logger: str = "grassia.progress", level: int = logging.INFO
    ) -> None:
        self.every, self._log, self._level = every, logging.getLogger(logger), level
        self._throttle = Throttle(every)
        self._samples: list[Sample] = []

    def __call__(self, progress: Progress) -> None:
        if not self._throttle.due():
            return
        if self._log.isEnabledFor(self._level):
            self._samples = [*self._samples[-200:], Sample.of(progress)]
            self._log.log(self._level, "%s", summary(self._samples[-1], forecast(self._samples)))
        self._throttle.done()

    def run_ended(self, result: Result) -> None:
        """The last line."""
        certificate = result.certificate
        bound = None if certificate is None else certificate.sin_theta.value
        self._log.log(self._level, "%s, certified %s", result.status.name, number(bound))


def summary(sample: Sample, left: float | None) -> str:
    """A moment in one line."""
    return f"{sample.phase} {_figures(sample)}, time left {duration(left)}"


def _figures(sample: Sample) -> str:
    said = f"{duration(sample.time)}, {sample.version} updates, {sample.passes:.1f} passes, "
    said += f"estimate {number(sample.estimate)}, certified {number(sample.bound)}"
    return f"{said}, {sample.lost} workers lost" if sample.lost else said


def _state(sample: Sample, slow: Sequence[float], worker: int) -> str:
    """A word on a worker."""
    if sample.states[worker] == "l":
        return "lost"
    if slow[worker] >= SLOW:
        return f"straggler {slow[worker]:.3g}x"
    return "idle" if sample.states[worker] == "i" else "busy"
