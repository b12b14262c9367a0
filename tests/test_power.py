"""Asynchronous power iteration against a dense, literal transcription, and under delays and losses."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

import grassia
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal, Pareto, speeds
from grassia.data import as_components
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, orthonormality_error
from grassia.messages import Task
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.power import Power, next_basis
from grassia.worker import Worker
from problems import gaussian_rows, heterogeneous, images, iterates, leading_of_rows, recorded_sets

UPDATES = 100
SHIFT = 0.8
UNEVEN = Fixed([1, 2, 3, 5, 2, 1, 4])


def power_iteration(problem, W0, shift, arrivals):
    """Section 3 of the algorithm notes. `arrivals(t)` gives (component, version) of the t-th update."""
    table = [A @ W0 for A in problem.components]
    iterates = [W0]
    for t in range(UPDATES):
        Y = sum(w * P for w, P in zip(problem.weights, table, strict=True))
        Q = np.linalg.qr(Y + shift * iterates[t])[0]
        U, _, Vt = np.linalg.svd(Q.T @ iterates[t])
        iterates.append(Q @ U @ Vt)
        if t + 1 == UPDATES:
            break
        for i, version in arrivals(t + 1):
            table[i] = problem.components[i] @ iterates[version]
    return iterates


trajectory = functools.partial(iterates, updates=UPDATES)


def worst(iterates, expected):
    assert set(range(1, UPDATES + 1)) <= set(iterates)
    return max(np.abs(iterates[t] - expected[t]).max() for t in range(UPDATES + 1))


@pytest.fixture(scope="module")
def problem():
    return heterogeneous(n=7, d=20, k=3, seed=1, gap=0.1)


@pytest.fixture(scope="module")
def W0():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((20, 3)))[0]


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize("shift", [0.0, SHIFT])
def test_serial_cyclic_updates_are_the_transcription(problem, W0, table, shift):
    expected = power_iteration(problem, W0, shift, lambda t: [((t - 1) % 7, t)])
    found = trajectory(problem, Power(shift=shift, table=table), Serial(), W0)
    assert worst(found, expected) <= 1e-10


@pytest.mark.parametrize(
    "backend",
    [
        lambda: Simulated(UNEVEN),
        lambda: Simulated(UNEVEN, evaluate="return"),
        lambda: Simulated(LogNormal(), seed=11, workers=4),
        lambda: Threads(faults=["delay:0:2ms", "delay:3:5ms"]),
    ],
    ids=["fixed", "at-return", "lognormal", "threads"],
)
@pytest.mark.parametrize("resum_passes", [2, 50])
@pytest.mark.parametrize("table", ["worker", "server"])
def test_recorded_asynchronous_updates_are_the_transcription(
    problem, W0, backend, resum_passes, table, tmp_path
):
    log = tmp_path / "run.jsonl"
    solver = Power(shift=SHIFT, resum_passes=resum_passes, table=table)
    found = trajectory(problem, solver, backend(), W0, record=log)
    sets = recorded_sets(log, 7)
    expected = power_iteration(problem, W0, SHIFT, lambda t: sets[t])
    assert worst(found, expected) <= 1e-10
    if getattr(backend(), "evaluate", "") == "dispatch":
        assert max(t - version for t in range(1, UPDATES) for _, version in sets[t]) > 0


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(
    "backend",
    [Serial, lambda: Simulated(UNEVEN), lambda: Simulated(LogNormal(), seed=2), Threads],
    ids=["serial", "uneven", "lognormal", "threads"],
)
def test_the_answer_is_that_of_dense_eigh(backend, noise, table):
    """Indefinite components, ever less alike: the shift makes the sum and its delays harmless."""
    problem = heterogeneous(n=7, d=30, k=3, seed=3, noise=noise)
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        solver=Power(table=table),
        backend=backend(),
        tol=1e-8,
        rng=0,
    )
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-8


@pytest.mark.parametrize(
    "backend",
    [Serial, Simulated, lambda: Simulated(UNEVEN)],
    ids=["serial", "equal", "uneven"],
)
def test_the_residual_it_tells_is_not_far_below_the_true_one(backend):
    """Also after a certificate was refused, when all products are of one iterate."""
    problem = heterogeneous(n=7, d=30, k=3, seed=3)
    told = []

    def watch(progress):
        W = progress.vectors
        if progress.phase == "solving" and np.isfinite(progress.residual):
            told.append((progress.residual, np.linalg.norm(problem.A @ W - W @ (W.T @ problem.A @ W))))

    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        solver=Power(),
        backend=backend(),
        tol=1e-8,
        rng=0,
        callbacks=watch,
    )
    assert result.converged
    assert all(residual >= 0.3 * true for residual, true in told)


def test_it_does_not_wait_for_everybody_to_judge_itself():
    """With heavy tails somebody is always late; what has come is worth a certificate all the same."""
    X = gaussian_rows(2000, 20, 3, seed=0)
    result = grassia.eigenspace(
        grassia.from_rows(X, 100),
        3,
        solver=Power(),
        backend=Simulated(Pareto(), seed=0),
        tol=1e-7,
        rng=0,
        max_passes=150,
    )
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 3)) <= 3e-7


def test_no_component_multiplies_an_iterate_twice():
    """What was computed for a certificate that was refused moves the iterate."""
    values = np.r_[90.0, 40.0, 9.0, np.full(17, 6.0)]  # a small gap: the first certificate is refused
    X = np.random.default_rng(0).standard_normal((300, 20)) * np.sqrt(values)
    seen, parts = [], []
    for i, rows in enumerate(np.split(X, 3)):

        def multiply(V, i=i, rows=rows):
            seen.append((i, V[:, :3].tobytes()))
            return rows.T @ (rows @ V) / len(rows)

        parts.append(LinearOperator((20, 20), matvec=multiply, matmat=multiply, dtype=float))
    result = grassia.eigenspace(parts, 3, solver=Power(shift=0.0), backend=Simulated(), tol=1e-9, rng=0)
    assert "certificate refused" in [event.kind for event in result.history.events]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("order", ["cyclic", "shuffled", "random"])
def test_the_answer_for_centred_rows_is_that_of_dense_eigh(order):
    X = gaussian_rows(300, 20, 3, seed=1)
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=6), 3, solver=Power(order=order), tol=1e-9, rng=0
    )
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 3)) <= 3e-9


def low_rank(rank, d, n):
    basis = np.linalg.qr(np.random.default_rng(3).standard_normal((d, rank)))[0]
    return [(basis * np.linspace(2.0, 1.0, rank)) @ basis.T] * n


SOLVABLE = {
    "k = d": ([np.diag([4.0, 2.0, 1.0]), np.diag([1.0, 2.0, 5.0])], 3),
    "d = 1": ([np.array([[2.0]])], 1),
    "d = 2": ([np.diag([2.0, 1.0])], 1),
    "k = 1": (heterogeneous(5, 12, 1, 0).components, 1),
    "n = 1": (heterogeneous(1, 30, 3, 0).components, 3),
    "rank = k": (low_rank(2, 8, 3), 2),
    "negative definite": ([-np.diag(np.arange(1.0, 13.0))] * 2, 2),
    "a far negative end": ([np.diag(np.r_[3.0, 2.0, 1.0, -10.0, np.zeros(20)])], 2),
}


@pytest.mark.parametrize("case", SOLVABLE)
def test_hard_but_solvable_cases_are_solved(case):
    components, k = SOLVABLE[case]
    result = grassia.eigenspace(components, k, solver=Power(), tol=1e-8, rng=0)
    oracle = np.linalg.eigh(sum(components) / len(components))[1][:, ::-1][:, :k]
    assert result.converged
    assert geodesic_distance(result.vectors, oracle) <= 3e-8


@pytest.mark.parametrize(
    ("components", "k"), [(low_rank(2, 8, 3), 3), (low_rank(1, 50, 2), 5), ([np.zeros((5, 5))] * 2, 2)]
)
@pytest.mark.parametrize("backend", ["serial", "simulated"])
def test_less_rank_than_wanted_is_reported(components, k, backend):
    with pytest.warns(match="GAP_TOO_SMALL"):
        result = grassia.eigenspace(components, k, solver=Power(), backend=backend, tol=1e-8, rng=0)
    A = components[0]
    best = np.linalg.eigvalsh(A)[::-1][:k].sum()
    assert np.trace(result.vectors.T @ A @ result.vectors) == pytest.approx(best, abs=1e-10)


def test_without_a_shift_the_largest_absolute_values_win():
    """What the shift is for: -6 beats 3 in absolute value."""
    A = np.diag([5.0, 3.0, 1.0, -6.0, 0.0, 0.0])
    problem = type(heterogeneous(1, 6, 2, 0))([A], np.ones(1))
    W0 = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    plain = trajectory(problem, Power(shift=0.0), Serial(), W0)[40]
    assert geodesic_distance(plain, np.eye(6)[:, [0, 3]]) <= 1e-8
    shifted = grassia.eigenspace([A], 2, solver=Power(), v0=W0, tol=1e-8, rng=0)
    assert geodesic_distance(shifted.vectors, np.eye(6)[:, :2]) <= 3e-8


def test_a_start_in_a_wrong_invariant_space_is_left():
    A = np.diag(np.arange(1.0, 11.0))
    result = grassia.eigenspace([A, A], 2, solver=Power(), v0=np.eye(10)[:, :2], tol=1e-8, rng=0)
    assert result.converged
    assert result.history.count("restarted") == 1
    assert geodesic_distance(result.vectors, np.eye(10)[:, [9, 8]]) <= 3e-8


# -- losses -------------------------------------------------------------------------------------


def test_a_lost_cache_is_recovered_by_resummation(problem, W0):
    backend = Simulated(UNEVEN, faults=["crash:2@9", "crash:5@20"])
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        backend=backend,
        v0=W0,
        tol=1e-10,
        rng=0,
        solver=Power(resum_passes=0),
    )
    assert result.converged
    assert result.history.count("worker lost") == 2
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 1e-9


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize("backend", [Serial, Threads, lambda **o: Simulated(UNEVEN, **o)])
def test_a_storm_does_not_change_the_answer(problem, backend, table):
    storm = ["crash:1@1", "crash:1@6", "corrupt:2@9", "duplicate:0@5", "error:3@4", "crash:6@12"]
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        backend=backend(faults=storm),
        tol=1e-9,
        rng=0,
        solver=Power(table=table),
    )
    assert result.converged
    assert result.history.count("worker lost") >= 2
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-9


def drive(solver, problem, updates, lose=()):
    """Run by hand, one answer after the other; returns the state and the products the workers hold."""
    n = len(problem.components)
    d = len(problem.components[0])
    W = np.linalg.qr(np.random.default_rng(0).standard_normal((d, 2)))[0]
    state = solver.init(Problem(n, d, 2, problem.weights, None, False), W, None)
    loaders = as_components(problem.components)
    workers = [Worker({i: loaders[i]}) for i in range(n)]
    held = {}
    for number in range(updates + n):
        i = number % n
        if number in lose:
            workers[i] = Worker({i: loaders[i]})
            state = solver.lost(state, i)
        version = solver.version(state)
        task = Task(number, i, version, 0, solver.ask(state, i))
        first, reply = workers[i].handle(task), workers[i].handle(task)
        for name in first.arrays:
            np.testing.assert_array_equal(first.arrays[name], reply.arrays[name])
        held[i] = problem.components[i] @ task.query.arrays["iterate"]
        state = solver.tell(state, [Arrival(i, version, 0, reply.arrays, reply.scalars)])
    return state, sum(w * held[i] for i, w in enumerate(problem.weights))


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize("resum_passes", [0, 1, 3])
@pytest.mark.parametrize("lose", [(), (9,), (2,), (9, 10, 11), (6, 20, 21, 33)])
def test_the_sum_is_that_of_the_products_held(table, resum_passes, lose):
    """Whatever was lost on the way, and though every task is run twice."""
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    state, exact = drive(Power(table=table, resum_passes=resum_passes), problem, 60, lose)
    np.testing.assert_allclose(state.Y, exact, atol=1e-13)
    assert orthonormality_error(state.W) <= 1e-13


# -- replay, parameters, figures ----------------------------------------------------------------


@pytest.mark.parametrize(
    "backend",
    [
        Serial,
        lambda: Threads(faults=["crash:1@6", "corrupt:2@9"]),
        lambda: Simulated(LogNormal(), faults=["crash:1@6", "duplicate:0@5"]),
        lambda: Simulated(UNEVEN, evaluate="return"),
    ],
    ids=["serial", "threads", "simulated", "at-return"],
)
def test_a_replay_gives_the_very_same_bits(problem, backend, tmp_path):
    log = tmp_path / "run.jsonl"
    recorded = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        solver=Power(order="random", resum_passes=5),
        backend=backend(),
        rng=3,
        record=log,
    )
    again = grassia.replay(log, problem.components)
    assert recorded.converged
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.history["residual"].tobytes() == recorded.history["residual"].tobytes()


def test_processes_know_the_procedures(problem):
    result = grassia.eigenspace(
        problem.components, 3, weights=problem.weights, solver=Power(), backend=Processes(workers=2), rng=0
    )
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 1e-5


def test_bad_parameters_are_refused_with_their_rule():
    for options, rule in [
        ({"shift": "much"}, "`shift`"),
        ({"shift": np.inf}, "`shift`"),
        ({"shift": None}, "`shift`"),
        ({"order": "up"}, "`order`"),
        ({"table": "here"}, "`table`"),
        ({"resum_passes": -1}, "`resum_passes`"),
        ({"spread_steps": 0}, "`spread_steps`"),
    ]:
        with pytest.raises(InvalidInput, match=rule):
            Power(**options)


def test_the_next_basis_is_completed_from_the_last_where_rank_lacks():
    W = np.eye(6)[:, :3]
    for Y in (np.zeros((6, 3)), np.outer(np.eye(6)[:, 4], np.ones(3)), np.eye(6)[:, [5, 0, 0]]):
        Q = next_basis(Y, W)
        assert Q.shape == (6, 3)
        assert orthonormality_error(Q) <= 1e-14
        np.testing.assert_allclose(Q @ (Q.T @ Y), Y, atol=1e-14)


@pytest.fixture(scope="module")
def pictures():
    X, real = images()
    X = X - X.mean(axis=0)
    return X, leading_of_rows(X, 3, center=False), real


def distances(X, oracle, seed):
    found = {}

    def watch(progress):
        if progress.phase == "solving" and progress.version:
            found[round(progress.time)] = geodesic_distance(progress.vectors, oracle)
        return progress.time >= 150

    grassia.eigenspace(
        grassia.from_rows(X, n_components=20, center=False),
        3,
        rng=seed,
        tol=1e-14,
        solver=Power(),
        callbacks=watch,
        backend=Simulated(speeds(20, 1, 5, np.random.default_rng(seed)), free_tasks=2),
    )
    return found


def test_the_images_reach_3e_9_at_tick_150(pictures):
    """CIFAR, dispatched delays of 1 to 5 ticks, 20 workers, k = 3, the first product free."""
    X, oracle, real = pictures
    runs = [distances(X, oracle, seed) for seed in range(3)]
    assert np.median([found[150] for found in runs]) <= (3e-9 if real else 1e-7)
    assert max(found[150] for found in runs) <= (1e-8 if real else 1e-6)
