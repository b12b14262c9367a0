"""A probe whose products are collected on the way, so that a certificate need not stop everybody.

The random block of a certificate must not know the iterate, nor the iterate it. So it can be drawn at the
start, and its products can come in at any time, a few columns more in an answer the solver waits for anyway,
as long as the solver never sees them. When the solver has an iterate to propose, they are there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grassia.messages import Array, Query

OPTION = "probe"  # the option of a query that says how many of its last columns are the probe's


class EarlyProbe:
    """The probe of the first certificate of a run.

    Parameters
    ----------
    block : ndarray (d, p)
        Independent standard normal numbers.
    weights : ndarray (n,)
        Of the components.
    """

    def __init__(self, block: Array, weights: Array) -> None:
        self.block, self._weights = block, weights
        self._missing = set(range(len(weights)))
        self._lengths = np.linalg.norm(block, axis=0)
        self.product = np.zeros_like(block)
        self.parts = np.zeros(block.shape[1])  # how long the parts of each column are, added up

    @property
    def complete(self) -> bool:
        """Whether every component has answered."""
        return not self._missing

    def wants(self, component: int) -> bool:
        return component in self._missing

    def beside(self, query: Query | None) -> Query | None:
        """The query with the probe beside its block; the probe alone where there is no query."""
        if query is None:
            return Query("apply", {"block": self.block}, {OPTION: self.block.shape[1]})
        if query.procedure != "apply":
            return query
        block = np.ascontiguousarray(np.hstack([query.arrays["block"], self.block]))
        options = {**query.options, OPTION: self.block.shape[1]}
        return replace(query, arrays={**query.arrays, "block": block}, options=options)

    def take(self, component: int, product: Array) -> None:
        """One component's answer; a second one changes nothing."""
        if component in self._missing:
            self._missing.discard(component)
            weight = float(self._weights[component])
            self.product += weight * product
            self.parts += weight * np.linalg.norm(product, axis=0) / self._lengths
