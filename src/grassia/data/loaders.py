"""Loaders: small picklable recipes that a worker opens into a `Component` of its own.

Loaders travel to the workers, and are opened again after a failure; the data they point to does
not travel, except where a loader was made from an array in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grassia._scipy import is_linear_operator, issparse
from grassia.components import (
    Component,
    MatrixComponent,
    OperatorComponent,
    RowsComponent,
    SumComponent,
    rows_shape,
)
from grassia.data.blocks import BLOCK_BYTES, row_bytes, slices
from grassia.errors import InvalidInput

__all__ = [
    "CallableLoader",
    "ComponentLoader",
    "Extent",
    "Loader",
    "MatrixLoader",
    "OperatorLoader",
    "RowsLoader",
    "SumLoader",
    "blocks_of",
    "centred",
    "described",
    "extent_of",
    "file_stamp",
    "size_text",
    "summary",
]


@dataclass(frozen=True, slots=True)
class Extent:
    """What is known of a component's data before any of it is read.

    `kind` is "rows", "matrix" or "operator"; `stored` counts the numbers kept, those of a sparse array
    without its zeros. `dtype` is that of these numbers, None where it is not known.
    """

    kind: str
    n_features: int
    n_rows: int = 0
    stored: int = 0
    sparse: bool = False
    dtype: np.dtype[Any] | None = None

    @classmethod
    def of(cls, kind: str, data: Any) -> Extent:
        m, d = (int(size) for size in data.shape)
        sparse = issparse(data)
        return cls(kind, d, m, int(data.nnz) if sparse else m * d, sparse, np.dtype(data.dtype))

    @property
    def nbytes(self) -> int | None:
        """Bytes in memory, those of a sparse array with its indices; None where the dtype is not known."""
        if self.dtype is None:
            return None
        per_row = self.stored / max(self.n_rows, 1) if self.sparse else None
        if per_row is None:
            return self.stored * self.dtype.itemsize
        return round(self.n_rows * row_bytes(self.n_features, self.dtype, per_row))


@runtime_checkable
class Loader(Protocol):
    """Anything with `open`, and better also `describe`, `n_features` (an int or None) and `extent()`.

    Loaders of rows also have ``blocks(max_bytes)``, which goes over the rows themselves, and may have
    `feature_names`. A loader must survive pickling by cloudpickle when workers are other processes.
    """

    def open(self) -> Component:
        """Open the data and return the component; called in the worker."""
        ...

    def describe(self) -> str:
        """One line: kind, shape, dtype and size, as far as they are known without reading data."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MatrixLoader:
    """A symmetric matrix held in memory, dense or sparse; it travels with the loader.

    Examples
    --------
    >>> MatrixLoader(np.eye(3)).describe()
    'matrix 3 x 3, float64, 72 B'
    """

    matrix: Any

    @property
    def n_features(self) -> int:
        return int(np.shape(self.matrix)[1])

    def open(self) -> Component:
        return MatrixComponent(self.matrix)

    def describe(self) -> str:
        return f"matrix {summary(self.matrix)}"

    def extent(self) -> Extent:
        return Extent.of("matrix", self.matrix)


@dataclass(frozen=True, slots=True, eq=False)
class RowsLoader:
    """Rows held in memory, dense or sparse; they travel with the loader.

    Examples
    --------
    >>> RowsLoader(np.zeros((100, 3), np.float32)).describe()
    'rows 100 x 3, float32, 1.2 kB, centred'
    """

    rows: Any
    center: bool = True
    feature_names: tuple[str, ...] | None = None

    @property
    def n_features(self) -> int:
        return int(np.shape(self.rows)[1])

    def open(self) -> Component:
        component = RowsComponent(self.rows, self.center)
        component.feature_names = self.feature_names
        return component

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, not centred, in views of at most `max_bytes`."""
        return slices(self.rows, max_bytes)

    def describe(self) -> str:
        return f"rows {summary(self.rows)}{centred(self.center)}"

    def extent(self) -> Extent:
        return Extent.of("rows", self.rows)


@dataclass(frozen=True, slots=True)
class CallableLoader:
    """Rows made by calling `function` in the worker; nothing is known about them before that.

    Examples
    --------
    >>> loader = CallableLoader(lambda: np.ones((4, 2)), center=False)
    >>> loader.open().moments().trace
    2.0
    """

    function: Callable[[], Any]
    center: bool = True

    @property
    def n_features(self) -> None:
        return None

    def open(self) -> Component:
        return RowsComponent(self.function(), self.center)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, not centred; the function is called, and its rows are cut."""
        rows = self.function()
        rows_shape(rows)
        yield from slices(rows if issparse(rows) else np.asarray(rows), max_bytes)

    def describe(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"rows from {name}(){centred(self.center)}"


@dataclass(frozen=True, slots=True, eq=False)
class OperatorLoader:
    """A symmetric LinearOperator, or a callable ``V -> A V`` with its size.

    The fields are the arguments of `OperatorComponent`.
    """

    operator: Any
    n_features: int | None = None
    trace: float | None = None
    positive: bool = False

    def __post_init__(self) -> None:
        if self.n_features is None and is_linear_operator(self.operator):
            object.__setattr__(self, "n_features", int(self.operator.shape[1]))

    def open(self) -> Component:
        return OperatorComponent(self.operator, self.n_features, self.trace, self.positive)

    def describe(self) -> str:
        return f"operator {self.n_features} x {self.n_features}, {type(self.operator).__name__}"

    def extent(self) -> Extent | None:
        return None if self.n_features is None else Extent("operator", self.n_features)


@dataclass(frozen=True, slots=True, eq=False)
class ComponentLoader:
    """A component that is already open; it travels as it is, data included."""

    component: Component

    @property
    def n_features(self) -> int:
        return self.component.n_features

    def open(self) -> Component:
        return self.component

    def describe(self) -> str:
        d = self.n_features
        return f"{type(self.component).__name__} {d} x {d}"

    def extent(self) -> Extent:
        return Extent("operator", self.n_features)


@dataclass(frozen=True, slots=True, eq=False)
class SumLoader:
    """Several loaders opened in one worker and merged, as by SumComponent."""

    loaders: tuple[Loader, ...]
    weights: tuple[float, ...] | None = None

    @property
    def n_features(self) -> int | None:
        sizes = (getattr(loader, "n_features", None) for loader in self.loaders)
        return next((size for size in sizes if size is not None), None)

    def open(self) -> Component:
        return SumComponent([loader.open() for loader in self.loaders], self.weights)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        names = (getattr(loader, "feature_names", None) for loader in self.loaders)
        return next((found for found in names if found is not None), None)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows of all parts as they are, not centred, one part after the other."""
        for loader in self.loaders:
            yield from blocks_of(loader, max_bytes)

    def describe(self) -> str:
        return f"sum of {len(self.loaders)}: " + "; ".join(map(described, self.loaders))

    def extent(self) -> Extent | None:
        parts = [extent_of(loader) for loader in self.loaders]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or len({part.kind for part in found}) > 1:
            return None
        rows, stored = sum(part.n_rows for part in found), sum(part.stored for part in found)
        sparse = any(part.sparse for part in found)
        dtypes = [part.dtype for part in found if part.dtype is not None]
        dtype = np.result_type(*dtypes) if len(dtypes) == len(found) else None
        return Extent(found[0].kind, found[0].n_features, rows, stored, sparse, dtype)


def described(loader: Any) -> str:
    """The loader's own line, or its repr where it has none."""
    describe = getattr(loader, "describe", None)
    return str(describe()) if callable(describe) else repr(loader)


def extent_of(loader: Any) -> Extent | None:
    """The loader's own extent, or None where it cannot tell."""
    extent = getattr(loader, "extent", None)
    found: Extent | None = extent() if callable(extent) else None
    return found


def blocks_of(loader: Any, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
    """The loader's own rows, block by block.

    Raises
    ------
    InvalidInput
        If it is not one of rows.
    """
    blocks = getattr(loader, "blocks", None)
    if not callable(blocks):
        raise InvalidInput(
            f"rows can be gone over only where components are made of rows; this is: {described(loader)}; "
            "use from_rows"
        )
    yield from blocks(max_bytes)


def file_stamp(path: str) -> tuple[int, int] | None:
    """Size and time of last change of a file; None when it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def centred(center: bool) -> str:
    """The words of a description for `center`."""
    return ", centred" if center else ", not centred"


def summary(data: Any) -> str:
    """Shape, dtype and size of an array, or the number of entries of a sparse one."""
    m, d = data.shape
    if issparse(data):
        return f"{m} x {d}, {data.dtype}, sparse with {data.nnz} stored"
    return f"{m} x {d}, {data.dtype}, {size_text(data.nbytes)}"


def size_text(n: int) -> str:
    """A number of bytes in words.

    >>> size_text(999), size_text(1_250_000)
    ('999 B', '1.2 MB')
    """
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
