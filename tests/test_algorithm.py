"""GRASSIA against a dense, literal transcription of Algorithm 1 of the paper."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import grassia
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.data import as_components
from grassia.geometry import geodesic_distance
from grassia.messages import Task
from grassia.solvers import Arrival, Grassia, Problem
from grassia.worker import Worker
from problems import heterogeneous, iterates, recorded_sets

UPDATES = 200
STEP = 0.05


def gradient(A: np.ndarray, W: np.ndarray) -> np.ndarray:
    return -2.0 * (np.eye(len(W)) - W @ W.T) @ A @ W


def polar(X: np.ndarray) -> np.ndarray:
    U, _, Vt = np.linalg.svd(X, full_matrices=False)
    return U @ Vt


def algorithm_1(problem, W0, step, arrivals):
    """Lines 1 to 9 of Algorithm 1, with weights in the place of 1/n.

    `arrivals` yields the sets S_{t+1}: lists of (component, version it was computed at).
    """
    table = [gradient(A, W0) for A in problem.components]
    G = sum(w * Gi for w, Gi in zip(problem.weights, table, strict=True))
    iterates = [W0]
    for t in range(UPDATES):
        iterates.append(polar(iterates[t] - step * G))
        if t + 1 == UPDATES:
            break
        for i, version in arrivals(t + 1):
            fresh = gradient(problem.components[i], iterates[version])
            G = G + problem.weights[i] * (fresh - table[i])
            table[i] = fresh
    return iterates


trajectory = functools.partial(iterates, updates=UPDATES)


def worst(iterates, expected):
    assert set(range(1, UPDATES + 1)) <= set(iterates)
    return max(np.abs(iterates[t] - expected[t]).max() for t in range(UPDATES + 1))


@pytest.fixture(scope="module")
def problem():
    return heterogeneous(n=7, d=20, k=3, seed=1)


@pytest.fixture(scope="module")
def W0():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((20, 3)))[0]


@pytest.mark.parametrize("table", ["worker", "server"])
def test_serial_cyclic_updates_are_algorithm_1(problem, W0, table):
    expected = algorithm_1(problem, W0, STEP, lambda t: [((t - 1) % 7, t)])
    found = trajectory(problem, Grassia(step=STEP, table=table), Serial(), W0)
    assert worst(found, expected) <= 1e-12


@pytest.mark.parametrize("order", ["shuffled", "random"])
@pytest.mark.parametrize("resum_passes", [0, 3])
def test_serial_updates_in_any_order_are_algorithm_1(problem, W0, order, resum_passes, tmp_path):
    solver = Grassia(step=STEP, order=order, resum_passes=resum_passes)
    log = tmp_path / "run.jsonl"
    found = trajectory(problem, solver, Serial(), W0, record=log)
    sets = recorded_sets(log, 7)
    expected = algorithm_1(problem, W0, STEP, lambda t: sets[t])
    assert worst(found, expected) <= 1e-12
    visits = [sets[t][0][0] for t in range(1, UPDATES)]
    assert all(version == t for t in range(1, UPDATES) for _, version in sets[t])
    if order == "shuffled":
        assert all(sorted(visits[j : j + 7]) == list(range(7)) for j in range(0, 189, 7))
        assert visits[:7] != visits[7:14]
    else:
        assert not all(sorted(visits[j : j + 7]) == list(range(7)) for j in range(0, 189, 7))


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize(
    "backend",
    [Serial, lambda: Simulated(LogNormal(), seed=3), Threads],
    ids=["serial", "sim", "threads"],
)
def test_synchronous_updates_are_algorithm_1(problem, W0, backend, table):
    expected = algorithm_1(problem, W0, STEP, lambda t: [(i, t) for i in range(7)])
    solver = Grassia(step=STEP, mode="synchronous", table=table)
    found = trajectory(problem, solver, backend(), W0)
    assert worst(found, expected) <= 1e-12


@pytest.mark.parametrize(
    "backend",
    [
        lambda: Simulated(Fixed([1, 2, 3, 5, 2, 1, 4])),
        lambda: Simulated(Fixed([1, 2, 3, 5, 2, 1, 4]), evaluate="return"),
        lambda: Simulated(LogNormal(), seed=11, workers=4),
        lambda: Threads(faults=["delay:0:2ms", "delay:3:5ms"]),
        lambda: Processes(workers=3),
    ],
    ids=["fixed", "at-return", "lognormal", "threads", "processes"],
)
@pytest.mark.parametrize("resum_passes", [2, 50])
def test_recorded_asynchronous_updates_are_algorithm_1(problem, W0, backend, resum_passes, tmp_path):
    log = tmp_path / "run.jsonl"
    solver = Grassia(step=STEP, resum_passes=resum_passes)
    found = trajectory(problem, solver, backend(), W0, record=log)
    sets = recorded_sets(log, 7)
    expected = algorithm_1(problem, W0, STEP, lambda t: sets[t])
    assert worst(found, expected) <= 1e-12
    stale = max(t - version for t in range(1, UPDATES) for _, version in sets[t])
    if getattr(backend(), "evaluate", "") == "return":
        assert stale == 0
    elif backend().name == "simulated":
        assert stale > 0


def test_shifting_every_component_leaves_the_trajectory_unchanged(problem, W0):
    shifts = np.random.default_rng(0).uniform(-5.0, 5.0, 7)
    moved = [A + c * np.eye(20) for A, c in zip(problem.components, shifts, strict=True)]
    shifted = type(problem)(moved, problem.weights)
    backend = Fixed([1, 2, 3, 5, 2, 1, 4])
    plain = trajectory(problem, Grassia(step=STEP), Simulated(backend), W0)
    other = trajectory(shifted, Grassia(step=STEP), Simulated(backend), W0)
    assert max(np.abs(plain[t] - other[t]).max() for t in range(1, UPDATES + 1)) <= 1e-10


def test_the_automatic_step_is_shift_invariant_too(problem, W0):
    shifts = np.random.default_rng(0).uniform(-5.0, 5.0, 7)
    moved = [A + c * np.eye(20) for A, c in zip(problem.components, shifts, strict=True)]
    shifted = type(problem)(moved, problem.weights)
    plain = trajectory(problem, Grassia(), Serial(), W0, updates=50)
    other = trajectory(shifted, Grassia(), Serial(), W0, updates=50)
    assert max(np.abs(plain[t] - other[t]).max() for t in range(1, 51)) <= 1e-8


def test_a_lost_cache_is_recovered_by_resummation(problem, W0):
    """After the crash the aggregate must again be the exact sum: the limit is the eigenspace."""
    backend = Simulated(Fixed([1, 2, 3, 5, 2, 1, 4]), faults=["crash:2@9", "crash:5@20"])
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        backend=backend,
        v0=W0,
        tol=1e-10,
        rng=0,
        solver=Grassia(resum_passes=0),
    )
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 1e-9
    assert result.history.count("worker lost") == 2


def drift(components, resum_passes, updates):
    """How far the aggregate is from the sum of the cached gradients after many corrections."""
    n, d, k = len(components), len(components[0]), 2
    solver = Grassia(step=1e-7, resum_passes=resum_passes)
    weights = np.full(n, 1.0 / n)
    W0 = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k)))[0]
    state = solver.init(Problem(n, d, k, weights, None, False), W0, None)
    worker = Worker(dict(enumerate(as_components(components))))
    cached = {}
    for number in range(updates + n):
        i = number % n
        version = solver.version(state)
        query = solver.ask(state, i)
        reply = worker.handle(Task(number, i, version, 0, query))
        cached[i] = worker._caches[i]["gradients"][version]
        arrival = Arrival(i, version, 0, reply.arrays, reply.scalars)
        state = solver.tell(state, [arrival])
    exact = sum(w * cached[i] for i, w in enumerate(weights))
    return np.linalg.norm(state.G - exact)


def test_drift_of_the_aggregate_is_removed_by_resummation():
    """Large opposite components leave rounding dirt in a corrected sum, not in one summed anew."""
    rng = np.random.default_rng(1)
    parts = [1e7 * (M + M.T) for M in rng.standard_normal((5, 12, 12))]
    mean = sum(parts) / 5
    components = [np.diag(np.arange(12.0)) + P - mean for P in parts]
    left_alone = drift(components, 0, 3999)
    summed_anew = drift(components, 20, 3999)
    assert summed_anew < 0.5 * left_alone
