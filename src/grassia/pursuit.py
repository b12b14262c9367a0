"""The server's pursuit of an answer: the phases of a run, from opened components to a certificate.

This half of the server knows products and places, not workers: what is asked of whom, and what was lost, is
for `grassia.server`. A run passes through phases: *opening* (every component reports its moments),
*preparing* (sweeps a solver wants before its start), *solving*, *certifying* (sweeps at a frozen iterate),
and back to solving when the certificate says no. What it knows on the way is kept by `grassia.standing`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from grassia.certificate import Outcome
from grassia.consistent import Course, Sweep
from grassia.convergence import better
from grassia.errors import GrassiaError, InvalidInput
from grassia.messages import Array
from grassia.prelude import Prelude
from grassia.probing import EarlyProbe, claims_in_single
from grassia.result import Status
from grassia.solvers.base import Arrival, Problem
from grassia.standing import CERTIFYING, OPENING, PREPARING, SOLVING, Limits, Standing
from grassia.starting import check_range, starting_point

if TYPE_CHECKING:
    from grassia.server import Server

__all__ = ["CERTIFYING", "OPENING", "PREPARING", "SOLVING", "Limits", "Pursuit"]

NOTHING = 1e-290  # solvers put numbers about as small in the place of zero


class Pursuit(Standing):
    """How a run goes on, from phase to phase; the parameters are those of `Server`.

    The schedule is told when everybody is to be asked anew, or may be.
    """

    # -- phases ---------------------------------------------------------------------------------

    def _advance(self, arrivals: list[Arrival]) -> None:
        if self.phase == OPENING:
            self._open(arrivals)
        elif self._sweep is not None:
            self._absorb_sweep(self._sweep, arrivals)
        else:
            self._solve(arrivals)

    def _open(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self._moments.add(arrival.component, arrival.arrays, arrival.scalars)
        if self._prelude is not None:
            self.early_answers += self._prelude.turn()
            self._schedule.wake()
        if self._moments.complete:
            self._opened()
        elif self._prelude is None and self._resumed is None and Prelude.fits(self.solver, self._moments):
            self._begin_early()

    def _begin_early(self) -> None:
        moments = self._moments
        if self.k > moments.n_features:
            return  # it is said when all are open, whatever else there is to say
        weights, mean = moments.so_far()
        start, beyond = starting_point(self.v0, moments.n_features, self.k, self.rng)
        provisional = self._problem(weights, None, True, 0.0, beyond)
        self._prelude = Prelude(self.solver, provisional, start, mean)
        self._schedule.wake()

    def _problem(
        self, weights: Array, total: float | None, positive: bool, noise: float, beyond: Array | None
    ) -> Problem:
        largest = max(len(group) for group in self._schedule.groups)
        d, cold = self._moments.n_features, self.v0 is None
        return Problem(self.n, d, self.k, weights, total, positive, largest, noise, beyond, cold, self.tol)

    def _opened(self) -> None:
        moments = self._moments
        d = moments.n_features
        if not 1 <= self.k <= d:
            raise InvalidInput(f"`k` must satisfy 1 <= k <= n_features; got k={self.k}, n_features={d}.")
        weights, total, positive, noise = moments.finish()
        check_range(abs(total or 0.0))
        if self._prelude is None:
            self._start, beyond = starting_point(self.v0, d, self.k, self.rng)
        else:
            self._start, beyond = self._prelude.start, self._prelude.problem.beyond
        if self.single and not moments.single:
            # What was learnt early is in single precision, and one that was late cannot do with it.
            self.single, self._prelude, self.early_answers = False, None, 0
        self.problem = self._problem(weights, total, positive, noise, beyond)
        if self._resumed is not None:
            snapshot, self._resumed = self._resumed, None
            snapshot.restore(cast("Server", self))
            return
        self.phase = PREPARING
        self._set_out(Course("prepare", {}, self.rng))

    def _begin(self, prepared: Any) -> None:
        assert self.problem is not None
        moments, prelude, self._prelude = self._moments, self._prelude, None
        if prelude is None:
            self.state = self.solver.init(self.problem, self._start, prepared)
        else:
            self.state = prelude.end(self.problem, moments.mean, moments.means)
        moments.means.clear()
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

    def _finish(self, status: Status) -> None:
        self.status = status

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
        near, self._claimed, trusted = None, None, None
        if self.single and not certifier.rigorous and len(candidates) == 1:
            near, self._claimed, trusted = claims_in_single(self.solver, self.state, self.tol)
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
            "trusted": trusted,
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
