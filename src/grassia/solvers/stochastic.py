"""What the stochastic methods share: an answer moves the iterate by itself, and nothing is remembered of it.

An answer of component i stands for the whole sum, so it counts n w_i times: over a pass in which each
component is heard once, the directions average to that of A. There is no aggregate, so the noise of single
components stays: a constant step leads into a neighbourhood whose size is proportional to it, a step that
falls like 1/t to the eigenspace, sublinearly. Where some workers answer more often than others, the
neighbourhood is that of `sum p_i n w_i A_i`, p_i the share of i in the answers, and no step mends that.

Nothing is cached by anyone, so a lost worker costs the repetition of its task and nothing else.
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grassia import geometry
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.solvers.aggregate import put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.rgd import check_step
from grassia.spectrum import LeadingSpectrum, leading_spectrum


@dataclass(frozen=True, slots=True)
class PassEstimate:
    """Residual and captured variance, from the first answer of each component in a pass. O(dk) memory.

    The iterate moves during the pass, so the estimate is off by about what it moved: a residual at the
    noise floor reads as one. `residual` and `captured` are those of the last pass that is complete.
    """

    tangents: Array
    heard: Any
    sum: float = 0.0
    residual: float | None = None
    captured: float = 0.0

    @classmethod
    def empty(cls, n: int, like: Array) -> PassEstimate:
        """Before anything was heard."""
        return cls(np.zeros_like(like), np.zeros(n, dtype=bool))

    def add(self, component: int, weight: float, tangent: Array, captured: float) -> PassEstimate:
        """Count `(I - WW') A_i W` and `trace(W' A_i W)` of a component, unless this pass has it already."""
        if self.heard[component]:
            return self
        tangents, total = self.tangents + weight * tangent, self.sum + weight * captured
        heard = put(self.heard, component, True)
        if not heard.all():
            return replace(self, tangents=tangents, sum=total, heard=heard)
        begun = self.empty(len(heard), tangents)
        return replace(begun, residual=float(np.linalg.norm(tangents)), captured=total)

    def exact(self, residual: float, captured: float) -> PassEstimate:
        """A consistent sweep has found both."""
        begun = self.empty(len(self.heard), self.tangents)
        return replace(begun, residual=residual, captured=captured)


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place."""

    problem: Problem
    W: Array
    estimate: PassEstimate
    version: int = 0
    step: float = math.nan
    spectrum: LeadingSpectrum | None = None
    worst: int = 0  # largest staleness seen


@dataclass(frozen=True)
class Stochastic(Solver[State]):
    """Base of the stochastic methods, which only say what to ask and where an answer leads."""

    step: float | str = "auto"
    decay: float | None = None
    order: str = "shuffled"

    def __post_init__(self) -> None:
        check_step(self.step)
        decay = self.decay
        if decay is not None and not (_is_real(decay) and 0.0 <= float(decay) < math.inf):
            raise InvalidInput(f"`decay` must be a finite number of at least 0, or None; got {decay!r}.")
        if self.order not in ("cyclic", "shuffled", "random"):
            raise InvalidInput(f"`order` must be 'cyclic', 'shuffled' or 'random'; got {self.order!r}.")

    # -- what a method says -----------------------------------------------------------------------

    @abstractmethod
    def _read(self, W: Array, arrival: Arrival) -> tuple[Array, Array, float]:
        """(the direction that is added to W, `(I - VV') A_i V`, `trace(V' A_i V)`) of an answer."""

    # -- what the server calls --------------------------------------------------------------------

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, LeadingSpectrum] | None:
        return leading_spectrum(problem.d, problem.k, rng) if self.step == "auto" else None

    def init(self, problem: Problem, W: Array, prepared: LeadingSpectrum | None) -> State:
        return State(problem, W, PassEstimate.empty(problem.n, W), spectrum=prepared)

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        for arrival in arrivals:
            state = self._move(state, arrival)
        return state

    def residual(self, state: State) -> float | None:
        return state.estimate.residual

    def scale(self, state: State) -> float:
        return max(abs(state.estimate.captured) / state.problem.k, float(np.finfo(np.float64).tiny))

    def step_size(self, state: State) -> float:
        return state.step

    def sweep_done(self, state: State, product: Array) -> State:
        residual = float(np.linalg.norm(geometry.project(state.W, product)))
        return replace(state, estimate=state.estimate.exact(residual, float(np.sum(state.W * product))))

    def restart(self, state: State, W: Array) -> State:
        begun = self.init(state.problem, W, state.spectrum)
        return replace(begun, version=state.version + 1, worst=state.worst)

    # -- the algorithm ----------------------------------------------------------------------------

    def _move(self, state: State, arrival: Arrival) -> State:
        # What arrives together moves the iterate one after the other: the later ones are staler by that.
        worst = max(state.worst, state.version - arrival.version)
        state = replace(state, worst=worst)
        i, n, weight = arrival.component, state.problem.n, float(state.problem.weights[arrival.component])
        direction, tangent, captured = self._read(state.W, arrival)
        step = self._step(state)
        return replace(
            state,
            W=geometry.polar(state.W + (step * n * weight) * direction),
            estimate=state.estimate.add(i, weight, tangent, captured),
            version=state.version + 1,
            step=step,
        )

    def _step(self, state: State) -> float:
        """The step of this update: `step / (1 + decay t)`; see the parameters."""
        t = state.version
        if not isinstance(self.step, str):
            return float(self.step) / (1.0 + (self.decay or 0.0) * t)
        spectrum = state.spectrum
        assert spectrum is not None
        size = max(abs(float(spectrum.values[0])), abs(spectrum.smallest))
        if size == 0.0:
            return 1.0  # there is nothing to find: any step does
        first = 0.2 / (size * (1.0 + state.worst))
        if self.decay is not None:
            return first / (1.0 + self.decay * t)
        gap = spectrum.gap(state.problem.k)
        # Then the start is forgotten like 1/t^2, faster than the noise, which goes with the step.
        decay = 0.5 * first * gap if 0.0 < gap < math.inf else 0.0
        return first / (1.0 + decay * t)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
