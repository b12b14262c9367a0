"""What those who are open do while others still open: a straggler need not be waited for, not even at first.

A run could begin once every component has told its row count and mean, for the weights and the common mean
depend on all of them. A slow worker would have everybody wait then. So as soon as half of the components are
open, they are asked the solver's questions with weights and a mean that are provisional. Where all are open
both are known, and the solver takes over what was learnt: weights are factors, and another mean changes the
product of a component in a way that its own mean tells exactly,

    A_i(mu) V = A_i(c) V + o (o' V) - p (p' V),   o = mu_i - mu,  p = mu_i - c.

When the last one has opened, it is asked about what the others have found, not about a random block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from grassia.messages import Array, Query
from grassia.moments import PooledMoments
from grassia.solvers.base import Arrival, Problem, Solver

ANSWERS = 6  # of each component: by then those that are open know what there is to know without the rest


class Prelude:
    """The solver's first steps, with those components that are open.

    Parameters
    ----------
    solver : Solver
        One that says `early`.
    problem : Problem
        Of all components, with provisional weights.
    start : ndarray (d, k)
        Orthonormal.
    mean : ndarray (d,) or None
        The provisional mean; None where components are not centred.
    """

    def __init__(self, solver: Solver[Any], problem: Problem, start: Array, mean: Array | None) -> None:
        self.solver, self.problem, self.start, self.mean = solver, problem, start, mean
        self.state = solver.init(problem, start, None)
        self.answers = np.zeros(problem.n, dtype=np.int64)
        self.heard: list[Arrival] = []

    @staticmethod
    def fits(solver: Solver[Any], moments: PooledMoments) -> bool:
        """Whether there is something to be gained, and nothing to be feared."""
        return (
            solver.early and moments.positive and 2 * moments.reported >= moments.n and not moments.complete
        )

    @property
    def version(self) -> int:
        return self.solver.version(self.state)

    def ask(self, place: int) -> Query | None:
        """A question for a component that is open."""
        return self.solver.ask(self.state, place) if self.answers[place] < ANSWERS else None

    def turn(self) -> int:
        """Take what came in; how many answers there were."""
        arrivals, self.heard = self.heard, []
        if arrivals:
            self.state = self.solver.tell(self.state, arrivals)
            self.answers[[arrival.component for arrival in arrivals]] += 1
        return len(arrivals)

    def end(self, problem: Problem, mean: Array | None, means: Mapping[int, Array]) -> Any:
        """The solver's state for the problem itself."""

        def moved(place: int, V: Array) -> Array:
            """What another mean changes of the product of a component with `V`."""
            if mean is None or self.mean is None:
                return np.zeros_like(V)
            now, then = means[place] - mean, means[place] - self.mean
            return np.asarray(np.outer(now, now @ V) - np.outer(then, then @ V))

        return self.solver.reposed(self.state, problem, moved)
