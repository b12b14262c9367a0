"""Workers that are Ray actors, on a cluster that runs already or on one made for the run.

An actor holds the components of one worker. A large block that goes to many of them is put into the object
store once. For an actor that dies, with its node or by itself, another is started, which opens the data anew;
when a node joins, some move there.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from grassia._blas import ServerThreads
from grassia._checks import require_count, require_positive
from grassia._optional import require
from grassia.backends.base import Backend, Faults, deal, threads_for
from grassia.backends.ray_actor import Actor, Hired, Place, Seat
from grassia.backends.ray_cluster import Request, census, described, moves, room
from grassia.backends.ray_wire import INLINE, PIECE
from grassia.backends.station import pack
from grassia.data.formats.ray import sending
from grassia.errors import InvalidInput
from grassia.messages import Array, Message, Task
from grassia.worker import Loader

log = logging.getLogger("grassia")

MOST_ACTORS = 1024
KEPT = 8  # blocks that may be sent again
MANY = 8  # so many calls with a block in them cost the server more than to put it into the store
LOOK_SECONDS = 2.0  # how often the list of nodes is read
LOCATE_MILLISECONDS = 2000
PROBE_SECONDS = 1.0
RISING_SECONDS = 4.0  # in which an actor that has room is up


class Ray(Backend):
    """One actor for each worker (extra `ray`).

    A cluster that the program has connected to (`ray.init`) is used and left running. Without one, a local
    one is started and stopped with the run. Inside `with Ray(...) as backend:` the actors, and that cluster,
    are kept from run to run; they hold their resources until the block ends.

    Parameters
    ----------
    workers : int, optional
        Default: one for each component.
    num_cpus, num_gpus : float, optional
        Resources of each actor. Default: one CPU, or an equal share of those there are if they are too few.
    resources : dict, optional
        Custom resources of each actor, as in `ray.remote`.
    scheduling_strategy : optional
        Placement, as in `ray.remote`: "SPREAD", a placement group's strategy, ...
    blas_threads : int, optional
        BLAS threads of each actor; default: what `num_cpus` says, at least one.
    max_restarts : int
        How often an actor may die without an answer in between before the run ends.
    patience : float
        Seconds that actors may wait for room on the cluster before the first answer. The error then says what
        was asked for, and what there is. Raise it where nodes are started on demand.
    """

    name: ClassVar[str] = "ray"
    remote: ClassVar[bool] = True

    def __init__(
        self,
        workers: int | None = None,
        *,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        resources: Mapping[str, float] | None = None,
        scheduling_strategy: Any = None,
        blas_threads: int | None = None,
        max_restarts: int = 5,
        patience: float = 60.0,
        faults: Faults = None,
    ) -> None:
        super().__init__(faults=faults)
        require_count(max_restarts, "`max_restarts`", least=0)
        require_positive(patience, "`patience` (in seconds)")
        for value, name in ((workers, "`workers`"), (blas_threads, "`blas_threads`")):
            if value is not None:
                require_count(value, name)
        self.max_restarts, self.patience = max_restarts, float(patience)
        self._request = Request(num_cpus, num_gpus, resources, scheduling_strategy)
        self.ray: Any = require("ray", "ray")
        self._workers, self._wanted_blas = workers, blas_threads
        self._own = False
        self._kind: Any = None
        self._resting: list[Hired] = []  # actors that wait for another run ...
        self._rested: Any = None  # ... with such resources
        self._wanted: dict[str, float] = {}
        self._places: list[Place] = []
        self._owner: dict[int, Place] = {}
        self.waited: dict[Any, tuple[Place, Seat]] = {}
        self._mail: deque[Message] = deque()
        self._sent: deque[_Block] = deque(maxlen=KEPT)
        self._puts = 0
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._newcomers: list[str] = []
        self._moves: deque[tuple[str, str]] = deque()
        self._probed: dict[str, tuple[float, bool]] = {}
        self._looked = self._progress = 0.0
        self._unborn: list[Place] = []
        self._leaving: list[tuple[float, Any, Any]] = []  # not up yet: (asked for, call, actor)
        self._server: ServerThreads | None = None
        self._started = time.perf_counter()

    # -- the four methods -----------------------------------------------------------------------

    def start(self, loaders: Sequence[Loader]) -> None:
        ray = self.ray
        self.injector.check(len(loaders))
        self.groups = deal(len(loaders), self._workers, MOST_ACTORS)
        luggage = []
        for group in self.groups:
            with sending() as references:
                luggage.append((pack({i: loaders[i] for i in group}, self.injector), references))
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            self._own = True
        self._started, self._puts = time.perf_counter(), 0
        try:
            self._settle(luggage)
        except BaseException:
            self.close()
            raise
        self._server = ServerThreads(1)

    def _settle(self, luggage: Sequence[tuple[bytes, Sequence[Any]]]) -> None:
        here = self.ray.get_runtime_context().get_node_id()
        if here not in self._nodes:  # of no cluster, or of one that was left
            self._nodes = {}
        if not self._nodes or time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
        there = sum(float(node["Resources"].get("CPU", 0.0)) for node in self._nodes.values())
        share = min(1.0, max(there, 1.0) / len(self.groups))
        self._wanted = self._request.wanted(share)
        share = self._wanted.get("CPU", 0.0)
        self.blas_threads = threads_for(len(self.groups), self._wanted_blas, each=share)
        asked = (self._wanted, here)
        if self._rested != asked:  # other actors, or those of a cluster that was left
            self._dismiss()
            self._kind = self._actor_class(share)
        self._rested = asked
        hopeless = self._request.free and not self._feasible()
        if hopeless and _fixed(self.ray):
            raise InvalidInput(self._no_room("no node could hold one"))
        self._progress = time.monotonic()
        for group, (packed, references) in zip(self.groups, luggage, strict=True):
            small = packed if len(packed) <= PIECE else self.ray.put(packed)
            place = Place(self, tuple(group), small, references)
            self._places.append(place)
            self._owner.update(dict.fromkeys(group, place))
        self._dismiss()  # those that there is no use for
        self._unborn = list(self._places)
        if hopeless:
            self._wait_for_a_node()

    def _actor_class(self, share: float) -> Any:
        options = {"num_gpus": self._request.num_gpus, "scheduling_strategy": self._request.strategy}
        return self.ray.remote(
            num_cpus=share,
            max_restarts=0,  # a call to one that Ray is restarting fails; a new one takes it at once
            max_task_retries=0,
            concurrency_groups={"ears": 1},
            **{name: value for name, value in options.items() if value is not None},
        )(Actor)

    def _wait_for_a_node(self) -> None:
        """The actors that wait are what makes an autoscaler start one."""
        log.warning("%s; waiting for one to join", self._no_room("no node could hold one"))
        deadline = time.monotonic() + self.patience
        while not self._feasible():
            if time.monotonic() > deadline:
                raise InvalidInput(self._no_room(f"no node that could hold one came in {self.patience:g} s"))
            time.sleep(min(0.2, self.patience / 4.0))
            self._look()

    def send(self, task: Task) -> None:
        place = self._owner[task.component]
        place.post(task, {name: self._once(array) for name, array in task.query.arrays.items()})

    def _once(self, array: Array) -> Any:
        """The array, or where it is in the object store: one copy for all who are sent the same."""
        if array.nbytes <= PIECE:
            return array
        block = next((known for known in self._sent if known.array is array), None)
        if block is None:
            block = _Block(array)
            self._sent.append(block)
        block.sent += 1
        if block.reference is None and (array.nbytes > INLINE or block.sent > MANY):
            block.reference = self.ray.put(array)
            self._puts += 1
        return array if block.reference is None else block.reference

    def receive(self, timeout: float | None = None) -> list[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._tend()
            left = LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            self._mail.extend(self._arrived(0.0 if self._mail else min(left, LOOK_SECONDS)))
            if self._moves:
                self._mail.extend(self._moved())
            if self._mail or left == 0.0:
                messages = list(self._mail)
                self._mail.clear()
                return messages

    def _arrived(self, wait: float) -> list[Message]:
        calls = list(self.waited)
        if not calls:
            time.sleep(min(wait, 0.5))
            return []
        ready, rest = self.ray.wait(calls, num_returns=1, timeout=wait)
        if ready and rest:
            more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0)
            ready += more
        messages: list[Message] = []
        for call in ready:
            # What came before it may have ended this one.
            place, seat = self.waited.get(call, (None, None))
            if place is not None and seat is not None:
                messages += place.take(seat)
        return messages

    def hasten(self, task: int, component: int, arrays: Mapping[str, Array]) -> bool:
        if self.stays:
            return False
        return self._owner[component].hasten(task, {name: self._once(one) for name, one in arrays.items()})

    def replace(self, component: int, reason: str) -> bool:
        place = self._owner[component]
        if place.gone:
            return False
        self._mail.extend(place.lose(reason, avoid=place.node))
        return True

    def close(self) -> None:
        self._end(keep=False)
        self._dismiss()
        if self._own:
            self.ray.shutdown()
            self._own = False

    def release(self) -> None:
        self._end(keep=self.ray.is_initialized())

    def _dismiss(self) -> None:
        """End the actors that wait for another run."""
        for resting in self._resting:
            self._kill(resting.actor)
        self._resting.clear()

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(actor)

    def part_with(self, actor: Any, rising: Any, asked: float) -> None:
        # One that is killed at the moment it is made may not hear of it, and keeps its CPU as long as this
        # program is there, though Ray itself takes it for dead. So it is killed when it is up.
        if rising is None:
            self._kill(actor)
        else:
            self._leaving.append((asked, rising, actor))

    def _see_off(self, wait: bool = False) -> None:
        """End those that are up by now, or have had long enough to be; with `wait`, all of them."""
        if not self._leaving:
            return
        up: list[Any] = []
        latest = max(asked for asked, _, _ in self._leaving)
        left = max(0.0, latest + RISING_SECONDS - time.monotonic()) if wait else 0.0
        with suppress(Exception):  # the cluster is gone
            calls = [call for _, call, _ in self._leaving]
            up, _ = self.ray.wait(calls, num_returns=len(calls), timeout=left)
        now, staying = time.monotonic(), []
        for asked, call, actor in self._leaving:
            if wait or call in up or now - asked > RISING_SECONDS:
                self._kill(actor)
            else:
                staying.append((asked, call, actor))
        self._leaving = staying

    def _end(self, keep: bool) -> None:
        for place in self._places:
            self._resting += place.end(keep)
        self._see_off(wait=True)
        for kept in (self._places, self._owner, self.waited, self._mail, self._sent, self._moves):
            kept.clear()
        self._unborn, self._newcomers, self._probed = [], [], {}
        if not keep:
            self._nodes = {}
        if self._server is not None:
            self._server.end()
            self._server = None

    def now(self) -> float:
        return time.perf_counter() - self._started

    @property
    def wanted_workers(self) -> int | None:
        return self._workers

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "blocks_put": self._puts}

    # -- where actors go ------------------------------------------------------------------------

    def hire(self, place: Place, *, on: str | None, avoid: str | None, spare: bool) -> Hired:
        options: dict[str, Any] = {}
        resources = dict(self._request.resources or {})
        anywhere = not spare
        if self.stays and place.home is not None and not self._request.grouped:
            resources[f"node:{place.home}"] = 0.001  # every node has one of its own
            options["scheduling_strategy"] = "DEFAULT"
            anywhere = False
        elif self._request.free:
            place.target = node = on or self._other_than(avoid) or self._beside(place)
            if node is not None:
                options["scheduling_strategy"] = self._preferring(node)
                anywhere = False
        if resources:
            options["resources"] = resources
        if spare and self.ray.available_resources().get("CPU", 0.0) < self._wanted.get("CPU", 0.0):
            options["num_cpus"] = 0  # the one it is to stand in for makes little use of its own
        given = place.luggage, place.references, self.blas_threads
        if self._resting and anywhere:
            found = self._resting.pop()
            return replace(found, begun=found.actor.begin.remote(*given), stint=found.stint + 1)
        return Hired(self._kind.options(**options).remote(*given))

    def _preferring(self, node: str) -> Any:
        strategies = require("ray.util.scheduling_strategies", "ray")
        # Without the last it would wait for room there though there is some elsewhere.
        return strategies.NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)

    def _other_than(self, avoid: str | None) -> str | None:
        """The node, other than that one and those out of reach, with the fewest actors for its size."""
        if avoid is None:
            return None
        self._look()
        held = Counter(place.node for place in self._places)
        fitting = {
            node: room(facts, self._wanted) / (1 + held[node])
            for node, facts in self._nodes.items()
            if node != avoid and room(facts, self._wanted) >= 1
        }
        best = sorted(fitting, key=lambda node: fitting[node], reverse=True)
        return next((node for node in best if self.answers(node)), None)

    def _beside(self, place: Place) -> str | None:
        """The node that holds most of what the place refers to."""
        held: Counter[str] = Counter()
        if place.references:
            locations = self.ray.experimental.get_object_locations(place.references, LOCATE_MILLISECONDS)
            for found in locations.values():
                held.update({node: int(found.get("object_size") or 1) for node in found.get("node_ids", ())})
        alive = [node for node, _ in held.most_common() if node in self._nodes]
        return alive[0] if alive else None

    def address(self, node: str) -> str:
        if node not in self._nodes:
            self._look()
        return str(self._nodes.get(node, {}).get("NodeManagerAddress", "")) or node

    def answers(self, node: str) -> bool:
        """Whether the node's manager can be reached: Ray itself takes a while to notice that it cannot."""
        facts = self._nodes.get(node)
        if facts is None:
            return False
        now = time.monotonic()
        when, found = self._probed.get(node, (-math.inf, True))
        if now - when > LOOK_SECONDS:
            found = _reachable(facts["NodeManagerAddress"], int(facts["NodeManagerPort"]))
            self._probed[node] = (now, found)
        return found

    # -- what the cluster does ------------------------------------------------------------------

    def _look(self) -> None:
        """Read the list of nodes."""
        self._looked = time.monotonic()
        before, first = self._nodes, not self._nodes
        self._nodes = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        joined = [node for node in self._nodes if node not in before]
        if joined and not first:
            self._progress = self._looked
            log.info("%d nodes joined the Ray cluster", len(joined))
            self._newcomers += joined

    def _tend(self) -> None:
        """What is done now and then, off the path of the messages."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._look()
            self._plan()
            self._urge()
            self._see_off()
        if self._unborn:
            up = [place for place in self._unborn if place.home is not None or place.gone]
            if up:
                self._unborn = [place for place in self._unborn if place not in up]
                self._progress = now
            elif now - self._progress > self.patience:
                raise InvalidInput(
                    self._no_room(f"{len(self._unborn)} of them were not started in {self.patience:g} s")
                )

    def _urge(self) -> None:
        """Ask again for workers that do not come up though there is room."""
        overdue = [
            place for place in self._places if place.overdue and not (self.stays and place.home is not None)
        ]
        if overdue:
            places = room({"Resources": self._unused()}, self._wanted)
            for place in overdue[: int(min(places, len(overdue)))]:
                place.ask_again()

    def _plan(self) -> None:
        """Which workers should go to nodes that have joined."""
        if not self._newcomers or any(place.node is None for place in self._places if not place.gone):
            return
        newcomers, self._newcomers = self._newcomers, []
        if self.stays or not self._request.free:
            return
        for node in newcomers:
            if node in self._nodes:
                held = Counter(place.node for place in self._places if place.node is not None)
                held.subtract(source for source, _ in self._moves)
                held.update(target for _, target in self._moves)
                self._moves.extend(
                    (source, node) for source in moves(held, node, room(self._nodes[node], self._wanted))
                )

    def _moved(self) -> list[Message]:
        """One worker at a time goes to a node that has joined, when it has nothing to do."""
        if any(place.node is None for place in self._places if not place.gone):
            return []
        source, target = self._moves[0]
        idle = next((place for place in self._places if place.idle and place.node == source), None)
        if target not in self._nodes or not any(place.node == source for place in self._places):
            self._moves.popleft()
        elif idle is not None:
            self._moves.popleft()
            return idle.lose(f"it moves to the node {self.address(target)}, which has joined", on=target)
        return []

    def _feasible(self) -> bool:
        return any(room(node, self._wanted) >= 1 for node in self._nodes.values())

    def _unused(self) -> dict[str, float]:
        """What nobody holds of what matters, on all nodes together."""
        free = self.ray.available_resources()
        return {name: float(free.get(name, 0.0)) for name in ("CPU", *self._wanted)}

    def _no_room(self, what: str) -> str:
        return (
            f"the Ray cluster must have room for {len(self.groups)} actors with {described(self._wanted)} "
            f"each; {what}; it has {census(list(self._nodes.values()), self._wanted)}, of which "
            f"{described(self._unused())} is free. Ask for less "
            "(`num_cpus`, `num_gpus`, `resources`, `workers`), free or add nodes, or raise `patience`."
        )


@dataclass(slots=True, eq=False)
class _Block:
    """An array that was sent, how often, and where it is in the object store, if it is."""

    array: Array
    sent: int = 0
    reference: Any = None


def _reachable(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=PROBE_SECONDS):
            return True
    except OSError:
        return False


def _fixed(ray: Any) -> bool:
    """Whether this program has started the cluster itself, which then has no autoscaler."""
    with suppress(AttributeError):  # it is nowhere said in public
        return bool(ray._private.worker._global_node.head)
    return False
