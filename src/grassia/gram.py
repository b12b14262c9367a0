"""Tiled passes over data: products with ``X^T X`` that read the rows once, moments, scans.

The textbook way, ``X.T @ (X @ V)``, streams ``X`` from memory twice and keeps an ``m x b``
intermediate. Here a tile of rows is multiplied by ``V`` and then, still in cache, by the result.
Nothing in this module checks its arguments: the components do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia._blas import numpy_blas, one_thread
from grassia.interruption import checker

__all__ = [
    "RowSums",
    "SymmetryScan",
    "canonical_csr",
    "csr_rows",
    "dense_gram",
    "dense_gram_product",
    "dense_row_sums",
    "dense_tile_rows",
    "exact_in_single",
    "first_bad_entry",
    "merged_row_sums",
    "scan_symmetry",
    "single_block",
    "single_in_range",
    "sparse_gram",
    "sparse_gram_product",
    "sparse_row_sums",
    "sparse_tiles",
]

Float = NDArray[np.float64]
Part = TypeVar("Part")

# On these cores OpenBLAS multiplies small matrices where they lie, on the calling thread. Its way
# for large ones first copies ("packs") the operands, which for the few columns of an eigenspace
# block costs two to three times the arithmetic. "Small" is rows * inner * columns up to
# _SMALL_PRODUCT and, for the first of our two products, rows * columns up to _SMALL_RESULT.
_CORES_WITH_SMALL_PRODUCTS = {"SkylakeX", "Cooperlake", "SapphireRapids"}
_SMALL_PRODUCT = 1_000_000
_SMALL_RESULT = 1_200
# A wider block is multiplied in strips of columns, each of which stays in cache for the whole tile.
_STRIP_COLUMNS = 24

_CACHE_BYTES = 1 << 20
_BUFFER_BYTES = 32 << 20

# The most entries of a Gram matrix of which each thread may hold one.
_SMALL_GRAM = 2_000_000

# Less than this for each is not worth a thread: about a millisecond.
_THREAD_FLOPS = 100_000_000
_THREAD_ENTRIES = 4_000_000

# A sum of squares about zero may exceed the one about the mean by this factor, so that their
# difference loses a digit and a half; beyond it a tile is centred before it is squared.
_CANCELLATION = 32.0


def _small_products() -> bool:
    """Whether small products are cheap here, see `_CORES_WITH_SMALL_PRODUCTS`."""
    return getattr(numpy_blas(), "architecture", None) in _CORES_WITH_SMALL_PRODUCTS


def _threads(work: float, each: float) -> int:
    """How many threads of ours to use: as many as BLAS may, unless BLAS itself makes use of them."""
    if not _small_products():
        return 1
    return max(1, min(int(numpy_blas().num_threads or 1), int(work / each)))


def _over_rows(work: Callable[[int, int], Part], n_rows: int, threads: int) -> list[Part]:
    """``work(start, stop)`` over equal ranges of rows, a thread for each; results in their order."""
    bounds = [n_rows * i // threads for i in range(threads + 1)]
    if threads == 1:
        return [work(0, n_rows)]
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work, a, b) for a, b in pairwise(bounds[1:])]
        return [work(0, bounds[1]), *(other.result() for other in others)]


def dense_tile_rows(n_features: int) -> int:
    """Rows per tile for passes over dense rows.

    128 rows spread the cost of adding a tile's result; more if they fit a second-level cache as
    float64. Where small products are not cheap, tiles are four times as tall, for packing and BLAS
    threads to pay off. No tile is larger than 32 MiB as float64 (or one row, if a row is larger).

    Examples
    --------
    >>> dense_tile_rows(100_000_000)
    1
    """
    row_bytes = 8 * n_features
    rows = min(max(128, _CACHE_BYTES // row_bytes), 1024)
    if not _small_products():
        rows *= 4
    return max(1, min(rows, _BUFFER_BYTES // row_bytes))


def exact_in_single(dtype: np.dtype[Any]) -> bool:
    """Whether float32 holds every value of `dtype`.

    Examples
    --------
    >>> [exact_in_single(np.dtype(t)) for t in ("f4", "u2", "?", "i4", "f8")]
    [True, True, True, False, False]
    """
    return bool(np.can_cast(dtype, np.float32, "safe"))


def single_in_range(smallest: float, largest: float) -> bool:
    """Whether products of sizes between these neither vanish nor overflow in float32."""
    return smallest > 1e-20 and largest < 1e37


def single_block(V: Float) -> tuple[NDArray[np.float32], Float]:
    """`V` in float32, its columns scaled to a largest entry of one, and the scales.

    Scaled, columns of any size are in the range of float32.
    """
    scale = abs(V).max(axis=0, initial=0.0)
    scale[~(np.isfinite(scale) & (scale > 0.0))] = 1.0
    return (V / scale).astype(np.float32), scale


def _usable_in_place(X: NDArray[Any], dtype: Any) -> bool:
    """Whether BLAS can use tiles of `X` where they lie, in arithmetic of `dtype`."""
    return bool(X.dtype == dtype and X.flags.aligned and X.itemsize in X.strides)


def dense_gram_product(
    X: NDArray[Any], V: Float, mean: Float | None, *, tile_rows: int, explicit: bool, single: bool = False
) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T) V`` with one read of `X`; `mean` None means zero.

    With `explicit`, each tile is copied and centred, the accurate way when the mean dwarfs the
    spread. Otherwise the mean is removed by algebra, ``X^T Z - mean (1^T Z)`` with
    ``Z = X V - 1 (mean^T V)``, and tiles are copied only if BLAS cannot use them where they lie.
    With `single` a tile is multiplied in float32; the sum over tiles is in float64 all the same.

    Cost: ``4 m d b`` flops; ``tile_rows * (d + b) + 2 d b`` numbers of working memory a thread.
    """
    m, d = X.shape
    b = V.shape[1]
    if b == 0:
        return np.zeros((d, 0))
    dtype = np.float32 if single else np.float64
    block, scale = single_block(V) if single else (V, None)
    Vt = np.ascontiguousarray(block.T)
    explicit = explicit and mean is not None
    centre = mean.astype(dtype) if explicit and mean is not None else None
    shift = (mean @ block).astype(dtype)[:, None] if mean is not None and not explicit else None
    copied = explicit or not _usable_in_place(X, dtype)
    check = checker()

    def over(start: int, stop: int) -> tuple[Float, Float]:
        rows = min(tile_rows, stop - start)
        # The sum is kept transposed: (b x t)(t x d) walks the tile along its rows, which is faster.
        out, part = np.zeros((b, d)), np.empty((b, d), dtype)
        Z = np.empty((b, rows), dtype)
        buffer = np.empty((rows, d), dtype) if copied else None
        total = np.zeros(b)
        for first in range(start, stop, rows):
            check()
            T = X[first : min(first + rows, stop)]
            if buffer is not None:
                T = _centred_tile(T, centre, buffer[: len(T)])
            z = Z[:, : len(T)]
            _times_block(Vt, T, z)
            if shift is not None:
                z -= shift
                total += z.sum(axis=1, dtype=np.float64)
            _times_tile(z, T, part)
            out += part
        return out, total

    found = _over_rows(over, m, _threads(4.0 * m * d * b, _THREAD_FLOPS))
    out, total = found[0]
    for other_out, other_total in found[1:]:
        out += other_out
        total += other_total
    if mean is not None and not explicit:
        out -= np.outer(total, mean)
    if scale is not None:
        out *= scale[:, None]
    return np.array(out.T, order="C")


def _times_block(Vt: NDArray[Any], T: NDArray[Any], z: NDArray[Any]) -> None:
    """``z = Vt T^T``, in one call to numpy that makes many small products where those are cheap."""
    b, d = Vt.shape
    n = len(T)
    if not _small_products() or 4 * d > _SMALL_PRODUCT:
        np.matmul(Vt, T.T, out=z)
        return
    # Fewer than four rows a product would not keep the kernel busy.
    strips = max(-(-b // _STRIP_COLUMNS), -(-4 * d * b // _SMALL_PRODUCT))
    width = -(-b // strips)
    step = min(_SMALL_PRODUCT // (d * width), _SMALL_RESULT // width, n)
    whole = n - n % step
    tiles = T[:whole].reshape(-1, step, d).transpose(0, 2, 1)
    for i in range(0, b, width):
        V, zi = Vt[i : i + width], z[i : i + width]
        np.matmul(V, tiles, out=zi[:, :whole].reshape(len(V), -1, step).transpose(1, 0, 2))
        if whole < n:
            np.matmul(V, T[whole:].T, out=zi[:, whole:])


def _times_tile(z: NDArray[Any], T: NDArray[Any], out: NDArray[Any]) -> None:
    """``out = z T``, in one call to numpy that makes many small products where those are cheap."""
    b, (n, d) = len(z), T.shape
    step = min(d, _SMALL_PRODUCT // (n * b) // 16 * 16)
    if not _small_products() or step == 0:
        np.matmul(z, T, out=out)
        return
    whole = d - d % step
    strips = T[:, :whole].reshape(n, -1, step).transpose(1, 0, 2)
    np.matmul(z, strips, out=out[:, :whole].reshape(b, -1, step).transpose(1, 0, 2))
    if whole < d:
        np.matmul(z, T[:, whole:], out=out[:, whole:])


def dense_gram(
    X: NDArray[Any], mean: Float | None, *, tile_rows: int | None = None, single: bool = False
) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T)``, d x d, with one read of `X`; `mean` None means zero.

    Centred tiles are copied; with `single` they are multiplied in float32 and summed in float64.

    Cost: ``m d^2`` flops; ``2 d^2 + tile_rows * d`` numbers of memory, for each thread.
    """
    m, d = X.shape
    dtype = np.dtype(np.float32 if single else np.float64)
    # Tall tiles, since each costs an addition of d^2 numbers.
    rows = min(m, tile_rows or max(1, min(4096, _BUFFER_BYTES // (dtype.itemsize * d))))
    centre = None if mean is None else mean.astype(dtype)
    copied = centre is not None or not _usable_in_place(X, dtype)
    check = checker()

    def over(start: int, stop: int) -> Float:
        buffer = np.empty((min(rows, stop - start), d), dtype) if copied else None
        out, part = np.zeros((d, d)), np.empty((d, d), dtype)
        for first in range(start, stop, rows):
            check()
            T = X[first : min(first + rows, stop)]
            if buffer is not None:
                T = _centred_tile(T, centre, buffer[: len(T)])
            # numpy sees that the factors are one array and does half the work, a symmetric update.
            out += np.matmul(T.T, T, out=part)
        return out

    threads = _gram_threads(m, d, rows)
    if threads == 1:
        return over(0, m)
    with one_thread():
        out, *others = _over_rows(over, m, threads)
    for other in others:
        out += other
    return out


def _gram_threads(m: int, d: int, rows: int) -> int:
    """How many threads of ours share a Gram matrix: each centres, converts and sums up its own rows.

    BLAS threads would leave that to one of them. But each of ours holds a matrix, so that of many features is
    left to BLAS.
    """
    if threading.current_thread() is not threading.main_thread() or d * d > _SMALL_GRAM:
        return 1
    return max(1, min(getattr(numpy_blas(), "num_threads", None) or 1, m // rows))


def _centred_tile(T: NDArray[Any], centre: NDArray[Any] | None, buffer: NDArray[Any]) -> NDArray[Any]:
    """`T` less `centre`, in `buffer`."""
    if centre is not None and (T.dtype == buffer.dtype or T.itemsize > 8):
        np.subtract(T, centre, out=buffer, casting="same_kind")
        return buffer
    # Converting and subtracting at once would be slower.
    np.copyto(buffer, T, casting="same_kind")
    if centre is not None:
        buffer -= centre
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

    first, *others = _over_rows(over, len(X), _threads(X.size, _THREAD_ENTRIES))
    with np.errstate(over="ignore", invalid="ignore"):
        for other in others:
            first.add(other.count, other.mean, other.squares)
    return first


def _row_sums(X: NDArray[Any], center: bool, rows: int) -> RowSums:
    m, d = X.shape
    buffer = np.empty((rows, d))
    in_place = _usable_in_place(X, np.float64)
    sums = RowSums(0, np.zeros(d) if center else None, 0.0)
    origin: Float | None = None
    for start in range(0, m, rows):
        T = X[start : start + rows]
        n = len(T)
        D = T if in_place else _centred_tile(T, None, buffer[:n])
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
    D = _centred_tile(T, mean, buffer)
    correction = D.sum(axis=0) / n
    return mean + correction, _sum_of_squares(D) - n * float(correction @ correction)


def _sum_of_squares(D: Float) -> float:
    # By short dot products: BLAS spreads a long one over threads that cost more than they save.
    rows = D.T if D.strides[0] < D.strides[1] else D
    step = 8192
    strips = (rows[:, i : i + step] for i in range(0, rows.shape[1], step))
    return float(sum(np.matmul(s[:, None, :], s[:, :, None]).sum() for s in strips))


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
    check = checker()
    for T, Tt in tiles:
        check()
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
    check = checker()
    for T, _ in tiles:
        check()
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


def first_bad_entry(X: Any) -> tuple[int, int] | None:
    """Row and column of the first NaN or inf, or None; a read made only on the way to an error.

    Examples
    --------
    >>> first_bad_entry(np.array([[0.0, 1.0], [2.0, np.nan]]))
    (1, 1)
    """
    if sp.issparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        if not bad.size:
            return None
        return int(np.searchsorted(X.indptr, bad[0], side="right")) - 1, int(X.indices[bad[0]])
    step = dense_tile_rows(X.shape[1])
    for start in range(0, X.shape[0], step):
        found = np.argwhere(~np.isfinite(X[start : start + step]))
        if found.size:
            return start + int(found[0, 0]), int(found[0, 1])
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
    step = d if sparse else dense_tile_rows(d)
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
