"""nystrom: an asynchronous block-Davidson method on per-component Nystrom models.

Our own solver, with no step size and no basin. The server keeps a model of every component
(`grassia.solvers.surrogate`), takes the leading eigenvectors `E` of their sum, `W = E[:, :k]`, and asks each
worker that is free for the product with what its model does not contain of them yet, normalised:
`V = orth((I - Q_i Q_i') E[:, :width])`.

- `Ahat <= A`, so `trace(W' Ahat W)` never exceeds the best captured variance, and it never decreases.
- If `W` lies in every span(Q_i) the model is exact there and `W` is an eigenspace of `A`.
- The model of a lost worker stays: its data stays in the objective while it restarts.
- With one component it is thick-restarted block Krylov.

Cost of an arrival: O(d N width + d N m), N the columns of all models, m = k + extra; memory `2 N d` doubles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia.errors import InvalidInput
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.surrogate import Surrogate
from grassia.worker import Answer, Cache, finite_product, procedure
from grassia.components import Component
from grassia.spectrum import lanczos_spread

DROP = 1e-14  # what is left of a direction below this is rounding


class State:
    """The server's side of a run; changed in place."""

    def __init__(self, problem: Problem, E: Array, surrogate: Surrogate, width: int, m: int) -> None:
        n = problem.n
        self.problem, self.E, self.surrogate = problem, E, surrogate
        self.width, self.m = width, m
        self.version = 0
        self.values = np.zeros(problem.k)
        self.bound = -math.inf
        self.bounds: list[float] = []
        self.solved = False
        self.pending: dict[int, Array] = {}
        self.error = np.full(n, math.inf)  # what the model got wrong at the last answer
        self.outside = np.ones(n)  # how much of W the model of a component does not contain

    @property
    def W(self) -> Array:
        return self.E[:, : self.problem.k]


@dataclass(frozen=True)
class Nystrom(Solver[State]):
    """The flagship solver.

    Parameters
    ----------
    width : int, optional
        Columns of a query; default k + extra, at most 3k. A product is bound by reading the data for
        small blocks, so a wider one costs little.
    extra : int, optional
        Directions followed beyond k; default k.
    memory : int, optional
        Columns kept for each component, default 12 k (and at least 2 * width + k).
    """

    width: int | None = None
    extra: int | None = None
    memory: int | None = None
    spread_steps: int = 8

    name: ClassVar[str] = "nystrom"

    def sizes(self, d: int, k: int) -> tuple[int, int, int]:
        """(query width, directions followed, columns kept) for a problem."""
        extra = k if self.extra is None else self.extra
        width = min(d, k + extra if self.width is None else self.width)
        m = min(d, max(k + extra, width))
        memory = 12 * k if self.memory is None else self.memory
        return width, m, min(d, max(memory, k + width))

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        width, m, memory = self.sizes(problem.d, problem.k)
        surrogate = Surrogate(problem.n, problem.d, min(problem.d, memory + width), problem.weights)
        rng = np.random.default_rng(np.frombuffer(np.float64(abs(W[0, 0])).tobytes(), dtype=np.uint32))
        E = W
        if m > problem.k:
            more = geometry.orthonormalize(rng.standard_normal((problem.d, m - problem.k)), against=W)
            E = np.hstack([W, more])
        return State(problem, np.ascontiguousarray(E), surrogate, width, m)

    def ask(self, state: State, component: int) -> Query | None:
        V = self._directions(state, component)
        if V is None:
            return None
        state.pending[component] = V
        if not state.problem.positive and state.surrogate.size[component] == 0:
            return Query("apply-spread", {"block": V}, {"spread_steps": self.spread_steps})
        return Query("apply", {"block": V})

    def _directions(self, state: State, i: int) -> Array | None:
        Q = state.surrogate.basis(i)
        room = min(state.width, state.surrogate.slot - Q.shape[1], state.problem.d - Q.shape[1])
        if room <= 0:
            return None
        against = Q if Q.shape[1] else None
        V = geometry.orthonormalize(state.E, against=against, tol=DROP)[:, :room]
        return np.ascontiguousarray(V) if V.shape[1] else None

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        surrogate, k = state.surrogate, state.problem.k
        width, m, memory = self.sizes(state.problem.d, k)
        for arrival in arrivals:
            i = arrival.component
            V, P = state.pending.pop(i), arrival.arrays["product"]
            if "low" in arrival.scalars:
                surrogate.shift[i] = max(0.0, -1.1 * float(arrival.scalars["low"] or 0.0))
            state.error[i] = surrogate.error(i, V, P)
            surrogate.add(i, V, P)
        if surrogate.rank < m:
            return state
        accuracy = self.residual(state)
        tol = 1e-14 if accuracy is None else max(1e-14, min(1e-3, 1e-2 * accuracy / self.scale(state)))
        guess = state.E if state.solved else None
        values, state.E = surrogate.leading(m, guess, tol)
        state.solved = True
        state.values = values
        state.bound = float(np.sum(values[:k])) - k * float(state.problem.weights @ surrogate.shift)
        state.bounds.append(state.bound)
        for arrival in arrivals:
            i = arrival.component
            if surrogate.size[i] > memory:
                surrogate.compress(i, np.hstack([state.E, surrogate.basis(i)[:, ::-1]]), memory)
            Q = surrogate.basis(i)
            state.outside[i] = float(np.linalg.norm(state.W - Q @ (Q.T @ state.W), 2))
        state.version += 1
        return state

    def version(self, state: State) -> int:
        return state.version

    def subspace(self, state: State) -> Array:
        return state.W

    def residual(self, state: State) -> float | None:
        if not state.solved or not np.isfinite(state.error).all():
            return None
        return float(state.problem.weights @ (state.error * state.outside))

    def scale(self, state: State) -> float:
        return max(float(np.max(np.abs(state.values))), np.finfo(np.float64).tiny)

    def restart(self, state: State, W: Array) -> State:
        E = geometry.orthonormalize(np.hstack([W, state.E]))[:, : state.m]
        state.E = np.ascontiguousarray(E)
        state.version += 1
        return state


@procedure("apply-spread")
def apply_spread(component: Component, cache: Cache, query: Query) -> Answer:
    """The product with a block, and estimates of both ends of the component's spectrum."""
    product = finite_product(component, query.arrays["block"])
    low, high = lanczos_spread(
        component.apply,
        component.n_features,
        int(query.options["spread_steps"] or 1),
        np.random.default_rng(0),
    )
    return {"product": product}, {"low": low, "high": high}
