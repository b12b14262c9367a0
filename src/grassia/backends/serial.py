"""One worker, in this thread: the laptop, and the serial incremental form of every solver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

from grassia._blas import ServerThreads
from grassia.backends.base import Backend, Faults
from grassia.faults import Crash, perform
from grassia.messages import Failure, Lost, Message, Restored, Task
from grassia.worker import Loader, Worker


class Serial(Backend):
    """Tasks run one at a time, when they are received. All components share one worker."""

    name: ClassVar[str] = "serial"

    def __init__(self, *, faults: Faults = None) -> None:
        super().__init__(faults=faults)
        self._queue: deque[Task] = deque()
        self._loaders: list[Loader] = []
        self._worker: Worker | None = None
        self._started = time.perf_counter()
        self._blas: ServerThreads | None = None

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self._loaders = list(loaders)
        self.groups = [list(range(len(loaders)))]
        self._worker = Worker(dict(enumerate(self._loaders)))
        self._blas = ServerThreads()
        self.blas_threads = self._blas.threads
        self._started = time.perf_counter()

    def send(self, task: Task) -> None:
        if task.instead is not None:
            self._queue = deque(waiting for waiting in self._queue if waiting.id != task.instead)
        self._queue.append(task)

    def receive(self, timeout: float | None = None) -> list[Message]:
        if not self._queue or self._worker is None:
            return []
        task = self._queue.popleft()
        try:
            with self._blas or nullcontext():
                return self._perform(self._worker, task)
        except Crash:
            everything = tuple(self.groups[0])
            self._queue.clear()
            self._worker = Worker(dict(enumerate(self._loaders)))
            return [Lost(everything, "injected crash"), Restored(everything)]
        except Exception as error:
            return [Failure(task.id, task.component, error)]

    def _perform(self, worker: Worker, task: Task) -> list[Message]:
        return perform(worker, task, self.injector.plan(task.component, task.ordinal))

    def close(self) -> None:
        self._queue.clear()
        self._worker = None
        if self._blas is not None:
            self._blas.end()
            self._blas = None

    def now(self) -> float:
        return time.perf_counter() - self._started
