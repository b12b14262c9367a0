"""The server's end of shared memory: big arrays are put there when loaders are pickled for the workers."""

from __future__ import annotations

import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from grassia.backends.shared import attached_array, create, mapped_array

__all__ = ["SMALL", "SharedStore"]

SMALL = 1 << 16  # arrays below this travel inside the pickle


class SharedStore:
    """Puts big arrays where every worker process can map them; `close` removes them."""

    def __init__(self) -> None:
        self._segments: list[SharedMemory] = []
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
