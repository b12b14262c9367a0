"""Where records begin and end in the bytes of a text file, by the rules of Python's `csv` module."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_records", "fields_a_line", "is_blank", "records_of"]

# Tabs between tabs are fields, all of them empty; tabs in other files are blanks.
_BLANKS = {True: b" \r\n\v\f", False: b" \r\n\v\f\t"}
_BLANK_LINE = {
    tabs: re.compile(rb"\n[%s]*\n" % blanks.replace(b"\n", b"")) for tabs, blanks in _BLANKS.items()
}


def cut_records(data: bytes, ended: bool, most: int | None = None, delimiter: str = ",") -> tuple[int, int]:
    """How many whole records `data` begins with, at most `most`, and how many bytes they take.

    Blank lines are no records; a line break between quotes does not end one. Quotes are those that open a
    field: elsewhere they are characters like others. With `ended` nothing follows `data`, so that its last
    line is whole without a line break; a record whose quotes are not closed is not whole.

    Examples
    --------
    >>> cut_records(b"1,2\\n3,4\\n5,", ended=False)
    (2, 8)
    >>> cut_records(b'"a\\nb",1\\n \\n2,3" wide', ended=True)
    (2, 19)
    """
    if not _plain(data, delimiter):
        return _cut_slowly(data, ended, most, delimiter)
    n, size = data.count(b"\n"), data.rfind(b"\n") + 1
    if ended and not is_blank(data[size:], delimiter):
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
    if not _plain(data, delimiter):
        return None
    codes = np.frombuffer(data, np.uint8)
    breaks = np.flatnonzero(codes == ord("\n"))
    if not data.endswith(b"\n"):
        breaks = np.r_[breaks, len(data)]
    delimiters = np.flatnonzero(codes == ord(delimiter)) if ord(delimiter) < 128 else np.zeros(0, np.int64)
    return np.diff(np.searchsorted(delimiters, breaks), prepend=0) + 1


def is_blank(line: bytes, delimiter: str) -> bool:
    """Whether a line holds blanks at most; tabs are none where they separate fields.

    >>> is_blank(b" \\t\\r\\n", ","), is_blank(b" \\t\\r\\n", "\\t")
    (True, False)
    """
    return not line.strip(_BLANKS[delimiter == "\t"])


def records_of(data: bytes, delimiter: str) -> Iterator[tuple[int, bytes]]:
    """The records of `data`, nothing of which is missing, and how many line breaks come before each.

    >>> list(records_of(b'1,2\\n\\n"a\\nb",3', ","))
    [(0, b'1,2\\n'), (2, b'"a\\nb",3')]
    """
    lines = 0
    for begin, end in _lines(data, True, delimiter):
        if not is_blank(data[begin:end], delimiter):
            yield lines, data[begin:end]
        lines += data.count(b"\n", begin, end)


def _plain(data: bytes, delimiter: str) -> bool:
    """Whether every line break ends a record."""
    if b'"' in data:
        return False
    first = data.find(b"\n")
    return first < 0 or not (is_blank(data[:first], delimiter) or _BLANK_LINE[delimiter == "\t"].search(data))


def _cut_slowly(data: bytes, ended: bool, most: int | None, delimiter: str) -> tuple[int, int]:
    n = size = 0
    for begin, end in _lines(data, ended, delimiter):
        n += not is_blank(data[begin:end], delimiter)
        size = end
        if n == most:
            break
    return n, size


def _lines(data: bytes, ended: bool, delimiter: str) -> Iterator[tuple[int, int]]:
    """Where records and blank lines begin and end, as far as they are whole."""
    opening = delimiter.encode() + b'"'
    here = 0
    while here < len(data):
        end = _end_of_record(data, here, opening)
        if end is None or (end < 0 and not ended):
            return
        end = len(data) if end < 0 else end
        yield here, end
        here = end


def _end_of_record(data: bytes, here: int, opening: bytes) -> int | None:
    """Where the record that begins at `here` ends; -1 if no line break ends it, None if quotes are open."""
    quote = here if data.startswith(b'"', here) else -1
    stop = data.find(b"\n", here)
    while True:
        if quote < 0:
            within = data.find(opening, here, stop if stop >= 0 else len(data))
            if within < 0:
                return stop + 1 if stop >= 0 else -1
            quote = within + len(opening) - 1
        closing = data.find(b'"', quote + 1)
        while closing >= 0 and data.startswith(b'""', closing):
            closing = data.find(b'"', closing + 2)  # two stand for one
        if closing < 0:
            return None
        here, quote = closing + 1, -1
        if 0 <= stop < here:
            stop = data.find(b"\n", here)
