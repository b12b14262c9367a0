"""Table 1 of the paper, measured: component products to an accuracy, against gap, staleness and accuracy.

A family of small synthetic problems on which one quantity is varied at a time. The sum has the eigenvalues
1 and 0.9 (for IARG, whose k is one, 1 alone), then, a gap `delta` below, all the others but the last, which
is 0: every direction feels the gap, and the spread nu is 1 throughout. The components differ from the sum by
symmetric noise that sums to zero. Starts are random at a distance of 0.5, where the paper's rates hold.
Accuracy is the squared geodesic distance, as in the paper.

Steps are the best of a grid, for every point anew: what is fitted is what a method can do, not what a
theorem's step does. The staleness comes from half of the workers being slower than the others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import grassia
from grassia import geometry, solvers
from grassia.backends import Backend, Serial, Simulated
from grassia.backends.service import Fixed
from grassia.messages import Array
from grassia.result import Status
from grassia.run import Progress

REVISION = 1
N, D, NOISE = 8, 24, 0.25
START = 0.5
MOST_CALLS = 12_000

DELTAS = (0.3, 0.2, 0.12, 0.07, 0.04)
SLOWNESS = (1.0, 2.0, 4.0, 8.0, 16.0)
LEVELS = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)
NOISY_LEVELS = (1e-2, 5e-3, 2e-3, 1e-3, 5e-4)
DELTA, LEVEL, NOISY_LEVEL = 0.12, 1e-8, 2e-3


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Table 1.

    `delta`, `tau`, `epsilon` are the paper's exponents of 1/delta, tau and 1/epsilon (0: logarithmic,
    None: not in its bound). `steps` is the grid of steps, ascending, in units of `_unit`; (): no step.
    `sequential` methods have one product under way at a time, so that there is no staleness to vary;
    one that `waits` asks all workers for the same.
    """

    label: str
    solver: str
    bound: str
    delta: float
    tau: float | None
    epsilon: float = 0.0
    steps: tuple[float, ...] = ()
    parameters: tuple[tuple[str, Any], ...] = ()
    k: int = 2
    sequential: bool = False
    waits: bool = False


def _grid(low: float, high: float, ratio: float) -> tuple[float, ...]:
    """A geometric grid from low to about high."""
    return tuple(low * ratio**j for j in range(1 + round(math.log(high / low) / math.log(ratio))))


ROWS = (
    Row("Orthogonal Iteration", "orthogonal", "n δ⁻¹ log(1/ε)", 1, None, waits=True),
    Row("RGD", "rgd", "n δ⁻¹ log(1/ε)", 1, None, steps=_grid(0.5, 1.0, 2**0.5), waits=True),
    Row(
        "Block Oja",
        "oja",
        "δ⁻² / ε",
        2,
        None,
        epsilon=1,
        steps=_grid(0.02, 0.16, 2.0),
        parameters=(("order", "random"),),
        sequential=True,
    ),
    Row("VR-PCA", "vrpca", "(n + δ⁻²) log(1/ε)", 2, None, steps=_grid(1.0, 64.0, 4.0), sequential=True),
    Row("FedPower", "fedpower", "n δ⁻¹ log(1/ε)", 1, None, waits=True),
    Row("IARG (k = 1)", "iarg", "τ δ⁻² log(1/ε)", 2, 1, steps=_grid(0.03, 0.34, 2**0.5), k=1),
    Row("GRASSIA", "grassia", "τ δ⁻¹ log(1/ε)", 1, 1, steps=_grid(0.03, 0.34, 2**0.5)),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: a row at a gap, a slowness of half of the workers, and an accuracy."""

    row: Row
    delta: float
    slowness: float
    level: float

    def key(self, seeds: tuple[int, ...]) -> str:
        written = [REVISION, N, D, NOISE, START, MOST_CALLS, seeds, dataclasses.asdict(self)]
        return hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Measured:
    """Component products needed (geometric mean over seeds), the step that needed least, the staleness."""

    calls: float
    step: float | None
    tau: float


@dataclass(frozen=True, slots=True)
class Instance:
    """Dense components with a known leading space."""

    parts: tuple[Array, ...]
    oracle: Array
    start: Array


def instance(delta: float, k: int, seed: int) -> Instance:
    """A problem of the family."""
    rng = np.random.default_rng([seed, k])
    basis = np.asarray(geometry.random_point(D, D, rng))
    top = np.array([1.0, 0.9])[2 - k :] + (0.1 if k == 1 else 0.0)
    values = np.r_[top, np.full(D - k - 1, top[-1] - delta), 0.0]
    A = (basis * values) @ basis.T
    noise: Any = rng.standard_normal((N, D, D))
    noise = noise + noise.transpose(0, 2, 1)
    noise -= noise.mean(axis=0)
    noise *= NOISE / np.mean([np.linalg.norm(part, 2) for part in noise])
    oracle = basis[:, :k]
    tangent = np.asarray(geometry.project(oracle, rng.standard_normal((D, k))))
    start = geometry.exp(oracle, START * tangent / np.linalg.norm(tangent))
    return Instance(tuple(A + part for part in noise), oracle, np.asarray(start))


def points(row: Row, quick: bool = False) -> dict[str, list[Point]]:
    """What is measured of a row: along delta, tau and epsilon, each varied alone."""
    stride = 2 if quick else 1
    noisy = row.epsilon > 0
    level, levels = (NOISY_LEVEL, NOISY_LEVELS) if noisy else (LEVEL, LEVELS)
    found = {
        "delta": [Point(row, delta, 1.0, level) for delta in DELTAS[::stride]],
        "epsilon": [Point(row, DELTA, 1.0, one) for one in levels[::stride]],
    }
    if not row.sequential:
        found["tau"] = [Point(row, DELTA, slow, level) for slow in SLOWNESS[::stride]]
    return found


def measure(point: Point, seeds: tuple[int, ...]) -> Measured:
    """Products needed with the best step of the grid; infinite if no step reaches the accuracy.

    The grid is searched with the first seed; of its two best steps the better over all seeds counts.
    """
    problems = [instance(point.delta, point.row.k, seed) for seed in seeds]
    least = math.inf
    tried: list[tuple[float, float | None, float]] = []
    for step in _steps(point):
        calls, tau = _run(point, problems[0], step, seeds[0], min(MOST_CALLS, least))
        least = min(least, calls)
        tried.append((calls, step, tau))
    best = Measured(math.inf, None, math.nan)
    for calls, step, tau in sorted(tried, key=lambda one: one[0])[:2]:
        runs: list[tuple[float, float]] = [(calls, tau)]
        for seed, problem in zip(seeds[1:], problems[1:], strict=True):
            if math.isfinite(runs[-1][0]):
                runs.append(_run(point, problem, step, seed, MOST_CALLS))
        mean = math.exp(sum(math.log(one[0]) for one in runs) / len(runs))
        if mean < best.calls:
            best = Measured(mean, step, max(one[1] for one in runs))
    return best


def _steps(point: Point) -> list[float | None]:
    """The grid of steps, small ones first: a step too large only wastes what a good one needs."""
    return [float(_unit(point) * step) for step in point.row.steps] or [None]


def _unit(point: Point) -> float:
    """What a step is a multiple of, by the theory of the method; the grid finds the factor."""
    row = point.row
    if row.epsilon > 0:  # the noise that is left is proportional to step / delta
        return (point.level / NOISY_LEVEL) * (point.delta / DELTA)
    # An aggregate ages with the slow half of the workers; other steps depend on the spread alone, which is 1.
    return 1.0 if row.waits or row.sequential else 1.0 / point.slowness


def _run(point: Point, problem: Instance, step: float | None, seed: int, most: float) -> tuple[float, float]:
    """(products until the accuracy is reached, largest staleness); infinite where it is not reached."""
    row = point.row
    parameters = dict(row.parameters) | ({} if step is None else {"step": step})
    watch = _Watch(problem, point.level, most, row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = grassia.eigenspace(
            problem.parts,
            row.k,
            solver=solvers.make(row.solver, **parameters),
            backend=_engine(row, point.slowness),
            tol=1e-15,
            v0=problem.start,
            rng=seed,
            max_passes=1e9,
            callbacks=watch,
        )
    if result.status is Status.INTERRUPTED and not watch.finished:
        raise KeyboardInterrupt
    stale = result.history["staleness"]
    return watch.reached, float(stale.max()) if stale.size else 0.0


def _engine(row: Row, slowness: float) -> Backend:
    if row.sequential:
        return Serial()
    # A little apart, so that answers come one at a time.
    times = [(1.0 if i < N // 2 else slowness) * (1.0 + 0.013 * i) for i in range(N)]
    return Simulated(Fixed(times), free_tasks=1)


class _Watch:
    """Ends a run when the accuracy is reached, or at `most` products.

    A stochastic method passes below its noise now and then by chance: of that one, the mean over a pass has
    to be below.
    """

    def __init__(self, problem: Instance, level: float, most: float, row: Row) -> None:
        self._oracle, self._level, self._most, self._row = problem.oracle, level, most, row
        self._window = N if row.epsilon > 0 else 1
        self._recent: list[float] = []
        self._version = -1
        self.finished = False
        self.reached = math.inf

    def __call__(self, progress: Progress) -> bool:
        W = progress.vectors
        if W is None or progress.version == self._version or self.finished:
            return self.finished
        self._version = progress.version
        calls = products(self._row, sum(progress.answers) - N)
        sines = np.linalg.svd(W - self._oracle @ (self._oracle.T @ W), compute_uv=False)
        self._recent.append(float(np.sum(np.arcsin(np.minimum(sines, 1.0)) ** 2)))
        del self._recent[: -self._window]
        if len(self._recent) == self._window and np.mean(self._recent) <= self._level:
            self.reached, self.finished = float(max(calls, 1)), True
        elif calls >= self._most:
            self.finished = True
        return self.finished


def products(row: Row, answers: int) -> int:
    """Component products behind so many answers: FedPower makes several for one."""
    if row.solver != "fedpower":
        return answers
    default: Any = solvers.get("fedpower")
    done, rounds = 0, -(-answers // N)
    for number in range(rounds):
        steps = max(1, default.local_steps >> (number // default.decay))
        done += steps * min(N, answers - number * N)
    return done


# -- what is made of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """A power law through points, and how much of the variation of the logarithms it explains."""

    exponent: float
    r2: float


def power_law(x: Array, y: Array) -> Fit | None:
    """Least squares of log y on log x; None with fewer than three finite points.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(power_law(x, 5.0 * x**1.5).exponent, 6)
    1.5
    """
    keep = np.isfinite(x) & np.isfinite(y) & (x > 0.0) & (y > 0.0)
    if keep.sum() < 3:
        return None
    return Fit(*_line(np.log(x[keep]), np.log(y[keep])))


def per_factor_e(levels: Array, calls: Array) -> Fit | None:
    """Least squares of calls on log(1/epsilon): the slope, in products for each factor e."""
    keep = np.isfinite(calls)
    if keep.sum() < 3:
        return None
    return Fit(*_line(np.log(1.0 / levels[keep]), calls[keep]))


def _line(x: Array, y: Array) -> tuple[float, float]:
    slope, offset = np.polyfit(x, y, 1)
    left, all_of_it = np.sum((y - slope * x - offset) ** 2), np.sum((y - y.mean()) ** 2)
    return float(slope), float(1.0 - left / all_of_it) if all_of_it > 0.0 else 1.0


class Store:
    """Measurements in one JSON file, each under the key of what it depends on."""

    def __init__(self, path: Path, seeds: tuple[int, ...]) -> None:
        self._path, self._seeds = path, seeds
        self._held: dict[str, list[float | None]] = {}
        try:
            self._held = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            self._held = {}

    def missing(self, wanted: list[Point]) -> list[Point]:
        """Those that have to be measured, each once."""
        new = {point.key(self._seeds): point for point in wanted}
        return [point for key, point in new.items() if key not in self._held]

    def add(self, point: Point, tell: Callable[[float], None] | None = None) -> None:
        """Measure and keep."""
        found = measure(point, self._seeds)
        calls = None if math.isinf(found.calls) else found.calls
        self._held[point.key(self._seeds)] = [calls, found.step, found.tau]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(self._held), encoding="utf-8")
        partial.replace(self._path)

    def get(self, point: Point) -> Measured:
        """A measurement that is there."""
        calls, step, tau = self._held[point.key(self._seeds)]
        return Measured(math.inf if calls is None else calls, step, math.nan if tau is None else tau)
