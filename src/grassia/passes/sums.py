"""Means and centred sums of squares of rows, dense or sparse, in one read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.passes import tiling

__all__ = ["RowSums", "dense_row_sums", "merged_row_sums", "sparse_row_sums"]

Float = NDArray[np.float64]

# Less than this for each is not worth a thread: about a millisecond.
_THREAD_ENTRIES = 4_000_000

# A sum of squares about zero may exceed the one about the mean by this factor, so that their
# difference loses a digit and a half; beyond it a tile is centred before it is squared.
_CANCELLATION = 32.0


@dataclass(slots=True)
class RowSums:
    """Count, mean and centred sum of squares of rows seen so far; tiles merge as Chan et al. do.

    With ``mean`` None the sum of squares is about zero.
    """

    count: int
    mean: Float | None
    squares: float

    def add(self, count: int, mean: Float | None, squares: float) -> None:
        """Merge a tile. Differences of means are small where sums of squares would cancel."""
        total = self.count + count
        self.squares += squares
        if self.mean is not None and mean is not None:
            step = mean - self.mean
            self.squares += float(step @ step) * self.count * count / total
            self.mean += step * (count / total)
        self.count = total


def merged_row_sums(parts: Iterable[RowSums]) -> RowSums:
    """The sums of all parts together, averaged about the first one's mean for the sake of digits.

    Examples
    --------
    >>> parts = [RowSums(1, np.array([0.0]), 0.0), RowSums(3, np.array([4.0]), 6.0)]
    >>> merged_row_sums(parts)
    RowSums(count=4, mean=array([3.]), squares=18.0)
    """
    found = iter(parts)
    sums = next(found)
    origin = sums.mean
    if origin is not None:
        sums = RowSums(sums.count, np.zeros(len(origin)), sums.squares)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in found:
            mean = None if part.mean is None or origin is None else part.mean - origin
            sums.add(part.count, mean, part.squares)
    if sums.mean is not None and origin is not None:
        sums.mean += origin
    return sums


def dense_row_sums(X: NDArray[Any], center: bool, *, tile_rows: int) -> RowSums:
    """Mean and centred sum of squares in one tiled read, cut short once they are not finite."""

    def over(start: int, stop: int) -> RowSums:
        with np.errstate(over="ignore", invalid="ignore"):
            return _row_sums(X[start:stop], center, min(tile_rows, stop - start))

    threads = tiling.threads_for(X.size, _THREAD_ENTRIES)
    with tiling.apart(threads):
        first, *others = tiling.over_rows(over, len(X), threads)
    with np.errstate(over="ignore", invalid="ignore"):
        for other in others:
            first.add(other.count, other.mean, other.squares)
    return first


def _row_sums(X: NDArray[Any], center: bool, rows: int) -> RowSums:
    m, d = X.shape
    buffer = np.empty((rows, d))
    in_place = tiling.usable_in_place(X, np.float64)
    sums = RowSums(0, np.zeros(d) if center else None, 0.0)
    origin: Float | None = None
    for start in range(0, m, rows):
        T = X[start : start + rows]
        n = len(T)
        D = T if in_place else tiling.centred_tile(T, None, buffer[:n])
        mean, squares = None, _sum_of_squares(D)
        if center:
            mean, squares = _tile_moments(T, D, squares, buffer[:n])
            # Averaged about the first tile's mean, so that a large common offset costs no digits.
            origin = mean.copy() if origin is None else origin
            mean -= origin
        sums.add(n, mean, squares)
        if not np.isfinite(sums.squares):
            break
    if sums.mean is not None and origin is not None:
        sums.mean += origin
    return sums


def _tile_moments(T: NDArray[Any], D: Float, about_zero: float, buffer: Float) -> tuple[Float, float]:
    """Mean and squares about it of a tile, given it in float64 and its squares about zero."""
    n = len(D)
    mean = D.sum(axis=0) / n
    squares = about_zero - n * float(mean @ mean)
    if squares * _CANCELLATION > about_zero:
        return mean, squares
    D = tiling.centred_tile(T, mean, buffer)
    correction = D.sum(axis=0) / n
    return mean + correction, _sum_of_squares(D) - n * float(correction @ correction)


def _sum_of_squares(D: Float) -> float:
    # By short dot products: BLAS spreads a long one over threads that cost more than they save.
    rows = D.T if D.strides[0] < D.strides[1] else D
    step = 8192
    strips = (rows[:, i : i + step] for i in range(0, rows.shape[1], step))
    return float(sum(np.matmul(s[:, None, :], s[:, :, None]).sum() for s in strips))


def sparse_row_sums(tiles: list[tuple[Any, Any]], n_features: int, center: bool) -> RowSums:
    """Like `dense_row_sums`; the zeros that are not stored enter the squares by their number."""
    sums = RowSums(0, np.zeros(n_features) if center else None, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for T, _ in tiles:
            n = T.shape[0]
            x = T.data.astype(np.float64)
            mean = None
            absent = 0.0
            if center:
                mean = np.bincount(T.indices, weights=x, minlength=n_features) / n
                stored = np.bincount(T.indices, minlength=n_features)
                absent = float(np.dot(n - stored, mean * mean))
                x -= mean[T.indices]
            sums.add(n, mean, float(x @ x) + absent)
            if not np.isfinite(sums.squares):
                break
    return sums
