"""Angles to the leading eigenspace where some directions after the cut are known well.

Let `W` be Ritz vectors with values `theta_j`, `G` their residuals, and `M` the restriction of A to the
complement of span(W). The leading eigenspace is the graph of a `K` over W, the tangents of its angles, and

    (theta_j - M) K_j = G_j - K G' K_j.

Davis and Kahan divide `G_j` by its distance to the largest eigenvalue of M. But a residual that has next to
nothing along the leading eigenvectors of M is farther away than that. So set apart some `q` that are nearly
such eigenvectors. In the basis of q and what is left, M is `[[T, E'], [E, N]]`; `T` has the eigenvalues
`tau_i`, `E = M q - q T` is small, and all there is to know of N is that its eigenvalues are at most some
`beyond`. With `G_j = (c, r)` and `K_j = (x, z)`, but for the last term above,

    z = (theta_j - N)^-1 (r + E x),    x = (theta_j - T)^-1 (c + E'z),

so that, with `D = (theta_j - T)^-1`,

    norm(z) <= (norm(r) + norm(E D c)) / (theta_j - beyond - norm(E D E')),
    norm(x) <= norm(D c) + norm(D E') norm(z).

A Krylov method has `c = 0` but for rounding, and the bound is close to the truth. It also bounds the largest
eigenvalue of M, by that of the same matrix with `beyond` in the place of N.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia.messages import Array

__all__ = ["Apart", "set_apart"]


@dataclass(frozen=True, slots=True)
class Apart:
    """Directions set apart, in the basis that makes `T` diagonal.

    Parameters
    ----------
    values : ndarray (k,)
        `theta`, descending.
    lengths : ndarray (k,)
        Norms of the residuals `G_j`.
    tau : ndarray (m,)
        Eigenvalues of `T`.
    inside : ndarray (m, k)
        `q'G`.
    leak : ndarray (m, m)
        `E'E`.
    """

    values: Array
    lengths: Array
    tau: Array
    inside: Array
    leak: Array

    @classmethod
    def of(cls, values: Array, lengths: Array, T: Array, inside: Array, leak: Array) -> Apart:
        """The same from `T = q'Mq`, whatever basis `q` is."""
        tau, turn = np.linalg.eigh(T)
        return cls(values, lengths, tau, turn.T @ inside, turn.T @ leak @ turn)

    def tangents(self, beyond: float) -> Array:
        """Bounds of `norm(K_j)` but for the second-order term and for rounding."""
        heights = self.values[:, None] - self.tau
        if not beyond < float(self.values[-1]) or not (heights > 0.0).all():
            return np.full(len(self.values), math.inf)
        terms = _Terms(heights, np.abs(self.inside.T), np.diagonal(self.leak), np.sum)
        return terms.tangents(self.lengths, self.values - beyond)

    def highest(self, beyond: float) -> float:
        """Upper bound of the largest eigenvalue of M."""
        m = len(self.tau)
        if m == 0 or not math.isfinite(beyond):
            return beyond
        size, turn = np.linalg.eigh(self.leak)
        whole = beyond * np.eye(2 * m)
        whole[:m, :m] = np.diag(self.tau)
        whole[m:, :m] = np.sqrt(np.maximum(size, 0.0))[:, None] * turn.T
        return float(np.linalg.eigvalsh(whole)[-1])  # of the lower triangle

    def farthest(self, tol: float) -> float:
        """The largest `beyond` for which the tangents do."""
        low, high = float(np.min(self.tau, initial=0.0)), float(self.values[-1])
        if not low < high or not float(np.linalg.norm(self.tangents(low))) <= tol:
            return -math.inf
        for _ in range(12):
            middle = (low + high) / 2.0
            does = float(np.linalg.norm(self.tangents(middle))) <= tol
            low, high = (middle, high) if does else (low, middle)
        return low

    def sine(
        self, beyond: float, upper: float, coarse: float, residual: float, off: Array, loose: float
    ) -> float:
        """Bound of the sine of the largest angle.

        Parameters
        ----------
        beyond, upper : float
            Upper bounds of the eigenvalues of N and of M.
        coarse : float
            Any other bound of the sine.
        residual : float
            Bound of the norm of G.
        off : ndarray (k,)
            How far each residual can be off.
        loose : float
            The same for products `M q` of unit vectors.
        """
        heights = self.values - upper
        if not coarse < 0.5 or not float(heights[-1]) > 0.0:
            return coarse
        tangent = coarse / math.sqrt(1.0 - coarse**2)
        left = 1.0 - (tangent * residual + 2.0 * loose) / heights
        if not float(left[-1]) > 0.0:
            return coarse
        spoilt = off + tangent * float(np.linalg.norm(off))
        return min(coarse, float(np.linalg.norm((self.tangents(beyond) + spoilt / heights) / left)))


class _Terms:
    """The norms in the bounds of `tangents`, each by those of columns: they are small, or of no use.

    Parameters
    ----------
    heights, inside : ndarray (k, m)
        `theta_j - tau_i`, and the sizes of `c`.
    leaks : ndarray (m,)
        Squares of the norms of the columns of E.
    total : callable
        Adds up over the directions: np.sum for all of them, np.cumsum for the first 1, 2, 3, ...
    """

    def __init__(self, heights: Array, inside: Array, leaks: Array, total: Callable[..., Any]) -> None:
        lengths = np.sqrt(np.maximum(leaks, 0.0))
        solved, spread = inside / heights, lengths / heights
        self.known = total(inside**2, axis=1)
        self.Dc = np.sqrt(total(solved**2, axis=1))
        self.DE = np.sqrt(total(spread**2, axis=1))
        self.EDc = total(solved * lengths, axis=1)
        self.EDE = total(spread * lengths, axis=1)

    def tangents(self, lengths: Array, away: Array) -> Array:
        """Bounds of the tangents, for residuals of these lengths and `theta_j - beyond`."""
        room = away - self.EDE
        # The directions are orthonormal up to rounding: what is left of a residual is not nothing.
        outside = np.sqrt(np.maximum(lengths**2 - self.known, 1e-10 * lengths**2)) + self.EDc
        z = np.full(np.shape(room), math.inf)
        np.divide(outside, room, out=z, where=room > 0.0)
        far = np.isinf(z)
        x = self.Dc + self.DE * np.where(far, 0.0, z)
        return np.asarray(np.where(far, math.inf, np.hypot(z, x)))


def set_apart(values: Array, lengths: Array, T: Array, inside: Array, tail: Array) -> tuple[float, int]:
    """(the angle that may be expected, how many of some directions are to be set apart for it).

    Of what is left it is taken that the half way to the cut can be excluded, as a probe mostly does.

    Parameters
    ----------
    values, lengths : ndarray (k,)
        Ritz values of W, descending, and the norms of its residuals.
    T, inside, tail : ndarray (q, q), (q, k), (q, q)
        For directions `q`, descending, `q'Mq`, `q'G` and the Gram matrix of `M q - q T`.
    """
    size = max(float(np.max(np.abs(values))), float(np.max(np.abs(T), initial=0.0)))
    if len(T) == 0 or not float(values[-1] - np.max(np.diagonal(T))) > 1e-13 * size:
        return math.inf, 0
    values, lengths, inside = values / size, lengths / size, inside / size  # squares must not overflow
    T, tail = T / size, tail / size / size
    bottom, tau = float(values[-1]), np.diagonal(T)
    leaks = np.diagonal(tail) + np.sum(T**2, axis=0) - tau**2
    terms = _Terms(values[:, None] - tau, np.abs(inside.T), leaks, np.cumsum)
    after = np.append(tau, tau[-1])  # what comes after none of them, after the first, ...
    away = values[:, None] - (after + bottom) / 2.0
    none = float(np.linalg.norm(lengths / away[:, 0]))
    some = np.linalg.norm(terms.tangents(lengths[:, None], away[:, 1:]), axis=0)
    best = int(np.argmin(some))
    return (none, 0) if none <= some[best] else (float(some[best]), best + 1)
