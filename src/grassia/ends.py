"""Certified bounds of both ends of a spectrum, by products alone.

Ritz values bound the ends from inside. From outside they are bounded by what a random start would have shown
of an eigenvector further out; that holds with the stated confidence. No d x d matrix is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from grassia.errors import InvalidInput
from grassia.exclusion import shortest
from grassia.messages import Array

#: A bound is not improved further once it is within this part of what it bounds.
ACCURACY = 0.05
#: Bytes of Lanczos vectors in a worker.
MEMORY = 2.5e8


@dataclass(frozen=True, slots=True)
class Interval:
    """A number known to lie between two others."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:.6g}"
        return f"{self.low:.4g} .. {self.high:.4g}"


class Ends:
    """Both ends of a spectrum, by Lanczos from several random vectors at once.

    Each vector has its own recurrence, so that with `q_1, q_2, ...` its Lanczos vectors and `m` a unit
    eigenvector, `m'q_{i+1} = p_i(lambda) m'q_1` for the orthonormal polynomials `p_i` of the recurrence. The
    squares of the left sum to one at most, hence `sum p_i(lambda)^2 <= (m'q_1)^-2`. Beyond the last Ritz
    value the sum grows with lambda, so where it reaches what a random `q_1` allows is an upper bound. It may
    be too low for an unlucky vector; the largest of them is so only if all of them are unlucky.

    Parameters
    ----------
    d : int
        Size of the operator.
    rng : numpy Generator
        For the vectors.
    width : int
        How many.
    outside : ndarray (d, q), optional
        An orthonormal basis: then it is about the operator restricted to the complement of its span.
    """

    def __init__(
        self, d: int, rng: np.random.Generator, width: int = 4, outside: Array | None = None
    ) -> None:
        self._outside = outside
        start = self._projected(rng.standard_normal((d, width)))
        self._lengths = np.linalg.norm(start, axis=0)
        self._basis = np.empty((width, 8, d))  # of each vector, its Lanczos vectors; grows
        self._basis[:, 0] = (start / self._lengths).T
        self._alpha: list[Array] = []
        self._beta: list[Array] = []
        self._running = np.ones(width, dtype=bool)
        self._steps = np.zeros(width, dtype=np.int64)
        self._size = 0.0

    def _projected(self, X: Array) -> Array:
        if self._outside is None:
            return X
        for _ in range(2):
            X = X - self._outside @ (self._outside.T @ X)
        return X

    @property
    def block(self) -> Array:
        """What to multiply next, (d, width)."""
        return np.ascontiguousarray(self._basis[:, len(self._alpha)].T)

    def take(self, product: Array) -> None:
        """The product with `block`."""
        done = len(self._alpha) + 1
        known, rest = self._basis[:, :done], self._projected(product).T.copy()
        self._size = max(self._size, float(np.max(np.linalg.norm(rest, axis=1))))
        self._alpha.append(np.sum(known[:, -1] * rest, axis=1))
        for _ in range(2):
            share = np.matmul(known, rest[:, :, None])
            # What is left may be small, and little of `outside` in it much: hence once more.
            rest = self._projected((rest - np.matmul(share.transpose(0, 2, 1), known)[:, 0]).T).T
        beta = np.linalg.norm(rest, axis=1)
        if not np.isfinite(beta).all():
            raise InvalidInput("products must be finite, and their squares too; scale the data.")
        least = self.rounding + np.finfo(np.float64).tiny
        self._beta.append(np.maximum(beta, least))
        # A recurrence may end in an invariant space: it counts up to there, whatever is multiplied further.
        self._steps += self._running
        self._running &= beta > least
        if done == self._basis.shape[1]:
            self._basis = np.concatenate([self._basis, np.empty_like(self._basis)], axis=1)
        goes_on = self._running[:, None]
        self._basis[:, done] = np.where(goes_on, rest / self._beta[-1][:, None], self._basis[:, done - 1])

    @property
    def rounding(self) -> float:
        """The allowance for rounding errors in a product."""
        d = self._basis.shape[2]
        return 4.0 * float(np.finfo(np.float64).eps) * math.sqrt(d) * self._size

    def bounds(self, confidence: float, noise: float = 0.0) -> tuple[Interval, Interval]:
        """The smallest and the largest eigenvalue, each with its bounds; both hold with the confidence."""
        noise += self.rounding
        width = len(self._lengths)
        # Of each end, all vectors are this short of it only with half of the probability that is left.
        unlucky = ((1.0 - confidence) / 2.0) ** (1.0 / width)
        allowed = (self._lengths / shortest(1, 1.0 - unlucky)) ** 2
        taken = [
            (np.array(self._alpha)[:steps, j], np.array(self._beta)[:steps, j])
            for j, steps in enumerate(self._steps)
        ]
        mirrored = [(-alpha, beta) for alpha, beta in taken]
        low, high = -_end(mirrored, allowed, self.rounding), _end(taken, allowed, self.rounding)
        ritz = [eigvalsh_tridiagonal(alpha, beta[:-1]) for alpha, beta in taken]
        least, most = min(float(one[0]) for one in ritz), max(float(one[-1]) for one in ritz)
        return Interval(low - noise, least + noise), Interval(most - noise, high + noise)


def _end(taken: Sequence[tuple[Array, Array]], allowed: Array, rounding: float) -> float:
    """An upper bound of the largest eigenvalue from several recurrences, but for rounding.

    One whose sum exceeds what is allowed at a Ritz value already has an unlucky start, since there is an
    eigenvalue no less. When all have, more has to be allowed.
    """
    tops = [float(eigvalsh_tridiagonal(alpha, beta[:-1])[-1]) for alpha, beta in taken]
    most = max(tops)
    for _ in range(20):
        reached = [
            _reaches(alpha, beta, most, float(room), top + rounding)
            for (alpha, beta), room, top in zip(taken, allowed, tops, strict=True)
        ]
        if max(reached) > most:
            return max(reached)
        allowed = 4.0 * allowed
    return math.inf


def _reaches(alpha: Array, beta: Array, top: float, allowed: float, own: float) -> float:
    """Where from `top` on, no less than the last Ritz value, the sum of squares reaches what is allowed.

    The last polynomial vanishes at the last Ritz value of its own recurrence, and once that has explored all
    there is nothing is left of it but rounding, divided by a beta that is rounding too. So up to `own`, which
    is a rounding above that value, it is not counted.
    """

    def beyond(x: float) -> bool:
        before, now, total = 0.0, 1.0, 1.0
        for i in range(len(alpha) if x > own else len(alpha) - 1):
            link = beta[i - 1] * before if i else 0.0
            before, now = now, ((x - alpha[i]) * now - link) / beta[i]
            total += now * now
            if total > allowed:
                return True
        return False

    if beyond(top):
        return top
    step = max(float(beta.max()), abs(top) * 1e-15)
    while not beyond(top + step) and math.isfinite(step):
        step *= 2.0
    low, high = 0.0, step
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if beyond(top + middle) else (middle, high)
    return top + high


def spread_of(
    apply: Callable[[Array], Array],
    d: int,
    rng: np.random.Generator,
    *,
    confidence: float = 0.999,
    noise: float = 0.0,
    max_steps: int = 40,
) -> Interval:
    """The spread `lambda_1 - lambda_d` of a symmetric operator, by Lanczos from four random vectors.

    Cost: up to `max_steps` products with four columns, fewer when fewer show the spread to 5 %.

    >>> A = np.diag(np.linspace(-1.0, 2.0, 200))
    >>> found = spread_of(lambda V: A @ V, 200, np.random.default_rng(0))
    >>> 3.0 in found and found.high < 3.2
    True
    """
    ends = Ends(d, rng)
    spread = Interval(0.0, math.inf)
    # Lanczos vectors are kept; for very many features there are fewer of them, and a wider interval.
    last = min(max_steps, d, max(6, int(MEMORY / (8.0 * d * 4))))
    for step in range(1, last + 1):
        ends.take(apply(ends.block))
        if step % 3 and step < last:
            continue
        spread = difference(*ends.bounds(confidence, noise))
        if spread.high - spread.low <= ACCURACY * spread.high:
            break
    return spread


def difference(low: Interval, high: Interval) -> Interval:
    """Of the two ends, the spread."""
    return Interval(max(0.0, high.low - low.high), high.high - low.low)
