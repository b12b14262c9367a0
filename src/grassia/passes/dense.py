"""Products with ``X^T X``, and ``X^T X`` itself, for dense rows: one read of them, tile by tile."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._blas import numpy_threads, one_thread
from grassia.interruption import checker
from grassia.passes import tiling

__all__ = ["SMALL_GRAM", "dense_gram", "dense_gram_product"]

Float = NDArray[np.float64]

# Where `tiling.small_products`, "small" is rows * inner * columns up to _SMALL_PRODUCT and, for the
# first of our two products, rows * columns up to _SMALL_RESULT.
_SMALL_PRODUCT = 1_000_000
_SMALL_RESULT = 1_200
# A wider block is multiplied in strips of columns, each of which stays in cache for the whole tile.
_STRIP_COLUMNS = 24

#: The most entries of a Gram matrix of which each thread may hold one.
SMALL_GRAM = 2_000_000

# Less than this for each is not worth a thread: about a millisecond.
_THREAD_FLOPS = 100_000_000


def dense_gram_product(
    X: NDArray[Any],
    V: Float,
    mean: Float | None,
    *,
    explicit: bool,
    tile_rows: int | None = None,
    single: bool = False,
) -> Float:
    """``(X - 1 mean^T)^T (X - 1 mean^T) V`` with one read of `X`; `mean` None means zero.

    With `explicit`, each tile is copied and centred, the accurate way when the mean dwarfs the
    spread. Otherwise the mean is removed by algebra, ``X^T Z - mean (1^T Z)`` with
    ``Z = X V - 1 (mean^T V)``, and tiles are copied only if BLAS cannot use them where they lie.
    With `single` a tile is multiplied in float32; the sum over tiles is in float64 all the same.

    Cost: ``4 m d b`` flops; ``tile_rows * (d + b) + 2 d b`` numbers of working memory a thread. By default
    tiles are those of `tiling.product_tile_rows`.
    """
    m, d = X.shape
    b = V.shape[1]
    if b == 0:
        return np.zeros((d, 0))
    dtype = np.float32 if single else np.float64
    block, scale = tiling.single_block(V) if single else (V, None)
    Vt = np.ascontiguousarray(block.T)
    explicit = explicit and mean is not None
    centre = mean.astype(dtype) if explicit and mean is not None else None
    shift = (mean @ block).astype(dtype)[:, None] if mean is not None and not explicit else None
    copied = explicit or not tiling.usable_in_place(X, dtype)
    check = checker()
    threads = tiling.threads_for(4.0 * m * d * b, _THREAD_FLOPS)
    # In single precision a sum over a tile loses the more digits, the taller the tile is.
    usual = tiling.dense_tile_rows(d) if single else tiling.product_tile_rows(d, b, threads, copied)
    most = tile_rows or usual

    def over(start: int, stop: int) -> tuple[Float, Float]:
        rows = min(most, stop - start)
        # The sum is kept transposed: (b x t)(t x d) walks the tile along its rows, which is faster.
        out, part = np.zeros((b, d)), np.empty((b, d), dtype)
        Z = np.empty((b, rows), dtype)
        buffer = np.empty((rows, d), dtype) if copied else None
        total = np.zeros(b)
        for first in range(start, stop, rows):
            check()
            T = X[first : min(first + rows, stop)]
            if buffer is not None:
                T = tiling.centred_tile(T, centre, buffer[: len(T)])
            z = Z[:, : len(T)]
            _times_block(Vt, T, z)
            if shift is not None:
                z -= shift
                total += z.sum(axis=1, dtype=np.float64)
            _times_tile(z, T, part)
            out += part
        return out, total

    with tiling.apart(threads):
        found = tiling.over_rows(over, m, threads)
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
    if not tiling.small_products() or 4 * d > _SMALL_PRODUCT:
        np.matmul(Vt, T.T, out=z)
        return
    # Fewer than four rows a product would not keep the kernel busy.
    width = _even(b, min(_STRIP_COLUMNS, _SMALL_PRODUCT // (4 * d)), 4)
    step = min(_whole(min(_SMALL_PRODUCT // (d * width), _SMALL_RESULT // width), 8), n)
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
    width = _even(b, _STRIP_COLUMNS, 4)
    most = _SMALL_PRODUCT // (n * width) // 16 * 16
    if not tiling.small_products() or most == 0:
        np.matmul(z, T, out=out)
        return
    step = _even(d, most, 16)
    whole = d - d % step
    tiles = T[:, :whole].reshape(n, -1, step).transpose(1, 0, 2)
    for i in range(0, b, width):
        zi, part = z[i : i + width], out[i : i + width]
        np.matmul(zi, tiles, out=part[:, :whole].reshape(len(zi), -1, step).transpose(1, 0, 2))
        if whole < d:
            np.matmul(zi, T[:, whole:], out=part[:, whole:])


def _even(size: int, most: int, multiple: int) -> int:
    """The size of strips that share `size` evenly, none larger than `most`; a whole multiple, if it fits.

    Kernels work on so many numbers at once: a remainder costs as much as a whole one.

    >>> _even(68, 24, 4), _even(50, 24, 4), _even(7, 24, 4), _even(5, 3, 4)
    (24, 20, 7, 3)
    """
    share = -(-size // -(-size // most))
    return min(size, most, -(-share // multiple) * multiple)


def _whole(size: int, multiple: int) -> int:
    """`size`, down to a whole multiple if there is one.

    >>> _whole(43, 8), _whole(5, 8)
    (40, 5)
    """
    return size // multiple * multiple or size


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
    rows = min(m, tile_rows or max(1, min(4096, tiling.BUFFER_BYTES // (dtype.itemsize * d))))
    centre = None if mean is None else mean.astype(dtype)
    copied = centre is not None or not tiling.usable_in_place(X, dtype)
    check = checker()

    def over(start: int, stop: int) -> Float:
        buffer = np.empty((min(rows, stop - start), d), dtype) if copied else None
        out, part = np.zeros((d, d)), np.empty((d, d), dtype)
        for first in range(start, stop, rows):
            check()
            T = X[first : min(first + rows, stop)]
            if buffer is not None:
                T = tiling.centred_tile(T, centre, buffer[: len(T)])
            # numpy sees that the factors are one array and does half the work, a symmetric update.
            out += np.matmul(T.T, T, out=part)
        return out

    threads = _gram_threads(m, d, rows)
    if threads == 1:
        return over(0, m)
    with one_thread():
        out, *others = tiling.over_rows(over, m, threads)
    for other in others:
        out += other
    return out


def _gram_threads(m: int, d: int, rows: int) -> int:
    """How many threads of ours share a Gram matrix: each centres, converts and sums up its own rows.

    BLAS threads would leave that to one of them. But each of ours holds a matrix, so that of many features is
    left to BLAS.
    """
    if threading.current_thread() is not threading.main_thread() or d * d > SMALL_GRAM:
        return 1
    return max(1, min(numpy_threads(), m // rows))
