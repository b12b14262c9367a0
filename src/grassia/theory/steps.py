"""Step sizes of the paper's lemmas and theorems.

Symbols: `delta = lambda_k - lambda_{k+1}`, `nu = lambda_1 - lambda_d` of A, `nu_avg` the weighted mean of
the components' own spreads, `tau` the largest staleness, `C_po = 2 + 4 sqrt(k) / 3`.
"""

from __future__ import annotations

import math

from grassia.errors import InvalidInput
from grassia.theory.constants import ALPHA, ZETA, polar_constant


def check_radii(zeta: float, alpha: float) -> None:
    """Radii of start and basin: `0 <= zeta < alpha < pi/2`."""
    if not 0.0 <= zeta < alpha < math.pi / 2.0:
        raise InvalidInput(f"radii must satisfy 0 <= zeta < alpha < pi/2; got zeta={zeta}, alpha={alpha}.")


def _check(k: int, tau: int) -> None:
    if k < 1 or tau < 0:
        raise InvalidInput(f"`k` must be at least 1 and `tau` at least 0; got k={k}, tau={tau}.")


def injectivity_step(nu_avg: float) -> float:
    """`1 / nu_avg`: below it the polar step is unique (Lemma 6, injectivity of the polar step)."""
    return _over(1.0, nu_avg)


def logarithm_step(nu_avg: float) -> float:
    """`1 / (2 nu_avg)`, the condition of Lemmas 3 (logarithm) and 7 (geodesic distance)."""
    return _over(1.0, 2.0 * nu_avg)


def descent_step(k: int, nu: float, nu_avg: float) -> float:
    """`eta_0` of the one-step descent (Proposition 2)."""
    return min(logarithm_step(nu_avg), _over(1.0, 8.0 * nu * (polar_constant(k) * math.sqrt(k) + 4.0)))


def movement_constant(k: int, alpha: float = ALPHA) -> float:
    """`B = 17/8 + 2 C_po sqrt(k) alpha` of the basin invariance (Proposition 3)."""
    return 17.0 / 8.0 + 2.0 * polar_constant(k) * math.sqrt(k) * alpha


def staleness_constant(delta: float, alpha: float = ALPHA) -> float:
    """`A = 9 pi^2 tan(alpha) / (delta alpha)` of the basin invariance (Proposition 3)."""
    return _over(9.0 * math.pi**2 * math.tan(alpha), delta * alpha)


def buffer(nu: float, zeta: float = ZETA, alpha: float = ALPHA) -> float:
    """`R = (alpha^2 - zeta^2) / (nu zeta^2)` of Proposition 3: the room between start and basin."""
    return _over(alpha**2 - zeta**2, nu * zeta**2)


def compatibility_step(
    k: int,
    nu: float,
    nu_avg: float,
    delta: float,
    tau: int,
    zeta: float = ZETA,
    alpha: float = ALPHA,
) -> float:
    """`eta_comp(zeta, alpha)` of the basin invariance (Proposition 3, equation "eta-comp")."""
    _check(k, tau)
    check_radii(zeta, alpha)
    if zeta == 0.0:
        return math.inf
    R = buffer(nu, zeta, alpha)
    first = R / (4.0 * movement_constant(k, alpha))
    if tau == 0:
        return first
    if not delta > 0.0:
        return 0.0
    if math.isinf(R):
        return min(first, _over(1.0, nu_avg * tau) / math.sqrt(576.0))
    A = staleness_constant(delta, alpha)
    return min(first, _over(1.0, nu_avg * tau) * math.sqrt(R / (4.0 * A + 576.0 * R)))


def basin_step(
    k: int,
    nu: float,
    nu_avg: float,
    delta: float,
    tau: int,
    zeta: float = ZETA,
    alpha: float = ALPHA,
) -> float:
    """Largest step with which iterates stay within `alpha` (Proposition 3, basin invariance)."""
    return min(
        descent_step(k, nu, nu_avg),
        _over(1.0, 4.0 * nu_avg * polar_constant(k) * math.sqrt(k)),
        _over(1.0, 24.0 * nu_avg * (tau + 1)),
        compatibility_step(k, nu, nu_avg, delta, tau, zeta, alpha),
    )


def broad_step(
    k: int,
    nu: float,
    nu_avg: float,
    delta: float,
    tau: int,
    zeta: float = ZETA,
    alpha: float = ALPHA,
) -> float:
    """Largest step of the broad-basin theorem (Theorem 1; start within `zeta` of the target).

    >>> broad_step(3, 1.0, 1.0, 0.1, 4) < local_step(3, 1.0, 1.0, 0.1, 4)
    True
    """
    return min(
        basin_step(k, nu, nu_avg, delta, tau, zeta, alpha),
        _over(1.0, 4.0 * delta * math.cos(alpha) ** 2 * (tau + 1)),
    )


def local_step(k: int, nu: float, nu_avg: float, delta: float, tau: int) -> float:
    """`eta_loc` of the local theorem (Theorem 2; start with an objective gap of at most 4 delta / 9)."""
    _check(k, tau)
    return min(
        descent_step(k, nu, nu_avg),
        _over(1.0, 24.0 * nu_avg * (tau + 1)),
        _over(1.0, delta * (tau + 1)),
    )


def lyapunov_weight(k: int, nu_avg: float, delta: float, tau: int, eta: float, alpha: float = ALPHA) -> float:
    """`gamma` of the Lyapunov function `gamma (F - F*) + dist^2` (proof of Proposition 3).

    Infinite where `eta` is too large for any weight, `24 nu_avg tau eta >= 1`.
    """
    movement = 4.0 * movement_constant(k, alpha) * eta
    if tau == 0:
        return movement
    aged = (nu_avg * tau * eta) ** 2
    return max(movement, _over(4.0 * staleness_constant(delta, alpha) * aged, 1.0 - 576.0 * aged))


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0.0 else math.inf
