"""Where a run is at one moment, in plain numbers, and how often it may be looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from grassia.report.forecast import slowness, time_left
from grassia.run import Progress

__all__ = ["Sample", "Throttle", "forecast", "plain_number"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of a run.

    Attributes
    ----------
    time : float
        Seconds since the start, by the back-end's clock.
    phase : str
    version : int
        Updates of the iterate.
    passes : float
    residual, target : float
        The solver's own estimate, and where it is proposed for certification; NaN before the start.
    estimate : float
        The sine of the largest angle, as the solver sees it: it is the tolerance where the residual is at its
        target.
    bound : float
        The certified bound of that sine; NaN without a certificate.
    answers, busy : list
        Of each worker: answers so far, and the seconds they took.
    states : str
        A letter for each worker: b(usy), i(dle), l(ost).
    waited : list of float
        For how long each worker's question has been out; zero where none is.
    staleness : list of int
        How many times the iterate has moved since each worker was asked.
    sent, received : int
        Bytes.
    events : int
        How many there were.
    """

    time: float
    phase: str
    version: int
    passes: float
    residual: float
    target: float
    estimate: float
    bound: float
    answers: list[int]
    busy: list[float]
    states: str
    waited: list[float]
    staleness: list[int]
    sent: int
    received: int
    events: int

    @classmethod
    def of(cls, progress: Progress) -> Self:
        """What a callback sees, now."""
        now, workers = progress.time, progress.workers
        residual, target = progress.residual, progress.target
        tol = float(progress.asked["tol"])
        certificate = progress.certificate
        answers, busy = np.array(progress.answers), np.array(progress.busy_seconds)
        groups = [where.components for where in workers]
        sent, received = progress.traffic
        return cls(
            time=now,
            phase=progress.phase,
            version=progress.version,
            passes=progress.passes,
            residual=residual,
            target=target,
            estimate=min(1.0, tol * residual / target) if target > 0.0 else math.nan,
            bound=math.nan if certificate is None else certificate.sin_theta.value,
            answers=[int(answers[group].sum()) for group in groups],
            busy=[float(busy[group].sum()) for group in groups],
            states="".join(where.state[0] for where in workers),
            waited=[max(0.0, now - where.since) if where.state == "busy" else 0.0 for where in workers],
            staleness=[where.staleness for where in workers],
            sent=sent,
            received=received,
            events=progress.events,
        )

    @property
    def slowness(self) -> list[float]:
        """How many times longer each worker takes than the median."""
        return slowness(self.answers, self.busy, self.waited)

    @property
    def lost(self) -> int:
        """Workers that are out of reach."""
        return self.states.count("l")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what is not a number is None."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """The inverse; raises KeyError or TypeError for what is no sample."""
        values = {field.name: written[field.name] for field in fields(cls)}
        for name in ("residual", "target", "estimate", "bound"):
            values[name] = math.nan if values[name] is None else float(values[name])
        return cls(**values)


def forecast(samples: Sequence[Sample]) -> float | None:
    """Seconds until the last of some samples is at its target; None: unknown."""
    if not samples or samples[-1].phase not in ("solving", "certifying"):
        return None
    recent = [sample for sample in samples if sample.target > 0.0]
    # The target itself may move; how far a residual is above it is what falls.
    return time_left([s.time for s in recent], [s.residual / s.target for s in recent], 1.0)


class Throttle:
    """When something may be done again: after `interval` seconds, and for no more than a share of the time.

    The first `free` seconds do not count, so that short runs are looked at, too.

    >>> throttle = Throttle(interval=3600.0)
    >>> throttle.due(), throttle.due()
    (True, False)
    """

    def __init__(self, interval: float, share: float = 0.005, free: float = 0.0) -> None:
        self.interval, self.share, self._free = interval, share, free
        self._next = -math.inf
        self._began = 0.0

    def due(self) -> bool:
        """Whether it is time; if so, it is taken to begin now."""
        now = time.perf_counter()
        if now < self._next:
            return False
        self._began, self._next = now, now + self.interval
        return True

    def done(self) -> None:
        """It is done: the time it took is to be a small share of all."""
        now = time.perf_counter()
        took = now - self._began
        if self._free > 0.0:
            self._free -= took
            return
        self._next = max(self._began + self.interval, now + took / self.share)

    def soon(self) -> None:
        """Next time it is due, whatever was done before."""
        self._next = -math.inf


def plain_number(value: float, digits: int = 6) -> float | None:
    """Rounded to a few digits; None where it is not finite.

    >>> plain_number(0.1234567891), plain_number(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return plain_number(value, 9)
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [plain_number(item) for item in value]
    return value
