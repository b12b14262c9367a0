"""Arrays in shared memory, as both ends see it: the data once for all, and two slots for each worker."""

from __future__ import annotations

import gc
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import resource_tracker, shared_memory
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
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


def forget() -> None:
    """Detach from the server's arrays that nobody uses any more: mapped, they would take memory."""
    gc.collect()
    for segment in _kept.copy():
        with suppress(BufferError):  # somebody does
            segment.close()
            _kept.remove(segment)


def mapped_array(path: str, shape: tuple[int, ...], dtype: str, offset: int, order: str) -> NDArray[Any]:
    """An array that lives in a file, mapped read-only."""
    mapped = np.memmap(path, np.dtype(dtype), "r", offset, shape, "F" if order == "F" else "C")
    return np.asarray(mapped)


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
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
            with suppress(FileNotFoundError):  # closing was cut short before
                segment.unlink()


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
