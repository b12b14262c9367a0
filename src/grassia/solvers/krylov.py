"""Synchronous block Krylov with Rayleigh-Ritz on everything kept, restarted thickly.

Block Lanczos with full reorthogonalisation (Golub and Underwood 1977), started from the iterate and a few
random columns beside it (the oversampling of Musco and Musco 2015), restarted as in Wu and Simon 2000:
when the basis would outgrow `memory`, its leading Ritz vectors stay, their products turned along, beside
the block asked next. So no product is computed twice and the Krylov recurrence survives the restart.

Needs: a round of all components for each update. Converges to the leading eigenspace (the largest
eigenvalues with their signs: no shift is needed) from almost every start, faster than any other method here
for the same number of rounds of the same width; there is no step to choose. The residual it states is
the true one.

With one component it is the solver for a single machine. A round then has no latency and waits for nobody,
and blocks are narrow: for the same number of products the polynomials in A are of a higher degree, so that
far fewer products do (for k = 50 of the CIFAR images 200 with blocks of 8, 500 with blocks of 55). Multiple
eigenvalues are found all the same: the certificate finds what is missing, and the run goes on from there.

Cost of an update, with p columns kept and blocks of b: 2 messages of d x b for each component, and on the
server O(d b p + p^3), now and then O(d p^2) for a restart. Memory: 2 d p numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh

from grassia import geometry
from grassia._checks import require_count
from grassia.apart import set_apart
from grassia.blocks import new_block
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.solvers.base import Problem
from grassia.solvers.columns import Columns
from grassia.solvers.synchronous import Round, State, Synchronous, polished, residual_and_gap, widened

NARROW = 8  # columns of a block on one machine: a product with fewer is bound by reading the data
MORE = 32  # Ritz vectors after the cut that a certificate is told of; more would cost and gain nothing


@dataclass(frozen=True, slots=True)
class Basis:
    """An orthonormal basis `Q`, its products `Y = A Q` and `H = Q'Y`.

    `again` says that the block being asked is the iterate itself, to begin anew from. `looked` are the last
    two rounds in which it was looked how good Ritz vectors are, each with the sine expected of a certificate.
    `leading` are those looked at last, values and rotation, as long as nothing was added, and `formed` is the
    last round in which some were formed.
    """

    columns: Columns
    products: Columns
    H: Array
    again: bool = False
    looked: tuple[tuple[int, float], ...] = ()
    leading: tuple[Array, Array] | None = None
    formed: int = 0

    @classmethod
    def of(cls, Q: Array, Y: Array) -> Basis:
        return cls(Columns.of(Q), Columns.of(Y), Q.T @ Y)

    @property
    def Q(self) -> Array:
        return self.columns.matrix

    @property
    def Y(self) -> Array:
        return self.products.matrix

    def with_block(self, block: Array, product: Array) -> Basis:
        """Extended by a block that is orthonormal to it."""
        columns, products = self.columns.with_block(block), self.products.with_block(product)
        p, b = self.Q.shape[1], block.shape[1]
        beside = columns.matrix.T @ product
        H = np.empty((p + b, p + b))
        H[:p, :p], H[:, p:], H[p:, :p] = self.H, beside, beside[:p].T
        return Basis(columns, products, H, looked=self.looked, formed=self.formed)

    def ritz(self, count: int) -> tuple[Array, Array]:
        """So many leading Ritz values, descending, and the rotation to their vectors."""
        p = len(self.H)
        H = (self.H + self.H.T) / 2.0
        if 3 * count > p or p < 100:
            values, turn = np.linalg.eigh(H)
        else:  # far cheaper than all of them
            values, turn = eigh(H, subset_by_index=[p - count, p - 1], check_finite=False)
            if len(values) < count:  # that driver may miss some of a tight cluster
                values, turn = np.linalg.eigh(H)
        return values[::-1][:count], turn[:, ::-1][:, :count]

    def turned(self, turn: Array) -> Basis:
        """The basis of the columns of `Q @ turn`."""
        turned = Basis.of(*polished(self.Q @ turn, self.Y @ turn))
        return replace(turned, looked=self.looked, formed=self.formed)


@dataclass(frozen=True)
class Krylov(Synchronous[Basis]):
    """Synchronous block Krylov.

    Parameters
    ----------
    width : int, optional
        Columns of a block, more or fewer than k. Default: k + `oversample`; on one component 8, unless `v0`
        or `oversample` is given or `memory` is short.
    oversample : int, optional
        Columns beyond k. Default: max(2, k // 10). While blocks are narrow a product is bound by reading
        the data, so a column or two more cost little and save rounds; many more save few and cost.
    memory : int, "unlimited" or None
        Columns kept at most, at least k + width. Default: ten blocks, and 40 at least.
        Fewer save memory and cost rounds, the more of them the smaller the gap.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.krylov import Krylov
    >>> A = np.diag(np.arange(30.0))
    >>> result = grassia.eigenspace([A], 2, solver=Krylov(), rng=0)
    >>> result.values.round(6)
    array([29., 28.])
    """

    width: int | None = None
    oversample: int | None = None
    memory: int | str | None = None

    name: ClassVar[str] = "krylov"
    vouches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width is not None and self.oversample is not None:
            raise InvalidInput("give `width` or `oversample`, not both.")
        if self.width is not None:
            require_count(self.width, "`width`")
        if self.oversample is not None:
            require_count(self.oversample, "`oversample`", least=0)
        if isinstance(self.memory, str):
            if self.memory != "unlimited":
                raise InvalidInput(f"`memory` must be an integer, 'unlimited' or None; got {self.memory!r}.")
        elif self.memory is not None:
            require_count(self.memory, "`memory`", least=2)

    def block_width(self, problem: Problem) -> int:
        """Columns of a block in this problem."""
        if self.width is not None:
            return min(self.width, problem.d)
        small = isinstance(self.memory, int) and self.memory < problem.k + NARROW
        if self.oversample is None and problem.n == 1 and problem.cold and not small:
            return min(NARROW, problem.d)
        more = max(2, problem.k // 10) if self.oversample is None else self.oversample
        return min(problem.k + more, problem.d)

    def columns(self, problem: Problem) -> int:
        """Most columns kept in this problem."""
        width = self.block_width(problem)
        if self.memory is None:
            return min(max(40, 10 * max(width, problem.k)), problem.d)
        if isinstance(self.memory, str):
            return problem.d
        least = min(problem.k + width, problem.d)
        if self.memory < least:
            raise InvalidInput(
                f"`memory` must be at least k + width = {least} columns; got {self.memory}. "
                "Raise it, or make the block narrower."
            )
        return min(self.memory, problem.d)

    def server_bytes(self, n: int, d: int, k: int) -> int:
        problem = Problem(n, d, min(k, d), np.ones(n) / n, None, False)
        return 8 * d * (2 * self.columns(problem) + 6 * self.block_width(problem))

    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, Basis]:
        self.columns(problem)  # complain before the first product
        nothing = np.zeros((problem.d, 0))
        width = self.block_width(problem)
        if problem.beyond is not None:
            room = max(0, self.columns(problem) // 2 - problem.k)
            W = np.hstack([W, geometry.orthonormalize(problem.beyond, against=W)[:, :room]])
        elif problem.cold:
            W = W[:, :width]
        return widened(W, width, seed), Basis.of(nothing, nothing)

    def _advance(self, state: State[Basis], product: Array) -> tuple[State[Basis], Array]:
        problem, block = state.problem, state.round.block
        k, d = problem.k, problem.d
        if state.method.again:
            basis = Basis.of(block, product)
        else:
            basis = state.method.with_block(block, product)
        asked = new_block(product, basis.Q, basis.H[:, -product.shape[1] :])
        p = basis.Q.shape[1]
        if asked.shape[1] == 0:
            # The space kept is invariant. What lies outside it is not known: look there.
            width = min(self.block_width(problem), d - p)
            asked = widened(basis.Q, p + width, [state.seed, state.round.number])[:, p:]
        full = p + asked.shape[1] > self.columns(problem)
        # Beside a narrow block Ritz vectors are not cheap. No small basis holds good ones, and in a large one
        # it is looked when it has grown by half of k, or when they are about to be good enough.
        number, narrow = state.round.number, problem.n == 1 and problem.cold
        early = narrow and p < min(3 * k, d)
        early |= number < due(basis.looked, problem.tol, max(1, k // (2 * block.shape[1])))
        if p < k or (early and not full and asked.shape[1]):
            return replace(state, method=basis), asked
        values, turn = basis.ritz(min(p, k + self._more(problem)))
        lengths, sine = expected(values, asked.T @ basis.Y @ turn, k)
        basis = replace(basis, looked=(*basis.looked[-1:], (number, sine)), leading=(values, turn))
        # Ritz vectors that will not do yet are formed now and then all the same, for those who watch.
        fresh = state.residual is not None and number < basis.formed + 3
        if narrow and fresh and sine > goal(problem.tol) and not full and asked.shape[1]:
            return replace(state, method=basis), asked
        basis = replace(basis, formed=number)
        W, AW = basis.Q @ turn[:, :k], basis.Y @ turn[:, :k]
        if asked.shape[1] == 0:
            basis, asked = replace(basis, again=True), W  # the whole space: W is exact
        elif full:
            basis = basis.turned(basis.ritz(self._kept(problem, asked.shape[1]))[1])
        after = float(values[k]) if len(values) > k else None
        residual, gap = residual_and_gap(W, AW, values[:k], after, (lengths, sine))
        found = replace(state, W=W, product=AW, residual=residual, values=values[:k], gap=gap, after=after)
        return replace(found, method=basis), asked

    def anew(self, state: State[Basis], W: Array) -> State[Basis]:
        # The products were not precise enough, but the directions are good: a certificate will want some of
        # those after the cut, too.
        known = self.known(state)
        begun = self.restart(state, W)
        if known is None:
            return begun
        block, method = self._first(replace(begun.problem, beyond=known[0]), W, begun.seed)
        return replace(begun, round=Round.of(block, begun.problem.n, begun.round.number), method=method)

    def known(self, state: State[Basis]) -> tuple[Array, Array] | None:
        basis, k = state.method, state.problem.k
        if basis.Q.shape[1] <= k:
            return None
        _, turn = basis.leading or basis.ritz(min(basis.Q.shape[1], k + self._more(state.problem)))
        rest = turn[:, k:]
        return basis.Q @ rest, basis.Y @ rest

    def _more(self, problem: Problem) -> int:
        """Ritz vectors after the cut that are looked at: no more than the memory that was meant."""
        return min(MORE, max(problem.k, self.columns(problem) // 2))

    def _kept(self, problem: Problem, coming: int) -> int:
        """How many Ritz vectors survive a restart: half of the room, but the wanted ones at least."""
        room = self.columns(problem) - coming
        return max(problem.k, min(room, max(problem.k, self.block_width(problem)) + room // 2))


def expected(values: Array, leaks: Array, k: int) -> tuple[Array, float]:
    """(norms of the residuals of the first k Ritz vectors, sine that a certificate will find).

    What `A` has of the Ritz vectors outside of the basis lies in the block asked next, and `leaks` is that.
    """
    gram = leaks.T @ leaks
    lengths = np.sqrt(np.diagonal(gram)[:k])
    beyond = np.diag(values[k:])
    sine, _ = set_apart(values[:k], lengths, beyond, np.zeros((len(beyond), k)), gram[k:, k:])
    if math.isfinite(sine):
        # Without a rough bound by the gap there is no fine one.
        plain = float(np.linalg.norm(lengths / (values[:k] - values[k])))
        sine = sine if plain < 0.4 else max(sine, plain)
    return lengths, sine


def goal(tol: float) -> float:
    """The sine at which `Proposals` has an iterate certified."""
    return 0.7 * tol


def due(looked: tuple[tuple[int, float], ...], tol: float, most: int) -> int:
    """The round in which to look at Ritz vectors next, `most` rounds after the last look or before.

    Sines fall by a steady factor, or faster: the rounds that are left are no more than the last two tell.

    >>> due((), 1e-6, 3), due(((4, 1e-1),), 1e-6, 3), due(((4, 1e-1), (7, 1e-4)), 1e-6, 3)
    (0, 7, 9)
    """
    if not looked:
        return 0
    (before, worse), (last, sine) = looked[0], looked[-1]
    wanted = goal(tol)
    if not (0.0 < wanted < sine < worse < math.inf):
        return last + most
    left = math.log(sine / wanted) / math.log(worse / sine) * (last - before)
    return last + min(most, max(1, int(left)))
