"""Synchronous LOBPCG: Rayleigh-Ritz on the iterate, its residual and the last direction.

Knyazev 2001 without a preconditioner, with the orthonormal basis of Hetmaniuk and Lehoucq 2006 and Duersch et
al. 2018: the trial space is spanned by `X` (the iterate), `P` (the last direction, orthonormalised
against `X` in the coordinates of the trial space) and the residual, orthonormalised against both. `X` and
`P` are turned together with their products, so only the residual block is multiplied: one
product of width k a round. When the residual vanishes, random directions take its place.

Needs: a round of all components for each update. Converges to the leading eigenspace (largest eigenvalues
with their signs, no shift), nearly as fast as block Krylov does and with the memory of three blocks. The
residual it states is the true one.

Cost of an update: 2 messages of d x k for each component, O(d k^2) on the server. Memory: 6 d k numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from grassia import geometry
from grassia.messages import Array
from grassia.solvers.base import Problem
from grassia.solvers.synchronous import State, Synchronous, polished, residual_norm, widened


@dataclass(frozen=True, slots=True)
class Directions:
    """Products with the iterate; the last direction and its products. `AX` None: `X` is being asked."""

    AX: Array | None
    P: Array
    AP: Array


@dataclass(frozen=True)
class Lobpcg(Synchronous[Directions]):
    """Synchronous block LOBPCG.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.lobpcg import Lobpcg
    >>> result = grassia.eigenspace([np.diag(np.arange(30.0))], 2, solver=Lobpcg(), rng=0)
    >>> result.values.round(6)
    array([29., 28.])
    """

    name: ClassVar[str] = "lobpcg"

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Directions]:
        nothing = np.zeros((problem.d, 0))
        return W, Directions(None, nothing, nothing)

    def _advance(self, state: State[Directions], product: Array) -> tuple[State[Directions], Array]:
        k, kept = state.problem.k, state.method
        if kept.AX is None:
            S, AS = state.round.block, product
        else:
            S = np.hstack([state.W, kept.P, state.round.block])
            AS = np.hstack([kept.AX, kept.AP, product])
        values, turn = geometry.ritz(S, AS)
        C = turn[:, :k]
        # The direction just taken: what of the new iterate lies outside the old one.
        taken = np.vstack([np.zeros((min(k, len(C)), k)), C[k:]])
        turn = np.hstack([C, geometry.orthonormalize(taken, against=C)])
        XP, AXP = polished(S @ turn, AS @ turn)
        return self._next(state, XP[:, :k], AXP[:, :k], XP[:, k:], AXP[:, k:], values[:k])

    def _next(
        self, state: State[Directions], X: Array, AX: Array, P: Array, AP: Array, values: Array
    ) -> tuple[State[Directions], Array]:
        basis = np.hstack([X, P])
        block = geometry.orthonormalize(AX - X * values, against=basis)
        p, k = basis.shape[1], state.problem.k
        if block.shape[1] == 0:
            # Nothing is left of the residual outside the space kept. Look elsewhere, where there is any.
            block = widened(basis, p + k, [state.seed, state.version])[:, p:]
        method = Directions(AX, P, AP)
        if block.shape[1] == 0:
            method, block = Directions(None, P[:, :0], AP[:, :0]), X
        residual = residual_norm(X, AX, values)
        return replace(state, W=X, method=method, residual=residual, values=values), block

    def sweep_done(self, state: State[Directions], product: Array) -> State[Directions]:
        if state.method.AX is None:
            return super().sweep_done(state, product)
        # An exact product with the iterate: it replaces the one carried along, and its rounding.
        values, turn = geometry.ritz(state.W, product)
        P, AP = state.method.P, state.method.AP
        state, block = self._next(state, state.W @ turn, product @ turn, P, AP, values)
        return super().sweep_done(replace(state, round=replace(state.round, block=block)), product)
