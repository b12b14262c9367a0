"""A survey of the whole sum: certified bounds of its gap after k, its spread and its optimum.

Lower bounds of leading eigenvalues are Ritz values; upper bounds come from residuals and from random vectors
(see `ends`), and hold with the stated confidence. No d x d matrix is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from grassia import geometry
from grassia.blocks import spectral_norm
from grassia.ends import Ends, Interval
from grassia.messages import Array
from grassia.solvers.base import Problem
from grassia.solvers.krylov import Krylov
from grassia.theory.certified import Cut

#: The gap is not bounded more sharply than to this part of it.
GAP_ACCURACY = 0.2
#: Bytes for Lanczos vectors on the server.
MEMORY = 1e9


def survey(
    problem: Problem,
    rng: np.random.Generator,
    noise: Callable[[], float],
    *,
    confidence: float = 0.999,
    max_sweeps: int = 100,
) -> Generator[Array, Array, Cut]:
    """Bound the gap after k, the spread and the optimum of A; a generator driven like `certify`.

    Block Krylov until the residual is a tenth of the gap, so that Ritz values are good to a hundredth of it.
    What lies outside of `W` is bounded by Lanczos from random vectors there, until the gap is known to a
    fifth. Each takes `max_sweeps` at most; with a gap too small for that the lower bound of `delta` may be
    negative. `noise` is that of `certify`.
    """
    d, k = problem.d, problem.k
    solver, sweeps = Krylov(), 0
    state = solver.init(
        replace(problem, cold=True), geometry.random_point(d, k, rng), int(rng.integers(2**62))
    )
    while sweeps < max_sweeps or state.values is None:
        state = solver._complete(state, (yield state.round.block))
        sweeps += 1
        if state.residual is None or state.values is None:
            continue
        if state.after is None or state.residual <= 0.1 * (float(state.values[-1]) - state.after):
            break
    product = yield np.ascontiguousarray(state.W)
    found = Ritz.of(state.W, product, noise())
    sweeps += 1
    if k == d:
        return _whole(found, sweeps)
    rest = Ends(d, rng, width=_width(d), outside=state.W)
    for step in range(1, min(max_sweeps, d - k) + 1):
        rest.take((yield rest.block))
        sweeps += 1
        if step % 3 and step < min(max_sweeps, d - k):
            continue
        bottom, top = rest.bounds(confidence, noise())
        if found.cut - top.high >= (1.0 - GAP_ACCURACY) * (found.cut - top.low):
            break
    return _summed_up(problem, found, bottom, top, sweeps)


def _width(d: int) -> int:
    """How many random vectors: all that they become is kept, for some sixty steps."""
    return max(1, min(8, int(MEMORY / (8.0 * d * 60))))


@dataclass(frozen=True, slots=True)
class Ritz:
    """Ritz values, descending, the norm of the residual, and an allowance for rounding."""

    values: Array
    residual: float
    rounding: float

    @classmethod
    def of(cls, W: Array, product: Array, noise: float) -> Ritz:
        d, k = W.shape
        values, turn = geometry.ritz(W, product)
        size = float(np.max(np.linalg.norm(product, axis=0)))
        rounding = 4.0 * float(np.finfo(np.float64).eps) * math.sqrt(d * k) * size + noise
        R = product @ turn - (W @ turn) * values
        return cls(values, spectral_norm(R) + rounding, rounding)

    @property
    def cut(self) -> float:
        return float(self.values[-1])

    def errors(self, upper: float) -> Array:
        """How far eigenvalues can be above the Ritz values, all others being at most `upper`."""
        heights = self.values - upper
        # In norms A is at most [[values, residual], [residual, upper]].
        found = self.residual + np.maximum(-heights, 0.0)
        found[heights > 0.0] = self.residual**2 / np.maximum(heights, self.residual)[heights > 0.0]
        return np.asarray(found + self.rounding)


def _whole(found: Ritz, sweeps: int) -> Cut:
    """Where W is the whole space there is no cut, and the rest is known."""
    total, room = float(np.sum(found.values)), len(found.values) * found.rounding
    nu = float(found.values[0] - found.values[-1])
    return Cut(
        delta=Interval(0.0, math.inf),
        nu=Interval(max(0.0, nu - 2.0 * found.rounding), nu + 2.0 * found.rounding),
        optimum=Interval(total - room, total + room),
        sweeps=sweeps,
    )


def _summed_up(problem: Problem, found: Ritz, bottom: Interval, top: Interval, sweeps: int) -> Cut:
    """`bottom` and `top` are the ends of the spectrum of A restricted to the complement of W.

    `top` is no less than the eigenvalue after the cut (Cauchy); and since k + 1 eigenvalues sum up to what W
    and the best vector outside capture, it is no more than what W misses above that eigenvalue.
    """
    values, errors, rounding = found.values, found.errors(top.high), found.rounding
    captured, missed = float(np.sum(values)), float(np.sum(errors))
    # What couples W with its complement lowers the least eigenvalue by no more than the residual.
    least = min(bottom.low, found.cut) - found.residual
    if problem.positive:
        least = max(least, 0.0)
    first = float(values[0])
    spread = first - min(bottom.high, found.cut) - 2.0 * rounding
    return Cut(
        delta=Interval(found.cut - rounding - top.high, found.cut + float(errors[-1]) - top.low + missed),
        nu=Interval(max(0.0, spread), first + float(errors[0]) - least),
        optimum=Interval(captured - problem.k * rounding, captured + missed),
        sweeps=sweeps,
    )
