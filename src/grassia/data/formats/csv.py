"""Numbers in text: CSV and TSV, plain or compressed by gzip, parsed block by block.

A text file does not say how many rows it has, so `open_path` goes through it once, without parsing, and
notes where in the file every few megabytes of rows begin. Workers start reading there. Pieces in which a
value is missing, true, false or wrong are parsed field by field.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from grassia.data.formats.columns import Columns, chosen_columns, frozen_columns, not_numeric
from grassia.data.formats.parsing import field_value, parse_numbers
from grassia.data.formats.records import cut_records, fields_a_line, is_blank, records_of
from grassia.data.formats.remote import open_decompressed
from grassia.data.formats.sniffing import SNIFFED, is_utf8, odd_byte, require_text
from grassia.data.stored import StoreOpener
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["CsvOpener", "CsvStore", "open_path"]

_PIECE = 4 << 20  # bytes of text looked at and parsed at a time
_LONGEST = 1 << 28  # bytes in which a quote must be closed
_LONGEST_FIRST = 1 << 22  # the same, in the first two lines
_LOOKED_AT = 100  # rows, to tell which columns are text
_DELIMITERS = ",;\t|"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

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
    if delimiter is not None and delimiter in '"\r\n':
        raise InvalidInput(f"`delimiter` must be neither a quote nor a line break; got {delimiter!r}")
    kept = np.dtype(dtype)
    if kept not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InvalidInput(f"`dtype` must be float64 or float32; got {kept}")
    name = str(path)
    start = _Beginning.of(path, name, delimiter, header)
    names, width = start.names, start.width
    without = index if index is not None else start.unnamed_index and columns is None
    known = names or [str(j) for j in range(width)]
    left_out = frozen_columns(drop, "drop") or ()
    if without:
        left_out = (0, *left_out)
    taken = chosen_columns(known, name, frozen_columns(columns, "columns"), left_out or None)
    marks = _marks(path, name, start.delimiter, start.first)
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
        return self.path

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
        """Refuse columns of text without waiting for a worker to meet them."""
        line = self._opener.marks[0][2]
        try:
            try:
                self._go_to(self._opener.marks[0])
                self._parsed(*self._take(1), 0, line)
            except InvalidComponent:  # once more, with rows that may show further columns of text
                self._go_to(self._opener.marks[0])
                self._parsed(*self._take(_LOOKED_AT), 0, line)
                raise
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
            n, size = cut_records(self._buffer, self._ended, most, self._opener.delimiter)
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
        records = list(records_of(text, opener.delimiter))
        if len(records) != n:
            raise InvalidComponent(
                f"the rows of {opener.name} must be as they were counted; after line {line} there are "
                f"{len(records)}, not {n}; call `from_rows` again"
            )
        out = np.empty((n, self.shape[1]), self.dtype)
        texts = [record.decode("utf-8", "replace").rstrip("\r\n") for _, record in records]
        reader = csv.reader(texts, delimiter=opener.delimiter)
        for i, (before, record) in enumerate(records):
            at = line + before + 1
            fields = self._next_fields(reader, record, at)
            if len(fields) != opener.width:
                _require_line(record, opener.name, at, opener.delimiter)
                raise InvalidComponent(
                    f"all lines of {opener.name} must have {opener.width} fields; line {at} has {len(fields)}"
                )
            for j, column in enumerate(opener.taken):
                value = field_value(fields[column])
                if value is None:
                    _require_line(record, opener.name, at, opener.delimiter)
                    where = f"in row {row + i} (line {at})"
                    raise self._text_columns(column, fields, where, islice(reader, _LOOKED_AT))
                out[i, j] = value
        return out

    def _next_fields(self, reader: Iterator[list[str]], record: bytes, line: int) -> list[str]:
        try:
            return next(reader)
        except csv.Error as error:
            _require_line(record, self._opener.name, line, self._opener.delimiter)
            lone = b"\r" in record.rstrip(b"\r\n")
            reason = "it holds \\r, but lines must end in \\n or \\r\\n" if lone else str(error)
            raise InvalidComponent(f"line {line} of {self._opener.name} cannot be read: {reason}") from error

    def _text_columns(
        self, first: int, fields: list[str], where: str, following: Iterator[list[str]]
    ) -> InvalidComponent:
        """The error for a column that holds text, with all others that do so there or shortly after."""
        opener = self._opener
        rows = [fields]
        with contextlib.suppress(csv.Error):
            rows += (later for later in following if len(later) == opener.width)
        text = {column for column in opener.taken for row in rows if field_value(row[column]) is None}
        found = [first, *(column for column in opener.taken if column in text and column != first)]
        told = [opener.names[column] if opener.named else column for column in found]
        return not_numeric(told, f"holds {fields[first].strip()[:40]!r} {where}", opener.name)


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
            require_text(stream.read(SNIFFED), name, delimiter)
            stream.seek(0)
            found = list(_first_lines(stream, name, delimiter))
            if not found:
                raise InvalidComponent(f"{name} must not be empty; it has no lines")
            chosen = delimiter or _delimiter([text for text, _ in found], path)
            if delimiter is None:  # it tells which lines are blank, and where a quote opens a field
                stream.seek(0)
                found = list(_first_lines(stream, name, chosen))
        texts = [text for text, _ in found]
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


def _first_lines(stream: BinaryIO, name: str, delimiter: str | None) -> Iterator[tuple[str, Mark]]:
    """The first two lines that are neither blank nor a comment, and where each begins."""
    offset = lines = found = 0
    while found < 2:
        raw = stream.readline(1 << 26)
        skipped = len(_BYTE_ORDER_MARK) if offset == 0 and raw.startswith(_BYTE_ORDER_MARK) else 0
        text: bytes | None = raw[skipped:]
        if not raw.startswith(b"#", skipped):
            text = _whole_record(stream, raw[skipped:], delimiter or _DELIMITERS)
        if text is None:
            raise _not_closed(name, lines)
        if not raw:
            return
        if b"\0" in text:
            raise InvalidComponent(f"{name} must be text, in UTF-8; it holds binary data (or UTF-16)")
        if b"\r" in raw.rstrip(b"\r\n"):
            raise InvalidComponent(f"lines of {name} must end in \\n or \\r\\n; they end in \\r")
        if not is_blank(text, delimiter or ",") and not text.startswith(b"#"):
            found += 1
            yield _decoded(text).rstrip("\r\n"), (0, offset + skipped, lines)
        offset += skipped + len(text)
        lines += text.count(b"\n")


def _whole_record(stream: BinaryIO, line: bytes, delimiters: str) -> bytes | None:
    """A line, and those that follow it inside quotes; None where the quotes do not close.

    With several delimiters, of which one is meant, quotes that do not close may be part of the text.
    """
    record = [line]
    while b'"' in record[-1] and any(_is_open(b"".join(record), mark) for mark in delimiters):
        size = sum(map(len, record))
        while more := stream.readline(1 << 26):
            record.append(more)
            size += len(more)
            if b'"' in more or size > _LONGEST_FIRST:
                break
        if not more or size > _LONGEST_FIRST:
            return None if len(delimiters) == 1 else line
    return b"".join(record)


def _is_open(record: bytes, delimiter: str) -> bool:
    """Whether a quote opens in a record and does not close."""
    return cut_records(record, True, 1, delimiter) == (0, 0)


def _not_closed(name: str, lines: int) -> InvalidComponent:
    return InvalidComponent(
        f"a quote that opens a field must be closed; in {name} one that opens in line {lines + 1} or after "
        "it is not"
    )


def _require_line(record: bytes, name: str, line: int, delimiter: str) -> None:
    """Refuse a line that is no text, so that nobody looks for a wrong field in it."""
    at = None if is_utf8(record) else odd_byte(record, delimiter)
    if at is not None:
        raise InvalidComponent(
            f"{name} must be text, in UTF-8; line {line} holds binary data (a byte is 0x{record[at]:02x}): "
            "the file is damaged"
        )


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
    return " " if len(fields) > 1 and all(word and field_value(word) is not None for word in fields) else ","


def _is_header(fields: Sequence[str]) -> bool:
    words = [field.strip() for field in fields]
    if any(field_value(word) is None for word in words):
        return True
    labels = words[1:] if words[0] == "" else words
    return len(labels) > 1 and labels == [str(j) for j in range(len(labels))]


def _marks(path: str, name: str, delimiter: str, first: Mark) -> tuple[Mark, ...]:
    """Places every few megabytes at which a row begins, and the end."""
    marks = [first]
    rows, offset, lines = first
    buffer, ended = b"", False
    with open_decompressed(path) as stream:
        stream.seek(offset)
        while not ended:
            more = stream.read(_PIECE)
            buffer, ended = buffer + more, not more
            n, size = cut_records(buffer, ended, None, delimiter)
            if n:
                rows, offset, lines = rows + n, offset + size, lines + buffer.count(b"\n", 0, size)
                buffer = buffer[size:]
                marks.append((rows, offset, lines))
            elif len(buffer) > _LONGEST and b'"' in buffer:
                raise _not_closed(name, lines)
    if not is_blank(buffer, delimiter):
        _require_line(buffer[:SNIFFED], name, lines + 1, delimiter)
        raise _not_closed(name, lines)
    return tuple(marks)
