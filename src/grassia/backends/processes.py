"""Workers that are processes of this machine, each with its components pinned to it.

They are plain child interpreters, not `multiprocessing` children: the user's main module is never
imported again, so scripts need no `if __name__ == "__main__"`. Blocks travel through shared memory,
in-memory data is placed there once, files are opened by the worker itself. A worker that dies is
started anew.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

from grassia._blas import ServerThreads
from grassia.backends.base import Backend, Faults, cores, deal, threads_for
from grassia.backends.drop import Drop, Luggage, Rest
from grassia.backends.shared import Slot, packed_size
from grassia.backends.store import SharedStore
from grassia.errors import InvalidComponent, InvalidInput
from grassia.messages import Failure, Lost, Message, Restored, Task
from grassia.worker import Loader

MOST_PROCESSES = 32
CLOSE_SECONDS = 0.5
BLAS_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Processes(Backend):
    """One process for each worker (POSIX systems).

    Inside `with Processes(...) as backend:` they are kept from run to run, which saves their start.

    Parameters
    ----------
    workers : int, optional
        Default: one for each component, 32 at most.
    blas_threads : int, optional
        BLAS threads of each worker; default cores / workers.
    max_restarts : int
        How often one worker may be started anew without an answer in between, before the run ends
        with `Status.WORKER_LOST`. A worker that does answer may be lost again and again.
    """

    name: ClassVar[str] = "processes"

    def __init__(
        self,
        workers: int | None = None,
        *,
        blas_threads: int | None = None,
        max_restarts: int = 5,
        faults: Faults = None,
    ) -> None:
        super().__init__(faults=faults)
        if os.name != "posix":
            raise InvalidInput("the processes back-end needs a POSIX system; use backend='threads' here.")
        if max_restarts < 0:
            raise InvalidInput(f"`max_restarts` must be >= 0; got {max_restarts}.")
        self.max_restarts = max_restarts
        self._wanted = workers
        self._wanted_blas = blas_threads
        self._store = SharedStore()
        self._workers: list[_Child] = []
        self._resting: list[_Child] = []  # from an earlier run, with nothing to do
        self._owner: dict[int, int] = {}
        self._mail: deque[Message] = deque()
        self._started = time.perf_counter()
        self._server: ServerThreads | None = None

    def start(self, loaders: Sequence[Loader]) -> None:
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._wanted, MOST_PROCESSES)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self.blas_threads = threads_for(len(self.groups), self._wanted_blas)
        self._started = time.perf_counter()
        for group in self.groups:
            luggage = self._pack({i: loaders[i] for i in group})
            self._workers.append(_Child(tuple(group), luggage, self.blas_threads))
        resting, self._resting = self._resting, []
        for worker in self._workers:
            worker.spawn(next((one for one in resting if one.fits(worker)), None))
            resting = [one for one in resting if one.alive]
        for one in resting:
            one.bury(patience=0.0)
        # The server is one more who wants cores, beside its workers.
        self._server = ServerThreads(max(1, cores() // (len(self.groups) + 1)))

    def _pack(self, loaders: Mapping[int, Loader]) -> bytes:
        try:
            return self._store.dumps((loaders, self.injector))
        except Exception as error:
            raise InvalidComponent(
                f"it cannot be pickled, so it cannot travel to a process ({error}); "
                "use backend='threads', or a loader that opens it in the worker",
                next((i for i, loader in loaders.items() if not self._packs(loader)), None),
            ) from error

    def _packs(self, loader: Loader) -> bool:
        try:
            self._store.dumps(loader)
        except Exception:
            return False
        return True

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in the order of `groups`."""
        return [worker.pid for worker in self._workers]

    def send(self, task: Task) -> None:
        self._workers[self._owner[task.component]].post(task)

    def receive(self, timeout: float | None = None) -> list[Message]:
        if not self._mail:
            by_connection = {worker.connection: worker for worker in self._workers if worker.alive}
            for ready in wait(list(by_connection), timeout):
                assert isinstance(ready, Connection)
                self._collect(by_connection[ready])
        messages = list(self._mail)
        self._mail.clear()
        return messages

    def _collect(self, worker: _Child) -> None:
        try:
            while worker.connection.poll():
                self._mail.extend(worker.take())
        except (EOFError, OSError, pickle.UnpicklingError):
            ended = worker.bury()
            reason, worker.given_up = worker.given_up or ended, None
            permanent = worker.restarts >= self.max_restarts
            self._mail.append(Lost(worker.components, reason, permanent))
            if not permanent:
                worker.restarts += 1
                worker.spawn()
                self._mail.append(Restored(worker.components))

    def replace(self, component: int, reason: str) -> bool:
        worker = self._workers[self._owner[component]]
        if not worker.alive:
            return False
        worker.given_up = reason
        os.kill(worker.pid, signal.SIGKILL)  # its pipe ends, and that is found like any death
        return True

    def close(self) -> None:
        # The workers have nothing to save: those that are not idle are ended where they are.
        workers = [*self._workers, *self._resting]
        for worker in workers:
            worker.dismiss()
        deadline = time.perf_counter() + CLOSE_SECONDS
        for worker in workers:
            worker.bury(patience=max(0.0, deadline - time.perf_counter()))
        self._resting.clear()
        self._end()

    def release(self) -> None:
        for worker in self._workers:
            worker.rest()
        self._resting += [worker for worker in self._workers if worker.alive]
        self._end()

    def _end(self) -> None:
        self._workers.clear()
        self._mail.clear()
        self._store.close()
        if self._server is not None:
            self._server.end()
            self._server = None

    def now(self) -> float:
        return time.perf_counter() - self._started


class _Child:
    """A worker process seen from the server: its pipe, its two slots, its queue."""

    def __init__(self, components: tuple[int, ...], luggage: bytes, blas_threads: int) -> None:
        self.components = components
        self.restarts = 0
        self.given_up: str | None = None  # why it was ended on purpose
        self.alive = False
        self._luggage = luggage
        self._blas_threads = blas_threads
        self._inbox, self._outbox = Slot(), Slot()
        self._queue: deque[Task] = deque()
        self._working = self._resting = False
        self._process: subprocess.Popen[bytes] | None = None
        self.connection: Connection[Any, Any]

    @property
    def pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    def fits(self, other: _Child) -> bool:
        """Whether this one, which rests, can be the process of another."""
        return self.alive and self._blas_threads == other._blas_threads

    def rest(self) -> None:
        """Drop what it is at, and hold nothing until there is another run."""
        if not self.alive or self._resting:
            return
        self._resting = True
        with suppress(OSError):  # if it died, that is found when it is needed
            self.connection.send(Rest())
        self._queue.clear()
        self._inbox.close()
        self._outbox.close()

    def _rested(self) -> bool:
        """Whether it has come to rest: what it had still to say is not wanted."""
        deadline = time.perf_counter() + CLOSE_SECONDS
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while self.connection.poll(max(0.0, deadline - time.perf_counter())):
                if isinstance(self.connection.recv(), Rest):
                    return True
        return False

    def _take_over(self, resting: _Child) -> bool:
        """Go on with the process of one that rests, unless it is dead or deaf."""
        if not resting._rested():
            resting.bury(patience=0.0)
            return False
        self._process, self.connection, self.alive = resting._process, resting.connection, True
        resting.alive = False
        with suppress(OSError):
            paths = [path or os.getcwd() for path in sys.path]
            self.connection.send(Luggage(paths, os.getcwd(), self._luggage))
        return True

    def spawn(self, resting: _Child | None = None) -> None:
        if resting is not None and self._take_over(resting):
            return
        ours, theirs = Pipe()
        environment = dict(os.environ)
        environment.update({name: str(self._blas_threads) for name in BLAS_VARIABLES})
        # The child must find this very package, however the parent came to import it, and with -P
        # nothing that the parent would not find: `-m` alone puts the current folder first.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        command = [sys.executable, "-P", "-m", "grassia.backends.child", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the server, which then ends its workers
        )
        theirs.close()
        self.connection = ours
        self.alive = True
        self._working = False
        self._queue.clear()
        with suppress(OSError):  # if it died at once, receiving from it will say so
            ours.send_bytes(self._luggage)

    def post(self, task: Task) -> None:
        if task.instead is not None:
            self._queue = deque(waiting for waiting in self._queue if waiting.id != task.instead)
            if self._working and self.alive:
                with suppress(OSError):  # if it died, receiving from it will say so
                    self.connection.send(Drop(task.instead))
        self._queue.append(task)
        self._dispatch()

    def _dispatch(self) -> None:
        if self._working or not self._queue or not self.alive:
            return
        task = self._queue.popleft()
        layout = self._inbox.write(task.query.arrays)
        # Room for two blocks as wide as the question; a larger answer comes by the pipe, once.
        self._outbox.ensure(2 * packed_size(task.query.arrays))
        bare = replace(task, query=replace(task.query, arrays={}))
        self._working = True
        with suppress(OSError):  # if it died, receiving from it will say so
            self.connection.send((bare, self._inbox.name, layout, self._outbox.name))

    def take(self) -> list[Message]:
        message = self.connection.recv()
        if message[0] == "reply":
            _, replies, layout, inline = message
            self._working = False
            self.restarts = 0
            arrays = inline if inline is not None else self._outbox.read(layout)
            if inline is not None:
                self._outbox.ensure(packed_size(inline))
            self._dispatch()
            return [replace(reply, arrays=arrays) for reply in replies]
        self._working = False
        self._dispatch()
        if message[0] == "dropped":
            return []
        _, failure = message
        assert isinstance(failure, Failure)
        return [failure]

    def dismiss(self) -> None:
        if self.alive:
            with suppress(OSError):
                self.connection.send(None)

    def bury(self, patience: float = 0.5) -> str:
        """Make sure the process is gone and say how it went."""
        if self._process is None:
            return "it was never started"
        if self.alive:
            self.alive = False
            self.connection.close()
        try:
            code = self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._inbox.close()
        self._outbox.close()
        if code < 0:
            return f"process {self._process.pid} was ended by {signal.Signals(-code).name}"
        return f"process {self._process.pid} exited with code {code}"
