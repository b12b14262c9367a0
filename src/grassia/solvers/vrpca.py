"""VR-PCA: stochastic updates whose noise is taken out by an anchor, in block form.

Shamir 2016, "Fast stochastic algorithms for SVD and PCA: convergence properties and convexity" (the block
algorithm); Shamir 2015 for k = 1. An epoch begins with an anchor `V` and its exact product `A V`, for which
every component is asked. Then follow `inner` updates, each from one component i drawn with probability w_i:

    W <- Polar(W + step (A_i (W - V B) + A V B)),    B = argmin |V B - W| over orthogonal B,

and the last `W` is the next anchor. What is added has mean `A W`; its noise is `(A_i - A)(W - V B)`, which
vanishes as `W` and `V` come to the same space.

Needs: a step small enough for the unlikeness of the components. The inner updates follow one upon the other
by nature: *one* component is asked at a time, so that with several workers all but one are idle, and at an
anchor everyone waits for the slowest. Converges to the leading eigenspace, linearly in epochs, with O((n +
1/delta^2) log(1/epsilon)) products of components for a gap delta (the paper's constants ask for a start that
is not too far off; a random one does in practice).

Cost of an update: one component's product with d x k, a message of d x k each way and O(d k^2) on the server;
an epoch of n inner updates is two passes. Memory of the server: six d x k blocks, whatever n is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.messages import Array, Query, Scalar
from grassia.solvers.aggregate import put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.power import next_basis
from grassia.solvers.synchronous import Round, draw_seed
from grassia.spectrum import lanczos_spread
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class Anchor:
    """A point of the current epoch with its exact product, and what follows from both."""

    V: Array
    product: Array
    captured: float
    residual: float

    @classmethod
    def at(cls, V: Array, product: Array) -> Anchor:
        residual = float(np.linalg.norm(geometry.project(V, product)))
        return cls(V, product, float(np.sum(V * product)), residual)


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place.

    `round` is the sum of products that the next anchor waits for; it is None within an epoch. Then `chosen`
    is the component whose turn it is, `turn` the alignment B, `block` the difference W - V B it multiplies.
    """

    problem: Problem
    W: Array
    seed: int
    round: Round | None
    number: int = 0
    anchor: Anchor | None = None
    done: int = 0  # inner updates of this epoch so far
    chosen: int = 0
    turn: Array | None = None
    block: Array | None = None
    version: int = 0
    sizes: Any = None  # per component: estimated spectral norm
    step: float = math.nan


@dataclass(frozen=True)
class VrPca(Solver[State]):
    """VR-PCA of Shamir, block form.

    Parameters
    ----------
    step : float or "auto"
        A number is used as it is. "auto" is the rule of Shamir's experiments, `1 / (r sqrt(m))` for epochs
        of m updates, with r the weighted mean of the components' spectral norms, estimated by a few
        Lanczos steps in each worker.
    inner : int, optional
        Updates between two anchors. Default: as many as there are components.
    spread_steps : int
        Lanczos steps a worker makes to estimate its norm ("auto").

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.vrpca import VrPca
    >>> parts = [np.diag([5.0, 3.0, 1.0, 0.0]), np.diag([3.0, 5.0, 1.0, 0.0])]
    >>> result = grassia.eigenspace(parts, 2, solver=VrPca(), rng=0)
    >>> result.values.round(6)
    array([4., 4.])
    """

    step: float | str = "auto"
    inner: int | None = None
    spread_steps: int = 6

    name: ClassVar[str] = "vrpca"

    def __post_init__(self) -> None:
        if isinstance(self.step, str):
            if self.step != "auto":
                raise InvalidInput(f"`step` must be a positive number or 'auto'; got {self.step!r}.")
        else:
            require_positive(self.step, "`step`")
        if self.inner is not None:
            require_count(self.inner, "`inner`")
        require_count(self.spread_steps, "`spread_steps`")

    # -- what the server calls ------------------------------------------------------------------

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, int]:
        return draw_seed(rng)

    def init(self, problem: Problem, W: Array, prepared: int | None) -> State:
        waiting = Round.of(W, problem.n)
        return State(problem, W, prepared or 0, waiting, sizes=np.zeros(problem.n))

    def round(self, state: State) -> int | None:
        return None if state.round is None else state.round.number

    def ask(self, state: State, component: int) -> Query | None:
        if state.round is not None:
            options: dict[str, Scalar] = {}
            if self.step == "auto" and state.anchor is None:
                options["spread_steps"] = self.spread_steps
            return Query("anchor", {"block": state.round.block}, options)
        if component != state.chosen:
            return None
        assert state.block is not None
        return Query("apply", {"block": state.block})

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        for arrival in arrivals:
            product = arrival.arrays["product"]
            if state.round is None:
                if (arrival.component, arrival.version) == (state.chosen, state.version):
                    state = self._move(state, product)
                continue
            weight = float(state.problem.weights[arrival.component])
            waiting = state.round.add(weight * product)
            if "size" in arrival.scalars:
                size = float(arrival.scalars["size"] or 0.0)
                state = replace(state, sizes=put(state.sizes, arrival.component, size))
            state = replace(state, round=waiting)
            if waiting.awaiting == 0:
                state = self._anchored(state, waiting.total)
        return state

    def residual(self, state: State) -> float | None:
        return None if state.anchor is None else state.anchor.residual

    def scale(self, state: State) -> float:
        captured = 0.0 if state.anchor is None else state.anchor.captured
        return max(abs(captured) / state.problem.k, float(np.finfo(np.float64).tiny))

    def step_size(self, state: State) -> float:
        return state.step

    def lower_bound(self, state: State) -> float:
        return math.nan if state.anchor is None else state.anchor.captured

    def sweep_done(self, state: State, product: Array) -> State:
        return self._anchored(state, product)  # the sweep has made the iterate an anchor

    def restart(self, state: State, W: Array) -> State:
        number = state.number + 1
        return replace(
            state,
            W=W,
            round=Round.of(W, state.problem.n, number),
            number=number,
            version=state.version + 1,
        )

    # -- the algorithm --------------------------------------------------------------------------

    def _anchored(self, state: State, product: Array) -> State:
        """Begin an epoch: `product` is that of A with the iterate."""
        anchor = Anchor.at(state.W, product)
        state = replace(state, anchor=anchor, round=None, done=0)
        return self._turn_to_next(replace(state, step=self._step(state)))

    def _turn_to_next(self, state: State) -> State:
        """Draw a component and lay out what it is to multiply."""
        assert state.anchor is not None
        V, W = state.anchor.V, state.W
        turn = np.asarray(geometry.procrustes(V, W))
        rng = np.random.default_rng([state.seed, state.version])
        chosen = int(rng.choice(state.problem.n, p=state.problem.weights))
        return replace(state, chosen=chosen, turn=turn, block=W - V @ turn)

    def _move(self, state: State, product: Array) -> State:
        assert state.anchor is not None
        assert state.turn is not None
        direction = product + state.anchor.product @ state.turn
        W = _nearest_basis(state.W + state.step * direction, state.W)
        state = replace(state, W=W, version=state.version + 1, done=state.done + 1)
        if state.done < self._length(state.problem):
            return self._turn_to_next(state)
        number = state.number + 1
        return replace(state, round=Round.of(W, state.problem.n, number), number=number)

    def _step(self, state: State) -> float:
        if not isinstance(self.step, str):
            return float(self.step)
        size = float(state.problem.weights @ state.sizes)
        if size <= 0.0:
            return 1.0  # every component is zero: any step does
        return 1.0 / (size * math.sqrt(self._length(state.problem)))

    def _length(self, problem: Problem) -> int:
        return problem.n if self.inner is None else self.inner


def _nearest_basis(Y: Array, W: Array) -> Array:
    try:
        return np.asarray(geometry.polar(Y))
    except InvalidInput:
        return next_basis(Y, W)


# -- what the workers do ------------------------------------------------------------------------


@procedure("anchor")
def anchor_product(component: Component, cache: Cache, query: Query) -> Answer:
    """The component's product with an anchor, and where asked for an estimate of its norm."""
    scalars: dict[str, Scalar] = {}
    if "spread_steps" in query.options:
        steps, rng = int(query.options["spread_steps"] or 1), np.random.default_rng(0)
        low, high = lanczos_spread(component.apply, component.n_features, steps, rng)
        scalars["size"] = max(abs(low), abs(high))
    return {"product": finite_product(component, query.arrays["block"])}, scalars
