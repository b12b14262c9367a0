"""From Arrow's columns to numpy's rows; shared by pyarrow's tables and Parquet files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._optional import require
from grassia.data.formats.columns import not_numeric, require_exact
from grassia.errors import InvalidComponent

__all__ = ["column_dtypes", "fill_column", "fill_lists", "is_list", "list_width"]


def column_dtypes(
    names: Sequence[str], kinds: Sequence[Any], with_missing: Collection[int], source: str
) -> list[np.dtype[Any]]:
    """The numpy dtypes of Arrow columns; float64 where numbers that are no floats may be missing.

    Parameters
    ----------
    with_missing : collection of int
        Positions in `names` of the columns of which a value may be missing.

    Raises
    ------
    InvalidComponent
        If any is not numeric, with the names of all that are not.
    """
    found = [_dtype(kind, j in with_missing) for j, kind in enumerate(kinds)]
    wrong = [j for j, dtype in enumerate(found) if dtype is None]
    if wrong:
        raise not_numeric([names[j] for j in wrong], f"is {kinds[wrong[0]]}", source)
    return [dtype for dtype in found if dtype is not None]


def _dtype(kind: Any, has_missing: bool) -> np.dtype[Any] | None:
    """The dtype of one column; None where it is not numeric."""
    types = require("pyarrow", "parquet").types
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
        return None
    if has_missing and not types.is_floating(kind):
        return np.dtype(np.float64)
    plain: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return plain


def fill_column(column: Any, out: NDArray[Any], name: str, source: str) -> None:
    """Write an Arrow array into `out`; values that are missing become NaN.

    Raises
    ------
    InvalidComponent
        If integers are to become floats that cannot hold them, with the column's name.
    """
    pa = require("pyarrow", "parquet")
    if out.dtype.kind == "f" and pa.types.is_integer(column.type) and column.type.bit_width == 64:
        span = require("pyarrow.compute", "parquet").min_max(column)
        require_exact(name, span["min"].as_py(), span["max"].as_py(), source)
    if pa.types.is_decimal(column.type) or (column.null_count and pa.types.is_boolean(column.type)):
        column = column.cast(pa.float64())
    out[:] = column.to_numpy(zero_copy_only=False)


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is that of lists of numbers, such as embeddings: each may be a row by itself."""
    types = require("pyarrow", "parquet").types
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)))


def list_width(kind: Any, first: Any) -> int:
    """The length of the lists of a column: that of its type, or else of the first list."""
    if require("pyarrow", "parquet").types.is_fixed_size_list(kind):
        return int(kind.list_size)
    return len(first) if first.is_valid else 0


def fill_lists(column: Any, out: NDArray[Any], name: str, source: str, row: int) -> None:
    """Write an Arrow array of lists into the rows of `out`, the first of which is row `row` of the source.

    Raises
    ------
    InvalidComponent
        If one is missing, or of another length; or if an integer in one is missing.
    """
    lengths = require("pyarrow.compute", "parquet").list_value_length(column).fill_null(-1).to_numpy()
    wrong = np.flatnonzero(lengths != out.shape[1])
    if wrong.size:
        length = int(lengths[wrong[0]])
        found = "none" if length < 0 else f"one of {length}"
        raise InvalidComponent(
            f"all lists of column {name!r} of {source} must have the same length, {out.shape[1]} as the "
            f"first; row {row + int(wrong[0])} has {found}"
        )
    values = column.flatten()
    if values.null_count and out.dtype.kind != "f":
        missing = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        raise InvalidComponent(
            f"no value in the lists of column {name!r} of {source} must be missing; one of row "
            f"{row + int(missing[0]) // out.shape[1]} is; fill it in or drop the row first"
        )
    out[:] = values.to_numpy(zero_copy_only=False).reshape(out.shape)
