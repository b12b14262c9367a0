"""How long a worker takes for a task, on the virtual clock."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from grassia.errors import InvalidInput


class ServiceTime(ABC):
    """A model of service times. Models are values; what is remembered lives in a `Clockwork`."""

    @abstractmethod
    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        """The source of this worker's times, with its own generator."""


class Clockwork(ABC):
    """Draws the times of one worker."""

    @abstractmethod
    def next(self, now: float) -> float:
        """The duration of a task that starts at virtual time `now`."""


@dataclass(frozen=True, slots=True)
class Fixed(ServiceTime):
    """Always the same time; one number for all workers, or one for each."""

    seconds: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        times = np.atleast_1d(np.asarray(self.seconds, dtype=np.float64))
        if not (times.ndim == 1 and times.size and np.isfinite(times).all() and times.min() >= 0.0):
            raise InvalidInput(f"service times must be finite and >= 0; got {self.seconds}.")

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        if isinstance(self.seconds, Sequence | np.ndarray):
            return _Draw(_constant(float(self.seconds[worker % len(self.seconds)])))
        return _Draw(_constant(float(self.seconds)))


@dataclass(frozen=True, slots=True)
class Uniform(ServiceTime):
    """Uniform between two numbers, drawn for each task."""

    low: float = 0.5
    high: float = 1.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high < math.inf:
            raise InvalidInput(f"Uniform needs 0 <= low <= high; got {self.low}, {self.high}.")

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        return _Draw(lambda: float(rng.uniform(self.low, self.high)))


@dataclass(frozen=True, slots=True)
class LogNormal(ServiceTime):
    """`exp(N(mean, sigma))`, drawn for each task: the usual shape of a shared cluster."""

    mean: float = 0.0
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0.0 <= self.sigma < math.inf):
            raise InvalidInput(
                f"LogNormal needs a finite mean and sigma >= 0; got {self.mean}, {self.sigma}."
            )

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        return _Draw(lambda: float(rng.lognormal(self.mean, self.sigma)))


@dataclass(frozen=True, slots=True)
class Pareto(ServiceTime):
    """Heavy tail: at least `scale`, with `P(time > t) = (scale / t)^alpha`."""

    alpha: float = 1.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (0.0 < self.alpha < math.inf and 0.0 < self.scale < math.inf):
            raise InvalidInput(f"Pareto needs alpha > 0 and scale > 0; got {self.alpha}, {self.scale}.")

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        return _Draw(lambda: float(self.scale * (1.0 + rng.pareto(self.alpha))))


@dataclass(frozen=True, slots=True)
class Bursty(ServiceTime):
    """A worker is well for a while, then slow for a stretch, as cloud traces show.

    Calm and slow stretches last exponential times with means `calm` and `burst`; in a slow one the
    times of `base` are multiplied by `factor`. A task takes the pace of the moment it starts.
    """

    base: ServiceTime = field(default_factory=Fixed)
    factor: float = 10.0
    calm: float = 100.0
    burst: float = 20.0

    def __post_init__(self) -> None:
        if not all(0.0 < value < math.inf for value in (self.factor, self.calm, self.burst)):
            raise InvalidInput(
                "Bursty needs a positive factor, calm and burst; "
                f"got {self.factor}, {self.calm}, {self.burst}."
            )

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        return _Stretches(self, self.base.clockwork(worker, rng), rng)


@dataclass(frozen=True, slots=True)
class Trace(ServiceTime):
    """Recorded times: a list for each worker (or one list for all), gone through in a circle."""

    times: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        if not self.times or not all(len(row) > 0 and min(row) >= 0.0 for row in self.times):
            raise InvalidInput("a trace is a list of lists, each with at least one time and none negative.")

    def clockwork(self, worker: int, rng: np.random.Generator) -> Clockwork:
        return _Recorded([float(seconds) for seconds in self.times[worker % len(self.times)]])


def speeds(n: int, low: int, high: int, rng: np.random.Generator) -> Fixed:
    """The paper's workers: fixed whole times drawn uniformly from `low..high`.

    >>> import numpy as np
    >>> sorted(set(speeds(50, 1, 5, np.random.default_rng(0)).seconds))
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    return Fixed(tuple(float(s) for s in rng.integers(low, high + 1, size=n)))


def straggler(n: int, factor: float, slow: int = 0) -> Fixed:
    """Equal workers, but one that takes `factor` times as long."""
    return Fixed(tuple(factor if w == slow else 1.0 for w in range(n)))


class _Draw(Clockwork):
    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw

    def next(self, now: float) -> float:
        return self._draw()


def _constant(seconds: float) -> Callable[[], float]:
    return lambda: seconds


class _Recorded(Clockwork):
    def __init__(self, row: list[float]) -> None:
        self._row, self._next = row, 0

    def next(self, now: float) -> float:
        seconds = self._row[self._next % len(self._row)]
        self._next += 1
        return seconds


class _Stretches(Clockwork):
    def __init__(self, model: Bursty, base: Clockwork, rng: np.random.Generator) -> None:
        self._model, self._base, self._rng = model, base, rng
        self._slow = bool(rng.random() < model.burst / (model.calm + model.burst))
        self._until = self._stretch(0.0)

    def _stretch(self, start: float) -> float:
        mean = self._model.burst if self._slow else self._model.calm
        return start + float(self._rng.exponential(mean))

    def next(self, now: float) -> float:
        while now >= self._until:
            self._slow = not self._slow
            self._until = self._stretch(self._until)
        return self._base.next(now) * (self._model.factor if self._slow else 1.0)
