"""Tangent vectors: projection, gradient, logarithm and exponential."""

from __future__ import annotations

import math
from typing import Any

from grassia.errors import InvalidInput
from grassia.geometry.arguments import CUT_LOCUS_ULPS, check_pair, finite_gram, gram
from grassia.geometry.points import polar

Array = Any


def project(W: Array, G: Array) -> Array:
    """Tangent projection (I - W W^T) G.

    Parameters
    ----------
    W : array, shape (d, k)
        Orthonormal base point.
    G : array, shape (d, m)
        Matrix to project; m = k for a tangent vector.

    Returns
    -------
    array, shape (d, m)

    Notes
    -----
    Cost: 4 d k m operations. One pass: what is left of `W` in the result is of the order of
    eps ||G||, which matters only where ||G|| is far larger than the result.

    Examples
    --------
    >>> import numpy as np
    >>> project(np.array([[1.0], [0.0]]), np.array([[5.0], [7.0]]))
    array([[0.],
           [7.]])
    """
    check_pair("W", W, "G", G, same_columns=False)
    return G - W @ gram(W, G)


def riemannian_gradient(W: Array, AW: Array) -> Array:
    """Gradient -2 (I - W W^T) A W of the cost -trace(W^T A W), from the product `AW`.

    Parameters
    ----------
    W : array, shape (d, k)
        Orthonormal base point.
    AW : array, shape (d, k)
        Product of the symmetric matrix A with `W`.

    Returns
    -------
    array, shape (d, k)
        Tangent vector at `W`; zero exactly when span(W) is invariant under A.

    Notes
    -----
    Cost: 4 d k^2 operations.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 1.0], [1.0, 2.0]])
    >>> W = np.array([[1.0], [0.0]])
    >>> riemannian_gradient(W, A @ W)
    array([[-0.],
           [-2.]])
    """
    check_pair("W", W, "AW", AW)
    return -2.0 * (AW - W @ gram(W, AW))


def log(W: Array, V: Array) -> Array:
    """Grassmann logarithm: the tangent vector at `W` whose geodesic reaches span(V) at time one.

    Parameters
    ----------
    W, V : array, shape (d, k)
        Orthonormal base point and target.

    Returns
    -------
    array, shape (d, k)
        R arctan(S) T^T for the thin SVD R S T^T of V (W^T V)^{-1} - W. Its Frobenius norm is
        the geodesic distance; it does not depend on which basis of span(V) is given.

    Raises
    ------
    InvalidInput
        At the cut locus: an angle is pi/2 to working precision and the geodesic is not unique.

    Notes
    -----
    Cost: 10 d k^2 operations and a k x k SVD. Nothing is inverted and no thin d x k SVD is taken:
    with W^T V = P cos(t) Z^T the logarithm is (I - W W^T) V Z diag(t / sin t) P^T. As a function
    of cos t the factor t / sin t is smooth up to t = 0, so it does no harm that singular vectors
    of nearly equal cosines are arbitrary. The error is that of the k x k SVD, some tens of eps
    with LAPACK, divided at worst by the smallest cosine.

    Examples
    --------
    >>> import numpy as np
    >>> W, V = np.array([[1.0], [0.0]]), np.array([[1.0], [1.0]]) / np.sqrt(2.0)
    >>> log(W, V) / np.pi
    array([[0.  ],
           [0.25]])
    """
    xp, eps = check_pair("W", W, "V", V)
    C = finite_gram(xp, "W", W, "V", V)
    P, cosines, Zt = xp.linalg.svd(C, full_matrices=False)
    smallest = float(cosines[-1])
    if smallest <= CUT_LOCUS_ULPS * eps:
        raise InvalidInput(
            "`V` must be off the cut locus of `W` (all principal angles below pi/2); "
            f"the smallest cosine is {smallest:.1e}. Go through a point between the two."
        )
    Y = V - W @ C
    Y = (Y - W @ (W.T @ Y)) @ Zt.T
    sines = xp.linalg.vector_norm(Y, axis=0)
    one = xp.ones_like(sines)
    safe = xp.where(sines > 0, sines, one)
    stretch = xp.where(sines > 0, xp.atan2(sines, cosines) / safe, one)
    return (Y * stretch) @ P.T


def exp(W: Array, Xi: Array) -> Array:
    """Grassmann exponential: the point reached from `W` along the tangent vector `Xi`.

    Parameters
    ----------
    W : array, shape (d, k)
        Orthonormal base point.
    Xi : array, shape (d, k)
        Tangent vector at `W`, W^T Xi = 0.

    Returns
    -------
    array, shape (d, k)
        Orthonormal, in the basis carried along the geodesic from `W`.

    Raises
    ------
    InvalidInput
        If `Xi` is clearly not tangent, or holds NaN or infinity.

    Notes
    -----
    Cost: a thin SVD of d x k, 10 d k^2 operations and one `polar`. `log` undoes it only while
    all singular values of `Xi` are below pi/2.

    Examples
    --------
    >>> import numpy as np
    >>> W, Xi = np.array([[1.0], [0.0]]), np.array([[0.0], [np.pi / 6.0]])
    >>> exp(W, Xi).round(3)
    array([[0.866],
           [0.5  ]])
    """
    xp, eps = check_pair("W", W, "Xi", Xi)
    along = float(xp.linalg.matrix_norm(finite_gram(xp, "W", W, "Xi", Xi)))
    size = float(xp.linalg.matrix_norm(Xi))
    # Differences of points carry errors of eps in absolute terms, hence the one next to the size.
    if along > math.sqrt(eps) * max(1.0, size):
        raise InvalidInput(
            f"`Xi` must be tangent at `W` (W^T Xi = 0); got ||W^T Xi||={along:.1e} "
            f"for ||Xi||={size:.1e}. Use `project(W, Xi)` first."
        )
    U, angles, Zt = xp.linalg.svd(Xi, full_matrices=False)
    moved = (W @ Zt.T) * xp.cos(angles) + U * xp.sin(angles)
    return polar(moved @ Zt)
