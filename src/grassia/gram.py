"""Tiled passes over data: products with ``X^T X`` that read the rows once, moments, scans.

The textbook way, ``X.T @ (X @ V)``, streams ``X`` from memory twice and keeps an ``m x b``
intermediate. Here a tile of rows is multiplied by ``V`` and then, still in cache, by the result.
Nothing in this module checks its arguments: the components do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

__all__ = [
    "RowSums",
    "SymmetryScan",
    "canonical_csr",
    "csr_rows",
    "dense_gram",
    "dense_gram_product",
    "dense_row_sums",
    "dense_tile_rows",
    "first_bad_row",
    "needs_buffer",
    "scan_symmetry",
    "sparse_gram",
    "sparse_gram_product",
    "sparse_row_sums",
    "sparse_tiles",
]

Float = NDArray[np.float64]

# OpenBLAS multiplies without first packing its operands while rows * inner * columns stays below
# this; for the few columns of an eigenspace block, packing costs more than the arithmetic.
_UNPACKED_FLOPS = 1_000_000
_CACHE_BYTES = 1 << 20
_BUFFER_BYTES = 32 << 20


def dense_tile_rows(n_features: int, width: int) -> int:
    """Rows per tile for a product of dense rows with a block of ``width`` columns.

    The tile is kept small enough for the unpacked matrix product and for a second-level cache. When
    that would leave fewer than 16 rows, the packed product runs anyway and 256 rows spread its
    overhead. No tile is larger than 32 MiB as float64 (or one row, if a row is larger).

    Examples
    --------
    >>> dense_tile_rows(3072, 3), dense_tile_rows(3072, 10), dense_tile_rows(3072, 50)
    (64, 32, 256)
    """
    row_bytes = 8 * n_features
    unpacked = _UNPACKED_FLOPS // (n_features * max(width, 1))
    if unpacked >= 16:
        rows = min(unpacked, max(64, _CACHE_BYTES // row_bytes), 1024)
    else:
        rows = 256
    return max(1, min(rows, _BUFFER_BYTES // row_bytes))


def needs_buffer(X: NDArray[Any]) -> bool:
    """Whether tiles of `X` must be copied to float64 before BLAS can use them where they lie."""
    unit = X.itemsize in X.strides
    return not (X.dtype == np.float64 and X.flags.aligned and unit)


def dense_gram_product(
    X: NDArray[Any], V: Float, mean: Float | None, *, tile_rows: int, buffered: bool
) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T) V`` with one read of `X`; `mean` None means zero.

    With `buffered`, each tile is copied to float64 and centred there: needed for other dtypes, and
    the accurate way when the mean dwarfs the spread. Otherwise tiles are used where they lie and
    the mean is removed by algebra: ``X^T Z - mean (1^T Z)`` with ``Z = X V - 1 (mean^T V)``.

    Cost: ``4 m d b`` flops; ``tile_rows * (d + b) + 2 d b`` numbers of working memory.
    """
    m, d = X.shape
    b = V.shape[1]
    rows = min(tile_rows, m)
    # The sum is kept transposed: (b x t)(t x d) walks the tile along its rows, which is faster.
    out = np.zeros((b, d))
    part = np.empty((b, d))
    Z = np.empty((rows, b))
    buffer = np.empty((rows, d)) if buffered else None
    implicit = mean is not None and not buffered
    shift = mean @ V if mean is not None and implicit else None
    total = np.zeros(b)
    for start in range(0, m, rows):
        T = X[start : start + rows]
        n = T.shape[0]
        if buffer is not None:
            T = _centred_tile(T, mean, buffer[:n])
        z = np.matmul(T, V, out=Z[:n])
        if shift is not None:
            z -= shift
            total += z.sum(axis=0)
        out += np.matmul(z.T, T, out=part)
    if mean is not None and implicit:
        out -= np.outer(total, mean)
    return np.array(out.T, order="C")


def dense_gram(X: NDArray[Any], mean: Float | None, *, tile_rows: int | None = None) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T)``, d x d, with one read of `X`; `mean` None means zero.

    Tiles are copied to float64 and centred there; each is a symmetric rank-t update of one triangle, half
    the work of a matrix product.

    Cost: ``m d^2`` flops; ``2 d^2 + tile_rows * d`` numbers of memory.
    """
    m, d = X.shape
    rows = min(m, tile_rows or max(1, min(1024, _BUFFER_BYTES // (8 * d))))
    buffer = np.empty((rows, d))
    triangle = np.zeros((d, d), order="F")
    for start in range(0, m, rows):
        T = X[start : start + rows]
        centred = _centred_tile(T, mean, buffer[: T.shape[0]])
        triangle = dsyrk(1.0, centred.T, beta=1.0, c=triangle, overwrite_c=1)
    out = np.array(triangle.T, order="C")
    out += triangle
    out[np.diag_indices(d)] = triangle.diagonal()
    return out


def _centred_tile(T: NDArray[Any], mean: Float | None, buffer: Float) -> Float:
    if mean is None:
        np.copyto(buffer, T, casting="same_kind")
    else:
        np.subtract(T, mean, out=buffer, casting="same_kind")
    return buffer


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


def dense_row_sums(X: NDArray[Any], center: bool, *, tile_rows: int) -> RowSums:
    """Mean and centred sum of squares in one tiled read, cut short once they are not finite."""
    m, d = X.shape
    rows = min(tile_rows, m)
    buffer = np.empty((rows, d))
    # The first row is a typical value, so that what is averaged has no large common offset.
    origin = np.array(X[0], dtype=np.float64) if center else None
    sums = RowSums(0, np.zeros(d) if center else None, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, m, rows):
            T = X[start : start + rows]
            n = T.shape[0]
            D = _centred_tile(T, origin, buffer[:n])
            mean = D.mean(axis=0) if center else None
            if mean is not None:
                D -= mean
            sums.add(n, mean, float(np.vdot(D, D)))
            if not np.isfinite(sums.squares):
                break
        if sums.mean is not None and origin is not None:
            sums.mean += origin
    return sums


def csr_rows(X: Any, start: int, stop: int) -> Any:
    """Rows ``start:stop`` of a CSR array as views of its data and indices (no copy of either).

    Examples
    --------
    >>> X = sp.csr_array(np.eye(4))
    >>> T = csr_rows(X, 1, 3)
    >>> T.shape, np.shares_memory(T.data, X.data)
    ((2, 4), True)
    """
    # Indexing and the (data, indices, indptr) constructor both copy a slice of a larger array.
    first, last = X.indptr[start], X.indptr[stop]
    T = sp.csr_array((stop - start, X.shape[1]), dtype=X.dtype)
    T.data = X.data[first:last]
    T.indices = X.indices[first:last]
    T.indptr = X.indptr[start : stop + 1] - first
    return T


def sparse_tiles(X: Any, tile_rows: int | None) -> Iterator[tuple[Any, Any]]:
    """Row tiles of a CSR array, each with its transpose, as views.

    A tile holds enough entries (about ``8 d``) that adding its ``d x b`` product costs less than
    forming it, within 4096 to 65536 rows, so that the intermediate stays far below ``m x b``.
    """
    m, d = X.shape
    if tile_rows is None:
        per_row = max(X.nnz / m, 1e-9)
        tile_rows = int(min(max(8 * d / per_row, 4096), 65536))
    for start in range(0, m, tile_rows):
        T = csr_rows(X, start, min(start + tile_rows, m))
        Tt = sp.csc_array((d, T.shape[0]), dtype=X.dtype)
        Tt.data, Tt.indices, Tt.indptr = T.data, T.indices, T.indptr
        yield T, Tt


def sparse_gram_product(tiles: list[tuple[Any, Any]], V: Float, mean: Float | None) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T) V`` for sparse tiles, centred by algebra, never filled in.

    Cost: ``4 nnz b`` flops plus ``d b`` per tile. Entries of other dtypes are upcast by the tile.
    """
    out = np.zeros(V.shape)
    total = np.zeros(V.shape[1])
    shift = None if mean is None else mean @ V
    for T, Tt in tiles:
        z = T @ V
        if shift is not None:
            z -= shift
            total += z.sum(axis=0)
        out += Tt @ z
    if mean is not None:
        out -= np.outer(mean, total)
    return out


def sparse_gram(tiles: list[tuple[Any, Any]], n_features: int, mean: Float | None) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T)``, d x d, for sparse tiles.

    Cost: two flops for every pair of entries in a row, plus ``d^2``. Centring is by algebra.
    """
    out = np.zeros((n_features, n_features))
    count = 0
    for T, _ in tiles:
        values = T.astype(np.float64)
        out += (values.T @ values).toarray() if T.nnz else 0.0
        count += T.shape[0]
    if mean is not None:
        out -= np.outer(count * mean, mean)
    return (out + out.T) / 2.0


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


def canonical_csr(rows: Any) -> Any:
    """CSR without repeated entries, whose squares would otherwise be wrong; copies only if so."""
    X = rows if isinstance(rows, sp.csr_array) else sp.csr_array(rows)
    if X.dtype.itemsize > 8:
        X = X.astype(np.float64)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def first_bad_row(X: Any) -> int | None:
    """Index of the first row with NaN or inf, or None; a read made only on the way to an error."""
    if sp.issparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        return int(np.searchsorted(X.indptr, bad[0], side="right")) - 1 if bad.size else None
    step = dense_tile_rows(X.shape[1], 1)
    for start in range(0, X.shape[0], step):
        bad = np.flatnonzero(~np.isfinite(X[start : start + step]).all(axis=1))
        if bad.size:
            return start + int(bad[0])
    return None


@dataclass(frozen=True, slots=True)
class SymmetryScan:
    """Largest |entry|, largest |A - A.T| and where it is; or the first entry not finite."""

    largest: float
    gap: float
    at: tuple[int, int]
    bad: tuple[int, int] | None = None


def scan_symmetry(A: Any) -> SymmetryScan:
    """Scan a square matrix strip by strip; working memory is a strip (a copy, if sparse)."""
    d = A.shape[0]
    sparse = sp.issparse(A)
    step = d if sparse else dense_tile_rows(d, 1)
    largest, gap, at = 0.0, 0.0, (0, 0)
    for start in range(0, d, step):
        strip = A[start : start + step].astype(np.float64, copy=False)
        entries = strip.data if sparse else strip
        if not np.isfinite(entries).all():
            full = strip.tocoo() if sparse else None
            found = _first(~np.isfinite(full.data if full is not None else strip), full)
            return SymmetryScan(np.inf, np.inf, at, (start + found[0], found[1]))
        largest = max(largest, float(abs(entries).max(initial=0.0)))
        difference = abs(strip - A[:, start : start + step].astype(np.float64, copy=False).T)
        full = difference.tocoo() if sparse else None
        worst = full.data if full is not None else difference
        if worst.size and float(worst.max()) > gap:
            gap = float(worst.max())
            found = _first(worst == gap, full)
            at = (start + found[0], found[1])
    return SymmetryScan(largest, gap, at)


def _first(mask: NDArray[np.bool_], coo: Any) -> tuple[int, int]:
    k = int(mask.argmax())
    if coo is not None:
        return int(coo.row[k]), int(coo.col[k])
    i, j = divmod(k, mask.shape[1])
    return i, j
