"""Sparse rows: their tiles as views, products with ``X^T X``, and ``X^T X`` itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.interruption import checker

__all__ = [
    "as_csr",
    "canonical_csr",
    "csr_rows",
    "sparse_gram",
    "sparse_gram_product",
    "sparse_tiles",
    "stacked",
]

Float = NDArray[np.float64]


def as_csr(matrix: Any) -> Any:
    """A sparse matrix of any layout as a new CSR array, which shares the numbers of one that is CSR."""
    import scipy.sparse as sp

    return sp.csr_array(matrix)


def canonical_csr(rows: Any) -> Any:
    """CSR without repeated entries, whose squares would otherwise be wrong; copies only if so."""
    import scipy.sparse as sp

    X = rows if isinstance(rows, sp.csr_array) else sp.csr_array(rows)
    if X.dtype.itemsize > 8:
        X = X.astype(np.float64)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def csr_rows(X: Any, start: int, stop: int) -> Any:
    """Rows ``start:stop`` of a CSR array as views of its data and indices (no copy of either).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> X = sp.csr_array(np.eye(4))
    >>> T = csr_rows(X, 1, 3)
    >>> T.shape, np.shares_memory(T.data, X.data)
    ((2, 4), True)
    """
    import scipy.sparse as sp

    # Indexing and the (data, indices, indptr) constructor both copy a slice of a larger array.
    first, last = X.indptr[start], X.indptr[stop]
    T = sp.csr_array((stop - start, X.shape[1]), dtype=X.dtype)
    T.data = X.data[first:last]
    T.indices = X.indices[first:last]
    T.indptr = X.indptr[start : stop + 1] - first
    return T


def stacked(parts: list[Any]) -> Any:
    """CSR arrays of as many columns, one below the other."""
    import scipy.sparse as sp

    return sp.vstack(parts, format="csr")


def sparse_tiles(X: Any, tile_rows: int | None) -> Iterator[tuple[Any, Any]]:
    """Row tiles of a CSR array, each with its transpose, as views.

    A tile holds enough entries (about ``8 d``) that adding its ``d x b`` product costs less than
    forming it, within 4096 to 65536 rows, so that the intermediate stays far below ``m x b``.
    """
    import scipy.sparse as sp

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
