"""The constants of a problem on which steps and rates depend.

None of them changes when a multiple of the identity is added to a component (the paper's shift-invariance).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia._checks import matrix_shape, normalised_weights
from grassia.components import MatrixComponent
from grassia.errors import InvalidInput
from grassia.messages import Array

#: Radii of the paper's Remark 1: a start within `ZETA` of the target stays within `ALPHA`.
ZETA = math.pi / (3.0 * math.sqrt(2.0))
ALPHA = math.pi / 3.0


@dataclass(frozen=True)
class Constants:
    """What the theorems know of a problem.

    Attributes
    ----------
    k : int
        Dimension of the wanted subspace.
    delta : float
        Eigengap `lambda_k(A) - lambda_{k+1}(A)`.
    nu : float
        Spread `lambda_1(A) - lambda_d(A)`.
    nu_i : tuple of float
        Spreads of the components.
    nu_avg : float
        Their weighted mean; never below `nu`.
    """

    k: int
    delta: float
    nu: float
    nu_i: tuple[float, ...]
    nu_avg: float

    def __post_init__(self) -> None:
        rounding = 1.0 + 1e-6
        if not (0.0 <= self.delta <= self.nu * rounding and self.nu <= self.nu_avg * rounding):
            raise InvalidInput(
                "constants must satisfy 0 <= delta <= nu <= nu_avg, as those of every problem do; "
                f"got delta={self.delta}, nu={self.nu}, nu_avg={self.nu_avg}."
            )

    @property
    def C_po(self) -> float:
        """Constant of the logarithm decomposition (Lemma 3)."""
        return polar_constant(self.k)


def polar_constant(k: int) -> float:
    """`C_po = 2 + 4 sqrt(k) / 3` of the decomposition of the logarithm map (Lemma 3)."""
    return 2.0 + 4.0 * math.sqrt(k) / 3.0


def spread(A: Any) -> float:
    """`lambda_1(A) - lambda_d(A)` of a dense symmetric matrix.

    >>> spread([[3.0, 0.0], [0.0, 1.0]])
    2.0
    """
    values = np.linalg.eigvalsh(np.asarray(A, dtype=np.float64))
    return float(values[-1] - values[0])


def weighted_sum(components: Sequence[Any], weights: Any = None) -> tuple[Array, Array]:
    """The dense `A = sum w_i A_i`, and the weights, normalised; equal weights by default."""
    n = len(components)
    sizes = {matrix_shape(A) for A in components}
    if len(sizes) != 1:
        raise InvalidInput(f"components must be square matrices of one size; got sizes {sorted(sizes)}.")
    w = normalised_weights(np.ones(n) if weights is None else weights, n)
    total = np.zeros((next(iter(sizes)),) * 2)
    for weight, A in zip(w, components, strict=True):
        total += weight * dense(A)
    return total, w


def dense(A: Any) -> Array:
    """A symmetric matrix, dense or sparse, as a dense one; refused if it is not symmetric and finite."""
    component = MatrixComponent(A)
    component.moments()
    return component.dense()


def exact_constants(components: Sequence[Any], k: int, weights: Any = None) -> Constants:
    """The constants of dense components, by dense eigenvalues: O(n d^3).

    Parameters
    ----------
    components : sequence of array_like (d, d)
        Symmetric matrices.
    k : int
        Dimension, 1 <= k < d.
    weights : array_like (n,), optional
        Positive; normalised to sum to one. Default: equal.

    Examples
    --------
    >>> import numpy as np
    >>> c = exact_constants([np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 0.0])], k=1)
    >>> c.delta, c.nu, c.nu_i, c.nu_avg
    (1.0, 3.0, (4.0, 3.0), 3.5)
    """
    A, w = weighted_sum(components, weights)
    if not (isinstance(k, int | np.integer) and 1 <= k < len(A)):
        raise InvalidInput(f"`k` must be an integer with 1 <= k < d, for an eigengap; got k={k}, d={len(A)}.")
    values = np.linalg.eigvalsh(A)[::-1]
    spreads = tuple(spread(dense(one)) for one in components)
    return Constants(
        k=int(k),
        delta=float(values[k - 1] - values[k]),
        nu=float(values[0] - values[-1]),
        nu_i=spreads,
        nu_avg=float(w @ np.array(spreads)),
    )
