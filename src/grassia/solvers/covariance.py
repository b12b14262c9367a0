"""One pass: every worker sends its whole matrix, the server adds them up and solves the dense problem.

The textbook method (as scikit-learn's `covariance_eigh`), for d up to a few thousand and many more rows than
columns: exact to rounding, one read of the data, one round, no iteration. Hard to beat there.

Needs: every component as a dense matrix (rows: a tiled Gram matrix; an operator: d products). Gives the
leading eigenspace itself, with the eigenvalue after the cut. Should the certificate be refused, the answer
is as good as the precision allows: further rounds only multiply by it, to know its residual.

Cost: m d^2 flops in the workers, one message of d x d from each, O(d^3) on the server. Memory: a few d x d
matrices on the server and in each worker, whatever n is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh

from grassia.components import Component
from grassia.errors import InvalidComponent
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.synchronous import State, Synchronous, residual_norm
from grassia.worker import Answer, Cache, procedure

MORE = 16  # eigenvectors after the cut that a certificate is told of


@dataclass(frozen=True, slots=True)
class Collected:
    """The sum of the matrices while they come in, and what is known once it is whole.

    `parts` is the sum of the norms of what was added; `rest` are eigenvectors after the cut.
    """

    matrix: Array
    parts: float = 0.0
    rest: Array | None = None


@dataclass(frozen=True)
class Covariance(Synchronous[Collected]):
    """Collect the whole matrix and take its leading eigenvectors.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.covariance import Covariance
    >>> X = np.random.default_rng(0).standard_normal((500, 6)) * np.array([5, 4, 1, 1, 1, 1])
    >>> result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, solver=Covariance(), rng=0)
    >>> result.converged, result.stats["updates"]
    (True, 1)
    """

    name: ClassVar[str] = "covariance"

    def server_bytes(self, n: int, d: int, k: int) -> int:
        return 8 * 4 * d * d

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Collected]:
        return W, Collected(np.zeros((problem.d, problem.d)))

    def ask(self, state: State[Collected], component: int) -> Query | None:
        return Query("covariance") if state.method.rest is None else None  # there is no more to know

    def tell(self, state: State[Collected], arrivals: Sequence[Arrival]) -> State[Collected]:
        matrix, parts = state.method.matrix, state.method.parts
        for arrival in arrivals:
            part = float(state.problem.weights[arrival.component]) * arrival.arrays["matrix"]
            parts += float(np.linalg.norm(part))
            matrix = part if state.problem.n == 1 else matrix + part
        awaiting = state.round.awaiting - len(arrivals)
        state = replace(state, method=Collected(matrix, parts), round=replace(state.round, awaiting=awaiting))
        return state if awaiting > 0 else self._complete(state, matrix)

    def _advance(self, state: State[Collected], product: Array) -> tuple[State[Collected], Array]:
        d, k = state.problem.d, state.problem.k
        found, vectors = eigh(product, subset_by_index=[max(0, d - k - MORE), d - 1])
        if len(found) < min(d, k + MORE):  # that driver may miss some of a tight cluster
            found, vectors = np.linalg.eigh(product)
        values = np.ascontiguousarray(found[::-1])
        vectors = np.ascontiguousarray(vectors[:, ::-1])
        W = np.ascontiguousarray(vectors[:, :k])
        AW = product @ W
        return replace(
            state,
            W=W,
            product=AW,
            method=replace(state.method, rest=vectors[:, k:]),
            residual=residual_norm(W, AW, values[:k]),
            values=values[:k],
            gap=float(values[k - 1] - values[k]) if k < d else None,
            after=float(values[k]) if k < d else None,
        ), W

    def matrix(self, state: State[Collected]) -> tuple[Array, float] | None:
        method = state.method
        return None if method.rest is None else (method.matrix, method.parts)

    def known(self, state: State[Collected]) -> tuple[Array, Array] | None:
        rest = state.method.rest
        return None if rest is None or not rest.shape[1] else (rest, state.method.matrix @ rest)

    def sweep_done(self, state: State[Collected], product: Array) -> State[Collected]:
        if state.method.rest is None:  # the pass was cut short: begin it again
            state = replace(state, method=Collected(np.zeros_like(state.method.matrix)))
        return super().sweep_done(state, product)


@procedure("covariance")
def covariance(component: Component, cache: Cache, query: Query) -> Answer:
    """The component as a dense matrix."""
    matrix = component.dense()
    if not np.isfinite(matrix).all():
        raise InvalidComponent(
            "its matrix has NaN or infinite entries; check the operator or the data for overflow."
        )
    return {"matrix": matrix}, {}
