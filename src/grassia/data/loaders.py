"""Loaders: small picklable recipes that a worker opens into a `Component` of its own.

Loaders travel to the workers, and are opened again after a failure; the data they point to does
not travel, except where a loader was made from an array in memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from grassia.components import (
    Component,
    MatrixComponent,
    OperatorComponent,
    RowsComponent,
    SumComponent,
)
from grassia.errors import InvalidComponent

__all__ = [
    "CallableLoader",
    "ComponentLoader",
    "Extent",
    "Loader",
    "MatrixLoader",
    "MemmapRowsLoader",
    "NpyRowsLoader",
    "OperatorLoader",
    "RowsLoader",
    "SumLoader",
    "described",
    "extent_of",
    "open_npy",
]


@dataclass(frozen=True, slots=True)
class Extent:
    """What is known of a component's data before any of it is read.

    `kind` is "rows", "matrix" or "operator"; `stored` counts the numbers kept, those of a sparse array
    without its zeros.
    """

    kind: str
    n_features: int
    n_rows: int = 0
    stored: int = 0
    sparse: bool = False

    @classmethod
    def of(cls, kind: str, data: Any) -> Extent:
        m, d = (int(size) for size in data.shape)
        sparse = bool(sp.issparse(data))
        return cls(kind, d, m, int(data.nnz) if sparse else m * d, sparse)


@runtime_checkable
class Loader(Protocol):
    """Anything with `open`, and better also `describe`, `n_features` (an int or None) and `extent()`.

    It must survive pickling by cloudpickle when workers are other processes.
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
        return f"matrix {_summary(self.matrix)}"

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

    @property
    def n_features(self) -> int:
        return int(np.shape(self.rows)[1])

    def open(self) -> Component:
        return RowsComponent(self.rows, self.center)

    def describe(self) -> str:
        return f"rows {_summary(self.rows)}{_centred(self.center)}"

    def extent(self) -> Extent:
        return Extent.of("rows", self.rows)


def file_stamp(path: str) -> tuple[int, int] | None:
    """Size and time of last change of a file; None when it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class NpyRowsLoader:
    """Rows ``start:stop`` of a two-dimensional ``.npy`` file, mapped and not loaded.

    The worker must see the file under the same path. Only the header is read until the first
    product or moment.
    """

    path: str
    start: int = 0
    stop: int | None = None
    center: bool = True
    stamp: tuple[int, int] | None = None  # size and time of change when the source was described

    @property
    def n_features(self) -> int | None:
        """Read from the header; None when the file cannot be seen from here."""
        try:
            shape = open_npy(self.path).shape
        except InvalidComponent:
            return None
        return int(shape[1]) if len(shape) == 2 else None

    def open(self) -> Component:
        if self.stamp is not None and file_stamp(self.path) not in (None, self.stamp):
            raise InvalidComponent(
                f"{self.path} must not change while it is in use; it has, since `from_rows` looked at it; "
                "call `from_rows` again"
            )
        return RowsComponent(open_npy(self.path)[self.start : self.stop], self.center)

    def describe(self) -> str:
        name = Path(self.path).name
        try:
            rows = open_npy(self.path)[self.start : self.stop]
        except InvalidComponent:
            return f"rows of {name}, which cannot be opened here{_centred(self.center)}"
        return f"rows {_summary(rows)}, from {name}[{self.start}:]{_centred(self.center)}"

    def extent(self) -> Extent | None:
        try:
            return Extent.of("rows", open_npy(self.path)[self.start : self.stop])
        except (InvalidComponent, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class MemmapRowsLoader:
    """Rows in a raw file: what a `numpy.memmap`, or a slice of one, shows, without the data.

    `offset` and `strides` are in bytes. Use `of` to make one from a memmap.
    """

    path: str
    dtype: str
    offset: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    center: bool = True

    @classmethod
    def of(cls, rows: NDArray[Any], center: bool = True) -> MemmapRowsLoader | None:
        """The loader for a memmap of a file, or None when the file alone cannot give it back.

        That is so for copy-on-write maps (their changes are not in the file), maps without a file
        name, deleted files and reversed views.
        """
        name = getattr(rows, "filename", None)
        if not isinstance(rows, np.memmap) or name is None or rows.mode == "c":
            return None
        base: Any = rows
        while isinstance(base, np.ndarray):
            base = base.base
        if not isinstance(base, mmap.mmap) or not os.path.exists(name):
            return None
        if min(rows.strides) < 0:
            return None
        # A slice keeps the offset of the whole map, so its own is worked out from addresses; the
        # map itself begins at the page boundary at or before the offset it was asked for.
        begin = rows.offset - rows.offset % mmap.ALLOCATIONGRANULARITY
        offset = begin + rows.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
        m, d = rows.shape
        path = os.path.abspath(os.fspath(name))
        s0, s1 = rows.strides
        return cls(path, rows.dtype.str, offset, (m, d), (s0, s1), center)

    @property
    def n_features(self) -> int:
        return self.shape[1]

    def open(self) -> Component:
        dtype = np.dtype(self.dtype)
        extent = dtype.itemsize
        extent += sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        try:
            data = np.memmap(self.path, np.uint8, "r", self.offset, (extent,))
        except (OSError, ValueError) as error:
            raise InvalidComponent(f"cannot map the rows file {self.path}: {error}") from error
        rows = np.ndarray(self.shape, dtype, buffer=data.data, strides=self.strides)
        return RowsComponent(rows, self.center)

    def describe(self) -> str:
        m, d = self.shape
        dtype = np.dtype(self.dtype)
        text = f"rows {m} x {d}, {dtype}, {_size(m * d * dtype.itemsize)}"
        return f"{text}, mapped from {Path(self.path).name}{_centred(self.center)}"

    def extent(self) -> Extent:
        m, d = self.shape
        return Extent("rows", d, m, m * d)


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

    def describe(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"rows from {name}(){_centred(self.center)}"


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
        if self.n_features is None and isinstance(self.operator, LinearOperator):
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

    def describe(self) -> str:
        return f"sum of {len(self.loaders)}: " + "; ".join(map(described, self.loaders))

    def extent(self) -> Extent | None:
        parts = [extent_of(loader) for loader in self.loaders]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or len({part.kind for part in found}) > 1:
            return None
        rows, stored = sum(part.n_rows for part in found), sum(part.stored for part in found)
        sparse = any(part.sparse for part in found)
        return Extent(found[0].kind, found[0].n_features, rows, stored, sparse)


def described(loader: Any) -> str:
    """The loader's own line, or its repr where it has none."""
    describe = getattr(loader, "describe", None)
    return str(describe()) if callable(describe) else repr(loader)


def extent_of(loader: Any) -> Extent | None:
    """The loader's own extent, or None where it cannot tell."""
    extent = getattr(loader, "extent", None)
    found: Extent | None = extent() if callable(extent) else None
    return found


def open_npy(path: str) -> NDArray[Any]:
    """Map a ``.npy`` file for reading; only its header is read.

    Raises
    ------
    InvalidComponent
        If the file is missing or is not a ``.npy`` file of numbers.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise InvalidComponent(
            f"the rows file must exist where the worker runs; there is none at {path}"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidComponent(
            f"{path} must be a .npy file holding a non-empty array of numbers; {error}; "
            "write it with numpy.save"
        ) from error


def _centred(center: bool) -> str:
    return ", centred" if center else ", not centred"


def _summary(data: Any) -> str:
    m, d = data.shape
    if sp.issparse(data):
        return f"{m} x {d}, {data.dtype}, sparse with {data.nnz} stored"
    return f"{m} x {d}, {data.dtype}, {_size(data.nbytes)}"


def _size(n: int) -> str:
    size = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
