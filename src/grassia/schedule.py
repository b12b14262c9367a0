"""Who is free, who is out with what, and whose turn it is. The server's bookkeeping of its workers.

A worker has one task at a time. In a *round* (opening, a sweep, a synchronous method) each component is asked
once; otherwise a worker goes through its components in the solver's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What is remembered of a task that is out: not its arrays, or n old iterates would stay alive."""

    id: int
    component: int
    version: int
    informs: bool  # whether it tells the component the global mean
    part_of: Any  # the opening, the prelude, a sweep; None: it is the solver's own question
    probing: int = 0  # so many of the last columns of its block are the probe's


class Schedule:
    """The workers of a run.

    >>> import numpy as np
    >>> schedule = Schedule([[0, 2], [1]], "cyclic", np.random.default_rng(0))
    >>> [(worker, next(schedule.of_round(worker))) for worker in schedule.free()]
    [(0, 0), (1, 1)]
    """

    def __init__(self, groups: Sequence[Sequence[int]], order: str, rng: np.random.Generator) -> None:
        self.groups = [list(group) for group in groups]
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self._order, self._rng = order, rng
        self._turns = [_Turns(group, order, rng) for group in self.groups]
        self._idle: deque[int] = deque(range(len(self.groups)))
        self._waiting: list[int] = []  # free, but there was nothing to ask of them
        self._out: dict[int, Outstanding] = {}
        self._down: set[int] = set()
        self._leftover: dict[int, int] = {}  # what a worker is still busy with, and nobody waits for
        self._pending: list[deque[int]] = []
        self.new_round()

    # -- whom to ask ------------------------------------------------------------------------------

    def free(self) -> Iterator[int]:
        """Workers that have nothing to do, each once."""
        while self._idle:
            worker = self._idle.popleft()
            if worker not in self._down and worker not in self._out:
                yield worker

    def in_turn(self, worker: int) -> Iterator[int]:
        """The components of a worker in the solver's order, as many as it has."""
        return (self._turns[worker].next() for _ in self.groups[worker])

    def of_round(self, worker: int) -> Iterator[int]:
        """The components of a worker that are still to be asked in this round; each is taken off."""
        while self._pending[worker]:
            yield self._pending[worker].popleft()

    def new_round(self) -> None:
        """Every component is to be asked once more."""
        self._pending = [deque(group) for group in self.groups]
        self.wake()

    def again(self, component: int) -> None:
        """A component has to be asked once more in this round."""
        # A task from before this round or sweep is still to be asked in it: not twice.
        pending = self._pending[self._owner[component]]
        if component not in pending:
            pending.appendleft(component)

    def wait(self, worker: int) -> None:
        """There is nothing to ask of a worker for now."""
        self._waiting.append(worker)

    def wake(self) -> None:
        """There may be something to ask of those who wait."""
        self._idle.extend(self._waiting)
        self._waiting.clear()

    @property
    def someone_waits(self) -> bool:
        return bool(self._waiting)

    # -- who is out -------------------------------------------------------------------------------

    def under_way(self) -> list[tuple[int, Outstanding]]:
        """The workers that are out, each with what."""
        return list(self._out.items())

    @property
    def down(self) -> Set[int]:
        """The workers that are out of reach."""
        return self._down

    def send(self, task: Outstanding) -> int | None:
        """A task goes out, or the one that is out is asked anew; the number of one it takes the place of."""
        worker = self._owner[task.component]
        self._out[worker] = task
        return self._leftover.pop(worker, None)

    def group(self, component: int) -> list[int]:
        """The components that share its worker."""
        return self.groups[self._owner[component]]

    def out(self, component: int, task: int) -> Outstanding | None:
        """The task of this number, if it is the one its worker is out with."""
        found = self._out.get(self._owner.get(component, -1))
        return found if found is not None and found.id == task else None

    def back(self, task: Outstanding) -> None:
        """Its worker is free again."""
        worker = self._owner[task.component]
        self._out.pop(worker, None)
        self._idle.append(worker)

    def lost(self, component: int) -> Outstanding | None:
        """The worker of a component died; what it was out with is asked again in this round."""
        worker = self._owner[component]
        self._down.add(worker)
        self._leftover.pop(worker, None)
        task = self._out.pop(worker, None)
        if task is not None:
            self.again(task.component)
        return task

    def restored(self, component: int) -> None:
        """The worker of a component runs again."""
        worker = self._owner[component]
        self._down.discard(worker)
        self._idle.append(worker)

    def leave_out(self, components: Container[int]) -> None:
        """Some components are no longer asked for; the others begin anew, whatever is under way."""
        self.groups = [[i for i in group if i not in components] for group in self.groups]
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self._turns = [_Turns(group, self._order, self._rng) for group in self.groups]
        self._leftover.update({worker: task.id for worker, task in self._out.items()})
        self._out.clear()
        there = [worker for worker, group in enumerate(self.groups) if group]
        self._down.intersection_update(there)
        self._waiting.clear()
        self._idle = deque(there)
        self.new_round()

    @property
    def to_ask(self) -> list[int]:
        """The components that have yet to answer in this round."""
        pending = {component for queue in self._pending for component in queue}
        return sorted(pending | {task.component for task in self._out.values()})

    @property
    def turns(self) -> list[list[int]]:
        """For each worker, the components that are next in the solver's order, until it begins anew."""
        return [turns.queue for turns in self._turns]

    def take_turns(self, turns: list[list[int]]) -> None:
        """The same order again, where the workers hold the same components."""
        if len(turns) == len(self.groups) and all(map(_within, turns, self.groups)):
            for mine, queue in zip(self._turns, turns, strict=True):
                mine.queue = queue

    def ask_only(self, components: Container[int]) -> None:
        """Of this round, only these are left."""
        self._pending = [deque(i for i in group if i in components) for group in self.groups]

    @property
    def nothing_moves(self) -> bool:
        """Whether no answer and no restart is to be expected."""
        return not self._out and not self._down


class _Turns:
    """The order in which a worker that holds several components visits them."""

    def __init__(self, group: Sequence[int], order: str, rng: np.random.Generator) -> None:
        self._group, self._order, self._rng = list(group), order, rng
        self._queue: deque[int] = deque()

    @property
    def queue(self) -> list[int]:
        return list(self._queue)

    @queue.setter
    def queue(self, components: list[int]) -> None:
        self._queue = deque(components)

    def next(self) -> int:
        if self._order == "random" and len(self._group) > 1:
            return self._group[int(self._rng.integers(len(self._group)))]
        if not self._queue:
            self._queue.extend(self._group)
            if self._order == "shuffled" and len(self._group) > 1:
                self._rng.shuffle(self._queue)
        return self._queue.popleft()


def _within(some: Sequence[int], group: Sequence[int]) -> bool:
    return set(some) <= set(group)
