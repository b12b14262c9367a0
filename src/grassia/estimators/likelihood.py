"""Probabilistic PCA: the Gaussian model behind a fitted PCA, its covariance, precision and likelihood."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from grassia.estimators.exact import FILLED_NUMBERS


class GaussianModel:
    """Mean, components, variances along them, and one variance for every direction across them.

    Parameters
    ----------
    mean : ndarray (d,)
    components : ndarray (k, d)
        Orthonormal rows.
    along : ndarray (k,)
        The model's variances along the components.
    across : float
        The variance of every other direction.

    Examples
    --------
    >>> model = GaussianModel(np.zeros(3), np.eye(3)[:1], np.array([4.0]), 1.0)
    >>> model.covariance().diagonal()
    array([4., 1., 1.])
    """

    def __init__(
        self, mean: NDArray[Any], components: NDArray[Any], along: NDArray[Any], across: float
    ) -> None:
        self.mean, self.components, self.along, self.across = mean, components, along, across

    def covariance(self) -> NDArray[Any]:
        """The d x d covariance."""
        V = self.components
        cov = (V.T * (self.along - self.across)) @ V
        cov.flat[:: len(cov) + 1] += self.across
        return np.asarray(cov)

    def precision(self) -> NDArray[Any]:
        """The inverse of the covariance, d x d."""
        V = self.components
        along, across = self._invertible()
        precision = (V.T * (1.0 / along - 1.0 / across)) @ V
        precision.flat[:: len(precision) + 1] += 1.0 / across
        return np.asarray(precision)

    def log_likelihood(self, rows: Any) -> NDArray[Any]:
        """Of each row, dense or CSR; no d x d matrix is formed."""
        k, d = self.components.shape
        along, across = self._invertible()
        log_det = float(np.sum(np.log(along, dtype=np.float64))) + (d - k) * math.log(across)
        Z, outside = (self._split_sparse if sp.issparse(rows) else self._split)(rows)
        distance = np.einsum("ij,ij->i", Z, Z / along)
        if d > k:
            distance = distance + np.maximum(outside, 0.0) / across
        return np.asarray(-0.5 * (distance + d * math.log(2.0 * math.pi) + log_det))

    def _split(self, rows: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Coordinates of dense rows along the components, and the squares of what lies across them."""
        D = rows - self.mean
        Z = D @ self.components.T
        R = D - Z @ self.components
        return Z, np.einsum("ij,ij->i", R, R)

    def _split_sparse(self, rows: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The same by algebra; rows for which that cancels are filled in, a few at a time."""
        mean, V = self.mean, self.components
        rows = sp.csr_array(rows, dtype=np.float64)  # the squares of small integers would overflow
        Z = np.asarray(rows @ V.T) - mean @ V.T
        squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        centre = float(np.sum(np.square(mean, dtype=np.float64)))
        outside = squares - 2.0 * (rows @ mean) + centre - np.einsum("ij,ij->i", Z, Z)
        doubtful = np.flatnonzero(outside < 10.0 * math.sqrt(np.finfo(V.dtype).eps) * (squares + centre))
        step = max(1, FILLED_NUMBERS // V.shape[1])
        for start in range(0, len(doubtful), step):
            some = doubtful[start : start + step]
            Z[some], outside[some] = self._split(rows[some].toarray())
        return Z, outside

    def _invertible(self) -> tuple[NDArray[Any], float]:
        """The variances along and across; those that are zero become the rounding of the largest."""
        k, d = self.components.shape
        info = np.finfo(self.along.dtype)
        least = max(float(info.eps) * float(np.max(self.along, initial=0.0)), float(info.tiny))
        across = float(self.across) if d > k else 1.0
        if not across > 0.0 or not np.all(self.along > 0.0):
            warnings.warn(
                "the model has directions of no variance, and its covariance no inverse; they count as if "
                f"they had the rounding of the largest variance, {least:.3g}. Take fewer components.",
                stacklevel=4,
            )
        return np.where(self.along > 0.0, self.along, least), across if across > 0.0 else least
