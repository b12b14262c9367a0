"""Synchronous orthogonal iteration, the block form of the power method.

Bauer 1957; Rutishauser 1969 (without the Chebyshev acceleration). `W <- orth((A + cI) W)`, turned onto the
`W` before, which changes no subspace. The baseline every other method here is measured against.

Needs: a round of all components for each update. It finds the eigenvalues largest in *absolute value*:
where A is not known to be positive semidefinite it is shifted by `c`, as in `grassia.solvers.power`.
Converges to the leading eigenspace, linearly, with the ratio (lambda_{k+1} + c) / (lambda_k + c). The
residual it states is that of the iterate before the last, whose product is known.

Cost of an update: 2 messages of d x k for each component, O(d k^2) on the server. Memory: 3 d k numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count
from grassia.messages import Array, Query
from grassia.solvers.aggregate import NOT_HELD, put
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.power import check_shift, next_basis
from grassia.solvers.synchronous import State, Synchronous


@dataclass(frozen=True, slots=True)
class Shift:
    """Estimated smallest eigenvalue of each component, and by how much to stretch the shift."""

    lowest: Any
    stretch: float = 1.0


@dataclass(frozen=True)
class Orthogonal(Synchronous[Shift]):
    """Synchronous orthogonal iteration.

    Parameters
    ----------
    shift : float or "auto"
        The multiple of the identity added to A; "auto": none where A is known to be positive
        semidefinite, else from Lanczos estimates.
    spread_steps : int
        Lanczos steps a worker makes for that at its first task.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.orthogonal import Orthogonal
    >>> result = grassia.eigenspace([np.diag([5.0, 3.0, 1.0, -6.0])], 2, solver=Orthogonal(), rng=0)
    >>> result.values.round(6)
    array([5., 3.])
    """

    shift: float | str = "auto"
    spread_steps: int = 8

    name: ClassVar[str] = "orthogonal"

    def __post_init__(self) -> None:
        check_shift(self.shift)
        require_count(self.spread_steps, "`spread_steps`")

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Shift]:
        return W, Shift(np.zeros(problem.n))

    def ask(self, state: State[Shift], component: int) -> Query | None:
        if state.residual is not None or self.shift != "auto" or state.problem.positive:
            return super().ask(state, component)
        return Query(
            "product",
            {"iterate": state.round.block},
            {
                "weight": 1.0,
                "version": state.version,
                "base": NOT_HELD,
                "whole": True,
                "cache": False,
                "spread_steps": self.spread_steps,
            },
        )

    def tell(self, state: State[Shift], arrivals: Sequence[Arrival]) -> State[Shift]:
        plain = []
        for arrival in arrivals:
            if "lowest" in arrival.scalars:
                low = float(arrival.scalars["lowest"] or 0.0)
                lowest = put(state.method.lowest, arrival.component, low)
                state = replace(state, method=replace(state.method, lowest=lowest))
                arrival = replace(arrival, arrays={"product": arrival.arrays["whole"]})
            plain.append(arrival)
        return super().tell(state, plain)

    def _advance(self, state: State[Shift], product: Array) -> tuple[State[Shift], Array]:
        W = state.W
        residual = float(np.linalg.norm(geometry.project(W, product), 2))
        values, _ = geometry.ritz(W, product)
        moved = next_basis(product + self._shift(state) * W, W)
        return replace(state, W=moved, residual=residual, values=values), moved

    def _shift(self, state: State[Shift]) -> float:
        if not isinstance(self.shift, str):
            return float(self.shift)
        below = -float(state.problem.weights @ state.method.lowest)
        return state.method.stretch * max(0.0, below)

    def restart(self, state: State[Shift], W: Array) -> State[Shift]:
        stretch = 2.0 * state.method.stretch  # maybe the shift was too small, and this the wrong end
        begun = super().restart(state, W)
        return replace(begun, method=replace(begun.method, stretch=stretch))
