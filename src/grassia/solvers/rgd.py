"""Synchronous (distributed) Riemannian gradient descent on the Grassmannian.

Alimisis et al. 2024 ("RGD" in the paper's comparison). `W <- Polar(W - step G)` with the exact gradient
`G = -2 (I - WW') A W` of `f(W) = -trace(W'AW)`: what GRASSIA does when every gradient is fresh. A round waits
for the slowest worker, as in the paper's experiment.

Needs: a round of all components for each update; symmetric components, positive or not. The gradient is that
of `A + cI` for every c, so no shift changes the trajectory.

Converges linearly to the leading eigenspace from almost every start: near it, the error shrinks by
1 - 2 step (lambda_k - lambda_{k+1}) an update if step < 1 / nu, where nu = lambda_1 - lambda_d. A fixed step
above that may oscillate, and then ends as STALLED. The residual it states is that of the iterate before the
last, whose product is known.

Cost of an update: 2 messages of d x k for each component, O(d k^2) on the server. Memory: 3 d k numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.messages import Array, Query, Scalar
from grassia.solvers.aggregate import put
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.synchronous import State, Synchronous
from grassia.spectrum import lanczos_spread
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class Descent:
    """Estimated spread of each component, the step last taken, and what guards the automatic one."""

    spread: Any
    step: float = math.nan
    damping: float = 1.0
    captured: float = -math.inf


@dataclass(frozen=True)
class Rgd(Synchronous[Descent]):
    """Synchronous Riemannian gradient descent.

    Parameters
    ----------
    step : float or "auto"
        A number is used as it is. "auto" is `0.8 / nu`, with `nu` the weighted mean of the spreads of the
        components, an upper bound of that of A, from a few Lanczos steps at the first round; halved
        whenever an update has lost captured variance.
    spread_steps : int
        Lanczos steps a worker makes for that.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.rgd import Rgd
    >>> result = grassia.eigenspace([np.diag([5.0, 3.0, 1.0, -6.0])], 2, solver=Rgd(), rng=0)
    >>> result.values.round(6)
    array([5., 3.])
    """

    step: float | str = "auto"
    spread_steps: int = 6

    name: ClassVar[str] = "rgd"

    def __post_init__(self) -> None:
        check_step(self.step)
        require_count(self.spread_steps, "`spread_steps`")

    def step_size(self, state: State[Descent]) -> float:
        return state.method.step

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Descent]:
        return W, Descent(np.zeros(problem.n))

    def ask(self, state: State[Descent], component: int) -> Query | None:
        if state.residual is not None or self.step != "auto":
            return super().ask(state, component)
        options: dict[str, Scalar] = {"spread_steps": self.spread_steps}
        return Query("apply-and-spread", {"block": state.round.block}, options)

    def tell(self, state: State[Descent], arrivals: Sequence[Arrival]) -> State[Descent]:
        spread = state.method.spread
        for arrival in arrivals:
            if "spread" in arrival.scalars:
                spread = put(spread, arrival.component, float(arrival.scalars["spread"] or 0.0))
        return super().tell(replace(state, method=replace(state.method, spread=spread)), arrivals)

    def _advance(self, state: State[Descent], product: Array) -> tuple[State[Descent], Array]:
        W = state.W
        gradient = geometry.riemannian_gradient(W, product)
        residual = float(np.linalg.norm(gradient, 2)) / 2.0
        values, _ = geometry.ritz(W, product)
        method = self._guarded(state, float(np.sum(values)))
        moved = geometry.polar(W - method.step * gradient)
        return replace(state, W=moved, residual=residual, values=values, method=method), moved

    def _guarded(self, state: State[Descent], captured: float) -> Descent:
        method = state.method
        if not isinstance(self.step, str):
            return replace(method, step=float(self.step))
        nu = float(state.problem.weights @ method.spread)
        lost = captured < method.captured - 1e-12 * (abs(captured) + nu)
        damping = 0.5 * method.damping if lost else method.damping
        # Where every component is a multiple of the identity, any step does.
        step = damping * 0.8 / nu if nu > 0.0 else 1.0
        return replace(method, step=step, damping=damping, captured=captured)


def check_step(step: object) -> None:
    """Refuse what is neither "auto" nor a positive finite number."""
    if isinstance(step, str):
        if step != "auto":
            raise InvalidInput(f"`step` must be a positive finite number or 'auto'; got {step!r}.")
    else:
        require_positive(step, "`step`")


# -- what the workers do ------------------------------------------------------------------------


@procedure("apply-and-spread")
def apply_and_spread(component: Component, cache: Cache, query: Query) -> Answer:
    """The product of the component with a block, and an estimate of the spread of its eigenvalues."""
    product = finite_product(component, query.arrays["block"])
    steps, rng = int(query.options["spread_steps"] or 1), np.random.default_rng(0)
    low, high = lanczos_spread(component.apply, component.n_features, steps, rng)
    return {"product": product}, {"spread": high - low}
