"""Workers that live on a Dask cluster: the one the program is connected to, or a local one.

The components of one worker are pinned to one Dask worker, where they stay open between tasks. When that one
is gone they move to another, which opens the data anew; so workers may come and go. Tasks go straight to
the Dask workers (`dask_link.py`, `dask_worker.py`), beside the scheduler, who is asked only who is there.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from grassia._blas import ServerThreads
from grassia._checks import require_count
from grassia._optional import require
from grassia.backends.base import Backend, Faults, deal
from grassia.backends.dask_cluster import Cluster
from grassia.backends.dask_link import Answered, Known, Lines, Link, News, Seat
from grassia.backends.dask_place import Place
from grassia.backends.station import pack
from grassia.messages import Array, Failure, Lost, Message, Reply, Restored, Task
from grassia.worker import Loader

MOST_WORKERS = 1024
TURN_SECONDS = 0.5  # how long `receive` sleeps at a time


class Dask(Backend):
    """Components pinned to the workers of a Dask cluster (extra `dask`).

    Parameters
    ----------
    client : distributed.Client or str, optional
        The client, or a scheduler's address. Default: the current client of the program, if there is one;
        else a cluster of local processes is made, and stopped with the run; or, inside a `with` block, at its
        end. Connections to the workers are kept from run to run in such a block, too.
    workers : int, optional
        Groups of components that are worked on at once. Default: one for each component.
    blas_threads : int, optional
        BLAS threads in each Dask worker; default: as many as Dask gave it threads, over the groups it holds.
    max_restarts : int
        How often the components of one worker may be moved without an answer in between before the run ends.
    patience : float
        Seconds that the cluster may be without any worker, or without its scheduler, before the run ends.
    """

    name: ClassVar[str] = "dask"
    remote: ClassVar[bool] = True

    def __init__(
        self,
        workers: int | None = None,
        *,
        client: Any = None,
        blas_threads: int | None = None,
        max_restarts: int = 5,
        patience: float = 30.0,
        faults: Faults = None,
    ) -> None:
        super().__init__(faults=faults)
        require_count(max_restarts, "`max_restarts`", least=0)
        if workers is not None:
            require_count(workers, "`workers`")
        if blas_threads is not None:
            require_count(blas_threads, "`blas_threads`")
        require("distributed", "dask")
        self.max_restarts, self.patience = max_restarts, patience
        self._given, self._wanted, self._wanted_blas = client, workers, blas_threads
        self._found: Cluster | None = None
        self._local: Any = None  # the cluster that was made, between the runs of a block
        self._lines: Lines | None = None  # connections that were made, likewise
        self._run = ""
        self._link: Link | None = None
        self._mail: queue.SimpleQueue[Answered | News | None] = queue.SimpleQueue()
        self._notices: list[Message] = []
        self._places: list[Place] = []
        self._owner: dict[int, Place] = {}
        self._seated: dict[Seat, Place] = {}
        self._abandoned: set[Seat] = set()  # given up, but still at work
        self._uneven = False
        self._server: ServerThreads | None = None
        self._started = time.perf_counter()

    # -- the four methods -----------------------------------------------------------------------

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._wanted, MOST_WORKERS)
        luggage = [pack({i: loaders[i] for i in group}, self.injector) for group in self.groups]
        self._run, self._mail = secrets.token_hex(8), queue.SimpleQueue()
        local, self._local = self._local, None
        cluster = self._found = Cluster(self._given, len(self.groups), self.patience, local)
        self._link = Link(self._lines_to(cluster.client), self._run, self._mail)
        try:
            self._link.open()
            cluster.wait(self._mail)
        except BaseException:
            self.close()
            raise
        self._started = time.perf_counter()
        homes = cluster.first_homes([_futures(loaders[i] for i in group) for group in self.groups])
        crowd = Counter(homes)
        share = min(max(1, cluster.known[home].threads // crowd[home]) for home in homes)
        self.blas_threads = self._wanted_blas or share
        for group, packed, home in zip(self.groups, luggage, homes, strict=True):
            place = Place(tuple(group), packed, bool(_futures(loaders[i] for i in group)))
            self._owner.update(dict.fromkeys(group, place))
            self._places.append(place)
            self._settle(place, home)
        self._server = ServerThreads(1)

    def _lines_to(self, client: Any) -> Lines:
        """Those of the run before, if that had the same client."""
        lines, self._lines = self._lines, None
        if lines is not None and lines.client is client:
            return lines
        if lines is not None:
            lines.hang_up()
        return Lines(client)

    def send(self, task: Task) -> None:
        place = self._owner[task.component]
        if task.instead is not None:
            for seat in place.drop(task.instead):
                self._speak.drop(seat, task.instead)
        place.queue.append(task)
        self._dispatch(place)

    def receive(self, timeout: float | None = None) -> list[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            messages, self._notices = self._notices, []
            left = TURN_SECONDS if deadline is None else min(TURN_SECONDS, deadline - time.monotonic())
            with suppress(queue.Empty):
                first = self._mail.get(timeout=0.0001 if messages else max(left, 0.0001))
                for letter in [first, *_drained(self._mail)]:
                    messages += self._read(letter)
            messages += self._tend()
            if messages or (deadline is not None and time.monotonic() >= deadline):
                return messages

    def close(self) -> None:
        self._end(keep=False)
        if self._lines is not None:
            self._lines.hang_up()
            self._lines = None
        if self._local is not None:
            self._local.close()
            self._local = None

    def release(self) -> None:
        self._end(keep=True)

    def _end(self, keep: bool) -> None:
        link, self._link = self._link, None
        self._places = []
        seats = {*self._seated, *self._abandoned}
        if link is not None and self._found is not None:
            lasting = keep and not self._found.own  # a client that was made for the run ends with it
            link.close((seat.address for seat in seats), keep=lasting)
            self._lines = link.lines if lasting else None
        if self._found is not None:
            self._local = self._found.close(keep)
        self._found, self._uneven, self._notices = None, False, []
        self._seated.clear()
        self._abandoned.clear()
        self._owner.clear()
        if self._server is not None:
            self._server.end()
            self._server = None

    def now(self) -> float:
        return time.perf_counter() - self._started

    # -- workers that need not be waited for ----------------------------------------------------

    def hasten(self, task: int, component: int, arrays: Mapping[str, Array]) -> bool:
        place = self._owner[component]
        wanted = place.out_with(task)
        if wanted is None or place.home is None or self.stays:
            return False
        if place.copy is not None:
            if place.copied is not None and place.copied.id == task:
                return False  # it is being computed a second time
            self._abandon(place.copy)
            place.copy = place.copied = None
        stuck = self._stuck
        others = [address for address in self._cluster.usable if address not in {place.home.address, *stuck}]
        if not others:
            return False
        query = replace(wanted.query, arrays={**wanted.query.arrays, **arrays})
        crowd = self._crowd()
        place.copied = replace(wanted, query=query, instead=None)
        place.copy = self._seat(place, min(others, key=lambda address: crowd[address]))
        self._speak.ask(place.copy, place.copied)
        return True

    def replace(self, component: int, reason: str) -> bool:
        place = self._owner[component]
        if place.gone or not place.seats:
            return False
        self._notices += self._lose(place, reason)
        self._mail.put(None)
        return True

    @property
    def _cluster(self) -> Cluster:
        assert self._found is not None, "the back-end is not started"
        return self._found

    @property
    def _speak(self) -> Link:
        assert self._link is not None, "the back-end is not started"
        return self._link

    @property
    def _stuck(self) -> set[str]:
        """Where something that was given up still runs."""
        return {seat.address for seat in self._abandoned}

    def _crowd(self) -> Counter[str]:
        return Counter(seat.address for seat in self._seated)

    # -- what arrives ---------------------------------------------------------------------------

    def _read(self, letter: Answered | News | None) -> list[Message]:
        if isinstance(letter, Answered):
            return self._answered(letter.seat, letter.outcome)
        if isinstance(letter, News):
            return self._heard(letter.workers)
        return []

    def _answered(self, seat: Seat, outcome: list[Message] | str) -> list[Message]:
        seat.busy = False
        self._abandoned.discard(seat)
        place = self._seated.get(seat)
        if place is None:
            return []  # it was given up
        if isinstance(outcome, str):
            self._cluster.died(seat.address)
            return self._died(place, seat, outcome)
        if seat is place.copy:
            return self._copy_answered(place, outcome)
        task, place.current = place.current, None
        if place.copied is not None and task is not None and place.copied.id == task.id:
            self._end_copy(place)
        place.losses = 0
        self._dispatch(place)
        return outcome

    def _copy_answered(self, place: Place, outcome: list[Message]) -> list[Message]:
        """The copy was first, if it has an answer; to fail or to be taken back is none."""
        if not outcome or any(isinstance(message, Failure) for message in outcome):
            return self._copy_failed(place, outcome)
        assert place.copy is not None
        assert place.copied is not None
        if place.home is not None:
            self._abandon(place.home)
        place.promote_copy()
        self._note_where(place)
        self._dispatch(place)
        return [replace(one, moved=True) if isinstance(one, Reply) else one for one in outcome]

    def _copy_failed(self, place: Place, outcome: list[Message]) -> list[Message]:
        number = -1 if place.copied is None else place.copied.id
        self._end_copy(place)
        if place.home is None:
            return self._lose(place, place.orphaned)
        if not place.setbacks.failed(outcome):
            return []
        for seat in place.drop(number):
            self._speak.drop(seat, number)
        return outcome

    def _end_copy(self, place: Place) -> None:
        if place.copy is not None:
            self._abandon(place.copy)
        place.copy = place.copied = None

    def _died(self, place: Place, seat: Seat, reason: str) -> list[Message]:
        """A seat is no more. As long as there is a second one, nothing is lost."""
        if seat is place.copy:
            number = -1 if place.copied is None else place.copied.id
            self._end_copy(place)
            if place.home is None:
                return self._lose(place, place.orphaned)
            return self._lose(place, reason) if place.setbacks.died(number) else []
        if place.copy is None:
            return self._lose(place, reason)
        self._abandon(seat)
        place.home = place.current = None
        place.orphaned = reason
        return []

    def _heard(self, workers: dict[str, Known] | None) -> list[Message]:
        """Who is there now. Without the scheduler the workers may go on, and it may come back."""
        self._uneven |= self._cluster.heard(workers) and not self.stays
        messages: list[Message] = []
        if workers is not None:
            for seat, place in list(self._seated.items()):
                if seat.address not in workers and seat in self._seated:
                    messages += self._died(place, seat, f"the Dask worker {seat.address} is gone")
        return messages

    def _tend(self) -> list[Message]:
        """See to the places that have no worker, and to workers that have no place."""
        messages: list[Message] = []
        for place in self._places:
            if place.home is None and place.copy is None and not place.gone:
                messages += self._restore(place)
        if self._uneven and self._cluster.usable:
            messages += self._spread()
        reason = self._cluster.given_up(wait_for_workers=self.stays)
        if reason is not None:
            for place in self._places:
                if not place.gone and (self._cluster.closed or not place.seats):
                    place.gone = True
                    messages.append(Lost(place.components, reason, True))
        return messages

    # -- where places are -----------------------------------------------------------------------

    def _lose(self, place: Place, reason: str, counts: bool = True) -> list[Message]:
        """A place has no worker any more; it is settled on another at once if there is one."""
        for seat in place.seats:
            self._abandon(seat)
        place.lose()
        place.losses += counts
        if place.losses > self.max_restarts:
            place.gone = True
            return [Lost(place.components, reason, True)]
        return [Lost(place.components, reason), *self._restore(place)]

    def _restore(self, place: Place) -> list[Message]:
        address = self._own_place(place) if self.stays else self._another(place)
        if address is None or self._cluster.out_of_reach:
            return []
        self._settle(place, address)
        self._dispatch(place)
        return [Restored(place.components)]

    def _own_place(self, place: Place) -> str | None:
        """The worker of the same name, or one that has come to the same host meanwhile."""
        known, joined = self._cluster.known, self._cluster.joined
        there = [at for at in known if self._cluster.alive(at)]
        named = [at for at in there if known[at].name == place.name]
        since = self._cluster.seen.get(place.left or "", 0.0)
        hosted = [at for at in there if known[at].host == place.host and joined[at] > since]
        crowd = self._crowd()
        return next(iter(named), min(hosted, key=lambda at: crowd[at], default=None))

    def _another(self, place: Place) -> str | None:
        """The worker with the fewest places, but where something given up still runs, and the last one."""
        crowd, stuck = self._crowd(), self._stuck
        return min(
            self._cluster.usable,
            key=lambda address: (address in stuck, address == place.left, crowd[address]),
            default=None,
        )

    def _spread(self) -> list[Message]:
        """Idle places go to workers that have come, where others have two more than those."""
        messages: list[Message] = []
        crowd, stuck = self._crowd(), self._stuck
        usable = [address for address in self._cluster.usable if address not in stuck]
        if not usable:
            return messages
        moving = [place for place in self._places if not place.rooted]
        for place in moving:
            fewest = min(usable, key=lambda address: crowd[address])
            if place.idle and place.home is not None and crowd[place.home.address] > crowd[fewest] + 1:
                crowd[place.home.address] -= 1
                crowd[fewest] += 1
                messages += self._lose(place, f"it moves to the Dask worker {fewest}, which has come", False)
        least = min((crowd[address] for address in usable), default=0)
        homes = [place.home.address for place in moving if place.home is not None]
        self._uneven = any(crowd[address] > least + 1 for address in homes)
        return messages

    def _settle(self, place: Place, address: str) -> None:
        place.home = self._seat(place, address)
        self._note_where(place)

    def _note_where(self, place: Place) -> None:
        assert place.home is not None
        known = self._cluster.known.get(place.home.address)
        if known is not None:
            place.name, place.host = known.name, known.host

    def _seat(self, place: Place, address: str) -> Seat:
        self._cluster.hold(address, self._run)
        seat = Seat(self._run, address, place.luggage, self.blas_threads or 1)
        self._seated[seat] = place
        return seat

    def _abandon(self, seat: Seat) -> None:
        """What it computes is not wanted any more, nor is its data."""
        self._seated.pop(seat, None)
        if seat.busy:
            self._abandoned.add(seat)
        self._speak.forget(seat)
        if all(other.address != seat.address for other in self._seated):
            self._cluster.let_go(seat.address)

    def _dispatch(self, place: Place) -> None:
        if place.home is not None and place.current is None and place.queue:
            place.current = place.queue.popleft()
            self._speak.ask(place.home, place.current)


def _futures(loaders: Iterable[Any]) -> list[Any]:
    """The Dask futures whose data the loaders open, see `grassia.data.formats.dask`."""
    from grassia.data.formats.dask import futures_in

    return [future for loader in loaders for future in futures_in(loader)]


def _drained(source: queue.SimpleQueue[Any]) -> Iterable[Any]:
    while not source.empty():
        yield source.get()
