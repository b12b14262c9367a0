"""Probabilistic PCA: the Gaussian model behind a fitted PCA, its covariance, precision and likelihood."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


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
        V = self.components
        if sp.issparse(rows):
            Z = np.asarray(rows @ V.T) - self.mean @ V.T
            squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel() - 2.0 * (rows @ self.mean)
            outside = squares + self.mean @ self.mean - np.einsum("ij,ij->i", Z, Z)
        else:
            D = rows - self.mean
            Z = D @ V.T
            R = D - Z @ V
            outside = np.einsum("ij,ij->i", R, R)
        distance = np.einsum("ij,ij->i", Z, Z / along)
        if d > k:
            distance = distance + np.maximum(outside, 0.0) / across
        return np.asarray(-0.5 * (distance + d * math.log(2.0 * math.pi) + log_det))

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
