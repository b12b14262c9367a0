"""Where a run stands: its problem, its phase, what was learnt so far, and the answer that could be given now.

Nothing is decided here: how a run gets from phase to phase is for `grassia.pursuit`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grassia import geometry
from grassia.certificate import Certificate, Certifier, Outcome
from grassia.consistent import Course, Sweep
from grassia.convergence import Proposals
from grassia.errors import GrassiaError
from grassia.messages import Array
from grassia.moments import PooledMoments
from grassia.prelude import Prelude
from grassia.probing import EarlyProbe
from grassia.result import Event, History, Result, Status, fix_signs
from grassia.schedule import Schedule
from grassia.solvers.base import Problem, Solver

if TYPE_CHECKING:
    from grassia.snapshot import Snapshot

log = logging.getLogger("grassia")

OPENING, PREPARING, SOLVING, CERTIFYING = "opening", "preparing", "solving", "certifying"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give up: passes over all components, failures or losses of one in a row, a stall."""

    max_passes: float = 10_000.0
    retries: int = 3
    losses: int = 10
    stall_passes: float = 500.0


class Standing:
    """What a run knows of its problem; the parameters are those of `Server`.

    `schedule` says whom to ask.
    """

    #: Where the solver sets out; there is none before all components are open.
    _start: Array

    def __init__(
        self,
        solver: Solver[Any],
        k: int,
        schedule: Schedule,
        components: int,
        *,
        weights: Array | None,
        tol: float,
        v0: Array | None,
        rng: np.random.Generator,
        certifier: Certifier | None,
        limits: Limits | None,
        history: History | None,
        single: bool,
    ) -> None:
        self.solver = solver
        self.k, self.tol, self.v0, self.rng = k, tol, v0, rng
        self.components, self.given_weights = components, weights
        self.single = single
        self.certifier = certifier or Certifier()
        self.limits = limits or Limits()
        self.history = history or History()
        self.status: Status | None = None
        self.now = 0.0
        #: Seconds that earlier parts of the run took, where it was resumed.
        self.started_at = 0.0
        self.replies = 0
        self.products = 0
        self.early_answers = 0
        self._schedule = schedule
        self._earlier_updates = 0
        self._ending: Status | None = None
        #: Whether to remember the products of the sweeps under way, so that a checkpoint can hold them.
        self.keeps_course = False
        self.sketching = "product"  # by what a resumed run tells other data: this, or the "mean" alone
        self._resumed: Snapshot | None = None
        self._pose(range(components))

    def _pose(self, components: Iterable[int]) -> None:
        """Set the problem of these components; nothing is known of it yet."""
        #: The components of the problem, by the numbers the solver knows them by.
        self.members = list(components)
        self._place = {component: place for place, component in enumerate(self.members)}
        self.n = len(self.members)
        given = self.given_weights
        given = None if given is None else given[self.members]
        self._moments = PooledMoments(self.n, given, keep=self.solver.early)
        self._prelude: Prelude | None = None

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

    @property
    def excluded(self) -> list[int]:
        """The components that are not part of the problem any more."""
        return [component for component in range(self.components) if component not in self._place]

    @property
    def updates(self) -> int:
        """How many times the iterate has moved, since the beginning."""
        return self._earlier_updates + (0 if self.state is None else self.solver.version(self.state))

    @property
    def passes(self) -> float:
        """Answers so far, in passes over all components."""
        return self.replies / self.n

    def _note(self, kind: str, component: int | None, text: str) -> None:
        self.history.note(Event(self.now, self.updates, kind, component, text))
        log.info("%s (component %s): %s", kind, component, text)

    # -- what there is to give --------------------------------------------------------------------

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
            vectors, values = self._outcome.answer, self._outcome.certificate.values
            certificate = self._outcome.certificate
        else:
            certificate = None
            found = self._fallback()
            if found is None:
                raise GrassiaError(
                    f"the run ended ({self.status.name}) before every component was opened, "
                    "so there is no answer yet. Allow more time, or check the workers."
                )
            vectors = found
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

    @property
    def has_answer(self) -> bool:
        """Whether there is anything to give, however good."""
        return self._fallback() is not None

    def _fallback(self) -> Array | None:
        if self._best is not None:
            return self._best[1]
        if self.state is not None:
            return self.solver.subspace(self.state)
        if self.problem is not None:
            return self._start
        known = self.v0 if self._resumed is None else self._resumed.iterate(self.solver)
        if (self.excluded or self._resumed is not None) and known is not None:
            # It was found before the components were opened anew.
            return np.asarray(geometry.polar(known[:, : self.k]))
        return None
