"""Watch a run of GRASSIA and say how much room each inequality of the paper leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia import geometry
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.theory import rates, steps
from grassia.theory.certified import CertifiedConstants
from grassia.theory.constants import ALPHA, ZETA, Constants, exact_constants, weighted_sum
from grassia.theory.statement import Sides, squared_distance_scale


@dataclass(frozen=True)
class Oracle:
    """A problem whose answer is known.

    Attributes
    ----------
    apply : callable
        `V -> A V`.
    target : ndarray (d, k)
        The leading eigenspace.
    optimum : float
        `lambda_1 + ... + lambda_k`.
    constants : Constants
        Of the problem.
    """

    apply: Callable[[Array], Array]
    target: Array
    optimum: float
    constants: Constants

    @classmethod
    def of(cls, components: Sequence[Any], k: int, weights: Any = None) -> Oracle:
        """From dense components, by dense eigenvectors: O(n d^3)."""
        A, _ = weighted_sum(components, weights)
        values, vectors = np.linalg.eigh(A)
        constants = exact_constants(components, k, weights)
        target = np.ascontiguousarray(vectors[:, ::-1][:, :k])
        return cls(lambda V: A @ V, target, float(np.sum(values[::-1][:k])), constants)


@dataclass(frozen=True)
class Finding:
    """One statement of the paper along a run.

    Attributes
    ----------
    name : str
        The result's name.
    sides : tuple of Sides
        Both sides at each update it was evaluated at.
    excuse : str
        Why the paper does not claim it for this run; empty where it does.
    bounded : bool
        Whether the left sides are only upper bounds, by which nothing can be refuted.
    """

    name: str
    sides: tuple[Sides, ...]
    excuse: str = ""
    bounded: bool = False

    @property
    def worst(self) -> Sides | None:
        """Where the least room was, relative to the size of the numbers."""
        return min(self.sides, key=_room, default=None)

    @property
    def holds(self) -> bool:
        """Whether it held everywhere it was evaluated."""
        return all(one.holds() for one in self.sides)

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.sides:
            return "not evaluated"
        if self.holds:
            return "holds" if not self.excuse else "holds, though not claimed"
        if self.bounded:
            return "not decided by the bounds there are"
        return "fails, and is not claimed" if self.excuse else "FAILS"


def _room(one: Sides) -> float:
    return one.slack / max(abs(one.left), abs(one.right), one.scale, 1e-300)


@dataclass(frozen=True)
class Report:
    """What `Monitor.report` gives: `print` it, or look at the findings."""

    findings: tuple[Finding, ...]
    updates: int
    tau: int
    step: float
    restarts: int = 0

    @property
    def holds(self) -> bool:
        """Whether no statement that the paper claims of this run was refuted."""
        return not any(one.verdict == "FAILS" for one in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(one for one in self.findings if one.name == name)

    def __str__(self) -> str:
        head = f"{self.updates} updates, largest staleness {self.tau}, largest step {self.step:.3g}"
        if self.restarts:
            head += f"; since the last of {self.restarts} restarts"
        lines = [head, f"{'':<34}{'checked':>8}{'least slack':>13}{'of':>11}  verdict"]
        for one in self.findings:
            worst = one.worst
            room = ("-", "-") if worst is None else (f"{worst.slack:.3g}", f"{abs(worst.right):.3g}")
            lines.append(f"{one.name:<34}{len(one.sides):>8}{room[0]:>13}{room[1]:>11}  {one.verdict}")
        excuses = {one.excuse for one in self.findings if one.excuse}
        return "\n".join([*lines, *(f"not claimed: {excuse}" for excuse in sorted(excuses))])


class Monitor:
    """A callback that follows GRASSIA and evaluates the paper's inequalities along the run.

    With an oracle every update is evaluated: one-step descent, the Lyapunov function, basin membership and
    the envelopes of both theorems. Without one, what a certificate tells: basin and envelope at the end. It
    costs one product with A for each update (with an oracle), and a few numbers of memory.

    Parameters
    ----------
    oracle : Oracle, optional
        The problem with its answer.
    constants : Constants or CertifiedConstants, optional
        Without an oracle; by default those that a run with step="theory" finds itself.
    zeta, alpha : float
        Radii of start and basin.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> from grassia import theory
    >>> components = [np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 0.0])]
    >>> monitor = theory.Monitor(theory.Oracle.of(components, 1))
    >>> start = np.array([[1.0], [0.3], [0.1]])
    >>> result = grassia.eigenspace(
    ...     components, 1, v0=start, solver=grassia.solvers.Grassia(step="theory"), tol=1e-3,
    ...     callbacks=[monitor],
    ... )
    >>> report = monitor.report(result)
    >>> report.holds, report["one-step descent"].verdict
    (True, 'holds')
    """

    def __init__(
        self,
        oracle: Oracle | None = None,
        *,
        constants: Constants | CertifiedConstants | None = None,
        zeta: float = ZETA,
        alpha: float = ALPHA,
    ) -> None:
        if constants is not None and not isinstance(constants, Constants | CertifiedConstants):
            raise InvalidInput(f"`constants` must be Constants or CertifiedConstants; got {constants!r}.")
        steps.check_radii(zeta, alpha)
        self.oracle, self.zeta, self.alpha = oracle, zeta, alpha
        self._certified = constants if isinstance(constants, CertifiedConstants) else None
        self._given = constants if isinstance(constants, Constants) else None
        self._version = -1
        self._skipped = 0
        self._restarts = 0
        self._tau = 0
        self._begin()

    def _begin(self) -> None:
        """Forget what was before a start."""
        self._size = 0.0
        self._switch: int | None = None  # when a run with step="theory" took to Theorem 2
        self._first: float = math.nan  # captured at the start
        self._gaps: list[float] = []
        self._distances: list[float] = []
        self._energies: list[float] = []
        self._sizes: list[float] = []
        self._steps: list[float] = []

    def __call__(self, progress: Any) -> None:
        """Take note of an update; the run calls this."""
        state = progress.state
        state = getattr(state, "inner", state)  # of a run that began at the average of local eigenspaces
        if state is None:
            return
        if not hasattr(state, "gradients"):
            raise InvalidInput('theory.Monitor follows solver="grassia"; this run has another solver.')
        version = int(state.version)
        if version == self._version:
            return
        if version != self._version + 1:
            self._skipped += 1
        if math.isnan(state.step):  # it has not moved yet: a start, perhaps from a better subspace
            self._restarts += self._version >= 0
            self._begin()
        else:
            self._moved(state)
        self._look(state.W)
        self._version = version

    def _moved(self, state: Any) -> None:
        self._tau = max(self._tau, int(state.worst))
        self._sizes.append(float(np.sum(state.G**2)))
        self._steps.append(float(state.step))
        if len(self._steps) == 1:
            self._first = float(state.problem.weights @ state.captured)
        if state.guarantee is not None:
            self._certified = self._certified or state.guarantee.constants
            self._switch = state.guarantee.since

    def _look(self, W: Array) -> None:
        if self.oracle is None:
            return
        if W.shape != self.oracle.target.shape:
            raise InvalidInput(
                f"the oracle must be of the run's own problem; its target is {self.oracle.target.shape}, "
                f"the iterate {W.shape}."
            )
        product = self.oracle.apply(W)
        self._size = max(self._size, float(np.max(np.linalg.norm(product, axis=0))))
        self._gaps.append(self.oracle.optimum - float(np.sum(W * product)))
        self._distances.append(float(geometry.geodesic_distance(self.oracle.target, W)))
        self._energies.append(float(np.sum(geometry.riemannian_gradient(W, product) ** 2)))

    # -- afterwards -----------------------------------------------------------------------------

    def report(self, result: Any = None) -> Report:
        """What was found; with the run's `Result` also what its certificate tells."""
        if not self._steps and not self._skipped:
            raise InvalidInput("the monitor has seen no update; pass it in `callbacks` of the run first.")
        if self._skipped:
            raise InvalidInput(
                f"every update must be seen for the inequalities between them; {self._skipped} were not. "
                "Use a fresh monitor for each run, from its start."
            )
        constants = self._constants()
        findings = () if self.oracle is None else self._evaluated(constants)
        if result is not None and constants.delta > 0.0:
            findings = (*findings, *self._certificate(result, constants))
        return Report(findings, len(self._steps), self._tau, max(self._steps), self._restarts)

    def _constants(self) -> Constants:
        if self.oracle is not None:
            return self.oracle.constants
        if self._given is not None:
            return self._given
        if self._certified is None:
            raise InvalidInput(
                'constants are needed without an oracle: run step="theory", which finds them, or give '
                "theory.certified_constants(...) as `constants`."
            )
        return self._certified.guaranteed

    def _evaluated(self, c: Constants) -> tuple[Finding, ...]:
        until = len(self._steps) if self._switch is None else self._switch
        distances = self._distances[: until + 1]
        gaps, squares = np.array(self._gaps[: until + 1]), np.array(distances) ** 2
        oracle = self.oracle
        assert oracle is not None
        scale = abs(oracle.optimum) + c.nu
        descent = Finding("one-step descent", self._descent(c, scale), self._descent_excuse(c))
        if not c.delta > 0.0:
            return (descent,)  # there is no target that the others could speak of
        excuse = self._too_long(self._broad_step, "of Theorem 1", c, slice(until))
        if not excuse and distances[0] > self.zeta:
            excuse = f"the start is {distances[0]:.3g} from the target, not within {self.zeta:.3g}"
        eta = max(self._steps[:until], default=0.0)
        weight = steps.lyapunov_weight(c.k, c.nu_avg, c.delta, self._tau, eta, self.alpha)
        values = weight * gaps + squares
        return (
            descent,
            Finding("Lyapunov function", self._under(values, values[0], weight * scale), excuse),
            Finding("basin membership", self._under(distances, self.alpha, 0.0), excuse),
            Finding("envelope of Theorem 1", self._envelope(c, 0, False)[: until + 1], excuse),
            self._local(c),
        )

    def _under(self, values: Sequence[float] | Array, limit: float, scale: float) -> tuple[Sides, ...]:
        if not math.isfinite(limit):
            return ()
        return tuple(Sides("", float(value), float(limit), scale) for value in values)

    def _descent(self, c: Constants, scale: float) -> tuple[Sides, ...]:
        """Proposition 2 with the steps that were taken; with a constant one it is the paper's own."""
        found = []
        moved = np.array(self._steps) ** 2 * np.array(self._sizes)
        for t, eta in enumerate(self._steps):
            recent = float(np.sum(moved[max(0, t - self._tau) : t]))
            right = -eta * self._energies[t] / 4.0 - eta * self._sizes[t] / 2.0
            right += 144.0 * c.nu_avg**2 * self._tau * eta * recent
            found.append(Sides("", self._gaps[t + 1] - self._gaps[t], right, scale))
        return tuple(found)

    def _descent_excuse(self, c: Constants) -> str:
        limit, eta = steps.descent_step(c.k, c.nu, c.nu_avg), max(self._steps)
        return "" if eta <= limit * (1.0 + 1e-9) else f"step {eta:.3g} is above eta_0 = {limit:.3g}"

    def _broad_step(self, k: int, nu: float, nu_avg: float, delta: float, tau: int) -> float:
        return steps.broad_step(k, nu, nu_avg, delta, tau, self.zeta, self.alpha)

    def _too_long(self, limit_of: Callable[..., float], whose: str, c: Constants, when: slice) -> str:
        limit = limit_of(c.k, c.nu, c.nu_avg, c.delta, self._tau)
        eta = max(self._steps[when], default=0.0)
        if eta <= limit * (1.0 + 1e-9):
            return ""
        return f"step {eta:.3g} is above that {whose}, {limit:.3g}, for a staleness of {self._tau}"

    def _local_start(self, c: Constants) -> int | None:
        """From when on Theorem 2 may be held against the run."""
        if self._switch is not None:
            return self._switch
        for t in np.flatnonzero(np.array(self._gaps) <= 4.0 * c.delta / 9.0):
            if self._gaps[t] + self._charge(c, int(t)) <= 4.0 * c.delta / 9.0:
                return int(t)
        return None

    def _charge(self, c: Constants, since: int) -> float:
        """What the stale table adds where Theorem 2 takes over; see `rates.switch_charge`."""
        eta = max(self._steps[since:], default=0.0)
        before = slice(max(0, since - self._tau), since)
        moved = np.array(self._steps[before]) ** 2 * np.array(self._sizes[before])
        return rates.switch_charge(c.nu_avg, self._tau, eta, float(np.sum(moved)))

    def _local(self, c: Constants) -> Finding:
        name, since = "envelope of Theorem 2", self._local_start(c)
        if since is None:
            return Finding(name, (), "the objective gap never came down to 4 delta / 9")
        excuse = self._too_long(steps.local_step, "of Theorem 2", c, slice(since, None))
        return Finding(name, self._envelope(c, since, True), excuse)

    def _envelope(self, c: Constants, since: int, local: bool) -> tuple[Sides, ...]:
        squares = np.array(self._distances[since:]) ** 2
        bounds = self._height(c, since, local) * self._decay(c, since, local)
        scale = squared_distance_scale(self._size, c.delta)
        return tuple(Sides("", float(a), float(b), scale) for a, b in zip(squares, bounds, strict=True))

    def _height(self, c: Constants, since: int, local: bool) -> float:
        assert self.oracle is not None
        # A gap is a difference of numbers of this size, and known no better than they are.
        rounding = 32.0 * float(np.finfo(np.float64).eps) * (abs(self.oracle.optimum) + self._size)
        gap = max(self._gaps[since], 0.0) + rounding
        if not local:
            return _broad_height(c, gap, self.alpha)
        return math.pi**2 * (gap + self._charge(c, since)) / (4.0 * c.delta)

    def _decay(self, c: Constants, since: int, local: bool) -> Array:
        share = 0.25 if local else math.cos(self.alpha) ** 2
        factors = 1.0 - share * c.delta * np.array(self._steps[since:])
        return np.concatenate([[1.0], np.cumprod(factors)])

    def envelopes(self) -> tuple[Array, Array]:
        """Bounds of the distance after 0, 1, 2, ... updates, of Theorems 1 and 2.

        Those of the second are NaN before the objective gap is small enough. Needs an oracle.
        """
        c = self._constants()
        broad = np.sqrt(self._height(c, 0, False) * self._decay(c, 0, False))
        local, since = np.full(len(broad), math.nan), self._local_start(c)
        if since is not None:
            local[since:] = np.sqrt(self._height(c, since, True) * self._decay(c, since, True))
        return broad, local

    @property
    def distances(self) -> Array:
        """Geodesic distances to the target after 0, 1, 2, ... updates; with an oracle."""
        return np.array(self._distances)

    def _certificate(self, result: Any, c: Constants) -> tuple[Finding, ...]:
        """At the end, from the certificate: upper bounds, which can show that a statement holds."""
        certificate = result.certificate
        if certificate is None:
            return ()
        sine = min(1.0, certificate.sin_theta.value)
        angles = min(c.k, result.vectors.shape[0] - c.k)
        distance = math.sqrt(angles) * math.asin(sine)
        since = self._switch
        until = len(self._steps) if since is None else since
        excuse = self._too_long(self._broad_step, "of Theorem 1", c, slice(until))
        found = [Finding("basin, by the certificate", self._under([distance], self.alpha, 0.0), excuse, True)]
        if self._certified is not None and math.isfinite(self._certified.optimum.high):
            # To the start all answers were given, so that what it captures is known exactly.
            first = _broad_height(c, self._certified.optimum.high - self._first, self.alpha)
            if since is None:
                sides = (Sides("", distance**2, first * float(self._decay(c, 0, False)[-1]), 1e-14),)
                found.append(Finding("Theorem 1, by the certificate", sides, excuse, True))
            else:
                excuse = self._too_long(steps.local_step, "of Theorem 2", c, slice(since, None))
                # When it took over, the gap was certified to be no more than this.
                height = math.pi**2 / 9.0 * float(self._decay(c, since, True)[-1])
                sides = (Sides("", distance**2, height, 1e-14),)
                found.append(Finding("Theorem 2, by the certificate", sides, excuse, True))
        return tuple(found)


def _broad_height(c: Constants, gap: float, alpha: float) -> float:
    """The envelope of Theorem 1 at the start."""
    return alpha**2 * max(gap, 0.0) / (c.delta * math.sin(alpha) ** 2)
