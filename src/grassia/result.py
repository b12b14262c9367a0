"""What a run gives back, and the outcomes it can have."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grassia.certificate import Certificate
from grassia.messages import Array


class Status(enum.Enum):
    """How a run ended. The text is advice."""

    CONVERGED = "The eigenspace is certified to the tolerance."
    GAP_TOO_SMALL = (
        "The eigenvalues on both sides of the cut are too close to tell the k-space apart at this "
        "tolerance. `certificate.identified` says how many leading vectors are; ask for that many, for "
        "a larger k that ends at a gap, or for a larger `tol`."
    )
    PRECISION = (
        "The residual has reached the rounding level of the products, and the bound is still above "
        "`tol`. Ask for a larger `tol`, or scale the data."
    )
    STALLED = (
        "The residual stopped improving before the tolerance was met. With a fixed step, take a smaller "
        'one or step="auto"; otherwise raise `tol`.'
    )
    MAX_PASSES = (
        "The limit on passes was reached first. Raise `max_passes`, or `tol`, or pass the answer as `v0`."
    )
    TIME_LIMIT = "The time limit was reached first. Raise `time_limit`, or pass the answer as `v0`."
    INTERRUPTED = "The run was interrupted. Pass the answer as `v0` to go on from it."
    WORKER_LOST = (
        "A worker died again and again without an answer in between: its component is out of reach. "
        "See `history.events`; the answer is the best iterate so far."
    )
    COMPONENT_FAILED = (
        "A component's tasks failed again and again, or its data can no longer be read. "
        "The last of `history.events` says how; the answer is the best iterate so far."
    )

    @property
    def advice(self) -> str:
        """The text of the status."""
        return self.value


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: a worker lost, a reply rejected, a certificate refused."""

    time: float
    version: int
    kind: str
    component: int | None
    text: str


FIELDS = ("time", "version", "residual", "bound", "step", "staleness", "arrivals", "passes")


class History:
    """A bounded record of a run: at most `limit` evenly thinned points, and its events.

    >>> history = History(limit=4)
    >>> for t in range(10):
    ...     history.add(time=float(t), version=t, residual=1.0, step=0.1, staleness=0, arrivals=1, passes=t)
    >>> len(history) <= 4, float(history["version"][0])
    (True, 0.0)
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = max(2, limit)
        self._stride = 1
        self._seen = 0
        self._points: list[tuple[float, ...]] = []
        self.events: list[Event] = []
        self.dropped_events = 0

    def add(self, **point: float) -> None:
        """Add a point; `FIELDS` names what it holds, what is not given is NaN."""
        if self._seen % self._stride == 0:
            if len(self._points) == self._limit:
                self._points = self._points[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._points.append(tuple(float(point.get(name, math.nan)) for name in FIELDS))
        self._seen += 1

    def note(self, event: Event) -> None:
        """Add an event; beyond 10 000 they are only counted, in `dropped_events`."""
        if len(self.events) < 10_000:
            self.events.append(event)
        else:
            self.dropped_events += 1

    def packed(self) -> dict[str, Any]:
        """All of it as an array and plain values."""
        return {
            "limit": self._limit,
            "stride": self._stride,
            "seen": self._seen,
            "points": np.array(self._points).reshape(-1, len(FIELDS)),
            "events": self.events,
            "dropped_events": self.dropped_events,
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> History:
        """The inverse of `packed`."""
        history = cls(packed["limit"])
        history._stride, history._seen = packed["stride"], packed["seen"]
        history._points = [tuple(point) for point in packed["points"].tolist()]
        history.events, history.dropped_events = list(packed["events"]), packed["dropped_events"]
        return history

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[Mapping[str, float]]:
        return (dict(zip(FIELDS, point, strict=True)) for point in self._points)

    def __getitem__(self, name: str) -> Array:
        column = FIELDS.index(name)
        return np.array([point[column] for point in self._points])

    def count(self, kind: str) -> int:
        """How many events of a kind there were."""
        return sum(event.kind == kind for event in self.events)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of a run, always in this one shape.

    Attributes
    ----------
    vectors : ndarray (d, k)
        Orthonormal, ordered by eigenvalue; the largest entry of each column (in size) is positive.
    values : ndarray (k,)
        Their Ritz values, descending; NaN without a certificate (an interrupted run).
    status : Status
        How the run ended; `status.advice` says what to do about it.
    converged : bool
        True only when the certificate meets the tolerance.
    certificate : Certificate or None
        From one consistent sweep over all components; None when the run could not make one.
    history : History
        Residual estimate, step, staleness over time; events.
    stats : dict
        Counts, seconds, bytes, the solver's and back-end's names and choices.
    """

    vectors: Array
    values: Array
    status: Status
    converged: bool
    certificate: Certificate | None
    history: History
    stats: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        d, k = self.vectors.shape
        return f"<Result d={d} k={k} {self.status.name}>"

    def __str__(self) -> str:
        return "\n".join(self.summary().splitlines()[:-1])

    def summary(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.status.name}: {self.status.advice}"]
        shown = ", ".join(f"{value:.6g}" for value in self.values[:12])
        lines.append(f"eigenvalues: {shown}{', ...' if len(self.values) > 12 else ''}")
        if self.certificate is not None:
            lines.append(str(self.certificate))
        scalars = {name: value for name, value in self.stats.items() if np.ndim(value) == 0}
        lines.append(json.dumps(scalars, default=str))
        return "\n".join(lines)


def fix_signs(vectors: Array) -> Array:
    """Turn each column so that its largest entry (in size) is positive.

    >>> import numpy as np
    >>> fix_signs(np.array([[0.6], [-0.8]])).ravel()
    array([-0.6,  0.8])
    """
    rows = np.argmax(np.abs(vectors), axis=0)
    signs = np.sign(vectors[rows, np.arange(vectors.shape[1])])
    signs[signs == 0.0] = 1.0
    return np.asarray(vectors * signs)
