"""A cluster on a virtual clock: real products, imagined durations, no sleep; repeatable."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from grassia.backends.base import Backend, Faults, deal
from grassia.backends.service import Clockwork, Fixed, ServiceTime
from grassia.errors import InvalidInput
from grassia.faults import Plan, answer
from grassia.messages import Array, Failure, Lost, Message, Restored, Task
from grassia.worker import Loader, Worker

log = logging.getLogger("grassia")


class Simulated(Backend):
    """Workers whose products are computed here but arrive when the model says.

    Parameters
    ----------
    service : ServiceTime
        How long a task takes; see `grassia.backends.service`. Default: one second each.
    evaluate : {"dispatch", "return"}
        At which iterate a gradient is computed: the one the worker was sent off with, as on a real
        cluster, or the one current when it returns, as the paper's experiment has it.
    workers : int, optional
        Default: one for each component.
    latency : float
        Seconds a message takes each way.
    bandwidth : float
        Bytes a second of each worker's link.
    free_tasks : int
        So many first tasks of each component take no time (1: opening; 2: also the first product).
        Injected faults act on them too, but for their delays.
    restart_time : float
        Seconds from an injected crash until the worker runs again.
    max_restarts : int or None
        None: as often as it takes.
    seed : int
        For the service times.
    """

    name: ClassVar[str] = "simulated"
    poll: ClassVar[float | None] = None

    def __init__(
        self,
        service: ServiceTime | None = None,
        *,
        evaluate: str = "dispatch",
        workers: int | None = None,
        latency: float = 0.0,
        bandwidth: float = math.inf,
        free_tasks: int = 0,
        restart_time: float = 1.0,
        max_restarts: int | None = None,
        seed: int = 0,
        faults: Faults = None,
    ) -> None:
        super().__init__(faults=faults)
        if evaluate not in ("dispatch", "return"):
            raise InvalidInput(f"`evaluate` must be 'dispatch' or 'return'; got {evaluate!r}.")
        if service is not None and not isinstance(service, ServiceTime):
            raise InvalidInput(
                "`service` must be a model from grassia.backends.service, such as Fixed(2.0); "
                f"got {service!r}."
            )
        times_good = 0.0 <= latency < math.inf and 0.0 <= restart_time < math.inf
        if not (times_good and bandwidth > 0.0 and free_tasks >= 0):
            raise InvalidInput(
                "`latency`, `restart_time` and `free_tasks` must be >= 0 and `bandwidth` > 0; "
                f"got {latency}, {restart_time}, {free_tasks}, {bandwidth}."
            )
        if max_restarts is not None and max_restarts < 0:
            raise InvalidInput(f"`max_restarts` must be >= 0, or None; got {max_restarts}.")
        self.service = service or Fixed(1.0)
        self.evaluate = evaluate
        self.latency, self.bandwidth = latency, bandwidth
        self.free_tasks, self.restart_time = free_tasks, restart_time
        self.max_restarts = max_restarts
        self.seed = seed
        #: The run loop sets this, so that a task can be asked anew at its return.
        self.renew: Callable[[Task], Task] | None = None
        self._wanted = workers
        self._clock = 0.0
        self._events: list[tuple[float, int, Callable[[], list[Message]]]] = []
        self._numbers = itertools.count()
        self._sites: list[_Site] = []
        self._owner: dict[int, int] = {}

    def start(self, loaders: Sequence[Loader]) -> None:
        n = len(loaders)
        self.injector.check(n)
        self.groups = deal(n, self._wanted, n)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self._clock = 0.0
        for w, group in enumerate(self.groups):
            rng = np.random.default_rng([self.seed, w])
            mine = {i: loaders[i] for i in group}
            self._sites.append(_Site(w, mine, self.service.clockwork(w, rng)))

    def send(self, task: Task) -> None:
        site = self._sites[self._owner[task.component]]
        if task.instead is not None:
            self._drop(site, task.instead)
        site.queue.append(task)
        if not site.busy:
            self._begin(site)

    def _begin(self, site: _Site) -> None:
        if not site.queue:
            return
        site.busy = True
        task = site.queue.popleft()
        site.current, site.task = task.id, task
        plan = self.injector.plan(task.component, task.ordinal)
        seconds = 0.0
        if task.ordinal >= self.free_tasks:
            arrives = self._clock + self._travel(task.nbytes)
            seconds = site.clockwork.next(arrives) * plan.factor + plan.delay
            seconds += self._travel(task.nbytes)
        if plan.crash:
            self._at(self._clock + seconds, lambda: self._crash(site, task))
        else:
            self._at(self._clock + seconds, lambda: self._complete(site, task, plan, seconds))

    def _drop(self, site: _Site, number: int) -> None:
        """Stop working on a task; whatever time it took so far is lost."""
        site.queue = deque(task for task in site.queue if task.id != number)
        if site.busy and site.current == number:
            site.busy, site.current, site.copy, site.dead = False, None, None, False

    def _complete(self, site: _Site, task: Task, plan: Plan, seconds: float) -> list[Message]:
        if site.current != task.id:
            return []  # dropped meanwhile
        site.busy, site.current, site.copy = False, None, None
        if self.evaluate == "return" and self.renew is not None:
            task = self.renew(task)
        messages: list[Message]
        nbytes = 0
        try:
            reply = replace(answer(site.worker, task, plan), elapsed=seconds)
            messages = [reply, reply] if plan.duplicate else [reply]
            nbytes = reply.nbytes
        except Exception as error:
            messages = [Failure(task.id, task.component, error)]
        self._begin(site)
        # The link sends one answer after the other, so that none overtakes an earlier one.
        arrives = max(self._clock, site.link_free)
        if task.ordinal >= self.free_tasks:
            site.link_free = arrives + nbytes / self.bandwidth
            arrives = site.link_free + self.latency
        if arrives <= self._clock:
            return messages
        self._at(arrives, lambda: messages)
        return []

    def _crash(self, site: _Site, task: Task) -> list[Message]:
        if site.current != task.id:
            return []  # dropped before it could do harm
        if site.copy is not None:
            site.dead = True
            return []  # it goes on in its place
        site.current, site.dead = None, False
        # It stays busy until it is restored: what is sent to it meanwhile waits.
        site.worker = Worker(site.loaders)
        site.queue.clear()
        site.crashes += 1
        everything = tuple(site.loaders)
        if self.max_restarts is not None and site.crashes > self.max_restarts:
            return [Lost(everything, "injected crash", permanent=True)]
        self._at(self._clock + self.restart_time, lambda: self._restore(site))
        return [Lost(everything, "injected crash")]

    def hasten(self, task: int, component: int, arrays: Mapping[str, Array]) -> bool:
        site = self._sites[self._owner[component]]
        asked = site.task
        if self.stays or self.evaluate == "return" or site.copy is not None:
            return False
        if asked is None or site.current != task:
            return False
        site.copies += 1
        elsewhere = (site.number + 1) % len(self._sites)
        rng = np.random.default_rng([self.seed, site.number, site.copies])
        copy = _Site(site.number, site.loaders, self.service.clockwork(elsewhere, rng))
        told = replace(asked, query=replace(asked.query, arrays={**asked.query.arrays, **arrays}))
        seconds = 2.0 * self._travel(told.nbytes) + copy.clockwork.next(self._clock)
        site.copy = copy
        self._at(self._clock + seconds, lambda: self._overtake(site, copy, told, seconds))
        return True

    def _overtake(self, site: _Site, copy: _Site, task: Task, seconds: float) -> list[Message]:
        """A copy has the answer before the worker itself, and is it from now on; faults spare it."""
        if site.copy is not copy:
            return []
        try:
            reply = replace(copy.worker.handle(task), elapsed=seconds, moved=True)
        except Exception as error:
            site.copy = None  # the worker itself may do better
            return self._crash(site, task) if site.dead else self._nothing(error)
        site.worker, site.clockwork = copy.worker, copy.clockwork
        site.busy, site.current, site.copy, site.dead = False, None, None, False
        self._begin(site)
        return [reply]

    @staticmethod
    def _nothing(error: Exception) -> list[Message]:
        log.info("a copy of a worker failed: %r", error)
        return []

    def replace(self, component: int, reason: str) -> bool:
        site = self._sites[self._owner[component]]
        site.worker = Worker(site.loaders)
        site.queue.clear()
        site.busy, site.current, site.copy, site.dead = True, None, None, False
        lost = Lost(tuple(site.loaders), reason)
        self._at(self._clock, lambda: [lost])
        self._at(self._clock + self.restart_time, lambda: self._restore(site))
        return True

    def _restore(self, site: _Site) -> list[Message]:
        site.busy = False
        self._begin(site)
        return [Restored(tuple(site.loaders))]

    def _travel(self, nbytes: int) -> float:
        return self.latency + nbytes / self.bandwidth

    def _at(self, when: float, what: Callable[[], list[Message]]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), what))

    def receive(self, timeout: float | None = None) -> list[Message]:
        messages: list[Message] = []
        until = math.inf if timeout is None else self._clock + timeout
        while self._events and not messages:
            if self._events[0][0] > until:
                break
            self._clock = max(self._clock, self._events[0][0])
            # Everything of this instant arrives together, in the order in which it was sent.
            while self._events and self._events[0][0] <= self._clock * (1.0 + 1e-12):
                messages.extend(heapq.heappop(self._events)[2]())
        if not messages and math.isfinite(until):
            self._clock = max(self._clock, until)
        return messages

    def close(self) -> None:
        self._events.clear()
        self._sites.clear()

    def now(self) -> float:
        return self._clock

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "evaluate": self.evaluate, "clock": "virtual"}


class _Site:
    """One imagined worker."""

    def __init__(self, number: int, loaders: dict[int, Loader], clockwork: Clockwork) -> None:
        self.number, self.loaders = number, loaders
        self.worker = Worker(loaders)
        self.clockwork = clockwork
        self.queue: deque[Task] = deque()
        self.busy = False
        self.current: int | None = None  # the number of the task it works on
        self.task: Task | None = None  # the last it began
        self.copy: _Site | None = None  # one elsewhere that works on the same
        self.dead = False  # it crashed while its copy was at work
        self.copies = 0
        self.crashes = 0
        self.link_free = 0.0
