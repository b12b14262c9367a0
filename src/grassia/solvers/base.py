"""What a solver is: frozen configuration, a state that is a separate value, and pure steps on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np

from grassia.messages import Array, Query, Scalar

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is known once every component was opened.

    `weights` sum to one; `total` is the exact trace of A where it is known; `positive` says that A is known
    to be positive semidefinite; `largest_group` is the most components that share one worker; `noise` is how
    far products may be off beyond rounding at the size of A; `beyond` are orthonormal directions to follow
    beside the start, where the user has given more than k; `cold` says that the start is random; `tol` is the
    sine asked for, 0 where nobody has said.
    """

    n: int
    d: int
    k: int
    weights: Array
    total: float | None
    positive: bool
    largest_group: int = 1
    noise: float = 0.0
    beyond: Array | None = None
    cold: bool = False
    tol: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One accepted answer: whose, at which version it was asked, how stale it is now."""

    component: int
    version: int
    staleness: int
    arrays: Mapping[str, Array]
    scalars: Mapping[str, Scalar]


class _Iterate(Protocol):
    """What most states have."""

    version: int
    W: Array
    residual: float | None


class Solver(ABC, Generic[StateT]):
    """Base of every solver. Subclasses are frozen dataclasses.

    A solver has no clock, does no input or output and draws no random number but from the generator it
    is given. The server calls `ask` for a worker that is free, `tell` with what arrived, and never
    looks into the state but through the methods below.
    """

    name: ClassVar[str]
    order: str = "cyclic"
    #: Whether the server may take back a question before it is answered: not where a worker remembers it.
    recalls: ClassVar[bool] = False
    #: Whether `claimed` is as good as the iterate is, so that a certificate may begin with it.
    vouches: ClassVar[bool] = False
    #: Whether it can begin with some of the components, before the others are open; see `reposed`.
    early: ClassVar[bool] = False

    def server_bytes(self, n: int, d: int, k: int) -> int:
        """About how much memory the state takes on the server: a few iterates unless said otherwise."""
        return 8 * 8 * d * k

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, Any] | None:
        """Consistent products wanted before the start (as `certify` does it), or None.

        `noise` gives what the products so far may be off by, beyond rounding at the size of A.
        """
        return None

    @abstractmethod
    def init(self, problem: Problem, W: Array, prepared: Any) -> StateT:
        """The state before anything was asked; `W` is the orthonormal start."""

    def reposed(self, state: StateT, problem: Problem, moved: Callable[[int, Array], Array]) -> StateT:
        """The state for a problem with the same components, whose weights and mean were provisional.

        `moved(i, V)` is to be added to what component i has said of `V`. Only of solvers that say `early`.
        """
        raise NotImplementedError

    def round(self, state: StateT) -> int | None:
        """The number of the current round, in which each component is asked once; None: no rounds."""
        return None

    @abstractmethod
    def ask(self, state: StateT, component: int) -> Query | None:
        """What to ask of a component now; None when there is nothing."""

    def outdated(self, state: StateT, component: int) -> bool:
        """Whether to take back what a component was asked and ask anew: it would know so much better now.

        Only of solvers that say `recalls`.
        """
        return False

    def premature(self, state: StateT, component: int) -> bool:
        """Whether a component that is late had better be asked a little later, when more is known."""
        return False

    @abstractmethod
    def tell(self, state: StateT, arrivals: Sequence[Arrival]) -> StateT:
        """Absorb the arrived subset and move the iterate where the method says so."""

    def lost(self, state: StateT, component: int) -> StateT:
        """The worker that held this component died, with whatever it had cached."""
        return state

    def version(self, state: StateT) -> int:
        """How many times the iterate has moved; `state.version`, unless said otherwise."""
        return cast(_Iterate, state).version

    def subspace(self, state: StateT) -> Array:
        """The current iterate, orthonormal (d, k); `state.W`, unless said otherwise."""
        return cast(_Iterate, state).W

    def residual(self, state: StateT) -> float | None:
        """Estimated norm of the residual of the iterate, however stale; None before there is one.

        `state.residual`, unless said otherwise.
        """
        return cast(_Iterate, state).residual

    @abstractmethod
    def scale(self, state: StateT) -> float:
        """A number of the size of the wanted eigenvalues, to measure residuals against."""

    def gap(self, state: StateT) -> float | None:
        """What to divide the residual by for the sine of the largest angle, as the method sees it.

        The eigengap after k; more where the residual is that of vectors far above the cut. None where a
        method does not look beyond k. It says when to ask for a certificate; nothing is proved by it.
        """
        return None

    def after(self, state: StateT) -> float | None:
        """The eigenvalue after the cut, as the method sees it; None where it does not look beyond k."""
        return None

    def step_size(self, state: StateT) -> float:
        """The step last taken; NaN for a method that has none."""
        return float("nan")

    def report(self, state: StateT) -> dict[str, Any]:
        """What else the method has to tell, for `result.stats`."""
        return {}

    def refine(self, state: StateT) -> StateT:
        """Nobody has anything left to do: finish whatever was left inexact. May lead to new questions."""
        return state

    def lower_bound(self, state: StateT) -> float:
        """A rigorous lower bound of the best captured variance; NaN where the method gives none."""
        return float("nan")

    def beside(self, state: StateT) -> Array | None:
        """Orthonormal directions beside the iterate that a certificate should multiply too, or None.

        What a method follows beyond k is the first thing that could be wrong, and once it is explored a
        certificate needs fewer sweeps.
        """
        return None

    def known(self, state: StateT) -> tuple[Array, Array] | None:
        """The same with their products, where the method has them; verified, not trusted."""
        return None

    def claimed(self, state: StateT) -> Array | None:
        """The product of A with the iterate, where the method has it; verified, not trusted.

        A certificate then needs not multiply `W` again.
        """
        return None

    def matrix(self, state: StateT) -> tuple[Array, float] | None:
        """`A` itself, where the method holds it, with the size of the parts that were summed up; or None.

        A certificate then needs no sweep.
        """
        return None

    def sweep_query(self, state: StateT, component: int, block: Array) -> Query:
        """The query by which a consistent sweep asks for `A_i block`; the first k columns are the iterate."""
        return Query("apply", {"block": block})

    def sweep_tell(self, state: StateT, component: int, product: Array) -> StateT:
        """Make use of one component's exact product with the frozen iterate."""
        return state

    def sweep_done(self, state: StateT, product: Array) -> StateT:
        """Make use of the exact product of A with the frozen iterate."""
        return state

    @abstractmethod
    def restart(self, state: StateT, W: Array) -> StateT:
        """Go on from another subspace: the current one was proved not to be the leading one."""

    def anew(self, state: StateT, W: Array) -> StateT:
        """Begin anew from `W` and forget every product: they were not precise enough."""
        return self.restart(state, W)
