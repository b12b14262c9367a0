"""What the theorems promise for a problem, as a table, beside what is seen when it is tried."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia import geometry
from grassia._checks import require_count, require_positive
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.theory import rates, steps
from grassia.theory.certified import CertifiedConstants, certified_constants
from grassia.theory.constants import ZETA, Constants

FIRST, WIDTH = 24, 12  # of the columns of the table


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run showed.

    Attributes
    ----------
    step : float
        The last step taken.
    rate : float
        By which the squared distance shrank with an update, over the second half of the run.
    iterations : int or None
        Updates to a squared distance of `epsilon`; None if it did not come nearer.
    reached : bool
        Whether it was reached; else `iterations` goes on with the rate that was seen.
    staleness : int
        The largest age of an entry of the aggregate.
    """

    step: float
    rate: float
    iterations: int | None
    reached: bool
    staleness: int


@dataclass(frozen=True, slots=True)
class Promise:
    """One theorem: the start it needs, the largest step, the rate, the updates, and what was observed.

    `rate` is the factor of the bound of the squared distance with each update. `rate` and `iterations` are
    None where nothing is promised.
    """

    name: str
    start: str
    step: float | None
    rate: float | None
    iterations: int | None
    observed: Observed | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The table of `plan`."""

    constants: Constants
    certified: CertifiedConstants | None
    tau: int
    epsilon: float
    promises: tuple[Promise, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """The rows, for a table of your own."""
        return [
            {
                "theorem": one.name,
                "start": one.start,
                "step": one.step,
                "rate": one.rate,
                "iterations": one.iterations,
                "observed_step": None if one.observed is None else one.observed.step,
                "observed_rate": None if one.observed is None else one.observed.rate,
                "observed_iterations": None if one.observed is None else one.observed.iterations,
                "observed_staleness": None if one.observed is None else one.observed.staleness,
            }
            for one in self.promises
        ]

    def __str__(self) -> str:
        c = self.constants
        names = ("step", "1 - rate", "updates")
        seen = ("seen: step", "1 - rate", "updates", "staleness")
        watched = any(one.observed is not None for one in self.promises)
        head = f"{'':<{FIRST}}" + "".join(f"{name:>{WIDTH}}" for name in names + (seen if watched else ()))
        lines = [
            str(self.certified)
            if self.certified is not None
            else f"delta {c.delta:.6g}, nu {c.nu:.6g}, nu_avg {c.nu_avg:.6g}",
            f"k {c.k}, staleness tau {self.tau}, squared distance wanted {self.epsilon:g}",
            head,
        ]
        lines += [self._line(one, watched) for one in self.promises]
        starts = [f"{one.name}: {one.start}" for one in self.promises if one.start]
        notes = ["~ the rate seen, carried on; the run was shorter"] if self._carried_on else []
        return "\n".join([*lines, *starts, *notes])

    @property
    def _carried_on(self) -> bool:
        seen = [one.observed for one in self.promises if one.observed is not None]
        return any(one.iterations is not None and not one.reached for one in seen)

    def _line(self, one: Promise, watched: bool) -> str:
        cells = [
            _number(one.step),
            _number(None if one.rate is None else 1.0 - one.rate),
            _count(one.iterations),
        ]
        seen = one.observed
        if watched and seen is not None:
            mark = "" if seen.reached or seen.iterations is None else "~"
            cells += [_number(seen.step), _number(1.0 - seen.rate), mark + _count(seen.iterations)]
            cells += [str(seen.staleness)]
        return f"{one.name:<{FIRST}}" + "".join(f"{cell:>{WIDTH}}" for cell in cells)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value < 1e8 else f"{value:.2e}"


def plan(
    problem: Any,
    tau: int,
    epsilon: float,
    *,
    k: int | None = None,
    weights: Any = None,
    backend: Any = "serial",
    observe: int = 300,
    rng: Any = 0,
) -> Plan:
    """What the two theorems promise for a problem: step, rate, updates; beside what is observed.

    Parameters
    ----------
    problem : Constants, CertifiedConstants or components
        Components, as `grassia.eigenspace` takes them, are measured first; with `k`.
    tau : int
        The largest staleness: how many updates old an entry of the aggregate can be. Visiting n components
        in turn makes it n - 1.
    epsilon : float
        The squared geodesic distance wanted.
    k : int
        Dimension, where components are given.
    weights, backend, rng
        As in `grassia.eigenspace`, for measuring the constants.
    observe : int
        So many updates are tried with the step of each theorem, and of `step="auto"` as many as it takes up
        to ten times that, on the simulated back-end. 0: none. Only where components are given.

    Returns
    -------
    Plan
        `print` it, or see `promises`.

    Examples
    --------
    >>> constants = Constants(k=2, delta=0.5, nu=2.0, nu_i=(2.0, 3.0), nu_avg=2.5)
    >>> found = plan(constants, tau=8, epsilon=1e-6)
    >>> [promise.name for promise in found.promises]
    ['Theorem 1, broad basin', 'Theorem 2, local']
    >>> found.promises[0].step < found.promises[1].step
    True
    """
    require_count(tau, "`tau`", least=0)
    require_positive(epsilon, "`epsilon` (a squared distance)")
    certified: CertifiedConstants | None = None
    trial: Trial | None = None
    if isinstance(problem, Constants | CertifiedConstants):
        certified = problem if isinstance(problem, CertifiedConstants) else None
        constants = problem.guaranteed if isinstance(problem, CertifiedConstants) else problem
        if k is not None and k != constants.k:
            raise InvalidInput(f"`k` is that of the constants, {constants.k}; got {k}. Leave it out.")
    else:
        if k is None:
            raise InvalidInput("`k` must be given with components; got None. Give theory.plan(..., k=...).")
        require_count(observe, "`observe`", least=0)
        certified = certified_constants(problem, k, weights=weights, backend=backend, rng=rng)
        constants = certified.guaranteed
        trial = Trial.of(problem, k, weights, tau, epsilon, observe, rng) if observe else None
    if not constants.delta > 0.0:
        raise InvalidInput(
            f"the gap after k={constants.k} must be positive for the theorems to say anything; no positive "
            f"lower bound was found ({certified.delta if certified else constants.delta}). Take another k."
        )
    promises = [_broad(constants, tau, epsilon), _local(constants, tau, epsilon)]
    if trial is not None:
        small = math.asin(min(1.0, math.sqrt(constants.delta / (3.0 * constants.nu * constants.k))))
        seen = [
            trial.run(promises[0].step, ZETA, observe),
            trial.run(promises[1].step, small, observe),
            trial.run("auto", ZETA, 10 * observe),
        ]
        promises.append(Promise('step="auto"', "none is promised", None, None, None))
        promises = [
            Promise(one.name, one.start, one.step, one.rate, one.iterations, found)
            for one, found in zip(promises, seen, strict=True)
        ]
    return Plan(constants, certified, tau, float(epsilon), tuple(promises))


def _broad(c: Constants, tau: int, epsilon: float) -> Promise:
    eta = steps.broad_step(c.k, c.nu, c.nu_avg, c.delta, tau)
    gap = c.nu * ZETA**2  # no start within zeta has more (objective-gap bounds)
    return Promise(
        "Theorem 1, broad basin",
        f"from within {ZETA:.3f} of the target",
        eta,
        rates.broad_rate(c.delta, eta),
        rates.broad_iterations(epsilon, gap, c.delta, eta),
    )


def _local(c: Constants, tau: int, epsilon: float) -> Promise:
    eta = steps.local_step(c.k, c.nu, c.nu_avg, c.delta, tau)
    return Promise(
        "Theorem 2, local",
        "from an objective gap of 4 delta / 9",
        eta,
        rates.local_rate(c.delta, eta),
        rates.local_iterations(epsilon, 4.0 * c.delta / 9.0, c.delta, eta),
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """Runs of GRASSIA on the problem itself, with as much staleness as asked for."""

    components: Any
    weights: Any
    target: Array
    services: list[float]
    tau: int
    epsilon: float
    seed: int

    @classmethod
    def of(
        cls, components: Any, k: int, weights: Any, tau: int, epsilon: float, observe: int, rng: Any
    ) -> Trial:
        from grassia.api import eigenspace  # it stands above the solvers, which use this package
        from grassia.data import as_components

        loaders = as_components(components)
        tol = min(1e-6, 0.01 * math.sqrt(epsilon))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the target is as good as the precision allows
            target = eigenspace(loaders, k, weights=weights, tol=max(tol, 1e-12), rng=rng).vectors
        # An answer asked for at version v is used until the next one comes: nearly twice its time later.
        slow = float(tau // 2 + 1)
        seed = int(rng) if isinstance(rng, int | np.integer) else 0
        return cls(loaders, weights, target, [1.0] * (len(loaders) - 1) + [slow], tau, epsilon, seed)

    def start(self, distance: float) -> Array:
        """A point so far from the target, turned by the same angle in every direction."""
        d, k = self.target.shape
        noise = np.random.default_rng(self.seed).standard_normal((d, min(k, d - k)))
        outside = geometry.orthonormalize(noise, against=self.target)
        m = outside.shape[1]
        angle = min(distance / math.sqrt(m), math.pi / 2.0) if m else 0.0
        W = self.target.copy()
        W[:, :m] = W[:, :m] * math.cos(angle) + outside * math.sin(angle)
        return W

    def run(self, step: float | str | None, distance: float, updates: int) -> Observed:
        from grassia.api import eigenspace
        from grassia.backends import Simulated
        from grassia.backends.service import Fixed
        from grassia.solvers.grassia import Grassia

        mode = "synchronous" if self.tau == 0 else "asynchronous"
        squares: list[float] = []
        worst = 0

        def watch(progress: Any) -> bool:
            nonlocal worst
            if progress.vectors is None:
                return False
            worst = progress.state.worst
            if progress.version >= len(squares):
                squares.append(geometry.geodesic_distance(self.target, progress.vectors) ** 2)
            return progress.version >= updates or squares[-1] <= self.epsilon

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is stopped, and need not converge
            result = eigenspace(
                self.components,
                self.target.shape[1],
                weights=self.weights,
                solver=Grassia(step=step if step is not None else "auto", mode=mode),
                backend=Simulated(Fixed(self.services)),
                v0=self.start(distance),
                tol=1e-12,
                rng=self.seed,
                callbacks=[watch],
            )
        return self._seen(squares, result.history["step"], worst)

    def _seen(self, squares: list[float], taken: Array, worst: int) -> Observed:
        done = len(squares) - 1
        half = done // 2
        first, last = max(squares[half], 1e-300), max(squares[-1], 1e-300)
        rate = (last / first) ** (1.0 / max(1, done - half))
        reached = squares[-1] <= self.epsilon
        count: int | None = done
        if not reached:
            more = math.log(last / self.epsilon) / -math.log(rate) if 0.0 < rate < 1.0 else math.inf
            count = done + math.ceil(more) if math.isfinite(more) else None
        return Observed(float(taken[-1]) if len(taken) else math.nan, rate, count, reached, worst)
