"""`grassia.TruncatedSVD` gives scikit-learn's attributes for rows that are not centred."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD as Reference
from sklearn.exceptions import ConvergenceWarning

import grassia
from estimator_data import TABLES, entry_by_entry, relative, term_counts

PER_COMPONENT = ("explained_variance_", "explained_variance_ratio_", "singular_values_")


def reference(X, k):
    return Reference(k, algorithm="arpack", random_state=0).fit(X)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("table", [*TABLES, "terms"])
def test_every_fitted_attribute_is_that_of_scikit_learn(table, k):
    X = term_counts() if table == "terms" else TABLES[table]
    expected, found = reference(X, k), grassia.TruncatedSVD(k, random_state=0).fit(X)
    assert found.converged_
    assert relative(expected.components_, found.components_) < 1e-8
    for name in PER_COMPONENT:
        assert entry_by_entry(getattr(expected, name), getattr(found, name)) < 1e-8, name
    assert relative(expected.transform(X), found.transform(X)) < 1e-8
    back = found.inverse_transform(found.transform(X))
    assert relative(expected.inverse_transform(expected.transform(X)), back) < 1e-8
    assert relative(expected.fit_transform(X), found.fit_transform(X)) < 1e-8


@pytest.mark.parametrize("table", TABLES)
def test_single_precision_stays_single_precision(table):
    X = TABLES[table]
    expected, found = reference(X, 2), grassia.TruncatedSVD(2, random_state=0).fit(X.astype(np.float32))
    for name in ("components_", *PER_COMPONENT):
        assert getattr(found, name).dtype == np.float32, name
        assert relative(getattr(expected, name), getattr(found, name)) < 1e-4, name
    assert found.transform(X.astype(np.float32)).dtype == np.float32


def test_all_singular_values_are_those_of_the_dense_decomposition():
    X = np.random.default_rng(0).standard_normal((12, 30)) + 1.0
    found = grassia.TruncatedSVD(12).fit(X)
    assert entry_by_entry(np.linalg.svd(X)[1], found.singular_values_) < 1e-10
    assert relative(X, found.inverse_transform(found.transform(X))) < 1e-10


def test_one_row_is_its_own_direction():
    row = np.array([[3.0, 4.0]])
    found = grassia.TruncatedSVD(1).fit(row)
    assert np.allclose(found.components_, row / 5.0)
    assert found.singular_values_ == pytest.approx([5.0])


@pytest.mark.parametrize("k", [0, 5, 2.5, None, True])
def test_a_wrong_number_of_components_is_refused(k):
    with pytest.raises(grassia.InvalidInput, match="`n_components` must"):
        grassia.TruncatedSVD(k).fit(TABLES["iris"])


def test_an_interrupted_fit_gives_the_best_so_far():
    X = np.random.default_rng(1).standard_normal((600, 400))
    with pytest.warns(ConvergenceWarning, match="best so far"):
        found = grassia.TruncatedSVD(5, solver="krylov", callbacks=lambda progress: progress.passes > 3).fit(
            X
        )
    assert not found.converged_
    lengths = np.linalg.norm(X @ found.components_.T, axis=0)
    assert entry_by_entry(lengths, found.singular_values_) < 1e-8


def test_a_stream_gives_what_all_rows_give():
    X = TABLES["digits"]
    expected = grassia.TruncatedSVD(4).fit(X)
    found = grassia.TruncatedSVD(4)
    for start in range(0, len(X), 123):
        found.partial_fit(X[start : start + 123])
    for name in ("components_", *PER_COMPONENT):
        assert relative(getattr(expected, name), getattr(found, name)) < 1e-8, name
    assert (found.n_samples_seen_, found.certificate_, found.lost_variance_) == (len(X), None, 0.0)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e7])
def test_a_stream_far_from_the_origin_keeps_its_variances(offset):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((500, 6)) * [5.0, 4.0, 3.0, 2.0, 1.0, 1.0] + offset
    found = grassia.TruncatedSVD(4)
    for start in range(0, 500, 50):
        found.partial_fit(X[start : start + 50])
    singular, turn = np.linalg.svd(X)[1:]
    along = (X - X.mean(axis=0)) @ turn[:4].T
    assert entry_by_entry(singular[:4], found.singular_values_) < 1e-6
    assert entry_by_entry(along.var(axis=0), found.explained_variance_) < 1e-6
    ratio = along.var(axis=0) / X.var(axis=0).sum()
    assert entry_by_entry(ratio, found.explained_variance_ratio_) < 1e-6


@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_a_stream_of_full_rank_loses_no_more_than_it_says(offset):
    X = np.random.default_rng(3).standard_normal((600, 300)) * np.r_[6.0, 5.0, np.full(298, 1.0)] + offset
    found = grassia.TruncatedSVD(3)
    for start in range(0, 600, 70):
        found.partial_fit(X[start : start + 70])
    short = (np.linalg.svd(X)[1][:3] ** 2 - found.singular_values_**2) / 600
    assert np.all(short > -1e-9)
    assert np.all(short <= found.lost_variance_ + 1e-9)
    assert found.lost_variance_ > 0.0
    assert not found.converged_
