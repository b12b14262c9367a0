"""One machine: narrow Krylov blocks, bases that grow in place, certificates of single precision products."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from grassia.certifying import certify
from grassia.explored import Explored
from grassia.geometry import projection_distance
from grassia.passes.dense import dense_gram
from grassia.solvers import Krylov
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.columns import Columns
from problems import symmetric


def drive(steps, A):
    """Certify with exact products: (outcome, columns multiplied)."""
    multiplied = 0
    try:
        block = next(steps)
        while True:
            multiplied += block.shape[1]
            block = steps.send(A @ block)
    except StopIteration as end:
        return end.value, multiplied


# -- narrow blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 10, 30])
def test_narrow_blocks_find_the_space(k):
    A, U = symmetric(1.0 / np.arange(1, 201) ** 1.5)
    result = grassia.eigenspace([A], k, solver=Krylov(), rng=1, tol=1e-8)
    assert result.converged
    assert projection_distance(result.vectors, U[:, :k]) <= 1e-8


def test_fewer_products_do_with_narrow_blocks():
    A, _ = symmetric(0.97 ** np.arange(400))
    columns = {}
    for name, solver in {"narrow": Krylov(), "wide": Krylov(oversample=2)}.items():
        result = grassia.eigenspace([A], 40, solver=solver, rng=0, tol=1e-6)
        assert result.converged
        width = 8 if name == "narrow" else 42
        columns[name] = width * result.stats["answers"][0]
    assert columns["narrow"] < 0.6 * columns["wide"]


def test_ritz_vectors_are_formed_when_they_are_about_to_be_good_enough():
    """With k = 48 and blocks of 8 they may wait for three rounds, but not once the end is near."""
    A, U = symmetric(1.0 / np.arange(1, 501))
    result = grassia.eigenspace([A], 48, solver=Krylov(), rng=0, tol=1e-7)
    assert result.converged
    assert projection_distance(result.vectors, U[:, :48]) <= 1e-7
    told = np.diff([point["passes"] for point in result.history])
    assert told.max() == 3.0
    assert told[-1] < 3.0


def test_directions_outlive_products_that_were_not_precise_enough():
    A, U = symmetric(1.0 / np.arange(1, 201))
    solver = Krylov()
    state = solver.init(Problem(1, 200, 5, np.ones(1), None, True, cold=True), U[:, 100:105], 0)
    for version in range(8):
        arrays = {"product": A @ solver.ask(state, 0).arrays["block"]}
        state = solver.tell(state, [Arrival(0, version, 0, arrays, {})])
    directions, _ = solver.known(state)
    W = solver.subspace(state)
    begun = solver.anew(state, W)
    block = solver.ask(begun, 0).arrays["block"]
    np.testing.assert_allclose(block.T @ block, np.eye(block.shape[1]), atol=1e-13)
    for kept in (W, directions[:, :10]):
        np.testing.assert_allclose(block @ (block.T @ kept), kept, atol=1e-12)
    assert solver.residual(begun) is None  # nothing is known of A any more


@pytest.mark.parametrize("copies", [9, 12, 20])
def test_an_eigenvalue_of_higher_multiplicity_than_the_block_is_found_whole(copies):
    values = np.r_[np.full(copies, 2.0), 1.0 / np.arange(1, 101)]
    A, U = symmetric(values, seed=copies)
    result = grassia.eigenspace([A], copies, solver=Krylov(), rng=0, tol=1e-7)
    assert result.converged
    assert projection_distance(result.vectors, U[:, :copies]) <= 1e-7


@pytest.mark.parametrize("rank", [0, 1, 5, 12])
def test_fewer_directions_than_wanted_end_with_a_status(rank):
    A, _ = symmetric(np.r_[np.arange(rank, 0.0, -1.0), np.zeros(60 - rank)])
    with pytest.warns(UserWarning, match="GAP_TOO_SMALL"):
        result = grassia.eigenspace([A], 20, solver=Krylov(), rng=0, max_passes=200)
    assert not result.converged
    assert result.values[:rank] == pytest.approx(np.arange(rank, 0.0, -1.0))
    assert result.vectors.T @ result.vectors == pytest.approx(np.eye(20), abs=1e-12)


def test_a_given_start_is_used_whole():
    A, U = symmetric(1.0 / np.arange(1, 201))
    result = grassia.eigenspace([A], 20, solver=Krylov(), v0=U[:, :20], rng=0, tol=1e-8)
    assert result.stats["updates"] == 1


# -- bases that grow ----------------------------------------------------------------------------------


def test_growing_leaves_every_older_basis_as_it_was():
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal((7, width)) for width in (2, 3, 1, 4, 2)]
    grown = [Columns.of(np.zeros((7, 0)))]
    for block in blocks:
        grown.append(grown[-1].with_block(block))
    branch = grown[2].with_block(-blocks[2])  # another future of an old one
    for i, columns in enumerate(grown):
        np.testing.assert_array_equal(columns.matrix, np.hstack([np.zeros((7, 0)), *blocks[:i]]))
    np.testing.assert_array_equal(branch.matrix[:, -1:], -blocks[2])


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_a_gram_matrix_of_several_threads_is_the_gram_matrix(single, center):
    X = np.random.default_rng(0).standard_normal((3000, 30)).astype(np.float32) + 1
    mean = X.mean(axis=0, dtype=np.float64) if center else None
    centred = X.astype(np.float64) - (0.0 if mean is None else mean)
    found = dense_gram(X, mean, tile_rows=64, single=single)
    np.testing.assert_allclose(found, centred.T @ centred, atol=1e-2 if single else 1e-9)


# -- claims -------------------------------------------------------------------------------------------


def spoilt(AW: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(AW.shape)
    return AW + size * noise / np.linalg.norm(noise, 2)


def test_a_true_claim_saves_the_product_of_the_candidate():
    A, U = symmetric(1.0 / np.arange(1, 301))
    W, k = U[:, :20], 20
    steps = certify([W], 1e-6, np.random.default_rng(0), claimed=A @ W, known=(U[:, k:60], A @ U[:, k:60]))
    outcome, multiplied = drive(steps, A)
    assert outcome.certificate.converged
    assert outcome.certificate.claimed
    assert multiplied == 16
    assert not outcome.certificate.sin_theta.rigorous
    assert outcome.certificate.sin_theta_rigorous == 1.0
    assert "rigorous" not in str(outcome.certificate)


def test_a_false_claim_is_found_out_and_does_no_harm():
    A, U = symmetric(1.0 / np.arange(1, 301))
    W = U[:, :20]
    for size in (1e-7, 1e-4, 1e-1, 10.0):
        steps = certify([W], 1e-6, np.random.default_rng(0), claimed=spoilt(A @ W, size))
        outcome, _ = drive(steps, A)
        assert outcome.certificate.converged
        assert outcome.certificate.claimed == (outcome.certificate.sweeps == 1)
        if size >= 1e-4:
            assert not outcome.certificate.claimed
            assert outcome.certificate.values == pytest.approx(1.0 / np.arange(1, 21), rel=1e-12)


def test_a_wrong_space_is_not_certified_by_a_claim_that_it_is_right():
    """The claim is that the residual is nothing; it is not."""
    A, U = symmetric(1.0 / np.arange(1, 101))
    W = np.linalg.qr(U[:, :5] + 1e-3 * np.random.default_rng(1).standard_normal((100, 5)))[0]
    outcome, _ = drive(certify([W], 1e-6, np.random.default_rng(0), claimed=W @ (W.T @ A @ W)), A)
    assert not outcome.certificate.converged


def test_doubts_cover_what_a_claim_is_off_by_as_often_as_they_say():
    """Six statements share a chance of one in ten to fail; the norm and the columns are two of them."""
    values = 1.0 / np.arange(1, 61)
    A, U = symmetric(values)
    W = U[:, :4]
    missed, ratios = 0, []
    for seed in range(400):
        claimed = spoilt(A @ W, 1e-3, seed)
        probe = np.random.default_rng([seed, 1]).standard_normal((60, 2))
        found = Explored(W, claimed, values[:4], None, 0.9, None, probe, A @ probe, claimed=True)
        off = A @ W - claimed
        missed += np.linalg.norm(off, 2) > found.doubt or np.any(np.linalg.norm(off, axis=0) > found.doubts)
        ratios.append(found.doubt / np.linalg.norm(off, 2))
    assert missed <= 400 * 0.05 + 3 * np.sqrt(400 * 0.05)
    assert np.median(ratios) < 20.0  # and not by being so large that they say nothing


def test_a_matrix_close_to_A_bounds_what_follows_the_cut():
    values = 1.0 / np.arange(1, 201)
    A, _ = symmetric(values)
    E = np.random.default_rng(5).standard_normal(A.shape)
    S = A + 1e-9 * (E + E.T)
    found, vectors = np.linalg.eigh(S)
    W = vectors[:, ::-1][:, :15]
    steps = certify([W], 1e-4, np.random.default_rng(0), claimed=S @ W, near=(S, float(found[-16])))
    outcome, multiplied = drive(steps, A)
    assert outcome.certificate.converged
    assert multiplied <= 12
    assert values[15] <= outcome.certificate.next_value.value <= values[15] + 1e-5


def test_a_matrix_that_is_not_close_to_A_is_found_out():
    values = 1.0 / np.arange(1, 201)
    A, _ = symmetric(values)
    S, _ = symmetric(values, seed=9)
    found, vectors = np.linalg.eigh(S)
    W = vectors[:, ::-1][:, :5]
    steps = certify([W], 1e-4, np.random.default_rng(0), claimed=S @ W, near=(S, float(found[-6])))
    assert not drive(steps, A)[0].certificate.converged


@pytest.mark.parametrize("solver", ["krylov", "covariance"])
def test_the_answer_of_single_precision_is_as_near_as_it_says(solver):
    rng = np.random.default_rng(2)
    X = (rng.standard_normal((4000, 200)) / np.arange(1, 201) + 3.0).astype(np.float32)
    exact = np.linalg.eigh(np.cov(X.T.astype(np.float64), bias=True))
    result = grassia.eigenspace(grassia.from_rows(X), 4, solver=solver, rng=0, tol=1e-4, precision="float32")
    assert result.converged
    assert result.certificate.claimed
    assert projection_distance(result.vectors, exact[1][:, ::-1][:, :4]) <= result.certificate.sin_theta.value
    off = np.abs(result.values - exact[0][::-1][:4])
    assert np.all(off <= result.certificate.eigenvalue_errors)


# -- what claims may not do -----------------------------------------------------------------------------


def test_a_cut_through_a_multiple_eigenvalue_still_gives_the_largest_values():
    """Eleven copies of each, blocks of eight: the certificate finds the copies that are missing."""
    for seed in range(5):
        A, _ = symmetric(np.r_[np.repeat([3.0, 2.0, 1.0], 11), np.zeros(16)], seed)
        with pytest.warns(UserWarning, match="GAP_TOO_SMALL"):
            result = grassia.eigenspace([A], 9, solver="krylov", rng=seed)
        assert result.values == pytest.approx(np.full(9, 3.0))


@pytest.mark.parametrize(("d", "k"), [(20, 15), (60, 50), (6, 3)])
def test_errors_of_claims_are_not_forgotten_where_the_probe_has_little_room(d, k):
    """The wrong space, wrong by a gap of a few errors of the claim: to certify it would be a lie."""
    lies = 0
    for seed in range(150):
        rng = np.random.default_rng([d, seed])
        V = np.linalg.qr(rng.standard_normal((d, d)))[0]
        values = np.r_[np.linspace(2.0, 1.0, k - 1), 1.0 - 5e-7, 1.0, np.linspace(0.5, 0.1, d - k - 1)]
        A = (V * values) @ V.T
        W = V[:, :k]
        steps = certify([W], 0.3, rng, claimed=spoilt(A @ W, 1e-7, seed))
        lies += drive(steps, A)[0].certificate.converged
    assert lies <= 3


def test_bounds_that_rest_on_claims_are_not_called_theorems():
    A, U = symmetric(1.0 / np.arange(1, 13))
    W, rest = U[:, :3], U[:, 3:11]
    known = (rest, spoilt(A @ rest, 1e-9))
    outcome, _ = drive(certify([W], 1e-6, np.random.default_rng(0), known=known), A)
    assert not outcome.certificate.next_value.rigorous
    assert not outcome.certificate.sin_theta.rigorous
    exact, _ = drive(certify([W], 1e-6, np.random.default_rng(0)), A)
    assert exact.certificate.next_value.rigorous
