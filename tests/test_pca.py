"""`grassia.PCA` gives what scikit-learn's full solver gives, and says when nobody could."""

from __future__ import annotations

import functools
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA as Reference
from sklearn.exceptions import ConvergenceWarning

import grassia
from estimator_data import TABLES, entry_by_entry, relative, term_counts, with_variance
from grassia.backends import Simulated
from grassia.component import Component
from grassia.estimators.exact import completed, number_of, triangle
from grassia.geometry import projection_distance

PER_COMPONENT = ("explained_variance_", "explained_variance_ratio_", "singular_values_")


def reference(X, n_components, **options):
    return Reference(n_components, svd_solver="full", **options).fit(X)


def assert_same_model(expected, found, tol):
    """Every fitted attribute, signs included, for the components that have variance at all."""
    k = with_variance(expected)
    assert found.components_.shape == expected.components_.shape
    assert (found.n_components_, found.n_samples_) == (expected.n_components_, expected.n_samples_)
    assert found.n_features_in_ == expected.n_features_in_
    assert relative(expected.components_[:k], found.components_[:k]) < tol
    for name in PER_COMPONENT:
        assert entry_by_entry(getattr(expected, name)[:k], getattr(found, name)[:k]) < tol, name
        assert np.all(getattr(found, name)[k:] <= 1e-9 * getattr(found, name)[0]), name
    assert relative(expected.mean_, found.mean_) < tol
    assert abs(found.noise_variance_ - expected.noise_variance_) <= tol * expected.noise_variance_


@pytest.mark.parametrize("n_components", [None, 1, 3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_every_fitted_attribute_is_that_of_the_full_solver(table, n_components, whiten):
    X = TABLES[table]
    expected, found = (
        reference(X, n_components, whiten=whiten),
        grassia.PCA(n_components, whiten=whiten).fit(X),
    )
    assert found.converged_
    assert_same_model(expected, found, 1e-8)
    k = with_variance(expected)
    assert relative(expected.get_covariance(), found.get_covariance()) < 1e-8
    assert relative(expected.transform(X)[:, :k], found.transform(X)[:, :k]) < 1e-8
    back = found.inverse_transform(found.transform(X))
    assert relative(expected.inverse_transform(expected.transform(X)), back) < 1e-8


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n_components", [1, 2, 3])
def test_precision_and_likelihood_are_those_of_the_full_solver(table, n_components):
    X = TABLES[table]
    expected, found = reference(X, n_components), grassia.PCA(n_components).fit(X)
    assert relative(expected.get_precision(), found.get_precision()) < 1e-8
    assert relative(expected.score_samples(X), found.score_samples(X)) < 1e-8
    assert found.score(X) == pytest.approx(expected.score(X), rel=1e-8)


def test_the_likelihood_with_all_components_is_that_of_the_full_solver():
    X = TABLES["iris"]
    expected, found = reference(X, None), grassia.PCA().fit(X)
    assert relative(expected.score_samples(X), found.score_samples(X)) < 1e-8


def test_the_likelihood_of_whitened_iris_is_that_of_the_full_solver():
    X = TABLES["iris"]
    expected, found = reference(X, 2, whiten=True), grassia.PCA(2, whiten=True).fit(X)
    assert relative(expected.get_precision(), found.get_precision()) < 1e-8
    assert relative(expected.score_samples(X), found.score_samples(X)) < 1e-8


@pytest.mark.parametrize("n_components", [3, 29])
def test_the_likelihood_of_an_ill_conditioned_model_is_exact(n_components):
    # With whiten=True the model of these data has a condition of 1e12 and more: inverses lose digits.
    X = TABLES["breast cancer"]
    pca = grassia.PCA(n_components, whiten=True).fit(X)
    V, variances = pca.components_.astype(np.longdouble), pca.explained_variance_.astype(np.longdouble)
    noise = np.longdouble(pca.noise_variance_)
    along = variances * (variances - noise) + noise
    D = X.astype(np.longdouble) - pca.mean_.astype(np.longdouble)
    Z = np.einsum("ij,kj->ik", D, V)
    outside = np.sum((D - np.einsum("ik,kj->ij", Z, V)) ** 2, axis=1)
    distance = np.sum(Z**2 / along, axis=1) + outside / noise
    log_det = np.sum(np.log(along)) + (X.shape[1] - n_components) * np.log(noise)
    expected = -0.5 * (distance + log_det + X.shape[1] * np.log(2 * np.longdouble(np.pi)))
    assert relative(expected, pca.score_samples(X)) < 1e-10


@pytest.mark.parametrize("n_components", [None, 2, 0.9])
@pytest.mark.parametrize("table", TABLES)
def test_single_precision_stays_single_precision(table, n_components):
    X = TABLES[table]
    expected, found = reference(X, n_components), grassia.PCA(n_components).fit(X.astype(np.float32))
    k = with_variance(expected, 1e-3)
    for name in ("components_", "mean_", "noise_variance_", *PER_COMPONENT):
        assert getattr(found, name).dtype == np.float32, name
    assert found.transform(X.astype(np.float32)).dtype == np.float32
    assert found.inverse_transform(found.transform(X.astype(np.float32))).dtype == np.float32
    assert relative(expected.components_[:k], found.components_[:k]) < 1e-4
    for name in PER_COMPONENT:
        assert entry_by_entry(getattr(expected, name)[:k], getattr(found, name)[:k]) < 1e-4, name
    assert relative(expected.transform(X)[:, :k], found.transform(X.astype(np.float32))[:, :k]) < 1e-4


@pytest.mark.parametrize("n_components", [1, 6, 0.3, 0.8, None])
def test_sparse_rows_are_centred_without_being_filled_in(n_components):
    X = term_counts()
    expected, found = reference(X.toarray(), n_components), grassia.PCA(n_components, random_state=0).fit(X)
    assert found.converged_
    assert_same_model(expected, found, 1e-8)
    k = with_variance(expected)
    assert relative(expected.transform(X.toarray())[:, :k], found.transform(X)[:, :k]) < 1e-8
    if n_components == 6:
        assert relative(expected.score_samples(X.toarray()), found.score_samples(X)) < 1e-8


@pytest.mark.parametrize("solver", ["krylov", "nystrom", "lobpcg"])
def test_a_fraction_of_the_variance_is_reached_by_growing_k(solver):
    X = term_counts(300, 350, topics=4)
    expected = reference(X.toarray(), 0.6)
    found = grassia.PCA(0.6, solver=solver, tol=1e-8, random_state=0).fit(X)
    assert found.converged_
    assert expected.n_components_ > 16  # more than the first guess
    assert_same_model(expected, found, 1e-6)


def test_a_fraction_that_is_met_exactly_takes_one_more_as_in_scikit_learn():
    values = np.array([4.0, 2.0, 1.0, 1.0])
    assert [number_of(fraction, values, 4) for fraction in (0.49, 0.5, 0.51, 0.75)] == [1, 2, 2, 3]


def test_a_fraction_takes_as_few_components_as_do():
    X = np.vstack([np.diag([3.0, 1.0, 1.0]), -np.diag([3.0, 1.0, 1.0])])
    fraction = 9.0 / 11.0
    assert grassia.PCA(fraction - 1e-9).fit(X).n_components_ == 1
    with pytest.warns(ConvergenceWarning):  # the second and third are equal
        assert grassia.PCA(fraction + 1e-9).fit(X).n_components_ == 2


@pytest.mark.parametrize("solver", ["krylov", "nystrom", "lobpcg", "covariance"])
def test_the_answer_does_not_depend_on_the_solver(solver):
    X = TABLES["digits"]
    expected, found = reference(X, 5), grassia.PCA(5, solver=solver, n_shards=3, random_state=0).fit(X)
    assert found.result_.stats["solver"] == solver
    assert_same_model(expected, found, 1e-6)


@pytest.mark.parametrize("shape", [(12, 40), (40, 40), (41, 40), (2, 5)])
@pytest.mark.parametrize("solver", ["auto", "krylov", "covariance"])
def test_all_components_of_few_rows_are_found(shape, solver):
    X = np.random.default_rng(1).standard_normal(shape)
    expected, found = reference(X, None), grassia.PCA(solver=solver, random_state=0).fit(X)
    assert found.converged_
    assert_same_model(expected, found, 1e-8)
    assert np.allclose(found.components_ @ found.components_.T, np.eye(min(shape)), atol=1e-12)


@pytest.mark.parametrize("solver", ["auto", "krylov", "nystrom"])
def test_more_components_than_the_rank_are_no_failure(solver):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 400))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pca = grassia.PCA(9, solver=solver, random_state=0).fit(X)
    assert pca.converged_
    assert np.all(pca.explained_variance_[4:] == 0.0)
    assert entry_by_entry(reference(X, 4).explained_variance_, pca.explained_variance_[:4]) < 1e-8
    assert np.allclose(pca.components_ @ pca.components_.T, np.eye(9), atol=1e-12)


def test_a_direction_without_variance_costs_no_pass():
    X = np.random.default_rng(9).standard_normal((20, 400))
    all_of_them, all_but_one = (grassia.PCA(k, solver="krylov", random_state=0).fit(X) for k in (20, 19))
    assert all_of_them.n_iter_ == all_but_one.n_iter_


@pytest.mark.parametrize("k", range(1, 31))
def test_every_cut_of_widely_spread_variances_is_certified(k):
    # From 4e5 to 7e-7: the covariance alone could not tell the last gaps from rounding.
    assert grassia.PCA(k).fit(TABLES["breast cancer"]).converged_


def test_constant_columns_have_no_part_in_any_component():
    X = np.random.default_rng(3).standard_normal((50, 6))
    X[:, 2] = 7.0
    pca = grassia.PCA(5).fit(X)
    assert pca.mean_[2] == 7.0
    assert np.max(np.abs(pca.components_[:, 2])) < 1e-12


@pytest.mark.parametrize("solver", ["auto", "krylov"])
def test_rows_that_are_all_the_same_have_no_variance(solver):
    pca = grassia.PCA(2, solver=solver, random_state=0).fit(np.full((20, 4), 3.0))
    assert pca.converged_
    assert np.all(pca.explained_variance_ == 0.0)
    assert np.isnan(pca.explained_variance_ratio_).all()
    assert np.allclose(pca.transform(np.full((2, 4), 3.0)), 0.0)


@pytest.mark.parametrize("solver", ["auto", "krylov"])
def test_equal_eigenvalues_at_the_cut_are_said_and_not_hidden(solver):
    sizes = np.array([4.0, 2.0, 2.0, 1.0])
    X = np.vstack([np.diag(sizes), -np.diag(sizes)])
    with pytest.warns(ConvergenceWarning, match="GAP_TOO_SMALL"):
        pca = grassia.PCA(2, solver=solver, random_state=0).fit(X)
    assert not pca.converged_
    assert pca.certificate_.identified == 1
    assert entry_by_entry(reference(X, 2).explained_variance_, pca.explained_variance_) < 1e-8
    assert grassia.PCA(3, solver=solver, random_state=0).fit(X).converged_


def test_small_variances_beside_large_ones_keep_their_digits():
    rng = np.random.default_rng(4)
    scales = np.array([1e6, 1e3, 1.0, 1e-2, 1e-3])
    turn = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    X = (np.linalg.qr(rng.standard_normal((80, 5)))[0] * scales) @ turn.T
    expected, found = reference(X, None), grassia.PCA().fit(X)
    assert found.explained_variance_[-1] < 1e-16 * found.explained_variance_[0]
    # Singular values of the rows are known to some 1e-16 of the largest, 1e6 here: the least to about 1e-6.
    assert entry_by_entry(expected.explained_variance_, found.explained_variance_) < 1e-5
    assert entry_by_entry(expected.explained_variance_[:4], found.explained_variance_[:4]) < 1e-7


def test_the_certificate_bounds_the_true_angle():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 60)) * np.r_[3.0, 2.5, 2.0, np.linspace(1.9, 0.1, 57)]
    exact = reference(X, 3).components_
    for tol in (1e-2, 1e-6):
        pca = grassia.PCA(3, solver="krylov", tol=tol, random_state=0).fit(X)
        missed = exact - exact @ pca.components_.T @ pca.components_
        assert np.linalg.norm(missed, 2) <= pca.certificate_.sin_theta.value <= tol


def test_a_mean_far_from_zero_costs_few_digits():
    X = np.random.default_rng(6).standard_normal((200, 8)) * np.arange(1.0, 9.0)
    near, far = grassia.PCA(3).fit(X), grassia.PCA(3).fit(X + 1e6)
    assert entry_by_entry(near.explained_variance_, far.explained_variance_) < 1e-8
    assert relative(near.transform(X), far.transform(X + 1e6)) < 1e-7


@pytest.mark.parametrize(
    "given", [0, -1, 5, 1.0, 0.0, 2.5, "mle", "two", True, [2], float("nan")], ids=lambda given: repr(given)
)
def test_a_wrong_number_of_components_is_refused_with_the_rule(given):
    with pytest.raises(grassia.InvalidInput, match="`n_components` must"):
        grassia.PCA(given).fit(TABLES["iris"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"missing": "drop"}, "missing"),
        ({"tol": 0.0}, "tol"),
        ({"tol": 1.0}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"n_shards": 0}, "n_shards"),
        ({"n_shards": 1000}, "n_shards"),
        ({"n_workers": 0}, "n_workers"),
        ({"n_oversamples": -1}, "n_oversamples"),
        ({"solver": "fast"}, "solver"),
        ({"backend": "cloud"}, "backend"),
        ({"time_limit": -1.0}, "time_limit"),
        ({"callbacks": 3}, "callbacks"),
    ],
)
def test_a_wrong_parameter_is_named(options, named):
    with pytest.raises(grassia.InvalidInput, match=named):
        grassia.PCA(2, **options).fit(TABLES["iris"])


@pytest.mark.parametrize("rows", [1797, 40])
def test_the_likelihood_of_a_model_without_variance_in_some_direction_is_warned_of(rows):
    X = TABLES["digits"][:rows]  # some of its pixels are always zero
    pca = grassia.PCA().fit(X)
    with pytest.warns(UserWarning, match="Take fewer components"):
        inside = pca.score_samples(X)
    with pytest.warns(UserWarning, match="no variance"):
        outside = pca.score_samples(X + 1.0)
    assert np.isfinite(inside).all()
    assert outside.max() < inside.min() - 1e6
    with pytest.warns(UserWarning, match="no variance"):
        precision = pca.get_precision()
    assert precision[0, 0] > 1e12  # the first pixel is one of them


def test_one_row_is_refused():
    with pytest.raises(ValueError, match="minimum of 2"):
        grassia.PCA().fit(np.ones((1, 3)))
    with pytest.raises(grassia.InvalidInput, match="at least 2 rows"):
        grassia.PCA().fit([np.ones((1, 3))])


def test_the_triangular_factor_has_the_products_of_the_weighted_rows():
    rng = np.random.default_rng(7)
    X, w = rng.standard_normal((50, 6)) + 2.0, rng.uniform(0.0, 3.0, 50)
    V = rng.standard_normal((6, 3))
    mean = np.average(X, axis=0, weights=w)
    cov = (X - mean).T @ (w[:, None] * (X - mean))
    blocks = [(X[:7], w[:7]), (sp.csr_array(X[7:]), w[7:])]
    R, RV = triangle(blocks, mean), triangle(blocks, mean, V)
    assert np.allclose(R.T @ R, cov)
    assert np.allclose(RV.T @ RV, V.T @ cov @ V)


def test_a_completed_basis_depends_on_the_span_alone():
    rng = np.random.default_rng(8)
    basis = np.linalg.qr(rng.standard_normal((9, 3)))[0]
    turned = basis @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    first, second = completed(basis, 6), completed(turned, 6)
    assert np.allclose(first[:, 3:], second[:, 3:], atol=1e-12)
    assert np.allclose(first.T @ first, np.eye(6), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
def test_the_score_of_small_integers_does_not_overflow(dtype):
    counts = np.random.default_rng(0).integers(0, 100, (60, 8)).astype(dtype)
    expected = reference(counts.astype(np.float64), 3).score_samples(counts.astype(np.float64))
    found = grassia.PCA(3).fit(counts.astype(np.float64))
    for rows in (counts, sp.csr_array(counts)):
        assert relative(expected, found.score_samples(rows)) < 1e-6


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_score_of_sparse_rows_close_to_the_components_is_that_of_dense_ones(offset):
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((200, 10)) * np.r_[[1e4] * 3, [1e-4] * 7]
    Z[:, :3] += offset
    Z[::2] += 1e2 * rng.standard_normal((100, 10))  # and some that are not close
    near = Z[1::2]
    pca = grassia.PCA(3).fit(near)
    found = pca.score_samples(sp.csr_array(Z))
    singular, turn = np.linalg.svd(near - near.mean(axis=0))[1:]
    variances = singular**2 / 99
    variances[3:] = variances[3:].mean()
    along = (Z - near.mean(axis=0)) @ turn.T
    expected = -0.5 * (along**2 / variances + np.log(2.0 * np.pi * variances)).sum(axis=1)
    assert entry_by_entry(pca.score_samples(Z), found) < 1e-6
    assert entry_by_entry(expected, found) < 1e-5


@pytest.mark.parametrize("weighted", [False, True])
def test_graded_sparse_rows_are_not_filled_in_at_once(weighted):
    m, d = 60_000, 100
    S = sp.random_array((m, d), density=2e-3, format="csr", rng=0)
    S = (S @ sp.diags_array(10.0 ** -np.linspace(0.0, 4.0, d))).tocsr()
    w = np.ones(m) if weighted else None
    tracemalloc.start()
    pca = grassia.PCA(80).fit(S, sample_weight=w)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pca.explained_variance_[-1] < 1e-4 * pca.explained_variance_[0]  # the rows were looked at again
    assert most < m * d * 8 / 2


@pytest.mark.parametrize("second", [2e4, 2.0])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_noise_beside_large_variances_keeps_its_digits(second, form, weighted):
    rng = np.random.default_rng(2)
    X = 0.01 * rng.standard_normal((700, 350))
    X[:, 0], X[:, 1] = 3e4 * rng.standard_normal(700), second * rng.standard_normal(700)
    w = rng.integers(1, 3, 700) if weighted else np.ones(700, dtype=int)
    repeated = np.repeat(X, w, axis=0)
    singular = np.linalg.svd(repeated - repeated.mean(axis=0))[1]
    expected = np.sum(singular[2:] ** 2) / (w.sum() - 1) / 348
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = grassia.PCA(2, solver="krylov", random_state=0).fit(form(X), sample_weight=w)
    assert found.converged_ == (second == 2e4)
    # What the angle that is left turns out of the space.
    turned = found.certificate_.sin_theta.value**2 * second**2 / 348
    assert abs(found.noise_variance_ - expected) <= 1e-9 * expected + (turned if second == 2.0 else 0.0)


# -- lost workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["reload", "wait"])
def test_a_lost_worker_does_not_change_the_components(action):
    X = np.random.default_rng(0).standard_normal((600, 400)) * np.linspace(4.0, 1.0, 400)
    backend = functools.partial(Simulated, faults=["crash:1@2", "crash:2@1"])
    pca = grassia.PCA(3, backend=backend, n_shards=4, solver="nystrom", on_loss=action).fit(X)
    assert pca.converged_
    assert {event.component for event in pca.history_.events if event.kind == "worker lost"} == {1, 2}
    exact = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:3]
    assert projection_distance(pca.components_.T, exact.T) <= 1e-8


@pytest.mark.parametrize("given", ["exclude", grassia.LossPolicy("exclude"), "ignore"])
def test_an_estimator_leaves_nothing_out(given):
    with pytest.raises(grassia.InvalidInput, match="`on_loss`"):
        grassia.PCA(2, on_loss=given).fit(np.eye(5))


# -- work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [200, 600])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_components_cost_few_products(d, dtype, monkeypatch):
    """To check all eigenvectors of rows in single precision took as long as twenty covariances."""
    columns = []
    multiply = Component.apply

    def counted(self, V, *given, **named):
        columns.append(V.shape[1])
        return multiply(self, V, *given, **named)

    monkeypatch.setattr(Component, "apply", counted)
    X = np.random.default_rng(0).standard_normal((2000, d)) * np.linspace(3.0, 1.0, d)
    pca = grassia.PCA(5, solver="covariance", random_state=0).fit(X.astype(dtype))
    assert sum(columns) <= d // 4  # how many it takes to check a few depends on rounding, and so on the BLAS
    exact = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:5]
    found = pca.components_.T.astype(np.float64)
    assert projection_distance(np.linalg.qr(found)[0], exact.T) <= (1e-4 if dtype == np.float32 else 1e-8)
