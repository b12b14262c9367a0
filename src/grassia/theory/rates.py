"""Rates, envelopes and iteration counts of the two theorems and their corollaries."""

from __future__ import annotations

import math

from grassia.errors import InvalidInput
from grassia.theory.constants import ALPHA
from grassia.theory.statement import Sides


def broad_rate(delta: float, eta: float, alpha: float = ALPHA) -> float:
    """`1 - delta cos^2(alpha) eta`, by which the bound of Theorem 1 shrinks with every update."""
    return 1.0 - delta * math.cos(alpha) ** 2 * eta


def local_rate(delta: float, eta: float) -> float:
    """`1 - delta eta / 4`, by which the bound of Theorem 2 shrinks with every update."""
    return 1.0 - delta * eta / 4.0


def broad_envelope(t: int, gap: float, delta: float, eta: float, alpha: float = ALPHA) -> float:
    """Bound on the squared distance after `t` updates (Theorem 1, equation "dist-linear").

    `gap` is the objective gap at the start. With the default radius it is the estimate of Remark 1.

    >>> import math
    >>> math.isclose(broad_envelope(0, 1.0, 1.0, 0.1), 4 * math.pi**2 / 27)
    True
    """
    return broad_rate(delta, eta, alpha) ** t * alpha**2 * gap / (delta * math.sin(alpha) ** 2)


def local_envelope(t: int, gap: float, delta: float, eta: float) -> float:
    """Bound on the squared distance after `t` updates (Theorem 2, equation "strong-init-dist")."""
    return local_rate(delta, eta) ** t * math.pi**2 * gap / (4.0 * delta)


def broad_iterations(epsilon: float, gap: float, delta: float, eta: float, alpha: float = ALPHA) -> int:
    """Updates after which Theorem 1 puts the squared distance at `epsilon` or less (Corollary 1).

    With the largest step of the theorem it grows like `log(1 / (delta epsilon)) / delta` without
    staleness, and like `tau log(1 / (delta epsilon)) / delta^(3/2)` with it.
    """
    start = broad_envelope(0, gap, delta, eta, alpha)
    return _count(epsilon, start, delta * math.cos(alpha) ** 2 * eta)


def local_iterations(epsilon: float, gap: float, delta: float, eta: float) -> int:
    """Updates after which Theorem 2 puts the squared distance at `epsilon` or less (Corollary 2).

    With `eta_loc` it grows like `(tau + 1) log(1 / epsilon) / delta`.

    >>> local_iterations(1e-6, 0.1, 1.0, 0.01)
    4961
    """
    return _count(epsilon, local_envelope(0, gap, delta, eta), delta * eta / 4.0)


def switch_charge(nu_avg: float, tau: int, eta: float, moved: float) -> float:
    """What a stale table adds to the objective gap where Theorem 2 takes over in the middle of a run.

    The theorem starts from a fresh table. Here the last `tau` updates before the switch enter the descent
    inequalities (Proposition 2) of the next `tau`, each `tau` times at most: `moved`, the sum of their
    `eta_s^2 ||G^s||_F^2` with the steps taken then, times `144 nu_avg^2 tau^2 eta`. Carried through the
    delayed recursion (Lemma 10) that grows by less than a tenth, since `(1 - delta eta / 4)^-tau <= 1.1`.
    """
    return 1.1 * 144.0 * (nu_avg * tau) ** 2 * eta * moved


def recursion_condition(a: float, b: float, c: float, T0: int) -> Sides:
    """The condition of the delayed recursion lemma (Lemma 10), `c / (1-a) (1-a^(T0+1)) / a^T0 <= b`.

    Where it holds, non-negative sequences with `V_{t+1} <= a V_t - b W_t + c sum_{s=t-T0}^t W_s` have
    `V_t <= a^t V_0`.
    """
    left = c * sum(a**j for j in range(T0 + 1)) / a**T0
    return Sides("condition of the delayed recursion", left, b)


def delayed_recursion(V: list[float], W: list[float], a: float, b: float, c: float, T0: int) -> list[Sides]:
    """Where two sequences have the recursion of Lemma 10: one statement for each step."""
    return [
        Sides(
            "delayed recursion",
            V[t + 1],
            a * V[t] - b * W[t] + c * math.fsum(W[max(0, t - T0) : t + 1]),
            max(V[0], b * max(W)),
        )
        for t in range(len(V) - 1)
    ]


def _count(epsilon: float, start: float, decrease: float) -> int:
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise InvalidInput(f"`epsilon` must be positive and finite, a squared distance; got {epsilon}.")
    if not (start >= 0.0 and math.isfinite(start)):
        raise InvalidInput(f"the envelope at the start must be finite, from a finite gap; got {start}.")
    if not 0.0 < decrease <= 1.0:
        raise InvalidInput(
            "the rate must be in [0, 1), which takes a positive gap and the theorem's step; "
            f"got a decrease of {decrease} with each update."
        )
    if start <= epsilon:
        return 0
    if decrease == 1.0:
        return 1
    return math.ceil((math.log(start) - math.log(epsilon)) / -math.log1p(-decrease))
