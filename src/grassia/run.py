"""The only loop of the package."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from grassia.backends.base import Backend
from grassia.certificate import Certificate
from grassia.checkpoint import Keeper
from grassia.interruption import Interrupts
from grassia.messages import Array, Lost
from grassia.record import Recorder
from grassia.result import History, Result, Status
from grassia.server import CERTIFYING, SOLVING, Server

log = logging.getLogger("grassia")


class Whereabouts(NamedTuple):
    """What a worker is at: its components, "busy", "idle" or "lost"; where it is busy, since when, and how
    many times the iterate has moved since it was asked."""

    components: list[int]
    state: str
    since: float
    staleness: int


class Progress:
    """What a callback sees after each turn of the loop. Cheap: everything is looked up when asked for.

    A callback that returns True ends the run with `Status.INTERRUPTED`.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def time(self) -> float:
        """Seconds since the start, by the back-end's clock."""
        return self._server.now

    @property
    def phase(self) -> str:
        """ "opening", "preparing", "solving" or "certifying"."""
        return self._server.phase

    @property
    def version(self) -> int:
        """Updates of the iterate so far."""
        return self._server.updates

    @property
    def vectors(self) -> Array | None:
        """The iterate, orthonormal (d, k); not to be changed. None before the start."""
        server = self._server
        return None if server.state is None else server.solver.subspace(server.state)

    @property
    def residual(self) -> float:
        """The solver's own, stale estimate of the residual norm; NaN before the start."""
        server = self._server
        value = None if server.state is None else server.solver.residual(server.state)
        return math.nan if value is None else value

    @property
    def report(self) -> Mapping[str, Any]:
        """What the method has to tell beside that, as in `result.stats`."""
        server = self._server
        return {} if server.state is None else server.solver.report(server.state)

    @property
    def state(self) -> Any:
        """The state of the solver, whose own type it is; only to be read. None before the start."""
        return self._server.state

    @property
    def target(self) -> float:
        """The estimate at which the iterate will be proposed for certification."""
        return self._server.target

    @property
    def passes(self) -> float:
        """Answers so far, over the number of components."""
        return self._server.passes

    @property
    def answers(self) -> Sequence[int]:
        """Answers of each component."""
        return [int(count) for count in self._server.answers]

    @property
    def busy_seconds(self) -> Sequence[float]:
        """Seconds each component's tasks took in all."""
        return [float(seconds) for seconds in self._server.busy_seconds]

    @property
    def events(self) -> int:
        """Events so far (losses, rejected replies, refused certificates)."""
        return len(self._server.history.events)

    @property
    def certificate(self) -> Certificate | None:
        """The best certificate so far."""
        return self._server.certificate

    @property
    def status(self) -> Status | None:
        """None while the run goes on."""
        return self._server.status

    @property
    def workers(self) -> list[Whereabouts]:
        """Where each worker is now; takes a microsecond or so for each."""
        server = self._server
        schedule, since = server._schedule, server._attendance.since
        version = 0 if server.state is None else server.solver.version(server.state)
        out = dict(schedule.under_way())
        found = []
        for worker, components in enumerate(schedule.groups):
            task = out.get(worker)
            if task is not None:
                stale = max(0, version - task.version)
                found.append(Whereabouts(components, "busy", since(task.component), stale))
            else:
                state = "lost" if worker in schedule.down or not components else "idle"
                found.append(Whereabouts(components, state, math.nan, 0))
        return found

    @property
    def history(self) -> History:
        """The record so far, with its events; not to be changed."""
        return self._server.history

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent to the workers, and received from them."""
        return self._server.sent_bytes, self._server.received_bytes

    @property
    def asked(self) -> Mapping[str, Any]:
        """What was asked: `k`, `tol`, the name of the solver, the number of components."""
        server = self._server
        return {
            "k": server.k,
            "tol": server.tol,
            "solver": server.solver.name,
            "components": server.components,
        }


Callback = Callable[[Progress], Any]


@dataclass(frozen=True, slots=True)
class Clock:
    """How long a run may take: `limit` seconds, and some more for a last certificate."""

    limit: float | None = None

    @property
    def grace(self) -> float:
        return 0.0 if self.limit is None else max(1.0, 0.25 * self.limit)


def run(
    server: Server,
    backend: Backend,
    *,
    callbacks: Iterable[Callback] = (),
    time_limit: float | None = None,
    recorder: Recorder | None = None,
    keeper: Keeper | None = None,
) -> Result:
    """Move messages until the server has a status. The back-end must be started, and is closed here."""
    hooks = list(callbacks)
    progress = Progress(server)
    clock = Clock(time_limit)
    if hasattr(backend, "renew"):
        backend.renew = server.renew if recorder is None else recorder.renewals(server.renew)
    given_up: list[Lost] = []
    interrupts = Interrupts()  # an interrupt must not leave the server in the middle of a step
    try:
        with backend, interrupts:
            with interrupts.held():
                for task in server.due():
                    backend.send(task)
            while server.status is None:
                messages = [*backend.receive(_patience(server, backend)), *given_up]
                with interrupts.held():
                    now = backend.now()
                    happened = server.tell(messages, now)
                    if recorder is not None and happened:
                        recorder.batch(now, messages, server)
                    _mind_the_clock(server, clock, now, recorder)
                if sum(hook(progress) is True for hook in hooks):  # every hook is called
                    _stop(server, Status.INTERRUPTED, recorder)
                with interrupts.held():
                    given_up = _mind_the_slow(server, backend)
                    for task in server.due():
                        backend.send(task)
                    if recorder is not None:
                        recorder.turned()
                    if keeper is not None:
                        keeper.turn(server)
    except KeyboardInterrupt:
        if not server.has_answer:
            raise  # nothing was opened yet: there is nothing to give
        log.warning("interrupted; giving the best iterate so far")
        _stop(server, Status.INTERRUPTED, recorder)
    if recorder is not None:
        recorder.end(server)
    if keeper is not None and not interrupts.broken:
        keeper.write(server)
    result = server.result(statistics(server, backend))
    for hook in hooks:
        if hasattr(hook, "run_ended"):  # a callback may want to know the end, too
            hook.run_ended(result)
    return result


def _patience(server: Server, backend: Backend) -> float | None:
    """How long to wait for the next message; None where the clock is virtual and nothing is due."""
    until = server.alarm - server.now
    if backend.poll is None:
        return None if math.isinf(until) else max(until, 0.0)
    return min(backend.poll, max(until, 0.001))


def _mind_the_slow(server: Server, backend: Backend) -> list[Lost]:
    """Put questions to others that take too long, and give up workers that do not answer.

    Where a back-end cannot start another in the place of a worker, it is lost for good.
    """
    if server.status is not None or server.now < server.alarm:
        return []
    for task, component in server.slow():
        if backend.hasten(task, component, server.introduction()):
            server.hasten(component)
    lost = []
    for component in server.silent():
        reason = f"no answer for {server.policy.timeout:g} s"
        if not backend.replace(component, reason):
            group = next(group for group in backend.groups if component in group)
            lost.append(Lost(tuple(group), reason, permanent=True))
    server.seen_to()
    return lost


def _mind_the_clock(server: Server, clock: Clock, now: float, recorder: Recorder | None) -> None:
    if clock.limit is None or server.status is not None or now < clock.limit:
        return
    if now >= clock.limit + clock.grace or server.phase not in (SOLVING, CERTIFYING):
        _stop(server, Status.TIME_LIMIT, recorder)
    elif not server.ending:
        if recorder is not None:
            recorder.control("end", Status.TIME_LIMIT)
        server.end(Status.TIME_LIMIT, sweeps=1)


def _stop(server: Server, status: Status, recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.control("abandon", status)
    server.abandon(status)


def statistics(server: Server, backend: Backend) -> dict[str, Any]:
    """What goes into `result.stats`."""
    return {
        "solver": server.solver.name,
        **backend.describe(),
        "components": server.components,
        "excluded": server.excluded,
        "weights": server.weights,
        "seconds": server.now,
        "updates": server.updates,
        "passes": server.passes,
        "products": server.products,
        "early_answers": server.early_answers,
        "bytes_sent": server.sent_bytes,
        "bytes_received": server.received_bytes,
        "replies_rejected": server.rejected,
        "replies_ignored": server.ignored,
        "tasks_withdrawn": server.withdrawn,
        "tasks_hastened": server.hastened,
        "answers": [int(count) for count in server.answers],
        "busy_seconds": [float(seconds) for seconds in server.busy_seconds],
        "mean": server.mean,
        **({} if server.state is None else server.solver.report(server.state)),
    }
