"""Workers that live on a Dask cluster: the one the program is connected to, or a local one.

The components of one worker are pinned to one Dask worker, where they stay open between tasks. When that one
is gone they move to another, which opens the data anew; so workers may come and go.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from grassia._blas import ServerThreads
from grassia._checks import require_count
from grassia._optional import require
from grassia.backends.base import Backend, Faults, deal, threads_for
from grassia.backends.station import Station, bare, pack
from grassia.errors import InvalidInput
from grassia.messages import Array, Lost, Message, Restored, Task
from grassia.worker import Loader

log = logging.getLogger("grassia")

MOST_WORKERS = 1024
LOOK_SECONDS = 0.5  # how often the list of workers is read where no event came


class Dask(Backend):
    """Components pinned to the workers of a Dask cluster (extra `dask`).

    Parameters
    ----------
    client : distributed.Client or str, optional
        The client, or a scheduler's address. Default: the current client of the program, if there is one;
        else a cluster of local processes is made, and stopped with the run.
    workers : int, optional
        Groups of components that are worked on at once. Default: one for each component.
    blas_threads : int, optional
        BLAS threads in each Dask worker; default: its share of the cores.
    max_restarts : int
        How often the components of one worker may be moved without an answer in between before the run ends.
    patience : float
        Seconds to wait for a worker to come back when none is left.
    """

    name: ClassVar[str] = "dask"

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
        self._distributed: Any = require("distributed", "dask")
        self.max_restarts, self.patience = max_restarts, patience
        self._given, self._wanted, self._wanted_blas = client, workers, blas_threads
        self._client: Any = None
        self._cluster: Any = None
        self._own_client = False
        self._run = ""
        self._places: list[_Place] = []
        self._owner: dict[int, int] = {}
        self._done: queue.SimpleQueue[tuple[_Place, Any]] = queue.SimpleQueue()
        self._gone: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._looked = 0.0
        self._server: ServerThreads | None = None
        self._started = time.perf_counter()

    # -- the four methods -----------------------------------------------------------------------

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._wanted, MOST_WORKERS)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        luggage = [pack({i: loaders[i] for i in group}, self.injector) for group in self.groups]
        self._connect(len(self.groups))
        self._run = secrets.token_hex(8)
        self._done, self._gone = queue.SimpleQueue(), queue.SimpleQueue()
        self._started = time.perf_counter()
        addresses = self._addresses()
        self.blas_threads = threads_for(len(addresses), self._wanted_blas)
        for number, (group, packed) in enumerate(zip(self.groups, luggage, strict=True)):
            home = addresses[number % len(addresses)]
            self._places.append(_Place(self, number, tuple(group), packed, home))
        self._server = ServerThreads(1)

    def send(self, task: Task) -> None:
        self._places[self._owner[task.component]].post(task)

    def receive(self, timeout: float | None = None) -> list[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            messages = self._arrived(deadline)
            if messages or (deadline is not None and time.monotonic() >= deadline):
                return messages

    def close(self) -> None:
        places, self._places = self._places, []
        for place in places:
            place.end()
        if self._client is not None:
            homes = sorted({place.home for place in places})
            with suppress(Exception):  # the cluster may be gone, and then there is nothing to forget
                if homes and self._cluster is None:
                    self._client.run(_forget, self._run, workers=homes, on_error="ignore")
            with suppress(Exception):
                self._client.unsubscribe_topic("all")
            if self._own_client:
                self._client.close()
            if self._cluster is not None:
                self._cluster.close()
        self._client = self._cluster = None
        self._own_client = False
        if self._server is not None:
            self._server.end()
            self._server = None

    def now(self) -> float:
        return time.perf_counter() - self._started

    # -- the cluster ----------------------------------------------------------------------------

    def _connect(self, groups: int) -> None:
        kind = self._distributed.Client
        if isinstance(self._given, kind):
            self._client = self._given
        elif isinstance(self._given, str):
            self._client, self._own_client = kind(self._given), True
        elif self._given is not None:
            raise InvalidInput(f"`client` must be a distributed.Client or an address; got {self._given!r}.")
        else:
            with suppress(ValueError):  # there is no current client
                self._client = self._distributed.get_client()
        if self._client is None:
            self._cluster = self._distributed.LocalCluster(
                n_workers=min(groups, 32), threads_per_worker=1, processes=True, dashboard_address=None
            )
            self._client, self._own_client = kind(self._cluster, set_as_default=False), True
        if getattr(self._client, "asynchronous", False):
            raise InvalidInput("the Dask client must not be asynchronous; make one with asynchronous=False.")
        self._client.subscribe_topic("all", self._heard)

    def _heard(self, event: Any) -> None:
        _, what = event
        if isinstance(what, dict) and what.get("action") == "remove-worker":
            self._gone.put(str(what.get("worker")))

    def _addresses(self) -> list[str]:
        """The workers there are, after some patience where there are none."""
        deadline = time.monotonic() + self.patience
        while not (found := sorted(self._client.scheduler_info(n_workers=-1)["workers"])):
            if time.monotonic() > deadline:
                raise InvalidInput(
                    f"the Dask cluster must have workers; none came within {self.patience:g} s. Start some."
                )
            time.sleep(0.05)
        return found

    # -- what arrives ---------------------------------------------------------------------------

    def _arrived(self, deadline: float | None) -> list[Message]:
        messages: list[Message] = []
        lost = set(_drained(self._gone))
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            there = self._client.scheduler_info(n_workers=-1)["workers"]
            lost |= {place.home for place in self._places} - set(there)
        for place in self._places:
            if place.home in lost:
                messages += self._move(place, f"the Dask worker {place.home} is gone")
        wait = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
        with suppress(queue.Empty):
            first = self._done.get(timeout=0.0001 if messages else max(wait, 0.0001))
            for place, future in [first, *_drained(self._done)]:
                messages += place.take(future)
        return messages

    def _move(self, place: _Place, reason: str) -> list[Message]:
        """The components of a place go to another worker, the one with the fewest."""
        place.losses += 1
        if place.losses > self.max_restarts:
            return [Lost(place.components, reason, True)]
        try:
            there = [address for address in self._addresses() if address != place.home]
        except InvalidInput:
            return [Lost(place.components, f"{reason}, and no other came", True)]
        if not there:
            return []  # it is the only one, and seen again: nothing was lost, or it will be seen soon
        crowd = dict.fromkeys(there, 0)
        for other in self._places:
            crowd[other.home] = crowd.get(other.home, 0) + 1
        place.settle(min(there, key=lambda address: crowd[address]))
        return [Lost(place.components, reason), Restored(place.components)]


class _Place:
    """The components of one worker, seen from the server: where they are, and what is under way."""

    _numbers = itertools.count()

    def __init__(
        self, backend: Dask, number: int, components: tuple[int, ...], luggage: bytes, home: str
    ) -> None:
        self._backend, self._number, self._luggage = backend, number, luggage
        self.components, self.home = components, home
        self.losses = 0
        self._opened = False
        self._queue: deque[Task] = deque()
        self._current: tuple[Task, Any] | None = None

    def settle(self, home: str) -> None:
        """Go to another worker. What was under way or queued is lost."""
        self.home, self._opened = home, False
        self._queue.clear()
        if self._current is not None:
            future, self._current = self._current[1], None
            with suppress(Exception):
                future.cancel()

    def post(self, task: Task) -> None:
        if task.instead is not None:
            self._drop(task.instead)
        self._queue.append(task)
        self._dispatch()

    def _drop(self, number: int) -> None:
        self._queue = deque(task for task in self._queue if task.id != number)
        if self._current is not None and self._current[0].id == number:
            with suppress(Exception):  # if the worker is gone, that will be heard of
                self._backend._client.run(_drop, self._key, number, workers=[self.home], on_error="ignore")

    @property
    def _key(self) -> tuple[str, int]:
        return self._backend._run, self._number

    def _dispatch(self) -> None:
        if self._current is not None or not self._queue:
            return
        task = self._queue.popleft()
        # The data travels with the first task only; later ones find it open.
        luggage = None if self._opened else self._luggage
        backend = self._backend
        future = backend._client.submit(
            _answer,
            self._key,
            luggage,
            backend.blas_threads,
            bare(task),
            dict(task.query.arrays),
            key=f"grassia-{backend._run}-{self._number}-{next(self._numbers)}",
            workers=[self.home],
            allow_other_workers=False,
            pure=False,
        )
        self._current = (task, future)
        done = backend._done
        future.add_done_callback(lambda one: done.put((self, one)))

    def take(self, future: Any) -> list[Message]:
        """What came of a task, if it is the one under way; the next one is sent."""
        if self._current is None or self._current[1] is not future:
            return []  # of a worker that was given up
        self._current = None
        try:
            messages: list[Message] | None = future.result(timeout=60)
        except Exception as error:
            messages = None
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = f"the Dask worker {self.home} was started anew"
        finally:
            future.release()
        if messages is None:
            self._opened = False
            self._queue.clear()
            self.losses += 1
            permanent = self.losses > self._backend.max_restarts
            lost = Lost(self.components, reason, permanent)
            return [lost] if permanent else [lost, Restored(self.components)]
        self._opened, self.losses = True, 0
        self._dispatch()
        return messages

    def end(self) -> None:
        self._queue.clear()
        if self._current is not None:
            with suppress(Exception):
                self._current[1].cancel()
            self._current = None


def _drained(source: queue.SimpleQueue[Any]) -> Iterable[Any]:
    while not source.empty():
        yield source.get()


# -- what runs in the Dask workers ----------------------------------------------------------------


class _Registry:
    """What a Dask worker keeps of the runs it takes part in."""

    def __init__(self) -> None:
        self.stations: dict[tuple[str, int], Station] = {}
        self.dropped: set[tuple[str, int, int]] = set()  # before their station was there
        self.ended: set[str] = set()

    @classmethod
    def of(cls, worker: Any) -> _Registry:
        found: _Registry = worker.__dict__.setdefault("_grassia", cls())
        return found


def _answer(
    key: tuple[str, int], luggage: bytes | None, blas_threads: int, task: Task, arrays: dict[str, Array]
) -> list[Message] | None:
    """The answer to a task; None where the data is not open here and did not come along."""
    from distributed import get_worker

    registry = _Registry.of(get_worker())
    if luggage is not None:
        registry.stations[key] = Station(luggage, blas_threads)
    station = registry.stations.get(key)
    # It may have been taken back on the way, or the run may be over.
    if key[0] in registry.ended or (*key, task.id) in registry.dropped:
        registry.dropped.discard((*key, task.id))
        return []
    return None if station is None else station.answer(task, arrays)


def _drop(key: tuple[str, int], number: int, dask_worker: Any = None) -> None:
    registry = _Registry.of(dask_worker)
    station = registry.stations.get(key)
    if station is not None:
        station.drop(number)
    else:
        registry.dropped.add((*key, number))


def _forget(run: str, dask_worker: Any = None) -> None:
    registry = _Registry.of(dask_worker)
    registry.ended.add(run)
    for key in [key for key in registry.stations if key[0] == run]:
        registry.stations.pop(key).stop()
