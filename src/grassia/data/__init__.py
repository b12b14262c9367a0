"""Where the components come from: loaders that travel to the workers, and lists of them."""

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
