"""A solver that moves nowhere, so that a run does nothing but certify the subspace it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from grassia.messages import Array, Query
from grassia.run import Progress
from grassia.solvers import Arrival, Problem, Solver

__all__ = ["Frozen", "once_certified"]


@dataclass(frozen=True, slots=True)
class Given:
    """The subspace, which is never changed."""

    W: Array
    version: int = 0
    residual: float | None = 0.0


@dataclass(frozen=True)
class Frozen(Solver[Given]):
    """Asks nothing and learns nothing: the server finds nothing to do but to certify the start.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> A = np.diag([4.0, 3.0, 1.0, 0.5])
    >>> start = np.eye(4)[:, :2]
    >>> found = grassia.eigenspace(A, 2, solver=Frozen(), v0=start, callbacks=once_certified, rng=0)
    >>> found.converged
    True
    """

    name: ClassVar[str] = "given"

    def init(self, problem: Problem, W: Array, prepared: object) -> Given:
        return Given(W)

    def ask(self, state: Given, component: int) -> Query | None:
        return None

    def tell(self, state: Given, arrivals: Sequence[Arrival]) -> Given:
        return state

    def scale(self, state: Given) -> float:
        return 1.0

    def restart(self, state: Given, W: Array) -> Given:
        return state


def once_certified(progress: Progress) -> bool:
    """A callback that ends the run with the first certificate, whatever that says."""
    return progress.certificate is not None
