"""Where the components come from: loaders that travel to the workers, and lists of them."""

from grassia.data.loaders import (
    CallableLoader,
    ComponentLoader,
    Loader,
    MatrixLoader,
    MemmapRowsLoader,
    NpyRowsLoader,
    OperatorLoader,
    RowsLoader,
    SumLoader,
)
from grassia.data.sources import Components, as_components, from_rows

__all__ = [
    "CallableLoader",
    "ComponentLoader",
    "Components",
    "Loader",
    "MatrixLoader",
    "MemmapRowsLoader",
    "NpyRowsLoader",
    "OperatorLoader",
    "RowsLoader",
    "SumLoader",
    "as_components",
    "from_rows",
]
