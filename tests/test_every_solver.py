"""The laws of every solver that reaches the leading eigenspace by rounds, or by waiting for some workers."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.geometry import geodesic_distance, projection_distance
from grassia.solvers import Covariance, Dsag, FedPower, Krylov, Lobpcg, Orthogonal, VrPca
from problems import gaussian_rows, heterogeneous, leading_of_rows, low_rank

SOLVERS = {
    "krylov": Krylov(),
    "krylov, narrow": Krylov(oversample=0, memory="unlimited"),
    "krylov, little memory": Krylov(memory=9, oversample=1),
    "lobpcg": Lobpcg(),
    "orthogonal": Orthogonal(),
    "covariance": Covariance(),
    "vrpca": VrPca(),
    "fedpower": FedPower(),
    "fedpower, a worker's basis": FedPower(reference="worker"),
    "dsag": Dsag(),
    "dsag, the fastest one": Dsag(wait=1),
}
every = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)

BACKENDS = {
    "serial": Serial,
    "simulated": lambda **options: Simulated(LogNormal(), seed=3, **options),
    "threads": Threads,
}


@every
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_the_answer_is_that_of_dense_eigh(solver, backend):
    problem = heterogeneous(n=7, d=40, k=3, seed=2, noise=1.0)
    result = grassia.eigenspace(
        problem.components, 3, weights=problem.weights, solver=solver, backend=backend(), tol=1e-9, rng=0
    )
    assert result.converged
    assert geodesic_distance(result.vectors, problem.leading(3)) <= 3e-9
    np.testing.assert_allclose(result.values, problem.spectrum()[0][:3], atol=1e-9)


@every
@pytest.mark.parametrize("backend", ["threads", "simulated"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_answer_for_centred_rows_is_that_of_dense_eigh(solver, sparse, backend):
    X = gaussian_rows(300, 20, 4, seed=1)
    if sparse:
        X = np.where(np.random.default_rng(0).random(X.shape) < 0.3, X, 0.0)
    components = grassia.from_rows(sp.csr_array(X) if sparse else X, n_components=6)
    result = grassia.eigenspace(components, 2, solver=solver, backend=backend, tol=1e-8, rng=0)
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 2)) <= 3e-8


@every
def test_processes_know_the_procedures(solver):
    problem = heterogeneous(n=3, d=15, k=2, seed=2)
    result = grassia.eigenspace(
        problem.components, 2, weights=problem.weights, solver=solver, backend=Processes(workers=2), rng=0
    )
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6


SOLVABLE = {
    "k = d": ([np.diag([4.0, 2.0, 1.0]), np.diag([1.0, 2.0, 5.0])], 3),
    "d = 1": ([np.array([[2.0]])], 1),
    "d = 2": ([np.diag([2.0, 1.0])], 1),
    "d = k + 1": ([np.diag([4.0, 3.0, 2.0, 1.0])], 3),
    "k = 1": (heterogeneous(5, 12, 1, 0).components, 1),
    "n = 1": (heterogeneous(1, 30, 3, 0).components, 3),
    "rank = k": (low_rank(2, 8, 3), 2),
    "negative definite": ([-np.diag(np.arange(1.0, 13.0))] * 2, 2),
    "a far negative end": ([np.diag(np.r_[3.0, 2.0, 1.0, -10.0, np.zeros(20)])], 2),
}


@every
@pytest.mark.parametrize("case", SOLVABLE)
def test_hard_but_solvable_cases_are_solved(solver, case):
    components, k = SOLVABLE[case]
    result = grassia.eigenspace(components, k, solver=solver, tol=1e-8, rng=0)
    oracle = np.linalg.eigh(sum(components) / len(components))[1][:, ::-1][:, :k]
    assert result.converged
    assert geodesic_distance(result.vectors, oracle) <= 3e-8


UNSOLVABLE = {
    "rank < k": (low_rank(2, 8, 3), 3),
    "rank 1, many wanted": (low_rank(1, 50, 2), 4),
    "zero": ([np.zeros((5, 5))] * 2, 2),
    "identity": ([np.eye(6)] * 3, 2),
}


@every
@pytest.mark.parametrize("case", UNSOLVABLE)
def test_a_missing_gap_is_reported_and_nothing_hangs(solver, case):
    components, k = UNSOLVABLE[case]
    with pytest.warns(match="GAP_TOO_SMALL"):
        result = grassia.eigenspace(components, k, solver=solver, tol=1e-8, rng=0)
    assert result.status is grassia.Status.GAP_TOO_SMALL
    A = sum(components) / len(components)
    best = np.linalg.eigvalsh(A)[::-1][:k].sum()
    assert np.trace(result.vectors.T @ A @ result.vectors) == pytest.approx(best, abs=1e-10)


@every
@pytest.mark.parametrize("d", [10, 20])
def test_a_start_in_a_wrong_invariant_space_is_left(solver, d):
    """The span of the two smallest eigenvectors is invariant: its residual is zero."""
    A = np.diag(np.arange(1.0, d + 1.0))
    result = grassia.eigenspace([A, A], 2, solver=solver, v0=np.eye(d)[:, :2], tol=1e-8, rng=0)
    assert result.converged
    assert geodesic_distance(result.vectors, np.eye(d)[:, [d - 1, d - 2]]) <= 3e-8


@every
@pytest.mark.parametrize("backend", ["serial", "simulated", "threads"])
def test_lost_workers_do_not_change_the_answer(solver, backend):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    faults = ["crash:1@1", "corrupt:0@1", "error:3@2", "duplicate:2@2", "crash:2@3"]
    make = {
        "serial": Serial,
        "simulated": lambda **options: Simulated(Fixed([1, 2, 1, 3]), **options),
        "threads": Threads,
    }
    result = grassia.eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        solver=solver,
        backend=make[backend](faults=faults),
        tol=1e-8,
        rng=0,
    )
    assert result.converged
    assert result.history.count("worker lost") >= 1
    assert geodesic_distance(result.vectors, problem.leading(2)) <= 3e-8


@pytest.mark.parametrize(
    "solver", [*SOLVERS.values(), FedPower(noise=1e-8)], ids=[*SOLVERS, "fedpower, noise"]
)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_replay_gives_the_very_same_bits(solver, backend, tmp_path):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    log = tmp_path / "run.jsonl"
    recorded = grassia.eigenspace(
        problem.components, 2, weights=problem.weights, solver=solver, backend=backend(), rng=7, record=log
    )
    again = grassia.replay(log, problem.components)
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.certificate.sin_theta == recorded.certificate.sin_theta
    assert again.history["residual"].tobytes() == recorded.history["residual"].tobytes()
