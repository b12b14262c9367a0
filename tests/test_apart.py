"""Angles by directions set apart, and the answer a power step further, against dense eigenproblems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from certificate_oracles import KINDS, check, drive, matrix, spectrum
from grassia.apart import Apart, set_apart
from grassia.certificate import Certifier
from grassia.certifying import sine_bound
from grassia.geometry import orthonormality_error, projection_distance
from problems import symmetric


def turned(vectors, by, rng):
    """Orthonormal columns near these, in random directions."""
    noise = rng.standard_normal(vectors.shape) / np.sqrt(len(vectors))
    return np.linalg.qr(vectors + by * noise)[0]


def seen(A, k, m, off, away, rng):
    """Ritz vectors `off` from the leading ones, and m directions `away` from the next: what is known then."""
    vectors = np.linalg.eigh(A)[1][:, ::-1]
    W = turned(vectors[:, :k], off, rng)
    values, turn = np.linalg.eigh(W.T @ A @ W)
    W, values = W @ turn[:, ::-1], values[::-1]
    q = turned(vectors[:, k : k + m], away, rng)
    q = np.linalg.qr(q - W @ (W.T @ q))[0]
    G = A @ W - W * values
    P = np.eye(len(A)) - W @ W.T
    M = P @ A @ P
    E = M @ q - q @ (q.T @ M @ q)
    apart = Apart.of(values, np.linalg.norm(G, axis=0), q.T @ M @ q, q.T @ G, E.T @ E)
    rest = P - q @ q.T
    return W, G, apart, np.linalg.eigvalsh(M)[-1], np.linalg.eigvalsh(rest @ M @ rest)[-1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gapless"])
def test_the_sine_is_no_larger_than_its_bound(kind):
    """Whatever the directions set apart are worth."""
    counted = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        d, k = int(rng.integers(20, 80)), int(rng.integers(1, 6))
        A = matrix(spectrum(kind, d, k, rng), rng)
        m = int(rng.integers(0, 10))
        off, away = 10.0 ** -rng.uniform(1.0, 8.0), 10.0 ** -rng.uniform(0.0, 8.0)
        W, G, apart, mu, beyond = seen(A, k, m, off, away, rng)
        assert apart.highest(beyond) >= mu - 1e-13 * apart.values[0]
        residual, columns = np.linalg.norm(G, 2), np.linalg.norm(G, axis=0)
        coarse = sine_bound(residual, columns, apart.values, mu)
        found = apart.sine(beyond, mu, coarse, residual, np.zeros(k), 0.0)
        true = projection_distance(W, np.linalg.eigh(A)[1][:, ::-1][:, :k])
        assert found <= coarse
        if coarse < 1.0:
            # the oracle itself knows eigenvectors up to rounding over the gap
            assert true <= found * (1 + 1e-9) + 1e-14 * apart.values[0] / (apart.values[-1] - mu)
            counted += 1
    assert counted > 20 or kind == "rank-deficient"


def test_the_bound_is_near_the_truth_where_davis_and_kahan_are_not():
    """A residual with nothing along what follows closely after the cut, as Krylov methods leave it."""
    values = np.r_[2.0, 1.0, 0.99, 0.98, 0.97, np.linspace(0.3, 0.1, 45)]
    A, U = symmetric(values)
    rng = np.random.default_rng(0)
    W = np.linalg.qr(U[:, :2] + 1e-6 * U[:, 5:] @ rng.standard_normal((45, 2)))[0]
    G = A @ W - W @ (W.T @ A @ W)
    theta = np.linalg.eigvalsh(W.T @ A @ W)[::-1]
    lengths = np.linalg.norm(G, axis=0)
    apart = Apart.of(theta, lengths, np.diag(values[2:5]), U[:, 2:5].T @ G, np.zeros((3, 3)))
    residual = np.linalg.norm(G, 2)
    coarse = sine_bound(residual, lengths, theta, 0.99)
    true = projection_distance(W, U[:, :2])
    found = apart.sine(0.3, 0.99, coarse, residual, np.zeros(2), 0.0)
    assert true <= found <= 2.0 * true
    assert coarse > 30.0 * true


def test_rounding_and_doubts_enter_by_the_whole_gap():
    apart = Apart(np.array([1.0]), np.zeros(1), np.array([0.9]), np.zeros((1, 1)), np.zeros((1, 1)))
    assert apart.sine(0.1, 0.9, 1e-3, 1e-4, np.array([1e-6]), 0.0) == pytest.approx(1e-5, rel=2e-3)
    assert apart.sine(0.1, 0.9, 1e-3, 1e-4, np.array([1e-6]), 0.06) == 1e-3  # M q may be anything


def test_what_cannot_be_told_is_left_to_the_other_bound():
    above = Apart(np.array([1.0]), np.array([1e-3]), np.array([1.1]), np.zeros((1, 1)), np.zeros((1, 1)))
    assert np.isinf(above.tangents(0.5)).all()
    assert above.farthest(0.1) == -math.inf
    none = Apart(np.array([1.0]), np.array([1e-3]), np.zeros(0), np.zeros((0, 1)), np.zeros((0, 0)))
    assert none.tangents(0.5) == pytest.approx([2e-3])
    assert none.highest(0.5) == 0.5
    assert none.farthest(2e-3) == pytest.approx(0.5, abs=1e-3)
    assert np.isinf(none.tangents(1.0)).all()


@pytest.mark.parametrize("size", [1e-150, 1.0, 1e150])
def test_good_directions_are_set_apart_and_poor_ones_are_not(size):
    values, lengths = size * np.array([2.0, 1.0]), size * np.full(2, 1e-4)
    T, inside = size * np.diag([0.95, 0.9, 0.4]), np.zeros((3, 2))
    good, poor = size * 1e-5, size * 0.5
    angle, m = set_apart(values, lengths, T, inside, np.diag(np.array([good, good, poor])) * size * 1e-5)
    assert m == 2
    assert angle < 5e-4
    angle, m = set_apart(values, lengths, T, inside, np.full((3, 3), poor) * size)
    assert m == 0
    assert angle == pytest.approx(1e-4 * np.hypot(1 / 1.025, 1 / 0.025))
    assert set_apart(values, lengths, T + size * np.eye(3), inside, T)[1] == 0


def test_bounds_hold_with_directions_of_every_quality():
    """700 runs of a certificate, with directions and products that were known before, and claims."""
    exceeded = estimated = better = 0
    for seed in range(700):
        rng = np.random.default_rng(seed)
        kind = KINDS[seed % len(KINDS)]
        d, k = int(rng.integers(20, 120)), int(rng.integers(1, 6))
        A = matrix(spectrum(kind, d, k, rng), rng)
        if seed % 3 == 0:
            A = A - 0.5 * np.trace(A) / d * np.eye(d)  # indefinite
        values, vectors = np.linalg.eigh(A)
        values, vectors = values[::-1], vectors[:, ::-1]
        W = turned(vectors[:, :k], 10.0 ** -rng.uniform(1.0, 10.0), rng)
        q = turned(vectors[:, k : k + int(rng.integers(1, 12))], 10.0 ** -rng.uniform(0.0, 9.0), rng)
        error = 10.0 ** -rng.uniform(5.0, 12.0) * abs(values).max() / np.sqrt(d)
        spoil = [error * rng.standard_normal(X.shape) for X in (q, W)]
        positive = bool(values[-1] >= 0.0)
        outcome = drive(
            A,
            [W],
            10.0 ** -rng.uniform(1.0, 9.0),
            np.random.default_rng([seed, 1]),
            total=float(np.trace(A)),
            positive=positive,
            certifier=Certifier(probes=int(rng.integers(1, 17)), max_sweeps=int(rng.integers(1, 8))),
            known=(q, A @ q + spoil[0]) if rng.random() < 0.8 else None,
            claimed=A @ W + spoil[1] if rng.random() < 0.5 else None,
            trusted=int(rng.integers(0, k + 1)) if rng.random() < 0.5 else None,
        )
        rigorous, given = check(outcome.certificate, outcome.W, values, vectors, k)
        if outcome.certificate.claimed:
            rigorous = True  # nothing is called so
        estimated += not given
        exceeded += not rigorous
        # All that is said of W goes for the answer, too.
        answer, certificate = outcome.answer, outcome.certificate
        assert orthonormality_error(answer) <= 1e-12 * math.sqrt(k) or not certificate.converged
        if certificate.converged and values[k - 1] - values[k] > 1e-12 * abs(values).max():
            residual = A @ answer - answer @ (answer.T @ A @ answer)
            allowed = certificate.residual_norm * (1.0 + 1e-6) + 1e-13 * abs(values).max()
            estimated += np.linalg.norm(residual, 2) > allowed
            sine = projection_distance(answer, vectors[:, :k])
            estimated += sine > certificate.sin_theta.value * (1.0 + 1e-6) + 1e-12
            better += sine < 0.9 * projection_distance(outcome.W, vectors[:, :k])
            assert positive or answer is outcome.W
    assert exceeded == 0
    assert estimated <= 7
    assert better > 50


@pytest.mark.parametrize("probes", [1, 3])
def test_directions_set_apart_leave_the_confidence_as_it_is(probes):
    """A direction that nobody followed makes the angle larger. It may be missed once in three."""
    d, failures, runs = 200, 0, 300
    values = np.r_[3.0, 2.5, 2.9, 2.8, np.full(d - 4, 0.1)]
    A = np.diag(values)
    unit = np.eye(d)
    W = (unit[:, :1] + 1e-4 * unit[:, 1:2]) / math.hypot(1.0, 1e-4)
    followed = unit[:, 2:6]
    for seed in range(runs):
        outcome = drive(
            A,
            [W],
            1.6e-4,
            np.random.default_rng(seed),
            certifier=Certifier(probes=probes, max_sweeps=2, confidence=2 / 3),
            known=(followed, A @ followed),
        )
        failures += outcome.certificate.sin_theta.value < 1e-4 * (1.0 - 1e-6)
    assert failures <= runs / 3 + 3 * np.sqrt(runs * (1 / 3) * (2 / 3))
    assert failures > 0  # it is no safer than it says by orders of magnitude, either


def test_who_asks_for_a_rigorous_certificate_gets_what_was_multiplied():
    A, U = symmetric(1.0 / np.arange(1, 101))
    W = turned(U[:, :3], 1e-8, np.random.default_rng(0))
    for rigorous in (False, True):
        outcome = drive(
            A, [W], 1e-6, np.random.default_rng(0), positive=True, certifier=Certifier(rigorous=rigorous)
        )
        assert outcome.certificate.converged
        assert (outcome.answer is outcome.W) == rigorous


@pytest.mark.parametrize("known", ["short", "near W"])
def test_an_error_grows_as_its_direction_is_made_orthonormal(known):
    """It must not hide what is wrong with W: before, every such answer was certified."""
    A = np.diag(np.r_[1.0, 0.9, np.linspace(0.3, 0.0, 298)])
    unit = np.eye(300)
    W = (unit[:, :1] + 1e-3 * unit[:, 1:2]) / math.hypot(1.0, 1e-3)
    X = 1e-6 * unit[:, 1:2] + (W if known == "near W" else 0.0)
    for seed in range(20):
        outcome = drive(
            A,
            [W],
            9e-4,
            np.random.default_rng(seed),
            certifier=Certifier(max_sweeps=3),
            known=(X, A @ X - 0.6e-6 * unit[:, 1:2]),
        )
        assert not outcome.certificate.converged
        assert outcome.certificate.sin_theta.value >= 1e-3 * (1.0 - 1e-6)


def test_no_sweeps_are_made_for_a_bound_that_cannot_come():
    """Davis and Kahan know nothing of this angle, and so does who refines what they say."""
    values = np.r_[1.0, 0.99, 0.3, 0.2, np.linspace(0.1, 0.0, 396)]
    unit = np.eye(400)
    error = np.random.default_rng(5).standard_normal((400, 1)) * (values[:, None] < 0.15)
    for size, most in ((2e-3, 3), (8e-3, 1)):
        W = np.linalg.qr(unit[:, :1] + size * error / np.linalg.norm(error))[0]
        known = unit[:, 1:4], values[:, None] * unit[:, 1:4]
        outcome = drive(np.diag(values), [W], 1e-2, np.random.default_rng(0), known=known)
        assert outcome.certificate.converged == (most == 3)
        assert outcome.certificate.sweeps <= most


def test_a_claim_with_doubts_as_large_as_the_gap_costs_few_sweeps():
    values = np.r_[1e4, 5e3, 1.0, 0.999, 0.9, np.linspace(0.1, 0.0, 595)]
    A, unit, rng = np.diag(values), np.eye(600), np.random.default_rng(1)
    error = rng.standard_normal((600, 3)) * (np.arange(600) >= 5)[:, None]
    W = np.linalg.qr(unit[:, :3] + 3e-7 * error / np.linalg.norm(error, axis=0))[0]
    claimed = A @ W + 1e-5 * rng.standard_normal(W.shape)
    known = unit[:, 3:7], A @ unit[:, 3:7]
    for options in ({}, {"claimed": claimed, "trusted": 2}):
        outcome = drive(A, [W], 2e-6, np.random.default_rng(0), positive=True, known=known, **options)
        assert outcome.certificate.converged
        assert outcome.certificate.sweeps <= 5
        assert projection_distance(outcome.answer, unit[:, :3]) <= outcome.certificate.sin_theta.value
