"""The theorems in pictures: runs under their envelopes, random points over the gradient dominance."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from grassia import geometry, theory
from grassia._optional import require
from grassia.api import eigenspace
from grassia.backends import Simulated
from grassia.backends.service import Fixed
from grassia.experiments import figures
from grassia.messages import Array
from grassia.solvers import Grassia

RUNS = (("synchronous", (1.0,) * 4), ("one of 4 workers takes 3 times as long", (1.0, 1.0, 1.0, 3.0)))


def reproduce(output: Path, quick: bool = False) -> Path:
    """Draw both figures, with their numbers and a summary; returns the path of the summary."""
    output.mkdir(parents=True, exist_ok=True)
    reports = envelopes(output / "envelopes", 400 if quick else 4000)
    least, points = dominance(output / "dominance", 300 if quick else 4000)
    text = [
        "# The paper's theorems along runs, and its gradient dominance at random points",
        "![envelopes](envelopes.png)",
        *(f"{title}:\n\n```\n{report}\n```" for title, report in reports),
        "![dominance](dominance.png)",
        f"{points} random points; the least ratio to the tight coefficient is {least:.6f}. "
        "The instances of the paper, with d = 2 and k = 1, lie on the curve.",
    ]
    path = output / "theory.md"
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    return path


def problem(seed: int = 0) -> tuple[list[Array], int]:
    """Four components around a matrix with a wide gap, so that the envelopes fall visibly."""
    rng = np.random.default_rng(seed)
    d, k = 10, 1
    frame = geometry.random_point(d, d, rng)
    values = np.concatenate([[1.0], np.linspace(0.2, 0.0, d - 1)])
    A = (frame * values) @ frame.T
    noise = [rng.standard_normal((d, d)) for _ in range(4)]
    noise = [0.02 * (N + N.T) for N in noise]
    mean = np.mean(noise, axis=0)
    return [A + N - mean for N in noise], k


def envelopes(path: Path, updates: int) -> list[tuple[str, theory.Report]]:
    """Observed distances and the envelopes of both theorems, for runs with the steps of each."""
    components, k = problem()
    oracle = theory.Oracle.of(components, k)
    c = oracle.constants
    panels, reports, columns = [], [], {"update": np.arange(updates + 1.0)}
    for title, services in RUNS:
        tau = 0 if title == "synchronous" else 2 * int(max(services)) - 1
        broad = theory.broad_step(c.k, c.nu, c.nu_avg, c.delta, tau)
        local = theory.local_step(c.k, c.nu, c.nu_avg, c.delta, tau)
        lines = []
        for number, (step, distance) in enumerate([(broad, theory.ZETA), (local, 0.6)]):
            monitor = _watched(components, oracle, step, _at(oracle.target, distance), services, updates)
            bounds = monitor.envelopes()[number]
            name = f"Theorem {number + 1}"
            lines += [_line(f"envelope of {name}", bounds, 2 * number)]
            lines += [_line(f"distance, with its step ({name})", monitor.distances, 2 * number + 1)]
            columns[f"{title}: distance, step of {name}"] = monitor.distances
            columns[f"{title}: envelope of {name}"] = bounds
            reports.append((f"{title}, the step of {name}", monitor.report()))
        panels.append(figures.Panel(title, "updates", "geodesic distance", lines, low=1e-14))
    figures.draw(panels, path)
    _write(path.with_suffix(".csv"), list(columns), zip_longest(*columns.values(), fillvalue=""))
    return reports


def _watched(
    components: Sequence[Array],
    oracle: theory.Oracle,
    step: float,
    start: Array,
    services: Sequence[float],
    updates: int,
) -> theory.Monitor:
    monitor = theory.Monitor(oracle)
    synchronous = len(set(services)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is stopped at the end of the figure
        eigenspace(
            components,
            start.shape[1],
            solver=Grassia(step=step, mode="synchronous" if synchronous else "asynchronous"),
            backend=Simulated(Fixed(list(services))),
            v0=start,
            tol=1e-15,
            rng=0,
            callbacks=[monitor, lambda progress: progress.version >= updates],
        )
    return monitor


def _at(target: Array, distance: float) -> Array:
    """A point so far from a one-dimensional target."""
    away = geometry.orthonormalize(np.random.default_rng(1).standard_normal(target.shape), against=target)
    return np.asarray(math.cos(distance) * target + math.sin(distance) * away)


def _line(label: str, values: Array, style: int) -> figures.Line:
    return figures.Line(label, np.arange(len(values), dtype=np.float64), values[None, :], style)


def dominance(path: Path, points: int) -> tuple[float, int]:
    """Half of the squared gradient over the objective gap and `2 delta`, against the largest angle.

    Returns the least ratio to the tight coefficient `cos^2`, and the number of points.
    """
    rng = np.random.default_rng(0)
    found = np.array([_random_ratio(rng) for _ in range(points)])
    tight = np.array([_tight_ratio(theta) for theta in np.linspace(0.05, 1.5, 25)])
    _draw_dominance(path, found, tight)
    rows = [("random", *row) for row in found] + [("paper's instance", *row) for row in tight]
    _write(path.with_suffix(".csv"), ["kind", "largest angle", "ratio"], rows)
    return float(np.min(found[:, 1] / np.cos(found[:, 0]) ** 2)), len(found)


def _random_ratio(rng: np.random.Generator) -> tuple[float, float]:
    d = int(rng.integers(2, 9))
    k = int(rng.integers(1, d))
    values = np.sort(rng.standard_normal(d))[::-1].copy()
    values[k:] -= rng.exponential(0.5)
    m = min(k, d - k)
    # In the frame of the eigenvectors, turned by angles that are small as often as large.
    angles = rng.uniform(0.0, math.pi / 2.0, m) * rng.uniform(0.0, 1.0)
    W = np.zeros((d, k))
    W[:k] = np.eye(k)
    inner, outer = geometry.random_point(k, k, rng), geometry.random_point(d - k, d - k, rng)
    W[:k] = inner
    W[:k, :m] = inner[:, :m] * np.cos(angles)
    W[k:, :m] = outer[:, :m] * np.sin(angles)
    return _ratio(np.diag(values), W)


def _tight_ratio(theta: float) -> tuple[float, float]:
    W = np.array([[math.cos(theta)], [math.sin(theta)]])
    return _ratio(np.diag([1.0, 0.0]), W)


def _ratio(A: Array, W: Array) -> tuple[float, float]:
    """The largest angle to the target, and `||grad F||^2 / (4 delta (F - F*))`."""
    sides = theory.gradient_dominance(A, W)
    theta = float(geometry.principal_angles(theory.Spectrum.of(A, W.shape[1]).target, W)[-1])
    # The left side is the coefficient times the gap, the right one half of the squared gradient.
    return theta, sides.right / sides.left * math.cos(theta) ** 2 if sides.left > 0.0 else math.inf


def _draw_dominance(path: Path, points: Array, tight: Array) -> None:
    require("matplotlib", "plot")
    module: Any = require("matplotlib.figure", "plot")
    figure = module.Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    theta = np.linspace(0.0, 1.56, 400)
    axes.plot(points[:, 0], points[:, 1], ".", color="0.6", markersize=3, label="random points", zorder=1)
    axes.plot(theta, np.cos(theta) ** 2, color="#D55E00", linewidth=1.6, label=r"$\cos^2\theta_k$, tight")
    axes.plot(
        tight[:, 0],
        tight[:, 1],
        "o",
        color="black",
        markersize=4,
        markerfacecolor="white",
        label="the paper's instance, d = 2",
    )
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 1e3)
    axes.set_xlim(0.0, math.pi / 2.0)
    axes.set_xlabel(r"largest principal angle $\theta_k$", fontsize=9)
    axes.set_ylabel(r"$\|\mathrm{grad}\,F\|^2\,/\,(4\,\delta\,(F - F^*))$", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path.with_suffix(".png"), dpi=170)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
