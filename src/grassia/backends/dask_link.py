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
from collections.abc import Callable, Container, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from grassia.backends import dask_worker
from grassia.messages import Message, Task

LOOK_SECONDS = 0.5  # how often the scheduler is asked who is there
CALL_SECONDS = 5.0  # how long it may take to say so, or to connect to a worker
CLOSE_SECONDS = 2.0
MOST_CONNECTIONS = 10_000
TROUBLES = 3  # how often in a row a connection may break to a worker that the scheduler says is there

__all__ = ["Answered", "Known", "Lines", "Link", "News", "Seat"]


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


class Lines:
    """Connections to the workers of a cluster, which one run after the other may use.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._pool: Any = None
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._ways: dict[str, bool] = {}  # whether a worker is called directly
        self._direct = client.direct_to_workers is not False  # as the user says, or as it turns out

    async def open(self) -> None:
        """Before the first call."""
        if self._pool is not None:
            return
        from distributed.core import ConnectionPool

        client = self.client
        self._pool = ConnectionPool(
            limit=MOST_CONNECTIONS,
            serializers=getattr(client, "_serializers", None),
            deserializers=getattr(client, "_deserializers", None),
            connection_args=client.connection_args,
            timeout=CALL_SECONDS,
        )
        await self._pool.start()

    async def ready(self, address: str) -> None:
        """Once for each worker: it must know our calls."""
        if address not in self._prepared:
            self._prepared[address] = self.loop.create_task(self._prepare(address))
        await asyncio.shield(self._prepared[address])

    def doubt(self, address: str) -> None:
        """It may have been started anew, and know them no longer."""
        self._prepared.pop(address, None)

    def doubt_all_but(self, addresses: Container[str]) -> None:
        """Those that are not there any more."""
        for address in [one for one in self._prepared if one not in addresses]:
            self.doubt(address)

    async def _prepare(self, address: str) -> None:
        function = pickle.dumps(dask_worker.prepare)
        ways = [self._direct, not self._direct]
        for direct in ways:
            self._ways[address] = direct
            try:
                found = await self.call(address, "run", function=function, wait=True)
            except OSError:
                if direct is ways[-1] or not await self._registered(address):
                    raise
                continue
            if found["status"] != "OK":
                raise RuntimeError(_text(found))
            self._direct = direct  # the other workers are likely to be reached in the same way
            return

    async def _registered(self, address: str) -> bool:
        try:
            return address in await asyncio.wait_for(registered(self.client), CALL_SECONDS)
        except Exception:  # of whatever kind: the scheduler did not answer
            return False

    async def call(self, address: str, operation: str, **message: Any) -> Any:
        """Call a worker: directly, or through the scheduler where it cannot be reached from here."""
        if self._ways.get(address, self._direct):
            return await getattr(self._pool(address), operation)(**message)
        return await self.client.scheduler.proxy(worker=address, msg={"op": operation, **message})

    async def told(self, address: str, operation: str, **message: Any) -> None:
        """Call a worker that may be gone, or not know of us: then there is nobody to tell."""
        if address in self._prepared:
            with suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._prepared[address]), CALL_SECONDS)
                await asyncio.wait_for(self.call(address, operation, **message), CALL_SECONDS)

    def doubt_failures(self) -> None:
        """What could not be prepared may be another time."""
        for address, task in list(self._prepared.items()):
            if task.done() and (task.cancelled() or task.exception() is not None):
                self.doubt(address)

    async def close(self) -> None:
        """After the last call."""
        if self._pool is not None:
            await asyncio.wait_for(self._pool.close(), CLOSE_SECONDS)

    def hang_up(self) -> None:
        """The same, called by the server's thread."""
        with suppress(Exception):  # the client may be gone, and its loop
            asyncio.run_coroutine_threadsafe(self.close(), self.loop).result(2 * CLOSE_SECONDS)


class Link:
    """The conversation of one run with a cluster.

    Parameters
    ----------
    lines : Lines
        To its workers.
    run : str
        Names the run in the workers.
    mail : queue
        Takes what arrives: `Answered` and `News`.
    """

    def __init__(self, lines: Lines, run: str, mail: queue.SimpleQueue[Answered | News | None]) -> None:
        self.lines, self._run, self._mail = lines, run, mail
        self._loop = lines.loop
        self._workers: dict[str, Known] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._looks, self._latest = itertools.count(1), 0

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
        self._start(partial(self.lines.told, seat.address, dask_worker.DROP, key=seat.key, number=number))

    def forget(self, seat: Seat) -> None:
        """Nor anything else of this seat."""
        seat.over = True
        self._start(partial(self.lines.told, seat.address, dask_worker.FORGET, keys=[seat.key]))

    def close(self, addresses: Iterable[str], keep: bool = False) -> None:
        """Have the run forgotten there, and end all that is under way; `keep` the lines for another run."""
        with suppress(Exception):  # the cluster may be gone, and then there is nothing to forget
            ended = asyncio.run_coroutine_threadsafe(self._close(set(addresses), keep), self._loop)
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
        await self.lines.open()
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> bool:
        """Ask the scheduler who is there; False: it does not answer."""
        number = next(self._looks)
        try:
            found = await asyncio.wait_for(registered(self.lines.client), CALL_SECONDS)
        except Exception:  # of whatever kind: it did not answer
            self._mail.put(News(None))
            return False
        if number < self._latest:
            return True  # a later question was answered earlier
        self._latest = number
        workers = {address: _known(what) for address, what in found.items()}
        self.lines.doubt_all_but(workers)
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
                await self.lines.ready(seat.address)
                if seat.over:
                    raise Gone("it was given up")
                found = await self.lines.call(
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
                self.lines.doubt(seat.address)
                if seat.opened or trouble > TROUBLES:
                    return f"the Dask worker {seat.address} was started anew"
            except (TimeoutError, OSError) as error:
                self.lines.doubt(seat.address)
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

    async def _close(self, addresses: set[str], keep: bool) -> None:
        for task in set(self._under_way) - {asyncio.current_task()}:
            task.cancel()
        told = [self.lines.told(one, dask_worker.FORGET, keys=[self._run]) for one in addresses]
        if told:
            await asyncio.wait([self._loop.create_task(one) for one in told], timeout=CLOSE_SECONDS)
        if keep:
            self.lines.doubt_failures()
        else:
            await self.lines.close()


async def registered(client: Any) -> dict[str, Any]:
    """What the scheduler says of its workers; some versions speak of five only unless asked for all."""
    everyone = "n_workers" in inspect.signature(client.scheduler_info).parameters
    found = await client.scheduler.identity(**({"n_workers": -1} if everyone else {}))
    workers: dict[str, Any] = found["workers"]
    return workers


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
