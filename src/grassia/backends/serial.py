"""One worker, in this thread: the laptop, and the serial incremental form of every solver."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

from grassia import _blas
from grassia.backends.base import Backend, Faults
from grassia.faults import Crash, perform
from grassia.messages import Failure, Lost, Message, Restored, Task
from grassia.worker import Loader, Worker


class _ServerOnOneThread:
    """BLAS on one thread but for the tasks, inside `with`.

    The small problems of the server gain nothing by a second thread. What is worse, the threads of BLAS go on
    waiting busily for some milliseconds after each, on the cores that the next product needs. Of
    several runs at once in a process the first has its way and the others leave BLAS alone.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _taken: ClassVar[bool] = False

    def __init__(self) -> None:
        self.threads = _blas.threads()
        with self._lock:
            self._mine = (
                [] if self._taken else [(library, library.num_threads) for library in _blas.libraries()]
            )
            type(self)._taken = True
        self.__exit__()

    def __enter__(self) -> None:
        for library, threads in self._mine:
            library.set_num_threads(threads)

    def __exit__(self, *error: object) -> None:
        for library, _ in self._mine:
            library.set_num_threads(1)

    def end(self) -> None:
        """As it was before."""
        if self._mine:
            self.__enter__()
            self._mine = []
            with self._lock:
                type(self)._taken = False


class Serial(Backend):
    """Tasks run one at a time, when they are received. All components share one worker."""

    name: ClassVar[str] = "serial"

    def __init__(self, *, faults: Faults = None) -> None:
        super().__init__(faults=faults)
        self._queue: deque[Task] = deque()
        self._loaders: list[Loader] = []
        self._worker: Worker | None = None
        self._started = time.perf_counter()
        self._blas: _ServerOnOneThread | None = None

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self._loaders = list(loaders)
        self.groups = [list(range(len(loaders)))]
        self._worker = Worker(dict(enumerate(self._loaders)))
        self._blas = _ServerOnOneThread()
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
