"""How fast gradient baselines converge, and where noise, delay and deflation stop them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import grassia
from gradient_baselines import each_exact, each_kind_of_backend, random_start, seven_components, solve
from grassia import Status
from grassia.backends import Serial, Simulated
from grassia.backends.service import Fixed
from grassia.geometry import geodesic_distance
from grassia.solvers import DelayedOja, Iarg, Oja, Rgd
from problems import Dense, heterogeneous, iterates, trajectory


@pytest.fixture(scope="module")
def problem():
    return seven_components()


@pytest.fixture(scope="module")
def W0():
    return random_start()


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
    stated = []

    def enough(progress):
        # A thread may take its time, and a residual is stated when all have answered.
        if not np.isnan(progress.residual):
            stated.append(progress.residual)
        return len(stated) >= 5

    trajectory(problem, solver, backend(), W0, 100_000, callbacks=[enough])
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
