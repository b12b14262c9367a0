"""From what a user holds (arrays, files, lists of shards) to a list of loaders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from grassia._checks import require_count
from grassia._scipy import is_linear_operator, issparse
from grassia.components import Component, matrix_shape
from grassia.data.alike import common_names, common_size
from grassia.data.blocks import BLOCK_BYTES, even_cuts
from grassia.data.cutting import Divisible, divide, open_source
from grassia.data.dropping import Dropping
from grassia.data.loaders import (
    ComponentLoader,
    Extent,
    Loader,
    MatrixLoader,
    OperatorLoader,
    blocks_of,
    described,
    extent_of,
    size_text,
)
from grassia.data.several import groups_by_rows, merged
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["Components", "as_components", "from_rows"]


class Components(Sequence[Loader]):
    """A list of loaders, one per component, all of the same size as far as that is known.

    Parameters
    ----------
    loaders : iterable of Loader

    Examples
    --------
    >>> both = from_rows(np.zeros((4, 2))) + from_rows(np.ones((6, 2)), 2)
    >>> print(both.describe())
    3 components of 2 features
      0  rows 4 x 2, float64, 64 B, centred
      1  rows 3 x 2, float64, 48 B, centred
      2  rows 3 x 2, float64, 48 B, centred
    all  rows 10 x 2, float64, 160 B
    >>> both.n_rows, both.nbytes, both.dtype, both.sparse
    (10, 160, dtype('float64'), False)
    """

    def __init__(self, loaders: Iterable[Loader]) -> None:
        self._loaders = tuple(loaders)
        if not self._loaders:
            raise InvalidInput("there must be at least one component; got none")
        self._feature_names = common_names(self._loaders)  # which say more of what is missing
        self._n_features = common_size(self._loaders)

    @property
    def n_features(self) -> int | None:
        """The common size, or None when no loader tells it before being opened."""
        return self._n_features

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of the columns, where the source has any."""
        return self._feature_names

    @property
    def n_rows(self) -> int | None:
        """The number of rows in all; None where components are not all made of rows, or do not tell."""
        extents = self._extents()
        return None if extents is None else sum(extent.n_rows for extent in extents)

    @property
    def nbytes(self) -> int | None:
        """Bytes of all the rows in memory; None where that is not known without reading them."""
        sizes = [extent.nbytes for extent in self._extents() or [Extent("rows", 0)]]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype that holds every component's rows, or None where it is not known."""
        found = [extent.dtype for extent in self._extents() or []]
        known = [dtype for dtype in found if dtype is not None]
        return np.result_type(*known) if known and len(known) == len(found) else None

    @property
    def sparse(self) -> bool:
        """Whether rows of any component are known to be sparse."""
        return any(extent.sparse for extent in self._extents() or [])

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """All the rows as they are, not centred, in order: arrays or CSR arrays of about `max_bytes` at most.

        Raises
        ------
        InvalidInput
            If a component is not made of rows.

        Examples
        --------
        >>> X = np.arange(12.0).reshape(6, 2)
        >>> [block.shape for block in from_rows(X, 2).blocks(max_bytes=40)]
        [(2, 2), (1, 2), (2, 2), (1, 2)]
        """
        for loader in self._loaders:
            yield from blocks_of(loader, max_bytes)

    def _extents(self) -> list[Extent] | None:
        """What is known of the rows of every component, or None where one is not known or not of rows."""
        found = [extent_of(loader) for loader in self._loaders]
        known = [extent for extent in found if extent is not None and extent.kind == "rows"]
        return known if len(known) == len(found) else None

    def __len__(self) -> int:
        return len(self._loaders)

    @overload
    def __getitem__(self, index: int) -> Loader: ...
    @overload
    def __getitem__(self, index: slice) -> Components: ...
    def __getitem__(self, index: int | slice) -> Loader | Components:
        if isinstance(index, slice):
            return Components(self._loaders[index])
        return self._loaders[index]

    def __add__(self, other: Components) -> Components:
        if not isinstance(other, Components):
            return NotImplemented
        return Components(self._loaders + other._loaders)

    def __repr__(self) -> str:
        return f"Components({len(self)} loaders, n_features={self._n_features})"

    def describe(self) -> str:
        """A heading, one line per component and one for all, from headers and shapes alone."""
        size = "an unknown number of" if self._n_features is None else str(self._n_features)
        plural = "" if len(self) == 1 else "s"
        lines = [f"{len(self)} component{plural} of {size} features"]
        lines += [f"{i:>3}  {described(loader)}" for i, loader in enumerate(self._loaders)]
        if len(self) > 1 and self.n_rows is not None and self.nbytes is not None:
            kind = ", sparse" if self.sparse else ""
            size = size_text(self.nbytes)
            lines.append(f"all  rows {self.n_rows} x {self.n_features}, {self.dtype}{kind}, {size}")
        return "\n".join(lines)


def from_rows(
    source: Any,
    n_components: int | None = None,
    center: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Components:
    """Components that are covariances (or second moments) of blocks of rows.

    Parameters
    ----------
    source : array, sparse, table, path, callable, or list of these
        A two-dimensional array, memmap or scipy sparse matrix; a pandas, polars or pyarrow table; an
        object of another library that is known (h5py, zarr, anndata, dask, ray, torch); the path of a file;
        a pattern such as ``"data/*.parquet"`` or a folder, whose files are shards, sorted by name.
        The members of a list are shards and stay as they are split; a zero-argument callable is called
        in the worker and returns the rows of its shard. ``docs/data.md`` has the table of all formats.
    n_components : int, optional
        For one source, the number of blocks (1 by default), cut at the chunks of its format where that
        balances. For a list, a pattern or a folder, the number of shards by default; with fewer,
        neighbouring shards are merged; with more, the files of a pattern or a folder are split.
    center : bool, default True
        Whether to remove the mean. The mean removed in the end is that of all the rows.
    options : mapping, optional
        What the format of a file or table must be told, such as ``{"dataset": "X"}`` for HDF5 or
        ``{"columns": ["a", "b"]}`` for tables; it goes for every shard. Columns to ``"drop"`` must be in
        one of them at least.

    Returns
    -------
    Components

    Raises
    ------
    InvalidInput
        If a shape, dtype, path, option or number breaks a rule; `InvalidComponent` where a shard does;
        `MissingExtra` where a format needs a package that is not installed.

    Notes
    -----
    No row is read or copied here: blocks of arrays are views, and files, memmaps included, are
    reopened by the worker. The exceptions: sparse sources other than CSR are converted once, tables
    of mixed dtypes are converted to one array, and text files are gone through to count their rows.

    Examples
    --------
    >>> X = np.arange(20.0).reshape(10, 2)
    >>> [loader.open().moments().count for loader in from_rows(X, 3)]
    [3.0, 3.0, 4.0]
    """
    if n_components is not None:
        require_count(n_components, "n_components")
    chosen = _check_options(options)
    if isinstance(source, list | tuple):
        return _from_shards(source, n_components, center, chosen)
    pieces = open_source(source, center, chosen)
    if len(pieces) == 1:
        return Components(pieces[0].cut(n_components or 1))
    if n_components is not None and n_components > len(pieces):
        return Components(divide(pieces, n_components))
    groups = groups_by_rows([piece.n_rows for piece in pieces], n_components or len(pieces))
    return _grouped([loader for piece in pieces for loader in piece.cut(1)], groups)


def as_components(obj: Any) -> Components:
    """What the solvers accept as components, as a `Components` list.

    Parameters
    ----------
    obj : Components, or one or a list of matrix, LinearOperator, Component, Loader
        Matrices are symmetric, dense or scipy sparse; a three-dimensional array is a list of them.
        One alone is a list of one.

    Returns
    -------
    Components

    Raises
    ------
    InvalidInput
        If the list is empty; `InvalidComponent`, with the index, where one breaks a rule. Symmetry
        and finiteness are checked later, by the worker that opens the component.

    Examples
    --------
    >>> print(as_components([np.eye(2), np.ones((2, 2))]).describe())
    2 components of 2 features
      0  matrix 2 x 2, float64, 32 B
      1  matrix 2 x 2, float64, 32 B
    """
    if isinstance(obj, Components):
        return obj
    stack = isinstance(obj, np.ndarray) and obj.ndim == 3
    items = list(obj) if stack or isinstance(obj, list | tuple) else [obj]
    loaders = []
    for i, item in enumerate(items):
        try:
            loaders.append(_component_loader(item))
        except InvalidComponent as error:
            raise InvalidComponent(error.rule, i) from error
    return Components(loaders)


def _component_loader(item: Any) -> Loader:
    if isinstance(item, Component):
        return ComponentLoader(item)
    if is_linear_operator(item):
        loader = OperatorLoader(item)
        loader.open()  # Cheap: checks shape and dtype, makes no product.
        return loader
    if isinstance(item, str | os.PathLike):
        raise InvalidComponent(
            f"must be a matrix, operator, component or loader; got the path {os.fspath(item)!r}; "
            "for a file of rows use from_rows(path)"
        )
    if callable(getattr(item, "open", None)):
        found: Loader = item
        return found
    if issparse(item) or hasattr(item, "__array__"):
        matrix_shape(item)
        keep = issparse(item) or isinstance(item, np.ndarray)
        return MatrixLoader(item if keep else np.asarray(item))
    if callable(item):
        raise InvalidComponent(
            "a plain callable does not tell its size; "
            "wrap it: OperatorLoader(function, n_features=d), or OperatorComponent likewise"
        )
    raise InvalidComponent(
        f"must be a symmetric matrix, a LinearOperator, a Component or a Loader; got {type(item).__name__}"
    )


def _check_options(options: Any) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise InvalidInput(f"`options` must be a mapping of names to values; got {options!r}")
    return options


def _from_shards(
    shards: Sequence[Any], n_components: int | None, center: bool, options: Mapping[str, Any]
) -> Components:
    if not shards:
        raise InvalidInput("there must be at least one shard of rows; got an empty list")
    loaders: list[Loader] = []
    dropping = Dropping()
    for i, shard in enumerate(shards):
        try:
            pieces: list[Divisible] = open_source(shard, center, options, dropping)
            loaders += [loader for piece in pieces for loader in piece.cut(1)]
        except InvalidComponent as error:
            raise InvalidComponent(error.rule, i) from error
    dropping.check()
    n = len(loaders)
    if n_components is not None and n_components > n:
        raise InvalidInput(
            f"n_components must be at most the number of shards, {n}; got {n_components}; "
            "split the shards further, or put them in one array"
        )
    return _grouped(loaders, even_cuts(n, n_components or n))


def _grouped(loaders: Sequence[Loader], groups: Sequence[tuple[int, int]]) -> Components:
    """Each group of neighbours merged; all must fit together, within a group as well."""
    whole = Components(loaders)
    if len(groups) == len(loaders):
        return whole
    return Components(merged(loaders[a:b]) for a, b in groups)
