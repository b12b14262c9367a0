"""Where records begin and end in the bytes of a text file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_records", "fields_a_line"]


def cut_records(data: bytes, ended: bool, most: int | None = None) -> tuple[int, int]:
    """How many whole records `data` begins with, at most `most`, and how many bytes they take.

    Blank lines are no records; a line break between quotes does not end one. With `ended` nothing follows
    `data`, so that its last line is whole without a line break.

    Examples
    --------
    >>> cut_records(b"1,2\\n3,4\\n5,", ended=False)
    (2, 8)
    >>> cut_records(b'"a\\nb",1\\n\\n2,3', ended=True)
    (2, 12)
    """
    if not _plain(data):
        return _cut_slowly(data, ended, most)
    n, size = data.count(b"\n"), data.rfind(b"\n") + 1
    if ended and data[size:].strip():
        n, size = n + 1, len(data)
    if most is None or n <= most:
        return n, size
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return most, int(breaks[most - 1]) + 1


def fields_a_line(data: bytes, delimiter: str) -> NDArray[np.int64] | None:
    """The number of fields of each line; None where quotes or blank lines forbid to simply count.

    >>> fields_a_line(b"1,2\\n3\\n4,5,6", ",")
    array([2, 1, 3])
    """
    if not _plain(data):
        return None
    codes = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(codes == ord("\n"))
    if not data.endswith(b"\n"):
        breaks = np.r_[breaks, len(data)]
    delimiters = np.flatnonzero(codes == ord(delimiter)) if ord(delimiter) < 128 else np.zeros(0, np.int64)
    return np.diff(np.searchsorted(delimiters, breaks), prepend=0) + 1


def _plain(data: bytes) -> bool:
    """Whether every line break ends a record."""
    blank = data.startswith((b"\n", b"\r\n")) or b"\n\n" in data or b"\n\r\n" in data
    return not blank and b'"' not in data


def _cut_slowly(data: bytes, ended: bool, most: int | None) -> tuple[int, int]:
    n = size = here = 0
    quoted = False
    while here < len(data) and (most is None or n < most):
        stop = data.find(b"\n", here) + 1
        if stop == 0:
            if not ended:
                break
            stop = len(data)
        quoted ^= data.count(b'"', here, stop) % 2 == 1
        if not quoted or (ended and stop == len(data)):
            if data[size:stop].strip():
                n += 1
            size = stop
        here = stop
    return n, size
