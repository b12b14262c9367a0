"""Tangent vectors, logarithm and exponential against laws and dense oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grassia import geometry as geo
from grassia.errors import InvalidInput
from random_subspaces import EPS, generator, laws, point_at_angles, rotation, seeds, shapes

# --- tangent vectors ------------------------------------------------------------------------------


@laws
@given(shapes(), st.integers(1, 5), seeds)
def test_project_equals_the_dense_projector(shape, m, seed):
    rng = generator(seed)
    d, _ = shape
    W, G = geo.random_point(*shape, rng), rng.standard_normal((d, m))
    np.testing.assert_allclose(geo.project(W, G), (np.eye(d) - W @ W.T) @ G, atol=1e-14)


@laws
@given(shapes(), seeds)
def test_the_gradient_is_the_derivative_of_the_cost_along_every_geodesic(shape, seed):
    rng = generator(seed)
    d, _ = shape
    W = geo.random_point(*shape, rng)
    A = rng.standard_normal((d, d))
    A = A + A.T
    Xi = geo.project(W, rng.standard_normal(shape))
    Xi /= max(np.linalg.norm(Xi), 1.0)

    def cost(t):
        V = geo.exp(W, t * Xi)
        return -np.trace(V.T @ A @ V)

    h = 1e-4
    slope = (cost(h) - cost(-h)) / (2.0 * h)
    expected = np.sum(geo.riemannian_gradient(W, A @ W) * Xi)
    assert slope == pytest.approx(expected, abs=1e-5)


def test_the_gradient_vanishes_on_an_invariant_subspace():
    rng = generator(10)
    frame = rotation(7, rng)
    A = (frame * np.arange(1.0, 8.0)) @ frame.T
    W = frame[:, 2:5] @ rotation(3, rng)
    assert np.linalg.norm(geo.riemannian_gradient(W, A @ W)) < 1e-13


# --- logarithm and exponential --------------------------------------------------------------------


def log_by_inverse(W, V):
    """The textbook formula, with the explicit inverse."""
    L = V @ np.linalg.inv(W.T @ V) - W
    R, tangents, Tt = np.linalg.svd(L, full_matrices=False)
    return (R * np.arctan(tangents)) @ Tt


@laws
@given(st.lists(st.floats(1e-3, 1.4), min_size=1, max_size=4), st.integers(0, 4), seeds)
def test_log_equals_the_formula_with_explicit_inverse_at_moderate_angles(angles, extra, seed):
    W, V = point_at_angles(np.array(angles), generator(seed), 2 * len(angles) + extra)
    np.testing.assert_allclose(geo.log(W, V), log_by_inverse(W, V), atol=1e-12)


@laws
@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(-16.0, 0.17).map(lambda e: 10.0**e)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
    seeds,
)
def test_exp_undoes_log_and_log_is_as_long_as_the_geodesic(angles, extra, seed):
    W, V = point_at_angles(np.array(angles), generator(seed), 2 * len(angles) + extra)
    Xi = geo.log(W, V)
    # The basis of Exp is free, so compare points; 1.48 = 10**0.17 still has cosine 0.09.
    assert geo.geodesic_distance(geo.exp(W, Xi), V) < 1e-12
    assert np.linalg.norm(Xi) == pytest.approx(geo.geodesic_distance(W, V), abs=1e-13, rel=1e-13)
    assert np.linalg.norm(W.T @ Xi) < 1e-14


@laws
@given(shapes(), seeds, st.floats(0.0, 1.5))
def test_log_undoes_exp_below_the_injectivity_radius(shape, seed, length):
    rng = generator(seed)
    W = geo.random_point(*shape, rng)
    Xi = geo.project(W, rng.standard_normal(shape))
    Xi *= length / max(np.linalg.norm(Xi, 2), 1.0)
    np.testing.assert_allclose(geo.log(W, geo.exp(W, Xi)), Xi, atol=1e-12)


@laws
@given(shapes(), seeds)
def test_log_ignores_the_basis_of_the_target_and_turns_with_the_basis_of_the_start(shape, seed):
    rng = generator(seed)
    W, V = geo.random_point(*shape, rng), geo.random_point(*shape, rng)
    cosines = np.linalg.svd(W.T @ V, compute_uv=False)
    assume(cosines[-1] > 1e-2)
    Q, Xi = rotation(shape[1], rng), geo.log(W, V)
    np.testing.assert_allclose(geo.log(W, V @ Q), Xi, atol=1e-11)
    np.testing.assert_allclose(geo.log(W @ Q, V), Xi @ Q, atol=1e-11)


def test_log_resolves_tiny_and_large_angles_side_by_side():
    W = np.eye(6)[:, :3]
    angles = np.array([1e-14, 1e-7, 1.5])
    V = np.concatenate([np.diag(np.cos(angles)), np.diag(np.sin(angles))]) @ rotation(3, generator(11))
    Xi = geo.log(W, V)
    np.testing.assert_allclose(np.diag(Xi[3:]), angles, rtol=1e-6)
    # LAPACK stops its SVD at residuals of up to some 90 eps, which shows off the diagonal.
    np.testing.assert_allclose(Xi[3:], np.diag(angles), atol=5e-14)
    np.testing.assert_allclose(Xi[:3], 0.0, atol=1e-14)


def test_log_reads_a_lone_angle_close_to_the_cut_locus():
    W, V = np.eye(2)[:, :1], np.array([[1e-10], [1.0]])
    np.testing.assert_allclose(geo.log(W, V), [[0.0], [math.pi / 2 - 1e-10]], atol=1e-15)


def test_the_cut_locus_is_refused_and_the_message_says_why():
    rng = generator(12)
    W, V = point_at_angles(np.array([0.3, math.pi / 2]), rng, 9)
    with pytest.raises(InvalidInput, match=r"cut locus.*pi/2.*smallest cosine"):
        geo.log(W, V)


def test_exp_follows_a_unit_speed_geodesic():
    rng = generator(13)
    W = geo.random_point(8, 3, rng)
    Xi = geo.project(W, rng.standard_normal((8, 3)))
    Xi /= np.linalg.norm(Xi)
    for t in (1e-9, 0.2, 0.7, 1.3):
        assert geo.geodesic_distance(W, geo.exp(W, t * Xi)) == pytest.approx(t, abs=1e-14)


def test_exp_of_a_long_vector_is_still_orthonormal():
    rng = generator(14)
    W = geo.random_point(30, 4, rng)
    Xi = 100.0 * geo.project(W, rng.standard_normal((30, 4)))
    assert geo.orthonormality_error(geo.exp(W, Xi)) < 20 * EPS


def test_a_small_defect_of_orthonormality_is_not_taken_for_an_angle_and_not_passed_on():
    rng = generator(23)
    W = geo.random_point(30, 4, rng)
    # The same subspace in a basis that is off by 1e-9.
    worn = W @ (np.eye(4) + 1e-9 * rng.standard_normal((4, 4)))
    assert geo.orthonormality_error(worn) > 1e-10
    assert np.max(geo.principal_angles(worn, worn)) < 1e-14
    assert geo.chordal_distance(worn, worn) < 1e-14
    assert np.linalg.norm(geo.log(worn, worn)) < 1e-14
    Xi = 0.1 * geo.project(W, rng.standard_normal((30, 4)))
    assert geo.orthonormality_error(geo.exp(worn, Xi)) < 20 * EPS


def test_exp_refuses_vectors_that_are_not_tangent():
    W = np.eye(4)[:, :2]
    with pytest.raises(InvalidInput, match=r"tangent.*project\(W, Xi\)"):
        geo.exp(W, np.ones((4, 2)))
