"""DSAG: a cache of stale products, and a wait for the fastest w of n at each iterate.

Severinson, Rosnes, El Rouayheb, Graell i Amat 2021, "DSAG: a mixed synchronous-asynchronous iterative method
for straggler-resilient learning"; PCA as in that paper. The server keeps the last product of every component
(as SAG keeps gradients). An iteration waits for `wait` *fresh* products, computed at the current iterate;
products of earlier iterates that arrive meanwhile go into the cache as well, and their senders are given the
current iterate at once. Then

    W <- GramSchmidt(W - step (W - Y / s)) = GramSchmidt((1 - step) W + step Y / s),

with `Y = sum w_i A_i V_i` over the cache: a gradient step for the PCA loss. Until every component has been
heard, `Y` is divided by the weight of those that have.

The published form has s = 1, for data whose variance is far above one. Here `divisor="auto"` takes the mean
Ritz value `trace(W'Y) / k`, so that `step` means the same for data of any size. What is not in the paper,
either: a shift of A by a multiple of the identity where it is not known to be positive semidefinite, as in
`grassia.solvers.power`. Load balancing between workers, the other half of the paper, is not here: components
are pinned.

Converges to the leading eigenspace, linearly, for every entry of the cache is renewed in the end: with wait
= n it is orthogonal iteration with a small shift. Gram-Schmidt, unlike the alignment `power` makes, lets
columns turn within the space until each is an eigenvector, and cached products are in the basis of their
time: leading eigenvalues close to one another slow it down. The step must suit the delays: with
components as indefinite and unlike as `tests/test_baselines_rounds.py` has them, one of them twenty times
late, 0.5 does not converge and 0.2 does.

Cost of an update: a message of d x k each way for each arrival, O(d k^2) on the server. Memory of the server:
n + 4 blocks of d x k. `wait` counts components; a worker that holds several answers for one after the other.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.errors import InvalidInput
from grassia.messages import Array, Query
from grassia.solvers.aggregate import Aggregate, put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.power import check_shift


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place."""

    problem: Problem
    W: Array
    products: Aggregate
    heard: Any  # per component: whether the cache holds anything of it
    fresh: frozenset[int] = frozenset()  # who has answered at the current iterate
    lowest: Any = None  # per component: estimated smallest eigenvalue
    extra: float = 1.0  # the shift is multiplied by this: raised when it proved too small
    version: int = 0
    residual: float | None = None

    @property
    def Y(self) -> Array:
        """The cached products, summed; of those heard as if they were all."""
        return self.products.total / float(self.problem.weights[self.heard].sum())


@dataclass(frozen=True)
class Dsag(Solver[State]):
    """DSAG for PCA.

    Parameters
    ----------
    wait : int or float
        How many fresh products an iteration waits for: a number of components, or a fraction of them
        (rounded up) between 0 and 1. A number above n means n.
    step : float
        0 < step <= 1; the paper takes 0.9.
    divisor : float or "auto"
        What products are divided by (`s` above); "auto": the mean Ritz value of the iterate.
    shift : float or "auto"
        The multiple of the identity added to A; "auto": none where A is known to be positive
        semidefinite, else from Lanczos estimates.
    spread_steps : int
        Lanczos steps a worker makes for that at its first task.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.dsag import Dsag
    >>> parts = [np.diag([6.0, 3.0, 1.0, 0.0]), np.diag([4.0, 3.0, 1.0, 0.0])]
    >>> result = grassia.eigenspace(parts, 2, solver=Dsag(wait=1), rng=0)
    >>> result.values.round(6)
    array([5., 3.])
    """

    wait: int | float = 0.5
    step: float = 0.9
    divisor: float | str = "auto"
    shift: float | str = "auto"
    spread_steps: int = 8

    name: ClassVar[str] = "dsag"

    def __post_init__(self) -> None:
        whole = isinstance(self.wait, numbers.Integral) and not isinstance(self.wait, bool) and self.wait >= 1
        part = isinstance(self.wait, float) and 0.0 < self.wait < 1.0
        if not (whole or part):
            raise InvalidInput(
                "`wait` must be a number of components, at least 1, or a fraction of them between 0 and 1; "
                f"got {self.wait!r}."
            )
        require_positive(self.step, "`step`")
        if self.step > 1.0:
            raise InvalidInput(f"`step` must be at most 1: it weighs products against W; got {self.step}.")
        if isinstance(self.divisor, str):
            if self.divisor != "auto":
                raise InvalidInput(f"`divisor` must be a positive number or 'auto'; got {self.divisor!r}.")
        else:
            require_positive(self.divisor, "`divisor`")
        check_shift(self.shift)
        require_count(self.spread_steps, "`spread_steps`")

    def server_bytes(self, n: int, d: int, k: int) -> int:
        return 8 * (n + 8) * d * k

    # -- what the server calls ------------------------------------------------------------------

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        cache = Aggregate.empty(problem.weights, W, keeps_table=True)
        return State(
            problem,
            W,
            replace(cache, started=True),  # no first round: who has not been heard counts as zero
            heard=np.zeros(problem.n, dtype=bool),
            lowest=np.zeros(problem.n),
        )

    def ask(self, state: State, component: int) -> Query | None:
        if component in state.fresh:
            return None  # it has answered at this iterate and waits for the next
        options = state.products.options(component, state.version)
        if self.shift == "auto" and not state.problem.positive and not state.heard[component]:
            options["spread_steps"] = self.spread_steps
        return Query("product", {"iterate": state.W}, options)

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        products, lowest, heard, fresh = state.products, state.lowest, state.heard, state.fresh
        for arrival in arrivals:
            i = arrival.component
            products = products.absorb(i, arrival.version, arrival.arrays)
            heard = put(heard, i, True)
            if "lowest" in arrival.scalars:
                lowest = put(lowest, i, float(arrival.scalars["lowest"] or 0.0))
            if arrival.version == state.version:
                fresh |= {i}
        state = replace(state, products=products, lowest=lowest, heard=heard, fresh=fresh)
        return self._move(state) if len(fresh) >= self._wanted(state.problem.n) else state

    def scale(self, state: State) -> float:
        captured = float(np.sum(state.W * state.products.total))
        return max(abs(captured) / state.problem.k, float(np.finfo(np.float64).tiny))

    def step_size(self, state: State) -> float:
        return self.step

    # -- consistent sweeps ----------------------------------------------------------------------

    def sweep_tell(self, state: State, component: int, product: Array) -> State:
        swept = state.products.swept(component, state.version, product)
        return replace(state, products=swept, heard=put(state.heard, component, True))

    def sweep_done(self, state: State, product: Array) -> State:
        return replace(state, products=state.products.swept_all(product))

    def restart(self, state: State, W: Array) -> State:
        begun = self.init(state.problem, W, None)
        # Maybe the shift was too small, and this the wrong end.
        return replace(begun, version=state.version + 1, extra=2.0 * state.extra)

    # -- the algorithm --------------------------------------------------------------------------

    def _wanted(self, n: int) -> int:
        return math.ceil(self.wait * n) if isinstance(self.wait, float) else min(int(self.wait), n)

    def _move(self, state: State) -> State:
        W, Y = state.W, state.Y
        residual = float(np.linalg.norm(geometry.project(W, Y))) if state.heard.all() else None
        shifted = Y + self._shift(state) * W
        moved = gram_schmidt((1.0 - self.step) * W + self.step * shifted / self._divisor(W, shifted))
        # The sum is kept by differences; taking it anew now and then keeps rounding from piling up.
        products = state.products.resummed(50)
        return replace(
            state, W=moved, products=products, fresh=frozenset(), residual=residual, version=state.version + 1
        )

    def _divisor(self, W: Array, shifted: Array) -> float:
        if not isinstance(self.divisor, str):
            return float(self.divisor)
        mean = abs(float(np.sum(W * shifted))) / W.shape[1]
        return mean if mean > 0.0 else 1.0

    def _shift(self, state: State) -> float:
        if not isinstance(self.shift, str):
            return float(self.shift)
        weights = state.problem.weights
        return state.extra * max(0.0, -float(weights @ state.lowest) / float(weights[state.heard].sum()))


def gram_schmidt(X: Array) -> Array:
    """The orthonormal basis that Gram-Schmidt makes of the columns of `X`, computed by Householder QR.

    >>> import numpy as np
    >>> gram_schmidt(np.array([[-2.0], [0.0]]))
    array([[-1.],
           [ 0.]])
    """
    Q, R = np.linalg.qr(X)
    signs = np.where(np.diagonal(R) < 0.0, -1.0, 1.0)
    return np.asarray(Q * signs)
