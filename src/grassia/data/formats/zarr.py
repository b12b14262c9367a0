"""Zarr arrays, by zarr: stores in a folder or a zip file, or arrays that are open already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grassia._optional import require
from grassia.data.stored import StoreOpener
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["ZarrObjectOpener", "ZarrOpener", "ZarrStore", "open_object", "open_path"]


def open_path(path: str, *, dataset: str | None = None) -> StoreOpener:
    """A Zarr store; `dataset` is the name of the array in a group, such as ``"layers/X"``."""
    if dataset is not None and not isinstance(dataset, str):
        raise InvalidInput(f"`dataset` must be the name of an array; got {dataset!r}")
    return ZarrOpener(path, dataset)


def open_object(obj: Any) -> StoreOpener:
    """An open Zarr array, or a group that holds one of two dimensions; it travels as zarr pickles it."""
    return ZarrObjectOpener(obj)


@dataclass(frozen=True, slots=True)
class ZarrOpener:
    """Path and array name of a Zarr store."""

    path: str
    dataset: str | None = None

    @property
    def name(self) -> str:
        part = "" if self.dataset is None else "::" + self.dataset.strip("/")
        return self.path + part

    @property
    def kind(self) -> str:
        return "Zarr"

    def files(self) -> tuple[str, ...]:
        """The store itself, and the descriptions in it: to stamp every chunk would take too long."""
        folder = Path(self.path) / (self.dataset or "").strip("/")
        return (self.path, str(folder / "zarr.json"), str(folder / ".zarray"))

    def open(self) -> ZarrStore:
        zarr = require("zarr", "zarr")
        if not Path(self.path).exists():
            raise FileNotFoundError(self.path)
        packed = self.path.lower().endswith(".zip")
        try:
            node = zarr.open(zarr.storage.ZipStore(self.path, mode="r") if packed else self.path, mode="r")
        except FileNotFoundError as error:  # so zarr says that there is a folder, but no store
            raise InvalidComponent(f"{self.name} must be a Zarr store; it is not: {error}") from error
        return ZarrStore(node, self.dataset, self.name)


@dataclass(frozen=True, slots=True, eq=False)
class ZarrObjectOpener:
    """An array or group of zarr's own."""

    node: Any

    @property
    def name(self) -> str:
        return f"the Zarr store {self.node.store!s}"

    @property
    def kind(self) -> str:
        return "Zarr"

    def open(self) -> ZarrStore:
        return ZarrStore(self.node, None, self.name)


class ZarrStore:
    """An open Zarr array of two dimensions."""

    sparse = False
    feature_names: list[str] | None = None

    def __init__(self, node: Any, dataset: str | None, name: str) -> None:
        self._data = _array(node, dataset, name)
        self.shape: tuple[int, int] = tuple(self._data.shape)
        self.dtype = np.dtype(self._data.dtype)
        self.stored = int(np.prod(self.shape))
        # A shard is what is stored as one file, of many chunks.
        whole = getattr(self._data, "shards", None) or self._data.chunks
        self.chunk_rows = int(whole[0]) if len(self.shape) == 2 else 1

    def read(self, start: int, stop: int) -> Any:
        return np.asarray(self._data[start:stop])


def _array(node: Any, dataset: str | None, name: str) -> Any:
    if dataset is not None:
        found = node.get(dataset.strip("/")) if hasattr(node, "arrays") else None
        if found is None or hasattr(found, "arrays"):
            raise InvalidComponent(f"{name} must be an array; the store has: {_listed(node)}")
        return found
    if not hasattr(node, "arrays"):
        return node
    numeric = [x for _, x in _members(node) if x.ndim == 2 and np.dtype(x.dtype).kind in "fiub"]
    if len(numeric) != 1:
        raise InvalidComponent(
            f"{name} must hold one two-dimensional array of numbers, or be told which; it has "
            f"{len(numeric)}; its arrays are: {_listed(node)}; name one as in 'store.zarr::name'"
        )
    return numeric[0]


def _members(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, array in group.arrays():
        yield prefix + name, array
    for name, inner in group.groups():
        yield from _members(inner, f"{prefix}{name}/")


def _listed(node: Any) -> str:
    if not hasattr(node, "arrays"):
        return f"one array, {node.shape}"
    return ", ".join(f"{name} {array.shape}" for name, array in list(_members(node))[:20]) or "none"
