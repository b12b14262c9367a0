"""How a pass over dense rows is cut: rows per tile, threads, what BLAS likes, single precision.

The other modules call these functions by way of this one, so that all of them see the same BLAS, also a
supposed one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from grassia._blas import numpy_blas, numpy_threads, one_thread

__all__ = [
    "BUFFER_BYTES",
    "apart",
    "centred_tile",
    "dense_tile_rows",
    "exact_in_single",
    "over_rows",
    "product_tile_rows",
    "single_block",
    "single_in_range",
    "small_products",
    "threads_for",
    "usable_in_place",
]

Float = NDArray[np.float64]
Part = TypeVar("Part")

# On these cores OpenBLAS multiplies small matrices where they lie, on the calling thread. Its way
# for large ones first copies ("packs") the operands, which for the few columns of an eigenspace
# block costs two to three times the arithmetic.
_CORES_WITH_SMALL_PRODUCTS = {"SkylakeX", "Cooperlake", "SapphireRapids"}

_CACHE_BYTES = 2 << 20
# Products of so many numbers keep a thread busy while another one needs the interpreter between its own.
_APART = 4_000_000
#: The largest tile.
BUFFER_BYTES = 32 << 20


def small_products() -> bool:
    """Whether small products are cheap here, see `_CORES_WITH_SMALL_PRODUCTS`."""
    return getattr(numpy_blas(), "architecture", None) in _CORES_WITH_SMALL_PRODUCTS


def threads_for(work: float, each: float) -> int:
    """How many threads of ours to use: as many as BLAS may, where its own can be kept out of the way.

    Ours share all that is done with a tile, not the products alone. Small products stay on the calling
    thread; for others BLAS has to be limited (`apart`), which only the main thread may do.
    """
    if not (small_products() or threading.current_thread() is threading.main_thread()):
        return 1
    return max(1, min(numpy_threads(), int(work / each)))


def apart(threads: int) -> AbstractContextManager[None]:
    """Inside `with`, products on so many threads of ours are not spread over those of BLAS as well."""
    return one_thread() if threads > 1 and not small_products() else nullcontext()


def over_rows(work: Callable[[int, int], Part], n_rows: int, threads: int) -> list[Part]:
    """``work(start, stop)`` over equal ranges of rows, a thread for each; results in their order.

    Threads are made anew for each pass: that costs a tenth of a millisecond each, and runs with threads that
    were kept took no less time.
    """
    bounds = [n_rows * i // threads for i in range(threads + 1)]
    others = [_Share(work, a, b) for a, b in pairwise(bounds[1:])]
    for other in others:
        other.start()
    try:
        first = work(0, bounds[1])
    finally:
        for other in others:  # whatever happened here: the rows may be gone once we are
            other.join()
    return [first, *(other.result() for other in others)]


class _Share(threading.Thread, Generic[Part]):
    """A range of rows on a thread of its own."""

    def __init__(self, work: Callable[[int, int], Part], start: int, stop: int) -> None:
        super().__init__(name="grassia-rows")
        self._work, self._range = work, (start, stop)
        self._found: list[Part] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._found.append(self._work(*self._range))
        except BaseException as error:  # also one that cuts the task short; it is raised where it is awaited
            self._error = error

    def result(self) -> Part:
        if self._error is not None:
            raise self._error
        return self._found[0]


def dense_tile_rows(n_features: int) -> int:
    """Rows per tile for passes over dense rows.

    128 rows spread the cost of adding a tile's result; more if they fit 2 MiB, about a second-level cache,
    as float64. No tile is larger than 32 MiB as float64 (or one row, if a row is larger).

    Examples
    --------
    >>> dense_tile_rows(100_000_000)
    1
    """
    row_bytes = 8 * n_features
    rows = min(max(128, _CACHE_BYTES // row_bytes), 1024)
    return max(1, min(rows, BUFFER_BYTES // row_bytes))


def product_tile_rows(n_features: int, columns: int, threads: int, copied: bool = True) -> int:
    """Rows per tile for products of dense rows with so many columns, on threads of ours.

    Between two tiles a thread needs the interpreter, which one has at a time: the more threads there are, the
    longer each must do without, also where its tile leaves the cache for that. The threads of BLAS, where
    products are left to them, gain by tiles four times as tall. Copies of tiles take 32 MiB together, unless
    they are those of `dense_tile_rows`.

    Examples
    --------
    >>> product_tile_rows(3000, 8, 3) >= product_tile_rows(3000, 8, 2) >= dense_tile_rows(3000)
    True
    """
    rows = dense_tile_rows(n_features)
    apart = (threads - 1) * _APART // (n_features * max(1, columns))
    if threads == 1 and not small_products() and numpy_threads() > 1:
        apart = 4 * rows
    if copied:
        apart = min(apart, BUFFER_BYTES // (8 * n_features * threads))
    return max(rows, apart)


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


def usable_in_place(X: NDArray[Any], dtype: Any) -> bool:
    """Whether BLAS can use tiles of `X` where they lie, in arithmetic of `dtype`."""
    return bool(X.dtype == dtype and X.flags.aligned and X.itemsize in X.strides)


def centred_tile(T: NDArray[Any], centre: NDArray[Any] | None, buffer: NDArray[Any]) -> NDArray[Any]:
    """`T` less `centre`, in `buffer`."""
    if centre is not None and (T.dtype == buffer.dtype or T.itemsize > 8):
        np.subtract(T, centre, out=buffer, casting="same_kind")
        return buffer
    # Converting and subtracting at once would be slower.
    np.copyto(buffer, T, casting="same_kind")
    if centre is not None:
        buffer -= centre
    return buffer
