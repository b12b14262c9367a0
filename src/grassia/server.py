"""The sans-IO server: `ask()` gives the tasks that are due, `tell(messages)` takes what came back.

No clock, no threads, no sockets: time is handed in, so the same server runs under every back-end and under
a replayed log. It owns what all solvers share: opening and checking the components, centring,
versions and staleness, refusing damaged or repeated replies, consistent sweeps and certification.

Components go by the numbers the user knows them by. A solver counts those that are part of the problem, which
are fewer once some were left out (`LossPolicy`).

A run passes through phases: *opening* (every component reports its moments), *preparing* (sweeps a solver
wants before its start), *solving*, *certifying* (sweeps at a frozen iterate), and back to solving
when the certificate says no.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grassia.attendance import Attendance
from grassia.certificate import Certificate, Certifier, Outcome
from grassia.consistent import Course, Sweep
from grassia.convergence import Proposals, better
from grassia.errors import GrassiaError, InvalidComponent, InvalidInput
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
from grassia.moments import PooledMoments
from grassia.probing import OPTION, EarlyProbe, claims_in_single
from grassia.result import Event, History, Result, Status, fix_signs
from grassia.schedule import Outstanding, Schedule
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.starting import check_range, starting_point

if TYPE_CHECKING:
    from grassia.snapshot import Snapshot

log = logging.getLogger("grassia")

NOTHING = 1e-290  # solvers put numbers about as small in the place of zero
OPENING, PREPARING, SOLVING, CERTIFYING = "opening", "preparing", "solving", "certifying"


class ComponentFailed(GrassiaError, RuntimeError):
    """A component's task raised again and again; the cause is chained."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give up: passes over all components, failures or losses of one in a row, a stall."""

    max_passes: float = 10_000.0
    retries: int = 3
    losses: int = 10
    stall_passes: float = 500.0


class Server:
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
        self.solver = solver
        self.k, self.tol, self.v0, self.rng = k, tol, v0, rng
        self.components = sum(len(group) for group in groups)
        self.policy = losses or LossPolicy()
        self.single = single
        self.certifier = certifier or Certifier()
        self.limits = limits or Limits()
        self.history = history or History()
        self.status: Status | None = None
        self.now = 0.0
        #: Seconds that earlier parts of the run took, where it was resumed.
        self.started_at = 0.0

        everything = self.components
        self.given_weights = weights
        self._schedule = Schedule(groups, solver.order, rng)
        self._attendance = Attendance(everything, self.policy)
        self._informed = np.zeros(everything, dtype=bool)
        self._ordinals = np.zeros(everything, dtype=np.int64)
        self._failures = np.zeros(everything, dtype=np.int64)
        self._losses = np.zeros(everything, dtype=np.int64)
        self._next_id = 0
        self._earlier_updates = 0
        self._to_exclude: dict[int, str] = {}
        self.replies = 0
        self.products = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.rejected = 0
        self.ignored = 0
        self.withdrawn = 0
        self.hastened = 0
        self.busy_seconds = np.zeros(everything)
        self.answers = np.zeros(everything, dtype=np.int64)
        self._ending: Status | None = None
        #: Whether to remember the products of the sweeps under way, so that a checkpoint can hold them.
        self.keeps_course = False
        self._resumed: Snapshot | None = None
        self._pose(range(everything))

    def _pose(self, components: Iterable[int]) -> None:
        """Set the problem of these components; nothing is known of it yet."""
        #: The components of the problem, by the numbers the solver knows them by.
        self.members = list(components)
        self._place = {component: place for place, component in enumerate(self.members)}
        self.n = len(self.members)
        given = self.given_weights
        self._moments = PooledMoments(self.n, None if given is None else given[self.members])
        self._informed[:] = False

        self.phase = OPENING
        self.state: Any = None
        self.problem: Problem | None = None
        self._round: int | None = None
        self._course: Course | None = None
        self._sweep: Sweep | None = None

        self._proposals = Proposals(self.tol, self.n, self.limits.stall_passes)
        self._best: tuple[float, Array] | None = None
        self._refined = False
        self._size = 0.0
        self._largest_parts = 0.0
        self._claimed: Array | None = None
        self._early: EarlyProbe | None = None
        self._outcome: Outcome | None = None

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
                task = None if out.sweep is self._sweep else self._task_for(worker)
            elif self.phase == SOLVING and self.solver.outdated(self.state, self._place[out.component]):
                query = self._query(out.component)
                task = None if query is None else self._address(out.component, query)
            else:
                continue
            if task is not None:
                self.withdrawn += 1
                yield self._sent(replace(task, instead=out.id))

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
        return Outstanding(task.id, task.component, task.version, informs, self._sweep, probing)

    def _task_for(self, worker: int) -> Task | None:
        no_rounds = self.phase == SOLVING and self._round is None
        components = self._schedule.in_turn(worker) if no_rounds else self._schedule.of_round(worker)
        for component in components:
            query = self._query(component)
            if query is not None:
                return self._address(component, query)
            if no_rounds:
                self._proposals.heard(self._place[component])  # it has nothing to add at this iterate
        return None

    def _query(self, component: int) -> Query | None:
        if self.phase == OPENING:
            return Query("open")
        place = self._place[component]
        if self._sweep is not None:
            if self.phase == CERTIFYING and self._sweep.of_iterate:
                return self.solver.sweep_query(self.state, place, self._sweep.block)
            return Query("apply", {"block": self._sweep.block})
        query = self.solver.ask(self.state, place)
        if self._early is not None and self._early.wants(place) and self.answers[component] > 1:
            query = self._early.beside(query)
        return self._lenient(query) if query is not None else None

    def _lenient(self, query: Query) -> Query:
        return replace(query, options={**query.options, "single": True}) if self.single else query

    def _address(self, component: int, query: Query) -> Task:
        version = 0 if self.state is None else self.solver.version(self.state)
        ordinal = int(self._ordinals[component])
        self._ordinals[component] += 1
        self._next_id += 1
        return Task(self._next_id, component, version, ordinal, self._with_mean(component, query))

    def _with_mean(self, component: int, query: Query) -> Query:
        # A component learns the global mean once; a restarted worker has to be told again.
        if self._informed[component]:
            return query
        return replace(query, arrays={**query.arrays, **self.introduction()})

    def introduction(self) -> dict[str, Array]:
        """What a worker must be told that has only just opened its components."""
        mean = self._moments.mean
        return {} if mean is None or self.phase == OPENING else {"mean": mean}

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
        if arrivals and self.status is None:
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
        if task.informs or (reply.moved and self.phase != OPENING):  # there was no mean to tell yet
            self._informed[reply.component] = True
        self.replies += 1
        self.answers[reply.component] += 1
        self.busy_seconds[reply.component] += reply.elapsed
        arrays = self._without_probe(task, reply.arrays)
        if task.sweep is not self._sweep:
            return  # an answer to the solver's own question, come in while the iterate is frozen
        version = 0 if self.state is None else self.solver.version(self.state)
        stale = version - task.version
        if arrays is not None:
            place = self._place[reply.component]
            arrivals.append(Arrival(place, task.version, stale, arrays, reply.scalars))

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
        if isinstance(failure.error, InvalidInput | FileNotFoundError):
            rule = getattr(failure.error, "rule", str(failure.error))
            self._give_up(InvalidComponent(rule, failure.component), failure.error, failure.component)
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
    def excluded(self) -> list[int]:
        """The components that are not part of the problem any more."""
        return [component for component in range(self.components) if component not in self._place]

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
        self._earlier_updates = self.updates
        self._attendance.forget(leaving)
        self._schedule.leave_out(leaving)
        self._pose(left)

    @property
    def updates(self) -> int:
        """How many times the iterate has moved, since the beginning."""
        return self._earlier_updates + (0 if self.state is None else self.solver.version(self.state))

    def _note(self, kind: str, component: int | None, text: str) -> None:
        self.history.note(Event(self.now, self.updates, kind, component, text))
        log.info("%s (component %s): %s", kind, component, text)

    # -- phases ---------------------------------------------------------------------------------

    def _advance(self, arrivals: list[Arrival]) -> None:
        if self.phase == OPENING:
            for arrival in arrivals:
                self._moments.add(arrival.component, arrival.arrays, arrival.scalars)
            if self._moments.complete:
                self._opened()
        elif self._sweep is not None:
            self._absorb_sweep(self._sweep, arrivals)
        else:
            self._solve(arrivals)

    def _opened(self) -> None:
        moments = self._moments
        d = moments.n_features
        if not 1 <= self.k <= d:
            raise InvalidInput(f"`k` must satisfy 1 <= k <= n_features; got k={self.k}, n_features={d}.")
        weights, total, positive, noise = moments.finish()
        check_range(abs(total or 0.0))
        largest = max(len(group) for group in self._schedule.groups)
        self.single &= moments.single
        self._start, beyond = starting_point(self.v0, d, self.k, self.rng)
        cold = self.v0 is None
        self.problem = Problem(self.n, d, self.k, weights, total, positive, largest, noise, beyond, cold)
        if self._resumed is not None:
            snapshot, self._resumed = self._resumed, None
            snapshot.restore(self)
            return
        self.phase = PREPARING
        self._set_out(Course("prepare", {}, self.rng))

    def _begin(self, prepared: Any) -> None:
        assert self.problem is not None
        self.state = self.solver.init(self.problem, self._start, prepared)
        if self.solver.vouches and self.n > 1 and not self.single and not self.certifier.rigorous:
            probe = self.rng.standard_normal((self.problem.d, self.certifier.width(self.problem.d, self.k)))
            self._early = EarlyProbe(probe, self.problem.weights) if probe.shape[1] else None
        self._enter_solving()

    def _enter_solving(self) -> None:
        self.phase = SOLVING
        self._sweep = None
        self._round = self.solver.round(self.state)
        self._schedule.new_round()

    def _solve(self, arrivals: list[Arrival]) -> None:
        before = self.solver.version(self.state)
        self._refined = False
        try:
            self.state = self.solver.tell(self.state, arrivals)
        except (InvalidInput, FloatingPointError, np.linalg.LinAlgError) as error:
            raise GrassiaError(
                "the numbers left the range of double precision while solving; scale the data (and its "
                f"weights) to a moderate size. The cause: {error}"
            ) from error
        self.products += len(arrivals)
        for arrival in arrivals:
            self._proposals.heard(arrival.component)
        round_now = self.solver.round(self.state)
        if round_now != self._round:
            self._round = round_now
            self._schedule.new_round()
        elif self._schedule.someone_waits and self.solver.version(self.state) != before and round_now is None:
            self._schedule.wake()
        residual = self.solver.residual(self.state)
        if residual is None:
            return
        if self.solver.version(self.state) != before:
            self._remember(residual, arrivals)
        elif round_now is not None:
            return  # the round is not complete, or has not moved the iterate
        self._consider(residual)

    def _remember(self, residual: float, arrivals: list[Arrival]) -> None:
        self.history.add(
            time=self.now,
            version=self.updates,
            residual=residual,
            bound=self.solver.lower_bound(self.state),
            step=self.solver.step_size(self.state),
            staleness=max(arrival.staleness for arrival in arrivals),
            arrivals=len(arrivals),
            passes=self.passes,
        )
        if self._best is None or residual < 0.9 * self._best[0]:
            self._best = (residual, self.solver.subspace(self.state))

    @property
    def passes(self) -> float:
        """Answers so far, in passes over all components."""
        return self.replies / self.n

    # -- certification --------------------------------------------------------------------------

    def _consider(self, residual: float) -> None:
        """Propose the iterate for certification when its own estimate is small or has stalled."""
        if not math.isfinite(residual) or not np.isfinite(self.solver.subspace(self.state)).all():
            raise GrassiaError(
                "the iterate is no longer finite; the components' products must have overflowed. "
                "Scale the data."
            )
        if self.passes >= self.limits.max_passes:
            self.end(Status.MAX_PASSES)
            return
        scale, gap = self.solver.scale(self.state), self.solver.gap(self.state)
        # The wanted eigenvalues may be zero; what counts is the size of the matrix, as far as it was seen.
        seen = max(residual, scale)
        self._size = max(self._size, seen if seen > NOTHING else 0.0)
        check_range(self._size)
        # In single precision a small residual gets stuck at rounding level, and not for any other reason.
        # Models of components of low rank may get stuck far above. A refused certificate ends the leniency.
        patience = None
        if self.single:
            patience = 2.0 if residual <= 1e-5 * scale else 20.0
        if self._proposals.due(residual, scale, gap, self.replies, patience):
            self._certify()

    def end(self, status: Status, sweeps: int | None = None) -> None:
        """Wind up: one last certificate, then stop with `status` (or CONVERGED, if it says so)."""
        if self.status is not None or self._ending is not None:
            return
        self._ending = status
        if self.state is None or self.solver.residual(self.state) is None:
            self._finish(status)
        elif self.phase == SOLVING:
            self._certify(sweeps)

    def abandon(self, status: Status) -> None:
        """Stop now, with what there is."""
        if self.status is None:
            self._finish(status)

    def _certify(self, sweeps: int | None = None) -> None:
        assert self.problem is not None
        self.phase = CERTIFYING
        candidates = [self.solver.subspace(self.state)]
        if self._ending is not None and self._best is not None:
            candidates.append(self._best[1])
        certifier = self.certifier
        if sweeps is not None:
            certifier = replace(certifier, max_sweeps=sweeps)
        held = self.solver.matrix(self.state)
        near, self._claimed = None, None
        if self.single and not certifier.rigorous and len(candidates) == 1:
            near, self._claimed = claims_in_single(self.solver, self.state, self.tol)
        probed, claimed = None, self._claimed
        early, self._early = self._early, None  # what a certificate found out may enter the next iterate
        self._largest_parts = 0.0
        if early is not None and early.complete and len(candidates) == 1:
            probed, claimed = (early.block, early.total), self.solver.claimed(self.state)
            self._largest_parts = float(early.parts.max())
        arguments = {
            "candidates": candidates,
            "tol": self.tol,
            "total": self.problem.total,
            "positive": self.problem.positive,
            "certifier": certifier,
            "beside": self.solver.beside(self.state),
            "known": self.solver.known(self.state),
            "claimed": claimed,
            "near": near,
            "probed": probed,
        }
        self._set_out(Course("certify", arguments, self.rng), None if self.single else held)

    def _set_out(self, course: Course, held: tuple[Array, float] | None = None) -> None:
        """Begin a course of sweeps; where the server holds A, no worker needs to be asked."""
        assert self.problem is not None
        self._course = course
        course.begin(self.solver, self.problem, self.rng, self._noise)
        if not self.keeps_course:
            course.arguments = {}  # they may be large, and the generator lets go of what it is done with
        if held is None:
            self._drive(None)
            return
        matrix, self._largest_parts = held
        product = None
        while (block := course.next(product)) is not None:
            product = matrix @ block
        self._arrive(course)

    def _noise(self) -> float:
        """What the products of the current sweeps may be off by: the parts may be far larger than the sum."""
        assert self.problem is not None
        eps = float(np.finfo(np.float64).eps)
        return self.problem.noise + 4.0 * eps * math.sqrt(self.problem.d) * self._largest_parts

    def _drive(self, product: Array | None) -> None:
        """Advance the course of sweeps: lay out its next block, or take its result."""
        assert self.problem is not None
        assert self._course is not None
        course, first = self._course, product is None
        if self.keeps_course and product is not None:
            course.heard.append((product, self._largest_parts))
        block = course.next(product)
        if block is None:
            self._arrive(course)
            return
        self._sweep = Sweep(block, self.problem.weights, first, first and self._claimed is None)
        self._schedule.new_round()

    def _arrive(self, course: Course) -> None:
        """A course of sweeps is over."""
        self._course = None
        if course.kind == "prepare":
            self._begin(course.result)
        else:
            self._judge(course.result)

    def _absorb_sweep(self, sweep: Sweep, arrivals: list[Arrival]) -> None:
        assert self.problem is not None
        for arrival in arrivals:
            product = arrival.arrays["product"]
            self.products += 1
            sweep.take(arrival.component, product)
            if sweep.of_iterate and self.phase == CERTIFYING:
                self.state = self.solver.sweep_tell(self.state, arrival.component, product[:, : self.k])
        if sweep.complete:
            self._largest_parts = max(self._largest_parts, float(sweep.parts.max()))
            if sweep.first and self.phase == CERTIFYING:
                exact = sweep.total[:, : self.k] if self._claimed is None else self._claimed
                self.state = self.solver.sweep_done(self.state, exact)
            self._drive(sweep.total)

    def _judge(self, outcome: Outcome) -> None:
        """Accept the certificate, or say why not and go on."""
        if better(outcome, self._outcome):
            self._outcome = outcome
        if outcome.certificate.converged:
            self._finish(Status.CONVERGED)
            return
        verdict = self._ending or self._proposals.verdict(outcome)
        if verdict is not None:
            self._finish(verdict)
            return
        if self._proposals.wrong_space(outcome):
            self._note("restarted", None, "a direction outside the iterate carries more variance")
            self.state = self.solver.restart(self.state, outcome.explored)
            self._best = None
        elif self.single:
            self._note("double precision", None, f"sine bound {outcome.certificate.sin_theta} in single")
            self.state = self.solver.anew(self.state, outcome.W)
        else:
            self._note("certificate refused", None, f"sine bound {outcome.certificate.sin_theta}")
        self.single = False
        self._proposals.go_on(outcome, self.replies)
        self._enter_solving()

    def check_alive(self) -> None:
        """Called when nothing moves: a solver with no question left has its iterate certified."""
        if self.status is not None or not self._schedule.nothing_moves:
            return
        if self.phase == SOLVING and self.solver.residual(self.state) is not None:
            if not self._refined:
                self._refined = True
                self.state = self.solver.refine(self.state)
                self._schedule.wake()
            else:
                self._proposals.nothing_left()
                self._certify()
        else:
            raise GrassiaError(
                f"no task is under way in phase {self.phase!r} and the solver asks for none; "
                "this is a fault of the solver, please report it."
            )

    # -- the end --------------------------------------------------------------------------------

    def _finish(self, status: Status) -> None:
        self.status = status

    @property
    def certificate(self) -> Certificate | None:
        """The best certificate so far."""
        return None if self._outcome is None else self._outcome.certificate

    @property
    def ending(self) -> bool:
        """Whether the run is being wound up."""
        return self._ending is not None

    @property
    def mean(self) -> Array | None:
        """The weighted mean of the rows, where the components are centred rows."""
        return self._moments.mean

    @property
    def target(self) -> float:
        """The residual estimate at which the iterate is proposed next; NaN before the start."""
        return self._proposals.target

    def result(self, stats: dict[str, Any]) -> Result:
        """The answer, once `status` is set."""
        assert self.status is not None
        if self._outcome is not None:
            vectors, values = self._outcome.W, self._outcome.certificate.values
            certificate = self._outcome.certificate
        else:
            certificate = None
            vectors = self._fallback()
            values = np.full(self.k, np.nan)
        return Result(
            vectors=fix_signs(vectors),
            values=np.array(values),
            status=self.status,
            converged=self.status is Status.CONVERGED,
            certificate=certificate,
            history=self.history,
            stats=stats,
        )

    def _fallback(self) -> Array:
        if self._best is not None:
            return self._best[1]
        if self.state is not None:
            return self.solver.subspace(self.state)
        if self.problem is not None:
            return self._start
        raise GrassiaError(
            f"the run ended ({self.status and self.status.name}) before every component was opened, "
            "so there is no answer yet. Allow more time, or check the workers."
        )
