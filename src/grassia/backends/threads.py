"""Workers that are threads of this process: no copies, BLAS and file reads in parallel."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from threadpoolctl import threadpool_limits

from grassia.backends.base import Backend, Faults, deal, threads_for
from grassia.faults import Crash, perform
from grassia.messages import Failure, Lost, Message, Restored, Task
from grassia.worker import Loader, Worker

MOST_THREADS = 64


class Threads(Backend):
    """One thread for each worker.

    Parameters
    ----------
    workers : int, optional
        Default: one for each component, 64 at most. With fewer workers than components, each holds
        several and visits them in the solver's order.
    blas_threads : int, optional
        BLAS threads for the whole process while the run lasts; default cores / workers. The limit is
        global to the process (BLAS knows no other), and is taken back by `close`.
    """

    name: ClassVar[str] = "threads"

    def __init__(
        self, workers: int | None = None, *, blas_threads: int | None = None, faults: Faults = None
    ) -> None:
        super().__init__(faults=faults)
        self._wanted = workers
        self._wanted_blas = blas_threads
        self._inboxes: list[queue.SimpleQueue[Task | None]] = []
        self._outbox: queue.SimpleQueue[list[Message]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._owner: dict[int, int] = {}
        self._limits: threadpool_limits | None = None
        self._started = time.perf_counter()

    def start(self, loaders: Sequence[Loader]) -> None:
        self.groups = deal(len(loaders), self._wanted, MOST_THREADS)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self.blas_threads = threads_for(len(self.groups), self._wanted_blas)
        self._limits = threadpool_limits(limits=self.blas_threads)
        self._started = time.perf_counter()
        for w, group in enumerate(self.groups):
            inbox: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
            mine = {i: loaders[i] for i in group}
            thread = threading.Thread(
                target=self._serve, args=(mine, inbox), name=f"grassia-{w}", daemon=True
            )
            self._inboxes.append(inbox)
            self._threads.append(thread)
            thread.start()

    def _serve(self, loaders: dict[int, Loader], inbox: queue.SimpleQueue[Task | None]) -> None:
        worker = Worker(loaders)
        everything = tuple(loaders)
        while (task := inbox.get()) is not None and not self._stopping.is_set():
            plan = self.injector.plan(task.component, task.ordinal)
            try:
                # Waiting on the event instead of sleeping lets `close` end an injected delay.
                self._outbox.put(perform(worker, task, plan, self._stopping.wait))
            except Crash:
                worker = Worker(loaders)
                self._outbox.put([Lost(everything, "injected crash"), Restored(everything)])
            except Exception as error:
                self._outbox.put([Failure(task.id, task.component, error)])

    def send(self, task: Task) -> None:
        self._inboxes[self._owner[task.component]].put(task)

    def receive(self, timeout: float | None = None) -> list[Message]:
        try:
            messages = list(self._outbox.get(timeout=timeout))
        except queue.Empty:
            return []
        while not self._outbox.empty():
            messages.extend(self._outbox.get())
        return messages

    def close(self) -> None:
        self._stopping.set()
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._threads.clear()
        self._inboxes.clear()
        if self._limits is not None:
            self._limits.restore_original_limits()
            self._limits = None

    def now(self) -> float:
        return time.perf_counter() - self._started
