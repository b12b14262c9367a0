"""Certify an eigenspace from consistent products only, and say how far each number can be trusted.

`certify` is a generator: it yields a block `V`, is sent `A V` (every component applied to the same `V`)
and in the end returns an `Outcome`. It knows no server and no back-end, so the server, a test or the
command line can drive it alike.

The reasoning. Let `W` be frozen, `H = W'AW` with eigenvalues `theta_1 >= ... >= theta_k`,
`R = AW - WH`, and let `M` be the restriction of `A` to the complement of span(W), `mu = lambda_1(M)`.

- `lambda_i(A) >= theta_i`, and `trace(H)` is at most the variance of the best k-space (Cauchy, Ky Fan).
- `lambda_{k+1}(A) <= mu` (Courant-Fischer), so with any upper bound `u >= mu` below `theta_k` the sine of
  the largest angle to the leading eigenspace is at most `||R|| / (theta_k - u)` (Davis-Kahan), and
  `lambda_i <= theta_i + 2 ||R||^2 / (h + sqrt(h^2 + 4 ||R||^2))`, `h = theta_i - u` (Li-Li).

So everything hangs on an upper bound of `mu`. Three are used, the smallest counts:

- *trace* (rigorous, for positive semidefinite A of known trace): what the trace leaves outside the
  explored space bounds the unexplored part of `M`;
- *exhausted* (rigorous): the explored space is the whole complement, `mu` is known;
- *random Krylov* (holds with the stated confidence): block Krylov spaces of `M` from `p` independent
  Gaussian vectors. After s sweeps each misses `mu` by more than the fraction `e` of the spread of `M`
  with probability at most `1.648 sqrt(d-k) exp(-sqrt(e) (2s-1))` (Kuczynski and Wozniakowski 1992).

All are subject to rounding, for which an explicit allowance is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from grassia import geometry
from grassia._checks import require_count
from grassia.errors import InvalidInput
from grassia.messages import Array


@dataclass(frozen=True, slots=True)
class Bound:
    """A number, and whether it is a theorem (`rigorous`) or holds with the stated confidence."""

    value: float
    rigorous: bool
    confidence: float = 1.0

    def __str__(self) -> str:
        how = "rigorous" if self.rigorous else f"confidence {self.confidence:g}"
        return f"{self.value:.3g} ({how})"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is known about an answer, from products of one and the same `W`.

    Attributes
    ----------
    tol : float
        The sine asked for.
    values : ndarray (k,)
        Ritz values, descending: rigorous lower bounds of the k leading eigenvalues, up to `rounding`.
    residual_norm : float
        Spectral norm of `AW - W(W'AW)`, plus the allowance for rounding. Rigorous.
    residuals : ndarray (k,)
        The same for each Ritz vector alone.
    eigenvalue_errors : ndarray (k,)
        Upper bounds on `lambda_i - values[i]`; as trustworthy as `next_value` is.
    captured : float
        `trace(W'AW)`: a rigorous lower bound of the best possible captured variance, up to k times
        `rounding`.
    total : float or None
        The exact trace of A; None where a component cannot tell.
    next_lower : float
        Rigorous lower bound of the largest eigenvalue outside `W`.
    next_value : Bound
        Upper bound of the eigenvalue after the cut, `lambda_{k+1}`.
    gap : Bound
        Lower bound of `lambda_k - lambda_{k+1}`; zero or less says nothing.
    sin_theta : Bound
        Upper bound of the sine of the largest principal angle to the leading eigenspace.
    sin_theta_rigorous : float
        The rigorous bound alone (1 when there is none).
    identified : int
        The largest j <= k for which the first j vectors are within `tol` of the leading-j eigenspace.
    sweeps : int
        Consistent sweeps it took.
    rounding : float
        The allowance for rounding errors contained in the residual and in the bounds.
    """

    tol: float
    values: Array
    residual_norm: float
    residuals: Array
    eigenvalue_errors: Array
    captured: float
    total: float | None
    next_lower: float
    next_value: Bound
    gap: Bound
    sin_theta: Bound
    sin_theta_rigorous: float
    identified: int
    sweeps: int
    rounding: float

    @property
    def converged(self) -> bool:
        """Whether the bound on the sine meets the tolerance."""
        return self.sin_theta.value <= self.tol

    @property
    def captured_ratio(self) -> float | None:
        """Captured over total variance, where the total is known and positive."""
        if self.total is None or self.total <= 0.0:
            return None
        return self.captured / self.total

    @property
    def optimistic_gap(self) -> float:
        """The gap can be no larger than about this: `values[k-1] - next_lower`."""
        return float(self.values[-1]) - self.next_lower

    def __str__(self) -> str:
        k = len(self.values)
        verdict = "certified" if self.converged else "NOT certified"
        lines = [
            f"{verdict}: sin(largest angle) <= {self.sin_theta}, asked {self.tol:.3g}",
            f"residual norm        {self.residual_norm:.3g} (rigorous)",
            f"gap after k = {k:<6d} >= {self.gap}",
            f"captured variance    {self.captured:.6g} (rigorous lower bound of the optimum)",
        ]
        ratio = self.captured_ratio
        if self.total is not None and ratio is not None:
            lines.append(f"total variance       {self.total:.6g} (exact), {100 * ratio:.2f} % captured")
        if not self.converged:
            lines.append(
                f"identified           the leading {self.identified} of {k} vectors"
                if self.identified
                else "identified           no leading block at this tolerance"
            )
        lines.append(f"consistent sweeps    {self.sweeps}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A certificate with what it was made from.

    `choice` says which candidate was best; `W` is it, turned to Ritz vectors; `product` is `A W`;
    `explored` is the best k-space inside everything the sweeps explored (an escape from a wrong
    invariant subspace), with `explored_captured` its captured variance. `gap_upper` bounds the eigengap
    from above, as trustworthy as the certificate's `next_value` is.
    """

    certificate: Certificate
    choice: int
    W: Array
    product: Array
    explored: Array
    explored_captured: float
    gap_upper: float


@dataclass(frozen=True, slots=True)
class Certifier:
    """How hard to try.

    Parameters
    ----------
    probes : int or None
        Random vectors in the Krylov block; None takes max(8, k).
    max_sweeps : int
        Consistent sweeps at most; fewer are made when fewer do.
    confidence : float
        For the bounds that are not rigorous.
    """

    probes: int | None = None
    max_sweeps: int = 40
    confidence: float = 0.999

    def __post_init__(self) -> None:
        if self.probes is not None:
            require_count(self.probes, "`probes`")
        require_count(self.max_sweeps, "`max_sweeps`")
        if not 0.0 < float(self.confidence) < 1.0:
            raise InvalidInput(f"`confidence` must lie strictly between 0 and 1; got {self.confidence!r}.")

    def width(self, d: int, k: int) -> int:
        """Columns of the probing block."""
        wanted = max(8, k) if self.probes is None else self.probes
        return max(0, min(wanted, d - k))


def krylov_miss(dimension: int, sweeps: int, probes: int, failure: float) -> float:
    """The fraction of the spread by which random block Krylov misses the top, at most.

    Holds but with probability `failure`; infinite when nothing can be said yet.

    >>> krylov_miss(3000, 8, 8, 1e-3) < 0.13 < krylov_miss(3000, 7, 8, 1e-3)
    True
    """
    if dimension <= 0 or sweeps <= 0 or probes <= 0:
        return math.inf
    logarithm = math.log(1.648) + 0.5 * math.log(dimension) - math.log(failure) / probes
    miss = (max(logarithm, 0.0) / (2 * sweeps - 1)) ** 2
    return miss if miss < 1.0 else math.inf


def certify(
    candidates: Sequence[Array],
    tol: float,
    rng: np.random.Generator,
    *,
    total: float | None = None,
    positive: bool = False,
    noise: Callable[[], float] | None = None,
    certifier: Certifier | None = None,
) -> Generator[Array, Array, Outcome]:
    """Certify the best of the candidates (orthonormal d x k each); see the module's text.

    Parameters
    ----------
    candidates : sequence of ndarray (d, k)
        The first sweep applies A to all of them; the one that captures most is certified.
    tol : float
        Wanted bound on the sine of the largest angle.
    total : float, optional
        The exact trace of A.
    positive : bool
        Whether A is known to be positive semidefinite.
    noise : callable, optional
        Gives what the products may be off by, beyond rounding at the size of A itself.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.diag([4.0, 3.0, 1.0, 0.5])
    >>> steps = certify([np.eye(4)[:, :2]], 1e-8, np.random.default_rng(0), total=8.5, positive=True)
    >>> V = next(steps)
    >>> try:
    ...     while True:
    ...         V = steps.send(A @ V)
    ... except StopIteration as end:
    ...     outcome = end.value
    >>> outcome.certificate.converged, outcome.certificate.sin_theta.rigorous
    (True, True)
    """
    certifier = certifier or Certifier()
    d, k = candidates[0].shape
    p = certifier.width(d, k)
    probe = rng.standard_normal((d, p))
    product = yield np.ascontiguousarray(np.hstack([*candidates, probe]))
    captured = [float(np.sum(W * product[:, j * k : (j + 1) * k])) for j, W in enumerate(candidates)]
    choice = int(np.argmax(captured))
    AW = product[:, choice * k : (choice + 1) * k]
    values, turn = geometry.ritz(candidates[choice], AW)
    W, AW = candidates[choice] @ turn, AW @ turn
    explored = _Explored(W, AW, values, total if positive else None, certifier.confidence, noise)
    explored.start(probe, product[:, len(candidates) * k :])
    sweeps = 1
    while True:
        certificate = explored.certificate(tol, total, sweeps)
        out_of_reach = certificate.residual_norm > tol * max(certificate.optimistic_gap, 0.0)
        if certificate.converged or out_of_reach or sweeps >= certifier.max_sweeps:
            break
        block = explored.next_block()
        if block is None:
            break
        explored.extend(block, (yield block))
        sweeps += 1
    best, ritz = explored.best()
    gap_upper = math.inf
    if len(ritz) > k:  # the (k+1)-th Ritz value is no more than lambda_{k+1} (Cauchy)
        highest = max(float(values[-1]), certificate.next_value.value)
        gap_upper = highest + certificate.residual_norm - float(ritz[k])
    return Outcome(certificate, choice, W, AW, best, float(np.sum(ritz[:k])), gap_upper)


class _Explored:
    """A block Krylov space of `M = (I - WW') A (I - WW')`, kept with its products."""

    def __init__(
        self,
        W: Array,
        AW: Array,
        values: Array,
        trace: float | None,
        confidence: float,
        noise: Callable[[], float] | None,
    ) -> None:
        self.W, self.AW, self.values, self.trace = W, AW, values, trace
        self.confidence = confidence
        self._noise = noise
        self.d, self.k = int(W.shape[0]), int(W.shape[1])
        self.R = AW - W @ (W.T @ AW)
        self.R -= W @ (W.T @ self.R)
        self.Q = np.zeros((self.d, 0))
        self.MQ = np.zeros((self.d, 0))
        self.AQ = np.zeros((self.d, 0))
        self.tail = np.zeros((self.d, 0))  # the part of M Q_last outside the explored space
        self.steps = 0
        self.probes = 0

    def start(self, probe: Array, A_probe: Array) -> None:
        if probe.shape[1] == 0:
            return
        # The probe was drawn before W was chosen; A W is known, so projecting costs no product.
        overlap = self.W.T @ probe
        inside, A_inside = probe - self.W @ overlap, A_probe - self.AW @ overlap
        overlap = self.W.T @ inside
        inside, A_inside = inside - self.W @ overlap, A_inside - self.AW @ overlap
        Q, triangle = np.linalg.qr(inside)
        self.probes = probe.shape[1]
        self.extend(Q, solve_triangular(triangle, A_inside.T, trans="T").T)

    def extend(self, block: Array, A_block: Array) -> None:
        M_block = A_block - self.W @ (self.W.T @ A_block)
        self.Q = np.hstack([self.Q, block])
        self.AQ = np.hstack([self.AQ, A_block])
        self.MQ = np.hstack([self.MQ, M_block])
        tail = M_block
        for _ in range(2):
            tail = tail - self.Q @ (self.Q.T @ tail)
            tail = tail - self.W @ (self.W.T @ tail)
        self.tail = tail
        self.steps += 1

    @property
    def scale(self) -> float:
        return max(
            float(np.max(np.abs(self.values))),
            float(np.max(np.linalg.norm(self.MQ, axis=0), initial=0.0)),
        )

    @property
    def rounding(self) -> float:
        own = 4.0 * float(np.finfo(np.float64).eps) * math.sqrt(self.d) * self.scale
        return own if self._noise is None else own + self._noise()

    def next_block(self) -> Array | None:
        """The next Krylov block, or None when there is nothing left to explore."""
        room = self.d - self.k - self.Q.shape[1]
        if room <= 0 or float(np.linalg.norm(self.tail)) <= self.rounding:
            return None
        against = np.hstack([self.W, self.Q])
        block = geometry.orthonormalize(self.tail, against=against)[:, :room]
        return np.ascontiguousarray(block) if block.shape[1] else None

    def bounds(self) -> tuple[float, float, Bound]:
        """(rigorous lower, rigorous upper, best upper) bounds of `mu`."""
        if self.k == self.d:
            return -math.inf, -math.inf, Bound(-math.inf, True)
        if self.steps == 0:
            upper = self._trace_bound(np.zeros((0, 0)), 0)
            return -math.inf, upper, Bound(upper, True)
        T = self.Q.T @ self.MQ
        T = (T + T.T) / 2.0
        ritz = np.linalg.eigvalsh(T)
        low, high = float(ritz[0]), float(ritz[-1])
        if self.Q.shape[1] >= self.d - self.k:
            exact = high + self.rounding
            return high, exact, Bound(exact, True)
        rigorous = self._trace_bound(T, min(self.probes, self.tail.shape[1]))
        estimated = self._krylov_bound(low, high)
        if rigorous <= estimated:
            return high, rigorous, Bound(rigorous, True)
        return high, rigorous, Bound(estimated, False, self.confidence)

    def _trace_bound(self, T: Array, last: int) -> float:
        if self.trace is None:
            return math.inf
        left = max(0.0, self.trace - float(np.sum(self.values)) - float(np.trace(T)))
        left += self.rounding * math.sqrt(self.d)
        if last == 0:
            return left
        # M <= [[T, B'], [B, left I]]: B is the tail, which only the last block has.
        S: Array = np.asarray(np.linalg.qr(self.tail, mode="r"))
        r, q = T.shape[0], S.shape[0]
        small = np.zeros((r + q, r + q))
        small[:r, :r] = T
        small[r:, r - S.shape[1] : r] = S
        small[r - S.shape[1] : r, r:] = S.T
        small[r:, r:] = left * np.eye(q)
        return float(np.linalg.eigvalsh(small)[-1]) + self.rounding

    def _krylov_bound(self, low: float, high: float) -> float:
        exhausted = float(np.linalg.norm(self.tail)) <= self.rounding
        if exhausted:  # an invariant subspace holding the random block: it has every eigenvalue
            return high + 2.0 * self.rounding
        failure = (1.0 - self.confidence) / 2.0
        miss = krylov_miss(self.d - self.k, self.steps, self.probes, failure)
        upper = math.inf
        if miss < 0.5:  # both ends of the spectrum of M, nothing assumed
            upper = high + miss * (high - low) / (1.0 - 2.0 * miss)
        if self.trace is not None and miss < 1.0:  # M is positive: its low end is known
            upper = min(upper, max(high, 0.0) / (1.0 - miss))
        return upper + 2.0 * self.rounding

    def certificate(self, tol: float, total: float | None, sweeps: int) -> Certificate:
        lower, rigorous, best = self.bounds()
        residual = float(np.linalg.norm(self.R, 2)) + self.rounding if self.d > self.k else 0.0
        columns = np.linalg.norm(self.R, axis=0) + (self.rounding if self.d > self.k else 0.0)
        bottom = float(self.values[-1])
        strict = _sine(residual, bottom - rigorous)
        sine = Bound(_sine(residual, bottom - best.value), best.rigorous, best.confidence)
        if strict <= tol:
            sine = Bound(strict, True)
            best = Bound(rigorous, True)
        return Certificate(
            tol=tol,
            values=self.values,
            residual_norm=residual,
            residuals=columns,
            eigenvalue_errors=self._eigenvalue_errors(residual, best.value),
            captured=float(np.sum(self.values)),
            total=total,
            next_lower=lower,
            next_value=best,
            gap=Bound(bottom - best.value, best.rigorous, best.confidence),
            sin_theta=sine,
            sin_theta_rigorous=strict,
            identified=self._identified(tol, residual, best.value),
            sweeps=sweeps,
            rounding=self.rounding,
        )

    def _eigenvalue_errors(self, residual: float, upper: float) -> Array:
        if self.d == self.k:
            return np.full(self.k, self.rounding)
        if not math.isfinite(upper):
            return np.full(self.k, math.inf)
        height = self.values - upper
        if height[-1] > 0.0:
            error = 2.0 * residual**2 / (height + np.sqrt(height**2 + 4.0 * residual**2))
        else:
            error = np.maximum(-height, 0.0) + residual
        return np.asarray(error + self.rounding)

    def _identified(self, tol: float, residual: float, upper: float) -> int:
        if _sine(residual, float(self.values[-1]) - upper) <= tol:
            return self.k
        for j in range(self.k - 1, 0, -1):
            head = float(np.linalg.norm(self.R[:, :j], 2)) + self.rounding
            rest = float(np.linalg.norm(self.R[:, j:], 2)) + self.rounding
            inner = float(self.values[j])
            # The complement of the first j is [[inner, rest], [rest, upper]] in norms.
            outer = (inner + upper) / 2.0 + math.hypot((inner - upper) / 2.0, rest)
            if _sine(head, float(self.values[j - 1]) - outer) <= tol:
                return j
        return 0

    def best(self) -> tuple[Array, Array]:
        """The best k-space inside everything explored, and all Ritz values there, descending."""
        basis, products = np.hstack([self.W, self.Q]), np.hstack([self.AW, self.AQ])
        values, turn = geometry.ritz(basis, products)
        return geometry.polar(basis @ turn[:, : self.k]), values


def _sine(residual: float, gap: float) -> float:
    if residual == 0.0 and gap > -math.inf:
        return 0.0 if gap > 0.0 else 1.0
    if not gap > 0.0:
        return 1.0
    return min(1.0, residual / gap)
