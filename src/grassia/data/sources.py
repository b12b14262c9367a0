"""From what a user holds (arrays, files, lists of shards) to a list of loaders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from grassia import gram
from grassia._checks import require_count
from grassia.components import Component, matrix_shape, rows_shape
from grassia.data.loaders import (
    CallableLoader,
    ComponentLoader,
    Loader,
    MatrixLoader,
    MemmapRowsLoader,
    NpyRowsLoader,
    OperatorLoader,
    RowsLoader,
    SumLoader,
    described,
    file_stamp,
    open_npy,
)
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
    """

    def __init__(self, loaders: Iterable[Loader]) -> None:
        self._loaders = tuple(loaders)
        if not self._loaders:
            raise InvalidInput("there must be at least one component; got none")
        self._n_features = _common_size(self._loaders)

    @property
    def n_features(self) -> int | None:
        """The common size, or None when no loader tells it before being opened."""
        return self._n_features

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
        """A heading and one line per component, from headers and shapes alone."""
        size = "an unknown number of" if self._n_features is None else str(self._n_features)
        plural = "" if len(self) == 1 else "s"
        lines = [f"{len(self)} component{plural} of {size} features"]
        lines += [f"{i:>3}  {described(loader)}" for i, loader in enumerate(self._loaders)]
        return "\n".join(lines)


def from_rows(source: Any, n_components: int | None = None, center: bool = True) -> Components:
    """Components that are covariances (or second moments) of blocks of rows.

    Parameters
    ----------
    source : array, sparse, path, callable, or list of these
        One two-dimensional array, memmap, scipy sparse matrix or path of a ``.npy`` file is split
        into contiguous blocks of nearly equal numbers of rows. The members of a list are shards
        and stay as they are split; a zero-argument callable is called in the worker and returns
        the rows of its shard.
    n_components : int, optional
        For one source, the number of blocks (1 by default). For a list, its length by default;
        with fewer, neighbouring shards are merged.
    center : bool, default True
        Whether to remove the mean. The mean removed in the end is that of all the rows.

    Returns
    -------
    Components

    Raises
    ------
    InvalidInput
        If a shape, dtype, path or number breaks a rule; `InvalidComponent` where a shard does.

    Notes
    -----
    No row is read or copied here: blocks of arrays are views, and files, memmaps included, are
    reopened by the worker. Sparse sources other than CSR are converted once.

    Examples
    --------
    >>> X = np.arange(20.0).reshape(10, 2)
    >>> [loader.open().moments().count for loader in from_rows(X, 3)]
    [3.0, 3.0, 4.0]
    """
    if n_components is not None:
        require_count(n_components, "n_components")
    if isinstance(source, list | tuple):
        return _from_shards(source, n_components, center)
    return Components(_split(source, n_components or 1, center))


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
    if isinstance(item, LinearOperator):
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
    if sp.issparse(item) or hasattr(item, "__array__"):
        matrix_shape(item)
        keep = sp.issparse(item) or isinstance(item, np.ndarray)
        return MatrixLoader(item if keep else np.asarray(item))
    if callable(item):
        raise InvalidComponent(
            "a plain callable does not tell its size; "
            "wrap it: OperatorLoader(function, n_features=d), or OperatorComponent likewise"
        )
    raise InvalidComponent(
        f"must be a symmetric matrix, a LinearOperator, a Component or a Loader; got {type(item).__name__}"
    )


def _from_shards(shards: Sequence[Any], n_components: int | None, center: bool) -> Components:
    if not shards:
        raise InvalidInput("there must be at least one shard of rows; got an empty list")
    loaders: list[Loader] = []
    for i, shard in enumerate(shards):
        try:
            loaders += _split(shard, 1, center)
        except InvalidComponent as error:
            raise InvalidComponent(error.rule, i) from error
    whole = Components(loaders)
    n = len(loaders)
    if n_components is None or n_components == n:
        return whole
    if n_components > n:
        raise InvalidInput(
            f"n_components must be at most the number of shards, {n}; got {n_components}; "
            "split the shards further, or put them in one array"
        )
    groups = [tuple(loaders[a:b]) for a, b in _blocks(n, n_components)]
    return Components(group[0] if len(group) == 1 else SumLoader(group) for group in groups)


def _split(source: Any, n: int, center: bool) -> list[Loader]:
    """Loaders for `n` blocks of rows of one source."""
    if isinstance(source, str | os.PathLike):
        path = _npy_path(source)
        rows: Any = open_npy(path)
        m, _ = rows_shape(rows)
        stamp = file_stamp(path)
        return [NpyRowsLoader(path, a, b, center, stamp) for a, b in _row_blocks(m, n)]
    if sp.issparse(source):
        m, _ = rows_shape(source)
        if n == 1:
            return [RowsLoader(source, center)]
        X = gram.canonical_csr(source)
        return [RowsLoader(gram.csr_rows(X, a, b), center) for a, b in _row_blocks(m, n)]
    if hasattr(source, "__array__"):
        m, _ = rows_shape(source)
        rows = source if isinstance(source, np.ndarray) else np.asarray(source)
        return [_block_loader(rows[a:b], center) for a, b in _row_blocks(m, n)]
    if callable(source):
        if n != 1:
            raise InvalidInput(
                f"n_components must be 1 for one callable, whose rows are not known here; got {n}; "
                "give a list of callables, one per component"
            )
        return [CallableLoader(source, center)]
    raise InvalidComponent(
        "rows must be a 2-D array, a scipy sparse matrix, the path of a .npy file or a "
        f"zero-argument callable; got {type(source).__name__}"
    )


def _block_loader(rows: Any, center: bool) -> Loader:
    return MemmapRowsLoader.of(rows, center) or RowsLoader(rows, center)


def _npy_path(source: str | os.PathLike[str]) -> str:
    path = Path(source)
    if path.suffix != ".npy":
        raise InvalidComponent(
            f"a file of rows must be a .npy file; got {path}; "
            "load other formats in a callable, or convert with numpy.save"
        )
    if not path.is_file():
        raise InvalidComponent(f"the rows file must exist; there is none at {path}")
    # Workers may run in another folder.
    return str(path.absolute())


def _blocks(m: int, n: int) -> list[tuple[int, int]]:
    return [(i * m // n, (i + 1) * m // n) for i in range(n)]


def _row_blocks(m: int, n: int) -> list[tuple[int, int]]:
    if n > m:
        raise InvalidInput(f"n_components must be at most the number of rows, {m}; got {n}")
    return _blocks(m, n)


def _common_size(loaders: Sequence[Loader]) -> int | None:
    size: int | None = None
    first = 0
    for i, loader in enumerate(loaders):
        found = getattr(loader, "n_features", None)
        if found is None:
            continue
        if size is None:
            size, first = int(found), i
        elif found != size:
            raise InvalidComponent(
                f"all components must have the same number of features; this one has {found}, "
                f"component {first} has {size}",
                i,
            )
    return size
