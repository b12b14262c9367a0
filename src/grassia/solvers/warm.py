"""Any solver, started at the average of the local eigenspaces: what `v0="local"` means.

One round before the solver's first: every component sends the basis of its own leading eigenspace, and the
average (`grassia.solvers.oneshot`) takes the place of the random start. From then on everything is the inner
solver's, and what it converges to is what it converges to from any start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.oneshot import OneShot

GATHERING = -1  # the number of the round before all others


@dataclass(frozen=True, slots=True)
class State:
    """Until every basis is there: what `init` was given. Then the state of the inner solver."""

    problem: Problem
    W: Array
    prepared: Any
    bases: tuple[Array | None, ...]
    inner: Any = None


@dataclass(frozen=True)
class LocalStart(Solver[State]):
    """`inner`, from the average of the local eigenspaces.

    Parameters
    ----------
    inner : Solver
        What runs from there on.
    local : OneShot
        How the start is found.
    """

    inner: Solver[Any]
    local: OneShot = field(default_factory=OneShot)

    name: ClassVar[str] = "local-start"

    def __post_init__(self) -> None:
        # The run is the inner solver's: it goes by its name, and keeps its ways.
        object.__setattr__(self, "name", self.inner.name)
        object.__setattr__(self, "recalls", self.inner.recalls)
        object.__setattr__(self, "vouches", self.inner.vouches)
        object.__setattr__(self, "order", self.inner.order)

    def server_bytes(self, n: int, d: int, k: int) -> int:
        return max(self.inner.server_bytes(n, d, k), self.local.server_bytes(n, d, k))

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, Any] | None:
        return self.inner.prepare(problem, rng, noise)

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        return State(problem, W, prepared, (None,) * problem.n)

    def ask(self, state: State, component: int) -> Query | None:
        if state.inner is None:
            return self.local.local_query(state.problem.k)
        return self.inner.ask(state.inner, component)

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        if state.inner is not None:
            return replace(state, inner=self.inner.tell(state.inner, arrivals))
        arrived = {arrival.component: arrival.arrays["basis"] for arrival in arrivals}
        bases = tuple(arrived.get(i, basis) for i, basis in enumerate(state.bases))
        complete = [basis for basis in bases if basis is not None]
        if len(complete) < state.problem.n:
            return replace(state, bases=bases)
        W = self.local.averaged(complete, state.problem.weights)
        problem = replace(state.problem, cold=False)
        begun = self.inner.init(problem, W, state.prepared)
        return replace(state, W=W, bases=(), inner=begun)

    def outdated(self, state: State, component: int) -> bool:
        return state.inner is not None and self.inner.outdated(state.inner, component)

    def premature(self, state: State, component: int) -> bool:
        return state.inner is not None and self.inner.premature(state.inner, component)

    def round(self, state: State) -> int | None:
        return GATHERING if state.inner is None else self.inner.round(state.inner)

    def version(self, state: State) -> int:
        return 0 if state.inner is None else self.inner.version(state.inner)

    def subspace(self, state: State) -> Array:
        return state.W if state.inner is None else self.inner.subspace(state.inner)

    def residual(self, state: State) -> float | None:
        return None if state.inner is None else self.inner.residual(state.inner)

    def lost(self, state: State, component: int) -> State:
        if state.inner is None:
            return state
        return replace(state, inner=self.inner.lost(state.inner, component))

    # -- asked only once there is a residual, and so an inner state ------------------------------

    def scale(self, state: State) -> float:
        return self.inner.scale(state.inner)

    def gap(self, state: State) -> float | None:
        return self.inner.gap(state.inner)

    def after(self, state: State) -> float | None:
        return self.inner.after(state.inner)

    def reposed(self, state: State, problem: Problem, moved: Callable[[int, Array], Array]) -> State:
        return replace(state, problem=problem, inner=self.inner.reposed(state.inner, problem, moved))

    def step_size(self, state: State) -> float:
        return self.inner.step_size(state.inner)

    def report(self, state: State) -> dict[str, Any]:
        return {} if state.inner is None else self.inner.report(state.inner)

    def refine(self, state: State) -> State:
        return replace(state, inner=self.inner.refine(state.inner))

    def lower_bound(self, state: State) -> float:
        return self.inner.lower_bound(state.inner)

    def beside(self, state: State) -> Array | None:
        return self.inner.beside(state.inner)

    def known(self, state: State) -> tuple[Array, Array] | None:
        return self.inner.known(state.inner)

    def claimed(self, state: State) -> Array | None:
        return self.inner.claimed(state.inner)

    def matrix(self, state: State) -> tuple[Array, float] | None:
        return self.inner.matrix(state.inner)

    def sweep_query(self, state: State, component: int, block: Array) -> Query:
        return self.inner.sweep_query(state.inner, component, block)

    def sweep_tell(self, state: State, component: int, product: Array) -> State:
        return replace(state, inner=self.inner.sweep_tell(state.inner, component, product))

    def sweep_done(self, state: State, product: Array) -> State:
        return replace(state, inner=self.inner.sweep_done(state.inner, product))

    def restart(self, state: State, W: Array) -> State:
        return replace(state, inner=self.inner.restart(state.inner, W))

    def anew(self, state: State, W: Array) -> State:
        return replace(state, inner=self.inner.anew(state.inner, W))
