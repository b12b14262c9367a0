"""One source of rows, whatever it is, as something that can be cut into loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from grassia._scipy import issparse
from grassia.components import rows_shape
from grassia.data import formats
from grassia.data.blocks import even_cuts
from grassia.data.dropping import Dropping
from grassia.data.formats.remote import expand
from grassia.data.loaders import CallableLoader, Loader, RowsLoader, file_stamp
from grassia.data.mapped import MemmapRowsLoader, NpyRowsLoader, open_npy
from grassia.data.paths import Found, find_files
from grassia.data.stored import NamedRows, StoreOpener, cut_store, known_facts
from grassia.errors import InvalidComponent, InvalidInput
from grassia.passes.sparse import canonical_csr, csr_rows

__all__ = ["Divisible", "divide", "open_source"]

Names = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Divisible:
    """One source: how many rows it has, and how to cut it into so many loaders."""

    n_rows: int
    cut: Callable[[int], Sequence[Loader]]


def open_source(
    source: Any, center: bool, options: Mapping[str, Any], dropping: Dropping | None = None
) -> list[Divisible]:
    """The pieces of one source: one, or one for each file of a pattern or a folder.

    Metadata are read here, rows are not, except that text files are gone through to count theirs. With
    `dropping`, which several sources may share, it is left to the caller to check it in the end.
    """
    if dropping is None:
        dropping = Dropping()
        pieces = open_source(source, center, options, dropping)
        dropping.check()
        return pieces
    if isinstance(source, str | os.PathLike):
        return _open_paths(find_files(source), center, options, dropping)
    if formats.format_of_object(source) is not None:
        found = dropping.open(lambda chosen: formats.open_object(source, chosen), options)
        return [_of_object(part, center) for part in (found if isinstance(found, list) else [found])]
    if options:
        raise InvalidInput(
            f"`options` are for files and tables; got {', '.join(sorted(options))} "
            f"for rows of type {type(source).__name__}"
        )
    return [_of_object(source, center)]


def divide(pieces: Sequence[Divisible], n: int) -> list[Loader]:
    """Cut the pieces into `n` loaders in all, at least one each, by their numbers of rows."""
    rows = np.array([piece.n_rows for piece in pieces], dtype=np.float64)
    if n > rows.sum():
        raise InvalidInput(f"n_components must be at most the number of rows, {int(rows.sum())}; got {n}")
    shares = np.ones(len(pieces), dtype=np.int64)
    for _ in range(n - len(pieces)):
        # One more to where parts are largest; a single row is not cut.
        shares[np.argmax(np.where(shares < rows, rows / shares, 0.0))] += 1
    return [loader for piece, share in zip(pieces, shares, strict=True) for loader in piece.cut(int(share))]


def _open_paths(
    found: Found, center: bool, options: Mapping[str, Any], dropping: Dropping
) -> list[Divisible]:
    chosen = dict(options)
    if found.fragment is not None:
        chosen["dataset"] = found.fragment
    pieces = []
    files: Sequence[str] = found.files
    if found.format == "remote":
        files = expand(files[0], chosen.get("storage_options"))
    for path in files:
        if found.format == "npy":
            if chosen:
                raise InvalidInput(f".npy files have no options; got {', '.join(sorted(chosen))} for {path}")
            pieces.append(_of_npy(path, center))
        else:
            pieces.append(dropping.open(partial(_of_file, path, found.format, center), chosen))
    return pieces


def _of_file(path: str, format: str, center: bool, options: Mapping[str, Any]) -> Divisible:
    return _of_store(formats.open_path(path, options, format), center)


def _of_npy(path: str, center: bool) -> Divisible:
    try:
        m, _ = rows_shape(open_npy(path))
    except InvalidComponent as error:
        rule = error.rule if path in error.rule else f"{path}: {error.rule}"
        raise InvalidComponent(rule) from error
    stamp = file_stamp(path)
    return Divisible(m, lambda n: [NpyRowsLoader(path, a, b, center, stamp) for a, b in _row_cuts(m, n)])


def _of_store(opener: StoreOpener, center: bool) -> Divisible:
    facts = known_facts(opener)
    return Divisible(facts.shape[0], lambda n: cut_store(opener, facts, n, center))


def _of_object(source: Any, center: bool) -> Divisible:
    names: Names = None
    if isinstance(source, NamedRows):
        source, names = source.rows, source.feature_names
    if isinstance(source, StoreOpener):
        return _of_store(source, center)
    if issparse(source):
        return _of_sparse(source, center, names)
    if hasattr(source, "__array__"):
        m, _ = rows_shape(source)
        rows = source if isinstance(source, np.ndarray) else np.asarray(source)
        return Divisible(m, lambda n: [_of_array(rows[a:b], center, names) for a, b in _row_cuts(m, n)])
    if callable(source):
        return _of_callable(source, center)
    raise InvalidComponent(
        "rows must be a 2-D array, a scipy sparse matrix, a table, a path, or a zero-argument callable; "
        f"got {type(source).__name__}"
    )


def _of_array(rows: Any, center: bool, names: Names) -> Loader:
    mapped = None if names else MemmapRowsLoader.of(rows, center)
    return mapped or RowsLoader(rows, center, names)


def _of_sparse(source: Any, center: bool, names: Names) -> Divisible:
    m, _ = rows_shape(source)

    def cut(n: int) -> list[Loader]:
        if n == 1:
            return [RowsLoader(source, center, names)]
        cuts = _row_cuts(m, n)
        X = canonical_csr(source)
        return [RowsLoader(csr_rows(X, a, b), center, names) for a, b in cuts]

    return Divisible(m, cut)


def _of_callable(source: Callable[[], Any], center: bool) -> Divisible:
    def cut(n: int) -> list[Loader]:
        if n != 1:
            raise InvalidInput(
                f"n_components must be 1 for one callable, whose rows are not known here; got {n}; "
                "give a list of callables, one per component"
            )
        return [CallableLoader(source, center)]

    return Divisible(1, cut)


def _row_cuts(m: int, n: int) -> list[tuple[int, int]]:
    if n > m:
        raise InvalidInput(f"n_components must be at most the number of rows, {m}; got {n}")
    return even_cuts(m, n)
