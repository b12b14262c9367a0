"""The exact identities of section 3.1 of the paper, both sides of each.

`F(W) = -trace(W' A W)`; everything is dense and made for checking, not for speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia import geometry
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.theory.statement import Sides


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of `A`, falling, with their vectors, cut after the k-th."""

    values: Array
    vectors: Array
    k: int

    @classmethod
    def of(cls, A: Any, k: int) -> Spectrum:
        matrix = np.asarray(A, dtype=np.float64)
        if not 1 <= k < len(matrix):
            raise InvalidInput(f"`k` must satisfy 1 <= k < d, for an eigengap; got k={k}, d={len(matrix)}.")
        values, vectors = np.linalg.eigh(matrix)
        return cls(values[::-1], vectors[:, ::-1], k)

    @property
    def target(self) -> Array:
        """`W*`, a basis of the leading eigenspace."""
        return np.ascontiguousarray(self.vectors[:, : self.k])

    @property
    def optimum(self) -> float:
        """`F*`, minus the sum of the leading eigenvalues."""
        return -float(self.values[: self.k].sum())

    @property
    def delta(self) -> float:
        return float(self.values[self.k - 1] - self.values[self.k])

    @property
    def nu(self) -> float:
        return float(self.values[0] - self.values[-1])

    @property
    def scale(self) -> float:
        """Size of the objective's terms, against which rounding is measured."""
        return self.k * float(np.abs(self.values).max())


def objective(A: Any, W: Array) -> float:
    """`F(W) = -trace(W' A W)`."""
    return -float(np.sum(W * (np.asarray(A) @ W)))


def gradient(A: Any, W: Array) -> Array:
    """`grad F(W) = -2 (I - WW') A W`."""
    found: Array = geometry.riemannian_gradient(W, np.asarray(A) @ W)
    return found


def objective_gap(A: Any, W: Array) -> float:
    """`F(W) - F*`."""
    return objective(A, W) - Spectrum.of(A, W.shape[1]).optimum


def gradient_energy(A: Any, W: Array, *, commutators: float = 0.5, crossed: float = 1.0) -> Sides:
    """Gradient-energy identity (Lemma 1): a quarter of `||grad F||^2` from blocks of the projector.

    Parameters
    ----------
    A, W : array, shapes (d, d) and (d, k)
        The matrix and a point.
    commutators, crossed : float
        The paper's coefficients of the commutators and of the off-diagonal block.
    """
    spectrum = Spectrum.of(A, W.shape[1])
    k, values = spectrum.k, spectrum.values
    Z = spectrum.vectors.T @ W
    P = Z @ Z.T
    top, low = values[:k], values[k:]
    right = (
        commutators * _square((top[:, None] - top) * P[:k, :k])
        + commutators * _square((low[:, None] - low) * P[k:, k:])
        + crossed * _square((top[:, None] - low) * P[:k, k:])
    )
    left = 0.25 * _square(gradient(A, W))
    return Sides("gradient-energy identity", left, right, float(np.abs(values).max()) ** 2 * k, equal=True)


@dataclass(frozen=True)
class CosineSine:
    """The CS decomposition of `Z = U'W` in Lemma 2: `Z1 = Q1 C R'`, `Z2 = Q2 (S, padded) R'`."""

    Q1: Array
    Q2: Array
    R: Array
    angles: Array  # k of them, rising; the first 2k - d are zero where d - k < k


def cosine_sine(A: Any, W: Array) -> CosineSine:
    """The decomposition of Lemma 2, in both its cases `d - k >= k` and `d - k < k`."""
    from scipy.linalg import cossin

    spectrum = Spectrum.of(A, W.shape[1])
    d, k = W.shape
    Z = spectrum.vectors.T @ W
    completed = np.linalg.qr(Z, mode="complete")[0]
    completed[:, :k] = Z
    (Q1, Q2), angles, (Rt, _) = cossin(completed, p=k, q=k, separate=True)
    if d - k >= k:
        # LAPACK puts the rows without an angle first, the paper last.
        Q2 = np.concatenate([Q2[:, d - 2 * k :], Q2[:, : d - 2 * k]], axis=1)
    else:
        angles = np.concatenate([np.zeros(2 * k - d), angles])
    return CosineSine(Q1, Q2, Rt.T, angles)


def value_gap(A: Any, W: Array, *, lower_sign: float = -1.0, power: float = 2.0) -> Sides:
    """Value-gap identity (Lemma 2): `F(W) - F* = trace((M - Mbar) S^2)`.

    Parameters
    ----------
    A, W : array, shapes (d, d) and (d, k)
        The matrix and a point.
    lower_sign, power : float
        The paper's factor of `Mbar` and its power of `S`.
    """
    spectrum = Spectrum.of(A, W.shape[1])
    d, k = W.shape
    cs = cosine_sine(A, W)
    M = cs.Q1.T @ (spectrum.values[:k, None] * cs.Q1)
    lower = cs.Q2.T @ (spectrum.values[k:, None] * cs.Q2)
    if d - k >= k:
        M_bar = lower[:k, :k]
    else:
        M_bar = spectrum.values[k] * np.eye(k)
        M_bar[2 * k - d :, 2 * k - d :] = lower
    right = float(np.sum(np.diagonal(M + lower_sign * M_bar) * np.sin(cs.angles) ** power))
    return Sides("value-gap identity", objective_gap(A, W), right, spectrum.scale, equal=True)


def shift_invariance(A: Any, W: Array, shift: float, *, projected: float = 1.0) -> Sides:
    """Shift-invariance: the distance between the gradients of `A` and of `A + shift I` is zero.

    `projected` is how much of the part along `W` a gradient has lost: 1 for the paper's Riemannian one, 0 for
    the Euclidean one, which feels a shift.
    """
    products = (np.asarray(A) @ W, (np.asarray(A) + shift * np.eye(len(W))) @ W)
    plain, moved = (-2.0 * (AW - projected * (W @ (W.T @ AW))) for AW in products)
    left = float(np.linalg.norm(moved - plain))
    size = float(np.linalg.norm(A)) + abs(shift) * np.sqrt(W.shape[1])
    return Sides("shift-invariance of the gradient", left, 0.0, size, equal=True)


def _square(M: Array) -> float:
    return float(np.sum(M * M))
