"""Rows that count unequally, and rows with holes: weights and missing values, block by block.

The weighted rows stand for `sum_r w_r (x_r - mu)(x_r - mu)^T / sum_r w_r` with the weighted mean `mu`, so
whole numbers as weights are the same as rows repeated so many times. A missing value (NaN) is filled while
its block is read; nothing is written back and sparse rows stay sparse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia._checks import OVERFLOW
from grassia.components import Component, Moments
from grassia.data.loaders import Extent, blocks_of, described, extent_of
from grassia.errors import InvalidComponent, InvalidInput
from grassia.interruption import checker

__all__ = ["RunningMoments", "WeightedLoader", "WeightedRowsComponent", "column_means"]

Float = NDArray[np.float64]
WeightedBlock = tuple[Any, Float]

TOO_SMALL = "the squares of the rows must not all be zero in float64 where the rows are not; rescale the data"

#: Rows are read in blocks of about so many bytes.
BLOCK_BYTES = 8 << 20


class RunningMoments:
    """Weight, mean and sums of squares (about the mean, or zero) of the rows so far, column by column.

    Batches merge as Chan et al. do: through differences of means, so that a mean far from zero costs no
    digits.

    Examples
    --------
    >>> X = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]])
    >>> sums = RunningMoments(2)
    >>> for batch in (X[:1], X[1:]):
    ...     sums.add(batch)
    >>> sums.weight, sums.mean, sums.column_squares
    (3.0, array([3., 4.]), array([ 8., 24.]))
    """

    def __init__(self, n_features: int, center: bool = True) -> None:
        self.center = center
        self.weight = 0.0
        self.rows = 0
        self.mean: Float = np.zeros(n_features)
        self.column_squares: Float = np.zeros(n_features)

    @property
    def squares(self) -> float:
        """The squares of all columns together."""
        return float(self.column_squares.sum())

    def add(self, rows: Any, weights: Float | None = None) -> None:
        """Take a block of rows, dense or CSR; `weights` has one entry for each of them."""
        w = np.ones(rows.shape[0]) if weights is None else weights
        weight = float(w.sum())
        self.rows += int(rows.shape[0])
        if weight == 0.0:
            return
        whole = self.weight + weight
        with np.errstate(over="ignore", invalid="ignore"):
            measure = _sparse_moments if sp.issparse(rows) else _dense_moments
            mean, squares = measure(rows, w, weight, self.center)
            step = mean - self.mean
            if self.center:
                squares += step**2 * (self.weight * weight / whole)
            self.column_squares = self.column_squares + squares
            self.mean = self.mean + step * (weight / whole)
        self.weight = whole


def _dense_moments(rows: Any, w: Float, weight: float, center: bool) -> tuple[Float, Float]:
    X = np.asarray(rows, dtype=np.float64)
    mean = w @ X / weight
    if not center:
        return mean, w @ X**2
    return mean, w @ (X - mean) ** 2


def _sparse_moments(rows: Any, w: Float, weight: float, center: bool) -> tuple[Float, Float]:
    d, at = rows.shape[1], rows.indices
    x = rows.data.astype(np.float64)
    each = np.repeat(w, np.diff(rows.indptr))
    mean = np.bincount(at, weights=each * x, minlength=d) / weight
    if not center:
        about_zero = np.asarray(np.bincount(at, weights=each * x**2, minlength=d), dtype=np.float64)
        return mean, about_zero
    absent = np.maximum(weight - np.bincount(at, weights=each, minlength=d), 0.0)
    x -= mean[at]
    squares: Float = np.bincount(at, weights=each * x**2, minlength=d) + absent * mean**2
    return mean, squares


def column_means(blocks: Iterable[WeightedBlock], n_features: int) -> Float:
    """The weighted mean of what is there in each column; NaN counts as absent.

    Raises
    ------
    InvalidInput
        If a column has no value at all.

    Examples
    --------
    >>> column_means([(np.array([[1.0, np.nan], [3.0, 5.0]]), np.ones(2))], 2)
    array([2., 5.])
    """
    sums, weights = np.zeros(n_features), np.zeros(n_features)
    for rows, w in blocks:
        if sp.issparse(rows):
            x = rows.data.astype(np.float64)
            each = np.repeat(w, np.diff(rows.indptr))
            absent = np.isnan(x)
            sums += np.bincount(rows.indices, weights=np.where(absent, 0.0, each * x), minlength=n_features)
            weights += w.sum() - np.bincount(rows.indices, weights=absent * each, minlength=n_features)
        else:
            X = np.asarray(rows, dtype=np.float64)
            absent = np.isnan(X)
            sums += w @ np.where(absent, 0.0, X)
            weights += w @ ~absent
    # Differences of weights may leave a trace of rounding where nothing is left.
    empty = np.flatnonzero(weights <= 1e-12 * max(float(weights.max(initial=0.0)), 1e-300))
    if empty.size:
        raise InvalidInput(
            "a column needs at least one value for its mean to fill the gaps; "
            f"column {int(empty[0])} has none. "
            "Leave it out."
        )
    means: Float = sums / weights
    return means


def filled(rows: Any, fill: Float | None) -> Any:
    """The rows with NaN replaced by `fill`, column by column; the rows themselves where there is none."""
    if fill is None:
        return rows
    absent = np.isnan(rows.data if sp.issparse(rows) else rows)
    if not absent.any():
        return rows
    if not sp.issparse(rows):
        return np.where(absent, fill, rows)
    out = rows.astype(np.float64)
    out.data[absent] = fill[rows.indices[absent]]
    return out


@dataclass(frozen=True, slots=True, eq=False)
class WeightedLoader:
    """The rows of another loader with a weight for each, and with gaps filled.

    Parameters
    ----------
    inner : Loader
        One of rows, with `blocks()`.
    weights : ndarray, optional
        At least zero, one for each row; their sum is positive. Default: one each.
    fill : ndarray of shape (n_features,), optional
        What stands for NaN in each column; without it NaN is an error.
    center : bool, default True

    Examples
    --------
    >>> import grassia
    >>> X = np.array([[1.0, 2.0], [3.0, np.nan]])
    >>> loader = WeightedLoader(grassia.from_rows(X)[0], np.array([1.0, 3.0]), fill=np.array([0.0, 2.0]))
    >>> loader.open().moments().mean
    array([2.5, 2. ])
    """

    inner: Any
    weights: Float | None = None
    fill: Float | None = None
    center: bool = True

    @property
    def n_features(self) -> int | None:
        found: int | None = getattr(self.inner, "n_features", None)
        return found

    def open(self) -> Component:
        return WeightedRowsComponent(self)

    def describe(self) -> str:
        more = [", weighted" if self.weights is not None else "", ", filled" if self.fill is not None else ""]
        return described(self.inner) + "".join(more)

    def extent(self) -> Extent | None:
        return extent_of(self.inner)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows in order, filled, not weighted."""
        for rows in blocks_of(self.inner, max_bytes):
            yield filled(rows, self.fill)

    def weighted_blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[WeightedBlock]:
        """The same, each block with the weights of its rows."""
        start = 0
        for rows in self.blocks(max_bytes):
            n = rows.shape[0]
            w = np.ones(n) if self.weights is None else self.weights[start : start + n]
            if len(w) < n:
                break
            yield rows, w
            start += n
        if self.weights is not None and start != len(self.weights):
            raise InvalidComponent(
                f"there must be one weight for each row; got {len(self.weights)} weights "
                f"and {'more' if start < len(self.weights) else start} rows"
            )


class WeightedRowsComponent(Component):
    """The weighted covariance (or second moment) of rows that are read block by block.

    Parameters
    ----------
    loader : WeightedLoader

    Notes ----- Each product reads the rows once, one block in memory at a time. Dense blocks are centred
    explicitly, sparse ones by algebra. `Moments.count` is the sum of the weights.

    Examples
    --------
    >>> import grassia
    >>> X = np.array([[0.0, 1.0], [4.0, 1.0]])
    >>> component = WeightedLoader(grassia.from_rows(X)[0], np.array([1.0, 3.0])).open()
    >>> component.apply(np.eye(2))
    array([[3., 0.],
           [0., 0.]])
    """

    def __init__(self, loader: WeightedLoader) -> None:
        d = loader.n_features
        if d is None:
            first = next(iter(loader.blocks()), None)
            if first is None:
                raise InvalidComponent("rows must not be empty; got none; leave the empty shard out")
            d = int(first.shape[1])
        super().__init__(d)
        self._loader = loader
        self._weight = 1.0

    def _measure(self) -> Moments:
        sums = RunningMoments(self.n_features, self._loader.center)
        for rows, w in self._loader.weighted_blocks():
            before = sums.rows
            sums.add(rows, w)
            if not np.isfinite(sums.squares):
                raise InvalidComponent(bad_row(rows, before))
        if not sums.weight > 0.0:
            raise InvalidComponent("the weights of a shard must not all be zero; leave the shard out")
        self._weight = sums.weight
        trace = max(0.0, sums.squares) / sums.weight
        offset = float(np.finfo(np.float64).eps * np.linalg.norm(sums.mean)) if self._loader.center else 0.0
        noise = 4.0 * offset * float(np.sqrt(trace)) + offset**2
        mean = sums.mean if self._loader.center else None
        return Moments(self.n_features, sums.weight, mean, trace, True, noise)

    def _product(self, V: Float) -> Float:
        mean = self.moments().mean
        out = np.zeros(V.shape)
        check = checker()
        for rows, w in self._loader.weighted_blocks():
            check()
            if sp.issparse(rows):
                # The weighted sum of these is zero, so that the other factor needs no centring.
                out += rows.T @ (w[:, None] * (rows @ V if mean is None else rows @ V - mean @ V))
            else:
                T = _centred(rows, mean)
                out += T.T @ (w[:, None] * (T @ V))
        out /= self._weight
        return out

    def _dense(self) -> Float:
        out = np.zeros((self.n_features, self.n_features))
        mean = self.moments().mean
        check = checker()
        for rows, w in self._loader.weighted_blocks():
            check()
            if sp.issparse(rows):
                T = rows.astype(np.float64)
                out += (T.T @ sp.diags_array(w) @ T).toarray()
                if mean is not None:
                    cross = np.outer(T.T @ w, mean)
                    out += w.sum() * np.outer(mean, mean) - cross - cross.T
            else:
                T = np.sqrt(w)[:, None] * _centred(rows, mean)
                out += T.T @ T
        out /= self._weight
        return (out + out.T) / 2.0


def _centred(rows: Any, mean: Float | None) -> Float:
    X = np.asarray(rows, dtype=np.float64)
    return X if mean is None else X - mean


def bad_row(rows: Any, before: int = 0) -> str:
    """What to say of rows whose squares are not finite; `before` of them came in other blocks."""
    if sp.issparse(rows):
        entries = np.flatnonzero(~np.isfinite(rows.data))
        bad = np.searchsorted(rows.indptr, entries, side="right") - 1
    else:
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size == 0:
        return OVERFLOW
    return f"rows must be finite; row {before + int(bad[0])} holds NaN or inf; drop or fill it first"
