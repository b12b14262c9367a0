"""Orthonormal matrices against laws and dense oracles: `polar`, `orthonormalize`, random points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import assume, given
from hypothesis import strategies as st

from grassia import geometry as geo
from grassia.errors import InvalidInput
from random_subspaces import EPS, generator, laws, rotation, seeds, shapes

# --- polar ----------------------------------------------------------------------------------------


@laws
@given(shapes(), seeds)
def test_polar_equals_scipy(shape, seed):
    X = generator(seed).standard_normal(shape)
    expected, H = scipy.linalg.polar(X)
    # The polar factor turns by the perturbation over the smallest singular value.
    condition = np.linalg.cond(H)
    assume(condition < 1e6)
    np.testing.assert_allclose(geo.polar(X), expected, atol=20 * EPS * (10 + condition**2))


@laws
@given(shapes(), seeds, st.floats(0.0, 12.0))
def test_polar_is_orthonormal_and_spans_its_argument_at_any_conditioning(shape, seed, digits):
    rng = generator(seed)
    d, k = shape
    U, T = geo.random_point(d, k, rng), rotation(k, rng)
    X = (U * np.logspace(0.0, -digits, k)) @ T
    Q = geo.polar(X)
    assert geo.orthonormality_error(Q) < 1e-14
    # Rounding X itself turns its weakest direction by eps times the condition number.
    assert geo.projection_distance(U, Q) < 100 * EPS * 10.0**digits


@pytest.mark.parametrize("digits", [0.05, 0.2, 1.0, 1.9, 2.1, 5.0, 10.0])
def test_polar_stays_orthonormal_through_all_three_of_its_paths(digits):
    rng = generator(1)
    X = geo.random_point(500, 8, rng) * np.logspace(0.0, -digits, 8) @ rotation(8, rng)
    assert geo.orthonormality_error(geo.polar(X)) < 20 * EPS


def test_polar_cleans_what_the_eigensolver_leaves_behind_at_many_columns():
    rng = generator(21)
    W = geo.random_point(1000, 60, rng)
    X = W + 0.01 * rng.standard_normal(W.shape) / math.sqrt(1000)
    assert geo.orthonormality_error(geo.polar(X)) < 1e-14


@pytest.mark.parametrize("digits", [3.0, 8.0, 11.0])
def test_polar_of_an_ill_conditioned_matrix_keeps_the_digits_of_an_svd(digits):
    rng = generator(2)
    U, T = geo.random_point(60, 4, rng), rotation(4, rng)
    X = (U * np.logspace(0.0, -digits, 4)) @ T
    assert np.linalg.norm(geo.polar(X) - U @ T) < 50 * EPS * 10.0**digits


@laws
@given(shapes(), seeds)
def test_no_orthonormal_matrix_is_closer_than_polar(shape, seed):
    rng = generator(seed)
    X = rng.standard_normal(shape)
    best = np.linalg.norm(X - geo.polar(X))
    assert best <= np.linalg.norm(X - geo.random_point(*shape, rng)) + 1e-12
    singular = np.linalg.svd(X, compute_uv=False)
    assert best == pytest.approx(np.linalg.norm(singular - 1.0), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e-160, 1e-155, 1e155, 1e200, 1e307])
def test_polar_does_not_depend_on_the_scale_of_its_argument(scale):
    X = generator(3).uniform(-1.0, 1.0, (20, 3))
    # Subnormal entries hold only some 14 digits to begin with.
    tolerance = 1e-11 if scale < 1e-300 else 1e-14
    np.testing.assert_allclose(geo.polar(X * scale), geo.polar(X), atol=tolerance)


def test_polar_leaves_its_argument_alone():
    X = generator(4).standard_normal((9, 3))
    before = X.copy()
    geo.polar(X)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((4, 2)),
        np.ones((4, 2)),
        np.eye(4)[:, [0, 1, 0]],
        np.array([[0.0]]),
    ],
)
def test_polar_refuses_rank_deficient_matrices(X):
    with pytest.raises(InvalidInput, match=r"full column rank.*orthonormalize"):
        geo.polar(X)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (40, 40)])
def test_polar_refuses_entries_that_are_not_finite(bad, shape):
    X = generator(5).standard_normal(shape)
    X[-1, 0] = bad
    with pytest.raises(InvalidInput, match="finite"):
        geo.polar(X)


# --- orthonormalize -------------------------------------------------------------------------------


@laws
@given(shapes(), st.integers(0, 6), seeds)
def test_orthonormalize_completes_against_to_the_joint_span(shape, m, seed):
    rng = generator(seed)
    d, p = shape
    A, X = geo.random_point(d, p, rng), rng.standard_normal((d, m))
    Q = geo.orthonormalize(X, against=A)
    assert Q.shape == (d, min(m, d - p))
    joint = np.concatenate([A, Q], axis=1)
    assert np.linalg.norm(joint.T @ joint - np.eye(joint.shape[1])) < 1e-14
    np.testing.assert_allclose(joint @ (joint.T @ X), X, atol=1e-11)


def test_dependent_zero_and_repeated_columns_are_dropped():
    a, b, zero = np.eye(5)[:, 0], np.eye(5)[:, 1], np.zeros(5)
    X = np.stack([a, zero, a, b, a - 3.0 * b], axis=1)
    Q = geo.orthonormalize(X)
    assert Q.shape == (5, 2)
    np.testing.assert_allclose(Q @ Q.T, np.diag([1.0, 1.0, 0.0, 0.0, 0.0]), atol=1e-15)


def test_columns_already_inside_against_leave_nothing():
    rng = generator(6)
    A = geo.random_point(50, 6, rng)
    assert geo.orthonormalize(A @ rng.standard_normal((6, 4)), against=A).shape == (50, 0)


def test_nearly_cancelled_columns_come_out_orthogonal_to_against():
    rng = generator(7)
    frame = geo.random_point(200, 8, rng)
    A, N = frame[:, :5], frame[:, 5:]
    X = A @ rng.standard_normal((5, 3)) + 1e-9 * N
    Q = geo.orthonormalize(X, against=A)
    assert Q.shape == (200, 3)
    assert np.linalg.norm(A.T @ Q) < 1e-15
    assert geo.orthonormality_error(Q) < 1e-14
    assert geo.projection_distance(N, Q) < 1e-5


def test_nearly_dependent_columns_come_out_orthogonal_to_against():
    rng = generator(22)
    frame = geo.random_point(200, 7, rng)
    A, n, m = frame[:, :5], frame[:, 5], frame[:, 6]
    # Their difference is 1e-9 m, so what rounding left along A grows by 1e9.
    X = A @ rng.standard_normal((5, 2)) + np.stack([n, n + 1e-9 * m], axis=1)
    X = np.concatenate([X, A @ rng.standard_normal((5, 3)) + n[:, None]], axis=1)
    Q = geo.orthonormalize(X, against=A)
    assert Q.shape == (200, 2)
    assert np.linalg.norm(A.T @ Q) < 1e-15
    assert geo.projection_distance(frame[:, 5:], Q) < 1e-5


def test_the_drop_tolerance_decides_which_directions_stay():
    e = np.eye(4)
    X = np.stack([e[0], e[0] + 1e-6 * e[1]], axis=1)
    assert geo.orthonormalize(X, tol=1e-8).shape == (4, 2)
    assert geo.orthonormalize(X, tol=1e-4).shape == (4, 1)


def test_column_scales_do_not_matter_to_orthonormalize():
    X = generator(8).standard_normal((6, 3))
    Q = geo.orthonormalize(X * np.array([1e-250, 1.0, 1e250]))
    assert Q.shape == (6, 3)
    assert geo.projection_distance(geo.polar(X), Q) < 1e-14


def test_an_empty_against_is_the_same_as_none():
    X = generator(9).standard_normal((6, 3))
    np.testing.assert_array_equal(geo.orthonormalize(X, against=np.empty((6, 0))), geo.orthonormalize(X))


@pytest.mark.parametrize("tol", [0.0, -1.0, 1.0, np.nan, 1e-17])
def test_tolerances_out_of_range_are_refused(tol):
    with pytest.raises(InvalidInput, match="eps <= tol < 1"):
        geo.orthonormalize(np.eye(3), tol=tol)


def test_orthonormalize_refuses_nan():
    with pytest.raises(InvalidInput, match="finite"):
        geo.orthonormalize(np.array([[1.0, np.nan], [0.0, 1.0]]))


# --- random points --------------------------------------------------------------------------------


@laws
@given(shapes(), seeds)
def test_random_points_are_orthonormal_and_follow_their_seed(shape, seed):
    W = geo.random_point(*shape, generator(seed))
    assert W.shape == shape
    assert geo.orthonormality_error(W) < 1e-14
    np.testing.assert_array_equal(W, geo.random_point(*shape, generator(seed)))
    assert not np.array_equal(W, geo.random_point(*shape, generator(seed + 1))) or shape == (1, 1)


def test_random_points_have_no_preferred_direction_or_sign():
    rng, draws, d, k = generator(19), 4000, 4, 2
    points = np.stack([geo.random_point(d, k, rng) for _ in range(draws)])
    # Entries have variance 1/d; five standard errors of the means over the draws.
    bound = 5.0 / math.sqrt(draws * d)
    assert np.max(np.abs(points.mean(axis=0))) < bound
    projector = np.einsum("nij,nlj->il", points, points) / draws
    assert np.max(np.abs(projector - (k / d) * np.eye(d))) < 2.0 * bound
