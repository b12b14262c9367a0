"""Consistent products: every component multiplies the same block."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from grassia.messages import Array


class ConsistentProduct:
    """`sum w_i A_i block` over the components heard so far, each of which counts once.

    >>> product = ConsistentProduct(np.eye(2), np.array([0.5, 0.5]))
    >>> for component, matrix in ((1, np.eye(2)), (0, 3 * np.eye(2)), (1, np.eye(2))):
    ...     product.take(component, matrix)
    >>> product.complete, float(product.total[0, 0]), float(product.parts[0])
    (True, 2.0, 2.0)
    """

    def __init__(self, block: Array, weights: Array) -> None:
        self.block, self._weights = block, weights
        self._missing = set(range(len(weights)))
        self._lengths = np.linalg.norm(block, axis=0)
        self.total = np.zeros_like(block)
        self.parts = np.zeros(block.shape[1])  # how long the parts of each column are, added up

    @property
    def awaiting(self) -> int:
        """How many components have not answered."""
        return len(self._missing)

    @property
    def complete(self) -> bool:
        """Whether every component has answered."""
        return self.awaiting == 0

    def wants(self, component: int) -> bool:
        return component in self._missing

    def take(self, component: int, product: Array) -> None:
        """One component's answer; a second one changes nothing."""
        if component in self._missing:
            self._missing.discard(component)
            weight = float(self._weights[component])
            self.total += weight * product
            self.parts += weight * np.linalg.norm(product, axis=0) / self._lengths


class Sweep(ConsistentProduct):
    """One that everybody is asked for at once, by a generator that waits for it.

    `first` of a certificate; `of_iterate`: its first k columns are the iterate.
    """

    def __init__(
        self, steps: Generator[Array, Array, Any], block: Array, weights: Array, first: bool, of_iterate: bool
    ) -> None:
        super().__init__(block, weights)
        self.steps, self.first, self.of_iterate = steps, first, of_iterate
