"""power: asynchronous orthogonal iteration, without a step size, on a server of O(dk).

Section 3 of this package's algorithm notes; a relative of asynchronous fixed-point iteration (Baudet 1978).
Workers return products `A_i V_i`, `V_i` the iterate each was last given; the server keeps the sum
`Y = sum w_i A_i V_i` by corrections and sets `W <- orth(Y + c W)`, turned onto the `W` before by orthogonal
Procrustes, so that products of different ages stay summable. At equal ages it is orthogonal iteration.

Needs: symmetric components. Power iteration finds the eigenvalues that are largest in *absolute value*; those
wanted are the largest with their signs. Where A is not known to be positive semidefinite, `c` makes
the two the same: each worker estimates the smallest eigenvalue of its component by a few Lanczos steps at its
first task, and `c` is minus their weighted mean where that is negative. A shift changes no
eigenspace; it slows convergence, to a factor (lambda_{k+1} + c) / (lambda_k + c) a pass. It is taken at the
current iterate, not the stale ones, so it damps as well: components as indefinite and unlike as
`tests/test_power.py` has them converge under uneven delays.

Converges to the leading eigenspace, linearly, with the ratio of the eigenvalues at the cut for each pass
of the slowest worker. No theorem covers every delay; the certificate covers every answer.

Cost of an update: O(dk) for each arrival and O(d k^2) to orthonormalise, whatever n is. Messages: d x k each
way. Memory of the server: four d x k blocks and a few numbers for each component.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.messages import Array, Query, Scalar
from grassia.solvers.aggregate import Aggregate, contribute, put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.spectrum import lanczos_spread
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place."""

    problem: Problem
    W: Array
    products: Aggregate
    mark: Array  # the iterate whose residual is told next, after a pass of arrivals
    arrived: int = 0  # so many since then
    version: int = 0
    lowest: Any = None  # per component: estimated smallest eigenvalue
    extra: float = 1.0  # the shift is multiplied by this: raised when it proved too small
    residual: float | None = None

    @property
    def Y(self) -> Array:
        """The aggregate of the cached products."""
        return self.products.total


@dataclass(frozen=True)
class Power(Solver[State]):
    """Asynchronous power (orthogonal) iteration.

    Parameters
    ----------
    shift : float or "auto"
        The multiple of the identity added to A; "auto": none where A is known to be positive
        semidefinite, else from Lanczos estimates.
    order : {"cyclic", "shuffled", "random"}
        In which order a worker that holds several components visits them.
    table : {"worker", "server"}
        Where the cached products are, as for `Grassia`.
    resum_passes : int
        After so many passes the sum is taken anew from whole products; 0 means never.
    spread_steps : int
        Lanczos steps a worker makes to estimate its smallest eigenvalue.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.power import Power
    >>> parts = [np.diag([5.0, 3.0, 1.0, -1.0]), np.diag([3.0, 5.0, 1.0, -7.0])]
    >>> result = grassia.eigenspace(parts, 2, solver=Power(), rng=0)
    >>> result.values.round(6)
    array([4., 4.])
    """

    shift: float | str = "auto"
    order: str = "cyclic"
    table: str = "worker"
    resum_passes: int = 50
    spread_steps: int = 8

    name: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        check_shift(self.shift)
        if self.order not in ("cyclic", "shuffled", "random"):
            raise InvalidInput(f"`order` must be 'cyclic', 'shuffled' or 'random'; got {self.order!r}.")
        if self.table not in ("worker", "server"):
            raise InvalidInput(f"`table` must be 'worker' or 'server'; got {self.table!r}.")
        require_count(self.resum_passes, "`resum_passes`", least=0)
        require_count(self.spread_steps, "`spread_steps`")

    # -- what the server calls ------------------------------------------------------------------

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        products = Aggregate.empty(problem.weights, W, self.table == "server")
        return State(problem, W, products, mark=W, lowest=np.zeros(problem.n))

    def round(self, state: State) -> int | None:
        return None if state.products.started else state.products.round

    def ask(self, state: State, component: int) -> Query:
        options = state.products.options(component, state.version)
        if not state.products.started and self.shift == "auto" and not state.problem.positive:
            options["spread_steps"] = self.spread_steps
        return Query("product", {"iterate": state.W}, options)

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        products, lowest = state.products, state.lowest
        for arrival in arrivals:
            products = products.absorb(arrival.component, arrival.version, arrival.arrays)
            if "lowest" in arrival.scalars:
                lowest = put(lowest, arrival.component, float(arrival.scalars["lowest"] or 0.0))
        state = replace(state, products=products, lowest=lowest)
        state = replace(state, arrived=state.arrived + len(arrivals))
        if not arrivals or (not products.started and products.awaiting > 0):
            return state
        if not products.started:
            products = products.next_round()
        return self._move(replace(state, products=products.resummed(self.resum_passes)))

    def lost(self, state: State, component: int) -> State:
        return replace(state, products=state.products.lost(component))

    def scale(self, state: State) -> float:
        captured = float(np.sum(state.W * state.Y))
        return max(abs(captured) / state.problem.k, float(np.finfo(np.float64).tiny))

    # -- consistent sweeps ----------------------------------------------------------------------

    def sweep_query(self, state: State, component: int, block: Array) -> Query:
        options: dict[str, Scalar] = {
            "k": state.problem.k,
            "version": state.version,
            "cache": self.table == "worker",
        }
        return Query("product-sweep", {"block": block}, options)

    def sweep_tell(self, state: State, component: int, product: Array) -> State:
        return replace(state, products=state.products.swept(component, state.version, product))

    def sweep_done(self, state: State, product: Array) -> State:
        # The iterate moves by what is known of it now; otherwise everybody would be asked for the same again.
        products, n = state.products.swept_all(product), state.problem.n
        return self._move(replace(state, products=products, mark=state.W, arrived=n))

    def restart(self, state: State, W: Array) -> State:
        begun = self.init(state.problem, W, None)
        return replace(
            begun,
            products=replace(begun.products, round=state.products.round + 1),
            version=state.version + 1,
            extra=2.0 * state.extra,  # maybe the shift was too small, and this the wrong end
        )

    # -- the algorithm --------------------------------------------------------------------------

    def _move(self, state: State) -> State:
        W, Y = state.W, state.Y
        moved = next_basis(Y + self._shift(state) * W, W)
        # The current iterate came of this sum but for the last arrivals: compared with it the sum shows only
        # what those have changed. So it is compared with the iterate of a pass ago.
        if state.arrived >= state.problem.n:
            residual = float(np.linalg.norm(geometry.project(state.mark, Y)))
            state = replace(state, residual=residual, mark=moved, arrived=0)
        return replace(state, W=moved, version=state.version + 1)

    def _shift(self, state: State) -> float:
        if not isinstance(self.shift, str):
            return float(self.shift)
        return state.extra * max(0.0, -float(state.problem.weights @ state.lowest))


def check_shift(shift: object) -> None:
    """Refuse what is neither "auto" nor a finite number."""
    if isinstance(shift, numbers.Real) and not isinstance(shift, bool) and math.isfinite(float(shift)):
        return
    if not (isinstance(shift, str) and shift == "auto"):
        raise InvalidInput(f"`shift` must be a finite number or 'auto'; got {shift!r}.")


def next_basis(Y: Array, W: Array) -> Array:
    """The basis of span(Y) nearest to `W`; where Y lacks rank, directions of `W` complete it."""
    try:
        Q = geometry.polar(Y)
    except InvalidInput:
        Q = geometry.orthonormalize(Y)
        rest = geometry.orthonormalize(W, against=Q, tol=1e-8)
        Q = np.hstack([Q, rest])[:, : W.shape[1]]
    return np.asarray(geometry.align(Q, W))


# -- what the workers do ------------------------------------------------------------------------


@procedure("product")
def product(component: Component, cache: Cache, query: Query) -> Answer:
    """The component's product with an iterate (see `aggregate.contribute`), and its smallest eigenvalue."""
    arrays = contribute(cache, "products", finite_product(component, query.arrays["iterate"]), query)
    scalars: dict[str, Scalar] = {}
    if "spread_steps" in query.options:
        steps, rng = int(query.options["spread_steps"] or 1), np.random.default_rng(0)
        low, _ = lanczos_spread(component.apply, component.n_features, steps, rng)
        scalars["lowest"] = low
    return arrays, scalars


@procedure("product-sweep")
def product_sweep(component: Component, cache: Cache, query: Query) -> Answer:
    """The product with a block whose first k columns are the iterate; its product with that is cached."""
    block, options = query.arrays["block"], query.options
    found = finite_product(component, block)
    if options["cache"]:
        k = int(options["k"] or 0)
        cache["products"] = {int(options["version"] or 0): np.ascontiguousarray(found[:, :k])}
    return {"product": found}, {}
