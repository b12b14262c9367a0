"""Certificates whose random block was multiplied on the way: no sweep, and no less true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import grassia
from grassia import Certifier
from grassia.backends import Simulated
from grassia.backends.service import LogNormal, straggler
from grassia.geometry import projection_distance
from grassia.messages import Query
from grassia.probing import EarlyProbe
from grassia.solvers import Krylov, Nystrom
from problems import gaussian_rows, heterogeneous, leading_of_rows


@pytest.fixture(scope="module")
def rows():
    return gaussian_rows(1200, 60, k=3, seed=0)


def solve(rows, service=None, n=4, **options):
    components = grassia.from_rows(rows, n_components=n)
    backend = Simulated(service or straggler(n, 10.0), free_tasks=1)
    options = {"k": 3, "solver": "nystrom", "rng": 0, "tol": 1e-7, **options}
    return grassia.eigenspace(components, backend=backend, **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("solver", [Nystrom(), Krylov()], ids=["nystrom", "krylov"])
def test_no_sweep_is_needed_where_the_solver_vouches_for_its_product(rows, solver, seed):
    early = solve(rows, solver=solver, tol=1e-6, rng=seed)
    late = solve(rows, solver=solver, tol=1e-6, rng=seed, certifier=Certifier(rigorous=True))
    assert early.converged
    assert early.certificate.sweeps == 0
    assert early.certificate.claimed
    assert late.converged
    assert late.certificate.sweeps >= 1
    assert not late.certificate.claimed
    assert early.stats["seconds"] <= late.stats["seconds"] - 10.0  # an answer of the straggler
    for result in (early, late):
        distance = projection_distance(result.vectors, leading_of_rows(rows, 3))
        assert distance <= result.certificate.sin_theta.value <= 1e-6


@pytest.mark.parametrize("solver", [Nystrom(), Krylov(oversample=0)], ids=["nystrom", "krylov"])
def test_the_solver_knows_nothing_of_the_probe(rows, solver):
    """From one start, whatever probe is drawn, the way to the first certificate is the same to the bit."""
    start = np.linalg.qr(np.random.default_rng(5).standard_normal((60, 3)))[0]
    one, other = (solve(rows, LogNormal(), solver=solver, v0=start, rng=seed) for seed in (1, 2))
    assert one.certificate.next_value.value != other.certificate.next_value.value
    for name in ("residual", "version", "time", "bound"):
        np.testing.assert_array_equal(one.history[name], other.history[name])


@dataclass(frozen=True)
class Boaster(Nystrom):
    """Claims after a few answers that its iterate is an eigenspace."""

    def residual(self, state):
        known = super().residual(state)
        return None if known is None else 1e-12 * known

    def claimed(self, state):
        return state.W * np.arange(3.0, 0.0, -1.0)


def test_a_claim_that_is_wrong_is_found_out(rows):
    result = solve(rows, solver=Boaster(), tol=1e-6)
    assert result.converged
    assert not result.certificate.claimed
    assert result.certificate.sweeps >= 1
    assert projection_distance(result.vectors, leading_of_rows(rows, 3)) <= 1e-6


@pytest.mark.parametrize("seed", range(40))
def test_the_bounds_hold_over_many_runs(seed):
    problem = heterogeneous(n=5, d=25, k=2, seed=seed)
    result = grassia.eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        solver="nystrom",
        backend=Simulated(LogNormal(), seed=seed),
        rng=seed,
        tol=1e-4,
    )
    assert result.converged
    values, vectors = problem.spectrum()
    certificate = result.certificate
    assert projection_distance(result.vectors, vectors[:, :2]) <= certificate.sin_theta.value
    assert values[2] <= certificate.next_value.value
    assert np.all(np.abs(values[:2] - certificate.values) <= certificate.eigenvalue_errors)


def test_faults_lose_no_part_of_the_probe_and_count_none_twice(rows):
    components = grassia.from_rows(rows, n_components=6)
    faults = ["crash:0,3@2", "duplicate:*@30%", "corrupt:*@5%", "error:1@3", "slow:5:8x"]
    for seed in range(6):
        result = grassia.eigenspace(
            components, 3, solver="nystrom", backend=Simulated(faults=faults, seed=seed), rng=seed, tol=1e-8
        )
        assert result.converged
        assert projection_distance(result.vectors, leading_of_rows(rows, 3)) <= 1e-8


def test_an_early_probe_adds_up_each_answer_once():
    rng = np.random.default_rng(0)
    matrices, weights = rng.standard_normal((3, 8, 8)), np.array([0.5, 0.3, 0.2])
    probe = EarlyProbe(rng.standard_normal((8, 2)), weights)
    V = rng.standard_normal((8, 3))
    beside = probe.beside(Query("apply", {"block": V}))
    np.testing.assert_array_equal(beside.arrays["block"], np.hstack([V, probe.block]))
    assert probe.beside(None).arrays["block"].shape == (8, 2)
    other = Query("covariance")
    assert probe.beside(other) is other
    for i in (2, 0, 2, 1, 0):
        probe.take(i, matrices[i] @ probe.block)
    assert probe.complete
    expected = sum(w * M for w, M in zip(weights, matrices, strict=True)) @ probe.block
    np.testing.assert_allclose(probe.total, expected, atol=1e-14)
