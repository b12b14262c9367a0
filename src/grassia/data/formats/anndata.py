"""AnnData: `.h5ad` files, of which rows are read as they are needed, and AnnData objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia._optional import require
from grassia._scipy import issparse
from grassia.data.formats.decoding import checked_csr, local_path, naming, require_shape
from grassia.data.stored import NamedRows
from grassia.errors import InvalidComponent, InvalidInput
from grassia.passes.sparse import as_csr

__all__ = ["AnnDataOpener", "DenseMatrixStore", "SparseMatrixStore", "open_object", "open_path"]

_RULE = "an .h5ad file"
_REMEDY = "write it with AnnData.write_h5ad"


def open_path(path: str, dataset: str | None = None, layer: str | None = None) -> AnnDataOpener:
    """The opener of a matrix in an `.h5ad` file.

    Parameters
    ----------
    path : str
    dataset : str, optional
        Which matrix: "X" (default), "layers/counts", "raw/X", "obsm/X_scaled", ... Also as a fragment of
        the path, "cells.h5ad::layers/counts".
    layer : str, optional
        The layer's name; the same as ``dataset="layers/..."``.

    Notes
    -----
    Dense matrices and CSR are read by ranges of rows, so a file may be larger than memory. Compressed rows
    are kept once they are read, up to 512 MB in each process. The file is read through h5py; the annotation
    of its rows is not looked at.

    Examples
    --------
    >>> import tempfile, anndata, scipy.sparse as sp
    >>> cells = anndata.AnnData(sp.csr_array(np.eye(3)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cells.write_h5ad(f"{folder}/cells.h5ad")
    ...     print(open_path(f"{folder}/cells.h5ad").open().read(1, 3).toarray())
    [[0. 1. 0.]
     [0. 0. 1.]]
    """
    if dataset is not None and layer is not None:
        raise InvalidInput(f"`dataset` or `layer` must be given, not both; got {dataset!r} and {layer!r}")
    wanted = f"layers/{layer}" if layer is not None else dataset or "X"
    return AnnDataOpener(local_path(path), wanted.strip("/"))


def open_object(obj: Any, layer: str | None = None) -> Any:
    """The rows of an AnnData object, `X` or a layer: those in memory, or those of the file that backs it."""
    if type(obj).__name__ != "AnnData" and not hasattr(obj, "obs_names"):
        raise InvalidComponent(
            f"rows from the library anndata must be an AnnData object; got {type(obj).__qualname__}"
        )
    if layer is not None and layer not in obj.layers:
        raise InvalidInput(f"`layer` must be one of {_listed(obj.layers)}; got {layer!r}")
    if obj.isbacked and layer is None:
        if obj.is_view:
            raise InvalidComponent(
                "a view of an AnnData object that is backed by a file cannot be read by ranges of rows; "
                "give the whole object, or call .to_memory() on the view first"
            )
        return open_path(str(obj.filename))
    rows = obj.X if layer is None else obj.layers[layer]
    if rows is None:
        raise InvalidComponent(
            f"the AnnData object must have X; it has none; its layers: {_listed(obj.layers)}"
        )
    rows = as_csr(rows) if issparse(rows) else rows
    if type(rows).__module__.startswith("dask."):
        from grassia.data.formats import dask

        return dask.open_object(rows)
    # A view's array is one of anndata's own classes, which carries the whole object along.
    rows = rows if issparse(rows) else np.asarray(rows)
    return NamedRows(rows, tuple(map(str, obj.var_names)))


@dataclass(frozen=True)
class AnnDataOpener:
    """One matrix of an `.h5ad` file."""

    path: str
    dataset: str = "X"
    kind = "AnnData"

    @property
    def name(self) -> str:
        return self.path + ("" if self.dataset == "X" else f"::{self.dataset}")

    def open(self) -> DenseMatrixStore | SparseMatrixStore:
        h5py = require("h5py", "anndata")
        with naming(self.path, _RULE, _REMEDY):
            file = h5py.File(self.path, "r")
            try:
                return self._opened(file, h5py)
            except BaseException:
                file.close()
                raise

    def _opened(self, file: Any, h5py: Any) -> DenseMatrixStore | SparseMatrixStore:
        if self.dataset not in file:
            raise InvalidComponent(f"{self.path} must have {self.dataset}; it has {_matrices(file)}")
        matrix = file[self.dataset]
        name = f"{self.path}::{self.dataset}"
        if isinstance(matrix, h5py.Dataset):
            return DenseMatrixStore(file, matrix, name, _names(file, self.dataset))
        layout = _text(matrix.attrs.get("encoding-type", matrix.attrs.get("h5sparse_format", "")))
        if layout in ("csr_matrix", "csr"):
            return SparseMatrixStore(file, matrix, name, _names(file, self.dataset))
        if layout in ("csc_matrix", "csc"):
            raise InvalidComponent(
                f"{name} must be dense or CSR, so that ranges of rows can be read; it is CSC (by columns); "
                "write it anew after adata.X = adata.X.tocsr()"
            )
        raise InvalidComponent(
            f"{name} must be a matrix; it is {layout or 'a group'!r}; the file has {_matrices(file)}"
        )


class DenseMatrixStore:
    """A dense matrix of an open `.h5ad` file."""

    sparse = False

    def __init__(self, file: Any, matrix: Any, name: str, feature_names: list[str] | None) -> None:
        self._file, self._matrix, self._name = file, matrix, name
        self.shape = require_shape(name, matrix.shape, matrix.dtype)
        self.dtype = np.dtype(matrix.dtype)
        self.stored = self.shape[0] * self.shape[1]
        self.chunk_rows = int(matrix.chunks[0]) if matrix.chunks else 1
        self.feature_names = _fitting(feature_names, self.shape[1])
        self.costly = matrix.compression is not None

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``."""
        with naming(self._name, _RULE, "it is damaged"):
            return self._matrix[start:stop]

    def close(self) -> None:
        self._file.close()


class SparseMatrixStore:
    """A CSR matrix of an open `.h5ad` file; its pointers, too, are read by ranges."""

    sparse = True
    chunk_rows = 1

    def __init__(self, file: Any, matrix: Any, name: str, feature_names: list[str] | None) -> None:
        self._file, self._name = file, name
        self._data, self._indices, self._indptr = (matrix[part] for part in ("data", "indices", "indptr"))
        shape = matrix.attrs["shape"] if "shape" in matrix.attrs else matrix.attrs["h5sparse_shape"]
        self.dtype = np.dtype(self._data.dtype)
        self.shape = require_shape(name, shape, self.dtype)
        self.stored = int(self._data.shape[0])
        if self._indptr.shape != (self.shape[0] + 1,) or self._indices.shape != self._data.shape:
            raise InvalidComponent(
                f"{name} must have {self.shape[0] + 1} row pointers and as many indices as entries; it has "
                f"{self._indptr.shape[0]}, {self._indices.shape[0]} and {self.stored}: it is damaged"
            )
        self.feature_names = _fitting(feature_names, self.shape[1])
        self.costly = self._data.compression is not None

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop`` as a CSR array."""
        with naming(self._name, _RULE, "it is damaged"):
            pointers = self._indptr[start : stop + 1]
            first, last = int(pointers[0]), int(pointers[-1])
            data, indices = self._data[first:last], self._indices[first:last]
        return checked_csr(data, indices, pointers, self.shape[1], self._name)

    def close(self) -> None:
        self._file.close()


def _names(file: Any, dataset: str) -> list[str] | None:
    """The names of the variables, for matrices whose columns these are."""
    table = "raw/var" if dataset == "raw/X" else "var"
    if (dataset not in ("X", "raw/X") and not dataset.startswith("layers/")) or table not in file:
        return None
    var = file[table]
    if hasattr(var, "keys"):
        key = _text(var.attrs.get("_index", "_index"))
        # Names of another kind than plain strings (old files have categories) are done without.
        found = var[key][...] if key in var and hasattr(var[key], "shape") else None
    else:  # a table, as anndata wrote them until 2019
        found = var[var.dtype.names[0]]
    return None if found is None else [_text(name) for name in found]


def _fitting(names: list[str] | None, n_features: int) -> list[str] | None:
    return names if names is not None and len(names) == n_features else None


def _matrices(file: Any) -> str:
    found = [name for name in ("X", "raw/X") if name in file]
    for group in ("layers", "obsm"):
        found += [f"{group}/{name}" for name in file.get(group, ())]
    return ", ".join(found) or "no matrix"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
