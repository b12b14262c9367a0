"""A table of scores that is written block by block, kept when it is interrupted, and gone on with.

Until it is done the table is in `OUTPUT.part`. After Ctrl-C, `OUTPUT.part.json` says of what it is, and how
much of it holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from grassia._lock import locked
from grassia._optional import require
from grassia.cli._kept import Stopped
from grassia.cli._model import free_target
from grassia.cli._writing import CsvRows, NpyRows, ParquetRows, Rows, RowWriter, component_names
from grassia.errors import InvalidInput

__all__ = ["SUFFIXES", "PartialTable", "partial_table"]

SUFFIXES = (".npy", ".csv", ".tsv", ".parquet")


class PartialTable(RowWriter):
    """A file of scores in the format of a suffix, and the writing of what it lacks.

    Parameters
    ----------
    path : path
        The file.
    suffix : str
        One of `SUFFIXES`.
    shape, dtype
        Of the scores when all are there.
    names : sequence of str
        The columns before the scores.
    header : bool
        Whether text begins with the names of the columns.
    rows, size : int
        How many rows, and bytes, are there and hold.
    """

    def __init__(
        self,
        path: Path,
        suffix: str,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        names: Sequence[str],
        header: bool,
        rows: int = 0,
        size: int = 0,
    ) -> None:
        self._path, self._suffix = path, suffix
        self.rows, self.size = rows, size
        self._stack = ExitStack()
        open_writer = {".npy": self._npy, ".parquet": self._parquet}.get(suffix, self._text)
        self._writer = open_writer(shape, dtype, list(names), header)

    def _npy(self, shape: tuple[int, int], dtype: np.dtype[Any], names: list[str], header: bool) -> RowWriter:
        self._stream = self._stack.enter_context(self._opened("ab"))
        return NpyRows(self._stream, shape, dtype, begun=self.rows > 0)

    def _text(
        self, shape: tuple[int, int], dtype: np.dtype[Any], names: list[str], header: bool
    ) -> RowWriter:
        self._stream = self._stack.enter_context(self._opened("a", encoding="utf-8", newline=""))
        delimiter = "\t" if self._suffix == ".tsv" else ","
        titles = [*names, *component_names(shape[1])] if header and not self.rows else []
        return CsvRows(self._stream, titles, delimiter=delimiter)

    def _opened(self, mode: str, **options: Any) -> Any:
        if self.rows:
            os.truncate(self._path, self.size)
            return self._path.open(mode, **options)
        return self._path.open(mode.replace("a", "w"), **options)

    def _parquet(
        self, shape: tuple[int, int], dtype: np.dtype[Any], names: list[str], header: bool
    ) -> RowWriter:
        """Such a file cannot be added to: its rows go over to another."""
        self._stream = None
        titles = component_names(shape[1])
        if not self.rows:
            return self._stack.enter_context(ParquetRows(self._path, names, titles, dtype))
        done = self._path.with_name(f"{self._path.name}.done")
        os.replace(self._path, done)
        try:
            writer = self._stack.enter_context(ParquetRows(self._path, names, titles, dtype))
            with require("pyarrow.parquet", "parquet").ParquetFile(done) as file:
                self.rows = writer.copy(file)
        except BaseException:
            self._stack.close()
            os.replace(done, self._path)
            raise
        done.unlink()
        return writer

    def add(self, rows: Rows, names: Sequence[tuple[str, ...]]) -> None:
        self._writer.add(rows, names)
        if self._stream is not None:
            self._stream.flush()
        self.size = self._path.stat().st_size
        self.rows += len(rows)

    def close(self) -> None:
        """Nothing more is written."""
        self._stack.close()


@contextmanager
def partial_table(
    output: Path,
    asked: Mapping[str, Any],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    names: Sequence[str],
    *,
    header: bool,
    overwrite: bool,
    resume: bool,
) -> Iterator[PartialTable]:
    """The table that takes the place of `output` when all went well; Ctrl-C keeps what there is of it.

    Parameters
    ----------
    asked : mapping
        What the scores are of; what is kept of anything else is refused.
    resume : bool
        Go on with what was kept, if there is anything.

    Raises
    ------
    Stopped
        If it is interrupted; it says how to go on.
    """
    target = free_target(output, overwrite)
    part, note = (target.with_name(f"{target.name}.part{end}") for end in ("", ".json"))
    asked = json.loads(
        json.dumps({**asked, "shape": shape, "dtype": dtype.str, "names": names, "header": header})
    )
    with _alone(part, output):
        rows, size = _kept(note, part, asked) if resume else (0, 0)
        note.unlink(missing_ok=True)
        table, keep = None, False
        try:
            table = PartialTable(part, target.suffix, shape, dtype, names, header, rows, size)
            yield table
            table.close()
            os.replace(part, target)
        except KeyboardInterrupt:
            if table is not None:
                table.close()
                rows, size = table.rows, table.size
            if not rows:
                raise
            note.write_text(json.dumps({"asked": asked, "rows": rows, "size": size}) + "\n", "utf-8")
            keep = True
            raise Stopped(
                f"{rows} of {shape[0]} rows are kept in {output}.part; go on with the same command and "
                "--resume"
            ) from None
        finally:
            if not keep:
                if table is not None:
                    with suppress(OSError):  # there may be no space for what is left to be written
                        table.close()
                part.unlink(missing_ok=True)


@contextmanager
def _alone(part: Path, output: Path) -> Iterator[None]:
    """Inside `with`, nobody else writes to the same part."""
    beside = part.with_name(f".{part.name}.lock")
    lock = locked(beside, f"another command is writing {output}; wait for its end, or give another name.")
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        if lock is not None:
            lock.close()


def _kept(note: Path, part: Path, asked: Mapping[str, Any]) -> tuple[int, int]:
    """How many rows and bytes of the part hold."""
    if not note.exists():
        return 0, 0
    try:
        kept = json.loads(note.read_text(encoding="utf-8"))
        before, rows, size = dict(kept["asked"]), int(kept["rows"]), int(kept["size"])
        if part.stat().st_size < size:
            raise ValueError(f"{part.name} is shorter than it was")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{note} is damaged ({error}); give the same command without --resume, to start again."
        ) from error
    differing = [name for name in asked if before.get(name) != asked[name]]
    if differing:
        raise InvalidInput(
            f"{part} is of another projection ({', '.join(differing)}); give what was given then, or start "
            "again without --resume."
        )
    return rows, size
