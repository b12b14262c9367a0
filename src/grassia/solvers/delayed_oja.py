"""Delayed-Oja: single stale gradients, not aggregated. The paper's ablation of GRASSIA.

Section 5.2 of the paper: `W <- Polar(W - step n w_i G_i(V))`, with `G_i(V) = -2 (I - VV') A_i V` the gradient
of the component that has answered, at the iterate V that its worker was given. What the other components
said last is not remembered: the comparison shows what aggregation is worth.

Needs: symmetric components; the gradient is that of `A_i + cI` for every c.

Converges to a neighbourhood of the leading eigenspace whose radius is proportional to a constant step, and
ends as STALLED there; with a decaying step to the eigenspace, sublinearly. That holds where all workers
answer equally often. Where they do not, it is the eigenspace of `sum p_i n w_i A_i`, p_i the share of
component i in all answers, so that heterogeneous workers leave an error that no step removes. Delays of tau
updates want a step below about 1 / (2 tau nu), nu the spread of the eigenvalues.

Cost of an update: one message of d x k each way, one product with one component, O(d k^2) on the server.
Memory: 3 d k numbers; workers remember nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grassia import geometry
from grassia.components import Component
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival
from grassia.solvers.stochastic import State, Stochastic
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True)
class DelayedOja(Stochastic):
    """Stale gradients of single components, each used once.

    Parameters
    ----------
    step : float or "auto"
        The step of the first update. "auto" is a fifth of 1 / ||A||, estimated by a few sweeps before the
        start, over one more than the largest staleness seen.
    decay : float, optional
        The t-th update takes `step / (1 + decay t)`. Default: 0, a constant step, if `step` is a number;
        for "auto" half of `step` times the estimated gap.
    order : {"shuffled", "cyclic", "random"}
        In which order a worker that holds several components visits them.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.delayed_oja import DelayedOja
    >>> rows = np.random.default_rng(0).standard_normal((4000, 5)) * [3.0, 1.0, 1.0, 0.5, 0.5]
    >>> parts = grassia.from_rows(rows, n_components=4)
    >>> result = grassia.eigenspace(parts, 1, solver=DelayedOja(step=1e-4), tol=1e-2, rng=0)
    >>> result.converged
    True
    """

    name: ClassVar[str] = "delayed-oja"

    def ask(self, state: State, component: int) -> Query:
        return Query("single-gradient", {"iterate": state.W})

    def _read(self, W: Array, arrival: Arrival) -> tuple[Array, Array, float]:
        gradient = arrival.arrays["gradient"]
        return -gradient, -0.5 * gradient, float(arrival.scalars["captured"] or 0.0)


# -- what the workers do ------------------------------------------------------------------------


@procedure("single-gradient")
def single_gradient(component: Component, cache: Cache, query: Query) -> Answer:
    """The component's gradient at an iterate, whole; nothing is cached."""
    V = query.arrays["iterate"]
    product = finite_product(component, V)
    captured = float(np.sum(V * product))
    return {"gradient": geometry.riemannian_gradient(V, product)}, {"captured": captured}
