"""Leading directions of rows that come in batches and are gone afterwards, in memory that does not grow.

Kept are the weight, mean and total sum of squares of all rows so far, which are exact, and a *factor* F of
at most `rank` rows with `F^T F` close to the (centred) sum of squares and products. Rows are collected
until there are as many as the factor has; then they are merged: the factor, the centred rows and one more
row, for the step between the two means, are put on top of one another, and of their singular value
decomposition the leading `rank` are kept.

What is lost: nothing as long as the rows so far have at most `rank` dimensions. Otherwise each merge drops
what is beyond them, so that every variance is a lower bound, and none is too low by more than `lost`: the
sum of the largest squared singular values dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia.starting import check_range

__all__ = ["Settled", "Stream"]

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Settled:
    """What is known of the rows so far.

    Attributes
    ----------
    weight : float
        The number of rows, or the sum of their weights.
    mean : ndarray (d,)
    squares : float
        The sum of squares of all rows, about the mean (or zero): exact.
    factor : ndarray (r, d)
        `F` with `F^T F` close to the sum of squares and products.
    lost : float
        Bound of the spectral norm of what `F^T F` lacks of it.
    outside : float
        The trace of that, which is `squares` less those of `F`, but no difference of large numbers.
    """

    weight: float
    mean: Float
    squares: float
    factor: Float
    lost: float
    outside: float = 0.0

    def decomposition(self) -> tuple[Float, Float]:
        """Singular values of the factor, descending, and its right singular vectors as rows."""
        singular, vectors = np.linalg.svd(self.factor, full_matrices=False)[1:]
        return singular, vectors


class Stream:
    """Rows in, leading directions out.

    Parameters
    ----------
    n_features : int
    rank : int
        Directions kept, n_features at most. All results for the leading k get better with `rank - k`.
    center : bool, default True
        Whether squares are about the mean; it moves with every row, and is corrected for exactly.

    Notes
    -----
    Memory: about ``3 * rank`` rows of float64. Cost: ``O(rank * d)`` flops a row, whatever the batches.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((50, 3)) @ np.diag([3.0, 2.0, 1.0]) + 5.0
    >>> stream = Stream(3, rank=3)
    >>> for start in range(0, 50, 7):
    ...     stream.add(X[start : start + 7])
    >>> settled = stream.settle()
    >>> singular, vectors = settled.decomposition()
    >>> np.allclose(singular, np.linalg.svd(X - X.mean(axis=0))[1])
    True
    """

    def __init__(self, n_features: int, rank: int, center: bool = True) -> None:
        self.n_features, self.center = n_features, center
        self.rank = min(rank, n_features)
        self.distinct = 0
        self.batches = 0
        self.single = True
        self.largest = 0.0
        self._block = max(self.rank, 16)
        self._buffer: Float = np.empty((0, n_features))
        self._weights: Float = np.empty(0)
        self._settled = Settled(0.0, np.zeros(n_features), 0.0, np.empty((0, n_features)), 0.0)

    @classmethod
    def resume(cls, settled: Settled, rank: int, distinct: int, center: bool = True) -> Stream:
        """A stream that goes on from what was found otherwise, of so many rows of a positive weight."""
        stream = cls(settled.mean.size, rank, center)
        stream.distinct, stream._settled = distinct, settled
        spread = float(np.sqrt(settled.squares / settled.weight))
        stream.largest = max(spread, float(np.max(np.abs(settled.mean))))
        return stream

    @property
    def weight(self) -> float:
        """The number of rows so far, or the sum of their weights."""
        return self._settled.weight + float(self._weights.sum())

    @property
    def count(self) -> int:
        """How many rows a stream without weights would have had: see `Rows.count` of the estimators."""
        return max(self.distinct, int(self.weight + 1e-9))

    def add(self, rows: Any, weights: Float | None = None) -> None:
        """Take a batch, dense or CSR, of any number of rows.

        Raises
        ------
        GrassiaError
            If all numbers so far are so small, or any is so large, that squares leave double precision.
        """
        largest = max(self.largest, _largest(rows))
        if largest > 0.0:
            check_range(min(max(largest, 1e-150), 1e150) ** 2)
        self.largest = largest
        self.batches += 1
        self.distinct += int(rows.shape[0] if weights is None else np.count_nonzero(weights))
        self.single &= rows.dtype.newbyteorder("=") == np.float32
        for part, w in _pieces(rows, weights, self._block):
            self._buffer = np.vstack([self._buffer, part])
            self._weights = np.r_[self._weights, w]
            while len(self._buffer) >= self._block:
                n = self._block
                self._settled = self._merged(self._buffer[:n], self._weights[:n])
                self._buffer, self._weights = self._buffer[n:].copy(), self._weights[n:].copy()

    def settle(self) -> Settled:
        """What is known of all rows so far; the stream itself is not changed by asking."""
        return self._merged(self._buffer, self._weights) if len(self._buffer) else self._settled

    def _merged(self, rows: Float, weights: Float) -> Settled:
        before, weight = self._settled, float(weights.sum())
        if weight == 0.0:
            return before
        whole = before.weight + weight
        origin = rows[np.argmax(weights)]  # so that the mean of equal rows is that row, to the last digit
        mean = origin + weights @ (rows - origin) / weight
        centred = rows - mean if self.center else rows
        new = np.sqrt(weights)[:, None] * centred
        if self.center and before.weight > 0.0:
            step = np.sqrt(before.weight * weight / whole) * (mean - before.mean)
            new = np.vstack([new, step])
        squares = before.squares + float(np.einsum("ij,ij->", new, new))
        factor, dropped, outside = self._shortened(np.vstack([before.factor, new]))
        moved = before.mean + (mean - before.mean) * (weight / whole)
        lost, outside = before.lost + dropped, before.outside + outside
        return Settled(whole, moved, squares, factor, lost, outside)

    def _shortened(self, stack: Float) -> tuple[Float, float, float]:
        """At most `rank` rows with nearly the same products, and the norm and trace of what they lack."""
        if len(stack) <= self.rank:
            return stack, 0.0, 0.0
        if self.rank == self.n_features:
            return np.asarray(np.linalg.qr(stack, mode="r")), 0.0, 0.0
        singular, vectors = np.linalg.svd(stack, full_matrices=False)[1:]
        r = self.rank
        # Singular values that are nothing but rounding are no loss.
        noise = singular[0] * max(stack.shape) * np.finfo(np.float64).eps
        dropped = float(singular[r]) if len(singular) > r and singular[r] > noise else 0.0
        return singular[:r, None] * vectors[:r], dropped**2, float(np.sum(singular[r:] ** 2))


def _largest(rows: Any) -> float:
    """The largest entry in size."""
    entries = rows.data if sp.issparse(rows) else rows
    return max(float(entries.max()), -float(entries.min())) if entries.size else 0.0


def _pieces(rows: Any, weights: Float | None, most: int) -> Iterator[tuple[Float, Float]]:
    """Dense pieces of a batch of at most so many rows, with their weights."""
    for start in range(0, rows.shape[0], most):
        part = rows[start : start + most]
        X = np.asarray(part.toarray() if sp.issparse(part) else part, dtype=np.float64)
        yield X, np.ones(len(X)) if weights is None else weights[start : start + most]
