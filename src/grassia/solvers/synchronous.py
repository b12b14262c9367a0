"""What the synchronous solvers share: a round asks every component for the same block and sums the products.

The slowest worker sets the pace, and in return every product the method sees is exact: residuals are true
and Rayleigh-Ritz is rigorous. A lost worker costs the repetition of its task and nothing else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from grassia import geometry
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival, Problem, Solver

MethodT = TypeVar("MethodT")


@dataclass(frozen=True, slots=True)
class Round:
    """The block asked of every component, and the weighted sum of the answers so far."""

    block: Array
    total: Array
    awaiting: int
    number: int = 0

    @classmethod
    def of(cls, block: Array, n: int, number: int = 0) -> Round:
        """A round in which nothing has arrived."""
        block = np.ascontiguousarray(block)
        return cls(block, np.zeros_like(block), n, number)

    def add(self, weighted: Array) -> Round:
        """One more answer."""
        return replace(self, total=self.total + weighted, awaiting=self.awaiting - 1)


@dataclass(frozen=True, slots=True)
class State(Generic[MethodT]):
    """The state of a synchronous solver: a value, arrays are never changed in place.

    `residual` is None before the first round is complete. `values` are the Ritz values of `W`, `after` is the
    one after them, `gap` is that of `Solver.gap`, `product` is `A W` where the method has it. `method` is
    what the method itself remembers.
    """

    problem: Problem
    W: Array
    round: Round
    method: MethodT
    version: int = 0
    residual: float | None = None
    values: Array | None = None
    gap: float | None = None
    after: float | None = None
    product: Array | None = None
    seed: int = 0


class Synchronous(Solver[State[MethodT]], Generic[MethodT]):
    """Base of the synchronous solvers, which only say what to ask first and what to make of products."""

    # -- what a method says -----------------------------------------------------------------------

    @abstractmethod
    def _first(self, problem: Problem, W: Array, seed: int) -> tuple[Array, MethodT]:
        """The first block to multiply, and what is remembered."""

    @abstractmethod
    def _advance(self, state: State[MethodT], product: Array) -> tuple[State[MethodT], Array]:
        """The state after a round, with `W`, `residual`, `values` and `method` new, and the next block."""

    # -- what the server calls --------------------------------------------------------------------

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, int] | None:
        return draw_seed(rng)

    def init(self, problem: Problem, W: Array, prepared: int | None) -> State[MethodT]:
        seed = prepared or 0
        block, method = self._first(problem, W, seed)
        return State(problem, W, Round.of(block, problem.n), method, seed=seed)

    def round(self, state: State[MethodT]) -> int:
        return state.round.number

    def ask(self, state: State[MethodT], component: int) -> Query | None:
        return Query("apply", {"block": state.round.block})

    def tell(self, state: State[MethodT], arrivals: Sequence[Arrival]) -> State[MethodT]:
        current = state.round
        for arrival in arrivals:
            weight = float(state.problem.weights[arrival.component])
            current = current.add(weight * arrival.arrays["product"])
        state = replace(state, round=current)
        return state if current.awaiting > 0 else self._complete(state, current.total)

    def _complete(self, state: State[MethodT], product: Array) -> State[MethodT]:
        number, before = state.round.number + 1, state.W
        state, block = self._advance(state, product)
        begun = Round.of(block, state.problem.n, number)
        return replace(state, round=begun, version=state.version + (state.W is not before))

    def scale(self, state: State[MethodT]) -> float:
        values = np.zeros(1) if state.values is None else state.values
        return max(float(np.mean(np.abs(values))), float(np.finfo(np.float64).tiny))

    def gap(self, state: State[MethodT]) -> float | None:
        return state.gap

    def after(self, state: State[MethodT]) -> float | None:
        return state.after

    def claimed(self, state: State[MethodT]) -> Array | None:
        return state.product

    def lower_bound(self, state: State[MethodT]) -> float:
        return float("nan") if state.values is None else float(np.sum(state.values))

    def sweep_done(self, state: State[MethodT], product: Array) -> State[MethodT]:
        # Answers of an unfinished round that came in meanwhile were thrown away: ask for all of it again.
        current = state.round
        return replace(state, round=Round.of(current.block, state.problem.n, current.number + 1))

    def restart(self, state: State[MethodT], W: Array) -> State[MethodT]:
        problem = replace(state.problem, cold=False)
        block, method = self._first(problem, W, state.seed + 1)
        number = state.round.number + 1
        return replace(
            state,
            problem=problem,
            W=W,
            round=Round.of(block, state.problem.n, number),
            method=method,
            version=state.version + 1,
            residual=None,
            product=None,
            seed=state.seed + 1,
        )


def draw_seed(rng: np.random.Generator) -> Generator[Array, Array, int]:
    """A seed from the run's own generator; no product is asked for."""
    yield from ()
    return int(rng.integers(2**62))


def widened(basis: Array, width: int, seed: int | Sequence[int]) -> Array:
    """`basis` with random directions added, orthonormal, up to `width` columns or the whole space."""
    d, have = basis.shape
    more = min(width, d) - have
    if more <= 0:
        return basis
    noise = np.random.default_rng(seed).standard_normal((d, more))
    return np.hstack([basis, geometry.orthonormalize(noise, against=basis)])


def polished(Q: Array, Y: Array) -> tuple[Array, Array]:
    """A nearly orthonormal basis made orthonormal again, its products turned along.

    A basis that is turned round after round loses a little orthonormality each time; after some hundred
    rounds the defect is thirty times as large without this.
    """
    turn = 1.5 * np.eye(Q.shape[1]) - 0.5 * (Q.T @ Q)
    return Q @ turn, Y @ turn


def residual_norm(W: Array, product: Array, values: Array) -> float:
    """Spectral norm of `A W - W diag(values)`, for Ritz vectors."""
    return residual_and_gap(W, product, values, None)[0]


def residual_and_gap(
    W: Array,
    product: Array,
    values: Array,
    after: float | None,
    expected: tuple[Array, float] | None = None,
) -> tuple[float, float | None]:
    """(spectral norm of the residual of Ritz vectors, what to divide it by for the sine as `Solver.gap`).

    `expected` are the residual norms that there would be without rounding, and the sine that those speak for.
    What there is beyond them may point anywhere, also to what comes right after the cut.
    """
    R = product - W * values
    gram = R.T @ R
    largest = float(np.linalg.eigvalsh(gram)[-1])
    # A sum of squares that underflows or overflows says nothing.
    norm = math.sqrt(largest) if 1e-280 < largest < np.inf else float(np.linalg.norm(R, 2))
    if after is None:
        return norm, None
    gap = float(values[-1]) - after
    if not gap > 0.0 or norm == 0.0:
        return norm, gap
    if not gap > 1e-150 * norm:  # squares of the ratios would overflow
        return norm, gap
    squares, heights = np.diagonal(gram), values - after
    sine = float(np.linalg.norm(np.sqrt(squares) / heights))
    if expected is not None:
        lengths, known = expected
        more = np.sqrt(np.maximum(squares - lengths**2, 0.0))
        sine = min(sine, known + float(np.linalg.norm(more / heights)))
    return norm, max(gap, norm / sine) if sine > 0.0 else gap
