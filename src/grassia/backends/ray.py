"""Workers that are Ray actors, on a cluster that runs already or on one made for the run.

An actor holds the components of one worker. A block that goes to many of them is put into the object store
once. For an actor that dies, with its node or by itself, another is started, which opens the data anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from grassia._blas import ServerThreads
from grassia._checks import require_count
from grassia._optional import require
from grassia.backends.base import Backend, Faults, cores, deal, threads_for
from grassia.backends.station import Station, bare, pack
from grassia.messages import Array, Lost, Message, Restored, Task
from grassia.worker import Loader

MOST_ACTORS = 1024
SMALL = 1 << 15  # arrays below this travel in the call itself


class Ray(Backend):
    """One actor for each worker (extra `ray`).

    A cluster that the program has connected to (`ray.init`) is used and left running. Without one, a local
    one is started and stopped with the run.

    Parameters
    ----------
    workers : int, optional
        Default: one for each component.
    num_cpus, num_gpus : float, optional
        Resources of each actor. Default: one CPU, or an equal share of those there are if they are too few.
    resources : dict, optional
        Custom resources of each actor, as in `ray.remote`.
    scheduling_strategy : optional
        Placement, as in `ray.remote`: "SPREAD", a placement group's strategy, ...
    blas_threads : int, optional
        BLAS threads of each actor; default: what `num_cpus` says, at least one.
    max_restarts : int
        How often an actor may die without an answer in between before the run ends.
    """

    name: ClassVar[str] = "ray"

    def __init__(
        self,
        workers: int | None = None,
        *,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: dict[str, float] | None = None,
        scheduling_strategy: Any = None,
        blas_threads: int | None = None,
        max_restarts: int = 5,
        faults: Faults = None,
    ) -> None:
        super().__init__(faults=faults)
        require_count(max_restarts, "`max_restarts`", least=0)
        if workers is not None:
            require_count(workers, "`workers`")
        self._ray: Any = require("ray", "ray")
        self.max_restarts = max_restarts
        self._wanted, self._wanted_blas = workers, blas_threads
        self._num_cpus = num_cpus
        self._options = {"num_gpus": num_gpus, "resources": resources}
        self._options = {name: value for name, value in self._options.items() if value is not None}
        if scheduling_strategy is not None:
            self._options["scheduling_strategy"] = scheduling_strategy
        self._own = False
        self._actors: list[_Handle] = []
        self._owner: dict[int, int] = {}
        self._put: deque[tuple[Array, Any]] = deque(maxlen=8)
        self._server: ServerThreads | None = None
        self._started = time.perf_counter()

    def start(self, loaders: Sequence[Loader]) -> None:
        ray = self._ray
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._wanted, MOST_ACTORS)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        luggage = [pack({i: loaders[i] for i in group}, self.injector) for group in self.groups]
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            self._own = True
        share = self._share(len(self.groups))
        self.blas_threads = threads_for(max(1, round(cores() / max(share, 1.0))), self._wanted_blas)
        self._started = time.perf_counter()
        kind = ray.remote(
            num_cpus=share,
            max_restarts=0,  # a call to one that Ray is restarting fails; a new one takes it at once
            max_task_retries=0,
            concurrency_groups={"ears": 1},
            **self._options,
        )(_Actor)
        for group, packed in zip(self.groups, luggage, strict=True):
            self._actors.append(_Handle(ray, kind, tuple(group), ray.put(packed), self.blas_threads))
        self._server = ServerThreads(1)

    def _share(self, actors: int) -> float:
        if self._num_cpus is not None:
            return self._num_cpus
        there = float(self._ray.cluster_resources().get("CPU", 1.0))
        return 1.0 if there >= actors else there / actors

    def send(self, task: Task) -> None:
        handle = self._actors[self._owner[task.component]]
        if task.instead is not None:
            handle.drop(task.instead)
        handle.post(task, {name: self._once(array) for name, array in task.query.arrays.items()})

    def _once(self, array: Array) -> Any:
        """The array, or where it is in the object store: one copy for all who are sent the same."""
        if array.nbytes < SMALL:
            return array
        for known, reference in self._put:
            if known is array:
                return reference
        reference = self._ray.put(array)
        self._put.append((array, reference))
        return reference

    def receive(self, timeout: float | None = None) -> list[Message]:
        under_way = {handle.answer: handle for handle in self._actors if handle.answer is not None}
        if not under_way:
            time.sleep(min(timeout or 0.0, 0.5))
            return []
        waited = list(under_way)
        ready, rest = self._ray.wait(waited, num_returns=1, timeout=timeout)
        if ready and rest:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0)
            ready += more
        messages: list[Message] = []
        for reference in ready:
            messages += under_way[reference].take(self.max_restarts)
        return messages

    def close(self) -> None:
        for handle in self._actors:
            handle.end()
        self._actors.clear()
        self._put.clear()
        if self._own:
            self._ray.shutdown()
            self._own = False
        if self._server is not None:
            self._server.end()
            self._server = None

    def now(self) -> float:
        return time.perf_counter() - self._started


class _Actor:
    """What runs in the actor; `drop` has a thread of its own, and is heard while `answer` works."""

    def __init__(self, luggage: bytes, blas_threads: int) -> None:
        self._station = Station(luggage, blas_threads)

    def answer(self, task: Task, names: Sequence[str], *arrays: Array) -> list[Message]:
        return self._station.answer(task, dict(zip(names, arrays, strict=True)))

    def drop(self, number: int) -> None:
        self._station.drop(number)


class _Handle:
    """An actor seen from the server: a queue, and the one call that is under way."""

    def __init__(
        self, ray: Any, kind: Any, components: tuple[int, ...], luggage: Any, blas_threads: int
    ) -> None:
        self._ray, self._kind, self._arguments = ray, kind, (luggage, blas_threads)
        self.components = components
        self._actor = kind.remote(*self._arguments)
        self._queue: deque[tuple[Task, dict[str, Any]]] = deque()
        self._current: Task | None = None
        self.answer: Any = None
        self._losses = 0
        self._gone = False

    def post(self, task: Task, arrays: dict[str, Any]) -> None:
        self._queue.append((task, arrays))
        self._dispatch()

    def drop(self, number: int) -> None:
        self._queue = deque(one for one in self._queue if one[0].id != number)
        if self._current is not None and self._current.id == number:
            self._actor.drop.options(concurrency_group="ears").remote(number)

    def _dispatch(self) -> None:
        if self.answer is None and self._queue and not self._gone:
            task, arrays = self._queue.popleft()
            self._current = task
            self.answer = self._actor.answer.remote(bare(task), list(arrays), *arrays.values())

    def take(self, max_restarts: int) -> list[Message]:
        """What came of the call that is done; the next one is made."""
        reference, self.answer, self._current = self.answer, None, None
        try:
            messages: list[Message] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._lost(error, max_restarts)
        self._losses = 0
        self._dispatch()
        return messages

    def _lost(self, error: Exception, max_restarts: int) -> list[Message]:
        self._queue.clear()
        self._losses += 1
        self._gone = self._losses > max_restarts
        reason = " ".join(str(error).split())[:200]
        lost = Lost(self.components, f"the actor died: {reason}", self._gone)
        if self._gone:
            return [lost]
        self._ray.kill(self._actor)  # it may be only out of reach
        self._actor = self._kind.remote(*self._arguments)
        return [lost, Restored(self.components)]

    def end(self) -> None:
        self._gone = True
        self._ray.kill(self._actor, no_restart=True)
