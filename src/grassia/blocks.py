"""Tall, thin matrices: orthonormal blocks beside a basis that grows, and norms."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.blas import dtrsm

from grassia import geometry
from grassia.messages import Array

__all__ = ["DROP", "new_block", "spectral_norm"]

# Of a new block a direction is kept down to this part of its length: below is nothing but rounding.
DROP = 1e-14


def new_block(X: Array, basis: Array, overlap: Array | None = None, tol: float | None = DROP) -> Array:
    """An orthonormal basis of what `X` has outside span(basis), as `geometry.orthonormalize` gives it.

    The ordinary case, a block that is far from dependent, is done here by projections and Cholesky
    decompositions of its Gram matrix, each time what the time before has left of either. `overlap` is
    `basis' X`, where that is known, and `tol` that of `orthonormalize`.
    """
    given, size = X, float(np.linalg.norm(X))
    # Transposed throughout: a basis that grows by columns lies in memory column by column.
    rows, along = X.T, basis.T
    for _ in range(3):
        rows = rows - (along @ X if overlap is None else overlap).T @ along
        overlap = None
        gram = rows @ rows.T
        try:
            lower = cholesky(gram, lower=True, check_finite=False)
        except LinAlgError:
            break
        pivots = np.diagonal(lower)
        if not pivots.min() > 1e-5 * max(size, float(pivots.max())):
            break
        X = dtrsm(1.0, lower, rows.T, side=1, lower=1, trans_a=1)
        rows = X.T
        if np.linalg.norm(gram - np.eye(len(gram))) < 1e-7:  # it was nearly so before: now it is
            return np.ascontiguousarray(X)
        size = 1.0
    return np.asarray(geometry.orthonormalize(given, against=basis, tol=tol))


def spectral_norm(X: Array) -> float:
    """Largest singular value of a thin matrix; its Gram matrix is far cheaper than an SVD and serves."""
    peak = float(np.max(np.abs(X), initial=0.0))
    if peak == 0.0:
        return 0.0
    X = X / peak
    return peak * math.sqrt(max(0.0, float(np.linalg.eigvalsh(X.T @ X)[-1])))
