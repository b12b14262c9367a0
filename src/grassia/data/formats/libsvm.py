"""Sparse rows in the text format of LIBSVM and SVMlight: ``label index:value index:value ... # comment``."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from grassia._checks import require_count
from grassia.data.formats.decoding import DecodedBlocks, local_path, naming
from grassia.data.formats.remote import is_url, open_decompressed
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["LibsvmOpener", "LibsvmStore", "labels", "open_path"]

_RULE = "a text file of lines `label index:value index:value ...`"
_REMEDY = "see sklearn.datasets.dump_svmlight_file"
# Text parsed at a time; more where a file would otherwise have more than so many blocks.
_BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 4096
_MOST_FEATURES = 2**31 - 1  # scikit-learn's parser has no more


def open_path(
    path: str,
    n_features: int | None = None,
    zero_based: bool | str = "auto",
) -> LibsvmOpener:
    """The opener of a LIBSVM text file, plain or compressed (`.gz`, `.bz2`, `.xz`).

    Parameters
    ----------
    path : str
        A path, or an address that fsspec opens.
    n_features : int, optional
        By default the largest index in the file tells it. Give it where several files belong together:
        each may lack the last features.
    zero_based : bool or "auto"
        Whether indices count from 0. By default they do if index 0 occurs in the file.

    Notes
    -----
    The file is read once here, without parsing its values, to count rows and entries and to note where
    blocks of rows begin, so that a worker goes straight to its own. In a compressed file it has to
    decompress, not parse, what comes before. Parsed rows are kept, up to 512 MB in each process; what is
    beyond that is parsed again in every pass. Labels are skipped; `labels` reads them.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/x.svm", "w") as file:
    ...         _ = file.write("1 1:0.5 3:2\\n-1 2:4\\n")
    ...     print(open_path(f"{folder}/x.svm").open().read(0, 2).toarray())
    [[0.5 0.  2. ]
     [0.  4.  0. ]]
    """
    if n_features is not None:
        require_count(n_features, "n_features")
    if not isinstance(zero_based, bool) and zero_based != "auto":
        raise InvalidInput(f'zero_based must be True, False or "auto"; got {zero_based!r}')
    where = path if is_url(path) else local_path(path)
    with naming(where, _RULE, _REMEDY), open_decompressed(where) as file:
        count = _Count(where)
        count.all_lines(file)
    base = 0 if zero_based is True or (zero_based == "auto" and count.lowest == 0) else 1
    if count.rows == 0:
        raise InvalidComponent(f"{where} must hold at least one row; it has none; leave it out")
    if count.lowest is not None and count.lowest < base:
        remedy = "; give options={'zero_based': True} if they count from 0" if count.lowest == 0 else ""
        raise InvalidComponent(
            f"the indices in {where} must be at least {base}; found {count.lowest}{remedy}"
        )
    if count.highest >= _MOST_FEATURES:
        raise InvalidComponent(
            f"the indices in {where} must be below {_MOST_FEATURES}; found {count.highest}"
        )
    found = count.highest - base + 1
    if n_features is not None and n_features < found:
        raise InvalidInput(
            f"n_features must be at least {found}, the largest index in {where}; got {n_features}"
        )
    if n_features is None and found < 1:
        raise InvalidComponent(
            f"{where} must be {_RULE}; no line has an `index:value`; if all rows are zero, give "
            "options={'n_features': d}; if it is a table, name it .csv or .tsv"
        )
    d = found if n_features is None else int(n_features)
    marks = tuple(count.marks), tuple(count.offsets)
    return LibsvmOpener(where, (count.rows, d), count.stored, base == 0, count.multilabel, *marks)


def labels(path: str, **options: Any) -> Any:
    """The labels of a file, which rows leave out; a list of tuples where lines have several.

    `options` are those of `open_path`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open(f"{folder}/x.svm", "w") as file:
    ...         _ = file.write("1 1:0.5 3:2\\n-1 2:4\\n")
    ...     print(labels(f"{folder}/x.svm"))
    [ 1. -1.]
    """
    store = open_path(path, **options).open()
    try:
        return store.labels()
    finally:
        store.close()


@dataclass(frozen=True)
class LibsvmOpener:
    """A LIBSVM text file, what is in it, and at which bytes some of its rows begin."""

    path: str
    shape: tuple[int, int]
    stored: int
    zero_based: bool
    multilabel: bool
    marks: tuple[int, ...] = field(repr=False)
    offsets: tuple[int, ...] = field(repr=False)
    kind = "LIBSVM text"

    @property
    def name(self) -> str:
        return self.path

    def open(self) -> LibsvmStore:
        return LibsvmStore(self)


class LibsvmStore:
    """An open LIBSVM text file; rows as CSR arrays of float64."""

    sparse = True
    dtype = np.dtype(np.float64)
    chunk_rows = 1
    costly = True
    feature_names: list[str] | None = None

    def __init__(self, opener: LibsvmOpener) -> None:
        self._opener = opener
        self.shape = opener.shape
        self.stored = opener.stored
        with naming(opener.path, _RULE, _REMEDY):
            self._file = open_decompressed(opener.path)
        self._blocks = DecodedBlocks(opener.marks, lambda i: self._parse(i)[0])

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop`` as a CSR array."""
        return self._blocks.read(start, stop)

    def labels(self) -> Any:
        """The labels of all rows, in one array; or a list of tuples where a line may have several."""
        found = [self._parse(i)[1] for i in range(len(self._opener.marks) - 1)]
        return list(chain.from_iterable(found)) if self._opener.multilabel else np.concatenate(found)

    def release(self) -> None:
        self._blocks.release()

    def close(self) -> None:
        self._file.close()

    def _parse(self, i: int) -> tuple[Any, Any]:
        opener = self._opener
        begin, end = opener.offsets[i : i + 2]
        with naming(opener.path, _RULE, _REMEDY):
            self._file.seek(begin)
            text = self._file.read(end - begin)
            if len(text) < end - begin:
                raise EOFError("it is shorter than when its rows were counted")
        try:
            rows, found = self._parsed_fast(text) or self._parsed(text)
        except (ValueError, OverflowError) as error:
            raise self._at_fault(text, opener.marks[i]) from error
        if rows.shape[0] != opener.marks[i + 1] - opener.marks[i]:
            raise InvalidComponent(
                f"{opener.path} must not change while it is in use; call `from_rows` again"
            )
        return rows, found

    def _parsed(self, text: bytes) -> tuple[Any, Any]:
        from sklearn.datasets import load_svmlight_file

        opener = self._opener
        rows, found = load_svmlight_file(
            io.BytesIO(text),
            n_features=opener.shape[1],
            zero_based=opener.zero_based,
            multilabel=opener.multilabel,
        )
        return sp.csr_array(rows), found

    def _parsed_fast(self, text: bytes) -> tuple[Any, Any] | None:
        """The same by pyarrow, several times faster, for text as it usually is; None for all else."""
        # Comments and the like; and Arrow takes 0x10 for sixteen.
        if self._opener.multilabel or any(sign in text for sign in (b"#", b"\t", b"\r", b"qid", b"x", b"X")):
            return None
        if importlib.util.find_spec("pyarrow") is None:
            return None
        lines = [line.lstrip(b" ").partition(b" ") for line in text.split(b"\n") if line.strip()]
        counts = np.array([entries.count(b":") for _, _, entries in lines])
        parsed = _parse_pairs(b"\n".join([entries for _, _, entries in lines]).replace(b" ", b"\n"))
        if parsed is None:
            return None
        indices, values = parsed
        d, base = self._opener.shape[1], 0 if self._opener.zero_based else 1
        pointers = np.r_[0, np.cumsum(counts)]
        if len(values) != pointers[-1] or (
            len(values) and not base <= indices.min() <= indices.max() < d + base
        ):
            return None
        rising = np.diff(indices) > 0
        inner = pointers[1:-1]
        rising[inner[(inner > 0) & (inner < len(values))] - 1] = True  # from one row to the next it may fall
        if not rising.all():
            return None
        rows = sp.csr_array((values, indices - base, pointers.astype(np.int32)), shape=(len(lines), d))
        return rows, np.array([label for label, _, _ in lines]).astype(np.float64)

    def _at_fault(self, text: bytes, row: int) -> InvalidComponent:
        """The error for text that cannot be parsed, with the first line that is wrong."""
        for line in text.split(b"\n"):
            content = line.partition(b"#")[0].strip()
            if content:
                try:
                    self._parsed(content)
                except (ValueError, OverflowError) as error:
                    return _wrong_row(self._opener.path, row, content, str(error))
                row += 1
        return InvalidComponent(f"{self._opener.path} must be {_RULE}; it cannot be read as one; {_REMEDY}")


def _parse_pairs(text: bytes) -> tuple[Any, Any] | None:
    """Indices and values of lines ``index:value``; None where a line is something else."""
    import pyarrow as pa
    from pyarrow import csv

    types = {"index": pa.int32(), "value": pa.float64()}
    if not text.strip():
        return np.zeros(0, np.int32), np.zeros(0)
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(types)),
            csv.ParseOptions(delimiter=":", quote_char=False),
            csv.ConvertOptions(column_types=types, null_values=[], check_utf8=False),
        )
    except pa.ArrowInvalid:
        return None
    return table.column(0).to_numpy(), table.column(1).to_numpy()


class _Count:
    """Rows, entries, the span of the indices, and where blocks of rows begin; values are not parsed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = self.stored = 0
        self.lowest: int | None = None
        self.highest = -1
        self.multilabel = False
        self.marks = [0]
        self.offsets = [0]
        self._block_bytes = _BLOCK_BYTES

    def all_lines(self, file: Any) -> None:
        offset = 0
        for line in file:
            if offset - self.offsets[-1] >= self._block_bytes and self.rows > self.marks[-1]:
                self._mark(offset)
            offset += len(line)
            self._line(line)
        if self.rows > self.marks[-1]:
            self._mark(offset)

    def _mark(self, offset: int) -> None:
        self.marks.append(self.rows)
        self.offsets.append(offset)
        if len(self.marks) > _MOST_BLOCKS:
            # Every second mark goes; the first is kept, and the last is the next block's beginning.
            self.marks, self.offsets = self.marks[::2], self.offsets[::2]
            self._block_bytes *= 2

    def _line(self, line: bytes) -> None:
        if b"#" in line:
            line = line.partition(b"#")[0]
        first = line.find(b":")
        if first < 0:
            words = line.split()
            if len(words) > 1 or (words and not self.rows and not _is_label(words[0])):
                raise _wrong_row(self.path, self.rows, line.strip(), "there is no `index:value`")
            self.rows += bool(words)
            return
        self.multilabel = self.multilabel or b"," in line[:first]
        entries = line.count(b":")
        try:
            if _word_before(line, first).strip() == b"qid":
                entries -= 1
                first = line.find(b":", first + 1)
            if entries:
                last = line.rfind(b":")
                low, high = int(_word_before(line, first)), int(_word_before(line, last))
                self.highest = max(self.highest, high)
                self.lowest = low if self.lowest is None else min(self.lowest, low)
        except ValueError:
            raise _wrong_row(self.path, self.rows, line.strip(), "an index must be an integer") from None
        self.rows += 1
        self.stored += entries


def _word_before(line: bytes, colon: int) -> bytes:
    begin = max(line.rfind(b" ", 0, colon), line.rfind(b"\t", 0, colon))
    return line[begin:colon] if begin >= 0 else b""


def _is_label(word: bytes) -> bool:
    try:
        [float(part) for part in word.split(b",")]
    except ValueError:
        return False
    return True


def _wrong_row(path: str, row: int, line: bytes, why: str) -> InvalidComponent:
    shown = repr(line[:60])[1:] + ("..." if len(line) > 60 else "")
    return InvalidComponent(f"{path} must be {_RULE}; row {row} is {shown}: {why}; {_REMEDY}")
