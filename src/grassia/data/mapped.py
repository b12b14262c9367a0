"""Rows in files that the operating system maps: ``.npy`` files and `numpy.memmap`."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.components import RowsComponent
from grassia.data.blocks import BLOCK_BYTES, block_ranges, slices
from grassia.data.loaders import Extent, centred, file_stamp, size_text, summary
from grassia.errors import InvalidComponent

__all__ = ["MappedRowsComponent", "MemmapRowsLoader", "NpyRowsLoader", "open_npy"]

# Pages of smaller files are left in memory: giving them back and asking again costs a little.
_SMALL_FILE = 256 << 20


class MappedRowsComponent(RowsComponent):
    """Rows of a mapped file, read in blocks whose pages are given back once they are done with.

    So the memory that counts as the process's own stays that of a few blocks, however large the file; the
    operating system keeps the file in its cache as far as there is room. Rows that are not stored one after
    the other (Fortran order) share their pages, which are then not given back.

    Parameters
    ----------
    rows : ndarray of shape (m, d)
        A view of `mapping`.
    mapping : mmap.mmap or None
        A shared map of a file, not written to by anybody; None to leave pages where they are.
    center : bool, default True
    name : str
        What errors call the file.
    first : int
        The number that the first row has in the file.
    max_bytes : int
        The size of a block.
    """

    def __init__(
        self,
        rows: Any,
        mapping: mmap.mmap | None,
        center: bool = True,
        name: str = "the map",
        first: int = 0,
        max_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(rows, center)
        self._mapping = mapping
        self._max_bytes = max_bytes
        self._name, self._first = name, first

    def _named(self, row: int) -> str:
        return f"row {self._first + row} of {self._name}"

    def raw_blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, in views of at most `max_bytes`."""
        stride, across = self._rows.strides
        if self._mapping is None or stride < across or not hasattr(mmap, "MADV_DONTNEED"):
            yield from slices(self._rows, max_bytes)
            return
        base = np.frombuffer(self._mapping, np.uint8).ctypes.data
        for a, b in block_ranges(0, self.n_rows, stride, 1, max_bytes):
            block = self._rows[a:b]
            yield block
            begin = block.ctypes.data - base
            end = begin + (b - a - 1) * stride + (self.n_features - 1) * across + block.itemsize
            begin -= begin % mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _blocks(self) -> Iterator[Any]:
        return super()._blocks() if self._mapping is None else self.raw_blocks(self._max_bytes)


def _component(
    rows: NDArray[Any], path: str, mapped: Any, center: bool, first: int = 0
) -> MappedRowsComponent:
    """The component for rows of a map of `path`; `mapped` is the numpy.memmap they are in."""
    mapping = mapped._mmap if os.path.getsize(path) > _SMALL_FILE else None
    return MappedRowsComponent(rows, mapping, center, path, first)


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

    def open(self) -> MappedRowsComponent:
        if self.stamp is not None and file_stamp(self.path) not in (None, self.stamp):
            raise InvalidComponent(
                f"{self.path} must not change while it is in use; it has, since `from_rows` looked at it; "
                "call `from_rows` again"
            )
        mapped = open_npy(self.path)
        return _component(mapped[self.start : self.stop], self.path, mapped, self.center, self.start)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, not centred, in views of at most `max_bytes`."""
        return self.open().raw_blocks(max_bytes)

    def describe(self) -> str:
        name = os.path.basename(self.path)
        try:
            rows = open_npy(self.path)[self.start : self.stop]
        except InvalidComponent:
            return f"rows of {name}, which cannot be opened here{centred(self.center)}"
        return f"rows {summary(rows)}, from {name}[{self.start}:]{centred(self.center)}"

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

    def open(self) -> MappedRowsComponent:
        dtype = np.dtype(self.dtype)
        extent = dtype.itemsize
        extent += sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        try:
            data = np.memmap(self.path, np.uint8, "r", self.offset, (extent,))
        except (OSError, ValueError) as error:
            raise InvalidComponent(f"cannot map the rows file {self.path}: {error}") from error
        rows = np.ndarray(self.shape, dtype, buffer=data.data, strides=self.strides)
        return _component(rows, self.path, data, self.center)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, not centred, in views of at most `max_bytes`."""
        return self.open().raw_blocks(max_bytes)

    def describe(self) -> str:
        m, d = self.shape
        dtype = np.dtype(self.dtype)
        text = f"rows {m} x {d}, {dtype}, {size_text(m * d * dtype.itemsize)}"
        return f"{text}, mapped from {os.path.basename(self.path)}{centred(self.center)}"

    def extent(self) -> Extent:
        m, d = self.shape
        return Extent("rows", d, m, m * d, dtype=np.dtype(self.dtype))


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
        wrong = str(error)
        if os.path.isfile(path) and os.path.getsize(path) == 0:
            wrong = "it is empty"
        elif "mmap length" in wrong:
            wrong = "it is cut short: the array that it announces is longer than the file"
        raise InvalidComponent(
            f"{path} must be a .npy file holding a non-empty array of numbers; {wrong}; "
            "write it with numpy.save"
        ) from error
