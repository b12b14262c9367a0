"""`.npy` files at an address, read by ranges of rows. (This machine's are mapped: `grassia.data.mapped`.)"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia.data.formats.decoding import naming, require_shape
from grassia.data.formats.remote import open_binary

__all__ = ["NpyOpener", "NpyStore"]


@dataclass(frozen=True)
class NpyOpener:
    """A `.npy` file at an address."""

    path: str
    kind = ".npy"

    @property
    def name(self) -> str:
        return self.path

    def open(self) -> NpyStore:
        return NpyStore(self.path)

    def by_columns(self) -> bool:
        """Whether the file has its array column after column, so that no range of rows lies together."""
        store = self.open()
        store.close()
        return store.by_columns


class NpyStore:
    """An open `.npy` file, read by ranges of rows."""

    sparse = False
    chunk_rows = 1
    costly = True  # the way is long
    feature_names: list[str] | None = None

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Any = None
        with self._naming():
            self._file = open_binary(path)
            try:
                version = np.lib.format.read_magic(self._file)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, by_columns, dtype = header(self._file)
                self.dtype = np.dtype(dtype)
                self.shape = require_shape(path, shape, dtype)
                self._begin = self._file.tell()
                expected = self._begin + self.shape[0] * self.shape[1] * self.dtype.itemsize
                if self._file.seek(0, os.SEEK_END) < expected:
                    raise EOFError("it is cut short")
            except BaseException:
                self._file.close()
                raise
        self.by_columns = bool(by_columns) and min(self.shape) > 1
        self.stored = self.shape[0] * self.shape[1]

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``."""
        if self.by_columns:
            return np.load(self._path, mmap_mode="r")[start:stop]
        size = self.shape[1] * self.dtype.itemsize
        with self._naming():
            self._file.seek(self._begin + start * size)
            content = bytearray(self._file.read((stop - start) * size))
            if len(content) < (stop - start) * size:
                raise EOFError("it is cut short")
        return np.frombuffer(content, self.dtype).reshape(stop - start, self.shape[1])

    def close(self) -> None:
        self._file.close()

    def _naming(self) -> contextlib.AbstractContextManager[None]:
        return naming(self._path, "a .npy file of numbers", "write it with numpy.save")
