"""The constants of a problem of any size, between certified bounds, and the guarantees they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grassia.ends import Interval
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.theory.constants import Constants

#: Of all the bounds of a problem together, unless said otherwise.
CONFIDENCE = 0.999


@dataclass(frozen=True, slots=True)
class Cut:
    """What a survey of the whole sum found.

    Attributes
    ----------
    delta : Interval
        The gap `lambda_k - lambda_{k+1}`.
    nu : Interval
        The spread `lambda_1 - lambda_d`.
    optimum : Interval
        `lambda_1 + ... + lambda_k`.
    sweeps : int
        Consistent products it took.
    """

    delta: Interval
    nu: Interval
    optimum: Interval
    sweeps: int


@dataclass(frozen=True, slots=True)
class CertifiedConstants:
    """What the theorems know of a problem, each constant between two bounds.

    Attributes
    ----------
    k : int
        Dimension of the wanted subspace.
    delta, nu, nu_avg : Interval
        As those of `Constants`.
    nu_i : tuple of Interval
        Spreads of the components.
    optimum : Interval
        `lambda_1 + ... + lambda_k`, the variance that the target captures.
    confidence : float
        That all of them hold.
    sweeps : int
        Consistent products with all components that it took.
    """

    k: int
    delta: Interval
    nu: Interval
    nu_i: tuple[Interval, ...]
    nu_avg: Interval
    optimum: Interval
    confidence: float
    sweeps: int

    @classmethod
    def of(
        cls,
        k: int,
        weights: Array,
        spreads: Sequence[Interval],
        cut: Cut | None,
        delta: float | None = None,
        confidence: float = CONFIDENCE,
    ) -> CertifiedConstants:
        """From the spreads of the components and a survey of the sum; `delta` is taken on trust instead."""
        average = Interval(
            math.fsum(w * one.low for w, one in zip(weights, spreads, strict=True)),
            math.fsum(w * one.high for w, one in zip(weights, spreads, strict=True)),
        )
        if cut is None:
            cut = Cut(Interval(0.0, math.inf), Interval(0.0, math.inf), Interval(-math.inf, math.inf), 0)
        # The spread of a sum is at most the sum of the spreads, and no gap is larger than the spread.
        nu = Interval(cut.nu.low, min(cut.nu.high, average.high))
        gap = cut.delta if delta is None else Interval(delta, delta)
        return cls(
            k=k,
            delta=Interval(max(0.0, gap.low), min(gap.high, max(nu.high, gap.low))),
            nu=nu,
            nu_i=tuple(spreads),
            nu_avg=Interval(max(average.low, nu.low), average.high),
            optimum=cut.optimum,
            confidence=confidence,
            sweeps=cut.sweeps,
        )

    @property
    def guaranteed(self) -> Constants:
        """The constants on the safe side: a step or a rate made from these holds for the true ones."""
        return Constants(
            k=self.k,
            delta=self.delta.low,
            nu=self.nu.high,
            nu_i=tuple(one.high for one in self.nu_i),
            nu_avg=self.nu_avg.high,
        )

    def __str__(self) -> str:
        return (
            f"delta {self.delta}, nu {self.nu}, nu_avg {self.nu_avg} of {len(self.nu_i)} components; "
            f"confidence {self.confidence:g}, {self.sweeps} sweeps"
        )


def certified_constants(
    components: Any,
    k: int,
    *,
    weights: Any = None,
    backend: Any = "serial",
    rng: Any = None,
) -> CertifiedConstants:
    """The constants of a problem of any size, by Lanczos on the workers; no dense matrix is made.

    Each worker finds the spread of its own component, and consistent products with all components give the
    gap, the spread and the optimum of the sum; see `grassia.ends` and `grassia.solvers.survey`.

    Parameters
    ----------
    components, weights, backend, rng
        As in `grassia.eigenspace`.
    k : int
        Dimension, 1 <= k < d.

    Examples
    --------
    >>> import numpy as np
    >>> components = [np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 0.0])]
    >>> found = certified_constants(components, 1, rng=0)
    >>> 1.0 in found.delta and 3.0 in found.nu and 3.5 in found.nu_avg
    True
    """
    from grassia.api import eigenspace  # it stands above the solvers, which use this module
    from grassia.solvers.grassia import Grassia

    result = eigenspace(
        components,
        k,
        weights=weights,
        solver=Grassia(step="theory"),
        backend=backend,
        rng=rng,
        callbacks=[lambda progress: "theory" in progress.report],
    )
    d = len(result.vectors)
    if k == d:
        raise InvalidInput(f"`k` must satisfy 1 <= k < n_features, for a gap; got k={k}, n_features={d}.")
    found = result.stats.get("theory")
    if found is None:
        raise InvalidInput(f"the problem has no constants to find: it ended as {result.status.name}.")
    constants: CertifiedConstants = found["constants"]
    return constants
