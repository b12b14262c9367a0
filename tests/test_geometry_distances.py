"""Angles and distances of subspaces, and bases of one, against laws and dense oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from grassia import geometry as geo
from random_subspaces import generator, laws, point_at_angles, rotation, seeds, shapes

# --- angles and distances -------------------------------------------------------------------------


@laws
@given(st.integers(1, 10), st.data(), seeds)
def test_principal_angles_equal_scipy_for_any_two_dimensions(d, data, seed):
    k, m = data.draw(st.integers(1, d)), data.draw(st.integers(1, d))
    rng = generator(seed)
    W, V = geo.random_point(d, k, rng), geo.random_point(d, m, rng)
    angles = geo.principal_angles(W, V)
    assert angles.shape == (min(k, m),)
    # SciPy may read a small angle from its cosine when others are large: eight digits only.
    expected = scipy.linalg.subspace_angles(W, V)[::-1]
    np.testing.assert_allclose(angles, expected, atol=1e-7)
    inner = (angles > 0.01) & (angles < 1.56)
    np.testing.assert_allclose(angles[inner], expected[inner], atol=1e-12)
    np.testing.assert_allclose(angles, geo.principal_angles(V, W), atol=2e-14)


@laws
@given(st.lists(st.floats(0.0, math.pi / 2), min_size=1, max_size=5), st.integers(0, 4), seeds)
def test_principal_angles_return_the_angles_a_pair_was_built_with(angles, extra, seed):
    W, V = point_at_angles(np.array(angles), generator(seed), 2 * len(angles) + extra)
    np.testing.assert_allclose(geo.principal_angles(W, V), np.sort(angles), atol=1e-14)


@laws
@given(st.lists(st.floats(0.0, math.pi / 2), min_size=1, max_size=4), st.integers(0, 3), seeds)
def test_directions_orthogonal_to_both_do_not_change_the_angles(angles, extra, seed):
    # Angles live in the first 2k coordinates, the extra directions are the remaining axes.
    W, V = point_at_angles(np.array(angles), generator(seed), 2 * len(angles))
    W, V = (np.pad(M, ((0, extra), (0, 0))) for M in (W, V))
    larger = np.concatenate([V, np.eye(len(V))[:, len(V) - extra :]], axis=1)
    np.testing.assert_allclose(geo.principal_angles(W, larger), np.sort(angles), atol=1e-13)
    np.testing.assert_allclose(geo.principal_angles(larger, W), np.sort(angles), atol=1e-13)


@pytest.mark.parametrize("angle", [1e-12, 1e-15, 1e-30])
def test_angles_down_to_1e_30_are_read_to_twelve_digits_where_the_data_hold_them(angle):
    # On coordinate axes the representatives have no rounding error that would hide the angle.
    angles = np.array([angle, 0.5])
    W = np.eye(5)[:, :2]
    V = np.zeros((5, 2))
    V[[0, 1], [0, 1]], V[[2, 3], [0, 1]] = np.cos(angles), np.sin(angles)
    np.testing.assert_allclose(geo.principal_angles(W, V), angles, rtol=1e-12)


def test_angles_of_1e_9_are_read_to_six_digits_in_general_position():
    W, V = point_at_angles(np.array([1e-9, 0.4, 1.2]), generator(15), 300)
    np.testing.assert_allclose(geo.principal_angles(W, V), [1e-9, 0.4, 1.2], rtol=1e-6)


def test_the_distance_of_an_angle_from_a_right_angle_is_read_to_six_digits():
    gap = 1e-9
    W, V = point_at_angles(np.array([0.1, math.pi / 2 - gap]), generator(16), 20)
    assert math.pi / 2 - geo.principal_angles(W, V)[-1] == pytest.approx(gap, rel=1e-6)


def test_a_subspace_has_no_angle_to_itself_or_to_one_that_contains_it():
    rng = generator(17)
    W = geo.random_point(100, 6, rng)
    np.testing.assert_allclose(geo.principal_angles(W, W @ rotation(6, rng)), 0.0, atol=1e-14)
    np.testing.assert_allclose(geo.principal_angles(W[:, :2], W), 0.0, atol=1e-14)


@laws
@given(shapes(), seeds)
def test_distances_equal_their_dense_definitions(shape, seed):
    rng = generator(seed)
    W, V = geo.random_point(*shape, rng), geo.random_point(*shape, rng)
    difference = W @ W.T - V @ V.T
    angles = scipy.linalg.subspace_angles(W, V)
    # See above for the tolerance; at k = d all of SciPy's angles may be off by 1e-8.
    assert geo.geodesic_distance(W, V) == pytest.approx(np.linalg.norm(angles), abs=1e-7)
    assert geo.chordal_distance(W, V) == pytest.approx(np.linalg.norm(difference) / math.sqrt(2.0), abs=1e-13)
    assert geo.projection_distance(W, V) == pytest.approx(np.linalg.norm(difference, 2), abs=1e-13)


DISTANCES = [geo.geodesic_distance, geo.chordal_distance, geo.projection_distance]


@pytest.mark.parametrize("distance", DISTANCES)
@laws
@given(shape=shapes(), seed=seeds)
def test_distances_are_symmetric_invariant_and_obey_the_triangle_inequality(distance, shape, seed):
    rng = generator(seed)
    d, k = shape
    W, V, U = (geo.random_point(d, k, rng) for _ in range(3))
    O = rotation(d, rng)  # noqa: E741
    direct = distance(W, V)
    assert isinstance(direct, float)
    assert distance(V, W) == pytest.approx(direct, abs=1e-13)
    assert distance(W @ rotation(k, rng), V @ rotation(k, rng)) == pytest.approx(direct, abs=1e-13)
    assert distance(O @ W, O @ V) == pytest.approx(direct, abs=1e-13)
    assert direct <= distance(W, U) + distance(U, V) + 1e-13


def test_distances_reach_but_do_not_pass_their_largest_values():
    W, V = point_at_angles(np.full(3, math.pi / 2), generator(18), 10)
    assert geo.geodesic_distance(W, V) == pytest.approx(math.sqrt(3.0) * math.pi / 2, rel=1e-14)
    assert math.sqrt(3.0) - 1e-14 < geo.chordal_distance(W, V) <= math.sqrt(3.0)
    assert 1.0 - 1e-14 < geo.projection_distance(W, V) <= 1.0


# --- bases of one subspace ------------------------------------------------------------------------


@laws
@given(shapes(), seeds)
def test_procrustes_equals_scipy_and_beats_random_rotations(shape, seed):
    rng = generator(seed)
    W, V = geo.random_point(*shape, rng), rng.standard_normal(shape)
    Q = geo.procrustes(W, V)
    assert geo.orthonormality_error(Q) < 1e-14
    best = np.linalg.norm(W @ Q - V)
    oracle, _ = scipy.linalg.orthogonal_procrustes(W, V)
    assert best == pytest.approx(np.linalg.norm(W @ oracle - V), abs=1e-12)
    assert best <= np.linalg.norm(W @ rotation(shape[1], rng) - V) + 1e-12


@laws
@given(shapes(), seeds)
def test_align_recovers_a_rotated_basis(shape, seed):
    rng = generator(seed)
    W = geo.random_point(*shape, rng)
    np.testing.assert_allclose(geo.align(W @ rotation(shape[1], rng), W), W, atol=1e-13)


@laws
@given(shapes(), seeds)
def test_ritz_diagonalises_the_restricted_matrix_in_descending_order(shape, seed):
    rng = generator(seed)
    d, k = shape
    W, A = geo.random_point(d, k, rng), rng.standard_normal((d, d))
    A = A + A.T
    values, turn = geo.ritz(W, A @ W)
    assert np.all(np.diff(values) <= 0.0)
    Y = W @ turn
    np.testing.assert_allclose(Y.T @ A @ Y, np.diag(values), atol=1e-12)
    assert geo.orthonormality_error(turn) < 1e-13
    if k == d:
        np.testing.assert_allclose(values, np.linalg.eigvalsh(A)[::-1], atol=1e-12)


def test_ritz_uses_the_symmetric_part_of_an_inexact_product():
    W, AW = np.eye(2), np.array([[1.0, 3.0], [1.0, 1.0]])
    values, _ = geo.ritz(W, AW)
    np.testing.assert_allclose(values, [3.0, -1.0], atol=1e-14)
