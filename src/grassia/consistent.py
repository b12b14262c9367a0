"""Consistent products: every component multiplies the same block; and courses of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from grassia.certifying import certify
from grassia.messages import Array
from grassia.solvers.base import Problem, Solver


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
    """One that everybody is asked for at once.

    `first` of its course; `of_iterate`: its first k columns are the iterate.
    """

    def __init__(self, block: Array, weights: Array, first: bool, of_iterate: bool) -> None:
        super().__init__(block, weights)
        self.first, self.of_iterate = first, of_iterate


class Course:
    """Sweeps one after the other: a generator that asks for them, and what brings it back to where it was.

    Parameters
    ----------
    kind : {"prepare", "certify"}
        What it is for.
    arguments : dict
        Of `certify`; none for the preparations of a solver.
    rng : numpy Generator
        Its state is noted: whoever begins again with it and hears the same products, asks the same.
    """

    def __init__(self, kind: str, arguments: dict[str, Any], rng: np.random.Generator) -> None:
        self.kind, self.arguments = kind, arguments
        self.drawn_from = rng.bit_generator.state
        self.heard: list[tuple[Array, float]] = []  # the products so far, with the size of their parts
        self.result: Any = None
        self._steps: Generator[Array, Array, Any] | None = None

    def begin(
        self,
        solver: Solver[Any],
        problem: Problem,
        rng: np.random.Generator,
        noise: Callable[[], float],
    ) -> None:
        """Make the generator; it draws from `rng`."""
        if self.kind == "prepare":
            self._steps = solver.prepare(problem, rng, noise)
        else:
            self._steps = certify(**self.arguments, rng=rng, noise=noise)

    def without_generator(self) -> Course:
        """The same, to be written down."""
        plain = copy.copy(self)
        plain._steps = None
        return plain

    def next(self, product: Array | None) -> Array | None:
        """The block to multiply next, after the product of the last one; None at the end, with `result`."""
        if self._steps is None:
            return None
        try:
            return next(self._steps) if product is None else self._steps.send(product)
        except StopIteration as end:
            self.result = end.value
            return None
