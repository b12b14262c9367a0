"""Principal angles and the distances made of them."""

from __future__ import annotations

import math
from typing import Any

from grassia.geometry.arguments import check_pair, check_point, finite_gram

Array = Any


def sine_part(xp: Any, W: Array, V: Array) -> tuple[Array, Array]:
    """Return W^T V and (I - W W^T) V, whose singular values are the cosines and the sines."""
    C = finite_gram(xp, "W", W, "V", V)
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
    xp, _ = check_pair("W", W, "V", V, same_columns=False)
    check_point("V", V)
    # The residual of the smaller subspace has exactly the wanted sines and no spurious ones.
    if V.shape[1] > W.shape[1]:
        W, V = V, W
    C, Y = sine_part(xp, W, V)
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
    xp, _ = check_pair("W", W, "V", V)
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
    xp, _ = check_pair("W", W, "V", V)
    _, Y = sine_part(xp, W, V)
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
    xp, _ = check_pair("W", W, "V", V)
    _, Y = sine_part(xp, W, V)
    return min(float(xp.linalg.svdvals(Y)[0]), 1.0)
