"""`step="theory"`: the step of the theorem that holds, and when the second of them begins to.

The broad-basin theorem allows a small step from a wide basin. The local one allows a larger step once the
objective gap `F(W) - F*` is at most `4 delta / 9`. That is certified here without waiting for anybody: a
component's last answer tells what `V`, the iterate it was given, captures, and on the way from `V` to `W` a
component of spread `nu_i` loses at most `sqrt(k) nu_i` times the length of the way, since the gradient of
`trace(V'A_i V)` is no longer than that.

The theorem starts from a fresh table, the run goes on with a stale one. What that adds to the descent
inequalities after the switch (`theory.rates.switch_charge`) is charged to the gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grassia.messages import Array
from grassia.theory.certified import CertifiedConstants
from grassia.theory.rates import switch_charge
from grassia.theory.steps import broad_step, local_step

REMEMBERED = 4096  # updates whose lengths are kept; a component away for longer certifies nothing


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Which theorem holds, and what is needed to know.

    Attributes
    ----------
    constants : CertifiedConstants
        Of the problem.
    ways : ndarray
        Bounds of the lengths of the last updates, by version modulo `REMEMBERED`.
    since : int or None
        The version from which on the local theorem holds.
    tau : int
        The staleness for which it was found to.
    gap : float
        The last upper bound of the objective gap.
    """

    constants: CertifiedConstants
    ways: Array
    since: int | None = None
    tau: int = 0
    gap: float = math.inf

    @classmethod
    def of(cls, constants: CertifiedConstants) -> Guarantee:
        return cls(constants, np.zeros(REMEMBERED))

    @property
    def local(self) -> bool:
        return self.since is not None

    def anew(self) -> Guarantee:
        """At another start."""
        return Guarantee.of(self.constants)

    def step(self, tau: int) -> float:
        """The largest step of the theorem that holds."""
        safe = self.constants.guaranteed
        if safe.nu_avg <= 0.0:
            return 1.0  # every component is a multiple of the identity: any step does
        delta = max(safe.delta, 1e-12 * safe.nu)
        which = local_step if self.local else broad_step
        return which(safe.k, safe.nu, safe.nu_avg, delta, tau)

    def moved(self, version: int, step: float, G: Array) -> Guarantee:
        """After an update from this version, which is no longer than `2 step norm(G)` (Lemma 7)."""
        ways = self.ways.copy()
        ways[version % REMEMBERED] = 2.0 * step * float(np.linalg.norm(G))
        return replace(self, ways=ways)

    def looked(self, version: int, weights: Any, captured: Any, entry: Any, tau: int) -> Guarantee:
        """With a new bound of the gap, and the local theorem if that is small enough.

        `captured` has `trace(V'A_i V)` at each component's last answer, `entry` the version of its `V`. More
        staleness than the theorem was found to hold for puts an end to it, unless it holds for that too.
        """
        if (self.local and tau <= self.tau) or not math.isfinite(self.constants.optimum.high):
            return self
        ages = version - np.asarray(entry)
        if ages.max() >= REMEMBERED or tau >= REMEMBERED:
            return replace(self, since=None)
        # The lengths of the last 1, 2, ... updates.
        lengths = self.ways[(version - 1 - np.arange(max(int(ages.max()), tau))) % REMEMBERED]
        ways = np.concatenate([[0.0], np.cumsum(lengths)])[ages]
        safe = self.constants.guaranteed
        lost = math.sqrt(safe.k) * np.array(safe.nu_i) * ways
        gap = self.constants.optimum.high - float(weights @ (captured - lost))
        if not safe.delta > 0.0:
            return replace(self, gap=gap)
        eta = local_step(safe.k, safe.nu, safe.nu_avg, safe.delta, tau)
        charge = switch_charge(safe.nu_avg, tau, eta, float(np.sum((lengths[:tau] / 2.0) ** 2)))
        small = gap + charge <= 4.0 * safe.delta / 9.0
        return replace(self, gap=gap, since=version if small else None, tau=tau)

    def report(self) -> dict[str, Any]:
        """For `result.stats`."""
        return {
            "constants": self.constants,
            "theorem": "local" if self.local else "broad",
            "local_since": self.since,
            "objective_gap": self.gap,
        }
