"""Rows that come in batches of any size: right variances, the mean of all, memory that does not grow."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import decomposition

import grassia
from estimator_data import TABLES, entry_by_entry, relative, term_counts
from grassia.streaming import Stream

FITTED = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")


def low_rank_rows(m: int = 2000, d: int = 400, rank: int = 6, seed: int = 0) -> np.ndarray:
    """Rows of a few dimensions, far from the origin, with a mean that drifts."""
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((rank, d))
    rows = (rng.standard_normal((m, rank)) * np.linspace(9.0, 1.0, rank)) @ basis
    return rows + 40.0 * rng.standard_normal(d) + np.linspace(0.0, 30.0, m)[:, None] * basis[0]


def batches(X, sizes):
    """X in pieces of these sizes, over and over."""
    start, i = 0, 0
    while start < X.shape[0]:
        stop = start + sizes[i % len(sizes)]
        yield X[start:stop]
        start, i = stop, i + 1


def streamed(X, sizes, estimator):
    for batch in batches(X, sizes):
        estimator.partial_fit(batch)
    return estimator


@pytest.mark.parametrize("sizes", [[1], [7], [1000], [1, 50, 3, 400, 2], [2000]], ids=str)
def test_a_stream_of_limited_rank_gives_the_batch_answer(sizes):
    X = low_rank_rows()
    expected, found = grassia.PCA(6).fit(X), streamed(X, sizes, grassia.PCA(6))
    for name in FITTED:
        assert relative(getattr(expected, name), getattr(found, name)) < 1e-6, name
    assert entry_by_entry(expected.explained_variance_, found.explained_variance_) < 1e-6
    assert (found.n_samples_seen_, found.n_samples_, found.n_features_in_) == (2000, 2000, 400)
    assert found.certificate_ is None
    assert found.converged_
    assert found.lost_variance_ == 0.0


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    rank=st.integers(1, 5),
    seed=st.integers(0, 1000),
    offset=st.sampled_from([0.0, 1.0, 1e4]),
)
def test_however_rows_are_cut_nothing_of_their_rank_is_lost(sizes, rank, seed, offset):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 30)) + offset
    stream = Stream(30, rank=rank + 1)
    for batch in batches(X, sizes):
        stream.add(batch)
    settled = stream.settle()
    D = X - X.mean(axis=0)
    assert relative(D.T @ D, settled.factor.T @ settled.factor) < 1e-6
    assert relative(X.mean(axis=0), settled.mean) < 1e-12
    assert settled.squares == pytest.approx(np.sum(D**2), rel=1e-6)
    assert settled.weight == 60.0


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n_components", [2, None, 0.95])
def test_of_few_features_everything_is_kept(table, n_components):
    X = TABLES[table]
    expected, found = grassia.PCA(n_components).fit(X), streamed(X, [1, 30], grassia.PCA(n_components))
    k = int(np.sum(expected.explained_variance_ > 0.0))
    assert found.components_.shape == expected.components_.shape
    assert relative(expected.components_[:k], found.components_[:k]) < 1e-8
    assert relative(expected.explained_variance_, found.explained_variance_) < 1e-8
    assert found.noise_variance_ == pytest.approx(expected.noise_variance_, rel=1e-8)
    if n_components == 2:
        assert found.score(X) == pytest.approx(expected.score(X), rel=1e-8)
        assert relative(expected.get_covariance(), found.get_covariance()) < 1e-8


def test_directions_without_variance_have_none_in_a_stream_either():
    X = TABLES["digits"]  # some of its pixels are always zero
    pca = streamed(X, [100], grassia.PCA())
    assert int(np.sum(pca.explained_variance_ > 0.0)) == np.linalg.matrix_rank(X - X.mean(axis=0))
    with pytest.warns(UserWarning, match="no variance"):
        pca.score(X)


def test_fewer_rows_than_components_are_a_beginning():
    X = low_rank_rows(20, 300)
    pca = grassia.PCA(5)
    for n in range(1, 9):
        pca.partial_fit(X[n - 1 : n])
        assert pca.components_.shape == (min(n, 5), 300)
        assert pca.transform(X).shape == (20, min(n, 5))
        if n > 1:
            expected = grassia.PCA(min(n, 5)).fit(X[:n])
            assert relative(expected.explained_variance_, pca.explained_variance_) < 1e-8
    assert pca.n_samples_seen_ == 8


def test_a_stream_of_full_rank_keeps_bounds_and_the_exact_mean_and_total():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((1500, 320)) * np.r_[6.0, 5.0, 4.0, np.linspace(2.0, 0.1, 317)] + 3.0
    exact = grassia.PCA(3).fit(X)
    errors = []
    for more in (0, 20, 100, 317):
        found = streamed(X, [13, 1, 200], grassia.PCA(3, n_oversamples=more))
        assert relative(exact.mean_, found.mean_) < 1e-12
        total = found.explained_variance_.sum() / found.explained_variance_ratio_.sum()
        assert total == pytest.approx(X.var(axis=0, ddof=1).sum(), rel=1e-10)
        short = exact.explained_variance_ - found.explained_variance_
        assert np.all(short > -1e-9)
        assert np.all(short <= found.lost_variance_ + 1e-9)
        assert found.converged_ == (more == 317)
        errors.append(float(short.max()))
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[1] < 0.02 * exact.explained_variance_[2]


def test_looking_at_a_stream_does_not_change_it():
    X = TABLES["digits"][:200]
    looked, unlooked = grassia.PCA(4, n_oversamples=5), grassia.PCA(4, n_oversamples=5)
    for batch in batches(X, [3]):
        looked.partial_fit(batch).components_.sum()
        unlooked.partial_fit(batch)
    assert np.array_equal(looked.components_, unlooked.components_)


@pytest.mark.parametrize("center", [True, False])
def test_weighted_batches_are_repeated_rows(center):
    X = low_rank_rows(80, 300)
    w = np.random.default_rng(2).integers(0, 3, 80)
    weighted, repeated = Stream(300, 20, center), Stream(300, 20, center)
    for start in range(0, 80, 9):
        weighted.add(X[start : start + 9], w[start : start + 9].astype(float))
    repeated.add(np.repeat(X, w, axis=0))
    one, two = weighted.settle(), repeated.settle()
    assert one.weight == two.weight == w.sum()
    assert relative(two.mean, one.mean) < 1e-10
    assert relative(two.factor.T @ two.factor, one.factor.T @ one.factor) < 1e-10


def test_weights_reach_the_estimator():
    X = TABLES["iris"]
    w = np.random.default_rng(3).integers(0, 3, len(X))
    expected = grassia.PCA(2).fit(X, sample_weight=w)
    found = grassia.PCA(2).partial_fit(X[:50], sample_weight=w[:50]).partial_fit(X[50:], sample_weight=w[50:])
    assert relative(expected.components_, found.components_) < 1e-8
    assert entry_by_entry(expected.explained_variance_, found.explained_variance_) < 1e-8


def test_sparse_batches_give_what_dense_ones_give():
    X = term_counts(200, 300)
    sparse, dense = (streamed(form, [37], grassia.PCA(3)) for form in (X, X.toarray()))
    assert sp.issparse(X)
    assert relative(dense.components_, sparse.components_) < 1e-10
    assert relative(dense.mean_, sparse.mean_) < 1e-12


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
def test_a_stream_goes_on_from_a_fit(kind):
    X = low_rank_rows(600, 300)
    expected = kind(8).fit(X)  # all six dimensions, the mean's and one more
    found = kind(8).fit(X[:400]).partial_fit(X[400:500]).partial_fit(X[500:])
    assert found.n_samples_seen_ == 600
    assert relative(expected.explained_variance_, found.explained_variance_) < 1e-8
    assert relative(expected.singular_values_, found.singular_values_) < 1e-8
    assert relative(expected.transform(X), found.transform(X)) < 1e-8


def test_a_fit_forgets_the_stream():
    X = TABLES["iris"]
    pca = grassia.PCA(2).partial_fit(X[:20]).fit(X)
    assert not hasattr(pca, "n_samples_seen_")
    assert np.array_equal(pca.components_, grassia.PCA(2).fit(X).components_)
    assert pca.certificate_ is not None


def test_single_precision_stays_so_until_a_batch_is_not():
    X = TABLES["iris"]
    pca = grassia.PCA(2).partial_fit(X[:50].astype(np.float32))
    assert pca.components_.dtype == pca.explained_variance_.dtype == np.float32
    assert pca.partial_fit(X[50:]).components_.dtype == np.float64
    for first, then in ((np.float32, np.float32), (np.float64, np.float32), (np.float32, np.float64)):
        fitted = grassia.PCA(2).fit(X[:50].astype(first)).partial_fit(X[50:].astype(then))
        assert fitted.components_.dtype == np.result_type(first, then)


def test_a_batch_of_another_width_is_refused():
    pca = grassia.PCA(2).partial_fit(TABLES["iris"])
    with pytest.raises(ValueError, match="X has 3 features, but PCA is expecting 4"):
        pca.partial_fit(TABLES["iris"][:, :3])


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_missing_values_in_a_stream_are_refused(missing):
    X = TABLES["iris"].copy()
    X[3, 1] = np.nan
    with pytest.raises(grassia.InvalidInput, match="contains NaN"):
        grassia.PCA(2, missing=missing).partial_fit(X)


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
def test_too_many_components_are_refused_with_the_first_batch(kind):
    with pytest.raises(grassia.InvalidInput, match="`n_components` must"):
        kind(5).partial_fit(TABLES["iris"])


def test_memory_does_not_grow_with_the_rows():
    d, k = 2000, 5
    pca = grassia.PCA(k)
    rng = np.random.default_rng(4)

    def peak(n_batches: int) -> int:
        tracemalloc.start()
        for _ in range(n_batches):
            pca.partial_fit(rng.standard_normal((50, d)))
        _ = pca.components_
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(4), peak(40)
    assert many < 1.2 * few
    assert many < 20 * d * (k + 10) * 8


def test_weighted_batches_of_few_rows_have_the_noise_of_repeated_rows():
    rng = np.random.default_rng(5)
    A, w = rng.standard_normal((30, 40)), rng.integers(0, 4, 30)
    expected = decomposition.PCA(5).fit(np.repeat(A, w, axis=0))
    found = grassia.PCA(5)
    for start in range(0, 30, 10):
        found.partial_fit(A[start : start + 10], sample_weight=w[start : start + 10])
    assert found.n_samples_ == found.n_samples_seen_ == expected.n_samples_ == w.sum()
    assert found.noise_variance_ == pytest.approx(expected.noise_variance_, rel=1e-10)
    assert entry_by_entry(expected.explained_variance_, found.explained_variance_) < 1e-10
    assert found.score(A) == pytest.approx(expected.score(A), rel=1e-10)


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
def test_a_stream_goes_on_from_a_fit_with_weights_that_are_fractions(kind):
    rng = np.random.default_rng(6)
    X, Y = rng.standard_normal((40, 5)), 3.0 * rng.standard_normal((20, 5)) + 1.0
    w = np.full(40, 0.25)  # their sum is a whole number, but not that of the rows
    first = kind(5).fit(X, sample_weight=w)
    assert first.n_samples_ == 10
    found = first.partial_fit(Y)
    expected = kind(5).fit(np.vstack([X, Y]), sample_weight=np.r_[w, np.ones(20)])
    assert found.n_samples_ == expected.n_samples_ == 30
    assert entry_by_entry(expected.explained_variance_, found.explained_variance_) < 1e-10
    assert relative(expected.components_, found.components_) < 1e-10


@pytest.mark.parametrize("fitted", [False, True])
def test_a_source_that_fails_half_way_leaves_no_trace(fitted):
    X = low_rank_rows(300, 20)
    holed = X[200:].copy()
    holed[50, 3] = np.nan
    pca, expected = grassia.PCA(4), grassia.PCA(4).fit(X)
    first = 100 if fitted else 0
    if fitted:
        pca.partial_fit(X[:100])
    for _ in range(2):
        with pytest.raises(grassia.InvalidInput, match="NaN"):
            pca.partial_fit([X[first:200], holed])
        assert getattr(pca, "n_samples_seen_", 0) == first
    pca.partial_fit([X[first:200], X[200:]])
    assert pca.n_samples_seen_ == 300
    assert entry_by_entry(expected.explained_variance_, pca.explained_variance_) < 1e-10


def test_a_batch_that_was_refused_does_not_fix_the_width():
    X = low_rank_rows(30, 20)
    pca = grassia.PCA(18)
    with pytest.raises(grassia.InvalidInput, match="`n_components` must"):
        pca.partial_fit(X[:, :15])
    assert pca.partial_fit([X[:10], X[10:]]).n_features_in_ == 20


def test_files_of_a_stream_have_the_same_columns_in_the_same_order(tmp_path):
    rng = np.random.default_rng(7)
    for name, columns in (("one", "a,b,c"), ("two", "a,b,c"), ("turned", "c,b,a")):
        rows = rng.standard_normal((20, 3)) * [1.0, 2.0, 3.0]
        np.savetxt(tmp_path / f"{name}.csv", rows, delimiter=",", header=columns, comments="")
    pca = grassia.PCA(2).partial_fit(tmp_path / "one.csv")
    assert list(pca.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(grassia.InvalidInput, match="feature names should match"):
        pca.partial_fit(tmp_path / "turned.csv")
    assert pca.partial_fit(tmp_path / "two.csv").n_samples_seen_ == 40
    with pytest.raises(grassia.InvalidInput, match="feature names should match"):
        pca.transform(tmp_path / "turned.csv")


def test_a_stream_goes_on_from_the_exact_mean_of_a_single_precision_fit():
    rng = np.random.default_rng(8)
    X = (rng.standard_normal((400, 4)) * [4.0, 3.0, 2.0, 1.0] + 1e5).astype(np.float32)
    expected = np.linalg.eigvalsh(np.cov(X.astype(np.float64).T))[::-1]
    found = grassia.PCA(4).fit(X[:200]).partial_fit(X[200:].astype(np.float64))
    assert entry_by_entry(expected, found.explained_variance_) < 1e-6
    assert np.abs(found.mean_ - X.mean(axis=0, dtype=np.float64)).max() < 1e-9


@pytest.mark.parametrize("fit", ["fit", "partial_fit"])
def test_single_precision_is_single_in_any_order_of_bytes(fit):
    X = TABLES["iris"].astype(">f4")
    expected = getattr(grassia.PCA(2), fit)(X.astype("=f4"))
    found = getattr(grassia.PCA(2), fit)(X)
    assert found.components_.dtype == expected.components_.dtype == np.float32
    assert np.array_equal(found.components_, expected.components_)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, lambda X: [X]], ids=["dense", "sparse", "source"])
def test_integers_beyond_double_precision_are_refused_in_a_stream(form):
    X = np.arange(12).reshape(4, 3)
    pca = grassia.PCA(2).partial_fit(form(X))
    with pytest.raises(ValueError, match=r"2\*\*53"):
        pca.partial_fit(form(X + (2**53 + 1)))
    assert pca.n_samples_seen_ == 4


def test_the_noise_of_a_stream_keeps_its_digits_beside_large_variances():
    rng = np.random.default_rng(9)
    X = 0.01 * rng.standard_normal((900, 300))
    X[:, :2] = 3e7 * rng.standard_normal((900, 2))
    found = streamed(X, [100], grassia.PCA(2))
    rest = np.sum(np.linalg.svd(X - X.mean(axis=0))[1][2:] ** 2) / 899
    assert not found.converged_
    assert rest * (1.0 - 1e-6) <= found.noise_variance_ * 298 <= rest + 2.0 * found.lost_variance_


def test_a_stream_of_limited_rank_goes_on_from_the_rest_of_a_fit():
    rng = np.random.default_rng(10)
    X = rng.standard_normal((500, 300)) * np.r_[9.0, 8.0, np.full(298, 0.1)]
    found = grassia.PCA(2).fit(X[:400]).partial_fit(X[400:])
    total = X.var(axis=0, ddof=1).sum()
    assert found.explained_variance_.sum() / found.explained_variance_ratio_.sum() == pytest.approx(total)
    assert found.explained_variance_.sum() + 298 * found.noise_variance_ == pytest.approx(total)
