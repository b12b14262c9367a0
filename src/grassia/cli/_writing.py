"""Writing arrays and tables a block of rows at a time: .npy, .npz, CSV, Parquet, and PLINK's tables."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from grassia._optional import require

__all__ = ["FORMATS", "CsvRows", "EigenvecRows", "NpyRows", "ParquetRows", "RowWriter", "component_names"]

FORMATS = ["npy", "npz", "csv", "parquet"]

Rows = NDArray[Any]


class RowWriter(ABC):
    """Takes rows of numbers block by block, each row with its names, and is closed at the end."""

    @abstractmethod
    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        """Write some more rows; `names` has one tuple for each."""


class NpyRows(RowWriter):
    """A `.npy` array of known shape, written from its beginning to its end; `stream` is not closed.

    Parameters
    ----------
    begun : bool
        Whether the stream has the beginning already, and stands where more rows go.
    """

    def __init__(
        self, stream: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any], begun: bool = False
    ) -> None:
        self._stream, self._dtype = stream, dtype
        if begun:
            return
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(stream, header)

    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        self._stream.write(np.ascontiguousarray(rows, self._dtype).data)


class CsvRows(RowWriter):
    """Text with a header, comma separated; numbers are written so that they read back as they were."""

    def __init__(
        self, stream: IO[str], header: Sequence[str], names_too: bool = True, delimiter: str = ","
    ) -> None:
        self._writer = csv.writer(stream, delimiter=delimiter, lineterminator="\n")
        self._names_too = names_too
        if header:
            self._writer.writerow(header)

    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        numbers = rows.tolist()
        if not self._names_too:
            self._writer.writerows(numbers)
            return
        self._writer.writerows((*name, *row) for name, row in zip(names, numbers, strict=True))


class EigenvecRows(RowWriter):
    """PLINK 2's table of sample eigenvectors, columns of length one: `#FID IID PC1 ...` or `#IID PC1 ...`.

    Parameters
    ----------
    lengths : ndarray (k,)
        Of the columns of scores that are added; a column of no length is written as zeros.
    """

    def __init__(self, stream: IO[str], lengths: NDArray[np.float64], families: bool) -> None:
        ids = ["#FID", "IID"] if families else ["#IID"]
        self._scale = np.divide(1.0, lengths, out=np.zeros(len(lengths)), where=lengths > 0.0)
        self._stream = stream
        stream.write("\t".join([*ids, *component_names(len(lengths))]) + "\n")

    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        for name, row in zip(names, (rows * self._scale).tolist(), strict=True):
            # A blank would end the name for whoever reads the table.
            words = ["_".join(part.split()) or "." for part in name]
            self._stream.write("\t".join([*words, *(f"{number:.10g}" for number in row)]) + "\n")


class ParquetRows(RowWriter):
    """A Parquet file with columns of names (text) and of numbers."""

    def __init__(
        self,
        path: Path,
        header: Sequence[str],
        names: Sequence[str],
        dtype: np.dtype[Any],
        names_too: bool = True,
    ) -> None:
        pa = require("pyarrow", "parquet")
        self._pa, self._names_too = pa, names_too
        number = pa.from_numpy_dtype(dtype)
        kinds = [(name, pa.int64() if name == "row" else pa.string()) for name in header] if names_too else []
        self._schema = pa.schema([*kinds, *((name, number) for name in names)])
        self._counts = [name == "row" for name in header]
        self._dtype = dtype
        self._writer = require("pyarrow.parquet", "parquet").ParquetWriter(path, self._schema)

    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        columns: list[Any] = []
        if self._names_too:
            given = list(zip(*names, strict=True))
            columns = [
                [int(n) for n in column] if count else column
                for column, count in zip(given, self._counts, strict=True)
            ]
        columns += [np.ascontiguousarray(rows[:, j], self._dtype) for j in range(rows.shape[1])]
        arrays = [self._pa.array(c, type=f.type) for c, f in zip(columns, self._schema, strict=True)]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))

    def copy(self, file: Any) -> int:
        """Write the rows of another such file; how many they were."""
        for group in range(file.num_row_groups):
            self._writer.write_table(file.read_row_group(group).cast(self._schema))
        return int(file.metadata.num_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()


def component_names(k: int) -> list[str]:
    """The names of the components.

    >>> component_names(3)
    ['PC1', 'PC2', 'PC3']
    """
    return [f"PC{i + 1}" for i in range(k)]
