"""Rows in a file or in another library's object: read by ranges, in the worker, never all at once.

A format writes two small classes: a `StoreOpener`, which travels and holds nothing but a path and options,
and the `RowStore` it opens. All else is here: splitting, describing, blocks, sums, products, errors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grassia._checks import require_real
from grassia.components import BlockedRows, Component
from grassia.data import room
from grassia.data.blocks import BLOCK_BYTES, balanced, block_ranges, read_ahead, row_bytes
from grassia.data.loaders import Extent, centred, file_stamp, size_text
from grassia.errors import GrassiaError, InvalidComponent, InvalidInput
from grassia.passes.sparse import canonical_csr, sparse_tiles

__all__ = [
    "NamedRows",
    "RowStore",
    "StoreFacts",
    "StoreOpener",
    "StoredRowsComponent",
    "StoredRowsLoader",
    "cut_store",
    "described_file",
    "known_facts",
    "split_store",
]

Stamp = tuple[tuple[int, int] | None, ...]


@runtime_checkable
class RowStore(Protocol):
    """Rows that are read by ranges; opened, used and closed by one worker.

    Reads come in ascending order, pass after pass, and from one thread at a time, though not always the
    same one. A store may also have ``close()``; ``release()``, called after each pass, to let go of what it
    has read ahead; ``costly``, true where rows are dear to decode, so that they are kept as far as the room
    of the process allows (`grassia.data.room`); ``boundaries``, the rows at which it is best split
    where those are not the multiples of `chunk_rows`, and ``locate(row)``, the name and number that
    errors give a row.

    Attributes
    ----------
    shape : (int, int)
    dtype : numpy dtype
        Of what `read` returns.
    sparse : bool
        Whether `read` returns scipy CSR arrays.
    stored : int
        Numbers kept: those of a sparse store without its zeros.
    chunk_rows : int
        Reads of multiples of so many rows, from multiples of it, are cheap; 1 if all are.
    feature_names : list of str or None
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    sparse: bool
    stored: int
    chunk_rows: int
    feature_names: list[str] | None

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``, two-dimensional, as an array or a CSR array."""
        ...


@runtime_checkable
class StoreOpener(Protocol):
    """How to open a store: path and options, no handles; frozen, picklable, hashable.

    It may also have ``path``, or ``files()`` with several: the files that must not change between
    `grassia.from_rows` and the worker's reading; and ``note``, a few words more for `describe`.

    Attributes
    ----------
    name : str
        What errors call it, such as the whole path of the file; descriptions shorten that.
    kind : str
        "Parquet", "HDF5", ...
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    def open(self) -> RowStore:
        """Open it; `InvalidComponent`, with the file's name, where it is missing or not what it should be."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class NamedRows:
    """Rows in memory, with the names of their columns."""

    rows: Any
    feature_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What an open store says of itself, kept when it is closed."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    sparse: bool
    stored: int
    chunk_rows: int
    feature_names: tuple[str, ...] | None = None
    boundaries: tuple[int, ...] | None = None
    costly: bool = False

    @classmethod
    def of(cls, store: RowStore, name: str) -> StoreFacts:
        """The facts of a store, after the checks that rows in memory get, too."""
        if len(store.shape) != 2:
            raise InvalidComponent(f"{name} must be two-dimensional (rows x features); got {store.shape}")
        m, d = (int(size) for size in store.shape)
        dtype = np.dtype(store.dtype)
        require_real(dtype, f"the entries of {name}")
        if m == 0 or d == 0:
            raise InvalidComponent(f"{name} must not be empty; it has {m} rows x {d} features; leave it out")
        names = None if store.feature_names is None else tuple(map(str, store.feature_names))
        found = getattr(store, "boundaries", None)
        boundaries = None if found is None else tuple(int(row) for row in found)
        chunk = max(1, min(int(store.chunk_rows), m))
        costly = bool(getattr(store, "costly", False))
        return cls((m, d), dtype, bool(store.sparse), int(store.stored), chunk, names, boundaries, costly)

    @property
    def bytes_a_row(self) -> float:
        """Bytes that a row takes in memory, on average."""
        m, d = self.shape
        return row_bytes(d, self.dtype, self.stored / m if self.sparse else None)

    def ranges(self, start: int, stop: int, max_bytes: int = BLOCK_BYTES) -> list[tuple[int, int]]:
        """The blocks in which rows ``start:stop`` are read."""
        return block_ranges(start, stop, self.bytes_a_row, self.chunk_rows, max_bytes)


@dataclass(frozen=True, slots=True)
class StoredRowsLoader:
    """Rows ``start:stop`` of a store, opened and read by the worker.

    `split_store` makes these, with the store's facts and the stamps of its files. Without the facts the
    store is opened to learn them.
    """

    opener: StoreOpener
    start: int = 0
    stop: int | None = None
    center: bool = True
    stamp: Stamp | None = None
    facts: StoreFacts | None = None

    @property
    def whole(self) -> bool:
        """Whether these are all the rows of the store."""
        facts = self._known()
        return facts is not None and self._range(facts) == (0, facts.shape[0])

    @property
    def n_features(self) -> int | None:
        """None when the store cannot be opened from here."""
        facts = self._known()
        return None if facts is None else facts.shape[1]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        facts = self._known()
        return None if facts is None else facts.feature_names

    def open(self) -> Component:
        """The component, its store newly opened."""
        name = self.opener.name
        if self.stamp is not None and not _same(self.stamp, stamp_of(self.opener)):
            raise InvalidComponent(changed(name))
        store = opened(self.opener)
        facts = StoreFacts.of(store, name)
        if self.facts is not None and (facts.shape, facts.dtype) != (self.facts.shape, self.facts.dtype):
            raise InvalidComponent(changed(name))
        return StoredRowsComponent(store, self.start, self.stop, self.center, name)

    def blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, not centred, in order and in blocks of about `max_bytes` at most."""
        component = self.open()
        assert isinstance(component, StoredRowsComponent)
        return component.raw_blocks(max_bytes)

    def describe(self) -> str:
        facts, opener = self._known(), self.opener
        if facts is None:
            return f"rows of {_short_name(opener)}, which cannot be opened here{centred(self.center)}"
        a, b = self._range(facts)
        size = size_text(round((b - a) * facts.bytes_a_row))
        # Of a part of sparse rows the number is not known without reading them.
        part = (b - a) / facts.shape[0]
        about = "" if part == 1.0 else "about "
        entries = f"sparse with {about}{round(facts.stored * part)} stored" if facts.sparse else size
        text = (
            f"rows {b - a} x {facts.shape[1]}, {facts.dtype}, {entries}, from {_short_name(opener)}[{a}:{b}]"
        )
        chunks = "" if facts.chunk_rows == 1 else f" in chunks of {facts.chunk_rows}"
        note = getattr(opener, "note", "")
        text += f" ({opener.kind}{chunks}{f'; {note}' if note else ''})"
        return text + centred(self.center)

    def extent(self) -> Extent | None:
        facts = self._known()
        if facts is None:
            return None
        a, b = self._range(facts)
        m, d = facts.shape
        return Extent("rows", d, b - a, round(facts.stored * (b - a) / m), facts.sparse, facts.dtype)

    def _range(self, facts: StoreFacts) -> tuple[int, int]:
        return self.start, facts.shape[0] if self.stop is None else self.stop

    def _known(self) -> StoreFacts | None:
        if self.facts is not None:
            return self.facts
        try:
            store = opened(self.opener)
            try:
                return StoreFacts.of(store, self.opener.name)
            finally:
                close_store(store)
        except InvalidInput:
            return None


class StoredRowsComponent(BlockedRows):
    """The covariance, or second moment, of rows ``start:stop`` of a store.

    Like `RowsComponent`, but the rows are read block by block for every product, the next block while
    one is multiplied. Rows that fit one block, and blocks that are dear to decode, are kept as far as there
    is room, see `grassia.data.room`.

    Parameters
    ----------
    store : RowStore
    start, stop : int
    center : bool, default True
    name : str
        What errors call the store.
    max_bytes : int
        The size of a block, see `grassia.data.blocks.block_ranges`.
    """

    def __init__(
        self,
        store: RowStore,
        start: int = 0,
        stop: int | None = None,
        center: bool = True,
        name: str = "the store",
        max_bytes: int = BLOCK_BYTES,
    ) -> None:
        facts = StoreFacts.of(store, name)
        m, d = facts.shape
        stop = m if stop is None else stop
        if not 0 <= start < stop <= m:
            raise InvalidComponent(
                f"rows {start}:{stop} of {name} must be some of its {m}; call from_rows again"
            )
        super().__init__((stop - start, d), facts.dtype, facts.sparse, center)
        self.feature_names = facts.feature_names
        self._store = store
        # Only whoever drops the component knows that the last pass was made.
        weakref.finalize(self, close_store, store)
        self._facts = facts
        self._start, self._stop = start, stop
        self._name = name
        self._ranges = facts.ranges(start, stop, max_bytes)
        self._kept: list[Any] = []  # the first blocks; those that are not kept are read in every pass
        self._keeps = facts.costly or len(self._ranges) == 1
        self._room, self._taken = room.ROOM, list[int]()
        weakref.finalize(self, self._room.give_back, self._taken)

    def raw_blocks(self, max_bytes: int = BLOCK_BYTES) -> Iterator[Any]:
        """The rows as they are, in blocks: arrays or CSR arrays."""
        yield from self._pass(self._facts.ranges(self._start, self._stop, max_bytes))

    def _blocks(self) -> Iterator[Any]:
        yield from self._kept
        first = len(self._kept)
        if first == len(self._ranges):
            return
        for i, rows in enumerate(self._pass(self._ranges[first:]), first):
            block = list(sparse_tiles(rows, None)) if self._sparse else rows
            if self._keeps and i == len(self._kept) and self._may_keep(rows):
                self._kept.append(block)
            yield block

    def _may_keep(self, rows: Any) -> bool:
        """Whether there is room for a block; once there is none, later blocks are not tried."""
        parts = (rows.data, rows.indices, rows.indptr) if self._sparse else (rows,)
        size = sum(part.nbytes for part in parts)
        self._keeps = self._room.take(size)
        if self._keeps:
            self._taken.append(size)
        return self._keeps

    def _pass(self, ranges: list[tuple[int, int]]) -> Iterator[Any]:
        """The rows of these ranges; whatever ends the pass, the store then lets go of its buffers."""
        try:
            yield from read_ahead(self._read, ranges)
        finally:
            release = getattr(self._store, "release", None)
            if callable(release):
                release()

    def _read(self, start: int, stop: int) -> Any:
        try:
            rows = self._store.read(start, stop)
        except GrassiaError:
            raise
        except Exception as error:  # each library has its own for damaged files
            raise InvalidComponent(
                f"rows {start}:{stop} of {self._name} cannot be read: {str(error) or type(error).__name__}; "
                "the file may be damaged"
            ) from error
        expected = (stop - start, self.n_features)
        if rows.shape != expected:
            raise InvalidComponent(
                f"rows {start}:{stop} of {self._name} must come as {expected}; got {rows.shape}"
            )
        if self._sparse:
            return canonical_csr(rows)
        return np.asarray(rows, dtype=self._dtype)

    def _named(self, row: int) -> str:
        locate = getattr(self._store, "locate", None)
        name, number = locate(self._start + row) if callable(locate) else (self._name, self._start + row)
        return f"row {number} of {name}"


def split_store(opener: StoreOpener, n: int, center: bool = True) -> list[StoredRowsLoader]:
    """Loaders for `n` blocks of rows of one store, cut at its own boundaries where that balances.

    The store is opened for its shape and closed again.
    """
    return cut_store(opener, known_facts(opener), n, center)


def known_facts(opener: StoreOpener) -> StoreFacts:
    """Open a store, note its facts, close it."""
    store = opened(opener)
    try:
        return StoreFacts.of(store, opener.name)
    finally:
        close_store(store)


def cut_store(opener: StoreOpener, facts: StoreFacts, n: int, center: bool) -> list[StoredRowsLoader]:
    """`split_store` of a store whose facts are known."""
    m = facts.shape[0]
    if n > m:
        raise InvalidInput(f"n_components must be at most the number of rows, {m}; got {n}")
    stamp = stamp_of(opener)
    cuts = balanced(m, n, facts.boundaries, facts.chunk_rows)
    return [StoredRowsLoader(opener, a, b, center, stamp, facts) for a, b in cuts]


def opened(opener: StoreOpener) -> RowStore:
    """``opener.open()``, `guarded`."""
    with guarded(opener.name, opener.kind):
        return opener.open()


@contextmanager
def guarded(name: str, kind: str) -> Iterator[None]:
    """What a library raises about a file becomes an `InvalidComponent` with the file's name."""
    try:
        yield
    except (GrassiaError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InvalidComponent(
            f"the rows file must exist where the worker runs; {name} does not: {error}"
        ) from error
    except Exception as error:  # each library has its own for damaged files
        reason = str(error) or type(error).__name__
        raise InvalidComponent(f"{name} cannot be opened as {kind}: {reason}") from error


def stamp_of(opener: StoreOpener) -> Stamp | None:
    """Sizes and times of change of the opener's files; None where it names none."""
    return tuple(file_stamp(path) for path in files_of(opener)) or None


def files_of(opener: StoreOpener) -> tuple[str, ...]:
    """The files that an opener names, if any."""
    files = getattr(opener, "files", None)
    if callable(files):
        return tuple(files())
    path = getattr(opener, "path", None)
    return (path,) if isinstance(path, str) else ()


def described_file(path: str) -> str:
    """A file's name for descriptions, with the folder it is in.

    >>> described_file("/data/2024/part-0.parquet")
    '2024/part-0.parquet'
    """
    return "/".join(Path(path).parts[-2:]).replace("//", "/")


def _short_name(opener: StoreOpener) -> str:
    """The name of a store, with no more of its paths than descriptions have."""
    name = opener.name
    for path in files_of(opener):
        name = name.replace(path, described_file(path))
    return name


def _same(before: Stamp, now: Stamp | None) -> bool:
    # A file that cannot be seen from here is left for opening to complain of.
    if now is None or len(before) != len(now):
        return now is None
    return all(a is None or b is None or a == b for a, b in zip(before, now, strict=True))


def changed(name: str) -> str:
    """The complaint about a file that is not what it was."""
    return (
        f"{name} must not change while it is in use; it has, since `from_rows` looked at it; "
        "call `from_rows` again"
    )


def close_store(store: RowStore) -> None:
    """Close it, if it can be closed."""
    close = getattr(store, "close", None)
    if callable(close):
        close()
