"""One curve of a figure: a solver on a problem, its error along the way. And many, kept in files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import grassia
from grassia import solvers
from grassia.backends import Backend, Serial, Simulated
from grassia.backends.service import speeds
from grassia.experiments.problems import Problem
from grassia.messages import Array
from grassia.result import Status
from grassia.run import Progress
from grassia.solvers import Solver

# Counted up when the meaning of a kept curve changes, so that old ones are not taken for new.
REVISION = 1
SLOWEST = 5
# Below is nothing but rounding: a run ends there.
FLOOR = 1e-13


@dataclass(frozen=True, slots=True)
class Method:
    """A line of a figure: which solver, with which parameters, called what.

    `evaluate` is that of the simulated cluster: at which iterate an answer is computed.
    """

    label: str
    solver: str
    parameters: tuple[tuple[str, Any], ...] = ()
    evaluate: Literal["return", "dispatch"] = "return"

    def make(self) -> Solver[Any]:
        """The solver object."""
        return solvers.make(self.solver, **dict(self.parameters))

    def with_step(self, step: float) -> Method:
        """The same with another step."""
        parameters = {**dict(self.parameters), "step": step}
        return dataclasses.replace(self, parameters=tuple(parameters.items()))

    @property
    def step(self) -> float | None:
        """Its step, where it has one."""
        found = dict(self.parameters).get("step")
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True)
class Range:
    """How far a curve goes and in how many points it is measured.

    `axis` "samples": one after the other on one machine, counted in passes over the data; "time": on the
    simulated cluster, whose worker times are drawn from 1..5, in ticks.
    """

    axis: Literal["samples", "time"]
    until: float
    points: int


@dataclass(frozen=True, slots=True)
class Task:
    """A curve to be computed: everything it depends on but the rows themselves."""

    data: str
    method: Method
    seed: int
    range: Range

    def key(self, fingerprint: str) -> str:
        """What a kept curve must carry to be this one; the label on it does not matter."""
        written = dataclasses.asdict(self)
        del written["method"]["label"]
        solver = solvers.parameters(self.method.make())
        text = json.dumps([REVISION, written, solver, fingerprint], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Curve:
    """Errors along a run.

    Attributes
    ----------
    x : ndarray
        Samples passed (axis "samples") or the clock (axis "time"), ascending.
    distance, gap : ndarray
        Geodesic distance and objective gap there.
    calls : ndarray
        Component products so far.
    status : str
        How the run ended; INTERRUPTED at the end of the range, or at a distance of rounding size.
    """

    x: Array
    distance: Array
    gap: Array
    calls: Array
    status: str

    def at(self, x: Array | float) -> Any:
        """The distance at other places: the last one measured, also beyond the end of a run."""
        return self._last(self.distance, x)

    def gap_at(self, x: Array | float) -> Any:
        """The objective gap, likewise."""
        return self._last(self.gap, x)

    def _last(self, values: Array, x: Array | float) -> Any:
        index = np.searchsorted(self.x, np.asarray(x) * (1.0 + 1e-12), side="right") - 1
        return values[np.maximum(index, 0)]

    def reaches(self, level: float) -> float:
        """Where the distance is at or below `level` for the first time; infinite if nowhere."""
        below = np.flatnonzero(self.distance <= level)
        return float(self.x[below[0]]) if below.size else np.inf


class Recorder:
    """A callback that keeps the iterate at evenly spaced places and ends the run after the last."""

    def __init__(self, problem: Problem, range: Range, tell: Callable[[float], None] | None) -> None:
        self._problem, self._sizes = problem, np.array(problem.parts)
        self._range, self._tell = range, tell
        total = range.until * (self._sizes.sum() if range.axis == "samples" else 1.0)
        self._places = np.linspace(0.0, total, range.points)
        self._next = 0
        self.finished = False
        self.x: list[float] = []
        self.calls: list[int] = []
        self.distances: list[float] = []
        self.iterates: list[Array] = []

    def __call__(self, progress: Progress) -> bool:
        W = progress.vectors
        if W is None or self.finished:
            return self.finished
        answers = np.array(progress.answers) - 1  # the first was the opening
        x = float(self._sizes @ answers) if self._range.axis == "samples" else progress.time
        if x >= self._places[self._next] * (1.0 - 1e-12):
            self.keep(x, int(answers.sum()), W)
            self._next = int(np.searchsorted(self._places, x * (1.0 + 1e-12), side="right"))
            self.finished = self._next >= len(self._places) or self.distances[-1] <= FLOOR
            if self._tell is not None:
                self._tell(min(1.0, x / float(self._places[-1])))
        return self.finished

    def keep(self, x: float, calls: int, W: Array) -> None:
        if self.x and x <= self.x[-1]:  # several turns of the loop at one time: the last counts
            for kept in (self.x, self.calls, self.distances, self.iterates):
                kept.pop()
        self.x.append(x)
        self.calls.append(calls)
        self.distances.append(self._problem.distance(W))
        self.iterates.append(np.array(W))


def compute(task: Task, problem: Problem, tell: Callable[[float], None] | None = None) -> Curve:
    """Run a task; `tell` is given the part done now and then.

    The start is that of the seed, the same for every method. On the simulated cluster the opening and the
    first product of each worker are free, so that worker i returns at the multiples of its own time, as the
    paper has it.
    """
    recorder = Recorder(problem, task.range, tell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no run is meant to converge: it ends with the range
        result = grassia.eigenspace(
            problem.components,
            problem.k,
            solver=task.method.make(),
            backend=_engine(task, len(problem.parts)),
            tol=1e-15,
            v0=start(problem, task.seed),
            rng=task.seed,
            max_passes=1e9,
            callbacks=recorder,
            precision="float64",
        )
    if result.status is Status.INTERRUPTED and not recorder.finished:
        raise KeyboardInterrupt
    if not recorder.finished:  # it converged, or can come no further: that is the last point
        spent = np.array(result.stats["answers"]) - 1
        samples = task.range.axis == "samples"
        x = float(np.array(problem.parts) @ spent) if samples else float(result.stats["seconds"])
        recorder.keep(x, int(spent.sum()), result.vectors)
    return Curve(
        np.array(recorder.x),
        np.array(recorder.distances),
        problem.gaps(recorder.iterates),
        np.array(recorder.calls),
        result.status.name,
    )


def start(problem: Problem, seed: int) -> Array:
    """The random start of a seed."""
    d = problem.rows.shape[1]
    return np.asarray(grassia.geometry.random_point(d, problem.k, np.random.default_rng([seed, d])))


def _engine(task: Task, n: int) -> Backend:
    if task.range.axis == "samples":
        return Serial()
    times = speeds(n, 1, SLOWEST, np.random.default_rng(task.seed))
    return Simulated(times, evaluate=task.method.evaluate, free_tasks=2, seed=task.seed)


# -- many, kept ---------------------------------------------------------------------------------


class Store:
    """Curves in files of a folder, each with the key of what it depends on.

    A curve whose file is missing, damaged or of another key is computed, the others are read. Files are
    written under another name first, so that an interrupted run leaves whole files only.
    """

    def __init__(self, folder: Path, problem: Callable[[str], Problem]) -> None:
        self.folder = folder
        self._problem = problem
        self._held: dict[str, Curve] = {}

    def missing(self, tasks: Iterable[Task]) -> list[Task]:
        """Those that have to be computed, each once."""
        wanted: dict[str, Task] = {}
        for task in tasks:
            key = self._key(task)
            if key not in self._held:
                found = _read(self._path(task, key), key)
                if found is None:
                    wanted[key] = task
                else:
                    self._held[key] = found
        return list(wanted.values())

    def add(self, task: Task, tell: Callable[[float], None] | None = None) -> Curve:
        """Compute and keep a curve."""
        key = self._key(task)
        curve = compute(task, self._problem(task.data), tell)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(task, key)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        with partial.open("wb") as file:
            np.savez(file, key=np.array(key), **dataclasses.asdict(curve))
        partial.replace(path)
        self._held[key] = curve
        return curve

    def get(self, task: Task) -> Curve:
        """A curve that is there."""
        return self._held[self._key(task)]

    def rows(self, data: str) -> int:
        """The rows of a data set."""
        return int(self._problem(data).rows.shape[0])

    def _key(self, task: Task) -> str:
        return task.key(self._problem(task.data).fingerprint)

    def _path(self, task: Task, key: str) -> Path:
        name = f"{task.data}-{task.method.solver}-{task.seed}-{key[:12]}.npz".replace(" ", "-")
        return self.folder / name


def _read(path: Path, key: str) -> Curve | None:
    try:
        with np.load(path) as file:
            if str(file["key"]) != key:
                return None
            arrays = {name: file[name] for name in ("x", "distance", "gap", "calls")}
            return Curve(**arrays, status=str(file["status"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
