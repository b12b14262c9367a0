"""GRASSIA: incremental aggregation of stale component gradients on the Grassmannian.

Algorithm 1 of the paper, for any arriving subset: the server keeps the iterate `W` and the aggregate
`G = sum w_i G_i` of cached gradients `G_i = -2 (I - VV') A_i V`, each at the iterate `V` its worker was
last given. What arrives replaces its own entries, then `W <- Polar(W - eta G)`.

Who arrives decides the form: one component at the current iterate is the serial incremental method, all of
them the synchronous one (`mode="synchronous"`), whatever came in the asynchronous one.

Cost of an update: O(dk) for each arrival and O(d k^2) for the polar step, whatever n is. Memory of the
server: three d x k blocks and a few numbers for each component.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.components import Component
from grassia.ends import Interval, spread_of
from grassia.errors import InvalidInput
from grassia.messages import Array, Query, Scalar
from grassia.solvers.aggregate import Aggregate, contribute, put
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.guaranteed import Guarantee
from grassia.solvers.survey import survey
from grassia.spectrum import lanczos_spread
from grassia.theory.certified import CONFIDENCE, CertifiedConstants, Cut
from grassia.worker import Answer, Cache, finite_product, procedure


@dataclass(frozen=True, slots=True)
class Prepared:
    """For step="theory": a seed for the workers, and what a survey of the sum found, if one was made."""

    seed: int
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A value: every step makes a new one, arrays are never changed in place."""

    problem: Problem
    W: Array
    gradients: Aggregate
    version: int = 0
    captured: Any = None  # per component: trace(V'A_iV) at its last answer
    step: float = math.nan
    spread: Any = None  # per component: estimated spectral spread nu_i, or its upper bound
    least: Any = None  # per component: the lower bound of the same
    prepared: Prepared | None = None
    guarantee: Guarantee | None = None
    worst: int = 0  # largest staleness seen
    delay: float = 0.0  # sum of w_i nu_i tau_i: its recent maximum
    damping: float = 1.0
    window: tuple[float, float, int] = (math.inf, -math.inf, 0)  # least |G|, best captured, updates

    @property
    def G(self) -> Array:
        """The aggregate of the cached gradients."""
        return self.gradients.total

    @property
    def entry(self) -> Any:
        """Per component: the version of the cached gradient that `G` contains."""
        return self.gradients.entry


@dataclass(frozen=True)
class Grassia(Solver[State]):
    """GRASSIA, Algorithm 1 of the paper.

    Parameters
    ----------
    step : float, "auto" or "theory"
        A number is used as it is. "auto" adapts to the spreads of the components and to the staleness
        there is: `0.8 / (nu + 1.3 sum w_i nu_i tau_i)`, damped while the surrogate rises. "theory" is the
        guaranteed step of the broad-basin theorem, from certified bounds of nu, nu_avg and delta and the
        largest staleness seen or to be expected (or `tau`), and that of the local theorem once the
        objective gap is certified to be small enough; expect both to be small. `result.stats["theory"]`
        says what they were made of.
    mode : {"asynchronous", "synchronous"}
        Whether an update waits for all components.
    order : {"cyclic", "shuffled", "random"}
        In which order a worker that holds several components visits them.
    table : {"worker", "server"}
        Where the cached gradients are. "worker": the server stays O(dk), messages are corrections, a
        lost worker costs one re-summation. "server": O(ndk) memory, messages are whole gradients.
    resum_passes : int
        After so many passes the aggregate is summed anew from whole gradients, against rounding drift;
        no worker waits for it. 0 means never.
    delta : float, optional
        The eigengap, if known, for step="theory": no survey is made, and no switch to the local step.
    tau : int, optional
        A bound on the staleness, if known, for step="theory".
    spread_steps : int
        Lanczos steps a worker makes to estimate its spread ("auto").
    """

    step: float | str = "auto"
    mode: str = "asynchronous"
    order: str = "cyclic"
    table: str = "worker"
    resum_passes: int = 50
    delta: float | None = None
    tau: int | None = None
    spread_steps: int = 6

    name: ClassVar[str] = "grassia"

    def __post_init__(self) -> None:
        if isinstance(self.step, str):
            _one_of("step", self.step, ("auto", "theory"), "or a positive number")
        else:
            require_positive(self.step, "`step`")
        _one_of("mode", self.mode, ("asynchronous", "synchronous"))
        _one_of("order", self.order, ("cyclic", "shuffled", "random"))
        _one_of("table", self.table, ("worker", "server"))
        require_count(self.resum_passes, "`resum_passes`", least=0)
        require_count(self.spread_steps, "`spread_steps`")
        if self.tau is not None:
            require_count(self.tau, "`tau`", least=0)
        if self.delta is not None:
            require_positive(self.delta, "`delta`")

    # -- what the server calls ------------------------------------------------------------------

    def prepare(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, Prepared] | None:
        return self._surveyed(problem, rng, noise) if self.step == "theory" else None

    def _surveyed(
        self, problem: Problem, rng: np.random.Generator, noise: Callable[[], float]
    ) -> Generator[Array, Array, Prepared]:
        seed = int(rng.integers(2**62))
        if self.delta is not None:
            return Prepared(seed)
        # One half of what may go wrong is left to the components.
        cut = yield from survey(problem, rng, noise, confidence=(1.0 + CONFIDENCE) / 2.0)
        return Prepared(seed, cut)

    def init(self, problem: Problem, W: Array, prepared: Any) -> State:
        n = problem.n
        return State(
            problem=problem,
            W=W,
            gradients=Aggregate.empty(problem.weights, W, self.table == "server"),
            captured=np.zeros(n),
            spread=np.zeros(n),
            least=np.zeros(n),
            prepared=prepared,
        )

    def round(self, state: State) -> int | None:
        in_rounds = not state.gradients.started or self.mode == "synchronous"
        return state.gradients.round if in_rounds else None

    def ask(self, state: State, component: int) -> Query:
        options = state.gradients.options(component, state.version)
        if not state.gradients.started and self.step == "auto":
            options["spread_steps"] = self.spread_steps
        if state.prepared is not None and state.guarantee is None:
            options["spread_confidence"] = 1.0 - (1.0 - CONFIDENCE) / (2.0 * state.problem.n)
            options["seed"] = state.prepared.seed
        return Query("gradient", {"iterate": state.W}, options)

    def tell(self, state: State, arrivals: Sequence[Arrival]) -> State:
        for arrival in arrivals:
            state = self._absorb(state, arrival)
        in_rounds = self.round(state) is not None
        if not arrivals or (in_rounds and state.gradients.awaiting > 0):
            return state
        if in_rounds:
            state = replace(state, gradients=state.gradients.next_round())
        return self._move(state)

    def lost(self, state: State, component: int) -> State:
        return replace(state, gradients=state.gradients.lost(component))

    def residual(self, state: State) -> float | None:
        return float(np.linalg.norm(state.G)) / 2.0 if state.gradients.started else None

    def scale(self, state: State) -> float:
        captured = float(state.problem.weights @ state.captured)
        return max(abs(captured) / state.problem.k, np.finfo(np.float64).tiny)

    def step_size(self, state: State) -> float:
        return state.step

    def report(self, state: State) -> dict[str, Any]:
        return {} if state.guarantee is None else {"theory": state.guarantee.report()}

    # -- consistent sweeps ----------------------------------------------------------------------

    def sweep_query(self, state: State, component: int, block: Array) -> Query:
        options: dict[str, Scalar] = {
            "k": state.problem.k,
            "version": state.version,
            "cache": self.table == "worker",
        }
        return Query("gradient-sweep", {"block": block}, options)

    def sweep_tell(self, state: State, component: int, product: Array) -> State:
        captured = put(state.captured, component, float(np.sum(state.W * product)))
        gradient = geometry.riemannian_gradient(state.W, product)
        gradients = state.gradients.swept(component, state.version, gradient)
        return replace(state, gradients=gradients, captured=captured)

    def sweep_done(self, state: State, product: Array) -> State:
        exact = geometry.riemannian_gradient(state.W, product)
        return replace(state, gradients=state.gradients.swept_all(exact))

    def restart(self, state: State, W: Array) -> State:
        begun = self.init(state.problem, W, state.prepared)
        return replace(
            begun,
            spread=state.spread,
            least=state.least,
            guarantee=None if state.guarantee is None else state.guarantee.anew(),
            gradients=replace(begun.gradients, round=state.gradients.round + 1),
            version=state.version + 1,
            worst=state.worst,
        )

    # -- the algorithm --------------------------------------------------------------------------

    def _absorb(self, state: State, arrival: Arrival) -> State:
        i, scalars = arrival.component, arrival.scalars
        spread, least = state.spread, state.least
        if "spread" in scalars:
            spread = put(spread, i, float(scalars["spread"] or 0.0))
            least = put(least, i, float(scalars.get("least") or 0.0))
        return replace(
            state,
            gradients=state.gradients.absorb(i, arrival.version, arrival.arrays),
            captured=put(state.captured, i, float(scalars["captured"] or 0.0)),
            spread=spread,
            least=least,
        )

    def _move(self, state: State) -> State:
        worst = max(state.worst, state.gradients.staleness(state.version))
        state = replace(state, worst=worst, gradients=state.gradients.resummed(self.resum_passes))
        if self.step == "auto":
            state = _watch(_age(state))
        guarantee, tau = None, max(worst, self._expected(state.problem)) if self.tau is None else self.tau
        if self.step == "theory":
            guarantee = self._guarantee(state, tau)
        step = guarantee.step(tau) if guarantee is not None else self._step(state)
        W = geometry.polar(state.W - step * state.G)
        if guarantee is not None:
            guarantee = guarantee.moved(state.version, step, state.G)
        return replace(state, W=W, version=state.version + 1, step=step, guarantee=guarantee)

    def _expected(self, problem: Problem) -> int:
        """The staleness at equal speeds, before any was seen: asked after everybody, kept until the next."""
        if self.mode == "synchronous":
            return 0
        in_turn = problem.largest_group == problem.n and self.order == "cyclic"
        return (1 if in_turn else 2) * (problem.n - 1)

    def _guarantee(self, state: State, tau: int) -> Guarantee:
        guarantee = state.guarantee
        weights = state.problem.weights
        if guarantee is None:
            spreads = [
                Interval(float(low), float(high)) for low, high in zip(state.least, state.spread, strict=True)
            ]
            cut = None if state.prepared is None else state.prepared.cut
            found = CertifiedConstants.of(state.problem.k, weights, spreads, cut, self.delta)
            guarantee = Guarantee.of(found)
        return guarantee.looked(state.version, weights, state.captured, state.entry, tau)

    def _step(self, state: State) -> float:
        if not isinstance(self.step, str):
            return float(self.step)
        nu = float(state.problem.weights @ state.spread)  # an upper bound of the spread of the sum
        if nu <= 0.0:
            return 1.0  # every component is a multiple of the identity: any step does
        # Linearised, an equal delay tau is stable below sin(pi / (4 tau + 2)) / nu, and unequal ones
        # are milder; this stays under it for every tau. A component counts by its own spread.
        return state.damping * 0.8 / (nu + 1.3 * state.delay)


def _age(state: State) -> State:
    """Follow the weighted staleness. Its maximum counts, forgotten over some ten passes.

    The delay of the moment will not do: long steps taken while a heavy component is fresh, and short ones
    while it is stale, add up to too much between two of its answers.
    """
    ages = state.gradients.ages(state.version)
    now = float((state.problem.weights * state.spread) @ ages)
    return replace(state, delay=max(now, state.delay * (1.0 - 0.1 / state.problem.n)))


def _watch(state: State) -> State:
    """Damp the automatic step when a pass made things worse, and ease it slowly otherwise."""
    least, best, count = state.window
    size = float(np.linalg.norm(state.G))
    captured = float(state.problem.weights @ state.captured)
    count += 1
    if count % max(1, state.problem.n) != 0:
        return replace(state, window=(least, best, count))
    noise = 1e-9 * abs(captured)
    worse = captured < best - noise and size > 2.0 * least
    damping = max(0.5 * state.damping, 2.0**-20) if worse else min(1.0, 1.02 * state.damping)
    if worse:
        least, best = size, captured
    return replace(state, damping=damping, window=(min(least, size), max(best, captured), count))


def _one_of(name: str, value: str, allowed: tuple[str, ...], more: str = "") -> None:
    if value not in allowed:
        wanted = ", ".join(repr(one) for one in allowed)
        raise InvalidInput(f"`{name}` must be one of {wanted} {more}".rstrip() + f"; got {value!r}.")


# -- what the workers do ------------------------------------------------------------------------


@procedure("gradient")
def gradient(component: Component, cache: Cache, query: Query) -> Answer:
    """The component's gradient at an iterate; see `aggregate.contribute`."""
    V, options = query.arrays["iterate"], query.options
    product = finite_product(component, V)
    arrays = contribute(cache, "gradients", geometry.riemannian_gradient(V, product), query)
    scalars: dict[str, Scalar] = {"captured": float(np.sum(V * product))}
    if "spread_steps" in options:
        low, high = lanczos_spread(
            component.apply,
            component.n_features,
            int(options["spread_steps"] or 1),
            np.random.default_rng(0),
        )
        scalars["spread"] = high - low
    if "spread_confidence" in options:
        found = spread_of(
            component.apply,
            component.n_features,
            np.random.default_rng(int(options["seed"] or 0)),
            confidence=float(options["spread_confidence"] or 0.0),
            noise=component.moments().noise,
        )
        scalars["spread"], scalars["least"] = found.high, found.low
    return arrays, scalars


@procedure("gradient-sweep")
def gradient_sweep(component: Component, cache: Cache, query: Query) -> Answer:
    """The product with a block whose first k columns are the iterate, whose gradient is cached."""
    block, options = query.arrays["block"], query.options
    product = finite_product(component, block)
    if options["cache"]:
        k = int(options["k"] or 0)
        new = geometry.riemannian_gradient(block[:, :k], product[:, :k])
        cache["gradients"] = {int(options["version"] or 0): new}
    return {"product": product}, {}
