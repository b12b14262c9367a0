"""Where the components come from: loaders that travel to the workers, and lists of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grassia._lazy import attribute

if TYPE_CHECKING:
    from grassia.data.loaders import (
        CallableLoader,
        ComponentLoader,
        Extent,
        Loader,
        MatrixLoader,
        OperatorLoader,
        RowsLoader,
        SumLoader,
        extent_of,
    )
    from grassia.data.mapped import MemmapRowsLoader, NpyRowsLoader
    from grassia.data.sources import Components, as_components, from_rows
    from grassia.data.stored import RowStore, StoredRowsComponent, StoredRowsLoader, StoreOpener, split_store

__all__ = [
    "CallableLoader",
    "ComponentLoader",
    "Components",
    "Extent",
    "Loader",
    "MatrixLoader",
    "MemmapRowsLoader",
    "NpyRowsLoader",
    "OperatorLoader",
    "RowStore",
    "RowsLoader",
    "StoreOpener",
    "StoredRowsComponent",
    "StoredRowsLoader",
    "SumLoader",
    "as_components",
    "extent_of",
    "from_rows",
    "split_store",
]

# Loaded when they are first asked for: the worker that a loader travels to needs no more than that loader.
_HOME = {
    "loaders": (
        "CallableLoader",
        "ComponentLoader",
        "Extent",
        "Loader",
        "MatrixLoader",
        "OperatorLoader",
        "RowsLoader",
        "SumLoader",
        "extent_of",
    ),
    "mapped": ("MemmapRowsLoader", "NpyRowsLoader"),
    "sources": ("Components", "as_components", "from_rows"),
    "stored": ("RowStore", "StoreOpener", "StoredRowsComponent", "StoredRowsLoader", "split_store"),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    value = globals()[name] = attribute(__name__, name, _MODULE_OF)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
