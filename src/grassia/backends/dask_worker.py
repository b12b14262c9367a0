"""What runs inside of a Dask worker: a desk for each place that was settled there, with a thread of its own.

Tasks come over connections to the worker itself, as calls that this file adds to the worker's own. They do
not pass through Dask's scheduler, whose graphs, batches and reports cost several milliseconds a task.
"""

from __future__ import annotations

import asyncio
import importlib
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grassia.backends.station import Station
from grassia.messages import Failure, Message, Task

ANSWER, DROP, FORGET = "grassia_answer", "grassia_drop", "grassia_forget"
REMEMBERED = 1000  # so many keys that are over are known as such

__all__ = ["ANSWER", "DROP", "FORGET", "anchor", "key_of", "prepare", "serialised"]


def key_of(run: str, number: int) -> str:
    """The name of a desk: unique, also after its place was settled somewhere else and came back."""
    return f"{run}/{number}"


def serialised(value: Any) -> Any:
    """Marked for Dask to send with the buffers of its arrays as they are."""
    return importlib.import_module("distributed.protocol").to_serialize(value)


def prepare(dask_worker: Any = None) -> bool:
    """Add the calls to a worker; it may be done twice."""
    Office.of(dask_worker)
    return True


def anchor(run: str) -> None:
    """A task of Dask's own that lasts while a run has desks here.

    It needs no thread of the worker's pool. An adaptive cluster does not close a worker with such a task, and
    knows of nothing else that is done here.
    """
    distributed: Any = importlib.import_module("distributed")
    worker = distributed.get_worker()
    over = Office.of(worker).anchored(run)
    distributed.secede()
    while not over.wait(0.5) and worker.status.name in ("running", "paused"):
        pass


class Office:
    """The desks of one Dask worker. Its methods are called on the worker's event loop."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._desks: dict[str, Desk] = {}
        self._early: dict[str, set[int]] = {}  # taken back before their desk was there
        self._over: dict[str, None] = {}
        self._anchors: dict[str, threading.Event] = {}
        # As many at once as the worker has threads: more of them would only share its cores.
        self._turns = asyncio.Semaphore(max(1, int(worker.state.nthreads)))

    @classmethod
    def of(cls, worker: Any) -> Office:
        """The one of this worker, made and made known when first asked for."""
        mine = cls(worker)
        office: Office = worker.__dict__.setdefault("_grassia", mine)
        if office is mine:
            worker.handlers.update({ANSWER: mine.answer, DROP: mine.drop, FORGET: mine.forget})
        return office

    async def answer(self, key: str, task: Task, luggage: Any, blas_threads: int) -> dict[str, Any]:
        """The answer to a task; None where the data is not open here and did not come along."""
        if key in self._over or key.partition("/")[0] in self._over:
            return {"messages": []}
        desk = self._desks.get(key)
        if desk is None:
            if luggage is None:
                return {"messages": None}
            desk = self._desks[key] = Desk(self._worker, bytes(luggage), blas_threads)
            for number in self._early.pop(key, ()):
                desk.drop(number)
        return {"messages": serialised(await desk.answer(task, self._turns))}

    async def drop(self, key: str, number: int) -> None:
        """The answer to a task is not wanted any more."""
        desk = self._desks.get(key)
        if desk is not None:
            desk.drop(number)
        elif key not in self._over and key.partition("/")[0] not in self._over:
            self._early.setdefault(key, set()).add(number)

    async def forget(self, keys: Sequence[str]) -> None:
        """Close desks: single ones, or all of a run where that is named."""
        for name in keys:
            self._over[name] = None
            for key in [key for key in self._desks if key == name or key.partition("/")[0] == name]:
                self._desks.pop(key).close()
            for key in [key for key in self._early if key == name or key.partition("/")[0] == name]:
                del self._early[key]
        while len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]
        runs = {key.partition("/")[0] for key in self._desks}
        for run in [run for run in self._anchors if run not in runs]:
            self._anchors.pop(run).set()

    def anchored(self, run: str) -> threading.Event:
        """What is set when the run has no desk here any more."""
        event = self._anchors.setdefault(run, threading.Event())
        if run in self._over:
            event.set()
        return event


class Desk:
    """One place's components, and the thread that works on them."""

    def __init__(self, worker: Any, luggage: bytes, blas_threads: int) -> None:
        self._luggage, self._blas_threads = luggage, blas_threads
        self._station: Station | None = None
        self._dropped: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._last: tuple[int, asyncio.Task[list[Message]]] | None = None
        self._work: queue.SimpleQueue[tuple[Task, asyncio.Future[list[Message]]] | None] = queue.SimpleQueue()
        # A thread that is deaf must not keep its process from ending.
        threading.Thread(target=self._serve, args=(worker,), name="grassia", daemon=True).start()

    async def answer(self, task: Task, turns: asyncio.Semaphore) -> list[Message]:
        """The answer to a task. One that is asked again, after a broken connection, is not computed again."""
        if self._last is None or self._last[0] != task.id:
            self._last = task.id, asyncio.create_task(self._in_turn(task, turns))
        return await asyncio.shield(self._last[1])

    async def _in_turn(self, task: Task, turns: asyncio.Semaphore) -> list[Message]:
        async with turns:
            if self._closed.done():
                return []
            done: asyncio.Future[list[Message]] = self._loop.create_future()
            self._work.put((task, done))
            # Who is given up while it works keeps its thread, but not its turn.
            either: set[asyncio.Future[Any]] = {done, self._closed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return await done

    def drop(self, number: int) -> None:
        self._dropped.add(number)
        if self._station is not None:
            self._station.drop(number)

    def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._work.put(None)
        if self._station is not None:
            self._station.stop()

    # -- in the thread --------------------------------------------------------------------------

    def _serve(self, worker: Any) -> None:
        _as_in_a_task(worker)
        while (work := self._work.get()) is not None:
            task, done = work
            try:
                messages = self._handle(task)
            except BaseException as error:
                messages = [Failure(task.id, task.component, RuntimeError(repr(error)))]
            with suppress(RuntimeError):  # the worker's event loop is closed
                self._loop.call_soon_threadsafe(_deliver, done, messages)
            del task, done, work, messages

    def _handle(self, task: Task) -> list[Message]:
        if self._station is None:
            self._station = Station(self._luggage, self._blas_threads)
            self._luggage = b""
            for number in tuple(self._dropped):  # what was dropped before there was a station
                self._station.drop(number)
            if self._closed.done():
                self._station.stop()
        return self._station.answer(task, task.query.arrays)


def _deliver(done: asyncio.Future[list[Message]], messages: list[Message]) -> None:
    if not done.done():
        done.set_result(messages)


def _as_in_a_task(worker: Any) -> None:
    """Loaders find `distributed.get_worker` and `get_client` here as they do within a task of Dask's."""
    module = importlib.import_module("distributed.worker")
    module.thread_state.execution_state = worker.execution_state
    current = getattr(module, "_worker_cvar", None)
    if current is not None:
        current.set(worker)
