"""Values that no eigenvalue can have, by what a random block shows.

Let `mu` be the largest eigenvalue of a symmetric `M`, and `m` a unit eigenvector of it. `Omega` is a block of
independent standard normal numbers, so `m'Omega` is a normal vector, shorter than c only with a small
probability that the chi-square distribution gives. For any `Q` whose products `M Q` are known and any `Y`
whatever, `m'Omega = m'(Omega + (M - mu) Q Y)`, because `m'(M - mu) = 0`. So an `x` for which some `Y` makes
`||Omega + (M - x) Q Y||` smaller than c is not `mu`; when that goes for every x >= u, `mu < u`.

The best `Y` is a small least-squares problem, and for Krylov spaces the bound it gives is that of the
Christoffel function: it follows the spectrum that is there rather than the worst one.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import gammaincinv

from grassia.messages import Array

_EVALUATIONS = 60


def shortest(probes: int, confidence: float) -> float:
    """The length that a vector of so many standard normal numbers has at least, with this confidence.

    >>> round(shortest(8, 0.999), 3), round(shortest(1, 0.9), 3)
    (0.926, 0.126)
    """
    return math.sqrt(2.0 * float(gammaincinv(probes / 2.0, 1.0 - confidence)))


class Exclusion:
    """The test by which values are excluded: could a random block have so little of an eigenvector?

    Parameters
    ----------
    T : ndarray (q, q)
        `Q'MQ` for the orthonormal `Q` that was explored.
    tail_gram : ndarray (q, q)
        The Gram matrix of what `M Q` has outside of span(Q).
    G : ndarray (q, p)
        `Q'Omega`.
    limit : float
        The length c, less what `Omega` has outside of span(Q).
    noise : float
        How far a product of a unit vector may be off.
    """

    def __init__(self, T: Array, tail_gram: Array, G: Array, limit: float, noise: float) -> None:
        self.T, self.C, self.G, self.limit, self.noise = T, tail_gram, G, limit, noise
        ritz = np.linalg.eigvalsh(T)
        self.bottom, self.top = float(ritz[0]), float(ritz[-1])

    def upper_bound(self, floor: float, goal: float, known: float = math.inf) -> float:
        """March down from where `Y = G / x` does, interval by interval, as far as it goes or to the goal."""
        upper = min(self.start(), known)
        if not math.isfinite(upper) or upper <= goal:
            return upper
        above = self._best(upper)
        share = 0.75  # of the way to the floor; what was possible once is mostly possible again
        for _ in range(_EVALUATIONS):
            if upper <= goal or share < 0.02:
                break
            x = max(goal, upper - share * (upper - floor))
            below = self._best(x)
            if below is not None and self._excludes(x, below, upper, above):
                upper, above = x, below
                share = min(0.75, 1.3 * share)
            else:
                share *= 0.6
        return upper

    def start(self) -> float:
        """Everything from here on is excluded, by `Y = G / x`."""
        if self.limit <= 0.0:
            return math.inf
        product = self.T @ self.G
        square = product.T @ product + self.G.T @ self.C @ self.G
        return (_norm(square) + self.noise * float(np.linalg.norm(self.G, 2))) / self.limit

    def _best(self, x: float) -> tuple[Array, float] | None:
        """The best `Y` at x, above the spectrum of T, and what it leaves of the block."""
        shifted = self.T - x * np.eye(len(self.T))
        try:
            factor = cho_factor(shifted @ shifted + self.C, check_finite=False)
        except LinAlgError:
            return None
        Y = -cho_solve(factor, shifted @ self.G, check_finite=False)
        inside = self.G + shifted @ Y
        left = _norm(inside.T @ inside + Y.T @ self.C @ Y)
        return Y, left + self.noise * _norm(Y.T @ Y)

    def _excludes(
        self, low: float, below: tuple[Array, float], high: float, above: tuple[Array, float] | None
    ) -> bool:
        """Whether every x with low <= x <= high is excluded, given the best `Y` at both ends.

        Either by what lies between them, `Y = (1 - s) Y_low + s Y_high` at `x = (1 - s) low + s high`: what
        that leaves is between what the two leave, but for `s (1 - s) (high - low) Q (Y_high - Y_low)`. Or by
        `Y_low` alone: `Y_low (low - a) / (x - a)` serves further on, for any a < low, since the block to be
        measured is then affine in 1 / (x - a) and its norm largest at an end of the interval.
        """
        Y, left = below
        if left >= self.limit:
            return False
        if above is not None:
            bend = (high - low) / 4.0 * float(np.linalg.norm(above[0] - Y, 2))
            if max(left, above[1]) + bend < self.limit:
                return True
        TY, outside = self.T @ Y, Y.T @ self.C @ Y
        allowance = self.noise * _norm(Y.T @ Y)

        def short(x: float, pole: float) -> bool:
            r = (low - pole) / (x - pole)
            inside = self.G + r * (TY - x * Y)
            return _norm(inside.T @ inside + r * r * outside) + allowance < self.limit

        poles = (self.top - t * (self.top - self.bottom) for t in (0.0, 0.25, 0.5, 1.0))
        return any(short(high, pole) for pole in poles if pole < low)


def _norm(square: Array) -> float:
    """The spectral norm of V from `V'V`."""
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(square)[-1])))
