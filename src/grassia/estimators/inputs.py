"""From what `fit` is given to loaders: arrays as scikit-learn checks them, or any source of rows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia.data import Components, SumLoader, extent_of, from_rows
from grassia.data.formats import format_of_object
from grassia.data.loaders import blocks_of
from grassia.errors import InvalidInput
from grassia.weighted import WeightedLoader, column_means

Float = NDArray[np.float64]

MISSING = ("error", "mean")
#: Rows are gone through in blocks of about so many bytes.
BLOCK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a fit.

    `count` is how many rows a fit without weights would have had: the number of those with a positive
    weight, or the sum of the weights where that is larger. `weight` is the sum of the weights; `distinct`
    bounds the rank.
    """

    loaders: Components
    n_features: int
    count: int
    distinct: int
    weight: float
    dtype: np.dtype[Any]
    fill: Float | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def sparse(self) -> bool:
        """Whether any of the rows are stored sparsely."""
        found = [extent_of(loader) for loader in self.loaders]
        return any(extent is not None and extent.sparse for extent in found)

    def weighted_blocks(self) -> Iterator[tuple[Any, Float | None]]:
        """All rows in order, in blocks, filled, with their weights (None: one each)."""
        for loader in self.loaders:
            if isinstance(loader, WeightedLoader):
                yield from loader.weighted_blocks(BLOCK_BYTES)
            else:
                for rows in blocks_of(loader, BLOCK_BYTES):
                    yield rows, None


def is_source(X: Any) -> bool:
    """Whether `X` is for `grassia.from_rows`, and not an array, table or nested list as scikit-learn takes.

    >>> is_source("rows.npy"), is_source([np.zeros((3, 2)), np.ones((4, 2))]), is_source([[1.0, 2.0]])
    (True, True, False)
    """
    if isinstance(X, Components | str | os.PathLike | np.memmap):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and all(_is_shard(shard) for shard in X)
    if isinstance(X, np.ndarray) or sp.issparse(X) or hasattr(X, "__dataframe__"):
        return False
    return format_of_object(X) not in (None, "tables") or (callable(X) and not hasattr(X, "__array__"))


def _is_shard(item: Any) -> bool:
    if isinstance(item, str | os.PathLike) or sp.issparse(item) or hasattr(item, "__dataframe__"):
        return True
    if isinstance(item, np.ndarray):
        return item.ndim == 2
    return format_of_object(item) is not None or (callable(item) and not hasattr(item, "__array__"))


def components_of(X: Any, n_shards: int | None, center: bool) -> Components:
    """The loaders of a source, centred or not as asked, whatever they were made for."""
    if not isinstance(X, Components):
        try:
            return from_rows(X, n_shards, center)
        except InvalidInput as error:
            if type(error) is not InvalidInput:
                raise
            raise InvalidInput(str(error).replace("n_components", "`n_shards`")) from error
    for loader in X:
        extent = extent_of(loader)
        if (extent is not None and extent.kind != "rows") or not hasattr(loader, "blocks"):
            raise InvalidInput(
                "an estimator needs rows; got components that are matrices or operators. "
                "Use grassia.eigenspace for those."
            )
    return Components([_recentred(loader, center) for loader in X])


def _recentred(loader: Any, center: bool) -> Any:
    if isinstance(loader, SumLoader):
        return dataclasses.replace(loader, loaders=tuple(_recentred(part, center) for part in loader.loaders))
    if getattr(loader, "center", center) == center:
        return loader
    return dataclasses.replace(loader, center=center)


def prepare(
    components: Components, dtype: np.dtype[Any] | None, weights: Any, missing: str, center: bool
) -> Rows:
    """Measure the components and lay weights and fillings over them.

    `dtype` is that of rows in memory; None: what the sources say of theirs.
    """
    sizes = [_rows_of(loader) for loader in components]
    m, d = sum(sizes), _features_of(components)
    if m == 0 or d == 0:
        raise InvalidInput(f"rows must not be empty; got {m} rows x {d} features.")
    single = _is_single(dtype) if dtype is not None else _all_single(components)
    out = np.dtype(np.float32 if single else np.float64)
    names = components.feature_names
    w = None if weights is None else checked_weights(weights, m)
    if w is None and missing == "error":
        return Rows(components, d, m, m, float(m), out, None, names)
    parts = _weighted(components, sizes, w, center)
    fill = None
    if missing == "mean":
        pairs = (pair for part in parts for pair in part.weighted_blocks(BLOCK_BYTES))
        fill = column_means(pairs, d)
        parts = [dataclasses.replace(part, fill=fill) for part in parts]
    weight = float(m) if w is None else math.fsum(w)
    distinct = m if w is None else int(np.count_nonzero(w))
    count = max(distinct, math.floor(weight + 1e-9))
    return Rows(Components(parts), d, count, distinct, weight, out, fill, names)


def _weighted(
    components: Components, sizes: list[int], w: Float | None, center: bool
) -> list[WeightedLoader]:
    parts, start = [], 0
    for loader, m in zip(components, sizes, strict=True):
        own = None if w is None else w[start : start + m]
        start += m
        if own is None or own.any():  # a shard of no weight is no component
            parts.append(WeightedLoader(loader, own, None, center))
    return parts


def checked_weights(weights: Any, m: int) -> Float:
    """One finite weight of at least zero for each of `m` rows, not all zero; a number counts for all.

    >>> checked_weights(2, 3)
    array([2., 2., 2.])
    """
    try:
        given = np.asarray(weights)
        w = np.array(given, dtype=np.float64) if given.dtype.kind in "fiubO" else None
    except (TypeError, ValueError):
        w = None
    if w is None:
        raise InvalidInput(f"`sample_weight` must be numbers, one for each row; got {str(weights)[:60]}.")
    if w.ndim == 0:
        w = np.full(m, float(w))
    if w.shape != (m,):
        raise InvalidInput(
            f"`sample_weight` must have one entry for each of the {m} rows; got shape {w.shape}."
        )
    bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0.0)))
    if bad.size:
        raise InvalidInput(
            f"`sample_weight` must be finite and at least zero; row {int(bad[0])} has {w[bad[0]]}."
        )
    if not w.any():
        raise InvalidInput("`sample_weight` must not be zero for every row.")
    return w


def _rows_of(loader: Any) -> int:
    extent = extent_of(loader)
    if extent is not None:
        return extent.n_rows
    return sum(int(rows.shape[0]) for rows in blocks_of(loader, BLOCK_BYTES))


def _features_of(components: Components) -> int:
    if components.n_features is not None:
        return components.n_features
    return int(next(iter(blocks_of(components[0], BLOCK_BYTES))).shape[1])


def _all_single(components: Components) -> bool:
    found = [extent_of(loader) for loader in components]
    return all(extent is not None and _is_single(getattr(extent, "dtype", None)) for extent in found)


def _is_single(dtype: np.dtype[Any] | None) -> bool:
    """Whether numbers are float32, in whatever order of bytes."""
    return dtype is not None and np.dtype(dtype).newbyteorder("=") == np.float32


def whole_or_not(weight: float) -> int | float:
    """A sum of weights as `n_samples_`: an integer where it is one.

    >>> whole_or_not(10.0), whole_or_not(2.5)
    (10, 2.5)
    """
    return int(weight) if weight == int(weight) else weight
