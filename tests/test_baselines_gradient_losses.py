"""Gradient baselines on processes, in a storm of faults, and in a replay."""

from __future__ import annotations

import warnings

import pytest

import grassia
from gradient_baselines import (
    EXACT,
    NOISY,
    each_exact,
    each_kind_of_backend,
    each_noisy,
    seven_components,
    solve,
)
from grassia.backends import Processes, Threads
from grassia.geometry import geodesic_distance, projection_distance
from grassia.solvers import Iarg, Rgd
from problems import heterogeneous


@pytest.fixture(scope="module")
def problem():
    return seven_components()


@pytest.mark.parametrize(("solver", "workers"), [(Rgd(), 1), (Iarg(), 2)], ids=["rgd", "iarg"])
def test_the_linear_methods_run_on_processes(problem, solver, workers):
    result = solve(problem, 3, solver, backend=Processes(workers=workers))
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-6


@each_noisy
def test_the_noisy_methods_run_on_processes(solver):
    alike = heterogeneous(n=3, d=20, k=3, seed=1, noise=0.01)
    result = solve(alike, 3, solver, backend=Processes(workers=1), tol=2e-2)
    assert result.converged
    assert projection_distance(result.vectors, alike.leading(3)) <= 2e-2


STORM = ["crash:1@1", "crash:1@6", "corrupt:2@9", "duplicate:0@5", "error:3@4", "crash:6@12", "crash:2@25"]


@each_exact
@each_kind_of_backend
def test_a_storm_does_not_change_the_answer(problem, solver, backend):
    result = solve(problem, 3, solver, backend=backend(faults=STORM), tol=1e-9)
    assert result.converged
    assert result.history.count("worker lost") >= 2
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-9


@each_noisy
@each_kind_of_backend
def test_the_noisy_methods_live_through_a_storm(solver, backend):
    alike = heterogeneous(n=7, d=20, k=3, seed=1, noise=0.01)
    result = solve(alike, 3, solver, backend=backend(faults=STORM), tol=2e-2)
    assert result.converged
    assert result.history.count("worker lost") >= 2
    assert geodesic_distance(result.vectors, alike.leading(3)) <= 3e-2


@pytest.mark.parametrize("solver", [*EXACT.values(), *NOISY.values()], ids=[*EXACT, *NOISY])
def test_a_replay_gives_the_very_same_bits(problem, solver, tmp_path):
    log = tmp_path / "run.jsonl"
    recorded = solve(problem, 3, solver, backend=Threads(), rng=7, record=log, max_passes=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = grassia.replay(log, problem.components)
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.history["residual"].tobytes() == recorded.history["residual"].tobytes()
