"""A bound called rigorous is never exceeded, an estimated one in under 1 %, and no false `converged`."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from certificate_oracles import KINDS, check, drive, matrix, random_problem, spectrum
from grassia.backends import Simulated
from grassia.certificate import Certifier
from grassia.geometry import projection_distance
from grassia.result import Status


def test_bounds_hold_for_any_subspace_good_or_bad():
    """1400 subspaces at every distance from the leading one, wrong invariant ones among them."""
    exceeded = estimated = 0
    for seed in range(1400):
        rng = np.random.default_rng(seed)
        kind = KINDS[seed % len(KINDS)]
        d = int(rng.integers(20, 160))
        k = int(rng.integers(1, 6))
        A = matrix(spectrum(kind, d, k, rng), rng)
        if seed % 3 == 0:
            A = A - 0.5 * np.trace(A) / d * np.eye(d)  # indefinite
        values, vectors = np.linalg.eigh(A)
        values, vectors = values[::-1], vectors[:, ::-1]
        noise = rng.standard_normal((d, k)) * 10.0 ** -rng.uniform(0.0, 12.0) / np.sqrt(d)
        columns = np.arange(k) if rng.random() < 0.8 else rng.permutation(d)[:k]
        W = np.linalg.qr(vectors[:, columns] + noise)[0]
        positive = bool(values[-1] >= 0.0)
        outcome = drive(
            A,
            [W],
            10.0 ** -rng.uniform(1.0, 9.0),
            rng,
            total=float(np.trace(A)),
            positive=positive,
            certifier=Certifier(probes=int(rng.integers(1, 9)), max_sweeps=int(rng.integers(1, 12))),
        )
        rigorous, given = check(outcome.certificate, outcome.W, values, vectors, k)
        assert rigorous, (seed, kind)
        estimated += not outcome.certificate.next_value.rigorous
        exceeded += not given
        assert not (outcome.certificate.converged and not given), (seed, kind)
    assert estimated > 200  # the estimated bounds were really put to the test
    assert exceeded < 0.01 * estimated


def test_a_wrong_invariant_subspace_is_never_certified():
    """The residual is zero, so only the probes can tell; they also show the way out."""
    rng = np.random.default_rng(0)
    values = np.r_[5.0, 4.0, 3.0, np.linspace(1.0, 0.0, 97)]
    A = matrix(values, rng)
    vectors = np.linalg.eigh(A)[1][:, ::-1]
    outcome = drive(A, [vectors[:, [0, 2]]], 1e-6, rng, total=float(np.trace(A)), positive=True)
    assert outcome.certificate.residual_norm < 1e-10
    assert not outcome.certificate.converged
    assert outcome.certificate.next_lower > outcome.certificate.values[-1]
    assert outcome.explored_captured > outcome.certificate.captured + 0.5


def test_the_trace_alone_certifies_rigorously_where_little_is_left():
    rng = np.random.default_rng(1)
    A = matrix(np.r_[5.0, 4.0, np.full(198, 1e-3)], rng)
    W = np.linalg.eigh(A)[1][:, ::-1][:, :2]
    outcome = drive(A, [W], 1e-8, rng, total=float(np.trace(A)), positive=True)
    assert outcome.certificate.converged
    assert outcome.certificate.sin_theta.rigorous
    assert outcome.certificate.sweeps == 1


def test_without_a_trace_the_bound_is_estimated_and_says_so():
    rng = np.random.default_rng(1)
    A = matrix(np.r_[5.0, 4.0, np.linspace(1.0, 0.0, 298)], rng)
    W = np.linalg.eigh(A)[1][:, ::-1][:, :2]
    outcome = drive(A, [W], 1e-8, rng)
    assert outcome.certificate.converged
    assert not outcome.certificate.sin_theta.rigorous
    assert outcome.certificate.sin_theta.confidence == 0.999
    assert outcome.certificate.sin_theta_rigorous == 1.0
    assert "confidence" in str(outcome.certificate)


def test_the_whole_space_needs_no_gap():
    A = np.diag([3.0, 2.0, 2.0])
    outcome = drive(A, [np.eye(3)], 1e-12, np.random.default_rng(0))
    assert outcome.certificate.converged
    assert outcome.certificate.sin_theta.rigorous


def test_the_best_of_several_candidates_is_certified():
    A = np.diag([5.0, 4.0, 1.0, 0.5])
    rng = np.random.default_rng(0)
    outcome = drive(A, [np.eye(4)[:, 2:], np.eye(4)[:, :2]], 1e-8, rng)
    assert outcome.choice == 1
    assert outcome.certificate.converged


def test_the_identified_block_is_named_when_the_cut_is_in_a_cluster():
    rng = np.random.default_rng(4)
    A = matrix(np.r_[5.0, 4.0, 2.0, 2.0, np.linspace(1.0, 0.0, 36)], rng)
    W = np.linalg.eigh(A)[1][:, ::-1][:, :3]
    certificate = drive(A, [W], 1e-8, rng).certificate
    assert not certificate.converged
    assert certificate.identified == 2
    assert "leading 2 of 3" in str(certificate)


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("known", [False, True])
def test_the_probe_bound_holds_as_often_as_it_says(probes, known):
    """One direction above a flat floor: the bound may fail once in three, and at times does."""
    d, failures, runs = 200, 0, 300
    values = np.r_[3.0, 1.0, np.full(d - 2, 0.5)]
    A = np.diag(values)
    W = np.eye(d)[:, :1]
    followed = np.eye(d)[:, 2:40]
    for seed in range(runs):
        outcome = drive(
            A,
            [W],
            1e-300,  # out of reach: make every sweep
            np.random.default_rng(seed),
            certifier=Certifier(probes=probes, max_sweeps=3, confidence=2 / 3),
            known=(followed, A @ followed) if known else None,
        )
        bound = outcome.certificate.next_value
        assert not bound.rigorous
        failures += bound.value < 1.0
    deviation = np.sqrt(runs * (1 / 3) * (2 / 3))
    assert failures <= runs / 3 + 3 * deviation
    assert failures >= 0.02 * runs  # it is no safer than it says by orders of magnitude, either


def test_one_sweep_does_where_the_solver_knows_what_follows():
    rng = np.random.default_rng(3)
    A = matrix(np.r_[9.0, 8.0, 7.0, 6.5, 6.0, 3.0 / np.arange(1, 396) ** 0.7], rng)
    vectors = np.linalg.eigh(A)[1][:, ::-1]
    W, after = vectors[:, :3], vectors[:, 3:9]
    alone = drive(A, [W], 1e-6, rng)
    helped = drive(A, [W], 1e-6, rng, beside=after)
    told = drive(A, [W], 1e-6, rng, known=(after, A @ after))
    assert all(outcome.certificate.converged for outcome in (alone, helped, told))
    assert helped.certificate.sweeps == told.certificate.sweeps == 1
    assert alone.certificate.sweeps > 1
    assert helped.certificate.next_value.value >= 6.5


@pytest.mark.parametrize("error", [1e-9, 1e-6, 1e-3, 1.0, 1e3])
def test_known_products_that_are_wrong_do_no_harm(error):
    """A solver claims that the direction it missed is small; the probe's products contradict it."""
    rng = np.random.default_rng(4)
    A = matrix(np.r_[9.0, 8.0, 7.0, np.linspace(1.0, 0.0, 297)], rng)
    values, vectors = np.linalg.eigh(A)
    values, vectors = values[::-1], vectors[:, ::-1]
    W = vectors[:, [0, 2]]  # the second is missing
    missed = vectors[:, 1:2]
    outcome = drive(A, [W], 1e-6, rng, known=(missed, 0.1 * missed))
    assert not outcome.certificate.converged
    assert outcome.certificate.next_value.value >= 8.0 - 1e-9
    W, after = vectors[:, :2], vectors[:, 2:8]
    claimed = A @ after + error * rng.standard_normal(after.shape) / np.sqrt(300)
    certificate = drive(A, [W], 1e-6, rng, known=(after, claimed)).certificate
    assert certificate.next_value.value >= 7.0 - 1e-9
    assert certificate.converged


@pytest.mark.parametrize("leak", [0.001, 0.02, 0.05])
def test_errors_of_eigenvalues_hold_with_a_matrix_at_hand(leak):
    # The matrix tells the eigenvalue after the cut, and on the complement of W there is a larger one.
    A = np.diag([1.0, 0.9, 0.1, 0.1, 0.0])
    A[0, 1] = A[1, 0] = leak
    values = np.linalg.eigvalsh(A)[::-1]
    near = (A, float(values[1]))
    outcome = drive(A, [np.eye(5)[:, :1]], 1e-8, np.random.default_rng(0), near=near)
    assert values[0] - 1.0 <= outcome.certificate.eigenvalue_errors[0] <= 1.5 * leak


def test_poor_directions_cost_no_sweeps():
    """They belong to no Krylov space of the probe: their own residuals have to be followed, too."""
    rng = np.random.default_rng(1)
    d, k = 600, 20
    values = 1.0 / np.arange(1, d + 1)
    values[k:] *= 0.985
    A = matrix(values, rng)
    W = np.linalg.eigh(A)[1][:, ::-1][:, :k]
    X = rng.standard_normal((d, 32))
    for _ in range(2):
        X = A @ X
        X = np.linalg.qr(X - W @ (W.T @ X))[0]
    without = drive(A, [W], 1e-6, np.random.default_rng(0)).certificate
    beside = drive(A, [W], 1e-6, np.random.default_rng(0), known=(X, A @ X)).certificate
    assert without.converged
    assert beside.converged
    assert beside.sweeps < without.sweeps
    assert beside.next_value.value >= values[k]


@pytest.mark.parametrize("block", range(8))
def test_converged_is_never_claimed_falsely_under_staleness(block):
    """200 random problems in all, run asynchronously with stale gradients."""
    statuses = set()
    estimated = exceeded = 0
    for seed in range(25 * block, 25 * block + 25):
        kind, components, k, service = random_problem(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = grassia.eigenspace(
                components,
                k,
                rng=seed,
                tol=1e-6,
                max_passes=250,
                solver="grassia",
                backend=Simulated(service, seed=seed),
            )
        statuses.add(result.status)
        values, vectors = np.linalg.eigh(sum(components) / len(components))
        values, vectors = values[::-1], vectors[:, ::-1]
        certificate = result.certificate
        rigorous, given = check(certificate, result.vectors, values, vectors, k)
        assert rigorous, (seed, kind)
        estimated += not certificate.next_value.rigorous
        exceeded += not given
        assert result.converged == (result.status is Status.CONVERGED) == certificate.converged
        if result.converged:
            assert projection_distance(result.vectors, vectors[:, :k]) <= 1e-6, (seed, kind)
        if kind == "gapless":
            assert not result.converged
    assert exceeded == 0
    assert Status.CONVERGED in statuses
    assert len(statuses) > 1


@pytest.mark.parametrize("solver", ["nystrom", "krylov", "covariance"])
@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8, 1e10, 1e12])
def test_digits_lost_far_from_the_origin_are_allowed_for(offset, solver):
    """The data are exact as given; what their offset costs must be in the bounds."""
    X = np.random.default_rng(1).standard_normal((200, 10)) * np.r_[3, 2.5, np.ones(8)] + offset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = grassia.eigenspace(grassia.from_rows(X, 4), 2, rng=0, solver=solver)
    Y = X - X[0]  # exact: the differences are small multiples of the spacing there
    Y = Y - Y.mean(axis=0)
    values, vectors = np.linalg.eigh(Y.T @ Y / 200)
    values, vectors = values[::-1], vectors[:, ::-1]
    certificate = result.certificate
    sine = projection_distance(result.vectors, vectors[:, :2])
    assert sine <= certificate.sin_theta.value
    assert (np.abs(values[:2] - certificate.values) <= certificate.eigenvalue_errors).all()
    assert not (result.converged and sine > 1e-6)
    if offset <= 1e6:
        assert result.converged


def test_parts_far_larger_than_their_sum_are_allowed_for():
    rng = np.random.default_rng(0)
    A = matrix(np.r_[3.0, 2.0, np.linspace(1.0, 0.0, 28)], rng)
    B = rng.standard_normal((30, 30)) * 1e6
    B = B + B.T
    result = grassia.eigenspace([A + B, A - B], 2, rng=0, tol=1e-4, solver="nystrom")
    total = ((A + B) + (A - B)) / 2
    values, vectors = np.linalg.eigh(total)
    values, vectors = values[::-1], vectors[:, ::-1]
    certificate = result.certificate
    assert certificate.rounding > 1e-10
    assert (np.abs(values[:2] - certificate.values) <= certificate.eigenvalue_errors).all()
    assert projection_distance(result.vectors, vectors[:, :2]) <= certificate.sin_theta.value


def test_a_matrix_that_is_hardly_symmetric_is_not_certified_beyond_that():
    A = np.diag([2.0, 2, 1, 1, 1, 1]).astype(np.float16)
    A[0, 1] = 0.003
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = grassia.eigenspace(A, 1, tol=1e-2, rng=0)
    assert not result.converged


@pytest.mark.parametrize(
    "options", [{"probes": 0}, {"probes": 2.5}, {"max_sweeps": 0}, {"confidence": 1.0}, {"confidence": -5}]
)
def test_a_certifier_that_makes_no_sense_is_refused(options):
    with pytest.raises(grassia.InvalidInput, match=next(iter(options))):
        Certifier(**options)
