"""Runs that write checkpoints and are interrupted."""

from __future__ import annotations

from grassia import Checkpoint, eigenspace
from problems import heterogeneous


def five_components():
    return heterogeneous(n=5, d=30, k=3, seed=6)


def stopped_after(passes):
    return lambda progress: progress.passes >= passes


def stopped_while_certifying(answers):
    """So many answers after the first sight of a certificate that is being made."""
    seen = []

    def stop(progress):
        if progress.phase == "certifying":
            seen.append(sum(progress.answers))
        return bool(seen) and seen[-1] - seen[0] >= answers

    return stop


def begun(problem, folder, *, stop, every=1, **options):
    """A run that is interrupted, with a checkpoint after every update."""
    options = {"rng": 0, "tol": 1e-9, "max_passes": 100_000, "weights": problem.weights, **options}
    plan = Checkpoint(folder, updates=every)
    return eigenspace(problem.components, 3, checkpoint=plan, callbacks=stop, **options)
