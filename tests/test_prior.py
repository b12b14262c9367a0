"""What is expected of components that have not been asked: against dense algebra, and in whole runs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia.backends import Simulated
from grassia.backends.service import LogNormal, straggler
from grassia.geometry import projection_distance
from grassia.solvers import Nystrom
from grassia.solvers.prior import MOST, Prior
from grassia.solvers.surrogate import Surrogate, outside
from problems import gaussian_rows, heterogeneous, leading_of_rows

D = 30


def alike(n: int, seed: int) -> list[np.ndarray]:
    """Covariances of shards of one data set."""
    rng = np.random.default_rng(seed)
    scales = 1.0 / np.arange(1, D + 1)
    shards = [rng.standard_normal((200, D)) * scales for _ in range(n)]
    return [X.T @ X / len(X) for X in shards]


def unlike(n: int, seed: int) -> list[np.ndarray]:
    """Components that have nothing in common: each has its own directions, and sizes a thousandfold apart."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.standard_normal((D, D)))[0] for _ in range(n)]
    return [10.0 ** rng.uniform(-2, 1) * (U / np.arange(1, D + 1) ** 2) @ U.T for U in bases]


def asked(matrices: list[np.ndarray], weights: np.ndarray, block: np.ndarray, rounds: int = 2):
    """Models that contain `block`, beside random directions, and a prior that has followed them."""
    n = len(matrices)
    rng = np.random.default_rng(9)
    surrogate, prior = Surrogate(n, D, 20, weights), Prior(n, D, D)
    for _ in range(rounds):
        for i, A in enumerate(matrices):
            V = outside(np.hstack([block, rng.standard_normal((D, 2))]), surrogate.basis(i))[:, :4]
            prior.learn(i, V, surrogate.add(i, V, A @ V), surrogate.basis(i))
            prior.prepare(surrogate)
    return surrogate, prior


@pytest.mark.parametrize("kind", [alike, unlike])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_is_the_schur_complement_of_the_mean_model(kind, seed):
    n = 5
    weights = np.random.default_rng(seed).dirichlet(np.full(n, 5.0))
    surrogate, prior = asked(kind(n, seed), weights, np.eye(D)[:, :2])
    M = (prior.U * prior.L**2) @ prior.U.T
    size = np.linalg.norm(M, 2)
    for i in range(n):
        Q = surrogate.basis(i)
        found = prior.expected(i, np.eye(D))
        inner = np.linalg.pinv(Q.T @ M @ Q, rcond=1e-12, hermitian=True)
        schur = M - M @ Q @ inner @ Q.T @ M
        np.testing.assert_allclose(found, prior.trust[i] * schur, atol=1e-8 * size)
        assert np.linalg.norm(found @ Q, 2) <= 1e-14 * size  # what was asked prevails
        assert np.linalg.eigvalsh((found + found.T) / 2.0)[0] >= -1e-14 * size
        assert 0.0 <= prior.trust[i] <= MOST


@pytest.mark.parametrize("kind", [alike, unlike])
def test_what_is_expected_of_all_is_the_weighted_sum_and_a_surprise_is_what_it_missed(kind):
    weights = np.random.default_rng(1).dirichlet(np.full(4, 5.0))
    matrices = kind(4, 2)
    surrogate, prior = asked(matrices, weights, np.eye(D)[:, :2])
    X = np.random.default_rng(3).standard_normal((D, 3))
    summed = sum(w * prior.expected(i, X) for i, w in enumerate(weights))
    np.testing.assert_allclose(prior.together(X), summed, atol=1e-12 * np.abs(summed).max())

    V = outside(X, surrogate.basis(1))
    foretold = prior.expected(1, V) / prior.trust[1] if prior.trust[1] else np.zeros_like(V)
    unknown = surrogate.add(1, V, matrices[1] @ V)
    missed = prior.learn(1, V, unknown, surrogate.basis(1))
    if foretold.any():
        np.testing.assert_allclose(missed, unknown - prior.trust[1] * foretold, atol=1e-12)
        assert np.linalg.norm(missed) <= np.linalg.norm(unknown) * (1.0 + 1e-12)
    prior.rest()
    assert not prior.together(X).any()


def test_a_new_summary_is_the_sum_of_the_models_where_there_is_room():
    weights = np.full(4, 0.25)
    surrogate, prior = asked(alike(4, 0), weights, np.eye(D)[:, :2])
    prior.rest()
    prior.prepare(surrogate)
    np.testing.assert_allclose((prior.U * prior.L**2) @ prior.U.T, surrogate.apply(np.eye(D)), atol=1e-9)


def test_the_correction_is_that_of_a_dense_eigensolver():
    weights = np.full(5, 0.2)
    surrogate, prior = asked(alike(5, 1), weights, np.eye(D)[:, :2])
    prior.rest()
    prior.prepare(surrogate)
    values, E = surrogate.leading(4, None, 1e-14)
    expected = sum(w * prior.expected(i, np.eye(D)) for i, w in enumerate(weights))
    total = surrogate.apply(np.eye(D)) + expected
    dense = np.linalg.eigh(total)[1][:, ::-1][:, :4]
    corrected = prior.correct(values, E)
    np.testing.assert_allclose(corrected.T @ corrected, np.eye(4), atol=1e-14)
    assert projection_distance(E[:, :3], dense[:, :3]) > 1e-3
    assert projection_distance(corrected[:, :3], dense[:, :3]) <= 1e-7


@pytest.mark.parametrize("kind", [alike, unlike])
@pytest.mark.parametrize("seed", range(3))
def test_an_eigenspace_inside_every_model_stays_one_whatever_the_trust(kind, seed):
    n = 6
    matrices, weights = kind(n, seed), np.full(n, 1.0 / n)
    A = sum(w * M for w, M in zip(weights, matrices, strict=True))
    leading = np.linalg.eigh(A)[1][:, ::-1][:, :3]
    surrogate, prior = asked(matrices, weights, leading)
    prior.trust[:] = np.random.default_rng(seed).uniform(0.0, MOST, n)  # whatever the trust
    prior.rest()
    prior.prepare(surrogate)
    total = surrogate.apply(np.eye(D)) + sum(w * prior.expected(i, np.eye(D)) for i, w in enumerate(weights))
    residual = total @ leading - leading @ (leading.T @ A @ leading)
    assert np.linalg.norm(residual, 2) <= 1e-13 * np.linalg.norm(A, 2)


@pytest.mark.parametrize("likeness", [True, False])
def test_the_first_answer_of_a_straggler_decides_on_its_trust(likeness):
    n = 8
    matrices, weights = alike(n, 2), np.full(n, 1.0 / n)
    surrogate, prior = Surrogate(n, D, 20, weights), Prior(n, D, D)
    for i in range(n - 1):
        surrogate.add(i, np.eye(D)[:, :6], matrices[i][:, :6])
    prior.prepare(surrogate)
    late = matrices[-1] if likeness else np.diag(np.r_[np.zeros(D - 3), 1.0, 1.0, 1.0])
    V = np.eye(D)[:, :2]
    prior.learn(n - 1, V, surrogate.add(n - 1, V, late @ V), V)
    if likeness:
        assert 0.7 < prior.trust[-1] < 1.4
    else:
        assert prior.trust[-1] == 0.0


def test_it_rests_when_it_brings_nothing_any_more():
    """Expectations could call for directions that a small memory forgets again: not for ever."""
    states = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        grassia.eigenspace(
            unlike(6, 0),
            3,
            rng=0,
            tol=1e-10,
            solver=Nystrom(width=3, extra=0, memory=6),
            callbacks=lambda progress: states.append(progress._server.state) and None,
        )
    state = states[-1]
    state.stalled = 2 * state.problem.n + 1
    assert Nystrom()._expected(state, None) is state.plain


def time_to(X: np.ndarray, n: int, solver: Nystrom, level: float, seed: int) -> float:
    leading, reached = leading_of_rows(X, 3), []

    def watch(progress):
        if progress.version and projection_distance(progress.vectors, leading) <= level:
            reached.append(progress.time)
        return bool(reached)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        backend = Simulated(straggler(n, 20.0), seed=seed)
        grassia.eigenspace(
            grassia.from_rows(X, n), 3, rng=seed, tol=1e-12, solver=solver, backend=backend, callbacks=watch
        )
    return reached[0]


def test_it_saves_time_on_shards_of_one_data_set_under_a_straggler():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((8000, 120)) / np.arange(1, 121) ** 0.7
    totals = []
    for level in (1e-2, 1e-5):  # times come in steps of the straggler's, so one level may be even
        with_prior, without = (
            sum(time_to(X, 8, Nystrom(width=3, prior=prior), level, seed) for seed in range(3))
            for prior in (True, False)
        )
        assert with_prior <= without, level
        totals.append((with_prior, without))
    assert sum(first for first, _ in totals) < sum(second for _, second in totals)


@pytest.mark.parametrize("seed", range(4))
def test_it_never_costs_correctness_where_shards_have_nothing_in_common(seed):
    problem = heterogeneous(8, 60, 3, seed=seed)
    values = problem.spectrum()[0]
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        rng=seed,
        tol=1e-9,
        solver=Nystrom(width=3),
        backend=Simulated(LogNormal(), seed=seed, faults="crash:1@3"),
    )
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-9
    bound, best = result.history["bound"], float(values[:3].sum())
    known = bound[np.isfinite(bound)]
    assert np.diff(known).min() >= -1e-12 * best
    assert known.max() <= best * (1.0 + 1e-12)


def test_shards_with_disjoint_directions_are_found_too():
    """One component alone holds what matters; all the others agree on something else."""
    common = np.diag(np.r_[np.zeros(3), 1.0 / np.arange(1, D - 2)])
    odd = np.diag(np.r_[40.0, 30.0, 20.0, np.zeros(D - 3)])
    result = grassia.eigenspace(
        [common] * 7 + [odd],
        3,
        rng=0,
        tol=1e-10,
        solver=Nystrom(width=3),
        backend=Simulated(straggler(8, 9.0)),
    )
    assert result.converged
    assert projection_distance(result.vectors, np.eye(D)[:, :3]) <= 1e-10


def test_it_drops_out_where_the_budget_is_tight():
    X = gaussian_rows(600, 50, 3, seed=0)
    solver = Nystrom(width=3, extra=3)
    slot = solver.sizes(6, 50, 3)[2] + 3
    tight = Nystrom(width=3, extra=3, budget=1.01 * Surrogate.nbytes(6, 50, min(50, slot)))
    assert tight.sizes(6, 50, 3) == solver.sizes(6, 50, 3)
    assert tight.server_bytes(6, 50, 3) == Nystrom(width=3, extra=3, prior=False).server_bytes(6, 50, 3)
    assert tight.server_bytes(6, 50, 3) < solver.server_bytes(6, 50, 3)
    result = grassia.eigenspace(grassia.from_rows(X, 6), 3, rng=0, solver=tight)
    assert result.converged


@pytest.mark.parametrize("seed", [0, 2, 5, 7])
def test_what_is_expected_does_not_overtake_what_is_known(seed):
    """All of them are expected to have more of a direction behind the cut than they were found to have."""
    scales = np.r_[3.0, 2.6, 2.2, np.linspace(1.6, 0.2, 297)]
    X = np.random.default_rng(0).standard_normal((4000, 300)) * scales
    leading, distances = leading_of_rows(X, 3), []

    def follow(progress):
        if progress.vectors is not None:
            distances.append(projection_distance(progress.vectors, leading))

    components = grassia.from_rows(X, n_components=8)
    backend = Simulated(straggler(8, 20.0))
    assert grassia.eigenspace(
        components, 3, solver="nystrom", backend=backend, rng=seed, callbacks=follow
    ).converged
    close = next(i for i, distance in enumerate(distances) if distance < 1e-3)
    assert max(distances[close:]) < 0.1
