"""All of `grassia.geometry` at once: corner dimensions, and arguments that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from grassia import geometry as geo
from grassia.errors import InvalidInput
from random_subspaces import generator


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
