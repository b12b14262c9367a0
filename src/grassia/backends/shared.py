"""Arrays in shared memory: the data once for all processes, and two slots for each worker."""

from __future__ import annotations

import io
import mmap
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
SMALL = 1 << 16  # arrays below this travel inside the pickle
Layout = list[tuple[str, tuple[int, ...], str, int]]

_kept: list[shared_memory.SharedMemory] = []  # a mapped array needs its segment as long as it lives


def leave_tracking_to_the_owner() -> None:
    """Keep a worker's exit from unlinking segments that the server owns.

    Before Python 3.13 merely attaching to a segment registers it for clean-up at exit. Called once,
    in the worker process only.
    """
    if sys.version_info < (3, 13):
        resource_tracker.register = lambda name, rtype: None


def create(nbytes: int) -> shared_memory.SharedMemory:
    """A new segment; its name says whose it is, should it ever be found left over."""
    name = f"grassia_{os.getpid()}_{secrets.token_hex(4)}"
    return shared_memory.SharedMemory(name=name, create=True, size=max(1, nbytes))


def attach(name: str) -> shared_memory.SharedMemory:
    """Attach to a segment made by the server."""
    if sys.version_info >= (3, 13):
        return shared_memory.SharedMemory(name=name, track=False)
    return shared_memory.SharedMemory(name=name)


def attached_array(name: str, shape: tuple[int, ...], dtype: str, order: str) -> NDArray[Any]:
    """An array of the server's, as a read-only view of its segment."""
    segment = attach(name)
    _kept.append(segment)
    array: NDArray[Any] = np.ndarray(
        shape, np.dtype(dtype), buffer=segment.buf, order="F" if order == "F" else "C"
    )
    array.flags.writeable = False
    return array


def mapped_array(path: str, shape: tuple[int, ...], dtype: str, offset: int, order: str) -> NDArray[Any]:
    """An array that lives in a file, mapped read-only."""
    mapped = np.memmap(path, np.dtype(dtype), "r", offset, shape, "F" if order == "F" else "C")
    return np.asarray(mapped)


class SharedStore:
    """Puts big arrays where every worker process can map them; `close` removes them."""

    def __init__(self) -> None:
        self._segments: list[shared_memory.SharedMemory] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[int, tuple[NDArray[Any], tuple[Any, ...]]] = {}

    def put(self, array: NDArray[Any]) -> tuple[Any, ...]:
        """The way to rebuild `array` in a worker, as a pickle reduction."""
        if id(array) not in self._known:
            self._known[id(array)] = (array, self._place(array))
        return self._known[id(array)][1]

    def _place(self, array: NDArray[Any]) -> tuple[Any, ...]:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        flat = np.asarray(array, order="F" if order == "F" else "C")
        if _room_in_memory() > 1.2 * flat.nbytes:
            segment = create(flat.nbytes)
            self._segments.append(segment)
            view: NDArray[Any] = np.ndarray(
                flat.shape, flat.dtype, buffer=segment.buf, order="F" if order == "F" else "C"
            )
            view[...] = flat
            del view
            return attached_array, (segment.name, flat.shape, flat.dtype.str, order)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="grassia-")
        path = Path(self._folder.name) / f"{len(self._known)}.bin"
        with path.open("wb") as file:
            file.write(flat.tobytes(order="F" if order == "F" else "C"))
        return mapped_array, (str(path), flat.shape, flat.dtype.str, 0, order)

    def dumps(self, value: Any) -> bytes:
        """Pickle `value` with its big arrays left in the store and its file maps by name."""
        buffer = io.BytesIO()
        _SharingPickler(buffer, self.put).dump(value)
        return buffer.getvalue()

    def close(self) -> None:
        self._known.clear()
        for segment in self._segments:
            segment.close()
            segment.unlink()
        self._segments.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _SharingPickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, put: Callable[[NDArray[Any]], tuple[Any, ...]]) -> None:
        super().__init__(file)
        self._put = put

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.memmap):
            reopened = _reopen(obj)
            if reopened is not None:
                return reopened
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject and obj.nbytes >= SMALL:
            return self._put(np.asarray(obj))
        return super().reducer_override(obj)


def _reopen(array: np.memmap[Any, Any]) -> tuple[Any, ...] | None:
    """A whole file map can be opened again by name; a slice of one has lost its offset."""
    name = getattr(array, "filename", None)
    whole = isinstance(array.base, mmap.mmap)
    # What was written to a copy-on-write map is not in the file.
    if name is None or not whole or array.mode == "c" or not os.path.exists(name):
        return None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    order = "C" if array.flags.c_contiguous else "F"
    return mapped_array, (str(name), array.shape, array.dtype.str, array.offset, order)


def _room_in_memory() -> float:
    folder = "/dev/shm"
    return shutil.disk_usage(folder).free if os.path.isdir(folder) else float("inf")


class Slot:
    """A growable shared segment through which one side writes arrays and the other reads them."""

    def __init__(self) -> None:
        self._segment: shared_memory.SharedMemory | None = None

    @property
    def name(self) -> str:
        return "" if self._segment is None else self._segment.name

    @property
    def size(self) -> int:
        return 0 if self._segment is None else self._segment.size

    def ensure(self, nbytes: int) -> None:
        """Make room, in a new segment if need be (its name then changes)."""
        if nbytes > self.size:
            self.close()
            self._segment = create(max(4096, 2 * nbytes))

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> Layout:
        self.ensure(packed_size(arrays))
        return [] if self._segment is None else pack(arrays, self._segment)

    def read(self, layout: Layout) -> dict[str, NDArray[Any]]:
        return {} if self._segment is None else unpack(layout, self._segment)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment.unlink()
            self._segment = None


def packed_size(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Bytes the arrays take, each on an aligned start."""
    return sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays.values())


def pack(arrays: Mapping[str, NDArray[Any]], segment: shared_memory.SharedMemory) -> Layout:
    """Copy arrays into a segment."""
    layout: Layout = []
    offset = 0
    for name, array in arrays.items():
        view: NDArray[Any] = np.ndarray(array.shape, array.dtype, segment.buf, offset)
        view[...] = array
        layout.append((name, array.shape, array.dtype.str, offset))
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return layout


def unpack(layout: Layout, segment: shared_memory.SharedMemory) -> dict[str, NDArray[Any]]:
    """Copy arrays out of a segment: it will be written again."""
    return {
        name: np.array(np.ndarray(shape, np.dtype(dtype), segment.buf, offset))
        for name, shape, dtype, offset in layout
    }
