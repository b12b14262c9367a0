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

from grassia.certificate import Certificate, Certifier
from grassia.certifying import certify
from grassia.result import Status, fix_signs

Float = NDArray[np.float64]
Wanted = int | float | None
EPS = float(np.finfo(np.float64).eps)

# So many directions after the cut are shown to a certificate: its bounds are rigorous if that is all of them.
_BESIDE = 512
# Rows are merged at least so many at a time, and no more than there are columns where those are many.
_SHORTEST = 256
_WIDE = 1024
# So many numbers are filled in at a time where there is no need for more.
FILLED_NUMBERS = 1 << 17


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

    Notes
    -----
    Cost: ``2 m b^2`` flops, and ``2 m d b`` with `V`. Sparse rows are filled in a few times `d` of them at a
    time if `V` is None, and multiplied as they are otherwise.

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
        width = rows.shape[1] if V is None else V.shape[1]
        # Short pieces cost as little as tall ones; of many features they would take too much memory.
        step = max(_SHORTEST, 4 * width) if width <= _WIDE else width
        for start in range(0, rows.shape[0], step):
            piece = _turned(rows[start : start + step], mean, V, shift)
            if weights is not None:
                piece = np.sqrt(weights[start : start + step])[:, None] * piece
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


def squares_across(blocks: Iterable[tuple[Any, Float | None]], mean: Float | None, V: Float) -> float:
    """The sum of squares of what the (centred, weighted) rows have outside the span of `V`.

    It is not the difference of all squares and those along `V`, which has no digits left where next to
    nothing is outside. Sparse rows are filled in a few at a time.

    >>> squares_across([(np.array([[1e9, 1e-3], [2e9, 3e-3]]), None)], None, np.eye(2)[:, :1])
    1e-05
    """
    total, step = 0.0, max(1, FILLED_NUMBERS // V.shape[0])
    for rows, weights in blocks:
        for start in range(0, rows.shape[0], step):
            X = _turned(rows[start : start + step], mean, None, None)
            R = X - (X @ V) @ V.T
            w = np.ones(len(R)) if weights is None else weights[start : start + step]
            total += float(w @ np.einsum("ij,ij->i", R, R))
    return total


def spread(blocks: Iterable[tuple[Any, Float | None]], center: bool) -> float:
    """The largest entry of any row that counts, less the first of those rows (or not): exactly.

    >>> blocks = [(np.full((3, 2), 0.1), None)]
    >>> spread(blocks, center=True), spread(blocks, center=False)
    (0.0, 0.1)
    """
    farthest, first = 0.0, None
    for rows, weights in blocks:
        step = max(1, FILLED_NUMBERS // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            X = _turned(rows[start : start + step], None, None, None)
            X = X if weights is None else X[weights[start : start + step] > 0.0]
            if center and first is None and len(X):
                first = X[0].copy()
            farthest = max(farthest, float(np.max(np.abs(X if first is None else X - first), initial=0.0)))
    return farthest


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


def padded(vectors: Float, values: Float, k: int) -> tuple[Float, Float]:
    """The leading k directions and eigenvalues, with directions of no variance for those that are missing.

    >>> padded(np.array([[0.0], [1.0]]), np.array([3.0]), 2)[1]
    array([3., 0.])
    """
    missing = max(0, k - vectors.shape[1])
    whole = completed(vectors, k) if missing else vectors[:, :k]
    return np.ascontiguousarray(fix_signs(whole)), np.r_[values[:k], np.zeros(missing)]


def number_of(wanted: Wanted, values: Float, limit: int) -> int:
    """How many directions `wanted` means, given all eigenvalues: scikit-learn's rule for a fraction.

    >>> number_of(0.75, np.array([3.0, 1.0, 0.0]), 3), number_of(0.74, np.array([3.0, 1.0, 0.0]), 3)
    (2, 1)
    """
    if wanted is None:
        return limit
    if isinstance(wanted, int):
        return wanted
    total = float(values.sum())
    if not total > 0.0:
        return 1
    return min(int(np.searchsorted(np.cumsum(values / total), wanted, side="right")) + 1, limit)


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
