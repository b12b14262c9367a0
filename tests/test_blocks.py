"""Blocks beside a basis, and norms of thin matrices, against QR and SVD."""

from __future__ import annotations

import numpy as np
import pytest

from grassia import geometry
from grassia.blocks import new_block, spectral_norm

EPS = float(np.finfo(np.float64).eps)


def basis_and_block(seed, d=50, p=12, b=4):
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.standard_normal((d, p)))[0], rng.standard_normal((d, b))


def check_block(found, X, basis):
    """Orthonormal, outside of the basis, and of the same span as what is outside."""
    both = np.hstack([basis, found])
    np.testing.assert_allclose(both.T @ both, np.eye(both.shape[1]), atol=20 * EPS)
    left = X - basis @ (basis.T @ X)
    np.testing.assert_allclose(left - found @ (found.T @ left), 0.0, atol=1e-12 * np.linalg.norm(X))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("p", [0, 1, 12, 46])
def test_a_block_is_what_lies_outside_of_the_basis(p, order):
    basis, X = basis_and_block(p, p=p)
    found = new_block(np.asarray(X, order=order), np.asarray(basis, order=order))
    assert found.shape == X.shape
    check_block(found, X, basis)


def test_a_known_overlap_changes_no_block():
    basis, X = basis_and_block(3)
    np.testing.assert_allclose(new_block(X, basis, basis.T @ X), new_block(X, basis), atol=1e-13)


@pytest.mark.parametrize("near", [1e-3, 1e-7, 1e-11])
def test_a_block_almost_inside_of_the_basis_keeps_its_direction(near):
    basis, X = basis_and_block(5)
    inside = basis[:, :4] + near * X
    found = new_block(inside, basis)
    both = np.hstack([basis, found])
    np.testing.assert_allclose(both.T @ both, np.eye(16), atol=20 * EPS)
    expected = geometry.orthonormalize(X, against=basis)
    assert geometry.projection_distance(found, expected) < 100 * EPS / near


def test_dependent_columns_are_dropped_and_an_exhausted_space_gives_none():
    basis, X = basis_and_block(6)
    check_block(new_block(np.hstack([X, X[:, :2] - X[:, 2:]]), basis), X, basis)
    assert new_block(np.hstack([X, X]), basis).shape[1] == 4
    assert new_block(basis[:, :3] * 7.0, basis).shape[1] == 0
    assert new_block(X[:12], np.eye(12)).shape[1] == 0


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_the_norm_is_the_largest_singular_value(size):
    X = np.random.default_rng(0).standard_normal((50, 4))
    np.testing.assert_allclose(spectral_norm(size * X), size * np.linalg.norm(X, 2), rtol=1e-14)
    assert spectral_norm(np.zeros((5, 2))) == spectral_norm(np.zeros((5, 0))) == 0.0
