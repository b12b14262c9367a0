"""Laws of the Grassmannian and dense oracles for `grassia.geometry`, on NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grassia import geometry as geo
from grassia.errors import InvalidInput

EPS = np.finfo(np.float64).eps

laws = settings(max_examples=60, deadline=None)


@st.composite
def shapes(draw, max_d=12):
    d = draw(st.integers(1, max_d))
    return d, draw(st.integers(1, d))


seeds = st.integers(0, 2**32 - 1)


def generator(seed):
    return np.random.default_rng(seed)


def rotation(k, rng):
    return geo.random_point(k, k, rng)


def point_at_angles(angles, rng, d):
    """Two points of Gr(d, k) with the given principal angles, in random bases (2k <= d)."""
    k = len(angles)
    frame = rotation(d, rng)
    W, N = frame[:, :k], frame[:, k : 2 * k]
    V = W * np.cos(angles) + N * np.sin(angles)
    return W @ rotation(k, rng), V @ rotation(k, rng)


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


# --- corner dimensions and refused arguments ------------------------------------------------------


@pytest.mark.parametrize(("d", "k"), [(1, 1), (5, 5), (5, 1)])
def test_every_function_works_in_the_corner_dimensions(d, k):
    rng = generator(20)
    W, V = geo.random_point(d, k, rng), geo.random_point(d, k, rng)
    Xi = geo.log(W, V)
    assert Xi.shape == (d, k)
    assert geo.geodesic_distance(geo.exp(W, Xi), V) < 1e-14
    if k == d:
        assert np.linalg.norm(Xi) < 1e-14
        assert geo.geodesic_distance(W, V) < 1e-14
        assert np.linalg.norm(geo.project(W, V)) < 1e-14
        assert geo.orthonormalize(V, against=W).shape == (d, 0)
        np.testing.assert_allclose(geo.align(W, V), V, atol=1e-14)


PAIRED = [
    geo.project,
    geo.riemannian_gradient,
    geo.log,
    geo.exp,
    geo.principal_angles,
    geo.geodesic_distance,
    geo.chordal_distance,
    geo.projection_distance,
    geo.procrustes,
    geo.align,
    geo.ritz,
]


@pytest.mark.parametrize("function", PAIRED)
def test_arguments_of_different_height_are_refused(function):
    with pytest.raises(InvalidInput, match=r"got \(5, 2\) and \(4, 2\)"):
        function(np.eye(4)[:, :2], np.eye(5)[:, :2])


@pytest.mark.parametrize("function", [f for f in PAIRED if f not in (geo.project, geo.principal_angles)])
def test_arguments_of_different_width_are_refused_where_they_must_agree(function):
    with pytest.raises(InvalidInput, match=r"got \(4, 3\) and \(4, 2\)"):
        function(np.eye(4)[:, :2], np.eye(4)[:, :3])


@pytest.mark.parametrize("function", PAIRED)
def test_arguments_of_different_dtype_are_refused(function):
    with pytest.raises(InvalidInput, match="one dtype"):
        function(np.eye(4)[:, :2], np.eye(4, dtype=np.float32)[:, :2])


@pytest.mark.parametrize("function", [f for f in PAIRED if f not in (geo.project, geo.riemannian_gradient)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_decompositions_refuse_entries_that_are_not_finite(function, bad):
    W, V = np.eye(4)[:, :2], np.eye(4)[:, :2]
    V[3, 1] = bad
    with pytest.raises(InvalidInput, match="finite"):
        function(W, V)


@pytest.mark.parametrize(
    "call",
    [
        lambda: geo.polar(np.ones((10, 12))),
        lambda: geo.random_point(10, 12, generator(0)),
        lambda: geo.principal_angles(np.ones((10, 12)), np.ones((10, 1))),
        lambda: geo.principal_angles(np.ones((10, 1)), np.ones((10, 12))),
        lambda: geo.orthonormalize(np.ones((10, 1)), against=np.ones((10, 12))),
        lambda: geo.orthonormality_error(np.ones((10, 12))),
    ],
)
def test_more_columns_than_rows_are_refused_with_both_numbers(call):
    with pytest.raises(InvalidInput, match=r"^`k` must satisfy 1 <= k <= d; got k=12, d=10\.$"):
        call()


def test_vectors_lists_integers_and_seeds_are_refused():
    with pytest.raises(InvalidInput, match="matrix"):
        geo.polar(np.ones(3))
    with pytest.raises(InvalidInput, match="array library"):
        geo.polar([[1.0], [0.0]])
    with pytest.raises(InvalidInput, match="float32 or float64"):
        geo.polar(np.eye(3, dtype=np.int64))
    with pytest.raises(InvalidInput, match=r"default_rng"):
        geo.random_point(3, 1, 0)
