"""The sans-IO server: `ask()` gives the tasks that are due, `tell(messages)` takes what came back.

No clock, no threads, no sockets: time is handed in, so the same server runs under every back-end and under
a replayed log. It owns what all solvers share: opening and checking the components, centring,
versions and staleness, refusing damaged or repeated replies, losses; and, in `grassia.pursuit`, consistent
sweeps and certification.

Components go by the numbers the user knows them by. A solver counts those that are part of the problem, which
are fewer once some were left out (`LossPolicy`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grassia.attendance import Attendance
from grassia.certificate import Certifier
from grassia.errors import GrassiaError, InvalidComponent
from grassia.losses import LossPolicy
from grassia.messages import (
    Array,
    Failure,
    Lost,
    Message,
    Query,
    Reply,
    Restored,
    Task,
    checksum,
)
from grassia.prelude import Prelude
from grassia.probing import OPTION
from grassia.pursuit import CERTIFYING, OPENING, PREPARING, SOLVING, Limits, Pursuit
from grassia.result import History, Status
from grassia.schedule import Outstanding, Schedule
from grassia.solvers.base import Arrival, Solver

log = logging.getLogger("grassia")

__all__ = ["CERTIFYING", "OPENING", "PREPARING", "SOLVING", "ComponentFailed", "Limits", "Server"]


class ComponentFailed(GrassiaError, RuntimeError):
    """A component's task raised again and again; the cause is chained."""


class Server(Pursuit):
    """The server of one run.

    Parameters
    ----------
    solver : Solver
        Frozen configuration; its state lives here.
    k : int
        Dimension wanted.
    groups : sequence of sequences of int
        The components pinned to each worker; a worker has one task at a time.
    weights : ndarray (n,), optional
        Positive; normalised here. None: by row counts where all components have them, else equal.
    tol : float
        Wanted sine of the largest angle.
    v0 : ndarray (d, b), b >= k, optional
        Start; orthonormalised here. None: a random point.
    rng : numpy Generator
        For the start, the probes of the certificate and the random order.
    certifier, limits, history : optional
        How hard to certify, when to give up, how much to remember.
    losses : LossPolicy, optional
        What a lost worker means.
    single : bool
        Whether the workers may multiply in single precision while solving, where all of them can.
        Certificates are made of double precision products, and one that is refused ends the leniency.
    """

    def __init__(
        self,
        solver: Solver[Any],
        k: int,
        groups: Sequence[Sequence[int]],
        *,
        weights: Array | None = None,
        tol: float = 1e-6,
        v0: Array | None = None,
        rng: np.random.Generator,
        certifier: Certifier | None = None,
        limits: Limits | None = None,
        history: History | None = None,
        losses: LossPolicy | None = None,
        single: bool = False,
    ) -> None:
        schedule = Schedule(groups, solver.order, rng)
        everything = sum(len(group) for group in groups)
        self.policy = losses or LossPolicy()
        self._attendance = Attendance(everything, self.policy)
        self._informed = np.zeros(everything, dtype=bool)
        self._ordinals = np.zeros(everything, dtype=np.int64)
        self._failures = np.zeros(everything, dtype=np.int64)
        self._losses = np.zeros(everything, dtype=np.int64)
        self._next_id = 0
        self._to_exclude: dict[int, str] = {}
        self.sent_bytes = 0
        self.received_bytes = 0
        self.rejected = 0
        self.ignored = 0
        self.withdrawn = 0
        self.hastened = 0
        self.busy_seconds = np.zeros(everything)
        self.answers = np.zeros(everything, dtype=np.int64)
        super().__init__(
            solver,
            k,
            schedule,
            everything,
            weights=weights,
            tol=tol,
            v0=v0,
            rng=rng,
            certifier=certifier,
            limits=limits,
            history=history,
            single=single,
        )

    # -- ask ------------------------------------------------------------------------------------

    def ask(self) -> list[Task]:
        """Tasks for every worker that is free and has something to do."""
        tasks = []
        if self.status is not None:
            return []
        for worker in self._schedule.free():
            task = self._task_for(worker)
            if task is None:
                self._schedule.wait(worker)
                continue
            tasks.append(self._sent(task))
        if self.solver.recalls:
            tasks.extend(self._in_place_of_others())
        return tasks

    def due(self) -> list[Task]:
        """As `ask`; where nothing moves any more the solver may refine its iterate, or it is certified."""
        for _ in range(3):
            tasks = self.ask()
            if tasks or self.status is not None:
                return tasks
            self.check_alive()
        return []

    def _sent(self, task: Task) -> Task:
        leftover = self._schedule.send(self._outstanding(task))
        self._attendance.sent(task.component, task.id, self.now)
        self.sent_bytes += task.nbytes
        return task if leftover is None else replace(task, instead=leftover)

    def _in_place_of_others(self) -> Iterator[Task]:
        """Tasks for workers that are out with something whose answer is of no use any more.

        A sweep does not wait for the end of questions that it has made pointless; and a solver may have
        learnt so much from the others meanwhile that a slow worker had better begin anew.
        """
        for worker, out in self._schedule.under_way():
            if self._sweep is not None:
                task = None if out.part_of is self._sweep else self._task_for(worker)
            elif self.phase == SOLVING and self._pointless(out):
                query = self._query(out.component, anew=True)
                task = None if query is None else self._address(out.component, query)
            else:
                continue
            if task is not None:
                self.withdrawn += 1
                self._attendance.back(out.component, self.now, answered=False)
                yield self._sent(replace(task, instead=out.id))

    def _pointless(self, out: Outstanding) -> bool:
        """Whether a question had better be put anew: it is from before the start, or the solver says so."""
        return out.part_of is not None or self.solver.outdated(self.state, self._place[out.component])

    def renew(self, task: Task) -> Task:
        """The same task, asked at the current iterate (for gradients evaluated at return)."""
        if self.phase != SOLVING or self._schedule.out(task.component, task.id) is None:
            return task
        query = self.solver.ask(self.state, self._place[task.component])
        if query is None:
            return task
        version = self.solver.version(self.state)
        query = self._with_mean(task.component, self._lenient(query))
        renewed = replace(task, query=query, version=version)
        self._schedule.send(self._outstanding(renewed))
        return renewed

    def _outstanding(self, task: Task) -> Outstanding:
        informs = "mean" in task.query.arrays
        probing = int(task.query.options.get(OPTION) or 0)
        part_of: Any = self._sweep
        if self.phase == OPENING:
            part_of = OPENING if task.query.procedure == "open" else self._prelude
        return Outstanding(task.id, task.component, task.version, informs, part_of, probing)

    def _task_for(self, worker: int) -> Task | None:
        no_rounds = self.phase == SOLVING and self._round is None
        components = self._schedule.in_turn(worker) if no_rounds else self._schedule.of_round(worker)
        for component in components:
            query = self._query(component)
            if query is not None:
                return self._address(component, query)
            if no_rounds:
                self._proposals.heard(self._place[component])  # it has nothing to add at this iterate
        return None if self._prelude is None else self._early_task_for(worker, self._prelude)

    def _early_task_for(self, worker: int, prelude: Prelude) -> Task | None:
        """A question for a worker whose components are open, while others still open."""
        for component in self._schedule.in_turn(worker):
            place = self._place[component]
            query = prelude.ask(place) if self._moments.has(place) else None
            if query is not None:
                return self._address(component, self._lenient(query))
        return None

    def _query(self, component: int, anew: bool = False) -> Query | None:
        if self.phase == OPENING:
            return Query("open", {}, {"sketch": self.sketching} if self.keeps_course else {})
        place = self._place[component]
        if self._sweep is not None:
            if self.phase == CERTIFYING and self._sweep.of_iterate:
                return self.solver.sweep_query(self.state, place, self._sweep.block)
            return Query("apply", {"block": self._sweep.block})
        probing = self._early is not None and self._early.wants(place)
        late = self.early_answers > 0 and self.solver.premature(self.state, place)
        # One that opens late may multiply the probe first, while the others find out what to ask it.
        query = None if probing and late else self.solver.ask(self.state, place)
        # Not with a first question, which may yet be taken back; unless it is one that makes sense already.
        stays = anew or self.early_answers > 0 or self.answers[component] > 1
        if self._early is not None and probing and stays:
            query = self._early.beside(query)
        return self._lenient(query) if query is not None else None

    def _lenient(self, query: Query) -> Query:
        return replace(query, options={**query.options, "single": True}) if self.single else query

    def _address(self, component: int, query: Query) -> Task:
        version = self._version
        ordinal = int(self._ordinals[component])
        self._ordinals[component] += 1
        self._next_id += 1
        return Task(self._next_id, component, version, ordinal, self._with_mean(component, query))

    @property
    def _version(self) -> int:
        if self._prelude is not None:
            return self._prelude.version
        return 0 if self.state is None else self.solver.version(self.state)

    def _with_mean(self, component: int, query: Query) -> Query:
        # A component learns the global mean once; a restarted worker has to be told again.
        if self._informed[component] or query.procedure == "open":
            return query
        return replace(query, arrays={**query.arrays, **self.introduction()})

    def introduction(self) -> dict[str, Array]:
        """What a worker must be told that has only just opened its components."""
        mean = None if self.phase == OPENING else self._moments.mean
        if self._prelude is not None:
            mean = self._prelude.mean
        return {} if mean is None else {"mean": mean}

    # -- tell -----------------------------------------------------------------------------------

    def tell(self, messages: Sequence[Message], now: float = 0.0) -> bool:
        """Take what arrived together: one update absorbs all of it. Whether anything has happened."""
        self.now = self.started_at + now
        arrivals: list[Arrival] = []
        for message in messages:
            if isinstance(message, Reply):
                self._take_reply(message, arrivals)
            elif isinstance(message, Failure):
                self._take_failure(message)
            elif isinstance(message, Lost):
                self._take_loss(message)
            else:
                self._take_restored(message)
        early = self._prelude is not None and bool(self._prelude.heard)
        if (arrivals or early) and self.status is None:
            self._advance(arrivals)
        absent = self._attendance.gone(self.now)
        if absent and self.status is None:
            self._out_of_reach(absent, f"out of reach for {self.policy.bound:g} s")
        if self._to_exclude and self.status is None:
            self._exclude()
        return bool(messages or absent)

    def _take_reply(self, reply: Reply, arrivals: list[Arrival]) -> None:
        task = self._schedule.out(reply.component, reply.task)
        if task is None:
            self.ignored += 1  # repeated, or of a worker already given up: it was counted once
            return
        self.received_bytes += reply.nbytes
        self._schedule.back(task)
        self._attendance.back(reply.component, self.now, answered=True)
        if reply.moved:
            self._forget_caches(self._schedule.group(reply.component))
            self._note("worker replaced", reply.component, "a copy of it was faster, and is it now")
        if checksum(reply.arrays) != reply.checksum:
            self.rejected += 1
            self._note("corrupt reply rejected", reply.component, "its checksum does not match")
            self._again(task, GrassiaError("its replies are damaged: the checksum does not match"))
            return
        self._failures[reply.component] = 0
        self._losses[reply.component] = 0
        early = isinstance(task.part_of, Prelude)  # it was told a mean that will not do for long
        if not early and (task.informs or (reply.moved and self.phase != OPENING)):
            self._informed[reply.component] = True
        self.replies += 1
        self.answers[reply.component] += 1
        self.busy_seconds[reply.component] += reply.elapsed
        arrays = self._without_probe(task, reply.arrays)
        if early and self._prelude is not None:
            taken = self._prelude.heard
        elif task.part_of is (OPENING if self.phase == OPENING else self._sweep):
            taken = arrivals
        else:
            return  # the answer to a question of another phase: the iterate is frozen now, or has moved on
        stale = self._version - task.version
        if arrays is not None:
            place = self._place[reply.component]
            taken.append(Arrival(place, task.version, stale, arrays, reply.scalars))

    def _without_probe(self, task: Outstanding, arrays: Mapping[str, Array]) -> Mapping[str, Array] | None:
        """What is the solver's of an answer, None if nothing; the rest is kept for the certificate."""
        if task.probing == 0:
            return arrays
        product = arrays["product"]
        if self._early is not None:
            self._early.take(self._place[task.component], product[:, -task.probing :])
        rest = product[:, : -task.probing]
        return {**arrays, "product": np.ascontiguousarray(rest)} if rest.shape[1] else None

    def _take_failure(self, failure: Failure) -> None:
        task = self._schedule.out(failure.component, failure.task)
        if task is None:
            self.ignored += 1
            return
        self._schedule.back(task)
        self._attendance.back(failure.component, self.now, answered=False)
        self._note("task failed", failure.component, repr(failure.error))
        if failure.final is not None:
            error = InvalidComponent(failure.final, failure.component)
            self._give_up(error, failure.error, failure.component)
            return
        self._again(task, failure.error)

    def _again(self, task: Outstanding, cause: Exception) -> None:
        self._failures[task.component] += 1
        if self._failures[task.component] > self.limits.retries:
            error = ComponentFailed(
                f"component {task.component} failed {self.limits.retries + 1} times in a row "
                f"({cause}); the last cause is chained. Mend it, or leave the component out."
            )
            self._give_up(error, cause, task.component)
            return
        self._schedule.again(task.component)

    def _give_up(self, error: GrassiaError, cause: Exception, component: int) -> None:
        """A component is out of reach: leave it out, keep the work there is, or raise when there is none."""
        begun = bool(self.excluded) or (
            self.state is not None and self.solver.residual(self.state) is not None
        )
        if not begun:
            raise error from cause
        if self.policy.action == "exclude":
            self._to_exclude[component] = str(error)
            return
        self._note("component failed", component, str(error))
        log.error("%s", error)
        self._finish(Status.COMPONENT_FAILED)

    def _take_loss(self, loss: Lost) -> None:
        components = [component for component in loss.components if component in self._place]
        if not components:
            return  # they were left out
        task = self._schedule.lost(components[0])
        self._attendance.lost(components, self.now)
        for component in components:
            self._note("worker lost", component, loss.reason)
        self._forget_caches(components)
        self._schedule.wake()  # somebody may have waited for what it would say
        guilty = components if task is None else [task.component]
        self._losses[guilty] += 1  # who was being worked on may be what kills the worker
        if loss.permanent:
            self._out_of_reach(components, loss.reason)
        elif int(self._losses[guilty[0]]) > self.limits.losses:
            self._out_of_reach(guilty, loss.reason)
        elif self.policy.action == "exclude" and self.policy.bound == 0.0:
            self._out_of_reach(components, loss.reason)

    def _forget_caches(self, components: Sequence[int]) -> None:
        """Whatever the worker of these remembered is gone."""
        self._informed[list(components)] = False
        if self.state is not None:
            for component in components:
                self.state = self.solver.lost(self.state, self._place[component])

    def _out_of_reach(self, components: Sequence[int], reason: str) -> None:
        """By the user's policy: they are left out, or the run ends."""
        if self.policy.action == "exclude" and len(components) < self.n:
            self._to_exclude = {**dict.fromkeys(components, reason), **self._to_exclude}
            return
        log.error("components %s are lost for good: %s", list(components), reason)
        self._finish(Status.WORKER_LOST)

    def _take_restored(self, restored: Restored) -> None:
        components = [component for component in restored.components if component in self._place]
        if not components:
            return
        self._schedule.restored(components[0])
        self._attendance.restored(components)
        for component in components:
            self._note(
                "worker restored", component, "started anew; its data is opened again at its next task"
            )

    # -- what takes too long ----------------------------------------------------------------------

    @property
    def alarm(self) -> float:
        """The time before which nothing is overdue."""
        return self._attendance.alarm

    def slow(self) -> list[tuple[int, int]]:
        """(task, component) of the questions to be put to another worker as well."""
        return self._attendance.slow(self.now)

    def hasten(self, component: int) -> None:
        """That was done."""
        self.hastened += 1
        self._note("question put to another", component, "its worker takes far longer than usual")

    def silent(self) -> list[int]:
        """Components whose worker is to be given up, for it does not answer."""
        return self._attendance.silent(self.now)

    def seen_to(self) -> None:
        """What was due has been seen to."""
        self._attendance.look_again(self.now)

    # -- leaving out ------------------------------------------------------------------------------

    @property
    def weights(self) -> Array | None:
        """The weights of the problem that is solved: zero for what was left out. None before the start."""
        if self.problem is None:
            return None
        weights = np.zeros(self.components)
        weights[self.members] = self.problem.weights
        return weights

    def _exclude(self) -> None:
        """Go on without some components: another problem, begun from what is known of this one."""
        leaving, self._to_exclude = self._to_exclude, {}
        left = [component for component in self.members if component not in leaving]
        if not left:
            self._finish(Status.WORKER_LOST)
            return
        for component, reason in leaving.items():
            self._note("left out", component, reason)
            log.warning("component %s is left out: %s", component, reason)
        if self.state is not None and self.solver.residual(self.state) is not None:
            W, beside = self.solver.subspace(self.state), self.solver.beside(self.state)
            self.v0 = W if beside is None else np.hstack([W, beside])
        if self._resumed is not None:  # of another problem; what it had found is a start for this one
            self.v0, self._resumed = self._resumed.iterate(self.solver), None
        self._earlier_updates, self._ending = self.updates, None
        self._attendance.forget(leaving)
        self._schedule.leave_out(leaving)
        self._informed[:] = False
        self._pose(left)
