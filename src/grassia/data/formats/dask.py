"""dask arrays: a chunk of rows is computed where its component lives, by dask's own synchronous scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from grassia import gram
from grassia._optional import require
from grassia.data.formats.decoding import DecodedBlocks, require_shape
from grassia.errors import InvalidComponent

__all__ = ["DaskOpener", "DaskStore", "open_object"]


def open_object(obj: Any) -> list[DaskOpener]:
    """An opener for each chunk of rows of a dask array of two dimensions whose chunks have known sizes.

    The graph of a chunk travels, not its numbers, except those that are in the graph. Computed chunks are
    kept, up to 512 MB in each process; what is beyond that is computed again in every pass.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.ones((10, 3), chunks=(4, 3)).cumsum(axis=0)
    >>> [opener.open().read(0, 1).tolist() for opener in open_object(x)]
    [[[1.0, 1.0, 1.0]], [[5.0, 5.0, 5.0]], [[9.0, 9.0, 9.0]]]
    """
    array = require("dask.array", "dask")
    if not isinstance(obj, array.Array):
        raise InvalidComponent(
            f"rows from the library dask must be an array; got {type(obj).__qualname__}; of a dask "
            "data frame take .to_dask_array(lengths=True)"
        )
    if obj.ndim == 2 and any(math.isnan(size) for chunks in obj.chunks for size in chunks):
        raise InvalidComponent(
            "the chunks of a dask array must be of known sizes; some are not; "
            "call .compute_chunk_sizes() first"
        )
    m, _ = require_shape(f"the dask array {obj.name}", obj.shape, obj.dtype)
    cuts = sorted({0, m, *(int(row) for row in np.cumsum(obj.chunks[0]))})
    optimize = require("dask", "dask").optimize
    # Optimised by itself each part's graph has no more than it needs: not the numbers of the others.
    return [
        DaskOpener(optimize(obj[a:b])[0], f"chunk {i} of the dask array {obj.name[:20]}")
        for i, (a, b) in enumerate(pairwise(cuts))
    ]


@dataclass(frozen=True, eq=False)
class DaskOpener:
    """Some rows of a dask array, all in one chunk."""

    array: Any
    name: str
    kind = "dask"

    def open(self) -> DaskStore:
        return DaskStore(self)


class DaskStore:
    """A chunk of rows, computed when first read."""

    chunk_rows = 1
    costly = True
    feature_names: list[str] | None = None

    def __init__(self, opener: DaskOpener) -> None:
        self._array, self._name = opener.array, opener.name
        m, d = self.shape = require_shape(opener.name, self._array.shape, self._array.dtype)
        self.dtype = np.dtype(self._array.dtype)
        meta = self._array._meta
        self.sparse = bool(sp.issparse(meta)) or type(meta).__module__.startswith("sparse.")
        # How many entries a sparse chunk holds is not known before it is computed: this is the most.
        self.stored = m * d
        self._blocks = DecodedBlocks([0, m], self._compute)

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``."""
        return self._blocks.read(start, stop)

    def release(self) -> None:
        self._blocks.release()

    def _compute(self, _: int) -> Any:
        try:
            rows = self._array.compute(scheduler="synchronous")
        except Exception as error:  # whatever the graph's own functions raise
            raise InvalidComponent(
                f"{self._name} cannot be computed: {type(error).__name__}: {error}"
            ) from error
        if isinstance(rows, np.ma.MaskedArray):
            raise InvalidComponent(f"{self._name} must not be masked; fill it with dask.array.ma.filled")
        if not self.sparse:
            if sp.issparse(rows):
                raise InvalidComponent(
                    f"{self._name} must come as its meta says, an array; it is {type(rows).__name__}; "
                    "give map_blocks meta=scipy.sparse.csr_array((0, 0))"
                )
            return np.asarray(rows)
        rows = rows if sp.issparse(rows) else rows.tocsr()
        return gram.canonical_csr(sp.csr_array(rows))
