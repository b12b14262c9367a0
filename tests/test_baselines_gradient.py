"""RGD, Oja, Delayed-Oja and IARG: literal dense transcriptions, their rates and floors, delays, losses."""

from __future__ import annotations

import itertools
import json
import warnings

import numpy as np
import pytest

import grassia
from grassia import Status
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.data import as_components
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, orthonormality_error, projection_distance
from grassia.messages import Task
from grassia.solvers import DelayedOja, Grassia, Iarg, Oja, Rgd
from grassia.solvers.base import Arrival, Problem
from grassia.worker import Worker
from problems import Dense, gaussian_rows, heterogeneous, iterates, leading_of_rows, trajectory

UPDATES = 100
SPEEDS = [1, 2, 3, 5, 2, 1, 4]
UNEVEN = Fixed(SPEEDS)

BACKENDS = {
    "serial": Serial,
    "dispatch": lambda **o: Simulated(UNEVEN, **o),
    "return": lambda **o: Simulated(UNEVEN, evaluate="return", **o),
    "lognormal": lambda **o: Simulated(LogNormal(), seed=11, workers=4, **o),
    "threads": lambda **o: Threads(**{"faults": ["delay:0:1ms", "delay:1:2ms"], **o}),
}
EXACT = {"rgd": Rgd(), "iarg": Iarg(), "iarg, table": Iarg(table="server")}
NOISY = {"oja": Oja(step=0.02), "delayed-oja": DelayedOja(step=0.01)}

each_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
each_kind_of_backend = pytest.mark.parametrize(
    "backend",
    [BACKENDS[name] for name in ("serial", "dispatch", "threads")],
    ids=["serial", "dispatch", "threads"],
)
each_exact = pytest.mark.parametrize("solver", EXACT.values(), ids=EXACT)
each_noisy = pytest.mark.parametrize("solver", NOISY.values(), ids=NOISY)


@pytest.fixture(scope="module")
def problem():
    return heterogeneous(n=7, d=20, k=3, seed=1)


@pytest.fixture(scope="module")
def W0():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((20, 3)))[0]


def solve(problem, k, solver, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return grassia.eigenspace(
            problem.components, k, weights=problem.weights, solver=solver, **{"rng": 0, **options}
        )


# -- literal transcriptions ---------------------------------------------------------------------


def polar(X):
    U, _, Vt = np.linalg.svd(X, full_matrices=False)
    return U @ Vt


def gradient(A, W):
    return -2.0 * (np.eye(len(W)) - W @ W.T) @ A @ W


def answers(log, n):
    """The batches of answers after the opening: (component, version it was asked at)."""
    batches = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    replies = [[(m[2], m[3]) for m in batch["m"] if m[0] == "reply"] for batch in batches if "m" in batch]
    opened = 0
    while opened < n:
        opened += len(replies.pop(0))
    assert opened == n
    return replies


@each_backend
def test_rgd_is_its_transcription(problem, W0, backend):
    found = iterates(problem, Rgd(step=0.05), backend(), W0, UPDATES)
    W = W0
    for t in range(1, UPDATES + 1):
        W = polar(W - 0.05 * gradient(problem.A, W))
        assert np.abs(found[t] - W).max() <= 1e-10


def oja_step(W, V, A, step):
    return polar(W + step * A @ V)


def delayed_oja_step(W, V, A, step):
    return polar(W - step * gradient(A, V))


@pytest.mark.parametrize(("order", "decay"), [("cyclic", 0.0), ("shuffled", 0.01)])
@pytest.mark.parametrize(
    ("kind", "move"), [(Oja, oja_step), (DelayedOja, delayed_oja_step)], ids=["oja", "delayed-oja"]
)
@each_backend
def test_the_stochastic_methods_are_their_transcriptions(
    problem, W0, backend, kind, move, decay, order, tmp_path
):
    log = tmp_path / "run.jsonl"
    found = iterates(problem, kind(step=0.05, decay=decay, order=order), backend(), W0, UPDATES, record=log)
    expected = [W0]
    visits = []
    for batch in answers(log, 7):
        for i, version in batch:
            step = 0.05 / (1.0 + decay * (len(expected) - 1)) * 7 * problem.weights[i]
            expected.append(move(expected[-1], expected[version], problem.components[i], step))
            visits.append(i)
    assert max(found) >= UPDATES
    assert max(np.abs(W - expected[t]).max() for t, W in found.items()) <= 1e-10
    if backend is Serial:
        assert sorted(found) == list(range(max(found) + 1))
        assert (visits[:98] == list(range(7)) * 14) == (order == "cyclic")
        assert all(sorted(visits[j : j + 7]) == list(range(7)) for j in range(0, 98, 7))


def iarg_with_deflation(problem, W0, step, tol, batches):
    """{version: (frozen vectors and the one sought)}, and how often the frozen ones were begun anew."""
    n, (d, k) = len(problem.components), W0.shape
    w = problem.weights
    U, start, t, tolerance, cycles = np.zeros((d, 0)), W0, 0, tol, 0
    v, values = W0[:, :1], []
    past = {0: v}
    table, captured, small, began = {}, {}, set(), 0
    path = {0: v}
    for batch in batches:
        waiting = len(table) < n
        fresh = [(i, s) for i, s in batch if s >= began and not (waiting and i in table)]
        deflation = np.eye(d) - U @ U.T
        for i, s in fresh:
            B = deflation @ problem.components[i] @ deflation
            table[i], captured[i] = gradient(B, past[s]), (past[s].T @ B @ past[s]).item()
        if not fresh or len(table) < n:
            continue
        G = sum(w[i] * table[i] for i in range(n))
        v = v - step * G
        v = v / np.linalg.norm(v)
        t += 1
        past[t], path[t] = v, np.hstack([U, v])
        now = sum(w[i] * captured[i] for i in range(n))
        goal = tolerance * max(abs(value) for value in [*values, now])
        small = small | {i for i, _ in fresh} if np.linalg.norm(G) / 2.0 <= goal else set()
        if len(small) < n or k == 1:
            continue
        u = start[:, :1]
        sign = 1.0 if (u.T @ v).item() >= 0.0 else -1.0
        mirror = (u + sign * v) / np.linalg.norm(u + sign * v)
        start = (start - 2.0 * mirror @ (mirror.T @ start))[:, 1:]
        U, values = np.hstack([U, v]), [*values, now]
        if U.shape[1] == k:
            U, start, values, tolerance, cycles = U[:, :0], U, [], 0.1 * tolerance, cycles + 1
        t += 1
        v, began = start[:, :1], t
        table, captured, small = {}, {}, set()
        past[t], path[t] = v, np.hstack([U, v])
    return path, cycles


@pytest.mark.parametrize(("table", "resum_passes"), [("worker", 2), ("worker", 50), ("server", 50)])
@each_backend
def test_iarg_with_deflation_is_its_transcription(problem, W0, backend, table, resum_passes, tmp_path):
    log = tmp_path / "run.jsonl"
    solver = Iarg(step=0.05, deflation_tol=3e-2, table=table, resum_passes=resum_passes)
    found = iterates(problem, solver, backend(), W0, 150, record=log)
    expected, _ = iarg_with_deflation(problem, W0, 0.05, 3e-2, answers(log, 7))
    widths = set()
    for t, W in found.items():
        width = expected[t].shape[1]
        widths.add(width)
        assert np.abs(W[:, :width] - expected[t]).max() <= 1e-10
        assert orthonormality_error(W) <= 1e-13
    assert max(found) >= 150
    assert {1, 2} <= widths


def test_iarg_that_starts_over_is_its_transcription(W0, tmp_path):
    problem = heterogeneous(n=3, d=20, k=3, seed=4, gap=0.9)
    log = tmp_path / "run.jsonl"
    found = iterates(problem, Iarg(step=0.2, deflation_tol=0.1), Serial(), W0, 250, record=log)
    expected, cycles = iarg_with_deflation(problem, W0, 0.2, 0.1, answers(log, 3))
    assert cycles >= 2
    for t, W in found.items():
        assert np.abs(W[:, : expected[t].shape[1]] - expected[t]).max() <= 1e-10


@each_backend
def test_iarg_alone_is_one_vector_of_grassia(problem, W0, backend, tmp_path):
    """The paper says so: the same update on the sphere."""
    log = tmp_path / "run.jsonl"
    found = iterates(problem, Iarg(step=0.1), backend(), W0[:, :1], UPDATES, record=log)
    expected, _ = iarg_with_deflation(problem, W0[:, :1], 0.1, 1e-6, answers(log, 7))
    assert max(np.abs(w - expected[t]).max() for t, w in found.items()) <= 1e-10
    if backend is Serial:
        other = iterates(problem, Grassia(step=0.1), Serial(), W0[:, :1], UPDATES)
        assert all(np.array_equal(found[t], other[t]) for t in range(UPDATES))


# -- rates and floors ---------------------------------------------------------------------------


def test_rgd_contracts_by_what_the_gap_and_the_step_say():
    target = heterogeneous(n=4, d=5, k=3, seed=1)
    values = target.spectrum()[0]
    W0 = np.linalg.qr(np.random.default_rng(5).standard_normal((5, 3)))[0]
    found = iterates(target, Rgd(step=0.2), Serial(), W0, 110)
    far, near = (geodesic_distance(found[t], target.leading(3)) for t in (50, 100))
    assert (near / far) ** (1 / 50) == pytest.approx(1.0 - 2.0 * 0.2 * (values[2] - values[3]), rel=1e-4)
    assert geodesic_distance(found[110], target.leading(3)) <= 1e-10


@each_exact
@pytest.mark.parametrize("k", [1, 3])
def test_the_linear_methods_reach_1e_10(problem, solver, k):
    target = heterogeneous(n=7, d=20, k=k, seed=1)
    result = solve(target, k, solver, tol=1e-10)
    assert result.converged
    assert geodesic_distance(result.vectors, target.leading(k)) <= 2e-10


def test_iarg_for_one_vector_contracts_like_the_delayed_recursion():
    """Visited in turn, the ages of n equal components are 0 to n - 1: linear, at a rate known from that."""
    n, step, values = 5, 0.03, np.array([3.0, 1.5, 1.0, 0.0])
    target = Dense([np.diag(values)] * n, np.full(n, 1.0 / n))
    w0 = np.array([[0.8], [0.5], [0.3], [0.1]]) / np.sqrt(0.99)
    found = iterates(target, Iarg(step=step), Serial(), w0, 220)
    rates = []
    for c in 2.0 * step * (values[0] - values[1:]):
        # x(t+1) = x(t) - c/n (x(t) + ... + x(t-n+1))
        recursion = np.full(n + 1, c / n)
        recursion[0], recursion[1] = 1.0, c / n - 1.0
        rates.append(np.abs(np.roots(recursion)).max())
    distance = {t: geodesic_distance(found[t], target.leading(1)) for t in (60, 160, 220)}
    assert (distance[160] / distance[60]) ** (1 / 100) == pytest.approx(max(rates), rel=1e-3)
    assert distance[220] <= 1e-10


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_deflation_leaves_an_error_of_the_size_of_its_tolerance(problem, tol):
    """The gaps between neighbours are 1/2, the largest eigenvalue is 2."""
    result = solve(problem, 3, Iarg(deflation_tol=tol, repeat=False), tol=1e-10)
    assert result.status is Status.STALLED
    assert 1e-3 * tol <= geodesic_distance(result.vectors, problem.leading(3)) <= 10 * tol
    assert 1e-2 * tol <= result.certificate.residual_norm <= 4 * tol


def floors(problem, solver, backend, passes, oracles):
    """The mean distance from each of some spaces over the second half of a run."""
    distances = []

    def watch(progress):
        if progress.phase == "solving" and progress.passes > passes / 2:
            distances.append([geodesic_distance(progress.vectors, oracle) for oracle in oracles])
        return progress.passes >= passes

    solve(problem, 2, solver, backend=backend, callbacks=watch, tol=1e-14)
    return np.mean(distances, axis=0)


@pytest.mark.parametrize("kind", [Oja, DelayedOja])
def test_the_noise_floor_shrinks_with_the_step(kind):
    target = heterogeneous(n=5, d=12, k=2, seed=1, noise=1.0)
    found = [
        floors(target, kind(step=step, order="cyclic"), Serial(), 200, [target.leading(2)])[0]
        for step in (0.08, 0.04, 0.02)
    ]
    assert found[0] >= 1e-2
    for coarse, fine in itertools.pairwise(found):
        assert coarse / fine == pytest.approx(2.0, rel=0.25)


@pytest.mark.parametrize("kind", [Oja, DelayedOja])
def test_a_decaying_step_converges_sublinearly(kind):
    """The floor goes with the step, and the step like 1/t."""
    target = heterogeneous(n=5, d=12, k=2, seed=1, noise=1.0)
    solver = kind(step=0.08, decay=0.01, order="cyclic")
    found = iterates(target, solver, Serial(), np.eye(12)[:, :2], 4_000)
    distance = {t: geodesic_distance(found[t], target.leading(2)) for t in (250, 1_000, 4_000)}
    for t in (250, 1_000):
        expected = (1.0 + 0.01 * t) / (1.0 + 0.01 * 4 * t)
        assert distance[4 * t] / distance[t] == pytest.approx(expected, rel=0.2)
    assert distance[4_000] <= 4e-3


@pytest.mark.parametrize(
    ("solver", "evaluate"), [(Oja(step=1e-2), "return"), (DelayedOja(step=5e-3), "dispatch")]
)
def test_workers_that_answer_more_often_pull_the_answer_towards_them(solver, evaluate):
    """What the module says of heterogeneous workers: the space of the sum weighted by answers."""
    target = heterogeneous(n=4, d=12, k=2, seed=3)
    speeds = np.array([1.0, 1.0, 4.0, 4.0])
    shares = 1.0 / speeds / np.sum(1.0 / speeds)
    seen = sum(p * 4 * w * A for p, w, A in zip(shares, target.weights, target.components, strict=True))
    pulled = np.linalg.eigh(seen)[1][:, ::-1][:, :2]
    backend = Simulated(Fixed(speeds), evaluate=evaluate)
    means = floors(target, solver, backend, 600, [pulled, target.leading(2)])
    assert means[0] <= 0.02
    assert means[1] >= 0.1


def test_delayed_oja_stands_less_of_a_step_with_delay():
    """Its limit is 1 / nu without delays; with eight workers at once a gradient is seven updates old."""
    target = heterogeneous(n=8, d=12, k=2, seed=3, noise=0.1)
    leading = [target.leading(2)]
    assert floors(target, DelayedOja(step=0.2), Serial(), 100, leading)[0] <= 0.1
    assert floors(target, DelayedOja(step=0.2), Simulated(Fixed(1.0)), 100, leading)[0] >= 0.3


@pytest.mark.parametrize("solver", [Oja(step=1e-9), DelayedOja(step=1e-9)], ids=lambda solver: solver.name)
@each_kind_of_backend
def test_the_residual_stated_is_that_of_an_iterate_that_hardly_moves(problem, W0, solver, backend):
    true = np.linalg.norm(problem.A @ W0 - W0 @ (W0.T @ problem.A @ W0))
    found = trajectory(problem, solver, backend(), W0, 60)
    stated = [residual for _, residual in found.values() if not np.isnan(residual)]
    assert len(stated) >= 5
    np.testing.assert_allclose(stated, true, rtol=1e-6)


def test_a_deflation_that_takes_its_time_is_not_taken_for_stalled():
    """Each of the first two vectors takes longer than the stall that ends a run, and gets there."""
    A = np.diag([2.0, 1.5, 1.0, 0.0])
    began = {}

    def watch(progress):
        if progress.vectors is not None and progress.phase == "solving":
            began.setdefault(progress._server.state.found.shape[1], progress.passes)

    solver = Iarg(step=0.0076, deflation_tol=1e-3)
    result = grassia.eigenspace([A], 3, solver=solver, tol=1e-2, rng=0, callbacks=watch)
    assert result.converged
    assert began[1] - began[0] > 500
    assert began[2] - began[1] > 500


# -- answers, statuses, hard cases --------------------------------------------------------------


@pytest.mark.parametrize("solver", [Rgd(), Iarg()], ids=["rgd", "iarg"])
@each_kind_of_backend
def test_the_answer_is_that_of_dense_eigh(problem, solver, backend):
    result = solve(problem, 3, solver, backend=backend(), tol=1e-8)
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-8
    np.testing.assert_allclose(result.values, problem.spectrum()[0][:3], atol=1e-8)


@each_noisy
@each_kind_of_backend
def test_a_tolerance_above_the_noise_floor_is_certified(problem, solver, backend):
    alike = heterogeneous(n=7, d=20, k=3, seed=1, noise=0.01)
    result = solve(alike, 3, solver, backend=backend(), tol=2e-2)
    assert result.converged
    assert geodesic_distance(result.vectors, alike.leading(3)) <= 3e-2


@each_noisy
@pytest.mark.parametrize("backend", [Serial, lambda: Simulated(Fixed([1, 2]))])
def test_a_noise_floor_ends_the_run_as_stalled(solver, backend):
    """Where the order of arrival is the same in every run; threads may be lucky for thousands of passes."""
    target, tol = heterogeneous(n=2, d=10, k=2, seed=1), 1e-8
    result = solve(target, 2, solver, backend=backend(), tol=tol)
    assert result.status is Status.STALLED
    assert result.stats["passes"] <= 3_000
    distance = projection_distance(result.vectors, target.leading(2))
    assert tol < distance <= result.certificate.sin_theta.value <= 0.5


@pytest.mark.parametrize("name", ["oja", "delayed-oja"])
def test_the_automatic_schedule_comes_near_and_says_that_it_did_not_converge(problem, name):
    with pytest.warns(match="MAX_PASSES"):
        result = grassia.eigenspace(
            problem.components, 3, weights=problem.weights, solver=name, rng=0, max_passes=300
        )
    assert not result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 1e-2


@each_exact
@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_the_answer_for_centred_rows_is_that_of_dense_eigh(solver, backend):
    X = gaussian_rows(300, 15, 2, seed=1) / 5.0
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=4), 2, solver=solver, backend=backend, tol=1e-8, rng=0
    )
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 2)) <= 3e-8


@pytest.mark.parametrize("solver", [Rgd(), Iarg()], ids=["rgd", "iarg"])
def test_single_precision_products_are_mended_in_double(solver):
    X = gaussian_rows(300, 15, 2, seed=1).astype(np.float32)
    rows = grassia.from_rows(X, n_components=4)
    result = grassia.eigenspace(rows, 2, solver=solver, tol=1e-9, precision="float32", rng=0)
    assert result.converged
    assert result.history.count("double precision") == 1
    assert geodesic_distance(result.vectors, leading_of_rows(X.astype(float), 2)) <= 3e-9


@each_noisy
def test_noisy_methods_centre_the_rows_too(solver):
    X = gaussian_rows(400, 15, 2, seed=1) / 5.0
    result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, solver=solver, tol=0.2, rng=0)
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 2)) <= 0.2


def low_rank(rank, d, n):
    basis = np.linalg.qr(np.random.default_rng(3).standard_normal((d, rank)))[0]
    return [(basis * np.linspace(2.0, 1.0, rank)) @ basis.T] * n


SOLVABLE = {
    "k = d": ([np.diag([4.0, 2.0, 1.0]), np.diag([1.0, 2.0, 5.0])], 3),
    "d = 1": ([np.array([[2.0]])], 1),
    "d = k + 1": ([np.diag([4.0, 3.0, 2.0, 1.0])], 3),
    "n = 1": (heterogeneous(1, 30, 3, 0).components, 3),
    "rank = k": (low_rank(2, 8, 3), 2),
    "negative definite": ([-np.diag(np.arange(1.0, 13.0))] * 2, 2),
    "a far negative end": ([np.diag(np.r_[3.0, 2.0, 1.0, -10.0, np.zeros(20)])], 2),
    "a double eigenvalue inside": ([np.diag([4.0, 4.0, 1.0, 0.5, 0.0])] * 2, 2),
}


@pytest.mark.parametrize("case", SOLVABLE)
@pytest.mark.parametrize("solver", [Rgd(), Iarg()], ids=["rgd", "iarg"])
def test_hard_but_solvable_cases_are_solved(solver, case):
    components, k = SOLVABLE[case]
    result = grassia.eigenspace(components, k, solver=solver, tol=1e-8, rng=0)
    oracle = np.linalg.eigh(sum(components) / len(components))[1][:, ::-1][:, :k]
    assert result.converged
    assert projection_distance(result.vectors, oracle) <= 3e-8


@pytest.mark.parametrize(
    ("components", "k"), [(low_rank(2, 8, 3), 3), (low_rank(1, 20, 2), 3), ([np.zeros((5, 5))] * 2, 2)]
)
@pytest.mark.parametrize("solver", [Rgd(), Iarg(), Oja(), DelayedOja()], ids=lambda solver: solver.name)
def test_less_rank_than_wanted_is_reported(components, k, solver):
    with pytest.warns(match="GAP_TOO_SMALL"):
        result = grassia.eigenspace(components, k, solver=solver, tol=1e-8, rng=0)
    A = components[0]
    best = np.linalg.eigvalsh(A)[::-1][:k].sum()
    assert np.trace(result.vectors.T @ A @ result.vectors) == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("solver", [Rgd(), Iarg(), Oja(step=0.05), DelayedOja(step=0.03)])
def test_a_start_in_a_wrong_invariant_space_is_left(solver):
    A = np.diag(np.arange(1.0, 11.0))
    result = grassia.eigenspace([A, A], 2, solver=solver, v0=np.eye(10)[:, :2], tol=1e-8, rng=0)
    assert result.converged
    assert result.history.count("restarted") >= 1
    assert geodesic_distance(result.vectors, np.eye(10)[:, [9, 8]]) <= 3e-8


@pytest.mark.parametrize("solver", [Rgd(step=0.05), Iarg(step=0.05), Oja(step=0.05), DelayedOja(step=0.05)])
def test_a_start_at_the_answer_stays_there(solver):
    target = heterogeneous(n=3, d=12, k=2, seed=0, noise=1e-9)
    result = solve(target, 2, solver, v0=target.leading(2), tol=1e-6)
    assert result.converged
    assert result.stats["passes"] <= 20


def test_a_step_above_the_limit_of_rgd_is_reported():
    A = np.diag(np.r_[2.0, 1.5, np.linspace(1.0, 0.0, 10)])
    with pytest.warns(match="STALLED"):
        result = grassia.eigenspace([A], 2, solver=Rgd(step=1.3 / 2.0), tol=1e-8, rng=0)
    assert result.status is Status.STALLED
    assert grassia.eigenspace([A], 2, solver=Rgd(step=0.9 / 2.0), tol=1e-8, rng=0).converged


# -- back-ends and losses -----------------------------------------------------------------------


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


def drive(solver, problem, answers, lose=(), late=0):
    """Run IARG by hand, each task run twice; each answer is told `late` answers after it was asked.

    Yields the state after each, with the vector at which every component's counted gradient was computed.
    """
    n, d = len(problem.components), len(problem.components[0])
    W = np.linalg.qr(np.random.default_rng(0).standard_normal((d, 2)))[0]
    state = solver.init(Problem(n, d, 2, problem.weights, None, False), W, None)
    loaders = as_components(problem.components)
    workers = [Worker({i: loaders[i]}) for i in range(n)]
    held, out = {}, []
    for number in range(answers):
        i = number % n
        if number in lose:
            workers[i] = Worker({i: loaders[i]})
            out = [entry for entry in out if entry[0] != i]
            state = solver.lost(state, i)
        if all(entry[0] != i for entry in out):
            version = solver.version(state)
            task = Task(number, i, version, 0, solver.ask(state, i))
            workers[i].handle(task)
            out.append((i, version, workers[i].handle(task), task.query.arrays["iterate"]))
        if len(out) > late:
            i, version, reply, at = out.pop(0)
            if version >= state.began:
                held[i] = at
            state = solver.tell(state, [Arrival(i, version, 0, reply.arrays, reply.scalars)])
            yield state, held


@pytest.mark.parametrize(("late", "table"), [(0, "worker"), (2, "worker"), (2, "server")])
@pytest.mark.parametrize("lose", [(), (9,), (2, 61, 62), (9, 10, 11, 90, 130, 131)])
def test_the_aggregate_of_iarg_is_of_the_vector_sought_alone(late, table, lose):
    """Whatever was lost or came too late, once every component has answered for this vector again."""
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    solver = Iarg(step=0.1, deflation_tol=1e-2, table=table, resum_passes=0)
    widths, since_loss, checked = set(), 100, 0
    for number, (state, held) in enumerate(drive(solver, problem, 200, lose, late)):
        since_loss = 0 if any(number <= lost <= number + late + 1 for lost in lose) else since_loss + 1
        if not state.inner.gradients.started or state.inner.gradients.fresh is not None or since_loss < 20:
            continue
        P = np.eye(12) - state.found @ state.found.T
        exact = sum(
            w * gradient(P @ A @ P, held[i])
            for i, (w, A) in enumerate(zip(problem.weights, problem.components, strict=True))
        )
        np.testing.assert_allclose(state.inner.G, exact, atol=1e-13)
        widths.add(state.found.shape[1])
        checked += 1
    assert widths == {0, 1}
    assert checked >= 40


def test_frozen_vectors_stay_frozen_and_are_eigenvectors_to_the_tolerance(problem):
    frozen = {}

    def watch(progress):
        if progress.vectors is not None and progress.phase == "solving":
            state = progress._server.state
            frozen.setdefault(state.found.shape[1], []).append(state.found)

    solver = Iarg(deflation_tol=1e-4, repeat=False)
    solve(problem, 3, solver, backend=Simulated(UNEVEN), tol=1e-10, callbacks=watch)
    for j in (1, 2):
        assert all(np.array_equal(U, frozen[j][0]) for U in frozen[j])
        np.testing.assert_array_equal(frozen[j + 1][0][:, :j], frozen[j][0])
    leading = problem.spectrum()[1][:, :3]
    overlaps = np.abs(np.sum(leading * frozen[3][0], axis=0))
    assert np.arccos(np.minimum(overlaps, 1.0)).max() <= 2e-3


def test_the_automatic_step_of_rgd_never_loses_captured_variance_for_long():
    """Its guard halves the step; without Lanczos steps to speak of the estimate is poor."""
    A = np.diag(np.r_[10.0, 9.0, np.zeros(40)])
    result = grassia.eigenspace([A], 1, solver=Rgd(spread_steps=1), tol=1e-8, rng=0)
    assert result.converged
    assert abs(result.vectors[0, 0]) == pytest.approx(1.0, abs=1e-12)


def test_the_spreads_are_asked_for_once():
    A = np.diag([3.0, 1.0, 0.0])
    solver = Rgd()
    state = solver.init(Problem(1, 3, 1, np.ones(1), None, False), np.eye(3)[:, 1:2], 0)
    assert solver.ask(state, 0).procedure == "apply-and-spread"
    state = solver.tell(state, [Arrival(0, 0, 0, {"product": A @ state.round.block}, {"spread": 3.0})])
    assert solver.step_size(state) == pytest.approx(0.8 / 3.0)
    assert solver.ask(state, 0).procedure == "apply"


def test_a_second_vector_does_not_ask_for_the_spreads_again():
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    solver = Iarg(deflation_tol=1e-2)
    states = [state for state, _ in drive(solver, problem, 120)]
    starts = [state for state in states if not state.inner.gradients.started]
    first, second = starts[0], starts[-1]
    assert "spread_steps" in solver.ask(first, 3).options
    assert second.found.shape[1] == 1
    assert "spread_steps" not in solver.ask(second, 3).options
    np.testing.assert_array_equal(second.inner.spread, states[-1].inner.spread)


@pytest.mark.parametrize("solver", [Rgd(), Iarg(), Oja(step=0.1), DelayedOja(step=0.1)])
def test_a_restart_is_an_update_to_the_space_given(solver):
    start, other = np.eye(6)[:, :2], np.eye(6)[:, 3:5]
    state = solver.init(Problem(2, 6, 2, np.full(2, 0.5), None, False), start, 0)
    np.testing.assert_array_equal(solver.subspace(state), start)
    again = solver.restart(state, other)
    np.testing.assert_array_equal(solver.subspace(again), other)
    assert solver.version(again) > solver.version(state)


# -- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Rgd(step="theory"), "`step` must be a positive finite number or 'auto'; got 'theory'"),
        (lambda: Rgd(step=-1.0), "`step` must be a positive finite number; got -1.0"),
        (lambda: Rgd(step=np.nan), "`step`"),
        (lambda: Rgd(spread_steps=0), "`spread_steps` must be at least 1"),
        (lambda: Oja(step=0.0), "`step`"),
        (lambda: Oja(step=None), "`step`"),
        (lambda: Oja(decay=-0.1), "`decay` must be a finite number of at least 0, or None; got -0.1"),
        (lambda: DelayedOja(decay="fast"), "`decay`"),
        (lambda: DelayedOja(order="sorted"), "`order` must be 'cyclic', 'shuffled' or 'random'"),
        (lambda: Iarg(step=True), "`step`"),
        (lambda: Iarg(step="theory"), "`step`"),
        (lambda: Iarg(deflation_tol=0.0), "`deflation_tol` must be a positive"),
        (lambda: Iarg(table="disk"), "`table`"),
        (lambda: Iarg(order="sorted"), "`order`"),
        (lambda: Iarg(resum_passes=-1), "`resum_passes`"),
    ],
)
def test_bad_parameters_are_refused_with_their_rule(make, rule):
    with pytest.raises(InvalidInput, match=rule):
        make()


@pytest.mark.parametrize(
    ("name", "kind"), [("rgd", Rgd), ("oja", Oja), ("delayed-oja", DelayedOja), ("iarg", Iarg)]
)
def test_they_are_found_by_name(name, kind):
    assert grassia.solvers.get(name) == kind()
    assert name in grassia.solvers.names()


def test_the_weights_count():
    """Two components that disagree: the heavier one wins, whichever method is asked."""
    parts = [np.diag([3.0, 1.0, 0.0]), np.diag([1.0, 3.0, 0.0])]
    for solver in (Rgd(), Iarg(), Oja(step=0.01), DelayedOja(step=0.01)):
        for weights, winner in (([0.8, 0.2], 0), ([0.2, 0.8], 1)):
            target = Dense(parts, np.array(weights))
            result = solve(target, 1, solver, tol=1e-2)
            assert result.converged
            assert abs(result.vectors[winner, 0]) >= 0.999
