"""Workers that are threads of this process: no copies, BLAS and file reads in parallel."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from grassia._blas import ServerThreads
from grassia.backends.base import Backend, Faults, deal, threads_for
from grassia.backends.withdrawals import Withdrawals
from grassia.faults import Crash, Injector, perform
from grassia.interruption import Withdrawn, watching
from grassia.messages import Failure, Lost, Message, Restored, Task
from grassia.worker import Loader, Worker

MOST_THREADS = 64
CLOSE_SECONDS = 2.0

_Mail = queue.SimpleQueue[list[Message]]
_Inbox = queue.SimpleQueue[Task | None]


class _Desk(Withdrawals):
    """What a worker and the server share: tasks to do, and which of them are not wanted any more."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: _Inbox = queue.SimpleQueue()

    def put(self, task: Task) -> None:
        if task.instead is not None:
            self.drop(task.instead)
        self.inbox.put(task)

    def stop(self) -> None:
        super().stop()
        self.inbox.put(None)


class Threads(Backend):
    """One thread for each worker.

    Parameters
    ----------
    workers : int, optional
        Default: one for each component, 64 at most. With fewer workers than components, each holds
        several and visits them in the solver's order.
    blas_threads : int, optional
        BLAS threads for the whole process while the run lasts; default cores / workers. The limit
        is global to the process (BLAS knows no other), and is taken back by `close`.
    """

    name: ClassVar[str] = "threads"

    def __init__(
        self, workers: int | None = None, *, blas_threads: int | None = None, faults: Faults = None
    ) -> None:
        super().__init__(faults=faults)
        self._wanted = workers
        self._wanted_blas = blas_threads
        self._desks: list[_Desk] = []
        self._outbox: _Mail = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._owner: dict[int, int] = {}
        self._limits: ServerThreads | None = None
        self._started = time.perf_counter()

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._wanted, MOST_THREADS)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self.blas_threads = threads_for(len(self.groups), self._wanted_blas)
        self._limits = ServerThreads(self.blas_threads)
        self._started = time.perf_counter()
        # New ones for every start: a thread that outlived the last `close` keeps the old ones.
        self._outbox = queue.SimpleQueue()
        for w, group in enumerate(self.groups):
            desk = _Desk()
            mine = {i: loaders[i] for i in group}
            thread = threading.Thread(
                target=_serve,
                args=(mine, self.injector, desk, self._outbox),
                name=f"grassia-{w}",
                daemon=True,
            )
            self._desks.append(desk)
            self._threads.append(thread)
            thread.start()

    def send(self, task: Task) -> None:
        self._desks[self._owner[task.component]].put(task)

    def receive(self, timeout: float | None = None) -> list[Message]:
        try:
            messages = list(self._outbox.get(timeout=timeout))
        except queue.Empty:
            return []
        while not self._outbox.empty():
            messages.extend(self._outbox.get())
        return messages

    def close(self) -> None:
        for desk in self._desks:
            desk.stop()
        # Not every product can be cut short. Past the deadline, its thread ends by itself, unheard.
        deadline = time.perf_counter() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.perf_counter()))
        self._threads.clear()
        self._desks.clear()
        if self._limits is not None:
            self._limits.end()
            self._limits = None

    def now(self) -> float:
        return time.perf_counter() - self._started


def _serve(loaders: dict[int, Loader], injector: Injector, desk: _Desk, outbox: _Mail) -> None:
    """The life of one worker."""
    worker = Worker(loaders)
    everything = tuple(loaders)
    while (task := desk.inbox.get()) is not None and not desk.stopped:
        number = task.id
        plan = injector.plan(task.component, task.ordinal)
        try:
            with watching(partial(desk.unwanted, number)):
                # Waiting at the desk instead of sleeping lets an injected delay be ended.
                pause = partial(desk.sleep, number=number)
                pause(0.0)  # it may have been dropped before it began
                outbox.put(perform(worker, task, plan, pause))
        except Withdrawn:
            continue
        except Crash:
            worker = Worker(loaders)
            while not desk.inbox.empty() and not desk.stopped:
                desk.inbox.get()  # what was queued dies with the worker, as it does in a process
            outbox.put([Lost(everything, "injected crash"), Restored(everything)])
        except BaseException as error:  # or the thread would end, and the server wait for ever
            told = error if isinstance(error, Exception) else RuntimeError(repr(error))
            outbox.put([Failure(task.id, task.component, told)])
