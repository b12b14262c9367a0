"""Orthonormal representatives of points of the Grassmannian."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import device
from scipy.linalg import solve_triangular

from grassia.errors import InvalidInput
from grassia.geometry.arguments import (
    check_dims,
    check_matrix,
    check_pair,
    check_point,
    gram,
    is_finite,
    namespace,
    not_finite,
    precision,
)

Array = Any


def polar(X: Array) -> Array:
    """Orthonormal polar factor X (X^T X)^{-1/2}, the orthonormal matrix nearest to `X`.

    Parameters
    ----------
    X : array, shape (d, k)
        Matrix of full column rank, k <= d.

    Returns
    -------
    array, shape (d, k)
        Orthonormal to a few units of rounding, with the column span of `X`.

    Raises
    ------
    InvalidInput
        If `X` is rank deficient to working precision, or holds NaN or infinity.

    Notes
    -----
    Cost: two thin products, about 4 d k^2 operations, and a k x k eigendecomposition; half as
    much again if `X` is moderately conditioned. Squaring `X` squares its condition number, so an
    `X` whose Gram eigenvalues spread over more than eps^(-1/4) goes through a thin SVD instead,
    which costs several times as much but loses no digits.

    Examples
    --------
    >>> import numpy as np
    >>> polar(np.array([[3.0], [4.0]]))
    array([[0.6],
           [0.8]])
    """
    xp = namespace(X)
    check_point("X", X)
    eps, tiny = precision(xp, X.dtype)
    G = gram(X, X)
    if is_finite(xp, G):
        values, vectors = xp.linalg.eigh(G)
        low, high = float(values[0]), float(values[-1])
        # tiny / eps: below it the Gram matrix has lost digits to gradual underflow.
        if low > eps**0.25 * high and low > tiny / eps:
            root = (vectors / xp.sqrt(values)) @ vectors.T
            if low > 0.5 * high:
                # Only the eigensolver's own errors are left to clean, and the step that does it
                # for Q acts on the k x k root alone: (X root)^T (X root) = root G root.
                return X @ (1.5 * root - root @ (0.5 * (root @ G @ root)))
            # The defect of X root is about eps * high / low; the cleaning step squares it.
            return newton_schulz(X @ root)
    return polar_by_svd(xp, X, eps)


def project_twice(W: Array, G: Array) -> Array:
    # The second pass removes what rounding, and the defect of W itself, left along W.
    G = G - W @ gram(W, G)
    return G - W @ (W.T @ G)


def newton_schulz(Q: Array) -> Array:
    """One step Q (3 I - Q^T Q) / 2 towards the polar factor of a nearly orthonormal Q."""
    return 1.5 * Q - Q @ (0.5 * (Q.T @ Q))


def polar_by_svd(xp: Any, X: Array, eps: float) -> Array:
    d, k = X.shape
    scale = float(xp.max(xp.abs(X)))
    if not math.isfinite(scale):
        raise not_finite("`X`")
    rank_ratio = 0.0
    if scale > 0.0:
        # Entries near the ends of the exponent range end up here too. LAPACK would scale them by
        # itself, other back ends need not.
        U, values, Vt = xp.linalg.svd(X / scale, full_matrices=False)
        rank_ratio = float(values[-1]) / float(values[0])
    if rank_ratio <= d * eps:
        raise InvalidInput(
            f"`X` must have full column rank {k}; its smallest singular value is "
            f"{rank_ratio:.1e} of the largest. "
            "Drop dependent columns, for example with `orthonormalize`."
        )
    return newton_schulz(U @ Vt)


def orthonormalize(X: Array, against: Array | None = None, *, tol: float | None = None) -> Array:
    """Orthonormal basis of what is left of span(X) after projecting out `against`.

    Parameters
    ----------
    X : array, shape (d, m)
        Any matrix; its columns may be dependent, zero, or more than d.
    against : array, shape (d, p), optional
        Orthonormal matrix to be orthogonal to.
    tol : float, optional
        Relative drop tolerance, eps <= tol < 1. Columns of `X` are first brought to unit length,
        so their scales play no part; of the rest, directions with a singular value of at most
        `tol` are dropped. Default eps^(3/4), 1.8e-12 in float64: a direction that is kept has
        about a quarter of its digits or more.

    Returns
    -------
    array, shape (d, r)
        Orthonormal and orthogonal to `against`, with r <= min(m, d - p) columns, maybe none.

    Raises
    ------
    InvalidInput
        If shapes or dtypes differ, `tol` is out of range, or `X` holds NaN or infinity.

    Notes
    -----
    Cost: a thin SVD of d x m, and with `against` two thin QR factorisations and eight products of
    d m p operations. The projection is applied twice before and twice after the basis is chosen:
    a direction that mostly cancelled carries a large relative error along `against`, which one
    pass would leave there.

    Examples
    --------
    >>> import numpy as np
    >>> eye = np.eye(3)
    >>> abs(orthonormalize(eye[:, :2], against=eye[:, :1]))
    array([[0.],
           [1.],
           [0.]])
    """
    if against is None:
        xp = namespace(X)
        eps = precision(xp, X.dtype)[0]
        p = 0
    else:
        xp = namespace(X, against)
        p = check_matrix("against", against)[1]
        if p > 0:
            eps = check_pair("against", against, "X", X, same_columns=False)[1]
        else:
            eps = precision(xp, X.dtype)[0]
    d, m = check_matrix("X", X)
    if tol is None:
        tol = eps**0.75
    elif not eps <= tol < 1.0:
        raise InvalidInput(
            f"`tol` must satisfy eps <= tol < 1; got tol={tol}, eps={eps:.1e}. Leave it out for the default."
        )
    if d == 0 or m == 0:
        return X[:, :0]

    # Largest entries first: the norm of a column of 1e200 would overflow.
    peaks = xp.max(xp.abs(X), axis=0)
    if not bool(xp.all(xp.isfinite(peaks))):
        raise not_finite("`X`")
    Y = X / xp.where(peaks > 0, peaks, xp.ones_like(peaks))
    lengths = xp.linalg.vector_norm(Y, axis=0)
    Y = Y / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    if p > 0:
        Y = project_twice(against, Y)
    U, values, _ = xp.linalg.svd(Y, full_matrices=False)
    r = min(int(xp.sum(xp.astype(values > tol, xp.int64))), d - p)
    Q = U[:, :r]
    if p > 0 and r > 0:
        for _ in range(2):
            Q = xp.linalg.qr(Q - against @ gram(against, Q)).Q
    return Q


def random_point(d: int, k: int, rng: np.random.Generator, like: Array | None = None) -> Array:
    """Uniformly distributed orthonormal d x k matrix.

    Parameters
    ----------
    d, k : int
        Ambient and subspace dimension, 1 <= k <= d.
    rng : numpy.random.Generator
        Source of d * k normal numbers, always drawn in float64.
    like : array, optional
        Array whose namespace, dtype and device the result takes; NumPy float64 without it.

    Returns
    -------
    array, shape (d, k)
        Same seed, same point in every namespace, up to the rounding of its dtype.

    Notes
    -----
    Cost: one thin QR factorisation and one `polar`. The draw is on the host whatever the device
    of `like`, so that a seed means the same everywhere.

    Examples
    --------
    >>> import numpy as np
    >>> random_point(10, 3, np.random.default_rng(0)).shape
    (10, 3)
    """
    check_dims(d, k)
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(
            f"`rng` must be a numpy.random.Generator; got {type(rng).__name__}. "
            "Make one with `numpy.random.default_rng(seed)`."
        )
    X = rng.standard_normal((d, k))
    if d >= 4 * k:  # so far from dependent that its Gram matrix serves, at a fraction of the cost
        Q = solve_triangular(np.linalg.cholesky(X.T @ X), X.T, lower=True, check_finite=False).T
    else:
        Q, R = np.linalg.qr(X)
        # Householder QR fixes the signs by its own rule; the diagonal of R undoes that bias.
        Q *= np.where(np.diagonal(R) < 0.0, -1.0, 1.0)
    if like is None:
        return polar(Q)
    xp = namespace(like)
    precision(xp, like.dtype)
    return polar(xp.asarray(Q, dtype=like.dtype, device=device(like)))


def orthonormality_error(W: Array) -> float:
    """Distance ||W^T W - I||_F of `W` from orthonormality.

    Parameters
    ----------
    W : array, shape (d, k)
        Any matrix with 1 <= k <= d.

    Returns
    -------
    float
        Zero exactly for orthonormal `W`; NaN or infinity if `W` holds such entries.

    Notes
    -----
    Cost: one thin product, 2 d k^2 operations.

    Examples
    --------
    >>> import numpy as np
    >>> orthonormality_error(2.0 * np.eye(3)[:, :1])
    3.0
    """
    xp = namespace(W)
    _, k = check_point("W", W)
    precision(xp, W.dtype)
    defect = gram(W, W) - xp.eye(k, dtype=W.dtype, device=device(W))
    return float(xp.linalg.matrix_norm(defect))
