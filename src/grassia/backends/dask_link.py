"""The server's end of the connections to a Dask cluster: calls to its workers, and news of who is there.

All of it runs on the event loop of the Dask client, except that `Link`'s first methods start it from another
thread. What comes of it is put into one queue.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import queue
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grassia.backends import dask_worker
from grassia.messages import Message, Task

LOOK_SECONDS = 0.5  # how often the scheduler is asked who is there
CALL_SECONDS = 5.0  # how long it may take to say so, or to connect to a worker
CLOSE_SECONDS = 2.0
MOST_CONNECTIONS = 10_000
TROUBLES = 3  # how often in a row a connection may break to a worker that the scheduler says is there

__all__ = ["Answered", "Known", "Link", "News", "Seat"]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a worker of the cluster."""

    name: str
    host: str
    threads: int
    usable: bool  # neither paused nor about to close


@dataclass(frozen=True, slots=True)
class News:
    """Who is there; None where the scheduler cannot be reached."""

    workers: dict[str, Known] | None


class Seat:
    """One opening of a place's components on one worker."""

    _numbers = itertools.count()

    def __init__(self, run: str, address: str, luggage: bytes, blas_threads: int) -> None:
        self.address, self.luggage, self.blas_threads = address, luggage, blas_threads
        self.key = dask_worker.key_of(run, next(self._numbers))
        self.opened = False
        self.busy = False
        self.over = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a task: messages, or why there are none."""

    seat: Seat
    outcome: list[Message] | str


class Gone(Exception):
    """The worker is not there any more."""


class Link:
    """The conversation of one run with a cluster.

    Parameters
    ----------
    client : distributed.Client
    run : str
        Names the run in the workers.
    mail : queue
        Takes what arrives: `Answered` and `News`.
    """

    def __init__(self, client: Any, run: str, mail: queue.SimpleQueue[Answered | News | None]) -> None:
        self._client, self._run, self._mail = client, run, mail
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._pool: Any = None
        self._workers: dict[str, Known] = {}
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._looks, self._latest = itertools.count(1), 0
        self._ways: dict[str, bool] = {}  # whether a worker is called directly
        self._direct = client.direct_to_workers is not False  # as the user says, or as it turns out
        everyone = "n_workers" in inspect.signature(client.scheduler_info).parameters
        self._everyone = {"n_workers": -1} if everyone else {}

    # -- called by the server's thread ----------------------------------------------------------

    def open(self) -> None:
        """Begin to watch the cluster."""
        self._start(self._watch)

    def ask(self, seat: Seat, task: Task) -> None:
        """Send a task to a seat."""
        seat.busy = True
        self._start(self._asked, seat, task)

    def drop(self, seat: Seat, number: int) -> None:
        """The answer to a task is not wanted any more."""
        self._start(self._told, seat.address, dask_worker.DROP, {"key": seat.key, "number": number})

    def forget(self, seat: Seat) -> None:
        """Nor anything else of this seat."""
        seat.over = True
        self._start(self._told, seat.address, dask_worker.FORGET, {"keys": [seat.key]})

    def close(self, addresses: Iterable[str]) -> None:
        """Have the run forgotten there, and end all that is under way."""
        with suppress(Exception):  # the cluster may be gone, and then there is nothing to forget
            ended = asyncio.run_coroutine_threadsafe(self._close(set(addresses)), self._loop)
            ended.result(2 * CALL_SECONDS)

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the client was closed, of which there is news
            self._loop.call_soon_threadsafe(self._begin, work, *arguments)

    # -- on the event loop ----------------------------------------------------------------------

    def _begin(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = self._loop.create_task(work(*arguments))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _watch(self) -> None:
        from distributed.core import ConnectionPool

        client = self._client
        self._pool = ConnectionPool(
            limit=MOST_CONNECTIONS,
            serializers=getattr(client, "_serializers", None),
            deserializers=getattr(client, "_deserializers", None),
            connection_args=client.connection_args,
            timeout=CALL_SECONDS,
        )
        await self._pool.start()
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> bool:
        """Ask the scheduler who is there; False: it does not answer."""
        number = next(self._looks)
        try:
            asked = self._client.scheduler.identity(**self._everyone)
            found = (await asyncio.wait_for(asked, CALL_SECONDS))["workers"]
        except Exception:  # of whatever kind: it did not answer
            self._mail.put(News(None))
            return False
        if number < self._latest:
            return True  # a later question was answered earlier
        self._latest = number
        workers = {address: _known(what) for address, what in found.items()}
        for address in self._workers.keys() - workers.keys():
            self._prepared.pop(address, None)
        self._workers = workers
        self._mail.put(News(workers))
        return True

    async def _asked(self, seat: Seat, task: Task) -> None:
        outcome: list[Message] | str
        try:
            outcome = await self._answer(seat, task)
        except Gone as error:
            outcome = str(error)
        except Exception as error:
            outcome = f"the Dask worker {seat.address} cannot be asked: {type(error).__name__}: {error}"
        self._mail.put(Answered(seat, outcome))

    async def _answer(self, seat: Seat, task: Task) -> list[Message] | str:
        for trouble in itertools.count(1):
            try:
                await self._ready(seat.address)
                if seat.over:
                    raise Gone("it was given up")
                found = await self._call(
                    seat.address,
                    dask_worker.ANSWER,
                    key=seat.key,
                    task=dask_worker.serialised(task),
                    # The data travels with the first task only; later ones find it open.
                    luggage=None if seat.opened else dask_worker.serialised(seat.luggage),
                    blas_threads=seat.blas_threads,
                )
                if found is not None and found["messages"] is not None:
                    seat.opened = True
                    messages: list[Message] = found["messages"]
                    return messages
                self._prepared.pop(seat.address, None)
                if seat.opened or trouble > TROUBLES:
                    return f"the Dask worker {seat.address} was started anew"
            except (TimeoutError, OSError) as error:
                self._prepared.pop(seat.address, None)
                await self._still_there(seat, error)
                if trouble > TROUBLES:
                    raise
        raise AssertionError

    async def _still_there(self, seat: Seat, error: Exception) -> None:
        """After a connection broke; that of a dead worker does so a moment before the scheduler knows."""
        for pause in (0.0, 0.05, 0.1, 0.2, 0.4):
            await asyncio.sleep(pause)
            if seat.over or not await self._look() or seat.address not in self._workers:
                raise Gone(f"the Dask worker {seat.address} is gone") from error

    async def _ready(self, address: str) -> None:
        """Once for each worker: it must know our calls."""
        if address not in self._prepared:
            self._prepared[address] = self._loop.create_task(self._prepare(address))
        await asyncio.shield(self._prepared[address])

    async def _prepare(self, address: str) -> None:
        ways = [self._direct, not self._direct]
        for direct in ways:
            try:
                function = pickle.dumps(dask_worker.prepare)
                self._ways[address] = direct
                found = await self._call(address, "run", function=function, wait=True)
            except OSError:
                if direct is ways[-1] or not await self._look() or address not in self._workers:
                    raise
                continue
            if found["status"] != "OK":
                raise RuntimeError(_text(found))
            self._direct = direct  # the other workers are likely to be reached in the same way
            return

    async def _call(self, address: str, operation: str, **message: Any) -> Any:
        """Call a worker: directly, or through the scheduler where it cannot be reached from here."""
        if self._ways.get(address, self._direct):
            return await getattr(self._pool(address), operation)(**message)
        return await self._client.scheduler.proxy(worker=address, msg={"op": operation, **message})

    async def _told(self, address: str, operation: str, message: dict[str, Any]) -> None:
        # If the worker is gone, or does not know of us, there is nobody to tell.
        if address in self._prepared:
            with suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._prepared[address]), CALL_SECONDS)
                await asyncio.wait_for(self._call(address, operation, **message), CALL_SECONDS)

    async def _close(self, addresses: set[str]) -> None:
        for task in set(self._under_way) - {asyncio.current_task()}:
            task.cancel()
        told = [self._told(one, dask_worker.FORGET, {"keys": [self._run]}) for one in addresses]
        if told:
            await asyncio.wait([self._loop.create_task(one) for one in told], timeout=CLOSE_SECONDS)
        if self._pool is not None:
            await asyncio.wait_for(self._pool.close(), CLOSE_SECONDS)


def _known(what: dict[str, Any]) -> Known:
    return Known(
        str(what.get("name")),
        str(what.get("host")),
        int(what.get("nthreads") or 1),
        what.get("status", "running") == "running",
    )


def _text(found: dict[str, Any]) -> str:
    """What a worker says of an error of its own."""
    return str(found.get("exception_text") or found.get("exception"))
