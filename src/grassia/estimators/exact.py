"""Whole spectra: every singular value of rows that are few, or have few features, to full precision.

The eigenvalues of a covariance matrix carry an error of about 1e-16 of the largest. Those of the rows
themselves do better by far: the triangular factor of the (centred) rows, merged block by block, has their
singular values to 1e-16 of the largest singular value, that is the eigenvalues' square root.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia.certificate import Certificate, Certifier, certify
from grassia.result import Status

Float = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)

# So many directions after the cut are shown to a certificate: its bounds are rigorous if that is all of them.
_BESIDE = 512


def triangle(blocks: Iterable[tuple[Any, Float | None]], mean: Float | None, V: Float | None = None) -> Float:
    """The triangular factor R of the centred rows times `V`: ``R^T R = Y^T W Y``, ``Y = (X - 1 mean^T) V``.

    Parameters
    ----------
    blocks : iterable of (rows, weights)
        Weights None: one each.
    mean : ndarray (d,), optional
        None: the rows as they are.
    V : ndarray (d, b), optional
        None: the identity.

    Notes ----- Cost: ``2 m b^2`` flops, and ``2 m d b`` with `V`. Sparse blocks are filled in one at a time
    if `V` is None, and multiplied as they are otherwise.

    Examples
    --------
    >>> X = np.arange(12.0).reshape(6, 2) ** 2
    >>> R = triangle([(X[:2], None), (X[2:], None)], X.mean(axis=0))
    >>> np.allclose(R.T @ R, 6 * np.cov(X.T, bias=True))
    True
    """
    shift = None if mean is None or V is None else mean @ V
    R: Float | None = None
    for rows, weights in blocks:
        Y = _turned(rows, mean, V, shift)
        if weights is not None:
            Y = np.sqrt(weights)[:, None] * Y
        width = Y.shape[1]
        for start in range(0, len(Y), 4 * width):  # short and wide pieces cost as little as tall ones
            piece = Y[start : start + 4 * width]
            stack = piece if R is None else np.vstack([R, piece])
            R = np.asarray(np.linalg.qr(stack, mode="r"))
    assert R is not None
    return R


def _turned(rows: Any, mean: Float | None, V: Float | None, shift: Float | None) -> Float:
    if sp.issparse(rows):
        if V is not None:
            Z = np.asarray(rows @ V, dtype=np.float64)
            return Z if shift is None else Z - shift
        rows = rows.toarray()
    X = np.asarray(rows, dtype=np.float64)
    X = X if mean is None else X - mean
    return X if V is None else X @ V


def rank_of(singular: Float, shape: tuple[int, int]) -> int:
    """How many singular values are more than rounding, for rows of this shape.

    >>> rank_of(np.array([1.0, 1e-3, 1e-17]), (10, 3))
    2
    """
    if singular.size == 0 or singular[0] <= 0.0:
        return 0
    return int(np.count_nonzero(singular > singular[0] * max(shape) * EPS))


def completed(vectors: Float, k: int) -> Float:
    """An orthonormal basis with directions added up to k columns: the same for every basis of its span.

    Taken are, one after the other, the parts of the unit vectors outside the span, the longest first.

    >>> abs(completed(np.array([[0.0], [1.0], [0.0]]), 2))
    array([[0., 1.],
           [1., 0.],
           [0., 0.]])
    """
    d, r = vectors.shape
    whole = np.zeros((d, max(k, r)))
    whole[:, :r] = vectors
    left = 1.0 - np.einsum("ij,ij->i", vectors, vectors)
    for j in range(r, k):
        longest = int(np.argmax(left))
        new = -(whole[:, :j] @ whole[longest, :j])
        new[longest] += 1.0
        new -= whole[:, :j] @ (whole[:, :j].T @ new)
        whole[:, j] = new / np.linalg.norm(new)
        left -= whole[:, j] ** 2
    return whole


def certificate_of(
    V: Float,
    singular: Float,
    k: int,
    weight: float,
    noise: tuple[float, float | None],
    tol: float,
    seed: int,
    certifier: Certifier | None = None,
) -> Certificate:
    """A certificate for the first `k` of a whole decomposition; no data is read.

    Parameters
    ----------
    V, singular : ndarray (d, r), (r,)
        Every direction that has variance, and the singular values of the rows along them, descending.
    weight : float
        The eigenvalues are the squares of those over it.
    noise : (float, float or None)
        How far a product with the matrix may be off as one with the data's; and a singular value, where they
        come from the rows. The latter counts where the former does not do: the singular values' gaps are wide
        where the eigenvalues' are lost beside the largest.
    """
    certificate = _certify(V, singular**2 / weight, k, noise[0], tol, seed, certifier)
    if certificate.converged or noise[1] is None:
        return certificate
    root = math.sqrt(weight)
    finer = _certify(V, singular / root, k, noise[1] / root, tol, seed, certifier)
    if finer.sin_theta.value >= certificate.sin_theta.value:
        return certificate
    return replace(
        certificate,
        sin_theta=finer.sin_theta,
        sin_theta_rigorous=finer.sin_theta_rigorous,
        identified=max(finer.identified, certificate.identified),
    )


def _certify(
    V: Float, values: Float, k: int, noise: float, tol: float, seed: int, certifier: Certifier | None
) -> Certificate:
    steps = certify(
        [np.ascontiguousarray(V[:, :k])],
        tol,
        np.random.default_rng(seed),
        total=math.fsum(values),
        positive=True,
        noise=lambda: noise,
        certifier=certifier,
        beside=np.ascontiguousarray(V[:, k : k + _BESIDE]),
    )
    block = next(steps)
    while True:
        try:
            block = steps.send((V * values) @ (V.T @ block))
        except StopIteration as end:
            found: Certificate = end.value.certificate
            return found


def singular_noise(singular: Float, mean: Float | None, weight: float) -> float:
    """How far singular values taken from the rows may be off: some rounding units of the rows' size."""
    offset = 0.0 if mean is None else math.sqrt(weight) * float(np.linalg.norm(mean))
    return 8.0 * EPS * (float(np.linalg.norm(singular)) + offset)


def status_of(certificate: Certificate | None) -> Status:
    """How a whole decomposition ended: it is refused for its gap or for rounding, never for too few steps."""
    if certificate is None or certificate.converged:
        return Status.CONVERGED
    small = certificate.optimistic_gap <= 1e-3 * float(certificate.values[0])
    return Status.GAP_TOO_SMALL if small else Status.PRECISION
