"""Components about a common mean, and sums of components, against the concatenated rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from component_oracles import close, covariance, dense, rows, second_moment
from grassia.components import MatrixComponent, OperatorComponent, RowsComponent, SumComponent


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ------------------------------------------------------------------------------------- centring


def shards(rng, sparse=False):
    X = rng.standard_normal((60, 5)) + np.linspace(0, 9, 60)[:, None]
    cuts = [0, 7, 8, 31, 60]
    parts = [X[a:b] for a, b in pairwise(cuts)]
    return X, parts, [RowsComponent(sp.csr_array(P) if sparse else P) for P in parts]


@pytest.mark.parametrize("sparse", [False, True])
def test_recentred_shards_sum_to_the_covariance_of_all_rows(rng, sparse):
    X, parts, components = shards(rng, sparse)
    weights = np.array([len(P) for P in parts]) / len(X)
    mean = sum(w * c.moments().mean for w, c in zip(weights, components, strict=True))
    for component in components:
        component.recenter(mean)
    total = sum(w * dense(c) for w, c in zip(weights, components, strict=True))
    close(total, covariance(X))
    traces = [c.trace_about(mean) for c in components]
    assert weights @ traces == pytest.approx(np.trace(covariance(X)))


def test_recentring_twice_replaces_and_does_not_accumulate(rng):
    X = rows(rng)
    component = RowsComponent(X)
    mu = np.arange(6.0)
    component.recenter(np.full(6, 99.0))
    component.recenter(mu)
    component.recenter(mu)
    close(dense(component), covariance(X, mu))
    assert component.trace_about(mu) == pytest.approx(np.trace(covariance(X, mu)))
    component.recenter(component.moments().mean)
    close(dense(component), covariance(X))


def test_moments_do_not_change_when_recentred(rng):
    component = RowsComponent(rows(rng))
    before = component.moments()
    component.recenter(np.zeros(6))
    assert component.moments() is before


def test_recentring_has_no_effect_on_what_is_not_centred(rng):
    X = rows(rng)
    for component in (
        RowsComponent(X, center=False),
        MatrixComponent(second_moment(X)),
        OperatorComponent(lambda V: second_moment(X) @ V, 6, trace=np.trace(second_moment(X))),
    ):
        component.recenter(np.ones(6))
        close(dense(component), second_moment(X))
        assert component.trace_about(np.ones(6)) == pytest.approx(np.trace(second_moment(X)))
    assert OperatorComponent(lambda V: V, 6).trace_about(np.ones(6)) is None


# ----------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_sum_of_centred_shards_is_their_concatenation(rng, sparse, nested):
    X, _, components = shards(rng, sparse)
    if nested:
        components = [SumComponent(components[:2]), SumComponent(components[2:])]
    merged, whole = SumComponent(components), RowsComponent(X)
    close(dense(merged), dense(whole))
    found, expected = merged.moments(), whole.moments()
    assert found.count == expected.count
    assert found.positive
    assert found.trace == pytest.approx(expected.trace)
    np.testing.assert_allclose(found.mean, expected.mean)
    mu = np.arange(5.0)
    for component in (merged, whole):
        component.recenter(mu)
    close(dense(merged), dense(whole))
    assert merged.trace_about(mu) == pytest.approx(whole.trace_about(mu))
    merged.recenter(found.mean)
    close(dense(merged), covariance(X))


def test_a_sum_of_uncentred_shards_is_their_concatenation(rng):
    X, parts, _ = shards(rng)
    merged = SumComponent([RowsComponent(P, center=False) for P in parts])
    close(dense(merged), second_moment(X))
    assert merged.moments().mean is None
    assert merged.moments().trace == pytest.approx(np.trace(second_moment(X)))
    merged.recenter(np.ones(5))
    close(dense(merged), second_moment(X))


def test_a_sum_of_matrices_is_their_weighted_mean(rng):
    A, B = covariance(rows(rng)), covariance(rows(rng))
    close(dense(SumComponent([MatrixComponent(A), MatrixComponent(B)])), (A + B) / 2)
    weighted = SumComponent([MatrixComponent(A), MatrixComponent(B)], weights=[3, 1])
    close(dense(weighted), 0.75 * A + 0.25 * B)
    assert weighted.moments().trace == pytest.approx(0.75 * np.trace(A) + 0.25 * np.trace(B))
    assert weighted.moments().count is None
    assert not weighted.moments().positive


def test_a_sum_with_an_unknown_trace_has_no_trace():
    parts = [MatrixComponent(np.eye(3)), OperatorComponent(lambda V: V, 3)]
    assert SumComponent(parts).moments().trace is None


def test_given_weights_mix_centred_shards_about_their_weighted_mean(rng):
    _, parts, components = shards(rng)
    weights = np.array([1.0, 2.0, 3.0, 4.0]) / 10
    mu = sum(w * P.mean(axis=0) for w, P in zip(weights, parts, strict=True))
    expected = sum(w * covariance(P, mu) for w, P in zip(weights, parts, strict=True))
    merged = SumComponent(components, weights=weights)
    close(dense(merged), expected)
    assert merged.moments().trace == pytest.approx(np.trace(expected))


def test_a_large_common_offset_does_not_cost_a_sum_its_variances(rng):
    X = rng.standard_normal((400, 4)) + 1e6
    merged = SumComponent([RowsComponent(X[:100]), RowsComponent(X[100:])])
    exact = X.astype(np.longdouble)
    D = exact - exact.mean(axis=0)
    close(dense(merged), (D.T @ D / 400).astype("f8"), rtol=1e-9)
