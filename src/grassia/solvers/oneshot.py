"""One-shot averaging: every worker finds the eigenspace of its own component, the server averages them.

Fan, Wang, Wang, Zhu 2019 (average="projectors"); Charisopoulos, Benson, Damle 2021 (average="procrustes").
See `grassia.local` for both averages.

Needs: one round of all components, in which a worker multiplies its component by up to `local_products`
blocks and sends one d x k basis. It gives an *estimate*: off by a bias that falls with the square of how
unlike the local eigenspaces are, and does not fall by waiting. A second round multiplies the average to find
its residual and its Ritz vectors; then there is nothing left to ask. The run ends as converged where a
certificate finds that good enough for `tol`, and as STALLED, with that certificate, where not: any other
solver can go on from there (`v0=result.vectors`, or at once with `v0="local"`).

Cost: about `local_products` products of each component with d x (k + extra), a message of d x k from each; on
the server O(n d k^2), for projectors O(d n^2 k^2). Memory of the server: n blocks of d x k. The simulated
clock charges the local solve like any other task, however many products it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.components import Component
from grassia.errors import InvalidInput
from grassia.local import leading_eigenspace, procrustes_average, projector_average
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.synchronous import Round, residual_norm
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class State:
    """A value. First the bases come in, then (`round`) the products with their average, then nothing more."""

    problem: Problem
    W: Array
    bases: tuple[Array | None, ...]
    round: Round | None = None
    number: int = 0
    version: int = 0
    residual: float | None = None
    values: Array | None = None
    asking: bool = True


@dataclass(frozen=True)
class OneShot(Solver[State]):
    """One-shot averaging of local eigenspaces.

    Parameters
    ----------
    average : {"procrustes", "projectors"}
        The mean of aligned bases, or the leading eigenspace of the mean projector.
    refinements : int
        How often the aligned mean takes the place of the reference; for "procrustes".
    extra : int
        Columns beyond k of the blocks in the local iteration.
    local_products : int
        Most blocks a worker multiplies.
    local_tol : float
        Residual at which a worker is content, relative to its largest eigenvalue.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.oneshot import OneShot
    >>> A = np.diag([5.0, 3.0, 1.0, 0.5])
    >>> result = grassia.eigenspace([A, 2.0 * A, A], 2, solver=OneShot(), rng=0)
    >>> result.converged, result.values.round(6)
    (True, array([6.666667, 4.      ]))
    """

    average: str = "procrustes"
    refinements: int = 1
    extra: int = 4
    local_products: int = 40
    local_tol: float = 1e-6

    name: ClassVar[str] = "one-shot"

    def __post_init__(self) -> None:
        if self.average not in ("procrustes", "projectors"):
            raise InvalidInput(f"`average` must be 'procrustes' or 'projectors'; got {self.average!r}.")
        require_count(self.refinements, "`refinements`", least=0)
        require_count(self.extra, "`extra`", least=0)
        require_count(self.local_products, "`local_products`")
        require_positive(self.local_tol, "`local_tol`")

    def server_bytes(self, n: int, d: int, k: int) -> int:
        return 8 * (n + 8) * d * k

    # -- the average, which a warm start uses as well --------------------------------------------

    def local_query(self, k: int) -> Query:
        """What asks a component for the basis of its own leading k-space."""
        return Query(
            "local-eigenspace",
            {},
            {"k": k, "extra": self.extra, "products": self.local_products, "tol": float(self.local_tol)},
        )

    def averaged(self, bases: Sequence[Array], weights: Array) -> Array:
        """One orthonormal basis from those of all components."""
        if self.average == "projectors":
            return projector_average(bases, weights)
        return procrustes_average(bases, weights, self.refinements)

    # -- what the server calls ------------------------------------------------------------------

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        return State(problem, W, (None,) * problem.n)

    def round(self, state: State) -> int | None:
        return state.number if state.asking else None

    def ask(self, state: State, component: int) -> Query | None:
        if not state.asking:
            return None
        if state.round is None:
            return self.local_query(state.problem.k)
        return Query("apply", {"block": state.round.block})

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        for arrival in arrivals:
            if state.round is None:
                state = self._gather(state, arrival)
            else:
                state = self._measure(state, state.round, arrival)
        return state

    def scale(self, state: State) -> float:
        values = np.zeros(1) if state.values is None else state.values
        return max(float(np.mean(np.abs(values))), float(np.finfo(np.float64).tiny))

    def lower_bound(self, state: State) -> float:
        return float("nan") if state.values is None else float(np.sum(state.values))

    def restart(self, state: State, W: Array) -> State:
        """The subspace a certificate has found beside the average: measure that one."""
        number = state.number + 1
        return replace(
            state,
            W=W,
            round=Round.of(W, state.problem.n, number),
            number=number,
            version=state.version + 1,
            asking=True,
        )

    # -- the algorithm --------------------------------------------------------------------------

    def _gather(self, state: State, arrival: Arrival) -> State:
        bases = tuple(
            arrival.arrays["basis"] if i == arrival.component else basis
            for i, basis in enumerate(state.bases)
        )
        complete = [basis for basis in bases if basis is not None]
        if len(complete) < state.problem.n:
            return replace(state, bases=bases)
        W = self.averaged(complete, state.problem.weights)
        # The bases have served: n of them would stay alive to the end.
        begun = self.restart(state, W)
        return replace(begun, bases=(None,) * state.problem.n)

    def _measure(self, state: State, current: Round, arrival: Arrival) -> State:
        weight = float(state.problem.weights[arrival.component])
        current = current.add(weight * arrival.arrays["product"])
        if current.awaiting > 0:
            return replace(state, round=current)
        values, turn = geometry.ritz(state.W, current.total)
        W = state.W @ turn
        residual = residual_norm(W, current.total @ turn, values)
        return replace(
            state,
            W=W,
            round=current,
            version=state.version + 1,
            residual=residual,
            values=values,
            asking=False,
        )


@procedure("local-eigenspace")
def local_eigenspace(component: Component, cache: Cache, query: Query) -> Answer:
    """An orthonormal basis of the component's own leading eigenspace."""
    options = query.options
    _, basis = leading_eigenspace(
        lambda block: finite_product(component, block),
        component.n_features,
        int(options["k"] or 1),
        np.random.default_rng(0),
        extra=int(options["extra"] or 0),
        products=int(options["products"] or 1),
        tol=float(options["tol"] or 0.0),
    )
    return {"basis": np.ascontiguousarray(basis)}, {}
