"""The model that `nystrom` keeps: one Nystrom approximation for each component, and their sum.

For component i the server has asked for the products `Y_i = A_i Q_i` with an orthonormal `Q_i`. With
`H_i = Q_i' Y_i` the model `Ahat_i = Y_i H_i^+ Y_i'` is a minorant of a positive semidefinite `A_i` (Loewner
order), exact on span(Q_i). It is held as `w_i Ahat_i = Z_i Z_i'` and `w_i H_i = L_i L_i'`, with
`L_i = Q_i' Z_i`; then `w_i Y_i = Z_i L_i'`, so `Y_i` itself need not be kept.

Two identities make an arrival cheap and lose no digits while `H_i` is well conditioned. A longer `Q_i` adds
columns to `Z_i`: with `D = w_i (A_i - Ahat_i) V`, what the model does not know yet, they are
`D (V' D)^{-1/2}`. A shorter one, `Q_i R`, turns them: `Z_i U` with `L_i' R = U T`. A component asked about
directions in which it has next to nothing, such as a shard of few rows, would enlarge rounding with every
answer; it is shifted by about 1e-8 of its size, which leaves the eigenspace as it is.

The sum of the models is `Z Z'`, `Z` the stacked columns. Its leading eigenvectors come from `Z'Z` where that
is the smaller matrix, and from `Z Z'` itself where it is not; an arrival changes one block row of the first
and the second by a few columns. Everything here is changed in place: the arrays are far too large to copy
at each arrival.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy.linalg import eigh, solve_triangular
from scipy.linalg.blas import dgemm

from grassia import geometry
from grassia.messages import Array

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
DENSE = 160  # up to this size a full small eigenproblem is as cheap as a warm-started one
PRODUCTS = 16  # the most that a warm-started eigenproblem may take
STALLED = 1e-13  # a relative residual below this that does not fall is rounding
OTHERS = 0.01  # how much the residual of a direction counts that is followed but not wanted
CLEAR = 1e-8  # a component is lifted for the eigenvalues of `H_i` to be above this part of the largest
RELIABLE = 16.0 * EPS  # below this they are rounding
RESTART = 4  # after so many it goes on from the Ritz vectors alone


class Surrogate:
    """Models of n components in R^d, each of at most `slot` columns.

    Memory: `2 n slot d` doubles for `Q` and `Z`, and `min(n slot, d)^2` for their sum.
    """

    def __init__(self, n: int, d: int, slot: int, weights: Array) -> None:
        self.n, self.d, self.slot, self.weights = n, d, slot, weights
        self.size = np.zeros(n, dtype=np.int64)
        self.shift = np.zeros(n)
        self.Q = np.zeros((d, n * slot), order="F")
        self._L = [np.zeros((0, 0))] * n
        self._sum: Sum = SmallGram(n, d, slot) if n * slot < d else DenseSum(n, d, slot)

    @staticmethod
    def nbytes(n: int, d: int, slot: int) -> int:
        """Bytes a surrogate takes."""
        return 8 * (2 * n * slot * d + min(n * slot, d) ** 2 + n * slot**2)

    @property
    def rank(self) -> int:
        """Columns in use."""
        return int(self.size.sum())

    def basis(self, i: int) -> Array:
        """`Q_i`, a view."""
        return self.Q[:, i * self.slot : i * self.slot + int(self.size[i])]

    def products(self, i: int) -> Array:
        """`Y_i`, the shifted component times `Q_i`."""
        return np.asarray(self._sum.columns(i) @ self._L[i].T / self.weights[i])

    def fit(self, i: int, X: Array) -> Array:
        """`H_i^+ Y_i' X`: the coefficients in `Q_i` by which the model sees `X`.

        `X' Ahat_i X` depends on them alone, so a compression that keeps them leaves it as it was.
        """
        return solve_root(self._L[i].T, self._sum.columns(i).T @ X)

    def apply(self, X: Array) -> Array:
        """The sum of the models times `X`."""
        return self._sum.apply(X)

    def add(self, i: int, V: Array, P: Array, more: float = 1.0) -> Array:
        """Take `P = A_i V` for an orthonormal `V` orthogonal to `Q_i`; say what the model did not know.

        That is `(A_i - Ahat_i) V`, with the model as it was before. A component that lacks something to be
        positive is lifted by it, `more` times: of one that is nothing but rounding it is never quite enough.
        """
        Z, L, weight = self._sum.columns(i), self._L[i], float(self.weights[i])
        lifted = weight * (P + self.shift[i] * V)
        # `Z' V` is the same, but then errors of `Z` would grow with each answer.
        seen = solve_root(L, self.basis(i).T @ lifted)
        unknown = lifted - Z @ seen
        cross, corner = L @ seen, symmetric(V.T @ lifted)
        H = np.block([[L @ L.T, cross], [cross.T, corner]])
        values = np.linalg.eigvalsh(H)
        lift = lacking(values) or singular(values)
        if lift > 0.0:
            self._raise_shift(i, more * lift / weight)
            return self.add(i, V, P, 2.0 * more)
        self.size[i] += V.shape[1]
        self.basis(i)[:, -V.shape[1] :] = V
        if values[0] > CLEAR * values[-1]:
            self._extend(i, seen, corner, unknown)
        else:
            self._remake(i, H, np.hstack([Z @ L.T, lifted]))
        return np.asarray(unknown / weight)

    def _extend(self, i: int, seen: Array, corner: Array, unknown: Array) -> None:
        """Columns for what was not known yet: those that are there stay."""
        s, U = np.linalg.eigh(symmetric(corner - seen.T @ seen))
        roots = np.sqrt(s)
        L = self._L[i]
        self._L[i] = np.block([[L, np.zeros((len(L), len(s)))], [seen.T, U * roots]])
        self._sum.append(i, unknown @ (U / roots))

    def _remake(self, i: int, H: Array, Y: Array) -> None:
        """All columns anew, by the directions in which there is anything: a component that may be zero."""
        s, U = np.linalg.eigh(H)
        keep = s > RELIABLE * s[-1]
        roots = np.sqrt(s[keep])
        self._L[i] = U[:, keep] * roots
        self._sum.replace(i, Y @ (U[:, keep] / roots))

    def _raise_shift(self, i: int, more: float) -> None:
        """The component is less positive than was thought: lift it."""
        self.shift[i] += more
        L, lift = self._L[i], float(self.weights[i]) * more
        s, U = np.linalg.eigh(L @ L.T + lift * np.eye(len(L)))
        lifted = self._sum.columns(i) @ L.T + lift * self.basis(i)
        self._L[i] = U * np.sqrt(s)
        self._sum.replace(i, lifted @ (U / np.sqrt(s)))

    def renew(self, weights: Array, moved: Callable[[int, Array], Array]) -> None:
        """Other weights, and `moved(i, Q_i)` more in the products of each component."""
        current, self.weights = self.weights, weights.copy()
        for i in range(self.n):
            self.weights[i] = current[i]
            Q = self.basis(i).copy()
            Y = self.products(i) - self.shift[i] * Q
            self.weights[i], self.size[i], self._L[i] = weights[i], 0, np.zeros((0, 0))
            self._sum.replace(i, np.zeros((self.d, 0)))
            if Q.shape[1]:
                self.add(i, Q, Y + moved(i, Q))

    def compress(self, i: int, coefficients: Array, size: int) -> None:
        """Keep `size` columns of `Q_i`, by the given directions in their order. A rotation."""
        R = ordered_basis(coefficients)[:, :size]
        U, T, rank = rotation(self._L[i].T @ R)
        turned = self.basis(i) @ R
        self.size[i] = R.shape[1]
        self.basis(i)[:] = turned
        self._L[i] = T.T
        self._sum.turn(i, U, rank)

    def leading(
        self, m: int, guess: Array | None, tol: float, wanted: int | None = None
    ) -> tuple[Array, Array]:
        """The m leading eigenpairs of the sum of the models: (values descending, vectors d x m).

        `tol` bounds the residual of the first `wanted` of them, all without it. The others need only be good
        enough to be asked about.
        """
        return self._sum.leading(m, guess, tol, m if wanted is None else wanted)


class Sum(Protocol):
    """The columns `Z_i` of all models, and what is kept of their sum `Z Z'`."""

    def columns(self, i: int) -> Array:
        """`Z_i`, to be read only."""

    def append(self, i: int, new: Array) -> None:
        """`Z_i` becomes `[Z_i, new]`."""

    def replace(self, i: int, new: Array) -> None:
        """`Z_i` becomes `new`."""

    def turn(self, i: int, U: Array, rank: int) -> None:
        """`Z_i` becomes `Z_i U[:, :rank]`, U orthogonal."""

    def apply(self, X: Array) -> Array:
        """`Z Z' X`."""

    def leading(self, m: int, guess: Array | None, tol: float, wanted: int) -> tuple[Array, Array]:
        """The leading eigenpairs of the sum."""


class SmallGram:
    """The sum by the Gram matrix `K = Z'Z`: for fewer columns than features.

    The columns in use come first in `Z`, whosever they are: what is multiplied holds no empty slots.
    """

    def __init__(self, n: int, d: int, slot: int) -> None:
        self._Z = np.zeros((d, n * slot), order="F")
        self._K = np.zeros((n * slot, n * slot))
        self._count = 0
        self._owner = np.zeros(n * slot, dtype=np.int64)
        self._places = [np.zeros(0, dtype=np.int64)] * n
        self._stale: list[Array] = []  # places where K must be renewed before it is used again
        self._last: Array | None = None  # the last answer ...
        self._seen = np.zeros((n * slot, 0))  # ... and `Z'` times it

    def columns(self, i: int) -> Array:
        return self._Z[:, self._places[i]]

    def append(self, i: int, new: Array) -> None:
        places = np.arange(self._count, self._count + new.shape[1])
        self._count += new.shape[1]
        self._Z[:, places] = new
        self._owner[places] = i
        self._places[i] = np.concatenate([self._places[i], places])
        self._stale.append(places)
        if self._last is not None:
            self._seen[places] = new.T @ self._last

    def replace(self, i: int, new: Array) -> None:
        self._renew()
        self._free(i, 0)
        self.append(i, new)

    def turn(self, i: int, U: Array, rank: int) -> None:
        self._renew()
        mine, used, turn = self._places[i], slice(self._count), U[:, :rank]
        kept = mine[:rank]
        self._Z[:, kept] = self._Z[:, mine] @ turn
        rows = turn.T @ self._K[mine, used]
        rows[:, kept] = rows[:, mine] @ turn
        self._K[kept, used] = rows
        self._K[used, kept] = rows.T
        self._seen[kept] = turn.T @ self._seen[mine]
        self._free(i, rank)

    def apply(self, X: Array) -> Array:
        Z = self._Z[:, : self._count]
        return multiply(Z, Z.T @ X)

    def _free(self, i: int, rank: int) -> None:
        """Drop all but the first `rank` columns of component i; the last ones in use take their places."""
        gone, self._places[i] = self._places[i][rank:], self._places[i][:rank]
        for place in np.sort(gone)[::-1]:
            self._count -= 1
            last = self._count
            if place != last:
                self._move(last, int(place))

    def _move(self, source: int, target: int) -> None:
        used = slice(self._count + 1)
        self._Z[:, target] = self._Z[:, source]
        self._K[target, used] = self._K[source, used]
        self._K[used, target] = self._K[used, source]
        self._seen[target] = self._seen[source]
        owner = self._owner[target] = self._owner[source]
        places = self._places[owner].copy()
        places[places == source] = target
        self._places[owner] = places

    def _renew(self) -> None:
        """Products of the new columns with all: one pass over `Z`, however many arrived."""
        if self._stale:
            used, new = slice(self._count), np.concatenate(self._stale)
            rows = self._Z[:, new].T @ self._Z[:, used]
            self._K[new, used] = rows
            self._K[used, new] = rows.T
            self._stale = []

    def _clear(self, places: slice) -> None:
        self._Z[:, places] = 0.0
        self._K[places] = 0.0
        self._K[:, places] = 0.0
        self._seen[places] = 0.0

    def leading(self, m: int, guess: Array | None, tol: float, wanted: int) -> tuple[Array, Array]:
        self._renew()
        count = max(m, self._count)
        self._clear(slice(self._count, count))  # fewer columns than asked for: empty ones make up the number
        Z = self._Z[:, :count]
        C, KC = self._coefficients(m, guess, tol, wanted)
        E, R = np.linalg.qr(multiply(Z, C))
        scales = np.abs(np.diag(R))
        if scales.min() > 1e-3 * scales.max():
            seen = solve_triangular(R, KC.T, trans="T", check_finite=False).T
        else:  # `Z'Z` has squared the small singular values: `E` is not quite what `C` says
            seen = Z.T @ E
        values, U = np.linalg.eigh(seen.T @ seen)
        U = np.ascontiguousarray(U[:, ::-1])
        self._last = np.ascontiguousarray(E @ U)
        self._seen = np.zeros((len(self._K), m))
        self._seen[: len(seen)] = seen @ U
        return values[::-1], self._last

    def _coefficients(self, m: int, guess: Array | None, tol: float, wanted: int) -> tuple[Array, Array]:
        """The leading eigenvectors of K, and K times them."""
        count = max(m, self._count)
        K = self._K[:count, :count]
        if guess is None or count <= DENSE:
            C = dense_eigenvectors(K, m)
            return C, multiply(K, C)
        start = self._seen[:count] if guess is self._last else self._Z[:, :count].T @ guess
        return warm_eigenvectors(K, start, m, tol, wanted)


class DenseSum:
    """The sum `S = Z Z'` itself: for more columns than features, where its size no longer grows with n."""

    def __init__(self, n: int, d: int, slot: int) -> None:
        self._Z = np.zeros((n, slot, d))
        self._rank = np.zeros(n, dtype=np.int64)
        self._S = np.zeros((d, d), order="F")
        self._more: list[Array] = []  # columns whose squares are to be added ...
        self._less: list[Array] = []  # ... and taken away, before S is used again

    def columns(self, i: int) -> Array:
        return self._Z[i, : self._rank[i]].T

    def append(self, i: int, new: Array) -> None:
        rank = self._rank[i] + new.shape[1]
        self._Z[i, self._rank[i] : rank] = new.T
        self._rank[i] = rank
        self._more.append(new)

    def replace(self, i: int, new: Array) -> None:
        self._less.append(self.columns(i).copy())
        self._rank[i] = 0
        self.append(i, new)

    def turn(self, i: int, U: Array, rank: int) -> None:
        turned = self.columns(i) @ U
        self._rank[i] = rank
        self._Z[i, :rank] = turned[:, :rank].T
        self._less.append(turned[:, rank:])

    def apply(self, X: Array) -> Array:
        self._renew()
        return multiply(self._S, X)

    def _renew(self) -> None:
        """One pass over S, however many arrived."""
        if self._more or self._less:
            left = np.hstack(self._more + self._less)
            right = np.hstack(self._more + [-block for block in self._less])
            # `S += left @ right.T` would need a second array of the size of S.
            self._S = dgemm(1.0, left, right, beta=1.0, c=self._S, trans_b=True, overwrite_c=True)
            self._more, self._less = [], []

    def leading(self, m: int, guess: Array | None, tol: float, wanted: int) -> tuple[Array, Array]:
        self._renew()
        if guess is None or len(self._S) <= DENSE:
            C = dense_eigenvectors(self._S, m)
            SC = multiply(self._S, C)
        else:
            C, SC = warm_eigenvectors(self._S, guess, m, tol, wanted)
        E, R = np.linalg.qr(C)
        image = solve_triangular(R, SC.T, trans="T", check_finite=False).T
        values, U = np.linalg.eigh(symmetric(E.T @ image))
        return values[::-1], np.ascontiguousarray(E @ U[:, ::-1])


def multiply(M: Array, X: Array) -> Array:
    """`M X` for a large M and a thin X, in the order of loops that BLAS is twice as fast in."""
    return np.asarray(X.T @ M.T).T


def dense_eigenvectors(M: Array, m: int) -> Array:
    """The m leading eigenvectors of a small symmetric matrix, the first first."""
    size = len(M)
    try:
        U = eigh(M, subset_by_index=[size - m, size - 1])[1]
    except np.linalg.LinAlgError:  # the driver for a few pairs may fail where entries underflow
        U = np.linalg.eigh(M)[1][:, size - m :]
    return np.asarray(U[:, ::-1])


def warm_eigenvectors(M: Array, start: Array, m: int, tol: float, wanted: int) -> tuple[Array, Array]:
    """(C, M C) for the m leading eigenvectors C of symmetric M: block Krylov from the last answer.

    It stops as soon as the residual is below `tol` of the largest eigenvalue, that of all but the first
    `wanted` counting little, or no longer falls; after one arrival among many, a step or two do.
    """
    basis = np.linalg.qr(start)[0]
    images = product = multiply(M, basis)
    gauge, before = np.where(np.arange(m) < wanted, 1.0, OTHERS), math.inf
    for step in range(1, PRODUCTS + 1):
        values, U = np.linalg.eigh(symmetric(basis.T @ images))
        values, U = values[::-1][:m], U[:, ::-1][:, :m]
        C, image = basis @ U, images @ U
        residual = float(np.linalg.norm((image - C * values) * gauge)) / max(float(values[0]), TINY)
        if residual <= tol or 0.9 * before < residual < STALLED:
            break
        before = residual
        if step % RESTART == 0:
            basis, images, product = C, image, image
        fresh = outside(product, basis)
        if fresh.shape[1] == 0:
            break
        product = multiply(M, fresh)
        basis, images = np.hstack([basis, fresh]), np.hstack([images, product])
    return C, image


def outside(X: Array, basis: Array) -> Array:
    """Orthonormal basis of what `X` has outside the span of `basis`, directions in rounding left out."""
    fresh = X / np.maximum(np.linalg.norm(X, axis=0), TINY)
    for _ in range(2):
        fresh, R = np.linalg.qr(fresh - basis @ (basis.T @ fresh))
        if np.abs(np.diag(R)).min() < 1e-7:  # one pass more cannot tell what is rounding
            return np.asarray(geometry.orthonormalize(X, against=basis, tol=1e-13))
    return np.asarray(fresh)


def symmetric(M: Array) -> Array:
    """The symmetric part."""
    return np.asarray(M + M.T) / 2.0


def lacking(values: Array) -> float:
    """By how much a matrix of these eigenvalues should be lifted to be positive; 0 where it is."""
    low, high = float(values[0]), float(values[-1])
    return -2.0 * low if low < -1e-12 * max(abs(high), EPS) else 0.0


def singular(values: Array) -> float:
    """By how much a positive matrix of these eigenvalues should be lifted to be well conditioned."""
    return 2.0 * CLEAR * float(values[-1]) if values[0] <= CLEAR * values[-1] else 0.0


def rotation(M: Array) -> tuple[Array, Array, int]:
    """(U, T, rank) with `M = U[:, :rank] T`, U orthogonal and square; the rank is that of M."""
    rows, columns = M.shape
    least = math.sqrt(16.0 * EPS)
    if rows >= columns:
        U, T = np.linalg.qr(M, mode="complete")
        pivots = np.abs(np.diag(T))
        if pivots.min(initial=math.inf) > least * pivots.max(initial=0.0):
            return U, T[:columns], columns
    U, s, Wt = np.linalg.svd(M)
    rank = int(np.sum(s > least * np.linalg.norm(s)))
    return U, s[:rank, None] * Wt[:rank], rank


def solve_root(M: Array, B: Array) -> Array:
    """`M^+ B` for an M of full row rank, wide where a direction brought no column to the model."""
    if M.shape[0] == M.shape[1]:
        return np.asarray(np.linalg.solve(M, B))
    return np.asarray(np.linalg.lstsq(M, B, rcond=math.sqrt(16.0 * EPS))[0])


def ordered_basis(M: Array, tol: float = 1e-12) -> Array:
    """Orthonormal columns whose first j span the first j columns of `M`, dependent ones left out."""
    Q, R = np.linalg.qr(M)
    lengths = np.linalg.norm(M[:, : R.shape[0]], axis=0)
    kept = np.abs(np.diag(R)) > tol * np.maximum(lengths, EPS)
    if kept.all() and R.shape[0] == M.shape[1]:
        return np.asarray(Q)
    # A dependent column was given a direction of its own that later ones then miss: leave it out.
    rest = np.hstack([M[:, : R.shape[0]][:, kept], M[:, R.shape[0] :]])
    return ordered_basis(rest, tol) if rest.shape[1] < M.shape[1] else np.asarray(Q)
