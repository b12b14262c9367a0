"""An actor of the Ray back-end: what runs in it, and how the server sees it.

A *seat* is one actor, with what is queued for it and the one call that is under way. A *place* is the worker
of some components: the seat that holds them, and now and then a second one that computes the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from grassia.backends.ray_wire import answer_in, answer_of, cut, joined, pieces_for, size_of
from grassia.backends.setbacks import Setbacks
from grassia.backends.station import Station
from grassia.data.formats.ray import in_short, receiving
from grassia.messages import Failure, Lost, Message, Reply, Restored, Task

log = logging.getLogger("grassia")

Posted = tuple[Task, Mapping[str, Any]]  # a task, with its arrays or where they are

OVERDUE_SECONDS = 30.0  # after which an actor that was asked for should be up, if there is room


class Actor:
    """What runs in the actor; `drop` has a thread of its own, and is heard while `answer` works."""

    def __init__(self, luggage: bytes, references: Sequence[Any], blas_threads: int) -> None:
        self._lock = threading.Lock()
        self._station: Station | None = None
        self._stint = 0  # the how manieth run this is
        self._early: set[int] = set()  # dropped before their run began here
        self.begin(luggage, references, blas_threads)

    def begin(self, luggage: bytes, references: Sequence[Any], blas_threads: int) -> None:
        """Take the components of a run."""
        with receiving(references):
            station = Station(luggage, blas_threads)
        with self._lock:
            self._station, self._stint = station, self._stint + 1
            early, self._early = self._early, set()
        for number in early:
            station.drop(number)

    def rest(self) -> None:
        """The run is over: hold nothing until the next one begins."""
        self._station = None

    def ready(self) -> str:
        """The node it runs on; answered once it is made."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def answer(self, *given: Any) -> Any:
        task, stored, count = joined([piece for piece in given if isinstance(piece, bytes)])
        arrays = {**task.query.arrays, **dict(zip(stored, given[len(given) - len(stored) :], strict=True))}
        assert self._station is not None
        return answer_in(count, self._station.answer(task, arrays))

    def drop(self, number: int, stint: int) -> None:
        """A task of a run is not wanted any more; it may be heard when that run is over, or not begun yet."""
        with self._lock:
            if stint > self._stint:
                self._early.add(number)
            elif stint == self._stint and self._station is not None:
                self._station.drop(number)


@dataclass(frozen=True, slots=True)
class Hired:
    """An actor that a place is given.

    Attributes
    ----------
    actor : actor handle
    node : str, optional
        Where it runs, of one that was up before: it is sent tasks at once.
    begun : object reference, optional
        Of such a one: the call that it began with.
    stint : int
        The how manieth run of the actor this is.
    """

    actor: Any
    node: str | None = None
    begun: Any = None
    stint: int = 1


class Engine(Protocol):
    """What a place needs of the back-end."""

    ray: Any
    max_restarts: int
    #: Who waits for which call.
    waited: dict[Any, tuple[Place, Seat]]

    def hire(self, place: Place, *, on: str | None, avoid: str | None, spare: bool) -> Hired:
        """An actor: on a node or not on one, if that can be."""
        ...

    def part_with(self, actor: Any, rising: Any, asked: float) -> None:
        """End an actor; `rising` is the call that is waited for while it is not up, `asked` since when."""
        ...

    def address(self, node: str) -> str:
        """Of a node."""
        ...

    def answers(self, node: str) -> bool:
        """Whether a node can be reached."""
        ...


class Seat:
    """One actor. Tasks wait until it is up."""

    def __init__(self, place: Place, hired: Hired, told: Mapping[str, Any]) -> None:
        self._place, self._actor, self.told = place, hired.actor, dict(told)
        self.node = hired.node  # where it runs, once it is up
        self._begun, self._stint = hired.begun, hired.stint
        self.spare = False  # hired to stand in for another, perhaps with less
        self.asked = time.monotonic()
        self.queue: deque[Posted] = deque()
        self.current: Posted | None = None
        self._dropped = False
        self._call: Any = None
        self._pieces: list[Any] = []  # of the answer, beside what is waited for
        self._answered = 0  # bytes of the last answer
        if self.node is None:
            self._wait_for(self._actor.ready.remote())

    @property
    def kept(self) -> bool:
        """Whether the actor is from an earlier run."""
        return self._begun is not None

    @property
    def ran(self) -> bool:
        """Whether the actor, which is dead, has lived in this run."""
        if not self.kept:
            return self.node is not None
        try:
            self._place.engine.ray.get(self._begun, timeout=0)
        except Exception:
            return False
        return True

    @property
    def idle(self) -> bool:
        return self.node is not None and self.current is None and not self.queue

    def _wait_for(self, call: Any) -> None:
        self._call = call
        self._place.engine.waited[call] = (self._place, self)

    def post(self, task: Task, arrays: Mapping[str, Any]) -> None:
        self.queue.append((task, {**self.told, **arrays} if self.told else arrays))
        self.dispatch()

    def drop(self, number: int) -> None:
        self.queue = deque(one for one in self.queue if one[0].id != number)
        if self.current is not None and self.current[0].id == number:
            self._dropped = True
            self._actor.drop.options(concurrency_group="ears").remote(number, self._stint)

    @property
    def wanted(self) -> list[Posted]:
        """What it is out with, if that is wanted still, and what follows."""
        out = [] if self.current is None or self._dropped else [self.current]
        return [*out, *self.queue]

    def outstanding(self, number: int) -> list[Posted]:
        """The task of this number and what follows it, if it is the one the actor is out with."""
        waiting = self.wanted
        return waiting if waiting and waiting[0][0].id == number else []

    def dispatch(self) -> None:
        if self._call is None and self.queue:
            self.current, self._dropped = self.queue.popleft(), False
            self._call_for(*self.current)

    def _call_for(self, task: Task, arrays: Mapping[str, Any]) -> None:
        own = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
        stored = {name: reference for name, reference in arrays.items() if name not in own}
        # An answer is most often as large as its question, or as the last one.
        count = pieces_for(max(task.nbytes, self._answered))
        pieces = cut((replace(task, query=replace(task.query, arrays=own)), list(stored), count))
        method = self._actor.answer if count == 1 else self._actor.answer.options(num_returns=count)
        found = method.remote(*pieces, *stored.values())
        call, *self._pieces = found if count > 1 else [found]
        self._wait_for(call)

    def take(self) -> Any:
        """What the call that is done gave; raises what it raised."""
        call, self._call, self.current = self._call, None, None
        self._place.engine.waited.pop(call, None)
        found = self._place.engine.ray.get([call, *self._pieces])
        self._pieces = []
        if self.node is None:
            return found[0]
        messages = answer_of(found)
        self._answered = size_of(messages)
        return messages

    def leave(self) -> Hired:
        """The actor, for another run; it drops what it is at. The seat is empty then."""
        if self.current is not None:
            self.drop(self.current[0].id)
        actor = self._actor
        self._forget()
        actor.rest.remote()
        return Hired(actor, self.node, stint=self._stint)

    def _forget(self) -> None:
        self._place.engine.waited.pop(self._call, None)
        self._actor, self._call, self.current, self._pieces = None, None, None, []
        self.queue.clear()

    def end(self) -> None:
        actor, rising = self._actor, self._call if self.node is None else None
        self._forget()
        if actor is not None:
            self._place.engine.part_with(actor, rising, self.asked)


class Place:
    """The components of one worker, seen from the server."""

    def __init__(
        self, engine: Engine, components: tuple[int, ...], luggage: Any, references: Sequence[Any]
    ) -> None:
        self.engine, self.components = engine, components
        self.luggage, self.references = luggage, list(references)
        self.home: str | None = None  # the address of the node where it was last up
        self.target: str | None = None  # the node where its next actor was wished
        self.gone = False
        self.down = False  # lost, and not restored yet
        self._losses = 0
        self._setbacks = Setbacks()
        self._overdue = OVERDUE_SECONDS
        self._mourned = ""  # why the first seat died while the second went on
        self.first: Seat | None = Seat(self, self._hired(), {})
        self.second: Seat | None = None
        if self.first.node is not None:
            self.home = engine.address(self.first.node)

    def _hired(self, on: str | None = None, avoid: str | None = None, spare: bool = False) -> Hired:
        return self.engine.hire(self, on=on, avoid=avoid, spare=spare)

    @property
    def seats(self) -> Iterator[Seat]:
        return (seat for seat in (self.first, self.second) if seat is not None)

    @property
    def node(self) -> str | None:
        """Where its worker runs, if it is up."""
        return None if self.first is None else self.first.node

    @property
    def idle(self) -> bool:
        return self.first is not None and self.first.idle and self.second is None

    def post(self, task: Task, arrays: Mapping[str, Any]) -> None:
        for seat in self.seats:
            if task.instead is not None:
                seat.drop(task.instead)
            seat.post(task, arrays)

    # -- what arrives ---------------------------------------------------------------------------

    def take(self, seat: Seat) -> list[Message]:
        """What came of the call that a seat is done with; the next one is made."""
        rising, asked = seat.node is None, seat.wanted
        try:
            found = seat.take()
        except self.engine.ray.exceptions.RayError as error:
            return self._fallen(seat, error, asked)
        if rising:
            return self._risen(seat, found)
        messages: list[Message] = found
        if seat is self.second and messages:
            messages = self._from_copy(seat, messages)
        elif messages:
            self._losses = 0
            self._end_second()
        seat.dispatch()
        return messages

    def _risen(self, seat: Seat, node: str) -> list[Message]:
        seat.node = node
        seat.dispatch()
        self._overdue = OVERDUE_SECONDS
        if seat is not self.first:
            return []
        self.home = self.engine.address(node)
        restored, self.down = self.down, False
        return [Restored(self.components)] if restored else []

    def _from_copy(self, seat: Seat, messages: list[Message]) -> list[Message]:
        failed = any(isinstance(message, Failure) for message in messages)
        if failed and self.first is not None:
            self._end_second()  # it may not find the data where it is; the worker does
            if not self._setbacks.failed(messages):
                return []
            for message in messages:
                if isinstance(message, Failure):
                    self.first.drop(message.task)
            return messages
        self._promote(seat)
        if failed:
            # That the caches are empty cannot be said with a failure; asked again it will fail again.
            self._losses += 1
            seat.queue.clear()
            return [Lost(self.components, self._mourned), Restored(self.components)]
        self._losses = 0
        return [replace(one, moved=True) if isinstance(one, Reply) else one for one in messages]

    def _promote(self, seat: Seat) -> None:
        if self.first is not None:
            self.first.end()
        self.first, self.second = seat, None
        seat.told = {}
        assert seat.node is not None
        self.home = self.engine.address(seat.node)

    def _end_second(self) -> None:
        if self.second is not None:
            self.second.end()
            self.second = None

    # -- losses ---------------------------------------------------------------------------------

    def _fallen(self, seat: Seat, error: Exception, asked: Sequence[Posted]) -> list[Message]:
        reason = f"the actor died: {in_short(error)}"
        # A node that is gone is among those that Ray counts on until it has missed some heartbeats.
        unreachable = isinstance(error, self.engine.ray.exceptions.ActorUnavailableError)
        suspect = seat.node is not None and (
            unreachable or "node" in reason or not self.engine.answers(seat.node)
        )
        avoid = seat.node if suspect else None
        ran = seat.ran
        seat.end()
        if seat is self.second:
            self.second = None
            if self.first is None:
                return self.lose(self._mourned, avoid=avoid)
            of_it = ran and bool(asked) and self._setbacks.died(asked[0][0].id)
            return self.lose(reason, avoid=avoid) if of_it else []
        if self.second is not None:
            self.first, self._mourned = None, reason
            log.info("%s; its copy goes on", reason)
            return []
        if ran:
            return self.lose(reason, avoid=avoid)
        # It never ran: nothing is lost but time, and what waits for it waits for the next one.
        if seat.kept:
            self.home = None  # where it was in another run does not matter
        self._losses += 1
        if self._losses > self.engine.max_restarts:
            return [self._given_up(reason)]
        self.first = Seat(self, self._hired(avoid=avoid or self.target), {})
        self.first.queue = deque(asked)
        return []

    def lose(self, reason: str, *, avoid: str | None = None, on: str | None = None) -> list[Message]:
        """The worker is gone or given up; another is started, and says so when it is up."""
        for seat in self.seats:
            seat.end()
        self.second = None
        self._losses += on is None  # to be moved is no fault of its own
        if self._losses > self.engine.max_restarts:
            return [self._given_up(reason)]
        self.first, self.down = Seat(self, self._hired(on, avoid), {}), True
        return [Lost(self.components, reason)]

    @property
    def overdue(self) -> bool:
        """Whether its worker should have come up long ago."""
        return self.first is not None and not self.first.node and self._waited > self._overdue

    @property
    def _waited(self) -> float:
        return 0.0 if self.first is None else time.monotonic() - self.first.asked

    def ask_again(self) -> None:
        """Another actor in place of one that does not come up; what waits for it goes on waiting.

        Ray can go on asking a node that hangs, or lose sight of an actor that it was to start as a node died.
        """
        assert self.first is not None
        log.warning(
            "an actor for components %s is not up after %.0f s: another is asked for",
            self.components,
            self._waited,
        )
        waiting = self.first.queue.copy()
        self.first.end()
        self._overdue *= 2.0  # it may be that all are slow to start
        self.first = Seat(self, self._hired(avoid=self.target), {})
        self.first.queue = waiting

    def _given_up(self, reason: str) -> Lost:
        self.first, self.gone = None, True
        return Lost(self.components, reason, permanent=True)

    def hasten(self, number: int, arrays: Mapping[str, Any]) -> bool:
        """Give what the worker is out with to a copy of it as well."""
        if self.second is not None:
            return bool(self.second.outstanding(number))
        outstanding = [] if self.first is None or self.down else self.first.outstanding(number)
        if not outstanding:
            return False
        self.second = Seat(self, self._hired(avoid=self.node, spare=True), arrays)
        self.second.spare = True
        for task, own in outstanding:
            self.second.post(task, own)
        return True

    def end(self, keep: bool = False) -> list[Hired]:
        """All is over; the actors that another run may use, where they are to be kept."""
        up = self.first is not None and self.first.node is not None and not self.first.spare
        kept = [self.first.leave()] if keep and up and self.first is not None else []
        self.gone = True
        for seat in self.seats:
            seat.end()
        self.first = self.second = None
        return kept
