"""The weighted sum of what every worker contributed last, kept by corrections. Shared by solvers.

`total = sum w_i C_i`, where `C_i` (d x k) is component i's last contribution: a gradient, a product, at
whatever iterate it was asked. What arrives replaces its own term only, so the server needs no table: a
worker that holds its last contribution sends the difference, and the server knows by version which one
that is relative to (`entry`). Both sides may repeat themselves: a contribution counts once.

A worker that died has lost its last contribution, so the sum can no longer be corrected for it. Then, and
now and then against rounding drift, the sum is taken anew from whole contributions, while the old one
serves on; no worker waits for it.

Cost: O(dk) for each arrival and three d x k blocks, whatever n is; with `table` O(ndk) memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grassia.messages import Array, Query, Scalar
from grassia.worker import Cache

NOT_HELD = -1  # the version of a contribution that no worker holds


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value: every step makes a new one, arrays are never changed in place.

    Attributes
    ----------
    weights : ndarray (n,)
    total : ndarray (d, k)
        The sum.
    entry : ndarray (n,) of int
        The version at which the contribution in `total` was computed; NOT_HELD when its worker lost it.
    keeps_table : bool
        Whether the contributions are kept here (then messages are whole) or by the workers.
    started : bool
        Whether every component has contributed.
    round, awaiting : int
        The current round and the answers it lacks (until the start, or for a synchronous method).
    since_resum : int
        Arrivals since the sum was last taken anew.
    """

    weights: Array
    total: Array
    entry: Any
    heard: Any  # the version of what `total` holds of each component, whoever else holds it
    keeps_table: bool = False
    started: bool = False
    round: int = 0
    awaiting: int = 0
    table: tuple[Array, ...] = ()
    fresh: Array | None = None  # the sum being taken anew
    fresh_in: Any = None  # per component: whether `fresh` contains it
    again: bool = False  # something in `fresh` cannot be corrected either: one more is due after it
    since_resum: int = 0

    @classmethod
    def empty(cls, weights: Array, like: Array, keeps_table: bool, round: int = 0) -> Aggregate:
        """Before anything arrived."""
        n = len(weights)
        return cls(
            weights=weights,
            total=np.zeros_like(like),
            entry=np.full(n, NOT_HELD, dtype=np.int64),
            heard=np.zeros(n, dtype=np.int64),
            keeps_table=keeps_table,
            round=round,
            awaiting=n,
            table=tuple(np.zeros_like(like) for _ in range(n)) if keeps_table else (),
        )

    def options(self, component: int, version: int) -> dict[str, Scalar]:
        """What `contribute` must be told to answer for this component at this version."""
        summing = self.fresh is not None and not self.fresh_in[component]
        return {
            "weight": float(self.weights[component]),
            "version": version,
            "base": int(self.entry[component]) if self.started else NOT_HELD,
            "whole": bool(summing or not self.started or self.keeps_table),
            "cache": not self.keeps_table,
        }

    def absorb(self, component: int, version: int, arrays: Mapping[str, Array]) -> Aggregate:
        """Take one answer of `contribute`, computed at `version`."""
        i, whole, correction = component, arrays.get("whole"), arrays.get("correction")
        begun = self
        if self.started and not self.keeps_table and correction is None:
            begun = self._uncorrectable(i)
        total, table, fresh, fresh_in = begun.total, begun.table, begun.fresh, begun.fresh_in
        if not self.started:
            assert whole is not None
            total = total + whole
            if table:
                table = _swap(table, i, whole)
        elif table:
            assert whole is not None
            total = total + (whole - table[i])
            table = _swap(table, i, whole)
        else:
            if correction is not None:
                total = total + correction
            if fresh is not None:
                if not fresh_in[i]:
                    # A task that was out when the summing began has no whole; its next answer will.
                    if whole is not None:
                        fresh, fresh_in = fresh + whole, put(fresh_in, i, True)
                elif correction is not None:
                    fresh = fresh + correction
                if bool(fresh_in.all()):
                    total, fresh, fresh_in = fresh, None, None
        absorbed = replace(
            begun,
            total=total,
            table=table,
            fresh=fresh,
            fresh_in=fresh_in,
            entry=put(self.entry, i, version),
            heard=put(self.heard, i, version),
            awaiting=self.awaiting - 1,
            since_resum=self.since_resum + 1,
        )
        return absorbed.resum() if fresh is None and begun.again else absorbed

    def next_round(self) -> Aggregate:
        """Every component has contributed (in this round)."""
        return replace(self, started=True, round=self.round + 1, awaiting=len(self.weights))

    def resum(self) -> Aggregate:
        """Begin to take the sum anew; at once where the table is here."""
        if self.keeps_table:
            return replace(self, total=np.sum(np.stack(self.table), axis=0), since_resum=0)
        return replace(
            self,
            fresh=np.zeros_like(self.total),
            fresh_in=np.zeros(len(self.weights), dtype=bool),
            again=False,
            since_resum=0,
        )

    def _uncorrectable(self, component: int) -> Aggregate:
        """What the sum holds of a component can no longer be corrected: it has to be taken anew.

        A summing under way goes on all the same, or steady losses would keep it from ever ending; what
        it already holds of the component is stale, and the next one will mend that.
        """
        if self.fresh is None:
            return self.resum()
        return replace(self, again=True) if self.fresh_in[component] else self

    def resummed(self, passes: int) -> Aggregate:
        """Begin to take the sum anew if so many passes went by since the last time; 0: never."""
        if passes and self.fresh is None and self.since_resum >= passes * len(self.weights):
            return self.resum()
        return self

    def lost(self, component: int) -> Aggregate:
        """The worker of this component died, with whatever it had cached."""
        if self.keeps_table:
            return self
        without = replace(self, entry=put(self.entry, component, NOT_HELD))
        return without._uncorrectable(component) if self.started else without

    def swept(self, component: int, version: int, contribution: Array) -> Aggregate:
        """A consistent sweep gave this component's contribution, which its worker has cached."""
        if self.keeps_table:
            weighted = float(self.weights[component]) * contribution
            table = _swap(self.table, component, weighted)
            return replace(self, table=table, heard=put(self.heard, component, version))
        return replace(
            self, entry=put(self.entry, component, version), heard=put(self.heard, component, version)
        )

    def swept_all(self, total: Array) -> Aggregate:
        """A consistent sweep is over: `total` is the exact sum."""
        done = replace(
            self,
            total=total,
            started=True,
            fresh=None,
            fresh_in=None,
            again=False,
            since_resum=0,
            awaiting=len(self.weights),
            round=self.round + 1,
        )
        if not self.keeps_table and bool((done.entry == NOT_HELD).any()):
            done = done.resum()  # a worker died after its part of the sweep
        return done

    def staleness(self, version: int) -> int:
        """The age of the oldest contribution, in updates."""
        return int(version - self.heard.min()) if self.started else 0

    def ages(self, version: int) -> Any:
        """The age of each contribution, in updates."""
        return version - self.heard


def contribute(cache: Cache, name: str, new: Array, query: Query) -> dict[str, Array]:
    """In the worker: answer with `new`, as a correction to the contribution the server counts on.

    `base` names that one by its version. Both it and the new one are kept, so a task that is run twice
    gives the same answer twice. Without `base` (a restarted worker) the whole is sent.
    """
    options = query.options
    weight = float(options["weight"] or 0.0)
    held: dict[int, Array] = cache.get(name, {})
    base = int(options["base"] or 0)
    arrays: dict[str, Array] = {}
    if options["cache"]:
        if base in held:
            arrays["correction"] = weight * (new - held[base])
        kept = {base: held[base]} if base in held else {}
        cache[name] = {**kept, int(options["version"] or 0): new}
    if options["whole"] or "correction" not in arrays:
        arrays["whole"] = weight * new
    return arrays


def put(values: Any, index: int, value: Any) -> Any:
    """A copy of an array with one entry changed."""
    changed = values.copy()
    changed[index] = value
    return changed


def _swap(table: tuple[Array, ...], index: int, value: Array) -> tuple[Array, ...]:
    return (*table[:index], value, *table[index + 1 :])
