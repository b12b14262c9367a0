"""Runs that write checkpoints and are interrupted."""

from __future__ import annotations

from grassia import Checkpoint, eigenspace
from problems import heterogeneous


def five_components():
    return heterogeneous(n=5, d=30, k=3, seed=6)


def stopped_after(passes):
    return lambda progress: progress.passes >= passes


def begun(problem, folder, *, stop, every=1, **options):
    """A run that is interrupted, with a checkpoint after every update."""
    options = {"rng": 0, "tol": 1e-9, "max_passes": 100_000, "weights": problem.weights, **options}
    plan = Checkpoint(folder, updates=every)
    return eigenspace(problem.components, 3, checkpoint=plan, callbacks=stop, **options)
