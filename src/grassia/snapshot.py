"""All that a server knows at one moment, and how another server goes on from it.

The workers' side is not part of it: it is opened anew, on whatever engine, and must hold the same data. A
course of sweeps under way is brought back by telling it again what it has heard; the answers of a sweep or a
round that came in before the moment count.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia.consistent import Course
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.result import History
from grassia.server import CERTIFYING, PREPARING, SOLVING, Server
from grassia.solvers.base import Solver

log = logging.getLogger("grassia")

#: What of a server is the run's, and not the workers' or the caller's.
KEPT = (
    "phase",
    "single",
    "state",
    "replies",
    "products",
    "sent_bytes",
    "received_bytes",
    "rejected",
    "ignored",
    "withdrawn",
    "hastened",
    "early_answers",
    "busy_seconds",
    "answers",
    "_start",
    "_round",
    "_proposals",
    "_best",
    "_refined",
    "_size",
    "_largest_parts",
    "_claimed",
    "_early",
    "_outcome",
    "_earlier_updates",
)


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run after the opening of its components.

    Attributes
    ----------
    values : dict
        What is in `KEPT`. The arrays are the server's own: write them before it goes on.
    random : dict
        The state of the random generator.
    history : dict
        `History.packed`.
    components : int
        How many there were at the beginning.
    members : list of int
        The components of the problem.
    to_ask : list of int
        Those that have yet to answer in the round under way.
    turns : list of list of int
        For each worker, those whose turn is next.
    course, sweep : optional
        The sweeps under way.
    seconds : float
        How long the run had taken.
    counts, traces, sketches : ndarray
        What tells the data from others: a component's rows, its trace, and how it sees one random vector.
    """

    values: dict[str, Any]
    random: dict[str, Any]
    history: dict[str, Any]
    components: int
    members: list[int]
    to_ask: list[int]
    turns: list[list[int]]
    course: Course | None
    sweep: Any
    seconds: float
    counts: Array
    traces: Array
    sketches: Array

    @classmethod
    def of(cls, server: Server) -> Snapshot | None:
        """The present moment; None while components are being opened: there is nothing to keep yet."""
        if server.state is None and server.phase != PREPARING:
            return None
        return cls(
            values={name: getattr(server, name) for name in KEPT},
            random=dict(server.rng.bit_generator.state),
            history=server.history.packed(),
            components=server.components,
            members=list(server.members),
            to_ask=server._schedule.to_ask,
            turns=server._schedule.turns,
            course=None if server._course is None else server._course.without_generator(),
            sweep=server._sweep,
            seconds=server.now,
            counts=server._moments.counts,
            traces=server._moments.traces,
            sketches=server._moments.sketches,
        )

    @property
    def sketched(self) -> bool:
        """Whether it is known how the components see a random vector."""
        return bool(np.isfinite(self.sketches[:, 0]).any())

    def iterate(self, solver: Solver[Any]) -> Array | None:
        """The iterate of that moment, if there was one worth having."""
        state = self.values["state"]
        if state is None or solver.residual(state) is None:
            return None
        return solver.subspace(state)

    def hand_to(self, server: Server) -> None:
        """Have a server that was just made go on from here once its components are open."""
        if server.components != self.components:
            raise InvalidInput(
                f"the checkpoint is of a run with {self.components} components; got {server.components}."
            )
        left_out = sorted(set(range(server.components)) - set(self.members))
        if left_out:
            server._schedule.leave_out(left_out)
            server._pose(self.members)
        server.history = History.unpacked(self.history)
        server.now = server.started_at = self.seconds
        server._resumed = self

    def restore(self, server: Server) -> None:
        """The components are open: take over everything."""
        self._same_data(server)
        opened = {name: getattr(server, name) for name in ("replies", "sent_bytes", "received_bytes")}
        for name, value in self.values.items():
            setattr(server, name, value)
        for name, more in opened.items():
            setattr(server, name, getattr(server, name) + more)
        server._proposals.tol = server.tol
        for place in range(server.n if server.state is not None else 0):
            server.state = server.solver.lost(server.state, place)  # the workers are new
        server._schedule.new_round()
        if self.course is None:
            server.rng.bit_generator.state = self.random
            self._go_on(server)
        elif not self._sweep_again(server, self.course):
            log.warning("the sweeps of the checkpoint cannot be taken up where they were; they begin anew")
            server.rng.bit_generator.state = self.random
            self._begin_again(server)

    def _same_data(self, server: Server) -> None:
        """Refuse other data than those of the checkpoint."""
        moments = server._moments
        # Not every run has sketches.
        sketches = np.where(np.isnan(moments.sketches), moments.sketches, self.sketches)
        sketched = np.where(np.isnan(self.sketches), self.sketches, moments.sketches)
        for what, then, now, off in (
            ("rows", self.counts, moments.counts, 0.0),
            ("total variance", self.traces, moments.traces, 0.0),
            ("product with a random vector", sketches[:, 0], sketched[:, 0], 0.0),
            ("product's direction", sketches[:, 1], sketched[:, 1], 1e-6),
            ("mean", sketches[:, 2], sketched[:, 2], 0.0),
            ("mean's direction", sketches[:, 3], sketched[:, 3], 1e-6),
        ):
            same = np.isclose(then, now, rtol=1e-7, atol=off, equal_nan=True)
            if not same.all():
                place = int(np.flatnonzero(~same)[0])
                raise InvalidInput(
                    f"component {self.members[place]} is not that of the checkpoint: its {what} was "
                    f"{then[place]:.10g} and is {now[place]:.10g}. Resume with the same data, in order."
                )
        held = None if server.problem is None else server.problem.d
        known = len(self.values["_start"])
        if held != known:
            raise InvalidInput(f"the checkpoint is of data with {known} features; got {held}.")

    def _go_on(self, server: Server) -> None:
        if server.phase == SOLVING:
            server._schedule.ask_only(self.to_ask if server._round is not None else server.members)
            server._schedule.take_turns(self.turns)
        else:
            server._certify()  # the run had come to its end, which may not be that of this one

    def _begin_again(self, server: Server) -> None:
        if server.phase == CERTIFYING:
            server.state = server.solver.restart(server.state, server.solver.subspace(server.state))
            server._enter_solving()
        else:
            server._set_out(Course("prepare", {}, server.rng))

    def _sweep_again(self, server: Server, course: Course) -> bool:
        """Bring the course of sweeps back to where it was; False if it asks for something else now."""
        assert server.problem is not None
        assert self.sweep is not None
        server.rng.bit_generator.state = course.drawn_from
        if course.kind == "certify":
            course.arguments = {**course.arguments, "tol": server.tol}  # it may be another one now
        course.begin(server.solver, server.problem, server.rng, server._noise)
        block = course.next(None)
        for product, parts in course.heard:
            if block is None or block.shape != product.shape:
                return False
            server._largest_parts = parts
            block = course.next(product)
        if block is None and course.kind == "certify":  # for this tolerance it has heard enough
            server._arrive(course)
            return True
        asked = self.sweep.block
        if block is None or block.shape != asked.shape:
            return False
        if not np.allclose(block, asked, rtol=0.0, atol=1e-9 * float(np.abs(asked).max())):
            return False  # another library or machine may round otherwise
        server._course, server._sweep = course, self.sweep
        server._schedule.ask_only(self.to_ask)
        return True
