"""Bases of one subspace: the best rotation to another, and Rayleigh-Ritz."""

from __future__ import annotations

from typing import Any

from grassia.geometry.arguments import check_pair, finite_gram

Array = Any


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
    xp, _ = check_pair("W", W, "V", V)
    P, _, Zt = xp.linalg.svd(finite_gram(xp, "W", W, "V", V), full_matrices=False)
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
    xp, _ = check_pair("W", W, "AW", AW)
    H = finite_gram(xp, "W", W, "AW", AW)
    values, vectors = xp.linalg.eigh(0.5 * (H + H.T))
    return xp.flip(values), xp.flip(vectors, axis=1)
