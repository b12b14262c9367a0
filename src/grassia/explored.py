"""What a certificate has explored outside `W`, and upper bounds of the eigenvalues that lie there.

Let `M` be the restriction of `A` to the complement of span(W), `mu` its largest eigenvalue and `m` a unit
eigenvector of it. Explored is an orthonormal `Q` beside `W` whose products `M Q` are known. What the
products say of `mu`:

- *below*: the largest Ritz value of `M` on `Q` (rigorous);
- *trace* (rigorous, for positive semidefinite A of known trace): what the trace leaves outside `W` and `Q`
  bounds the unexplored part of `M`;
- *exhausted* (rigorous): `Q` is the whole complement;
- *near* (holds with the stated confidence): the eigenvalue after the cut of a matrix close to A;
- *probe* (holds with the stated confidence): a block of random numbers, drawn without looking at `W`, would
  show more of `m` if `mu` were larger; see `exclusion`.

Nothing is assumed of `Q`: directions a solver has followed beyond k serve as well as Krylov blocks of the
probe, and let few sweeps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from grassia import geometry
from grassia.apart import Apart, set_apart
from grassia.blocks import new_block, spectral_norm
from grassia.exclusion import Exclusion, shortest
from grassia.messages import Array

# A direction is taken into the explored space if this much of it is new: its product is known by
# a difference, and the error grows by the inverse.
_NEW = 1e-2
# Products that were known before are of use if they are off by no more than this part of the eigenvalues.
_GOOD = 1e-3
# Ritz vectors that are led on beside the probe's blocks, and the part of A's size at which they are settled.
_LED = 4
_SETTLED = 1e-10
# Numbers of the tail that are worked out at a time.
_TAIL_NUMBERS = 1 << 19


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of `mu`: `lower` and `rigorous` are theorems, `upper` has the confidence.

    `beyond` bounds, with the confidence, what lies outside the directions set apart, too.
    """

    lower: float
    rigorous: float
    upper: float
    beyond: float = math.inf


class Explored:
    """`W` with its products, and the space explored beside it.

    Parameters
    ----------
    W, AW : ndarray (d, k)
        Ritz vectors, descending, and their products.
    values : ndarray (k,)
        Ritz values.
    trace : float, optional
        The trace of A, where A is known to be positive semidefinite.
    confidence : float
        Of all that is not rigorous together.
    noise : callable, optional
        What products may be off by beyond rounding at the size of A.
    probe, A_probe : ndarray (d, p)
        Independent standard normal numbers drawn without looking at anything else here, and their product.
    claimed : bool
        Whether `AW` is somebody's claim, which the probe has to tell the truth of.
    """

    def __init__(
        self,
        W: Array,
        AW: Array,
        values: Array,
        trace: float | None,
        confidence: float,
        noise: Callable[[], float] | None,
        probe: Array,
        A_probe: Array,
        claimed: bool = False,
    ) -> None:
        self.W, self.AW, self.values, self.trace = W, AW, values, trace
        self.confidence, self.claimed = confidence, claimed
        # Six statements may be made of one probe; that none of them fails has this confidence.
        self._each = 1.0 - (1.0 - confidence) / 6.0
        self._noise = noise
        self._raw, self._A_raw = probe, A_probe
        self.d, self.k = int(W.shape[0]), int(W.shape[1])
        self.R = AW - W @ (W.T @ AW)
        self.R -= W @ (W.T @ self.R)
        nothing = np.zeros((self.d, 0))
        self.Q, self.AQ, self.probe = nothing, nothing, nothing
        # M Q is A Q less W (W' A Q): to keep it beside A Q would take half as much memory again.
        self._inside = np.zeros((self.k, 0))
        self._longest = 0.0
        self._T = np.zeros((0, 0))
        self._slack = 0.0  # how far products that were known before can be off
        self._last = 0  # columns of the block explored last, from which the next one follows
        self._mixed = False  # whether other directions than the probe's are explored
        self.apart: Apart | None = None
        self._first = 0  # columns of Q that are set apart
        self._picked = False  # whether directions were chosen by what the probe says
        self._near = math.inf  # the eigenvalue after the cut is no larger, with the confidence
        self.doubt, self.doubts = self._doubts(W, AW) if claimed else (0.0, np.zeros(self.k))

    # -- exploring ------------------------------------------------------------------------------

    def add(self, X: Array, AX: Array, off: float | None = None) -> None:
        """Take directions whose products are known, as far as they are new.

        `off` says how far the products can be off, where somebody only claims to know them. An error grows as
        its direction is made orthonormal, so those that are nearly known already are of no use then.
        """
        self._mixed |= X is not self._raw and X.shape[1] > 0
        # How much of the products of W and Q, and of those given, goes into the new ones, with their errors.
        share, own = np.zeros((self.k + self.Q.shape[1], X.shape[1])), np.eye(X.shape[1])
        length = float(np.max(np.sum(X**2, axis=0), initial=0.0))
        for _ in range(2):
            if X.shape[1] == 0:
                return
            overlap = np.vstack([self.W.T @ X, self.Q.T @ X])
            gram = X.T @ X - overlap.T @ overlap
            settled = np.linalg.norm(overlap) <= 1e-12 and np.linalg.norm(gram - np.eye(len(gram))) <= 1e-11
            if settled:
                break
            k = self.k
            X = X - self.W @ overlap[:k] - self.Q @ overlap[k:]
            AX = AX - self.AW @ overlap[:k] - self.AQ @ overlap[k:]
            size, turn = np.linalg.eigh(X.T @ X)
            least = max(float(size[-1]) if off is None else length, float(np.finfo(np.float64).tiny))
            kept = size > _NEW**2 * least
            orthonormal = turn[:, kept] / np.sqrt(size[kept])
            turn = orthonormal @ turn.T if kept.all() else orthonormal  # as near to what it was as can be
            X, AX = X @ turn, AX @ turn
            share, own, length = (share + overlap) @ turn, own @ turn, 1.0
        new = 0.0
        if self.uncertain and share.size:
            new = self.doubt * float(np.linalg.norm(share[: self.k], 2))
            new += self._slack * float(np.linalg.norm(share[self.k :]))
        if off is not None and own.size:
            new += off * float(np.linalg.norm(own, 2))
        self._slack = math.hypot(self._slack, new)
        self.extend(X[:, : self.room], AX[:, : self.room])

    @property
    def uncertain(self) -> bool:
        """Whether products were taken from somebody who claimed to know them."""
        return self.claimed or self._slack > 0.0

    def add_known(self, X: Array, AX: Array) -> None:
        """Take directions with products that somebody claims to know; the probe must not depend on them.

        For a column `d` of `AX - A X` the probe gives `d'Omega`, and `norm(d) <= norm(d'Omega) / c` by the
        same argument as for the eigenvector. Products off by so much that they would tell nothing are left
        out.
        """
        if self._raw.shape[1] == 0 or X.shape[1] == 0:
            return
        off = self._doubts(X, AX)[1]
        good = off <= _GOOD * abs(float(self.values[-1]))
        self._picked |= not good.all()
        if good.any():
            self.add(X[:, good], AX[:, good], float(np.linalg.norm(off[good])))

    def _doubts(self, X: Array, AX: Array) -> tuple[float, Array]:
        """How far a claimed product can be off: in norm, and each of its columns."""
        probes, columns = self._raw.shape[1], X.shape[1]
        if probes == 0:
            return math.inf, np.full(columns, math.inf)
        off = self._raw.T @ AX - self._A_raw.T @ X
        for_any = 1.0 - (1.0 - self._each) / columns
        lengths = np.linalg.norm(off, axis=0) / shortest(probes, for_any)
        return float(np.linalg.norm(off, 2)) / shortest(probes, self._each), np.asarray(lengths)

    def compare(self, near: Array, next_value: float) -> None:
        """Learn from a matrix close to A, whose eigenvalue after the cut is known.

        With `E = A - near`, `norm(E) <= norm(E Omega) / c` as above, and no eigenvalue of A is further from
        the one of `near` (Weyl).
        """
        if self._raw.shape[1] == 0:
            return
        off = spectral_norm(self._A_raw - near @ self._raw)
        self._near = next_value + off / shortest(self._raw.shape[1], self._each)

    def set_apart(self) -> None:
        """Set some of the directions explored so far apart, before any of the probe is among them."""
        if self.Q.shape[1] == 0 or self.room == 0 or self._picked:
            return
        lengths, inside, tail = np.linalg.norm(self.R, axis=0), self.Q.T @ self.R, self._tail_gram()
        angle, m = set_apart(self.values, lengths, self._T, inside, tail)
        if not math.isfinite(angle):
            return
        beside = self._T[m:, :m]
        leak = tail[:m, :m] + beside.T @ beside
        self.apart, self._first = Apart.of(self.values, lengths, self._T[:m, :m], inside[:m], leak), m

    def add_probe(self) -> None:
        """Take the probe itself."""
        probe = self._raw
        if probe.shape[1] == 0 or self.room == 0:
            return
        self.probe = probe - self.W @ (self.W.T @ probe)
        self.probe -= self.W @ (self.W.T @ self.probe)
        self.add(probe, self._A_raw)

    def extend(self, block: Array, A_block: Array) -> None:
        """Take a block that is orthonormal to `W` and `Q`, and its product."""
        inside = self.W.T @ A_block
        M_block = A_block - self.W @ inside
        q, b = self.Q.shape[1], block.shape[1]
        T = np.empty((q + b, q + b))
        cross = self.Q.T @ M_block
        corner = block.T @ M_block
        T[:q, :q], T[:q, q:], T[q:, :q], T[q:, q:] = self._T, cross, cross.T, (corner + corner.T) / 2.0
        self._T = T
        self.Q = np.hstack([self.Q, block])
        self.AQ = np.hstack([self.AQ, A_block])
        self._inside = np.hstack([self._inside, inside])
        self._longest = max(self._longest, float(np.max(np.linalg.norm(M_block, axis=0), initial=0.0)))
        self._last = b

    @property
    def room(self) -> int:
        """Dimensions that are not explored."""
        return self.d - self.k - int(self.Q.shape[1])

    def next_block(self) -> Array | None:
        """The next Krylov block, or None when there is nothing left to explore."""
        last = slice(self.Q.shape[1] - self._last, None)
        tail = self._outside(self.AQ[:, last] - self.W @ self._inside[:, last])
        if self._mixed and self._last < 3 * self._raw.shape[1]:  # they are followed in turn, so blocks grow
            tail = np.hstack([tail, self._led(float(np.linalg.norm(tail)))])
        if self.room <= 0 or float(np.linalg.norm(tail)) <= self.rounding:
            return None
        against = np.hstack([self.W, self.Q])
        block = new_block(tail, against, tol=None)[:, : self.room]
        return np.ascontiguousarray(block) if block.shape[1] else None

    def _led(self, size: float) -> Array:
        """Residuals of the leading Ritz vectors, as far as they are not rounding, each as long as `size`.

        Where directions were taken that belong to no Krylov space of the probe, neither do the Ritz vectors
        that lean on them: blocks of the probe alone would make those better by chance only.
        """
        turn = np.linalg.eigh(self._T)[1][:, -_LED:]
        residuals = self._outside(self.AQ @ turn - self.W @ (self._inside @ turn))
        lengths = np.linalg.norm(residuals, axis=0)
        counts = lengths > _SETTLED * self.scale
        return np.asarray(residuals[:, counts] * (size / lengths[counts]))

    def _outside(self, X: Array) -> Array:
        for _ in range(2):
            X = X - self.Q @ (self.Q.T @ X)
            X = X - self.W @ (self.W.T @ X)
        return X

    def best(self) -> tuple[Array, Array]:
        """The best k-space inside everything explored, and all Ritz values there, descending."""
        basis, products = np.hstack([self.W, self.Q]), np.hstack([self.AW, self.AQ])
        values, turn = geometry.ritz(basis, products)
        return geometry.polar(basis @ turn[:, : self.k]), values

    # -- bounding -------------------------------------------------------------------------------

    @property
    def scale(self) -> float:
        """The largest product seen of a unit vector."""
        return max(float(np.max(np.abs(self.values))), self._longest)

    @property
    def rounding(self) -> float:
        """The allowance for rounding errors in a product."""
        own = 4.0 * float(np.finfo(np.float64).eps) * math.sqrt(self.d) * self.scale
        return own if self._noise is None else own + self._noise()

    @property
    def looseness(self) -> float:
        """The same for the explored space."""
        return self.rounding + self._slack + self.doubt

    def bounds(self, wanted: float = -math.inf, tol: float = 0.0) -> Bounds:
        """Bounds of `mu`, and of what lies beyond the directions that were set apart.

        An upper bound of `mu` below `wanted` is not improved further, once it is half way to the lower one;
        nor is one of the rest that makes the angle less than `tol`.
        """
        if self.k == self.d:
            return Bounds(-math.inf, -math.inf, -math.inf)
        if self.Q.shape[1] == 0:
            left = self._left()
            return Bounds(-math.inf, left, left)
        high = float(np.linalg.eigvalsh(self._T)[-1])
        # What rests on claims that only the probe has checked is no theorem.
        lower = high - self._slack - self.doubt
        if self.room == 0:
            exact = high + self.looseness
            near = min(exact, self._near + self.rounding)
            return Bounds(lower, math.inf if self.uncertain else exact, near)
        gram = self._tail_gram()
        rigorous = self._trace_bound(high, math.sqrt(float(np.trace(gram))))
        upper, beyond = min(rigorous, self._near + self.rounding), math.inf
        if not upper <= wanted:
            if self.apart is not None:
                goal = self.apart.farthest(0.9 * tol - self._spoilt(high))
                beyond = self._probe_bound(gram, goal, self._first)
                upper = min(upper, self.apart.highest(beyond) + 2.0 * self.looseness)
            # Where not even the rest can be bounded, all of it cannot be.
            if self.apart is None or (beyond < float(self.values[-1]) and beyond > goal and upper > wanted):
                upper = min(upper, self._probe_bound(gram, wanted, 0, rigorous))
        return Bounds(lower, math.inf if self.uncertain else rigorous, upper, beyond)

    def at_best(self) -> tuple[float, float]:
        """The least that the bounds of `mu` and of what lies beyond can come to, if nothing new is found."""
        if self.Q.shape[1] == 0:
            return -math.inf, -math.inf
        high = float(np.linalg.eigvalsh(self._T)[-1]) + 2.0 * self.looseness
        upper, beyond = min(high, self._near + self.rounding), math.inf
        if self.apart is not None:
            rest = self._T[self._first :, self._first :]
            beyond = float(np.linalg.eigvalsh(rest)[-1]) + 2.0 * self.looseness if len(rest) else -math.inf
        return upper, beyond

    def _spoilt(self, high: float) -> float:
        """The part of the angle that rounding and doubts cost at least."""
        heights = self.values - high
        if not float(heights[-1]) > 0.0:
            return math.inf
        return float(np.linalg.norm((self.rounding + self.doubts) / heights))

    def _left(self) -> float:
        """What the trace leaves for the unexplored part of `M`."""
        if self.trace is None:
            return math.inf
        left = max(0.0, self.trace - float(np.sum(self.values)) - float(np.trace(self._T)))
        return left + self.looseness * math.sqrt(self.d)

    def _tail(self) -> Iterator[Array]:
        """What is left of `M Q` outside of W and Q, some rows at a time: all of it is as large as Q is."""
        step = max(1, _TAIL_NUMBERS // max(1, self.Q.shape[1]))
        for start in range(0, self.d, step):
            rows = slice(start, start + step)
            yield self.AQ[rows] - self.W[rows] @ self._inside - self.Q[rows] @ self._T

    def _tail_gram(self) -> Array:
        """Its Gram matrix."""
        gram = np.zeros_like(self._T)
        for rows in self._tail():
            gram += rows.T @ rows
        return gram

    def _trace_bound(self, high: float, length: float) -> float:
        left = self._left()
        if not math.isfinite(left):
            return left
        if left >= float(self.values[-1]):  # too much to say anything of the gap: norms will do
            mean, half = (high + left) / 2.0, (high - left) / 2.0
            return mean + math.hypot(half, length) + self.looseness
        # M <= [[T, B'], [B, left I]], B the tail.
        B: Array = np.zeros((0, self.Q.shape[1]))
        for rows in self._tail():
            B = np.asarray(np.linalg.qr(np.vstack([B, rows]), mode="r"))
        q, r = self._T.shape[0], B.shape[0]
        small = np.zeros((q + r, q + r))
        small[:q, :q], small[q:, :q], small[:q, q:] = self._T, B, B.T
        small[q:, q:] = left * np.eye(r)
        return float(np.linalg.eigvalsh(small)[-1]) + self.looseness

    def _probe_bound(self, tail_gram: Array, wanted: float, first: int, known: float = math.inf) -> float:
        """Upper bound of the eigenvalues of M outside the first so many columns of Q."""
        if self.probe.shape[1] == 0 or first == len(self._T):
            return math.inf
        G = self.Q.T @ self.probe
        lost = self.probe - self.Q @ G  # what was dropped when the probe was taken in
        limit = shortest(self.probe.shape[1], self._each) - spectral_norm(lost)
        T = self._T[first:, first:]
        floor = float(np.linalg.eigvalsh(T)[-1]) + self.looseness
        room = max(float(self.values[-1]) - floor, 0.0)
        goal = max(floor + 0.02 * room, min(floor + 0.8 * (wanted - floor), floor + 0.5 * room))
        test = Exclusion(T, tail_gram[first:, first:], G[first:], limit, self.looseness)
        return test.upper_bound(floor, goal, known) + self.looseness
