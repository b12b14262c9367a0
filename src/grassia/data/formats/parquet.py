"""Parquet files, by pyarrow: the footer tells shape and row groups, rows are decoded as they are needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._blas import numpy_threads
from grassia._optional import require
from grassia.data.formats.arrow import column_dtypes, fill_column, fill_lists, is_list, list_width
from grassia.data.formats.columns import Columns, chosen_columns, common_dtype, frozen_columns
from grassia.data.formats.remote import is_url, open_binary
from grassia.data.stored import StoreOpener
from grassia.errors import InvalidComponent

__all__ = ["ParquetOpener", "ParquetStore", "open_path"]

# Bytes of all columns together that are read at a time, as they are in the file, and decoded.
_BUFFERS = 16 << 20
_BATCH = 4 << 20


def open_path(path: str, *, columns: Columns = None, drop: Columns = None) -> StoreOpener:
    """A Parquet file; `columns` and `drop` say which columns to take, by name or position."""
    return ParquetOpener(path, frozen_columns(columns, "columns"), frozen_columns(drop, "drop"))


@dataclass(frozen=True, slots=True)
class ParquetOpener:
    """Path and columns of a Parquet file."""

    path: str
    columns: tuple[str | int, ...] | None = None
    drop: tuple[str | int, ...] | None = None

    @property
    def name(self) -> str:
        return self.path

    @property
    def kind(self) -> str:
        return "Parquet"

    def open(self) -> ParquetStore:
        return ParquetStore(self)


class ParquetStore:
    """An open Parquet file. Rows are decoded in order; reading on from where one stopped costs nothing extra.

    A single column of lists of numbers, of one length, is rows by itself. A column that pandas wrote as its
    index is left out. Integers and booleans of which values are missing, or may be, are read as float64, the
    missing ones as NaN.
    """

    sparse = False
    costly = True

    def __init__(self, opener: ParquetOpener) -> None:
        parquet = require("pyarrow.parquet", "parquet")
        name = opener.name
        with open_binary(opener.path) as file:  # pyarrow's error for a folder or a missing file says less
            if file.read(4) != b"PAR1":
                raise InvalidComponent(f"{name} must be a Parquet file; it does not begin as one")
        source = open_binary(opener.path) if is_url(opener.path) else opener.path
        footer = parquet.read_metadata(source)
        schema = footer.schema.to_arrow_schema()
        names = list(schema.names)
        index = _pandas_index(schema)
        drop = (*(opener.drop or ()), *(c for c in index if c in names and c not in (opener.columns or ())))
        self._taken = chosen_columns(names, name, opener.columns, drop or None)
        self._columns = [names[j] for j in self._taken]
        self.feature_names: list[str] | None = self._columns
        twice = sorted({column for column in self._columns if names.count(column) > 1})
        if twice:
            raise InvalidComponent(
                f"the columns of {name} must have different names; {twice[0]!r} is there twice"
            )
        self._name = name
        kinds = [schema.field(j).type for j in self._taken]
        self._lists = len(kinds) == 1 and is_list(kinds[0])
        if not self._lists:
            missing = _with_missing(footer, schema, self._taken)
            places = {i for i, j in enumerate(self._taken) if j in missing}
            dtypes = column_dtypes(self._columns, kinds, places, name)
        else:
            self.feature_names = None
            dtypes = column_dtypes(self._columns, [kinds[0].value_type], (), name)
        self.dtype = common_dtype(dtypes)
        groups = [int(footer.row_group(i).num_rows) for i in range(footer.num_row_groups)]
        self.chunk_rows = max(groups, default=1)
        self._begins = np.r_[0, np.cumsum(groups, dtype=np.int64)]
        self.boundaries = self._begins[:-1].tolist()
        buffer = min(max(_BUFFERS // max(footer.num_columns, 1), 1 << 14), 1 << 20)
        self._file = parquet.ParquetFile(source, metadata=footer, buffer_size=buffer, pre_buffer=False)
        self._batches: Iterator[Any] = iter(())
        self._left: Any = None
        self._group = self._next = -1
        self.shape = (int(footer.num_rows), len(self._taken))
        if self._lists and footer.num_rows:
            first = self._following().column(0)[0]
            self.shape = (int(footer.num_rows), list_width(kinds[0], first))
            self.release()
        self.stored = self.shape[0] * self.shape[1]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        if start != self._next:
            self._begin(start)
        self._next = -1  # should this fail half way, the next read begins anew
        filled = 0
        while filled < len(out):
            batch = self._left if self._left is not None else self._following()
            n = min(batch.num_rows, len(out) - filled)
            for j, name in enumerate(self._columns):
                column = batch.column(batch.schema.get_field_index(name)).slice(0, n)
                if self._lists:
                    fill_lists(column, out[filled : filled + n], name, self._name, start + filled)
                else:
                    fill_column(column, out[filled : filled + n, j], name, self._name)
            self._left = batch.slice(n) if n < batch.num_rows else None
            filled += n
        self._next = stop
        return out

    def release(self) -> None:
        """Let go of what is decoded."""
        self._batches, self._left = iter(()), None
        self._group = self._next = -1

    def close(self) -> None:
        self.release()
        self._file.close()

    def _begin(self, start: int) -> None:
        """Decode from the row group that holds row `start`, and skip what comes before it."""
        self.release()
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        self._group = first - 1
        before = start - int(self._begins[first])
        while before:
            batch = self._following()
            skipped = min(before, batch.num_rows)
            self._left = batch.slice(skipped) if skipped < batch.num_rows else None
            before -= skipped

    def _following(self) -> Any:
        """The next rows decoded; row group by row group, so that no more than one is held."""
        while (batch := next(self._batches, None)) is None:
            self._group += 1
            row = max(1, self.shape[1] * self.dtype.itemsize)
            # pyarrow's threads count as BLAS's do: workers that share a machine have one each.
            threads = numpy_threads() > 1
            self._batches = self._file.iter_batches(
                max(1024, _BATCH // row),
                row_groups=[self._group],
                columns=self._columns,
                use_threads=threads,
            )
        return batch


def _pandas_index(schema: Any) -> list[str]:
    """The columns that pandas wrote as its index."""
    try:
        notes = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        return [column for column in notes.get("index_columns", []) if isinstance(column, str)]
    except (ValueError, AttributeError):
        return []  # the notes of another writer: the columns count as they are


def _with_missing(footer: Any, schema: Any, taken: list[int]) -> set[int]:
    """Columns that are no floats and of which the footer does not say that no value is missing."""
    types = require("pyarrow", "parquet").types
    kinds = {j: schema.field(j).type for j in taken}
    asked = {j for j, kind in kinds.items() if types.is_integer(kind) or types.is_boolean(kind)}
    if footer.num_columns != len(schema):
        return asked  # nested columns: positions in the footer are not those of the table
    found: set[int] = set()
    for i in range(footer.num_row_groups if asked else 0):
        group = footer.row_group(i)
        for j in asked - found:
            notes = group.column(j).statistics
            if notes is None or not notes.has_null_count or notes.null_count:
                found.add(j)
    return found
