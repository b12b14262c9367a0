"""Weighted rows and rows with gaps as components: the laws that any component keeps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import grassia
from estimator_data import relative
from grassia.data import RowsLoader, SumLoader
from grassia.weighted import RunningMoments, WeightedLoader, column_means

FORMS = {"dense": np.asarray, "sparse": sp.csr_array}


def problem(seed: int = 0, m: int = 40, d: int = 7):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.5) + 2.0 * (rng.random(d) < 0.5)
    return X, rng.integers(0, 4, m).astype(float), rng.standard_normal((d, 3))


def oracle(X, w, center):
    mean = np.average(X, axis=0, weights=w) if center else np.zeros(X.shape[1])
    return (X - mean).T @ (w[:, None] * (X - mean)) / w.sum()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("block_rows", [None, 3])
def test_products_and_moments_are_those_of_the_weighted_covariance(form, center, block_rows):
    X, w, V = problem()
    inner = RowsLoader(FORMS[form](X))
    if block_rows is not None:  # read in several blocks
        inner = SumLoader(
            tuple(RowsLoader(FORMS[form](X[i : i + block_rows])) for i in range(0, 40, block_rows))
        )
    component = WeightedLoader(inner, w, center=center).open()
    A, moments = oracle(X, w, center), component.moments()
    assert relative(A @ V, component.apply(V)) < 1e-12
    assert relative(A, component.dense()) < 1e-12
    assert moments.trace == pytest.approx(np.trace(A), rel=1e-12)
    assert moments.count == w.sum()
    assert moments.positive
    assert (moments.mean is None) == (not center)


@pytest.mark.parametrize("form", FORMS)
def test_whole_weights_are_the_same_as_repeated_rows(form):
    X, w, V = problem(1)
    component = WeightedLoader(RowsLoader(FORMS[form](X)), w).open()
    repeated = RowsLoader(np.repeat(X, w.astype(int), axis=0)).open()
    assert relative(repeated.apply(V), component.apply(V)) < 1e-12
    assert relative(repeated.moments().mean, component.moments().mean) < 1e-12
    centre = np.arange(7.0)
    for rows in (component, repeated):
        rows.recenter(centre)
    assert relative(repeated.apply(V), component.apply(V)) < 1e-12
    assert component.trace_about(centre) == pytest.approx(repeated.trace_about(centre), rel=1e-12)


def test_sparse_rows_are_not_filled_in():
    X = sp.random_array((50, 100_000), density=1e-4, format="csr", rng=0)
    component = WeightedLoader(RowsLoader(X), np.arange(50.0)).open()
    V = np.ones((100_000, 1))
    mean = X.T @ np.arange(50.0) / np.arange(50.0).sum()
    Z = np.arange(50.0)[:, None] * (X @ V - mean @ V)
    expected = (X.T @ Z - np.outer(mean, Z.sum(axis=0))) / np.arange(50.0).sum()
    assert relative(expected, component.apply(V)) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_gaps_are_filled_while_rows_are_read(form):
    X, w, V = problem(2)
    holed = X.copy()
    holed[X > 1.5] = np.nan
    fill = np.arange(7.0) + 1.0
    component = WeightedLoader(RowsLoader(FORMS[form](holed)), w, fill).open()
    full = np.where(np.isnan(holed), fill, holed)
    assert relative(oracle(full, w, True) @ V, component.apply(V)) < 1e-12
    assert np.isnan(holed).any()


@pytest.mark.parametrize("form", FORMS)
def test_the_means_of_what_is_there_ignore_what_is_not(form):
    X, w, _ = problem(3)
    X[X > 1.5] = np.nan
    blocks = [(FORMS[form](X[:11]), w[:11]), (FORMS[form](X[11:]), w[11:])]
    masked = np.ma.masked_invalid(X)
    expected = np.ma.average(masked, axis=0, weights=w)
    assert relative(expected, column_means(blocks, 7)) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_not_finite_is_named(form):
    X, w, _ = problem(4)
    X[33, 2] = np.inf
    shards = SumLoader((RowsLoader(FORMS[form](X[:20])), RowsLoader(FORMS[form](X[20:]))))
    with pytest.raises(grassia.InvalidComponent, match="row 33 holds NaN or inf"):
        WeightedLoader(shards, w).open().moments()


@pytest.mark.parametrize("n", [39, 41])
def test_there_must_be_as_many_weights_as_rows(n):
    X, _, _ = problem(5)
    with pytest.raises(grassia.InvalidComponent, match="one weight for each row"):
        WeightedLoader(RowsLoader(X), np.ones(n)).open().moments()


def test_a_shard_without_any_weight_is_refused():
    X, _, _ = problem(6)
    with pytest.raises(grassia.InvalidComponent, match="leave the shard out"):
        WeightedLoader(RowsLoader(X), np.zeros(40)).open().moments()


def test_weighted_shards_add_up_to_the_weighted_covariance_of_all():
    X, w, _ = problem(7)
    parts = [WeightedLoader(RowsLoader(X[i : i + 10]), w[i : i + 10]) for i in range(0, 40, 10)]
    result = grassia.eigenspace(grassia.Components(parts), 2, rng=0)
    values, vectors = np.linalg.eigh(oracle(X, w, True))
    assert result.values == pytest.approx(values[::-1][:2], rel=1e-9)
    assert grassia.geometry.projection_distance(result.vectors, vectors[:, -2:]) < 1e-6


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 10_000),
    offset=st.sampled_from([0.0, 1e3, 1e7]),
    sparse=st.booleans(),
    center=st.booleans(),
)
def test_moments_do_not_depend_on_the_cuts(cuts, seed, offset, sparse, center):
    X, w, _ = problem(seed)
    X = X + offset
    w[0] = 1.0
    sums, start, i = RunningMoments(7, center), 0, 0
    while start < 40:
        stop = start + cuts[i % len(cuts)]
        rows = X[start:stop]
        sums.add(sp.csr_array(rows) if sparse else rows, w[start:stop])
        start, i = stop, i + 1
    mean = np.average(X, axis=0, weights=w)
    about = mean if center else 0.0
    assert relative(mean, sums.mean) < 1e-12
    squares = w @ (X - about) ** 2
    # A deviation is known to a rounding unit of the offset.
    assert np.all(
        np.abs(squares - sums.column_squares) <= 1e-10 * squares + 40 * 1e-15 * offset * np.sqrt(squares)
    )
    assert (sums.rows, sums.weight) == (40, w.sum())
