"""Datasets of HDF5 files, by h5py: the one that is named, or the only one of two dimensions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from grassia._optional import require
from grassia.data.stored import StoreOpener
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["Hdf5Opener", "Hdf5Store", "open_object", "open_path"]


def open_path(path: str, *, dataset: str | None = None) -> StoreOpener:
    """An HDF5 file; `dataset` is the name of the dataset, such as ``"group/X"``."""
    if dataset is not None and not isinstance(dataset, str):
        raise InvalidInput(f"`dataset` must be the name of a dataset; got {dataset!r}")
    return Hdf5Opener(path, dataset)


def open_object(obj: Any) -> StoreOpener:
    """An h5py Dataset, or a File or Group that holds one of two dimensions, by its file's path."""
    if not obj or not hasattr(obj, "file"):
        raise InvalidComponent(f"rows must be an open dataset of an HDF5 file; got {obj!r}")
    path = obj.file.filename
    if not os.path.isfile(path):
        raise InvalidComponent(
            f"{path} must be a file that workers can open; rows in memory: give dataset[:]"
        )
    if obj.file.mode != "r":
        obj.file.flush()
    if hasattr(obj, "dtype"):
        return Hdf5Opener(os.path.abspath(path), obj.name)
    return Hdf5Opener(os.path.abspath(path), None, obj.name)


@dataclass(frozen=True, slots=True)
class Hdf5Opener:
    """Path and dataset of an HDF5 file; without a dataset, the only one of two dimensions in `group`."""

    path: str
    dataset: str | None = None
    group: str = "/"

    @property
    def name(self) -> str:
        part = "" if self.dataset is None else "::" + self.dataset.lstrip("/")
        return self.path + part

    @property
    def kind(self) -> str:
        return "HDF5"

    def open(self) -> Hdf5Store:
        return Hdf5Store(self)


class Hdf5Store:
    """An open dataset of two dimensions."""

    sparse = False
    feature_names: list[str] | None = None

    def __init__(self, opener: Hdf5Opener) -> None:
        h5py = require("h5py", "hdf5")
        try:
            self._file = h5py.File(opener.path, "r")
        except FileNotFoundError:
            raise
        except OSError as error:
            locked = "lock" in str(error) or "already open" in str(error)
            remedy = "close it where it is open for writing" if locked else "it may be damaged or cut short"
            raise InvalidComponent(
                f"{opener.name} must be an HDF5 file that can be read; {error}; {remedy}"
            ) from error
        try:
            self._data = self._dataset(opener, h5py)
        except BaseException:
            self._file.close()
            raise
        self.shape: tuple[int, int] = self._data.shape
        self.dtype = self._data.dtype
        self.stored = int(self._data.size)
        self.costly = self._data.compression is not None
        self.chunk_rows = 1 if self._data.chunks is None else int(self._data.chunks[0])

    def read(self, start: int, stop: int) -> Any:
        return self._data[start:stop]

    def close(self) -> None:
        self._file.close()

    def _dataset(self, opener: Hdf5Opener, h5py: Any) -> Any:
        found: dict[str, Any] = {}

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = item

        self._file[opener.group].visititems(note)
        path = opener.path
        listed = ", ".join(f"{name} {item.shape}" for name, item in list(found.items())[:20]) or "none"
        if opener.dataset is not None:
            chosen = self._file.get(opener.dataset)
            if not isinstance(chosen, h5py.Dataset):
                raise InvalidComponent(
                    f"{path} must hold the dataset {opener.dataset!r}; its datasets are: {listed}"
                )
            return chosen
        numeric = [
            x for x in found.values() if x.shape is not None and x.ndim == 2 and x.dtype.kind in "fiub"
        ]
        if len(numeric) != 1:
            raise InvalidComponent(
                f"{path} must hold one two-dimensional dataset of numbers, or be told which; it has "
                f"{len(numeric)}; its datasets are: {listed}; name one as in 'file.h5::name'"
            )
        return numeric[0]
