"""What the formats of tables share: which columns are taken, and how others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["Columns", "chosen_columns", "common_dtype", "frozen_columns", "not_numeric", "require_exact"]

#: What the options `columns` and `drop` may be: names or positions, or one of them.
Columns = Sequence[str | int] | str | int | None


def frozen_columns(columns: Columns, option: str) -> tuple[str | int, ...] | None:
    """An option as a tuple, which an opener can keep.

    >>> frozen_columns("a", "columns"), frozen_columns(["a", 2], "drop"), frozen_columns(None, "drop")
    (('a',), ('a', 2), None)
    """
    if columns is None:
        return None
    several = [columns] if isinstance(columns, str | int) else list(columns)
    wrong = [c for c in several if isinstance(c, bool) or not isinstance(c, str | int)]
    if wrong or not several:
        raise InvalidInput(f"`{option}` must be names or numbers of columns; got {columns!r}")
    return tuple(several)


def chosen_columns(
    names: Sequence[str],
    source: str,
    columns: tuple[str | int, ...] | None = None,
    drop: tuple[str | int, ...] | None = None,
) -> list[int]:
    """Positions of the columns to take, in the order of `columns`, or else of the table.

    Raises
    ------
    InvalidInput
        If one that is named is not there, or is there twice, or none is left.

    Examples
    --------
    >>> chosen_columns(["id", "x", "y"], "a.csv", drop=("id",)), chosen_columns(["x", "y"], "a.csv", (1, "x"))
    ([1, 2], [1, 0])
    """
    taken = list(range(len(names))) if columns is None else [_position(c, names, source) for c in columns]
    left_out = {_position(c, names, source) for c in drop or ()}
    kept = [j for j in taken if j not in left_out]
    if len(set(kept)) < len(kept):
        raise InvalidInput(f"`columns` must name each column of {source} once; got {list(columns or ())!r}")
    if not kept:
        raise InvalidInput(f"of the columns of {source} at least one must be left; `drop` names all")
    return kept


def not_numeric(column: str, kind: Any, source: str) -> InvalidComponent:
    """The error for a column that is not of numbers."""
    return InvalidComponent(
        f"all columns of {source} must be numeric; column {column!r} is {kind}; "
        f"leave it out with from_rows(..., options={{'drop': [{column!r}]}}), or turn it into numbers first"
    )


def require_exact(column: str, lowest: Any, highest: Any, source: str) -> None:
    """Refuse a column of integers that is to be held in float64, which rounds those beyond 2**53.

    Of a column without values both are None.
    """
    if lowest is None:
        return
    largest = max(int(highest), -int(lowest))
    if largest > 2**53:
        raise InvalidComponent(
            f"integers must be at most 2**53 in size to be exact in float64; column {column!r} of {source} "
            f"holds one of size {largest}; subtract an offset from the column first"
        )


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype that holds the numbers of all the columns."""
    return np.result_type(*dict.fromkeys(dtypes))


def _position(column: str | int, names: Sequence[str], source: str) -> int:
    if isinstance(column, int):
        if not -len(names) <= column < len(names):
            raise InvalidInput(f"{source} has {len(names)} columns; there is no column {column}")
        return column % len(names)
    found = [j for j, name in enumerate(names) if name == column]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    if not found:
        raise InvalidInput(f"{source} has no column {column!r}; its columns are {shown}")
    raise InvalidInput(f"{source} has {len(found)} columns {column!r}; name it by its number, of {found}")
