"""IARG: incremental aggregated Riemannian gradients for one vector; with deflation for k of them.

Wang, Jiao, Wai and Gu 2023. For k = 1: `v <- (v - step g) / |v - step g|`, g the weighted sum of the last
gradient `-2 (I - uu') A_i u` of every component, each at the iterate u its worker was given. That is GRASSIA
on the sphere, and `grassia.solvers.grassia` does the work here.

For k > 1 one vector after the other, as in the paper's experiments: when a vector is found to `deflation_tol`
it is frozen, A is deflated to `(I - UU') A (I - UU')` with the frozen vectors U, and the next vector starts
from the next column of the start. The deflation is applied to what arrives, so workers need not know of it.
A cached gradient belongs to the vector it was computed for: with a new vector the aggregate starts empty,
answers still under way are thrown away, and every component is asked once before the vector moves, as at the
start of any run.

Needs: symmetric components; like GRASSIA it does not change under shifts.

Converges, for k = 1, linearly to the leading eigenvector, if the step is small enough for the delays. For
k > 1 each vector does, to an eigenvector of A up to errors of the size of `deflation_tol * lambda_1` over the
gaps between *neighbouring* eigenvalues: where these are close it is slow even if the gap after k is large.
The space is as good as the worst vector. Where that is not good enough, the deflation starts over from the
vectors found, to a tenth of the tolerance (`repeat=False`, the paper's baseline: the run ends as STALLED).

The residual it states is a residual once every vector has been sought. Before that it is a measure of what is
left to do, a power of ten times the size of A for each vector to come, so that a run is neither certified too
early nor taken for stalled.

Cost of an update: messages of d numbers each way, one product with one vector, O(dk) on the server. Memory:
as GRASSIA for one vector, and the frozen ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_positive
from grassia.messages import Array, Query
from grassia.solvers import grassia
from grassia.solvers.aggregate import put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.rgd import check_step


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place."""

    problem: Problem
    inner: grassia.State  # of the vector being sought
    found: Array  # (d, j): the frozen vectors
    start: Array  # (d, k - j): where the vector being sought and those after it started
    tolerance: float
    values: tuple[float, ...] = ()  # the Ritz values of the frozen vectors
    errors: tuple[float, ...] = ()  # the norms of their residuals
    began: int = 0  # version at which the vector started
    heard: Any = None  # per component: whether it has answered at the start of the vector
    confirmed: Any = None  # per component: whether it has answered while the residual was small
    first: float | None = None  # the residual at the start of the vector
    earlier: tuple[float, ...] = ()  # the errors of all vectors when they were sought the last time
    done: bool = False

    @property
    def vector(self) -> Array:
        """The vector being sought (d, 1)."""
        return self.inner.W


@dataclass(frozen=True)
class Iarg(Solver[State]):
    """IARG, with deflation.

    Parameters
    ----------
    step : float or "auto"
        A number is used as it is, for every vector. "auto" adapts to spreads and staleness as
        `Grassia(step="auto")` does.
    deflation_tol : float
        A vector is found when the residual has been at most this times the largest Ritz value found, while
        every component answered. For k = 1 it has no meaning.
    repeat : bool
        Whether to start over with a tenth of the tolerance when the last vector is found, until the space is
        good enough.
    order, table, resum_passes
        As for `Grassia`.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.iarg import Iarg
    >>> parts = [np.diag([5.0, 3.0, 1.0, -1.0]), np.diag([7.0, 1.0, 1.0, -7.0])]
    >>> result = grassia.eigenspace(parts, 2, solver=Iarg(), rng=0)
    >>> result.values.round(6)
    array([6., 2.])
    """

    step: float | str = "auto"
    deflation_tol: float = 1e-6
    repeat: bool = True
    order: str = "cyclic"
    table: str = "worker"
    resum_passes: int = 50

    name: ClassVar[str] = "iarg"

    def __post_init__(self) -> None:
        check_step(self.step)
        require_positive(self.deflation_tol, "`deflation_tol`")
        _ = self._one  # the rest is checked there

    @property
    def _one(self) -> grassia.Grassia:
        """The method for one vector."""
        return grassia.Grassia(
            step=self.step, order=self.order, table=self.table, resum_passes=self.resum_passes
        )

    # -- what the server calls ------------------------------------------------------------------

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        inner = self._one.init(replace(problem, k=1, beyond=None), W[:, :1], None)
        return _begun(State(problem, inner, W[:, :0], W, self.deflation_tol))

    def round(self, state: State) -> int | None:
        return self._one.round(state.inner)

    def ask(self, state: State, component: int) -> Query | None:
        if state.done:
            return None
        query = self._one.ask(state.inner, component)
        if state.inner.spread.all():  # known from an earlier vector
            options = {name: value for name, value in query.options.items() if name != "spread_steps"}
            query = replace(query, options=options)
        return query

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        taken: list[Arrival] = []
        heard = state.heard
        for arrival in arrivals:
            of_another_vector = state.done or arrival.version < state.began
            if of_another_vector or (not state.inner.gradients.started and heard[arrival.component]):
                continue
            heard = put(heard, arrival.component, True)
            taken.append(replace(arrival, arrays=_deflated(state.found, arrival.arrays)))
        if not taken:
            return state
        before = state.inner.version
        state = replace(state, heard=heard, inner=self._one.tell(state.inner, taken))
        if state.inner.version == before:
            return state
        return self._settle(state, taken)

    def lost(self, state: State, component: int) -> State:
        return replace(state, inner=self._one.lost(state.inner, component))

    def version(self, state: State) -> int:
        return state.inner.version

    def subspace(self, state: State) -> Array:
        if state.done:
            return state.found
        return np.hstack([state.found, state.vector, _transported(state)])

    def residual(self, state: State) -> float | None:
        sought = len(state.errors)
        now = None if state.done else self._one.residual(state.inner)
        if state.done or state.earlier or (sought == state.problem.k - 1 and now is not None):
            fresh = state.errors if now is None else (*state.errors, now)
            return float(math.hypot(*fresh, *state.earlier[len(fresh) :]))
        if now is None and sought == 0:
            return None
        part = 1.0
        if now is not None and state.first is not None:
            goal = self._goal(state)
            part = math.log(max(now, goal) / goal) / max(math.log(max(state.first, goal) / goal), 1e-3)
        to_come = state.problem.k - 1 - sought
        return self.scale(state) * float(10.0 ** min(to_come + min(part, 1.0), 100.0))

    def scale(self, state: State) -> float:
        return max(float(np.mean(np.abs(_values(state)))), float(np.finfo(np.float64).tiny))

    def step_size(self, state: State) -> float:
        return state.inner.step

    def restart(self, state: State, W: Array) -> State:
        return self._over(replace(state, earlier=()), W)

    # -- the algorithm --------------------------------------------------------------------------

    def _over(self, state: State, W: Array) -> State:
        """Start over with the first vector."""
        return self._next(replace(state, found=W[:, :0], start=W, values=(), errors=(), done=False))

    def _next(self, state: State) -> State:
        """Start the vector that is the first column of `start`."""
        inner = self._one.restart(state.inner, np.ascontiguousarray(state.start[:, :1]))
        return _begun(replace(state, inner=replace(inner, spread=state.inner.spread)))

    def _settle(self, state: State, taken: Sequence[Arrival]) -> State:
        """Freeze the vector if it is good enough, and turn to the next one."""
        now = self._one.residual(state.inner)
        assert now is not None
        if state.first is None:
            state = replace(state, first=now)
        if state.problem.k == 1:
            return state
        if now > self._goal(state):
            return replace(state, confirmed=np.zeros(state.problem.n, dtype=bool))
        confirmed = state.confirmed.copy()
        confirmed[[arrival.component for arrival in taken]] = True
        if not confirmed.all():
            return replace(state, confirmed=confirmed)
        frozen = replace(
            state,
            found=np.hstack([state.found, state.vector]),
            start=_transported(state),
            values=(*state.values, _captured(state)),
            errors=(*state.errors, now),
        )
        if frozen.start.shape[1]:
            return self._next(frozen)
        if not self.repeat:
            return replace(frozen, done=True)
        again = replace(frozen, tolerance=0.1 * state.tolerance, earlier=frozen.errors)
        return self._over(again, frozen.found)

    def _goal(self, state: State) -> float:
        largest = max(abs(value) for value in _values(state))
        return max(state.tolerance * largest, float(np.finfo(np.float64).tiny))


def _begun(state: State) -> State:
    nobody = np.zeros(state.problem.n, dtype=bool)
    return replace(state, began=state.inner.version, heard=nobody, confirmed=nobody, first=None)


def _captured(state: State) -> float:
    """The Ritz value of the vector being sought."""
    return float(state.problem.weights @ state.inner.captured)


def _values(state: State) -> tuple[float, ...]:
    """The Ritz values known, or what there is of them."""
    if state.done or (state.values and not state.inner.gradients.started):
        return state.values
    return (*state.values, _captured(state))


def _deflated(found: Array, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Gradients of the deflated component from those of the component itself."""
    if found.shape[1] == 0:
        return dict(arrays)
    return {name: geometry.project(found, array) for name, array in arrays.items()}


def _transported(state: State) -> Array:
    """The starts of the vectors to come, turned so that they stay orthonormal to the one being sought.

    A reflection takes its start to where it is now, or to the opposite of that, whichever is farther: so it
    is well conditioned. It leaves the frozen vectors alone.
    """
    begun, now, rest = state.start[:, :1], state.vector, state.start[:, 1:]
    if rest.shape[1] == 0:
        return rest
    mirror = begun + now if float(np.sum(begun * now)) >= 0.0 else begun - now
    turned: Array = rest - mirror @ ((2.0 / float(np.sum(mirror * mirror))) * (mirror.T @ rest))
    return turned
