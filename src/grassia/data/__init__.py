"""Where the components come from: loaders that travel to the workers, and lists of them."""

from grassia.data.loaders import (
    CallableLoader,
    ComponentLoader,
    Extent,
    Loader,
    MatrixLoader,
    MemmapRowsLoader,
    NpyRowsLoader,
    OperatorLoader,
    RowsLoader,
    SumLoader,
    extent_of,
)
from grassia.data.sources import Components, as_components, from_rows

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
    "RowsLoader",
    "SumLoader",
    "as_components",
    "extent_of",
    "from_rows",
]
