"""Gradient baselines: answers against dense eigh, statuses, hard cases, parameters."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from gradient_baselines import each_exact, each_kind_of_backend, each_noisy, seven_components, solve
from grassia import Status
from grassia.backends import Serial, Simulated
from grassia.backends.service import Fixed
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, projection_distance
from grassia.solvers import DelayedOja, Iarg, Oja, Rgd
from problems import Dense, gaussian_rows, heterogeneous, leading_of_rows


@pytest.fixture(scope="module")
def problem():
    return seven_components()


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
