"""What the formats of tables share: which columns are taken, and how others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from grassia.errors import InvalidComponent, InvalidInput

__all__ = [
    "Columns",
    "NoSuchColumn",
    "chosen_columns",
    "common_dtype",
    "frozen_columns",
    "leave_out",
    "listed",
    "not_numeric",
    "require_exact",
]

#: What the options `columns` and `drop` may be: names or positions, or one of them.
Columns = Sequence[str | int] | str | int | None

_MOST_DROPPED = 10


class NoSuchColumn(InvalidInput):
    """A column that is named is not there.

    Parameters
    ----------
    column : str
    option : str
        What named it: "columns" or "drop".
    names : sequence of str
        Those that are there.
    source : str
        Of what; the subject of a sentence, and with it its verb.

    Attributes
    ----------
    hint : str
        What was probably meant; empty where that cannot be told.
    """

    def __init__(self, column: str, option: str, names: Sequence[str], source: str) -> None:
        self.column, self.option, self.names, self.source = column, option, tuple(names), source
        shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        whose = "its" if source.endswith(" has") else "their"
        self.hint = _meant(column, option, names)
        super().__init__(f"{source} no column {column!r}; {whose} columns are {shown}{self.hint}")

    def __reduce__(self) -> tuple[type[NoSuchColumn], tuple[str, str, tuple[str, ...], str]]:
        return type(self), (self.column, self.option, self.names, self.source)


def _meant(column: str, option: str, names: Sequence[str]) -> str:
    parts = [part.strip() for part in column.split(",")]
    if len(parts) > 1 and any(part in names for part in parts):
        return f"; give several as a list: {option}={parts!r}"
    near = get_close_matches(column, names, 3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


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
        If one that is named is there twice, or none is left; `NoSuchColumn` if it is not there.

    Examples
    --------
    >>> chosen_columns(["id", "x", "y"], "a.csv", drop=("id",)), chosen_columns(["x", "y"], "a.csv", (1, "x"))
    ([1, 2], [1, 0])
    """
    taken = list(range(len(names)))
    if columns is not None:
        taken = [_position(c, names, source, "columns") for c in columns]
    left_out = {_position(c, names, source, "drop") for c in drop or ()}
    kept = [j for j in taken if j not in left_out]
    if len(set(kept)) < len(kept):
        raise InvalidInput(f"`columns` must name each column of {source} once; got {list(columns or ())!r}")
    if not kept:
        raise InvalidInput(f"of the columns of {source} at least one must be left; `drop` names all")
    return kept


def not_numeric(columns: Sequence[str | int], what: str, source: str) -> InvalidComponent:
    """The error for columns that are not of numbers; `what` says what the first of them is.

    >>> print(not_numeric(["city", "day"], "is string", "a.csv"))
    all columns of a.csv must be numeric; column 'city' is string, and 'day' is no number either; \
leave them out with from_rows(..., options={'drop': ['city', 'day']}), or turn them into numbers first
    """
    others = columns[1:]
    more = f", and {listed(others)} {'is no number' if len(others) == 1 else 'are no numbers'} either"
    return InvalidComponent(
        f"all columns of {source} must be numeric; column {columns[0]!r} {what}{more if others else ''}; "
        f"{leave_out(columns)}, or turn {'them' if others else 'it'} into numbers first"
    )


def leave_out(columns: Sequence[str | int]) -> str:
    """How to do without some columns."""
    if len(columns) > _MOST_DROPPED:
        return "choose the others with options columns"
    these = "it" if len(columns) == 1 else "them"
    return f"leave {these} out with from_rows(..., options={{'drop': {list(columns)!r}}})"


def listed(columns: Sequence[str | int], most: int = 3) -> str:
    """The first few of some columns, and how many more there are.

    >>> listed("abc"), listed("abcde")
    ("'a', 'b' and 'c'", "'a', 'b', 'c' and 2 more")
    """
    shown = [repr(column) for column in columns[:most]]
    if len(columns) > most:
        shown.append(f"{len(columns) - most} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


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


def _position(column: str | int, names: Sequence[str], source: str, option: str) -> int:
    if isinstance(column, int):
        if not -len(names) <= column < len(names):
            raise InvalidInput(f"{source} has {len(names)} columns; there is no column {column}")
        return column % len(names)
    found = [j for j, name in enumerate(names) if name == column]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoSuchColumn(column, option, names, f"{source} has")
    raise InvalidInput(f"{source} has {len(found)} columns {column!r}; name it by its number, of {found}")
