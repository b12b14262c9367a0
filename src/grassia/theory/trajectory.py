"""Statements about a run: one-step descent, basin invariance, the two theorems' envelopes.

A `Trajectory` holds every iterate and every aggregate of one run of Algorithm 1 on dense components.
`follow` makes one from the sets of arrivals, for example those of a recorded asynchronous run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from grassia import geometry
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.theory import rates, steps
from grassia.theory.constants import ALPHA, ZETA, Constants, exact_constants, weighted_sum
from grassia.theory.identities import Spectrum, gradient, objective
from grassia.theory.statement import Sides, squared_distance_scale

#: The arrivals before update t: pairs (component, version of the iterate its gradient is of).
Arrivals = Callable[[int], Iterable[tuple[int, int]]]


@dataclass(frozen=True)
class Trajectory:
    """A run of Algorithm 1.

    Attributes
    ----------
    A : array (d, d)
        The sum of the components.
    constants : Constants
        Its constants.
    eta : float
        The step.
    iterates : tuple of array (d, k)
        `W^0 .. W^T`.
    aggregates : tuple of array (d, k)
        `G^0 .. G^{T-1}`: `W^{t+1} = Polar(W^t - eta G^t)`.
    tau : int
        The largest staleness of an entry of an aggregate.
    """

    A: Array
    constants: Constants
    eta: float
    iterates: tuple[Array, ...]
    aggregates: tuple[Array, ...]
    tau: int

    @cached_property
    def spectrum(self) -> Spectrum:
        return Spectrum.of(self.A, self.constants.k)

    @cached_property
    def gaps(self) -> Array:
        """`F(W^t) - F*`."""
        return np.array([objective(self.A, W) for W in self.iterates]) - self.spectrum.optimum

    @cached_property
    def distances(self) -> Array:
        """Geodesic distances to the leading eigenspace."""
        return np.array([geometry.geodesic_distance(self.spectrum.target, W) for W in self.iterates])

    @cached_property
    def energies(self) -> Array:
        """`||grad F(W^t)||_F^2`."""
        return np.array([np.sum(gradient(self.A, W) ** 2) for W in self.iterates])

    @cached_property
    def sizes(self) -> Array:
        """`||G^t||_F^2`."""
        return np.array([np.sum(G**2) for G in self.aggregates])

    @property
    def squares_scale(self) -> float:
        """What rounding of a squared distance is measured against."""
        return squared_distance_scale(self.spectrum.scale, self.constants.delta)

    def recent(self, t: int) -> float:
        """Sum of `||G^s||_F^2` over the `tau` updates before `t`."""
        return float(np.sum(self.sizes[max(0, t - self.tau) : t]))


def follow(
    components: Sequence[Any],
    W0: Array,
    eta: float,
    arrivals: Arrivals,
    updates: int,
    weights: Any = None,
) -> Trajectory:
    """Algorithm 1 of the paper, literally and densely.

    Parameters
    ----------
    components : sequence of array (d, d)
        Symmetric.
    W0 : array (d, k)
        Orthonormal start, at which every entry of the table is computed first.
    eta : float
        The step.
    arrivals : callable
        `arrivals(t)` gives the pairs (component, version) that enter after `W^t` was computed, t >= 1.
    updates : int
        How many updates to make, at least one.
    weights : array_like (n,), optional
        In the place of `1/n`.
    """
    if updates < 1:
        raise InvalidInput(f"`updates` must be at least 1; got {updates}.")
    A, w = weighted_sum(components, weights)
    entry = [0] * len(components)
    table = [gradient(one, W0) for one in components]
    iterates, aggregates, tau = [W0], [], 0
    for t in range(updates):
        tau = max(tau, *(t - version for version in entry))
        G = np.tensordot(w, np.stack(table), axes=1)
        aggregates.append(G)
        iterates.append(geometry.polar(iterates[t] - eta * G))
        for i, version in arrivals(t + 1):
            if not 0 <= version <= t + 1:
                raise InvalidInput(f"a gradient must be of an iterate up to {t + 1}; got version {version}.")
            entry[i], table[i] = version, gradient(components[i], iterates[version])
    constants = exact_constants(components, W0.shape[1], weights)
    return Trajectory(A, constants, eta, tuple(iterates), tuple(aggregates), tau)


def one_step_descent(
    run: Trajectory,
    *,
    gradient_part: float = 0.25,
    aggregate_part: float = 0.5,
    staleness_part: float = 144.0,
) -> list[Sides]:
    """One-step descent of function value (Proposition 2), for every update; needs `eta <= eta_0`.

    The keywords are the paper's coefficients of `eta ||grad F||^2`, of `eta ||G||^2` and of
    `nu_avg^2 tau eta^3` times the recent `||G||^2`.
    """
    penalty = staleness_part * run.constants.nu_avg**2 * run.tau * run.eta**3
    return [
        Sides(
            "one-step descent",
            float(run.gaps[t + 1] - run.gaps[t]),
            float(
                -gradient_part * run.eta * run.energies[t]
                - aggregate_part * run.eta * run.sizes[t]
                + penalty * run.recent(t)
            ),
            run.spectrum.scale,
        )
        for t in range(len(run.aggregates))
    ]


def staleness_error(run: Trajectory, *, constant: float = 144.0) -> list[Sides]:
    """How far an aggregate is from the gradient (equation "DeltaG-upper", proof of Proposition 2)."""
    c = run.constants
    factor = constant * (c.nu_avg * run.eta) ** 2 * run.tau
    return [
        Sides(
            "staleness of the aggregate",
            float(np.sum((run.aggregates[t] - gradient(run.A, run.iterates[t])) ** 2)),
            factor * run.recent(t),
            c.nu_avg**2,
        )
        for t in range(len(run.aggregates))
    ]


def basin_compatibility(
    constants: Constants, tau: int, eta: float, zeta: float = ZETA, alpha: float = ALPHA
) -> Sides:
    """`(1 + nu gamma) zeta^2 <= alpha^2` (equation "zeta-alpha-compat"), which `eta_comp` is made for."""
    gamma = steps.lyapunov_weight(constants.k, constants.nu_avg, constants.delta, tau, eta, alpha)
    left = (1.0 + constants.nu * gamma) * zeta**2 if zeta > 0.0 else 0.0
    return Sides("compatibility of basin and start", left, alpha**2)


def basin_invariance(run: Trajectory, alpha: float = ALPHA) -> list[Sides]:
    """Basin invariance (Proposition 3): no iterate is farther than `alpha` from the target."""
    return [Sides("basin invariance", float(distance), alpha) for distance in run.distances]


def lyapunov(run: Trajectory, alpha: float = ALPHA, *, factor: float = 1.0) -> list[Sides]:
    """No value of the Lyapunov function exceeds the first (proof of Proposition 3).

    `factor` multiplies the first value.
    """
    c = run.constants
    gamma = steps.lyapunov_weight(c.k, c.nu_avg, c.delta, run.tau, run.eta, alpha)
    values = gamma * run.gaps + run.distances**2
    scale = gamma * run.spectrum.scale
    return [Sides("Lyapunov function", float(value), factor * float(values[0]), scale) for value in values]


def broad_convergence(
    run: Trajectory, alpha: float = ALPHA, *, speed: float = 1.0, height: float = 1.0
) -> list[Sides]:
    """Broad-basin linear convergence (Theorem 1): squared distances under the envelope.

    `speed` multiplies the decrease of an update, `height` the envelope at the start.
    """
    c, gap = run.constants, max(float(run.gaps[0]), 0.0)
    return [
        Sides(
            "broad-basin linear convergence",
            float(distance) ** 2,
            height * rates.broad_envelope(t, gap, c.delta, speed * run.eta, alpha),
            run.squares_scale,
        )
        for t, distance in enumerate(run.distances)
    ]


def local_convergence(run: Trajectory, *, speed: float = 1.0, height: float = 1.0) -> list[Sides]:
    """Sharper local linear convergence (Theorem 2): squared distances under the envelope.

    `speed` multiplies the decrease of an update, `height` the envelope at the start.
    """
    c, gap = run.constants, max(float(run.gaps[0]), 0.0)
    return [
        Sides(
            "sharper local linear convergence",
            float(distance) ** 2,
            height * rates.local_envelope(t, gap, c.delta, speed * run.eta),
            run.squares_scale,
        )
        for t, distance in enumerate(run.distances)
    ]
