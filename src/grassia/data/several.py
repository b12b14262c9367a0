"""Several stores as one, opened one after the other: thousands of files never are open at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from grassia.data.loaders import Loader, SumLoader
from grassia.data.stored import (
    RowStore,
    StoredRowsLoader,
    StoreFacts,
    StoreOpener,
    changed,
    close_store,
    files_of,
    opened,
    stamp_of,
)
from grassia.errors import InvalidComponent
from grassia.passes.sparse import stacked

__all__ = ["SeveralOpener", "SeveralStores", "groups_by_rows", "merged"]


@dataclass(frozen=True, slots=True)
class SeveralOpener:
    """Stores whose rows follow one another, and what is known of each."""

    openers: tuple[StoreOpener, ...]
    facts: tuple[StoreFacts, ...]

    @property
    def name(self) -> str:
        return f"{self.openers[0].name} to {self.openers[-1].name}"

    @property
    def kind(self) -> str:
        return f"{len(self.openers)} x {self.openers[0].kind}"

    @property
    def note(self) -> str:
        return str(getattr(self.openers[0], "note", ""))

    def files(self) -> tuple[str, ...]:
        """The files of all."""
        return tuple(path for opener in self.openers for path in files_of(opener))

    def open(self) -> SeveralStores:
        return SeveralStores(self)


class SeveralStores:
    """The rows of several stores, of which the one that was read last is open."""

    def __init__(self, opener: SeveralOpener) -> None:
        facts = opener.facts
        self._opener = opener
        self._begins = np.r_[0, np.cumsum([fact.shape[0] for fact in facts])]
        self.shape = (int(self._begins[-1]), facts[0].shape[1])
        self.dtype = np.result_type(*{fact.dtype for fact in facts})
        self.costly = True  # to open a file again costs something, too
        self.sparse = any(fact.sparse for fact in facts)
        self.stored = sum(fact.stored for fact in facts)
        names = facts[0].feature_names
        self.feature_names = None if names is None else list(names)
        self.chunk_rows = 1
        self.boundaries = self._begins[:-1].tolist()
        self._open: tuple[int, RowStore] | None = None

    def read(self, start: int, stop: int) -> Any:
        first = int(np.searchsorted(self._begins, start, side="right")) - 1
        out = None if self.sparse else np.empty((stop - start, self.shape[1]), self.dtype)
        parts = []
        while start < stop:
            begin, end = (int(row) for row in self._begins[first : first + 2])
            upto = min(end, stop)
            rows = self._store(first).read(start - begin, upto - begin)
            if out is None:
                parts.append(rows)
            else:
                out[len(out) - (stop - start) :][: upto - start] = rows
            start, first = upto, first + 1
        return stacked(parts) if out is None else out

    def locate(self, row: int) -> tuple[str, int]:
        """The name of the store that has a row, and the row's number in it."""
        i = int(np.searchsorted(self._begins, row, side="right")) - 1
        return self._opener.openers[i].name, row - int(self._begins[i])

    def release(self) -> None:
        """Nothing stays open between passes."""
        self.close()

    def close(self) -> None:
        if self._open is not None:
            close_store(self._open[1])
            self._open = None

    def _store(self, i: int) -> RowStore:
        if self._open is None or self._open[0] != i:
            self.close()
            opener = self._opener.openers[i]
            store = opened(opener)
            self._open = i, store
            if tuple(store.shape) != self._opener.facts[i].shape:
                raise InvalidComponent(changed(opener.name))
        return self._open[1]


def merged(loaders: Sequence[Loader]) -> Loader:
    """Neighbouring loaders as one, which opens their files one at a time where it can."""
    if len(loaders) == 1:
        return loaders[0]
    openers, facts = [], []
    for loader in loaders:
        if isinstance(loader, StoredRowsLoader) and loader.facts is not None and loader.whole:
            openers.append(loader.opener)
            facts.append(loader.facts)
    alike = len(openers) == len(loaders) and len({fact.sparse for fact in facts}) == 1
    centers = {getattr(loader, "center", None) for loader in loaders}
    if not alike or len(centers) > 1:
        return SumLoader(tuple(loaders))
    several = SeveralOpener(tuple(openers), tuple(facts))
    whole = StoreFacts.of(several.open(), several.name)
    return StoredRowsLoader(several, 0, whole.shape[0], bool(centers.pop()), stamp_of(several), whole)


def groups_by_rows(rows: Sequence[int], n: int) -> list[tuple[int, int]]:
    """Cut a list into `n` runs, none empty, whose sums are near one another.

    >>> groups_by_rows([10, 10, 10, 70, 10], 3)
    [(0, 3), (3, 4), (4, 5)]
    """
    ends = np.cumsum(rows)
    cuts = [0]
    for i in range(1, n):
        nearest = int(np.argmin(abs(ends - i * ends[-1] / n))) + 1
        cuts.append(min(max(nearest, cuts[-1] + 1), len(rows) - (n - i)))
    cuts.append(len(rows))
    return list(pairwise(cuts))
