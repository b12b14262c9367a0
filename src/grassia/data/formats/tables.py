"""Tables in memory: pandas, polars, pyarrow. Columns become one array of their common dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from grassia.data.formats.arrow import column_dtypes, fill_column, fill_lists, is_list, list_width
from grassia.data.formats.columns import (
    Columns,
    chosen_columns,
    common_dtype,
    frozen_columns,
    not_numeric,
    require_exact,
)
from grassia.data.stored import NamedRows
from grassia.errors import InvalidComponent
from grassia.passes.sparse import as_csr

__all__ = ["open_object"]


def open_object(obj: Any, *, columns: Columns = None, drop: Columns = None) -> Any:
    """The numbers of a table, with the names of their columns.

    A pandas table of one dtype is used as it is; others are converted once. Values that are missing become
    NaN, so that the error for them has their row.

    Parameters
    ----------
    columns, drop : names or positions, optional
        The columns to take, in this order, and those to leave out.

    Raises
    ------
    InvalidComponent
        If a column is not numeric, with its name.

    Examples
    --------
    >>> import pandas as pd
    >>> found = open_object(pd.DataFrame({"x": [1, 2], "y": [0.5, 1.5], "name": ["a", "b"]}), drop="name")
    >>> found.feature_names, found.rows
    (('x', 'y'), array([[1. , 0.5],
           [2. , 1.5]]))
    """
    # By the class's own name, so that no library is imported that the table is not of.
    kinds = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(obj).__mro__}
    taken = frozen_columns(columns, "columns"), frozen_columns(drop, "drop")
    if ("pandas", "DataFrame") in kinds:
        return _from_pandas(obj, *taken)
    if ("polars", "DataFrame") in kinds:
        return _from_polars(obj, *taken)
    if ("pyarrow", "Table") in kinds or ("pyarrow", "RecordBatch") in kinds:
        return _from_arrow(obj, *taken)
    library, name = type(obj).__module__.partition(".")[0], type(obj).__name__
    remedy = {
        "LazyFrame": "collect() it, or write it with sink_parquet and give the path",
        "Series": "use its frame, or give two or more columns",
        "FileSystemDataset": "give the path of its folder or files",
    }.get(name, "make it a table first")
    raise InvalidComponent(f"rows must be a table (rows x columns); got {library}.{name}; {remedy}")


Taken = tuple[str | int, ...] | None


def _from_pandas(table: Any, columns: Taken, drop: Taken) -> NamedRows:
    source = "the table"
    names = [str(name) for name in table.columns]
    taken = chosen_columns(names, source, columns, drop)
    if taken != list(range(len(names))):
        table = table.iloc[:, taken]
    names = [names[j] for j in taken]
    kinds = list(table.dtypes)
    if kinds and all(getattr(kind, "fill_value", 1) == 0 and hasattr(kind, "subtype") for kind in kinds):
        return NamedRows(as_csr(table.sparse.to_coo()), tuple(names))
    if len(set(kinds)) == 1 and isinstance(kinds[0], np.dtype) and kinds[0].kind in "fiub":
        return NamedRows(table.to_numpy(), tuple(names))
    found = [_pandas_dtype(table.iloc[:, j]) for j in range(len(names))]
    wrong = [j for j, dtype in enumerate(found) if dtype is None]
    if wrong:
        raise not_numeric([names[j] for j in wrong], f"is {kinds[wrong[0]]}", source)
    dtypes = [dtype for dtype in found if dtype is not None]
    rows = np.empty(table.shape, common_dtype(dtypes)) if dtypes else np.empty(table.shape)
    for j, dtype in enumerate(dtypes):
        column = table.iloc[:, j]
        if rows.dtype.kind == "f" and getattr(column.dtype, "kind", "") in "iu" and column.count():
            require_exact(names[j], column.min(), column.max(), source)
        missing = {} if isinstance(column.dtype, np.dtype) or dtype.kind != "f" else {"na_value": np.nan}
        rows[:, j] = column.to_numpy(dtype=dtype, **missing)
    return NamedRows(rows, tuple(names))


def _pandas_dtype(column: Any) -> np.dtype[Any] | None:
    """The dtype of the numbers of a column; None where it has none."""
    kind = column.dtype
    plain = getattr(kind, "numpy_dtype", getattr(kind, "subtype", kind))
    if not isinstance(plain, np.dtype) or plain.kind not in "fiub":
        return None
    if plain.kind != "f" and not isinstance(kind, np.dtype) and column.isna().any():
        return np.dtype(np.float64)
    return plain


def _from_polars(table: Any, columns: Taken, drop: Taken) -> NamedRows:
    source = "the table"
    names = list(table.columns)
    taken = chosen_columns(names, source, columns, drop)
    series = [table.get_column(names[j]) for j in taken]
    wrong = [s for s in series if not (s.dtype.is_numeric() or str(s.dtype) == "Boolean")]
    if wrong:
        raise not_numeric([column.name for column in wrong], f"is {wrong[0].dtype}", source)
    arrays = [_polars_array(column) for column in series]
    rows = np.empty((table.height, len(arrays)), common_dtype([array.dtype for array in arrays]))
    for j, (column, array) in enumerate(zip(series, arrays, strict=True)):
        if rows.dtype.kind == "f" and column.dtype.is_integer():
            require_exact(column.name, column.min(), column.max(), source)
        rows[:, j] = array
    return NamedRows(rows, tuple(names[j] for j in taken))


def _polars_array(column: Any) -> Any:
    """The numbers of a column; a column that may not miss values, or is not of a plain kind, as float64."""
    array = column.to_numpy()
    return array if array.dtype.kind in "fiub" else np.array(column.to_list(), dtype=np.float64)


def _from_arrow(table: Any, columns: Taken, drop: Taken) -> Any:
    source = "the table"
    names = list(table.schema.names)
    taken = chosen_columns(names, source, columns, drop)
    found = [table.column(j) for j in taken]
    if len(taken) == 1 and is_list(found[0].type):
        return _from_lists(found[0], names[taken[0]], source)
    missing = {i for i, column in enumerate(found) if column.null_count > 0}
    dtypes = column_dtypes([names[j] for j in taken], [column.type for column in found], missing, source)
    rows = np.empty((table.num_rows, len(taken)), common_dtype(dtypes))
    for j, column in enumerate(found):
        start = 0
        for chunk in getattr(column, "chunks", [column]):
            fill_column(chunk, rows[start : start + len(chunk), j], names[taken[j]], source)
            start += len(chunk)
    return NamedRows(rows, tuple(names[j] for j in taken))


def _from_lists(column: Any, name: str, source: str) -> Any:
    """The rows of a column of lists."""
    width = list_width(column.type, column[0]) if len(column) else 0
    (dtype,) = column_dtypes([name], [column.type.value_type], (), source)
    rows = np.empty((len(column), width), dtype)
    start = 0
    for chunk in getattr(column, "chunks", [column]):
        fill_lists(chunk, rows[start : start + len(chunk)], name, source, start)
        start += len(chunk)
    return rows
