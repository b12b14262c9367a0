"""Going over rows in blocks of bounded size: where to cut, and reading ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from grassia._scipy import issparse
from grassia.passes.sparse import canonical_csr, csr_rows

__all__ = ["BLOCK_BYTES", "balanced", "block_ranges", "even_cuts", "read_ahead", "row_bytes", "slices"]

Range = tuple[int, int]

#: The size of a block of rows that is read, checked and multiplied at a time; see `block_ranges`.
BLOCK_BYTES = 32 << 20

# Cuts may move to a boundary of the source's own if no part grows beyond this many times its fair share.
_UNBALANCED = 1.25


def even_cuts(m: int, n: int) -> list[Range]:
    """`n` ranges that cover ``0:m``, their lengths equal but for one.

    >>> even_cuts(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    return [(i * m // n, (i + 1) * m // n) for i in range(n)]


def balanced(m: int, n: int, boundaries: Sequence[int] | None = None, chunk_rows: int = 1) -> list[Range]:
    """`n` ranges that cover ``0:m``, cut at boundaries of the source's own where that balances.

    Parameters
    ----------
    boundaries : sequence of int, optional
        Rows at which a new piece begins, ascending; multiples of `chunk_rows` when left out.

    Examples
    --------
    >>> balanced(1000, 3, chunk_rows=50)
    [(0, 350), (350, 650), (650, 1000)]
    >>> balanced(1000, 3, chunk_rows=500)
    [(0, 333), (333, 666), (666, 1000)]
    """
    even = even_cuts(m, n)
    wanted = np.array([a for a, _ in even[1:]])
    if boundaries is None:
        moved = (wanted + chunk_rows // 2) // chunk_rows * chunk_rows
    else:
        allowed = np.unique(np.r_[0, np.asarray(boundaries, dtype=np.int64), m])
        after = np.clip(np.searchsorted(allowed, wanted), 1, len(allowed) - 1)
        nearer_before = wanted - allowed[after - 1] <= allowed[after] - wanted
        moved = np.where(nearer_before, allowed[after - 1], allowed[after])
    cuts = np.r_[0, moved, m]
    sizes = np.diff(cuts)
    if sizes.min() < 1 or sizes.max() > _UNBALANCED * m / n:
        return even
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def row_bytes(n_features: int, dtype: np.dtype[Any], per_row: float | None = None) -> float:
    """Bytes of one row in memory; `per_row` is how many numbers of it a sparse source stores."""
    if per_row is None:
        return n_features * dtype.itemsize
    return per_row * (dtype.itemsize + 4) + 4


def block_ranges(start: int, stop: int, bytes_a_row: float, chunk_rows: int, max_bytes: int) -> list[Range]:
    """Cut ``start:stop`` into blocks of at most `max_bytes`, at multiples of `chunk_rows` where that fits.

    One chunk may take up to twice `max_bytes`; a larger one is cut, and a row is never.

    Examples
    --------
    >>> block_ranges(3, 25, bytes_a_row=8, chunk_rows=10, max_bytes=100)
    [(3, 10), (10, 20), (20, 25)]
    """
    rows = max(1, int(max_bytes / max(bytes_a_row, 1e-9)))
    if rows >= chunk_rows:
        step = rows - rows % chunk_rows
    elif chunk_rows <= 2 * rows:
        step = chunk_rows
    else:
        step = -(-chunk_rows // -(-chunk_rows // rows))
    cuts = [start]
    while cuts[-1] < stop:
        here = cuts[-1]
        if step >= chunk_rows:
            following = (here - here % chunk_rows) + step
        else:
            chunk_end = here - here % chunk_rows + chunk_rows
            following = min(here + step, chunk_end)
        cuts.append(min(following, stop))
    return list(pairwise(cuts))


def read_ahead(read: Callable[[int, int], Any], ranges: Sequence[Range]) -> Iterator[Any]:
    """``read(a, b)`` for every range, in order; the next is read while the caller works on one.

    At most three blocks are alive: the caller's last one, the one handed out and the one being read.
    Reads are made by one thread, one after the other.
    """
    if len(ranges) == 1:
        yield read(*ranges[0])
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "grassia-read-ahead") as reader:
        coming = reader.submit(read, *ranges[0])
        for following in ranges[1:]:
            block = coming.result()
            coming = reader.submit(read, *following)
            yield block
            del block
        yield coming.result()


def slices(rows: Any, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
    """Views of an array, or of sparse rows as CSR, of at most `max_bytes` each (or one row).

    >>> [len(part) for part in slices(np.zeros((5, 2)), max_bytes=32)]
    [2, 2, 1]
    """
    m, d = rows.shape
    if issparse(rows):
        X = canonical_csr(rows)
        each = row_bytes(d, X.dtype, X.nnz / max(m, 1))
        for a, b in block_ranges(0, m, each, 1, max_bytes):
            yield csr_rows(X, a, b)
        return
    for a, b in block_ranges(0, m, row_bytes(d, rows.dtype), 1, max_bytes):
        yield rows[a:b]
