"""Oja's method (k = 1) and Block Oja: one component's product moves the iterate.

Oja 1982; in blocks, with the rates known for streams, Huang et al. 2021. `W <- orth(W + step_t n w_i A_i W)`,
i the component that has answered: a mini-batch of the rows, visited in an order of choice. `orth` is the
polar factor here, so that bases move as little as spaces do; QR gives the same spaces.

Needs: symmetric components. A shift of A rescales the step (negative eigenvalues down to about -1 / step do
no harm), so no positive semidefiniteness is asked for.

Converges to a neighbourhood of the leading eigenspace whose radius is proportional to a constant step, and
ends as STALLED there unless `tol` is larger; to the eigenspace itself with a decaying step, sublinearly: the
distance falls like 1/t, so that a small `tol` is out of reach and the run ends as STALLED or with MAX_PASSES.
Where workers answer unequally often it is another eigenspace, see `grassia.solvers.stochastic`.

On one worker (the serial back-end), and wherever products are taken at return, each is that of the current
iterate: this is the method as published. On several workers at once an answer `A_i V` is of the iterate V
that its worker was given and is used all the same; `grassia.solvers.delayed_oja` is that with gradients.

Cost of an update: one message of d x k each way, one product with one component, O(d k^2) on the server.
Memory: 3 d k numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from grassia import geometry
from grassia.messages import Array, Query
from grassia.solvers.base import Arrival
from grassia.solvers.stochastic import State, Stochastic


@dataclass(frozen=True)
class Oja(Stochastic):
    """Oja's method, in blocks of k.

    Parameters
    ----------
    step : float or "auto"
        The step of the first update. "auto" is a fifth of 1 / ||A||, estimated by a few sweeps before the
        start, and less by the largest staleness seen.
    decay : float, optional
        The t-th update takes `step / (1 + decay t)`. Default: 0, a constant step, if `step` is a number;
        for "auto" half of `step` times the estimated gap, the 1/t schedule of the theory.
    order : {"shuffled", "cyclic", "random"}
        In which order a worker that holds several components visits them.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia.solvers.oja import Oja
    >>> rows = np.random.default_rng(0).standard_normal((4000, 5)) * [3.0, 1.0, 1.0, 0.5, 0.5]
    >>> parts = grassia.from_rows(rows, n_components=4)
    >>> result = grassia.eigenspace(parts, 1, solver=Oja(step=2e-4), tol=1e-2, rng=0)
    >>> result.converged
    True
    """

    name: ClassVar[str] = "oja"

    def ask(self, state: State, component: int) -> Query:
        return Query("apply", {"block": state.W})

    def _read(self, W: Array, arrival: Arrival) -> tuple[Array, Array, float]:
        product = arrival.arrays["product"]
        return product, geometry.project(W, product), float(np.sum(W * product))
