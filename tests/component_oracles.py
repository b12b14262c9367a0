"""What components must give, computed from dense arrays; rows to compute it from."""

from __future__ import annotations

import numpy as np

EPS32 = float(np.finfo(np.float32).eps)


def covariance(X, mean=None):
    X = np.asarray(X, dtype=np.float64)
    D = X - (X.mean(axis=0) if mean is None else mean)
    return D.T @ D / len(X)


def second_moment(X):
    X = np.asarray(X, dtype=np.float64)
    return X.T @ X / len(X)


def dense(component):
    return component.apply(np.eye(component.n_features))


def close(found, expected, rtol=1e-12):
    scale = max(float(np.abs(expected).max()), 1e-300)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * scale)


def rows(rng, m=37, d=6):
    return rng.standard_normal((m, d)) * np.arange(1, d + 1) + np.arange(d)


def norm(A):
    return float(np.linalg.norm(A, 2))
