"""What rows are called: samples of genotype files, observations, labels in a column of a table.

Names are read in the order of the rows and a few at a time, beside the scores.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from grassia._optional import require
from grassia.data import Components, StoredRowsLoader, SumLoader
from grassia.data.formats.anndata import AnnDataOpener
from grassia.data.formats.csv import CsvOpener
from grassia.data.formats.parquet import ParquetOpener
from grassia.data.formats.plink import PlinkOpener
from grassia.data.formats.records import cut_records, records_of
from grassia.data.formats.remote import open_binary, open_decompressed
from grassia.data.several import SeveralOpener
from grassia.errors import InvalidInput

__all__ = ["RowNames"]

_PIECE = 1 << 20
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class RowNames:
    """The columns of names that stand before the scores.

    Parameters
    ----------
    components : Components
        Of files.
    id_column, label_column : str, optional
        Columns of tables: one that names rows, and one that goes along with them. Every file must have them.

    Raises
    ------
    InvalidInput
        If one has not, before anything is made of the rows.
    """

    components: Components
    id_column: str | None = None
    label_column: str | None = None

    def __post_init__(self) -> None:
        for column in (self.id_column, self.label_column):
            if column is not None:
                for opener in self._openers():
                    _require_column(opener, column)

    @property
    def header(self) -> list[str]:
        """The names of the columns; `row` is a number, counted from 0."""
        ids = ["id"] if self.id_column is not None or self._own_ids() else ["row"]
        return [*ids, *(["label"] if self.label_column is not None else [])]

    @property
    def families(self) -> bool:
        """Whether names are pairs of family and sample, as in PLINK's files."""
        return self.id_column is None and all(isinstance(o, PlinkOpener) for o in self._openers())

    @property
    def known(self) -> bool:
        """Whether rows have names, or more than a number."""
        return self.header != ["row"]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return zip(*(self._column(name) for name in self.header), strict=True)

    def with_families(self) -> Iterator[tuple[str, str]]:
        """Family and sample of every row, where there are such."""
        for opener in self._openers():
            assert isinstance(opener, PlinkOpener)
            yield from _fam(opener)

    def _column(self, name: str) -> Iterator[str]:
        if name == "row":
            return map(str, range(self.components.n_rows or 0))
        if name == "label":
            assert self.label_column is not None
            return chain.from_iterable(_texts(opener, self.label_column) for opener in self._openers())
        if self.id_column is not None:
            return chain.from_iterable(_texts(opener, self.id_column) for opener in self._openers())
        return chain.from_iterable(_ids(opener) for opener in self._openers())

    def _own_ids(self) -> bool:
        openers = list(self._openers())
        return bool(openers) and all(_has_ids(opener) for opener in openers)

    def _openers(self) -> Iterator[Any]:
        """The files in order, once each; None for what has no names."""
        last: Any = None
        for opener in _openers(self.components):
            if opener is None or opener is not last:
                yield opener
            last = opener


def _openers(loaders: Iterable[Any]) -> Iterator[Any]:
    for loader in loaders:
        if isinstance(loader, SumLoader):
            yield from _openers(loader.loaders)
        elif isinstance(loader, StoredRowsLoader) and isinstance(loader.opener, SeveralOpener):
            yield from loader.opener.openers
        else:
            yield getattr(loader, "opener", None)


def _has_ids(opener: Any) -> bool:
    if isinstance(opener, CsvOpener):  # labels of rows, as pandas and R write them
        return opener.named and opener.names[0] == "" and 0 not in opener.taken
    return isinstance(opener, PlinkOpener | AnnDataOpener)


def _ids(opener: Any) -> Iterator[str]:
    if isinstance(opener, PlinkOpener):
        return (sample for _, sample in _fam(opener))
    if isinstance(opener, AnnDataOpener):
        return _observations(opener)
    return _csv_column(opener, 0)


def _texts(opener: Any, column: str) -> Iterator[str]:
    """A column of a table, as text."""
    if isinstance(opener, CsvOpener):
        return _csv_column(opener, opener.names.index(column))
    return _parquet_column(opener, column)


def _require_column(opener: Any, column: str) -> None:
    if isinstance(opener, CsvOpener):
        names: Sequence[str] = opener.names
    elif isinstance(opener, ParquetOpener):
        with open_binary(opener.path) as file:
            names = require("pyarrow.parquet", "parquet").ParquetFile(file).schema_arrow.names
    else:
        raise InvalidInput(
            f"--id and --label name columns of CSV and Parquet files; there is no {column!r} here."
        )
    if column not in names:
        raise InvalidInput(
            f"every file must have the column that --id or --label names; {opener.name} has no {column!r}."
        )


def _fam(opener: PlinkOpener) -> Iterator[tuple[str, str]]:
    with open(os.path.splitext(opener.path)[0] + ".fam", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                family, sample = line.split()[:2]
                yield family, sample


def _observations(opener: AnnDataOpener) -> Iterator[str]:
    with require("h5py", "hdf5").File(opener.path, "r") as file:
        obs = file["obs"]
        index = obs if getattr(obs, "fields", None) else obs[obs.attrs.get("_index", "_index")]
        for a in range(0, len(index), _BATCH_ROWS):
            yield from (
                name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
                for name in index[a : a + _BATCH_ROWS]
            )


def _csv_column(opener: CsvOpener, column: int) -> Iterator[str]:
    with open_decompressed(opener.path) as stream:
        stream.seek(opener.marks[0][1])
        buffer, ended = b"", False
        while not ended:
            more = stream.read(_PIECE)
            buffer, ended = buffer + more, not more
            _, size = cut_records(buffer, ended, None, opener.delimiter)
            texts = (
                record.decode("utf-8", "replace") for _, record in records_of(buffer[:size], opener.delimiter)
            )
            for fields in csv.reader((text.rstrip("\r\n") for text in texts), delimiter=opener.delimiter):
                yield fields[column].strip()
            buffer = buffer[size:]


def _parquet_column(opener: ParquetOpener, column: str) -> Iterator[str]:
    parquet = require("pyarrow.parquet", "parquet")
    with open_binary(opener.path) as file:
        for batch in parquet.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=[column]):
            yield from ("" if value is None else str(value) for value in batch.column(0).to_pylist())
