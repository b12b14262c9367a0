"""Numbers in text: CSV and TSV, plain or compressed by gzip, parsed block by block.

A text file does not say how many rows it has, so `open_path` goes through it once, without parsing, and
notes where in the file every few megabytes of rows begin. Workers start reading there. Pieces in which a
value is missing, true, false or wrong are parsed field by field.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from grassia.data.formats.columns import Columns, chosen_columns, frozen_columns
from grassia.data.formats.parsing import parse_numbers
from grassia.data.formats.records import cut_records, fields_a_line
from grassia.data.formats.remote import open_decompressed
from grassia.data.stored import StoreOpener, described_file
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["CsvOpener", "CsvStore", "open_path"]

_PIECE = 4 << 20  # bytes of text looked at and parsed at a time
_MISSING = {"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>"}
_TRUTH = {"true": 1.0, "false": 0.0}
_DELIMITERS = ",;\t|"

Mark = tuple[int, int, int]  # rows, bytes and lines that come before a place in the file


def open_path(
    path: str,
    *,
    header: bool | None = None,
    columns: Columns = None,
    drop: Columns = None,
    delimiter: str | None = None,
    index: bool | None = None,
    dtype: Any = np.float64,
) -> StoreOpener:
    """A text file of numbers; it is gone through once to count its rows.

    Parameters
    ----------
    header : bool, optional
        Whether the first line has the names of the columns. By default it does where one of its fields
        is no number, or where they are 0, 1, 2, ..., as pandas names columns that have no names.
    columns, drop : names or positions, optional
        The columns to take, in this order, and those to leave out.
    delimiter : str, optional
        By default that of ``, ; tab |`` which the first two lines have in common, or else a space between
        numbers.
    index : bool, optional
        Whether to leave out the first column. By default it is if the header has no name for it, as
        pandas and R write the labels of rows.
    dtype : float64 or float32
        What to parse into.
    """
    for name, value in (("header", header), ("index", index)):
        if value not in (None, True, False):
            raise InvalidInput(f"`{name}` must be True, False or None; got {value!r}")
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise InvalidInput(f"`delimiter` must be one character; got {delimiter!r}")
    kept = np.dtype(dtype)
    if kept not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InvalidInput(f"`dtype` must be float64 or float32; got {kept}")
    name = described_file(path)
    start = _Beginning.of(path, name, delimiter, header)
    names, width = start.names, start.width
    without = index if index is not None else start.unnamed_index and columns is None
    known = names or [str(j) for j in range(width)]
    left_out = frozen_columns(drop, "drop") or ()
    if without:
        left_out = (0, *left_out)
    taken = chosen_columns(known, name, frozen_columns(columns, "columns"), left_out or None)
    marks = _marks(path, start.first)
    if marks[-1][0] == 0:
        raise InvalidComponent(f"{name} must not be empty; it has no rows of numbers")
    notes = ["rows counted in one pass"]
    notes += ["no header"] * (names is None) + ["index column left out"] * without
    note = "; ".join(notes)
    named, places = names is not None, tuple(taken)
    opener = CsvOpener(path, start.delimiter, width, places, tuple(known), named, kept.str, marks, note)
    opener.open().check_first_row()
    return opener


@dataclass(frozen=True, slots=True)
class CsvOpener:
    """Path and layout of a text file, and where in it rows begin."""

    path: str
    delimiter: str
    width: int
    taken: tuple[int, ...]
    names: tuple[str, ...]
    named: bool
    dtype: str
    marks: tuple[Mark, ...]
    note: str

    @property
    def name(self) -> str:
        return described_file(self.path)

    @property
    def kind(self) -> str:
        return "CSV" if self.delimiter != "\t" else "TSV"

    def open(self) -> CsvStore:
        return CsvStore(self)


class CsvStore:
    """An open text file. Reading on is cheap; going back in a compressed one means to begin anew."""

    sparse = False
    costly = True
    chunk_rows = 1

    def __init__(self, opener: CsvOpener) -> None:
        self._opener = opener
        self.dtype = np.dtype(opener.dtype)
        self.shape = (opener.marks[-1][0], len(opener.taken))
        self.stored = self.shape[0] * self.shape[1]
        self.feature_names = [opener.names[j] for j in opener.taken] if opener.named else None
        self._rows = [mark[0] for mark in opener.marks]
        self._stream = open_decompressed(opener.path)
        self._go_to(opener.marks[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if start != self._row:
            self._go_to(self._opener.marks[int(np.searchsorted(self._rows, start, side="right")) - 1])
            while self._row < start:
                self._take(start - self._row)
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        filled = 0
        while filled < len(out):
            row, line = self._row, self._line
            text, n = self._take(len(out) - filled)
            out[filled : filled + n] = self._parsed(text, n, row, line)
            filled += n
        return out

    def check_first_row(self) -> None:
        """Refuse a column of text without waiting for a worker to meet it."""
        try:
            self._go_to(self._opener.marks[0])
            line = self._line
            self._parsed(self._take(1)[0], 1, 0, line)
        finally:
            self.close()

    def close(self) -> None:
        self._stream.close()

    def _go_to(self, mark: Mark) -> None:
        self._row, offset, self._line = mark
        self._stream.seek(offset)
        self._buffer, self._ended = b"", False

    def _take(self, most: int) -> tuple[bytes, int]:
        """The text of some of the rows that follow, at most so many, and how many they are."""
        while True:
            n, size = cut_records(self._buffer, self._ended, most)
            if n:
                break
            if self._ended:
                raise InvalidComponent(
                    f"{self._opener.name} has fewer rows than it had; call `from_rows` again"
                )
            more = self._stream.read(_PIECE)
            self._buffer, self._ended = self._buffer + more, not more
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        self._row += n
        self._line += text.count(b"\n")
        return text, n

    def _parsed(self, text: bytes, n: int, row: int, line: int) -> NDArray[Any]:
        opener = self._opener
        plain = fields_a_line(text, opener.delimiter)
        if plain is not None and len(plain) == n and (plain == opener.width).all():
            found = parse_numbers(text, opener.delimiter, opener.width, opener.taken, self.dtype)
            if found is not None and len(found) == n:
                return found
        return self._by_field(text, n, row, line)

    def _by_field(self, text: bytes, n: int, row: int, line: int) -> NDArray[Any]:
        opener = self._opener
        out = np.empty((n, self.shape[1]), self.dtype)
        reader = csv.reader(
            io.StringIO(text.decode("utf-8", "replace"), newline=""), delimiter=opener.delimiter
        )
        i = 0
        for fields in reader:
            if not fields or (len(fields) == 1 and opener.width > 1 and not fields[0].strip()):
                continue  # a blank line
            at = line + reader.line_num
            if len(fields) != opener.width:
                raise InvalidComponent(
                    f"all lines of {opener.name} must have {opener.width} fields; line {at} has {len(fields)}"
                )
            for j, column in enumerate(opener.taken):
                out[i, j] = self._number(fields[column], column, row + i, at)
            i += 1
        return out

    def _number(self, field: str, column: int, row: int, line: int) -> float:
        try:
            return float(field)
        except ValueError:
            word = field.strip().lower()
        if word in _MISSING:
            return math.nan
        if word in _TRUTH:
            return _TRUTH[word]
        name = repr(self._opener.names[column]) if self._opener.named else str(column)
        raise InvalidComponent(
            f"all columns of {self._opener.name} must be numeric; column {name} holds "
            f"{field.strip()[:40]!r} in row {row} (line {line}); leave it out with "
            f"from_rows(..., options={{'drop': [{name}]}}), or turn it into numbers first"
        )


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What the first two lines of a text file tell."""

    delimiter: str
    names: list[str] | None
    width: int
    unnamed_index: bool
    first: Mark  # where the first row of numbers begins

    @classmethod
    def of(cls, path: str, name: str, delimiter: str | None, header: bool | None) -> _Beginning:
        with open_decompressed(path) as stream:
            found = list(_first_lines(stream, name))
        if not found:
            raise InvalidComponent(f"{name} must not be empty; it has no lines")
        texts = [text for text, _ in found]
        chosen = delimiter or _delimiter(texts, path)
        rows = [next(csv.reader([text], delimiter=chosen)) for text in texts]
        named = _is_header(rows[0]) if header is None else header
        if not named:
            return cls(chosen, None, len(rows[0]), False, found[0][1])
        if len(rows) == 1:
            raise InvalidComponent(f"{name} must not be empty; it has a header and no rows of numbers")
        names = [field.strip() for field in rows[0]]
        width = len(rows[1])
        if width == len(names) + 1:
            names = ["", *names]  # as R writes labels of rows
        return cls(chosen, names, len(names), names[0] == "" and any(names), found[1][1])


def _first_lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, Mark]]:
    """The first two lines that are neither blank nor a comment, and where each begins."""
    offset = lines = found = 0
    while found < 2:
        raw = stream.readline(1 << 26)
        while raw.count(b'"') % 2 and (more := stream.readline(1 << 26)):
            raw += more  # a line break inside quotes
        if not raw:
            return
        if b"\0" in raw:
            raise InvalidComponent(f"{name} must be text, in UTF-8; it holds binary data (or UTF-16)")
        if b"\r" in raw.rstrip(b"\r\n"):
            raise InvalidComponent(f"lines of {name} must end in \\n or \\r\\n; they end in \\r")
        text = raw.removeprefix(b"\xef\xbb\xbf") if offset == 0 else raw
        if text.strip() and not text.startswith(b"#"):
            found += 1
            yield _decoded(text).rstrip("\r\n"), (0, offset, lines)
        offset += len(raw)
        lines += raw.count(b"\n")


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _delimiter(lines: Sequence[str], path: str) -> str:
    if ".tsv" in path.lower()[-7:]:
        return "\t"
    counts = {mark: min(line.count(mark) for line in lines) for mark in _DELIMITERS}
    best = max(_DELIMITERS, key=lambda mark: counts[mark])
    if counts[best]:
        return best
    fields = lines[-1].strip().split(" ")  # numpy.savetxt writes them so
    return " " if len(fields) > 1 and all(word and _is_number(word) for word in fields) else ","


def _is_header(fields: Sequence[str]) -> bool:
    words = [field.strip() for field in fields]
    if any(not _is_number(word) for word in words):
        return True
    labels = words[1:] if words[0] == "" else words
    return len(labels) > 1 and labels == [str(j) for j in range(len(labels))]


def _is_number(word: str) -> bool:
    if word.lower() in _MISSING or word.lower() in _TRUTH:
        return True
    try:
        float(word)
    except ValueError:
        return False
    return True


def _marks(path: str, first: Mark) -> tuple[Mark, ...]:
    """Places every few megabytes at which a row begins, and the end."""
    marks = [first]
    rows, offset, lines = first
    buffer, ended = b"", False
    with open_decompressed(path) as stream:
        stream.seek(offset)
        while not ended:
            more = stream.read(_PIECE)
            buffer, ended = buffer + more, not more
            n, size = cut_records(buffer, ended)
            if n:
                rows, offset, lines = rows + n, offset + size, lines + buffer.count(b"\n", 0, size)
                buffer = buffer[size:]
                marks.append((rows, offset, lines))
    return tuple(marks)
