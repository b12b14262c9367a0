"""Text to numbers, fast: for pieces of text in which every field is a number."""

from __future__ import annotations

import importlib.util
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["field_value", "parse_numbers", "parse_with_arrow", "parse_with_numpy"]

Table = NDArray[Any] | None

_MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>"}
_TRUTH = {"true": 1.0, "false": 0.0}


def field_value(field: str) -> float | None:
    """What a field stands for: a number, NaN where it is missing, 1 for true, 0 for false; None for text.

    >>> [field_value(text) for text in ("1e3", " NA ", "True", "1_000")]
    [1000.0, nan, 1.0, None]
    """
    value = _value(field)
    if value is not None:
        return value
    word = field.strip().lower()
    return math.nan if word in _MISSING else _TRUTH.get(word)


def _value(field: str) -> float | None:
    """The number that a field is, or None; as the fast parsers have it, which Python's `float` exceeds."""
    try:
        value = float(field)
    except ValueError:
        return None
    return value if field.strip().isascii() and "_" not in field else None


def parse_numbers(
    text: bytes, delimiter: str, width: int, taken: tuple[int, ...], dtype: np.dtype[Any]
) -> Table:
    """The fields `taken` of every line, or None where one of them is not a number.

    pyarrow parses several times faster than numpy, to the same numbers, and is used where it is installed.

    Parameters
    ----------
    text : bytes
        Lines of `width` fields each, without quotes.

    Examples
    --------
    >>> parse_numbers(b"1,2,x\\n3,4,y\\n", ",", 3, (1, 0), np.dtype(float))
    array([[2., 1.],
           [4., 3.]])
    """
    if importlib.util.find_spec("pyarrow") is None:
        return parse_with_numpy(text, delimiter, width, taken, dtype)
    return parse_with_arrow(text, delimiter, width, taken, dtype)


def parse_with_numpy(
    text: bytes, delimiter: str, width: int, taken: tuple[int, ...], dtype: np.dtype[Any]
) -> Table:
    """`parse_numbers` by `numpy.loadtxt`."""
    lines = io.StringIO(text.decode("utf-8", "replace"))
    usecols = None if taken == tuple(range(width)) else taken
    try:
        return np.loadtxt(lines, dtype, comments=None, delimiter=delimiter, usecols=usecols, ndmin=2)
    except ValueError:
        return None


def parse_with_arrow(
    text: bytes, delimiter: str, width: int, taken: tuple[int, ...], dtype: np.dtype[Any]
) -> Table:
    """`parse_numbers` by pyarrow, on the calling thread."""
    import pyarrow as pa
    from pyarrow import csv

    names = [str(j) for j in range(width)]
    chosen = [names[j] for j in taken]
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            csv.ParseOptions(delimiter=delimiter, quote_char=False),
            csv.ConvertOptions(
                column_types=dict.fromkeys(chosen, pa.float64()),
                include_columns=chosen,
                null_values=[],
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    out = np.empty((table.num_rows, len(chosen)), dtype)
    for j, column in enumerate(table.columns):
        out[:, j] = column.to_numpy()
    return out
