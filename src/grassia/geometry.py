"""Geometry of the Grassmannian Gr(d, k): the k-dimensional subspaces of R^d.

A point is held as an orthonormal d x k matrix whose columns span the subspace. Two matrices that
differ by a k x k rotation from the right are the same point; every distance here is blind to that
rotation, every tangent vector turns with it.

All functions are pure, and all of them take NumPy arrays, torch tensors or any other array with
the array API standard's operations and its ``linalg`` extension. Results stay in the namespace,
on the device and in the dtype (float32 or float64) of the arguments. Arguments called `W` and `V`
are taken to be orthonormal without a check, since the check would cost as much as the work;
`orthonormality_error` measures it and `polar` repairs it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from grassia.errors import InvalidInput

Array = Any

__all__ = [
    "align",
    "chordal_distance",
    "exp",
    "geodesic_distance",
    "log",
    "orthonormality_error",
    "orthonormalize",
    "polar",
    "principal_angles",
    "procrustes",
    "project",
    "projection_distance",
    "random_point",
    "riemannian_gradient",
    "ritz",
]

# A cosine below this many units of rounding cannot be told from zero, so neither can its sign.
_CUT_LOCUS_ULPS = 64.0


# --- argument checks ------------------------------------------------------------------------------


def _namespace(*arrays: Array) -> Any:
    try:
        return array_namespace(*arrays)
    except TypeError as error:
        kinds = ", ".join(type(a).__name__ for a in arrays)
        raise InvalidInput(
            f"arguments must be arrays of one array library; got {kinds}. "
            "Convert them first, for example with `numpy.asarray`."
        ) from error


@lru_cache(maxsize=32)
def _precision(xp: Any, dtype: Any) -> tuple[float, float]:
    """Return (unit roundoff spacing, smallest normal number) of an accepted dtype."""
    if dtype not in (xp.float32, xp.float64):
        raise InvalidInput(
            f"arrays must be float32 or float64; got {dtype}. Convert them with `astype` first."
        )
    info = xp.finfo(dtype)
    return float(info.eps), float(info.smallest_normal)


def _check_matrix(name: str, X: Array) -> tuple[int, int]:
    if X.ndim != 2:
        raise InvalidInput(
            f"`{name}` must be a matrix (2 axes); got shape {tuple(X.shape)}. "
            "Write a single vector as one column."
        )
    d, k = X.shape
    return d, k


def _check_dims(d: int, k: int) -> None:
    if not 1 <= k <= d:
        raise InvalidInput(f"`k` must satisfy 1 <= k <= d; got k={k}, d={d}.")


def _check_point(name: str, W: Array) -> tuple[int, int]:
    d, k = _check_matrix(name, W)
    _check_dims(d, k)
    return d, k


def _check_pair(
    w_name: str, W: Array, v_name: str, V: Array, *, same_columns: bool = True
) -> tuple[Any, float]:
    """Check the base `W` and a companion `V`; return the namespace and eps."""
    xp = _namespace(W, V)
    d, k = _check_point(w_name, W)
    rows, columns = _check_matrix(v_name, V)
    if rows != d or (same_columns and columns != k):
        rule = "the shape" if same_columns else "the number of rows"
        raise InvalidInput(
            f"`{v_name}` must have {rule} of `{w_name}`; got {tuple(V.shape)} and {tuple(W.shape)}."
        )
    if W.dtype != V.dtype:
        raise InvalidInput(
            f"`{w_name}` and `{v_name}` must have one dtype; got {W.dtype} and {V.dtype}. "
            "Convert one of them with `astype`."
        )
    return xp, _precision(xp, W.dtype)[0]


def _not_finite(names: str) -> InvalidInput:
    return InvalidInput(
        f"{names} must hold finite numbers only; got NaN, infinity or entries whose products "
        "overflow. Look at the step before this one: it diverged or divided by zero."
    )


def _gram(W: Array, V: Array) -> Array:
    # NumPy would warn when the product overflows; callers look at the result and say more.
    with np.errstate(over="ignore", invalid="ignore"):
        return W.T @ V


def _is_finite(xp: Any, M: Array) -> bool:
    # A sum is finite only if every term is, and it is one reduction rather than two.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(xp.sum(M)))


def _finite_gram(xp: Any, w_name: str, W: Array, v_name: str, V: Array) -> Array:
    """Return W^T V; a NaN or infinity anywhere in W or V always reaches it (0 * inf is NaN)."""
    C = _gram(W, V)
    if not _is_finite(xp, C):
        raise _not_finite(f"`{w_name}` and `{v_name}`")
    return C


# --- orthonormal representatives ------------------------------------------------------------------


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
    xp = _namespace(X)
    _check_point("X", X)
    eps, tiny = _precision(xp, X.dtype)
    G = _gram(X, X)
    if _is_finite(xp, G):
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
            return _newton_schulz(X @ root)
    return _polar_by_svd(xp, X, eps)


def _newton_schulz(Q: Array) -> Array:
    """One step Q (3 I - Q^T Q) / 2 towards the polar factor of a nearly orthonormal Q."""
    return 1.5 * Q - Q @ (0.5 * (Q.T @ Q))


def _polar_by_svd(xp: Any, X: Array, eps: float) -> Array:
    d, k = X.shape
    scale = float(xp.max(xp.abs(X)))
    if not math.isfinite(scale):
        raise _not_finite("`X`")
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
    return _newton_schulz(U @ Vt)


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
        xp = _namespace(X)
        eps = _precision(xp, X.dtype)[0]
        p = 0
    else:
        xp = _namespace(X, against)
        p = _check_matrix("against", against)[1]
        if p > 0:
            eps = _check_pair("against", against, "X", X, same_columns=False)[1]
        else:
            eps = _precision(xp, X.dtype)[0]
    d, m = _check_matrix("X", X)
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
        raise _not_finite("`X`")
    Y = X / xp.where(peaks > 0, peaks, xp.ones_like(peaks))
    lengths = xp.linalg.vector_norm(Y, axis=0)
    Y = Y / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    if p > 0:
        Y = _project_twice(against, Y)
    U, values, _ = xp.linalg.svd(Y, full_matrices=False)
    r = min(int(xp.sum(xp.astype(values > tol, xp.int64))), d - p)
    Q = U[:, :r]
    if p > 0 and r > 0:
        for _ in range(2):
            Q = xp.linalg.qr(Q - against @ _gram(against, Q)).Q
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
    _check_dims(d, k)
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput(
            f"`rng` must be a numpy.random.Generator; got {type(rng).__name__}. "
            "Make one with `numpy.random.default_rng(seed)`."
        )
    Q, R = np.linalg.qr(rng.standard_normal((d, k)))
    # Householder QR fixes the signs by its own rule; the diagonal of R undoes that bias.
    Q *= np.where(np.diagonal(R) < 0.0, -1.0, 1.0)
    if like is None:
        return polar(Q)
    xp = _namespace(like)
    _precision(xp, like.dtype)
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
    xp = _namespace(W)
    _, k = _check_point("W", W)
    _precision(xp, W.dtype)
    defect = _gram(W, W) - xp.eye(k, dtype=W.dtype, device=device(W))
    return float(xp.linalg.matrix_norm(defect))


# --- tangent vectors ------------------------------------------------------------------------------


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
    _check_pair("W", W, "G", G, same_columns=False)
    return G - W @ _gram(W, G)


def _project_twice(W: Array, G: Array) -> Array:
    # The second pass removes what rounding, and the defect of W itself, left along W.
    G = G - W @ _gram(W, G)
    return G - W @ (W.T @ G)


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
    _check_pair("W", W, "AW", AW)
    return -2.0 * (AW - W @ _gram(W, AW))


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
    xp, eps = _check_pair("W", W, "V", V)
    C = _finite_gram(xp, "W", W, "V", V)
    P, cosines, Zt = xp.linalg.svd(C, full_matrices=False)
    smallest = float(cosines[-1])
    if smallest <= _CUT_LOCUS_ULPS * eps:
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
    xp, eps = _check_pair("W", W, "Xi", Xi)
    along = float(xp.linalg.matrix_norm(_finite_gram(xp, "W", W, "Xi", Xi)))
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


# --- angles and distances -------------------------------------------------------------------------


def _sine_part(xp: Any, W: Array, V: Array) -> tuple[Array, Array]:
    """Return W^T V and (I - W W^T) V, whose singular values are the cosines and the sines."""
    C = _finite_gram(xp, "W", W, "V", V)
    Y = V - W @ C
    return C, Y - W @ (W.T @ Y)


def principal_angles(W: Array, V: Array) -> Array:
    """Principal angles between span(W) and span(V), ascending, in [0, pi/2].

    Parameters
    ----------
    W : array, shape (d, k)
        Orthonormal matrix.
    V : array, shape (d, m)
        Orthonormal matrix; m may differ from k.

    Returns
    -------
    array, shape (min(k, m),)

    Notes
    -----
    Cost: 10 d k m operations and the singular values of a d x min(k, m) matrix. Cosines alone
    lose half of the digits of small angles and sines alone those of angles near pi/2; here each
    angle is the arctangent of both. Its absolute error is a few eps, as little as the rounding
    of `W` and `V` themselves allows.

    Examples
    --------
    >>> import numpy as np
    >>> W, V = np.eye(3)[:, :1], np.array([[1.0], [1e-15], [0.0]])
    >>> principal_angles(W, V)
    array([1.e-15])
    """
    xp, _ = _check_pair("W", W, "V", V, same_columns=False)
    _check_point("V", V)
    # The residual of the smaller subspace has exactly the wanted sines and no spurious ones.
    if V.shape[1] > W.shape[1]:
        W, V = V, W
    C, Y = _sine_part(xp, W, V)
    cosines = xp.linalg.svdvals(C)
    sines = xp.flip(xp.linalg.svdvals(Y))
    return xp.atan2(sines, cosines)


def geodesic_distance(W: Array, V: Array) -> float:
    """Length of the shortest geodesic, the 2-norm of the principal angles.

    Parameters
    ----------
    W, V : array, shape (d, k)
        Orthonormal matrices.

    Returns
    -------
    float
        Between 0 and sqrt(k) pi/2.

    Notes
    -----
    Cost: that of `principal_angles`.

    Examples
    --------
    >>> import numpy as np
    >>> geodesic_distance(np.eye(2)[:, :1], np.eye(2)[:, 1:]) == np.pi / 2
    True
    """
    xp, _ = _check_pair("W", W, "V", V)
    return float(xp.linalg.vector_norm(principal_angles(W, V)))


def chordal_distance(W: Array, V: Array) -> float:
    """Frobenius norm of the sines of the principal angles.

    Parameters
    ----------
    W, V : array, shape (d, k)
        Orthonormal matrices.

    Returns
    -------
    float
        ||W W^T - V V^T||_F / sqrt(2), between 0 and sqrt(k).

    Notes
    -----
    Cost: 8 d k^2 operations, no decomposition: it is the norm of (I - W W^T) V.

    Examples
    --------
    >>> import numpy as np
    >>> chordal_distance(np.eye(3)[:, :1], np.eye(3)[:, 1:2])
    1.0
    """
    xp, _ = _check_pair("W", W, "V", V)
    _, Y = _sine_part(xp, W, V)
    return min(float(xp.linalg.matrix_norm(Y)), math.sqrt(W.shape[1]))


def projection_distance(W: Array, V: Array) -> float:
    """Sine of the largest principal angle.

    Parameters
    ----------
    W, V : array, shape (d, k)
        Orthonormal matrices.

    Returns
    -------
    float
        The spectral norm of W W^T - V V^T, between 0 and 1.

    Notes
    -----
    Cost: 8 d k^2 operations and the singular values of a d x k matrix. Flat near one: use
    `geodesic_distance` to tell nearly orthogonal subspaces apart.

    Examples
    --------
    >>> import numpy as np
    >>> projection_distance(np.eye(3)[:, :2], np.eye(3)[:, 1:])
    1.0
    """
    xp, _ = _check_pair("W", W, "V", V)
    _, Y = _sine_part(xp, W, V)
    return min(float(xp.linalg.svdvals(Y)[0]), 1.0)


# --- bases of one subspace ------------------------------------------------------------------------


def procrustes(W: Array, V: Array) -> Array:
    """Orthogonal k x k matrix Q that minimises ||W Q - V||_F.

    Parameters
    ----------
    W, V : array, shape (d, k)
        Matrices of one shape; they need not be orthonormal.

    Returns
    -------
    array, shape (k, k)
        Orthogonal; reflections are allowed.

    Notes
    -----
    Cost: 2 d k^2 operations and a k x k SVD. If W^T V is singular (for points: an angle of pi/2)
    the minimiser is not unique and one of them is returned.

    Examples
    --------
    >>> import numpy as np
    >>> procrustes(np.eye(3)[:, :1], -np.eye(3)[:, :1])
    array([[-1.]])
    """
    xp, _ = _check_pair("W", W, "V", V)
    P, _, Zt = xp.linalg.svd(_finite_gram(xp, "W", W, "V", V), full_matrices=False)
    return P @ Zt


def align(W: Array, V: Array) -> Array:
    """The basis of span(W) that is nearest to `V`: W @ procrustes(W, V).

    Parameters
    ----------
    W, V : array, shape (d, k)
        Matrices of one shape.

    Returns
    -------
    array, shape (d, k)

    Notes
    -----
    Cost: that of `procrustes` and 2 d k^2 operations. Errors of orthonormality in `W` stay.

    Examples
    --------
    >>> import numpy as np
    >>> W = np.eye(3)[:, :2]
    >>> bool(np.allclose(align(W[:, ::-1], W), W))
    True
    """
    return W @ procrustes(W, V)


def ritz(W: Array, AW: Array) -> tuple[Array, Array]:
    """Rayleigh-Ritz: eigenpairs of the symmetric part of W^T A W.

    Parameters
    ----------
    W : array, shape (d, k)
        Orthonormal basis of the trial space.
    AW : array, shape (d, k)
        Product of the symmetric matrix A with `W`.

    Returns
    -------
    values : array, shape (k,)
        Ritz values, descending.
    rotation : array, shape (k, k)
        Orthogonal; the Ritz vectors are the columns of W @ rotation.

    Notes
    -----
    Cost: 2 d k^2 operations and a k x k eigendecomposition. Averaging with the transpose keeps
    an `AW` that is only approximately A W from bringing in complex values.

    Examples
    --------
    >>> import numpy as np
    >>> values, rotation = ritz(np.eye(2), np.diag([1.0, 4.0]))
    >>> values
    array([4., 1.])
    """
    xp, _ = _check_pair("W", W, "AW", AW)
    H = _finite_gram(xp, "W", W, "AW", AW)
    values, vectors = xp.linalg.eigh(0.5 * (H + H.T))
    return xp.flip(values), xp.flip(vectors, axis=1)
