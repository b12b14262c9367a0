"""A probe whose products are collected on the way, so that a certificate need not stop everybody.

The random block of a certificate must not know the iterate, nor the iterate it. So it can be drawn at the
start, and its products can come in at any time, a few columns more in an answer the solver waits for anyway,
as long as the solver never sees them. When the solver has an iterate to propose, they are there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from grassia.consistent import ConsistentProduct
from grassia.messages import Array, Query
from grassia.solvers.base import Solver

OPTION = "probe"  # the option of a query that says how many of its last columns are the probe's


# What a product in single precision is off by, relatively, when all that can be said of it is by a probe.
SINGLE_ERROR = 2.5e-8


class EarlyProbe(ConsistentProduct):
    """The product with the probe of the first certificate of a run: a block of standard normal numbers."""

    def beside(self, query: Query | None) -> Query | None:
        """The query with the probe beside its block; the probe alone where there is no query."""
        if query is None:
            return Query("apply", {"block": self.block}, {OPTION: self.block.shape[1]})
        if query.procedure != "apply":
            return query
        block = np.ascontiguousarray(np.hstack([query.arrays["block"], self.block]))
        options = {**query.options, OPTION: self.block.shape[1]}
        return replace(query, arrays={**query.arrays, "block": block}, options=options)


def claims_in_single(
    solver: Solver[Any], state: Any, tol: float
) -> tuple[tuple[Array, float] | None, Array | None, int | None]:
    """What a solver has in single precision for a certificate to check: a matrix close to A, and `A W`.

    The third says how many columns of `A W` are likely to do: those far above the cut, or all. Where the gap
    is so small that single precision can hardly do, a check would be in vain.
    """
    held, after, claimed = solver.matrix(state), solver.after(state), solver.claimed(state)
    if claimed is None or after is None:
        return None, None, None
    if held is not None:
        return (held[0], after), claimed, None
    values = np.sum(solver.subspace(state) * claimed, axis=0)
    size = float(np.max(np.abs(values)))
    heights = np.maximum(values - after, max(1e-12 * size, float(np.finfo(np.float64).tiny)))
    errors = np.cumsum((SINGLE_ERROR * size / heights) ** 2)
    trusted = int(np.searchsorted(errors, (0.5 * tol) ** 2, side="right"))
    # A few columns are not worth the doubts.
    return (None, claimed, trusted) if 3 * trusted >= len(values) else (None, None, None)
