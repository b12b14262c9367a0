"""The model that `nystrom` keeps: one Nystrom approximation for each component, and their sum.

For component i the server holds an orthonormal `Q_i` and `Y_i = A_i Q_i`. With `H_i = Q_i' Y_i` the model
`Ahat_i = Y_i H_i^+ Y_i'` is a minorant of a positive semidefinite `A_i` (Loewner order), exact on
span(Q_i). Their weighted sum is `B B'` with `B = [sqrt(w_i) Y_i H_i^{-1/2}]`, so its leading
eigenvectors come from the small Gram matrix `B'B`.

What is kept between arrivals: the stacked `Y` (each component has a slot of columns, empty ones are zero),
the Gram matrix `Y'Y`, of which an arrival changes one block row, and for each component the small factor
`F_i = sqrt(w_i) H_i^{-1/2}`. A rotation of a model (compression) turns these small matrices only.
Everything here is changed in place: the arrays are far too large to copy at each arrival.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import eigh

from grassia import geometry
from grassia.messages import Array

EPS = float(np.finfo(np.float64).eps)
DENSE = 160  # up to this size a full small eigenproblem is as cheap as a warm-started one


class Surrogate:
    """Models of n components in R^d, each of at most `slot` columns.

    Memory: `2 n slot d` doubles for `Q` and `Y`, and `2 (n slot)^2` for the Gram matrices.
    """

    def __init__(self, n: int, d: int, slot: int, weights: Array) -> None:
        self.n, self.d, self.slot, self.weights = n, d, slot, weights
        self.size = np.zeros(n, dtype=np.int64)
        self.shift = np.zeros(n)
        self.Q = np.zeros((d, n * slot), order="F")
        self.Y = np.zeros((d, n * slot), order="F")
        self.F = np.zeros((n, slot, slot))
        self._H = np.zeros((n, slot, slot))
        self._YY = np.zeros((n * slot, n * slot))
        self._K = np.zeros((n * slot, n * slot))

    @staticmethod
    def nbytes(n: int, d: int, slot: int) -> int:
        """Bytes a surrogate takes."""
        return 8 * (2 * n * slot * d + 2 * (n * slot) ** 2 + n * slot**2)

    def columns(self, i: int) -> slice:
        """The columns in use of component i."""
        return slice(i * self.slot, i * self.slot + int(self.size[i]))

    def basis(self, i: int) -> Array:
        """`Q_i`, a view."""
        return self.Q[:, self.columns(i)]

    def products(self, i: int) -> Array:
        """`Y_i`, a view."""
        return self.Y[:, self.columns(i)]

    def error(self, i: int, V: Array, P: Array) -> float:
        """`||(A_i - Ahat_i) V||`: how wrong the model was about what it has now been told."""
        wrong = P + self.shift[i] * V - self.products(i) @ self.fit(i, V)
        return float(np.linalg.norm(wrong, 2))

    def _factor(self, i: int) -> Array:
        q = int(self.size[i])
        return self.F[i, :q, :q]

    def add(self, i: int, V: Array, P: Array) -> None:
        """Take `P = A_i V` for an orthonormal `V` orthogonal to `Q_i`."""
        start = i * self.slot + int(self.size[i])
        fresh = slice(start, start + V.shape[1])
        self.Q[:, fresh] = V
        self.Y[:, fresh] = P + self.shift[i] * V
        self._extend(i, V, self.Y[:, fresh])
        self.size[i] += V.shape[1]
        self._touch(fresh)
        self._refactor(i)

    def _extend(self, i: int, V: Array, P: Array) -> None:
        """`H_i = Q_i' Y_i` with one block more."""
        q, w = int(self.size[i]), V.shape[1]
        cross = self.basis(i).T @ P
        self._H[i, :q, q : q + w] = cross
        self._H[i, q : q + w, :q] = cross.T
        corner = V.T @ P
        self._H[i, q : q + w, q : q + w] = (corner + corner.T) / 2.0

    def _touch(self, columns: slice) -> None:
        """Renew the Gram matrix where these columns meet the others."""
        rows = self.Y.T @ self.Y[:, columns]
        self._YY[:, columns] = rows
        self._YY[columns, :] = rows.T

    def _refactor(self, i: int) -> None:
        q = int(self.size[i])
        s, U = np.linalg.eigh(self._H[i, :q, :q])
        if s[0] < -1e-12 * max(abs(s[-1]), EPS):
            self._raise_shift(i, -2.0 * float(s[0]))
            return
        keep = s > 16.0 * q * EPS * max(float(s[-1]), 0.0)
        F = np.zeros((self.slot, self.slot))
        F[:q, : int(keep.sum())] = math.sqrt(self.weights[i]) * U[:, keep] / np.sqrt(s[keep])
        self.F[i] = F
        self._renew(i)

    def _raise_shift(self, i: int, more: float) -> None:
        """The component is less positive than was thought: lift it."""
        self.shift[i] += more
        mine = self.columns(i)
        self.Y[:, mine] += more * self.Q[:, mine]
        q = int(self.size[i])
        self._H[i, :q, :q] += more * np.eye(q)
        self._touch(mine)
        self._refactor(i)

    def _renew(self, i: int) -> None:
        """One block row of `K = B'B` after the factor of component i has changed."""
        n, slot = self.n, self.slot
        mine = slice(i * slot, (i + 1) * slot)
        half = (self._YY[:, mine] @ self.F[i]).reshape(n, slot, slot)
        block = np.matmul(self.F.transpose(0, 2, 1), half).reshape(n * slot, slot)
        self._K[:, mine] = block
        self._K[mine, :] = block.T

    def fit(self, i: int, X: Array) -> Array:
        """`H_i^+ Y_i' X`: the coefficients in `Q_i` by which the model sees `X`.

        `X' Ahat_i X` depends on them alone, so a compression that keeps them leaves it as it was.
        """
        F = self._factor(i)
        return np.asarray(F @ (F.T @ (self.products(i).T @ X)) / self.weights[i])

    def compress(self, i: int, coefficients: Array, size: int) -> None:
        """Keep `size` columns of `Q_i`, by the given directions in their order. A rotation."""
        mine = self.columns(i)
        R = ordered_basis(coefficients)[:, :size]
        q, r = int(self.size[i]), R.shape[1]
        base = i * self.slot
        kept, gone = slice(base, base + r), slice(base + r, base + q)
        self.Q[:, kept] = self.Q[:, mine] @ R
        self.Y[:, kept] = self.Y[:, mine] @ R
        self.Q[:, gone] = 0.0
        self.Y[:, gone] = 0.0
        turned = self._YY[:, mine] @ R
        turned[mine] = 0.0
        turned[kept] = R.T @ self._YY[mine, mine] @ R
        self._YY[:, base : base + q] = 0.0
        self._YY[base : base + q, :] = 0.0
        self._YY[:, kept] = turned
        self._YY[kept, :] = turned.T
        self.size[i] = r
        turned = R.T @ self._H[i, :q, :q] @ R
        self._H[i] = 0.0
        self._H[i, :r, :r] = (turned + turned.T) / 2.0
        self._refactor(i)

    def leading(self, m: int, guess: Array | None, tol: float) -> tuple[Array, Array]:
        """The m leading eigenpairs of the sum of the models: (values descending, vectors d x m)."""
        C = self._coefficients(m, guess, tol)
        E = self.Y @ self._lift(C)
        E = np.linalg.qr(E)[0]
        # One Rayleigh-Ritz step in R^d: the Gram matrix has squared the small singular values.
        T = self._lower(self.Y.T @ E)
        values, U = np.linalg.eigh(T.T @ T)
        return values[::-1], np.ascontiguousarray(E @ U[:, ::-1])

    def _lift(self, C: Array) -> Array:
        """Coefficients in the columns of `B` -> in the columns of `Y`."""
        blocks = C.reshape(self.n, self.slot, -1)
        return np.asarray(np.matmul(self.F, blocks)).reshape(self.n * self.slot, -1)

    def _lower(self, C: Array) -> Array:
        """`Y'x -> B'x`."""
        blocks = C.reshape(self.n, self.slot, -1)
        return np.asarray(np.matmul(self.F.transpose(0, 2, 1), blocks)).reshape(self.n * self.slot, -1)

    @property
    def rank(self) -> int:
        """Columns in use."""
        return int(self.size.sum())

    def _coefficients(self, m: int, guess: Array | None, tol: float) -> Array:
        used = np.concatenate([np.arange(self.n * self.slot)[self.columns(i)] for i in range(self.n)])
        C = np.zeros((self.n * self.slot, m))
        if len(used) <= DENSE or guess is None:
            K = self._K[np.ix_(used, used)]
            top = [len(used) - m, len(used) - 1]
            try:
                C[used] = eigh(K, subset_by_index=top)[1][:, ::-1]
            except np.linalg.LinAlgError:  # the driver for a few pairs may fail where entries underflow
                C[used] = np.linalg.eigh(K)[1][:, ::-1][:, :m]
            return C
        return self._warm(self._lower(self.Y.T @ guess), m, tol)

    def _warm(self, start: Array, m: int, tol: float) -> Array:
        """Block Krylov on the small matrix from the last answer; a few steps do."""
        K = self._K
        block = geometry.orthonormalize(start, tol=1e-13)
        for _ in range(4):
            basis, product = block, K @ block
            images = [product]
            for _ in range(3):
                block = geometry.orthonormalize(product, against=basis, tol=1e-13)
                if block.shape[1] == 0:
                    break
                product = K @ block
                basis = np.hstack([basis, block])
                images.append(product)
            image = np.hstack(images)
            T = basis.T @ image
            values, U = np.linalg.eigh((T + T.T) / 2.0)
            U = U[:, ::-1][:, :m]
            C = basis @ U
            residual = image @ U - C * values[::-1][:m]
            if np.linalg.norm(residual) <= tol * values[-1]:
                break
            block = C
        return np.asarray(C)


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
