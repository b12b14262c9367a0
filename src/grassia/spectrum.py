"""Cheap estimates of spectra: the spread of one component, the leading values of the whole sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from grassia import geometry
from grassia.messages import Array


def lanczos_spread(
    apply: Callable[[Array], Array], d: int, steps: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Estimate (smallest, largest) eigenvalue of a symmetric operator by a few Lanczos steps.

    Each end is the Ritz value widened by its residual norm, so that the spread is rather over- than
    underestimated. Cost: `steps` products with one vector.

    >>> import numpy as np
    >>> A = np.diag(np.linspace(-1.0, 2.0, 50))
    >>> low, high = lanczos_spread(lambda V: A @ V, 50, 12, np.random.default_rng(0))
    >>> abs(low + 1) < 0.2 and abs(high - 2) < 0.2
    True
    """
    steps = max(1, min(steps, d))
    basis = np.zeros((d, 0))
    products = np.zeros((d, 0))
    vector = geometry.orthonormalize(rng.standard_normal((d, 1)))
    for _ in range(steps):
        product = apply(vector)
        basis, products = np.hstack([basis, vector]), np.hstack([products, product])
        vector = geometry.orthonormalize(product, against=basis)
        if vector.shape[1] == 0:
            break
    values, turn = geometry.ritz(basis, products)
    ends = turn[:, [0, -1]]
    residuals = np.linalg.norm(products @ ends - (basis @ ends) * values[[0, -1]], axis=0)
    return float(values[-1] - residuals[1]), float(values[0] + residuals[0])


@dataclass(frozen=True, slots=True)
class LeadingSpectrum:
    """Ritz estimates of the whole sum: `values` descending, and how many sweeps they took."""

    values: Array
    smallest: float
    sweeps: int

    def gap(self, k: int) -> float:
        """Estimated `lambda_k - lambda_{k+1}`."""
        if k >= len(self.values):
            return math.inf
        return float(self.values[k - 1] - self.values[k])


def leading_spectrum(
    d: int, k: int, rng: np.random.Generator, *, oversample: int = 4, max_sweeps: int = 12
) -> Generator[Array, Array, LeadingSpectrum]:
    """Estimate the leading k+1 eigenvalues by block Krylov; a generator driven like `certify`.

    Stops when the estimated gap after k has settled to 5 %. Estimates, no bounds.
    """
    width = min(d, k + oversample)
    block = geometry.random_point(d, width, rng)
    basis, products = np.zeros((d, 0)), np.zeros((d, 0))
    last_gap = math.nan
    values = np.zeros(0)
    sweep = 0
    while sweep < max_sweeps:
        product = yield np.ascontiguousarray(block)
        sweep += 1
        basis, products = np.hstack([basis, block]), np.hstack([products, product])
        values, _ = geometry.ritz(basis, products)
        gap = float(values[k - 1] - values[k]) if k < len(values) else math.inf
        settled = sweep > 2 and (gap == last_gap or abs(gap - last_gap) <= 0.05 * abs(gap))
        last_gap = gap
        if settled:
            break
        block = geometry.orthonormalize(product, against=basis)
        block = block[:, : d - basis.shape[1]]
        if block.shape[1] == 0:
            break
    return LeadingSpectrum(values[: min(len(values), k + 1)], float(values[-1]), sweep)
