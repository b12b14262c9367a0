"""Step sizes of the paper's theorems.

Symbols: `delta = lambda_k - lambda_{k+1}`, `nu = lambda_1 - lambda_d` of A, `nu_avg` the weighted mean of
the components' own spreads, `tau` the largest staleness, `C_po = 2 + 4 sqrt(k) / 3`.
"""

from __future__ import annotations

import math

ZETA = math.pi / (3.0 * math.sqrt(2.0))
ALPHA = math.pi / 3.0


def polar_constant(k: int) -> float:
    """`C_po` of the logarithm decomposition (Lemma "Decomposition of logarithm map")."""
    return 2.0 + 4.0 * math.sqrt(k) / 3.0


def descent_step(k: int, nu: float, nu_avg: float) -> float:
    """`eta_0` of the one-step descent proposition."""
    return min(_over(1.0, 2.0 * nu_avg), _over(1.0, 8.0 * nu * (polar_constant(k) * math.sqrt(k) + 4.0)))


def compatibility_step(
    k: int,
    nu: float,
    nu_avg: float,
    delta: float,
    tau: int,
    zeta: float = ZETA,
    alpha: float = ALPHA,
) -> float:
    """`eta_comp(zeta, alpha)` of the basin-invariance proposition."""
    if zeta == 0.0:
        return math.inf
    B = 17.0 / 8.0 + 2.0 * polar_constant(k) * math.sqrt(k) * alpha
    R = _over(alpha**2 - zeta**2, nu * zeta**2)
    first = R / (4.0 * B)
    if tau == 0:
        return first
    if not delta > 0.0:
        return 0.0
    if math.isinf(R):
        return min(first, _over(1.0, nu_avg * tau) / math.sqrt(576.0))
    A = 9.0 * math.pi**2 * math.tan(alpha) / (delta * alpha)
    return min(first, _over(1.0, nu_avg * tau) * math.sqrt(R / (4.0 * A + 576.0 * R)))


def broad_step(
    k: int,
    nu: float,
    nu_avg: float,
    delta: float,
    tau: int,
    zeta: float = ZETA,
    alpha: float = ALPHA,
) -> float:
    """Largest step of the broad-basin theorem (start within `zeta` of the target).

    >>> broad_step(3, 1.0, 1.0, 0.1, 4) < local_step(3, 1.0, 1.0, 0.1, 4)
    True
    """
    return min(
        descent_step(k, nu, nu_avg),
        _over(1.0, 4.0 * nu_avg * polar_constant(k) * math.sqrt(k)),
        _over(1.0, 24.0 * nu_avg * (tau + 1)),
        _over(1.0, 4.0 * delta * math.cos(alpha) ** 2 * (tau + 1)),
        compatibility_step(k, nu, nu_avg, delta, tau, zeta, alpha),
    )


def local_step(k: int, nu: float, nu_avg: float, delta: float, tau: int) -> float:
    """`eta_loc` of the local theorem (start with an objective gap of at most 4 delta / 9)."""
    return min(
        descent_step(k, nu, nu_avg),
        _over(1.0, 24.0 * nu_avg * (tau + 1)),
        _over(1.0, delta * (tau + 1)),
    )


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0.0 else math.inf
