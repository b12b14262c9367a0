"""How long each solver takes under stragglers, on the virtual clock: every product is charged.

Time to a geodesic distance of 1e-3, 1e-6 and 1e-10 from the dense answer, medians over seeds, and the ratio
to synchronous block Krylov of unlimited memory at the same query width. Opening the data is free for all.

Data from GRASSIA_DATA: CIFAR-10 (5000 images centred, k = 3), in all scenes, and in 100 components; a1a and
w1a (k = 10, uncentred). Without the images, rows made with their leading spectrum serve.

    python benchmarks/stragglers.py [--data cifar a1a ...] [--scenes speeds straggler4 ...] [--widths 1 2 3]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_file

import grassia
from grassia.backends import Simulated
from grassia.backends.service import Fixed, LogNormal, Pareto, ServiceTime, speeds, straggler
from grassia.geometry import geodesic_distance
from grassia.solvers import Grassia, Krylov, Lobpcg, Nystrom, Power

LEVELS = (1e-3, 1e-6, 1e-10)
GIVE_UP = 1500.0  # virtual time
FEATURES = {"a1a": 123, "w1a": 300}

SCENES: dict[str, Callable[[int, int], ServiceTime]] = {
    "speeds": lambda n, seed: speeds(n, 1, 5, np.random.default_rng(seed)),
    "straggler4": lambda n, seed: straggler(n, 10.0),
    "straggler20": lambda n, seed: straggler(n, 20.0),
    "lognormal": lambda n, seed: LogNormal(),
    "pareto": lambda n, seed: Pareto(1.5),
    "equal": lambda n, seed: Fixed(1.0),
}


@dataclass(frozen=True)
class Task:
    """Rows in n components, and the answer."""

    name: str
    X: np.ndarray
    k: int
    n: int
    leading: np.ndarray
    best: float


@dataclass(frozen=True)
class Run:
    """Time to each level, smallest distance seen, and how far the lower bound ever fell, or was too high."""

    times: list[float]
    closest: float
    fault: float


def images() -> tuple[np.ndarray, str]:
    """Centred rows, and what they are."""
    file = Path(os.environ.get("GRASSIA_DATA", ".")) / "cifar10_train_5000.npz"
    if file.exists():
        with np.load(file) as data:
            X = data["images"].astype(np.float64)
        return X - X.mean(axis=0), "CIFAR-10, 5000 x 3072"
    rng = np.random.default_rng(7)
    scales = np.sqrt(np.r_[3.64e6, 1.40e6, 8.26e5, 4.62e5 / np.arange(1, 598) ** 1.2])
    X = rng.standard_normal((5000, 600)) * scales
    return X - X.mean(axis=0), "made rows, 5000 x 600"


def load(name: str) -> Task | None:
    """A data set by its name; None where it is absent."""
    if name.startswith("cifar"):
        k, n = 3, 100 if name == "cifar100" else 20
        X, what = images()
    else:
        k, n = 10, 20
        file = Path(os.environ.get("GRASSIA_DATA", ".")) / name
        if not file.exists():
            return None
        X = load_svmlight_file(str(file), n_features=FEATURES[name])[0].toarray()
        what = f"{name}, {X.shape[0]} x {X.shape[1]}, uncentred"
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    return Task(what, X, k, n, vectors[:, ::-1][:, :k], float(values[-k:].sum()))


def solvers(k: int, width: int, scene: str, name: str) -> dict[str, Any]:
    """Those compared at a query width; the first is what the others are measured against."""
    compared: dict[str, Any] = {
        "krylov, synchronous, unlimited": Krylov(width=width, memory="unlimited"),
        "nystrom": Nystrom(width=width),
        "nystrom, no prior": Nystrom(width=width, prior=False),
    }
    if width == k:
        compared["lobpcg, synchronous"] = Lobpcg()
        compared["nystrom, memory 4k"] = Nystrom(width=width, extra=k, memory=4 * k)
        if name == "cifar":
            compared["power"] = Power()
            if scene == "speeds":
                compared["grassia, step 5e-8"] = Grassia(step=5e-8)
    return compared


def measure(task: Task, solver: Any, n: int, service: ServiceTime, seed: int, to_the_end: bool) -> Run:
    """One run: until the last level is reached, or until the solver says so."""
    found: dict[float, float] = {}
    closest = math.inf

    def watch(progress: grassia.Progress) -> bool:
        nonlocal closest
        if progress.phase == "solving" and progress.version and progress.vectors is not None:
            distance = geodesic_distance(progress.vectors, task.leading)
            closest = min(closest, distance)
            for level in LEVELS:
                if distance <= level:
                    found.setdefault(level, progress.time)
        return (len(found) == len(LEVELS) and not to_the_end) or progress.time > GIVE_UP

    result = grassia.eigenspace(
        grassia.from_rows(task.X, n_components=n, center=False),
        task.k,
        solver=solver,
        rng=seed,
        tol=1e-13,
        backend=Simulated(service, free_tasks=1, seed=seed),
        callbacks=watch,
    )
    closest = min(closest, geodesic_distance(result.vectors, task.leading))
    bound, fault = result.history["bound"], 0.0
    if solver.name == "nystrom" and len(bound) > 1:
        fault = max(0.0, -np.nanmin(np.diff(bound)) / task.best, np.nanmax(bound) / task.best - 1.0)
    return Run([found.get(level, math.inf) for level in LEVELS], closest, fault)


def ratio(time: float, base: float) -> str:
    return f"{time / base:5.2f}" if math.isfinite(time / base) and base < math.inf else "    -"


def table(task: Task, name: str, scene: str, width: int, seeds: int) -> float:
    """Print one table; the largest fault of a lower bound in it."""
    n = 4 if scene == "straggler4" else task.n
    print(f"\n{task.name}, k = {task.k}, {scene}, n = {n}, query width {width}k")
    base: list[float] = []
    worst = 0.0
    for label, solver in solvers(task.k, width * task.k, scene, name).items():
        runs = [measure(task, solver, n, SCENES[scene](n, s), s, False) for s in range(seeds)]
        times = [statistics.median(run.times[j] for run in runs) for j in range(len(LEVELS))]
        worst = max(worst, *(run.fault for run in runs))
        base = base or times
        ratios = "  ".join(ratio(t, b) for t, b in zip(times, base, strict=True))
        shown = "  ".join(f"{t:7.1f}" for t in times)
        print(f"  {label:32s} {shown}    {ratios}", flush=True)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="+", default=["cifar", "a1a", "w1a", "cifar100"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scenes", nargs="+", default=list(SCENES), choices=list(SCENES), help="of cifar")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3], help="in multiples of k")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"medians of {options.seeds} seeds; times to {LEVELS}, ratios to the first row")
    worst, closest = 0.0, {}
    for name in options.data:
        task = load(name)
        if task is None:
            print(f"\n{name}: not in GRASSIA_DATA, skipped")
            continue
        for scene in options.scenes if name == "cifar" else ["speeds"]:
            for width in options.widths:
                worst = max(worst, table(task, name, scene, width, options.seeds))
        run = measure(task, Nystrom(), task.n, SCENES["speeds"](task.n, 0), 0, True)
        worst, closest[name] = max(worst, run.fault), run.closest
    reached = ", ".join(f"{name} {distance:.1e}" for name, distance in closest.items())
    print(f"\nsmallest distance nystrom reached in a run to the end: {reached}")
    print(f"largest fall of nystrom's lower bound, or excess over the optimum, in any run: {worst:.1e} of it")


if __name__ == "__main__":
    main()
