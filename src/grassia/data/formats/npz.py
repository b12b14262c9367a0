"""`.npz` files: a sparse matrix as scipy.sparse.save_npz writes it, or a dense array of numpy.savez."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.data.formats.decoding import DecodedBlocks, checked_csr, local_path, naming, require_shape
from grassia.data.formats.remote import is_url, open_binary
from grassia.errors import InvalidComponent
from grassia.passes.sparse import canonical_csr

__all__ = ["NpzOpener", "NpzStore", "open_path"]

_RULE = "an .npz file of a sparse matrix or a two-dimensional array"
_REMEDY = "write it with scipy.sparse.save_npz or numpy.savez"
_SPARSE = {"format", "shape", "data"}
# Numbers decompressed at a time: 8 MB, or some 12 to 16 MB with their indices.
_BLOCK_ENTRIES = 1_000_000


def open_path(path: str, dataset: str | None = None) -> NpzOpener:
    """The opener of an `.npz` file; `dataset` names the array where a file of numpy.savez has several.

    Notes
    -----
    What is not compressed (``save_npz(..., compressed=False)``, ``numpy.savez``) is read by ranges of rows.
    What is compressed can only be read from its beginning: the rows a component needs are kept once they are
    decompressed, up to 512 MB in each process; what is beyond that is decompressed in every pass. The row
    pointers are always in memory. Sparse matrices of other layouts than CSR, and arrays in Fortran's order,
    are loaded whole.

    Examples
    --------
    >>> import tempfile, scipy.sparse as sp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sp.save_npz(f"{folder}/x.npz", sp.csr_array(np.eye(3)))
    ...     print(open_path(f"{folder}/x.npz").open().read(1, 2).toarray())
    [[0. 1. 0.]]
    """
    return NpzOpener(path if is_url(path) else local_path(path), dataset)


@dataclass(frozen=True)
class NpzOpener:
    """A path or address of an `.npz` file, and which of its arrays is meant."""

    path: str
    dataset: str | None = None
    kind = ".npz"

    @property
    def name(self) -> str:
        return self.path if self.dataset is None else f"{self.path}::{self.dataset}"

    def open(self) -> NpzStore:
        return NpzStore(self.path, self.dataset)


class NpzStore:
    """An open `.npz` file; rows as CSR arrays, or as arrays where they are dense."""

    chunk_rows = 1
    feature_names: list[str] | None = None
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    stored: int

    def __init__(self, path: str, dataset: str | None) -> None:
        self._path = path
        self.costly = is_url(path)
        self._blocks: DecodedBlocks | None = None
        with naming(path, _RULE, _REMEDY):
            self._file = open_binary(path)
            try:
                self._archive = zipfile.ZipFile(self._file)
                names = [info.filename.removesuffix(".npy") for info in self._archive.infolist()]
                self.sparse = dataset is None and set(names) >= _SPARSE
                if self.sparse:
                    self._open_sparse()
                else:
                    self._open_dense(names, dataset)
            except BaseException:
                self._file.close()
                raise

    def _open_sparse(self) -> None:
        layout = np.asarray(self._whole("format")).item()
        if layout not in (b"csr", "csr"):
            self._load_whole()
            return
        self._data, self._indices = self._member("data"), self._member("indices")
        if len(self._data.shape) != 1 or len(self._indices.shape) != 1:
            raise ValueError("data and indices must be one-dimensional")
        shape = self._whole("shape")
        self.dtype = self._data.dtype
        self.shape = require_shape(self._path, np.ravel(shape), self.dtype)
        self._indptr = self._whole("indptr")
        m, stored = self.shape[0], self._data.size
        numbers = self._indptr.dtype.kind in "iu" and self._indices.dtype.kind in "iu"
        if not numbers or self._indptr.shape != (m + 1,) or self._indptr[-1] != stored:
            raise InvalidComponent(
                f"the row pointers of {self._path} must be {m + 1} integers ending with the number of "
                f"entries, {stored}; they are not: it is damaged; {_REMEDY}"
            )
        self.stored = stored
        if not (self._data.direct and self._indices.direct):
            self._decode_in_blocks(stored / m)

    def _load_whole(self) -> None:
        import scipy.sparse as sp

        self._file.seek(0)
        rows = sp.load_npz(self._file)
        self.shape = require_shape(self._path, rows.shape, rows.dtype)
        rows = canonical_csr(rows.tocsr())
        self.dtype = rows.dtype
        self.stored = int(rows.nnz)
        self._blocks = DecodedBlocks([0, self.shape[0]], lambda _: rows)

    def _open_dense(self, names: list[str], dataset: str | None) -> None:
        members = {name: self._member(name) for name in names}
        held = ", ".join(f"{name} {member.shape}" for name, member in list(members.items())[:20]) or "nothing"
        fitting = [name for name, member in members.items() if len(member.shape) == 2]
        if dataset is None and len(fitting) != 1:
            raise InvalidComponent(
                f"{self._path} must hold a sparse matrix, or one two-dimensional array, or be told which; it "
                f"holds {held}; name one as in 'file.npz::name', or write a sparse matrix with "
                "scipy.sparse.save_npz"
            )
        chosen = fitting[0] if dataset is None else dataset
        if chosen not in members:
            raise InvalidComponent(f"{self._path} must hold the array {dataset!r}; it holds {held}")
        self._data = members[chosen]
        self.dtype = self._data.dtype
        self.shape = require_shape(f"{self._path}::{chosen}", self._data.shape, self.dtype)
        self.stored = self._data.size
        if self._data.by_columns:
            rows = self._whole(chosen)
            self._blocks = DecodedBlocks([0, self.shape[0]], lambda _: rows)
        elif not self._data.direct:
            self._decode_in_blocks(self.shape[1])

    def _decode_in_blocks(self, entries_a_row: float) -> None:
        m = self.shape[0]
        bounds = [*range(0, m, max(1, int(_BLOCK_ENTRIES / max(entries_a_row, 1.0)))), m]
        self._blocks = DecodedBlocks(bounds, lambda i: self._decode(bounds[i], bounds[i + 1]))
        self.costly = True

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``."""
        with naming(self._path, _RULE, _REMEDY):
            return self._decode(start, stop) if self._blocks is None else self._blocks.read(start, stop)

    def _decode(self, start: int, stop: int) -> Any:
        d = self.shape[1]
        if not self.sparse:
            return self._data.read(start * d, stop * d).reshape(stop - start, d)
        pointers = self._indptr[start : stop + 1]
        first, last = int(pointers[0]), int(pointers[-1])
        if not 0 <= first <= last <= self.stored:
            raise InvalidComponent(f"the row pointers of {self._path} must not fall; it is damaged")
        data, indices = self._data.read(first, last), self._indices.read(first, last)
        return checked_csr(data, indices, pointers, d, self._path)

    def release(self) -> None:
        if self._blocks is not None:
            self._blocks.release()

    def close(self) -> None:
        self._file.close()

    def _member(self, name: str) -> _Member:
        return _Member(self._archive, self._file, f"{name}.npy")

    def _whole(self, name: str) -> NDArray[Any]:
        with self._archive.open(f"{name}.npy") as file:
            return np.asarray(np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False))


class _Member:
    """An array in an archive, read by ranges of its entries in the order they are stored in.

    `direct` says that the archive holds it as it is, so that any range can be sought. Otherwise what
    comes before a range is decompressed and thrown away; going back starts over.
    """

    def __init__(self, archive: zipfile.ZipFile, file: Any, name: str) -> None:
        info = archive.getinfo(name)
        stream = archive.open(info)
        if np.lib.format.read_magic(stream) == (1, 0):
            header = np.lib.format.read_array_header_1_0(stream)
        else:
            header = np.lib.format.read_array_header_2_0(stream)
        self.shape, fortran, self.dtype = header
        self.by_columns = bool(fortran) and min(self.shape, default=0) > 1
        self.size = math.prod(self.shape)
        self._begin = stream.tell()
        end = self._begin + self.size * self.dtype.itemsize
        if end != info.file_size and not self.dtype.hasobject:
            raise ValueError(f"{name} has {info.file_size} bytes where {end} belong")
        self.direct = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        self._stream: Any = stream
        if self.direct:
            stream.close()
            self._stream = file
            self._begin += _content_offset(file, info.header_offset)

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Entries ``first:last``, copied."""
        size = self.dtype.itemsize
        self._stream.seek(self._begin + first * size)
        content = bytearray(self._stream.read((last - first) * size))
        if len(content) < (last - first) * size:
            raise EOFError("it is cut short")
        return np.frombuffer(content, self.dtype)


def _content_offset(file: Any, header_offset: int) -> int:
    """Where the bytes of an archive's member begin: after its own header, whose two last parts vary."""
    file.seek(header_offset + 26)
    lengths = file.read(4)
    return header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
