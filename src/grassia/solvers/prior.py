"""What `nystrom` expects of a component where it has not been asked: what the others say of it.

Shards of one data set are alike. With `M` the mean of the models, a component that was asked about span(Q_i)
is expected to be its own model and the Schur complement of `M` there,

    S_i = M - M Q_i (Q_i' M Q_i)^+ Q_i' M  >=  0,

times `trust[i]` in [0, 1.5], by which `S_i` foretold its last answer best. A straggler is then taken to be
like the others until it answers, and a component unlike the others loses its trust with its first answer.

Why nothing else changes. `S_i Q_i = 0`: nothing is expected where a component has answered, so what it says
always prevails, and an eigenspace inside every span(Q_i) stays one, whatever `M` and the trust are: the fixed
points are those of the models alone. If more is expected elsewhere, that is asked next, and then known. What
the models prove (the lower bound) makes no use of any of this.

`M = U diag(L)^2 U'` is a summary of few columns, made anew about once a sweep. With `J_i` an orthonormal
basis of the range of `L U' Q_i`, `S_i = U L (I - J_i J_i') L U'`: all is of the size of the summary. A QR
factorisation gives `J_i`, so `S_i Q_i` vanishes to rounding however close to dependent they are.
"""

from __future__ import annotations

import numpy as np

from grassia.messages import Array
from grassia.solvers.surrogate import Surrogate, dense_eigenvectors, symmetric

# The models say less than there is, so an answer may be larger than foretold. With twice as much, a direction
# of which all are expected to have more may overtake one that is known, for a while.
MOST = 1.5


class Prior:
    """The mean model of n components in R^d by at most `rank` columns, and what it foretells of each."""

    def __init__(self, n: int, d: int, rank: int) -> None:
        self.n, self.rank = n, rank
        self.trust = np.ones(n)
        self.U = np.zeros((d, 0))
        self.L = np.zeros(0)
        self._told = self._waiting = 0  # answers in all, and since the summary was made
        self._heard = 1.0  # the weight of those that have answered
        self._weights = np.zeros(n)
        self._J: list[Array] = []  # empty while there is no summary
        self._C = np.zeros((0, 0))  # sum of `w_i trust_i (I - J_i J_i')`

    @staticmethod
    def nbytes(n: int, d: int, slot: int, rank: int) -> int:
        """Bytes it takes."""
        return 8 * rank * (d + n * min(slot, rank) + rank)

    def learn(self, i: int, V: Array, unknown: Array, Q: Array) -> Array:
        """Component i was asked about `V`, its model lacked `unknown` of the answer; its basis now is `Q`.

        What of `unknown` was not foretold, with the trust that it leads to.
        """
        self._told += 1
        self._waiting += 1
        if not self._J:
            return unknown
        self._C -= self._part(i)
        seen = self.L[:, None] * (self.U.T @ V)
        foretold = self.L[:, None] * (seen - self._J[i] @ (self._J[i].T @ seen))
        size = float(np.sum(foretold**2))
        if size > 0.0:
            fitted = float(np.sum(foretold * (self.U.T @ unknown))) / size
            self.trust[i] = min(max(fitted, 0.0), MOST)
        self._J[i] = self._range(Q)
        self._C += self._part(i)
        return np.asarray(unknown - self.trust[i] * (self.U @ foretold))

    def together(self, X: Array) -> Array:
        """The sum of what all components are expected to add to their models, times `X`."""
        if not self._J:
            return np.zeros_like(X)
        return np.asarray(self.U @ (self.L[:, None] * (self._C @ (self.L[:, None] * (self.U.T @ X)))))

    def _range(self, Q: Array) -> Array:
        return np.asarray(np.linalg.qr(self.L[:, None] * (self.U.T @ Q))[0])

    def _part(self, i: int) -> Array:
        outside = np.eye(len(self.L)) - self._J[i] @ self._J[i].T
        return np.asarray(self._weights[i] * self.trust[i] * outside)

    def expected(self, i: int, X: Array) -> Array:
        """`trust[i] S_i X`, what component i is expected to add to its model."""
        if not self._J:
            return np.zeros_like(X)
        seen = self.L[:, None] * (self.U.T @ X)
        outside = seen - self._J[i] @ (self._J[i].T @ seen)
        return np.asarray(self.trust[i] * (self.U @ (self.L[:, None] * outside)))

    def rest(self) -> None:
        """Not in use for now: what comes in meanwhile is not followed, the next use begins anew."""
        self._J = []

    def prepare(self, surrogate: Surrogate) -> None:
        """Have a summary that is not too old: of the last sweep, younger at the start."""
        if not self._J or self._waiting > min(self.n - 1, self._told // 4):
            self._summarise(surrogate)

    def _summarise(self, surrogate: Surrogate) -> None:
        """One step from the last summary: the Nystrom approximation of the summed models from its span."""
        start = self.U
        missing = min(self.rank, surrogate.rank) - start.shape[1]
        if missing > 0:
            random = np.random.default_rng(0).standard_normal((surrogate.d, missing))
            start = np.linalg.qr(np.hstack([start, surrogate.apply(random)]))[0]
        image = surrogate.apply(start)
        s, V = np.linalg.eigh(symmetric(start.T @ image))
        if not s[-1] > 0.0:
            return
        keep = s > 1e-12 * s[-1]
        G = image @ (V[:, keep] / np.sqrt(s[keep]))
        theta, V = np.linalg.eigh(G.T @ G)
        keep = theta > 1e-10 * theta[-1]
        self.U = np.linalg.qr(G @ V[:, keep][:, ::-1])[0]
        self._heard = float(surrogate.weights[surrogate.size > 0].sum())
        self.L = np.sqrt(theta[keep][::-1] / self._heard)
        self._weights = surrogate.weights
        self._J = [self._range(surrogate.basis(i)) for i in range(self.n)]
        self._C = sum((self._part(i) for i in range(self.n)), np.zeros((len(self.L),) * 2))
        self._waiting = 0

    def correct(self, values: Array, E: Array) -> Array:
        """The leading eigenvectors of models and expectations, from the eigenpairs of the models alone.

        By Rayleigh-Ritz on span[E, U]. An eigenvector of which nothing is expected stays one.
        """
        m, r = E.shape[1], len(self.L)
        if not self._J or r <= m:
            return E
        X = self.U.T @ E
        N = np.linalg.qr(X, mode="complete")[0][:, m:]  # U N is orthogonal to E
        F = self.L[:, None] * np.hstack([X, N])
        T = symmetric(F.T @ self._C @ F)
        T[np.arange(m), np.arange(m)] += values
        T[m:, m:] += self._heard * (F[:, m:].T @ F[:, m:])
        a = dense_eigenvectors(T, m)
        return np.ascontiguousarray(np.linalg.qr(E @ a[:m] + self.U @ (N @ a[m:]))[0])
