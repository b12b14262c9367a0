"""Components made of rows: covariances and second moments, of rows in memory or coming in blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia import _checks
from grassia._checks import rows_shape
from grassia._scipy import issparse
from grassia.component import Component, Moments
from grassia.errors import InvalidComponent
from grassia.passes.dense import dense_gram, dense_gram_product
from grassia.passes.scans import first_bad_entry
from grassia.passes.sparse import canonical_csr, sparse_gram, sparse_gram_product, sparse_tiles
from grassia.passes.sums import RowSums, dense_row_sums, merged_row_sums, sparse_row_sums
from grassia.passes.tiling import dense_tile_rows, exact_in_single, single_in_range

__all__ = ["BlockedRows", "RowsComponent"]

Float = NDArray[np.float64]

# With |mean|^2 beyond this many traces, centring by algebra would lose digits that an explicit
# subtraction keeps, so tiles are centred in a buffer instead.
_LARGE_OFFSET = 1e4
# The same in single precision, which has fewer digits to lose; beyond _LARGE_OFFSET it is not used.
_LARGE_OFFSET_SINGLE = 10.0
# And for the whole matrix, which is the answer itself: up to here centred tiles would gain next to nothing.
_SMALL_OFFSET = 0.1


class BlockedRows(Component):
    """The covariance, or second moment, of rows that come block by block; the base of those below.

    A subclass writes `_blocks`, which goes over the rows once, and `_named`, what its errors call them.
    Sums over blocks merge as those over tiles do, so that however rows are cut, the answer is the same
    but for rounding.

    Parameters
    ----------
    shape : (int, int)
        Rows and features.
    dtype : numpy dtype
        Of the blocks.
    sparse : bool
        Whether blocks are lists of `sparse.sparse_tiles`, not arrays.
    center : bool
    tile_rows : int, optional
        Rows multiplied at a time; by default chosen from the sizes, see `tiling.product_tile_rows`.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        sparse: bool,
        center: bool,
        tile_rows: int | None = None,
    ) -> None:
        super().__init__(shape[1])
        if tile_rows is not None:
            _checks.require_count(tile_rows, "tile_rows")
        self.n_rows = shape[0]
        self.feature_names: Sequence[str] | None = None  # for errors; set by who knows them
        self.center = bool(center)
        self._dtype = dtype
        self._sparse = sparse
        self._tile_rows = tile_rows
        # How tiles are centred, in double and in single precision; decided when measured.
        self._explicit = False
        self._explicit_single = False
        self._offset_counts = True

    @abstractmethod
    def _blocks(self) -> Iterator[Any]:
        """All the rows in order, in blocks: arrays, or lists of tiles where they are sparse."""

    def _named(self, row: int) -> str:
        """What errors call a row, counted from the first block's first."""
        return f"row {row}"

    def _named_column(self, column: int) -> str:
        """What errors call a column."""
        names = self.feature_names
        return f"column {column if names is None else repr(names[column])}"

    def _measure(self) -> Moments:
        d = self.n_features
        sums = merged_row_sums(self._block_sums())
        if not np.isfinite(sums.squares):
            raise InvalidComponent(_checks.OVERFLOW)
        trace = sums.squares / self.n_rows
        mean = sums.mean
        offset_squared = 0.0 if mean is None else float(mean @ mean)
        self._explicit = offset_squared > _LARGE_OFFSET * trace
        self._explicit_single = offset_squared > _LARGE_OFFSET_SINGLE * trace
        self._offset_counts = offset_squared > _SMALL_OFFSET * trace
        offset = float(np.finfo(np.float64).eps * np.sqrt(offset_squared))
        noise = 4.0 * offset * float(np.sqrt(trace)) + offset**2
        single = self._single_suffices(trace, trace + offset_squared)
        return Moments(d, float(self.n_rows), mean, trace, True, noise, single)

    def _block_sums(self) -> Iterator[RowSums]:
        """Mean and squares of each block, which is checked on the way."""
        first = 0
        for block in self._blocks():
            if self._sparse:
                sums = sparse_row_sums(block, self.n_features, self.center)
            else:
                sums = dense_row_sums(block, self.center, tile_rows=self._dense_tile())
            for piece in [T for T, _ in block] if self._sparse else [block]:
                if not np.isfinite(sums.squares):
                    self._refuse_bad_row(piece, first)
                _checks.require_exact_integers(piece)
                first += piece.shape[0]
            yield sums

    def _refuse_bad_row(self, rows: Any, first: int) -> None:
        bad = first_bad_entry(rows)
        if bad is not None:
            row, column = self._named(first + bad[0]), self._named_column(bad[1])
            raise InvalidComponent(
                f"rows must be finite; {row} holds NaN or inf in {column}; drop or fill it first"
            )

    def _single_suffices(self, trace: float, trace_about_zero: float) -> bool:
        if self._sparse or self._explicit or not exact_in_single(self._dtype):
            return False
        # A bound on any number met on the way, for blocks whose entries are at most one.
        largest = self.n_rows * trace_about_zero * float(np.sqrt(self.n_features))
        return single_in_range(trace, largest)

    def _dense_tile(self) -> int:
        return self._tile_rows or dense_tile_rows(self.n_features)

    def _mean(self) -> Float | None:
        return self.moments().mean if self.center else None

    def _mean_over_blocks(self, of: Callable[[Any], Float]) -> Float:
        out: Float | None = None
        for block in self._blocks():
            part = of(block)
            if out is None:
                out = part
            else:
                out += part
        assert out is not None
        out /= self.n_rows
        return out

    def _product(self, V: Float) -> Float:
        mean = self._mean()
        if self._sparse:
            return self._mean_over_blocks(lambda tiles: sparse_gram_product(tiles, V, mean))
        tile, explicit = self._tile_rows, self._explicit
        return self._mean_over_blocks(
            lambda X: dense_gram_product(X, V, mean, tile_rows=tile, explicit=explicit)
        )

    def _product_single(self, V: Float) -> Float:
        tile, explicit = self._tile_rows, self._explicit_single
        mean = self._mean()
        return self._mean_over_blocks(
            lambda X: dense_gram_product(X, V, mean, tile_rows=tile, explicit=explicit, single=True)
        )

    def _dense(self) -> Float:
        mean = self._mean()
        if self._sparse:
            return self._mean_over_blocks(lambda tiles: sparse_gram(tiles, self.n_features, mean))
        return self._dense_rows(mean, single=False)

    def _dense_single(self) -> Float:
        return self._dense_rows(self._mean(), single=True)

    def _dense_rows(self, mean: Float | None, single: bool) -> Float:
        """The matrix of dense rows: tiles are centred, or their sum is where the mean is small."""
        before = mean if self._offset_counts else None
        tile = self._tile_rows
        out = self._mean_over_blocks(lambda X: dense_gram(X, before, tile_rows=tile, single=single))
        if mean is not None and before is None:
            for row, entry in zip(out, mean, strict=True):  # row by row: it may be a large matrix
                row -= entry * mean
        return out


class RowsComponent(BlockedRows):
    """The covariance, or second moment, of the rows of ``X``, without forming a d x d matrix.

    Stands for ``(1/m)(X - 1 mu_i^T)^T (X - 1 mu_i^T)`` with ``mu_i`` the mean of these rows, or for
    ``X^T X / m`` with ``center=False``.

    Parameters
    ----------
    rows : array, memmap or sparse of shape (m, d)
        Any real dtype. Sparse rows are kept as CSR and centred by algebra, never filled in.
    center : bool, default True
    tile_rows : int, optional
        Rows multiplied at a time; by default chosen from the sizes, see `tiling.product_tile_rows`.

    Notes
    -----
    Each `apply` reads the rows once, in tiles, at ``4 m d b`` flops (``4 nnz b`` sparse), computing
    in float64; other dtypes are upcast tile by tile. With ``single=True`` dense rows of float32,
    float16, bool or integers of at most 16 bits are multiplied in float32 and summed over tiles in
    float64, unless their mean dwarfs their spread or float32 would overflow.

    A memmap is read through the page cache and not copied into memory. Fortran-ordered memmaps
    work, but every tile then touches every page. NaN and infinities are found by `moments`, which
    `apply` in double precision does not call when ``center=False``.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [3.0, 4.0]])
    >>> C = RowsComponent(X)
    >>> C.apply(np.eye(2))
    array([[1., 2.],
           [2., 4.]])
    >>> C.moments().mean
    array([2., 2.])
    """

    def __init__(self, rows: Any, center: bool = True, tile_rows: int | None = None) -> None:
        shape = rows_shape(rows)
        sparse = issparse(rows)
        # The plain-array view of a memmap spares the subclass's cost at every slice.
        self._rows = canonical_csr(rows) if sparse else np.asarray(rows)
        super().__init__(shape, self._rows.dtype, sparse, center, tile_rows)
        self._tiles = list(sparse_tiles(self._rows, tile_rows)) if sparse else []

    @property
    def rows(self) -> Any:
        """The rows as they are, dense or CSR."""
        return self._rows

    def _blocks(self) -> Iterator[Any]:
        yield self._tiles if self._sparse else self._rows
