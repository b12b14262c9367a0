"""dask arrays, delayed objects and futures: rows that are computed, or that lie on a Dask cluster already.

What is lazy is computed where its component lives, by dask's own synchronous scheduler. What was persisted
stays where it is: only the names of its parts travel, and each component is opened where its rows are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from grassia._optional import require
from grassia._scipy import issparse
from grassia.data import formats
from grassia.data.formats.decoding import DecodedBlocks, require_shape
from grassia.data.stored import NamedRows
from grassia.errors import InvalidComponent
from grassia.passes.sparse import canonical_csr

__all__ = ["DaskOpener", "DaskRows", "DaskStore", "futures_in", "open_object"]


def open_object(obj: Any) -> list[DaskOpener] | DaskRows:
    """An opener for each chunk of rows of a dask array of two dimensions whose chunks have known sizes.

    The graph of a chunk travels, not its numbers, except those that are in the graph. Computed chunks are
    kept, up to 512 MB in each process; what is beyond that is computed again in every pass. A `Delayed` or
    a `Future` is one shard: an array, a sparse matrix or a table, of which nothing is known before.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.ones((10, 3), chunks=(4, 3)).cumsum(axis=0)
    >>> [opener.open().read(0, 1).tolist() for opener in open_object(x)]
    [[[1.0, 1.0, 1.0]], [[5.0, 5.0, 5.0]], [[9.0, 9.0, 9.0]]]
    """
    array = require("dask.array", "dask")
    if _is_future(obj) or isinstance(obj, require("dask.delayed", "dask").Delayed):
        futures = futures_of(obj)
        return DaskRows(obj, futures, bool(futures))
    if not isinstance(obj, array.Array):
        raise InvalidComponent(
            "rows from the library dask must be an array, a Delayed or a Future; got "
            f"{type(obj).__qualname__}; of a dask data frame take .to_dask_array(lengths=True)"
        )
    if obj.ndim == 2 and any(math.isnan(size) for chunks in obj.chunks for size in chunks):
        raise InvalidComponent(
            "the chunks of a dask array must be of known sizes; some are not; "
            "call .compute_chunk_sizes() first"
        )
    m, _ = require_shape(f"the dask array {obj.name}", obj.shape, obj.dtype)
    obj = _known_to_the_client(obj)
    on_cluster = {future.key: future for future in futures_of(obj)}
    cuts = sorted({0, m, *(int(row) for row in np.cumsum(obj.chunks[0]))})
    optimize = require("dask", "dask").optimize
    openers = []
    for i, (a, b) in enumerate(pairwise(cuts)):
        part, futures = obj[a:b], ()
        if on_cluster:
            needed = part.__dask_graph__().cull(set(_flat(part.__dask_keys__()))).to_dict()
            futures = tuple(on_cluster[key] for key in needed if key in on_cluster)
        # Optimised by itself each part's graph has no more than it needs: not the numbers of the others.
        name = f"chunk {i} of the dask array {obj.name[:20]}"
        openers.append(DaskOpener(optimize(part)[0], name, bool(futures), futures))
    return openers


def futures_in(loader: Any) -> tuple[Any, ...]:
    """The futures whose data a loader of rows opens, also one that is merged from several."""
    if isinstance(loader, DaskOpener | DaskRows):
        return loader.futures
    inner = [getattr(loader, name, None) for name in ("opener", "function")]
    for name in ("openers", "loaders"):
        several = getattr(loader, name, None)
        inner += several if isinstance(several, tuple) else ()
    return tuple(future for one in inner if one is not None for future in futures_in(one))


def futures_of(obj: Any) -> tuple[Any, ...]:
    """The futures in a dask collection, or the future itself."""
    distributed = sys.modules.get("distributed")  # without it there are none
    return () if distributed is None else tuple(distributed.futures_of(obj))


@dataclass(frozen=True, eq=False)
class DaskOpener:
    """Some rows of a dask array, all in one chunk.

    The futures that it needs, which keep the cluster from dropping its rows, do not travel.
    """

    array: Any
    name: str
    on_cluster: bool = False
    futures: tuple[Any, ...] = ()
    kind = "dask"

    def __reduce__(self) -> tuple[Any, ...]:
        return DaskOpener, (self.array, self.name, self.on_cluster)

    def open(self) -> DaskStore:
        return DaskStore(self)


class DaskStore:
    """A chunk of rows, computed when first read."""

    chunk_rows = 1
    costly = True
    feature_names: list[str] | None = None

    def __init__(self, opener: DaskOpener) -> None:
        self._array, self._name, self._on_cluster = opener.array, opener.name, opener.on_cluster
        m, d = self.shape = require_shape(opener.name, self._array.shape, self._array.dtype)
        self.dtype = np.dtype(self._array.dtype)
        meta = self._array._meta
        self.sparse = issparse(meta) or type(meta).__module__.startswith("sparse.")
        # How many entries a sparse chunk holds is not known before it is computed: this is the most.
        self.stored = m * d
        self._blocks = DecodedBlocks([0, m], self._compute)

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``."""
        return self._blocks.read(start, stop)

    def release(self) -> None:
        self._blocks.release()

    def _compute(self, _: int) -> Any:
        rows = _computed(self._array, self._name, self._on_cluster)
        if isinstance(rows, np.ma.MaskedArray):
            raise InvalidComponent(f"{self._name} must not be masked; fill it with dask.array.ma.filled")
        if not self.sparse:
            if issparse(rows):
                raise InvalidComponent(
                    f"{self._name} must come as its meta says, an array; it is {type(rows).__name__}; "
                    "give map_blocks meta=scipy.sparse.csr_array((0, 0))"
                )
            return np.asarray(rows)
        rows = rows if issparse(rows) else rows.tocsr()
        return canonical_csr(rows)


@dataclass(frozen=True, eq=False)
class DaskRows:
    """The rows that a `Delayed` or a `Future` stands for; called where they are opened."""

    what: Any
    futures: tuple[Any, ...] = ()
    on_cluster: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        what = _Key(self.what.key) if _is_future(self.what) else self.what
        return DaskRows, (what, (), self.on_cluster)

    def __post_init__(self) -> None:
        kind = "future" if isinstance(self.what, _Key) or _is_future(self.what) else "delayed"
        # What a loader of callables is described by.
        object.__setattr__(self, "__qualname__", f"{kind} {str(self.what.key)[:20]}")

    def __call__(self) -> Any:
        rows = _computed(self.what, f"the {self.__dict__['__qualname__']}", self.on_cluster)
        if formats.format_of_object(rows) is not None:
            rows = formats.open_object(rows, {})
        return rows.rows if isinstance(rows, NamedRows) else rows


@dataclass(frozen=True, slots=True)
class _Key:
    """A future on its way: a worker makes one of its own of it."""

    key: Any


def _computed(what: Any, name: str, on_cluster: bool) -> Any:
    try:
        if not on_cluster:
            return what.compute(scheduler="synchronous")
        return _from_the_cluster(what, name)
    except InvalidComponent:
        raise
    except CancelledError as error:
        raise InvalidComponent(
            f"{name} must stay on the Dask cluster while it is in use; it was cancelled or lost there "
            f"({error}); persist it again"
        ) from error
    except Exception as error:  # whatever the graph's own functions raise
        raise InvalidComponent(f"{name} cannot be computed: {type(error).__name__}: {error}") from error


def _from_the_cluster(what: Any, name: str) -> Any:
    """What lies on a cluster, brought to the worker that this runs in, or to the client."""
    distributed = require("distributed", "dask")
    try:
        client = distributed.get_client()
    except ValueError as error:
        raise InvalidComponent(
            f"{name} is on a Dask cluster, which can be reached from its own workers only; "
            "use backend='dask', or call .compute() and give the numbers"
        ) from error
    try:
        here = {"workers": [distributed.get_worker().address], "allow_other_workers": False}
    except ValueError:
        here = {}
    if isinstance(what, _Key):
        what = distributed.Future(what.key, client)
    if not _is_future(what):
        return client.compute(what, **here).result()
    return client.submit(_itself, what, pure=False, **here).result() if here else what.result()


def _itself(rows: Any) -> Any:
    return rows


def _known_to_the_client(array: Any) -> Any:
    """The array, with the futures of its chunks where the program's client has one for each already."""
    distributed = sys.modules.get("distributed")
    if distributed is None or futures_of(array):
        return array
    try:
        client = distributed.Client.current()
    except ValueError:
        return array
    known = all(key in client.futures for key in _flat(array.__dask_keys__()))
    return client.persist(array) if known else array


def _flat(keys: Any) -> Iterator[Any]:
    for one in keys:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield one


def _is_future(obj: Any) -> bool:
    return type(obj).__module__.startswith("distributed.") and type(obj).__name__ == "Future"
