"""Certify an eigenspace from consistent products only, and say how far each number can be trusted.

`certify` is a generator: it yields a block `V`, is sent `A V` (every component applied to the same `V`)
and in the end returns an `Outcome`. It knows no server and no back-end, so the server, a test or the
command line can drive it alike.

The reasoning. Let `W` be frozen, `H = W'AW` with eigenvalues `theta_1 >= ... >= theta_k`,
`R = AW - WH`, and let `M` be the restriction of `A` to the complement of span(W), `mu = lambda_1(M)`.

- `lambda_i(A) >= theta_i`, and `trace(H)` is at most the variance of the best k-space (Cauchy, Ky Fan).
- `lambda_{k+1}(A) <= mu` (Courant-Fischer), so with any upper bound `u >= mu` below `theta_k` the sine of
  the largest angle to the leading eigenspace is at most `||R|| / (theta_k - u)` (Davis-Kahan), or the
  root of the sum of squares of `||r_j|| / (theta_j - u)` over the Ritz vectors, if that is less, and
  `lambda_i <= theta_i + 2 ||R||^2 / (h + sqrt(h^2 + 4 ||R||^2))`, `h = theta_i - u` (Li-Li).

So everything hangs on an upper bound of `mu`: `grassia.explored` has several, some rigorous, others that hold
with a stated confidence. The smallest counts. Where directions after the cut are known well the sine has a
sharper bound, see `grassia.apart`. All are subject to rounding, for which an explicit allowance is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from grassia import geometry
from grassia.blocks import spectral_norm
from grassia.certificate import Bound, Certificate, Certifier, Outcome
from grassia.explored import Explored
from grassia.messages import Array

__all__ = ["certify", "sine_bound"]

# Sweeps after which a claim that has not done is given up: what it is off by may be in the way.
_PATIENCE = 3


def certify(
    candidates: Sequence[Array],
    tol: float,
    rng: np.random.Generator,
    *,
    total: float | None = None,
    positive: bool = False,
    noise: Callable[[], float] | None = None,
    certifier: Certifier | None = None,
    beside: Array | None = None,
    known: tuple[Array, Array] | None = None,
    claimed: Array | None = None,
    trusted: int | None = None,
    near: tuple[Array, float] | None = None,
    probed: tuple[Array, Array] | None = None,
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
    beside : ndarray (d, e), optional
        Directions worth exploring beside the candidates, such as those a solver follows beyond k. They must
        not depend on `rng`.
    known : pair of ndarrays (d, q), optional
        The same, with products that are known already. They are not taken on trust: the products of the
        probe tell how far they can be off.
    claimed : ndarray (d, k), optional
        The product of the only candidate, as far as it is known already. It is not taken on trust either; if
        it does not do, the candidate is multiplied after all.
    trusted : int, optional
        So many columns of the claim are likely to do; the others are multiplied at once. Default: all.
    near : pair of ndarray (d, d) and float, optional
        A matrix close to A, and its eigenvalue after the cut. How close is for the probe to tell.
    probed : pair of ndarrays (d, p), optional
        The probe and its product, where they are there already: drawn without looking at the candidate, which
        must not have been found with their help. With `claimed` it may need no sweep at all.

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
    # With a matrix at hand the probe need only measure how far off it is.
    p = certifier.width(d, k) if near is None else min(8, certifier.width(d, k))
    more = np.zeros((d, 0)) if beside is None else beside
    doubtful = candidates[0][:, k if trusted is None else trusted :]
    if probed is None and p == certifier.probes:
        # BLAS multiplies by whole fours of columns; what is left over costs the same with probes in it.
        multiplied = len(candidates) * k if claimed is None else doubtful.shape[1]
        p = min(d - k, p + -(p + more.shape[1] + multiplied) % 4)
    probe = rng.standard_normal((d, p)) if probed is None else probed[0]
    p = probe.shape[1]
    trace = total if positive else None
    nothing = np.zeros((d, 0))
    sweeps = 0

    def begin(W: Array, AW: Array, A_more: Array, A_probe: Array, claimed: bool = False) -> Explored:
        """What is explored to begin with."""
        values, turn = geometry.ritz(W, AW)
        explored = Explored(
            W @ turn, AW @ turn, values, trace, certifier.confidence, noise, probe, A_probe, claimed
        )
        explored.add(more[:, : A_more.shape[1]], A_more)
        if near is not None:
            explored.compare(*near)
        elif known is not None:
            explored.add_known(*known)
        explored.set_apart()
        explored.add_probe()
        return explored

    A_more, A_probe = nothing, nothing if probed is None else probed[1]
    if claimed is not None and p > 0:
        if probed is None:
            product = yield np.ascontiguousarray(np.hstack([doubtful, more, probe]))
            exact, A_more, A_probe = np.split(product, np.cumsum([doubtful.shape[1], more.shape[1]]), axis=1)
            claimed = np.hstack([claimed[:, : k - exact.shape[1]], exact])
            sweeps = 1
        explored = begin(candidates[0], claimed, A_more, A_probe, True)
        while True:
            certificate = _certificate(explored, tol, total, sweeps)
            if certificate.converged:
                return _certified(certificate, 0, explored, positive)
            # The claim may be good enough, but not what is known of the rest.
            good = probed is None and _within_reach(explored, certificate)
            block = explored.next_block() if good and sweeps < min(_PATIENCE, certifier.max_sweeps) else None
            if block is None:
                break
            explored.extend(block, (yield block))
            sweeps += 1
    # In one sweep all that was not multiplied yet.
    rest = [more if A_more is nothing else nothing, probe if A_probe is nothing else nothing]
    product = yield np.ascontiguousarray(np.hstack([*candidates, *rest]))
    sweeps += 1
    product, new_more, new_probe = np.split(
        product, np.cumsum([len(candidates) * k, rest[0].shape[1]]), axis=1
    )
    A_more = new_more if A_more is nothing else A_more
    A_probe = new_probe if A_probe is nothing else A_probe
    captured = [float(np.sum(W * product[:, j * k : (j + 1) * k])) for j, W in enumerate(candidates)]
    choice = int(np.argmax(captured))
    explored = begin(candidates[choice], product[:, choice * k : (choice + 1) * k], A_more, A_probe)
    W, values = explored.W, explored.values
    while True:
        certificate = _certificate(explored, tol, total, sweeps)
        done = certificate.converged or not _within_reach(explored, certificate)
        if done or sweeps >= certifier.max_sweeps:
            break
        block = explored.next_block()
        if block is None:
            break
        explored.extend(block, (yield block))
        sweeps += 1
    if certificate.converged:  # there is nothing to escape from
        return _certified(certificate, choice, explored, positive and not certifier.rigorous)
    identified = _identified(explored, tol, certificate.next_value.value)
    certificate = replace(certificate, identified=identified)
    best, ritz = explored.best()
    gap_upper = math.inf
    if len(ritz) > k:  # the (k+1)-th Ritz value is no more than lambda_{k+1} (Cauchy)
        highest = max(float(values[-1]), certificate.next_value.value)
        gap_upper = highest + certificate.residual_norm - float(ritz[k])
    return Outcome(certificate, choice, W, W, best, float(np.sum(ritz[:k])), gap_upper)


def _certified(certificate: Certificate, choice: int, explored: Explored, further: bool) -> Outcome:
    W = explored.W
    answer = _answer(W, explored.R, explored.values) if further else W
    return Outcome(certificate, choice, W, answer, W, certificate.captured, math.inf)


def _answer(W: Array, R: Array, values: Array) -> Array:
    """A power step further, `A W` made orthonormal: the product is there, and it is nearer the true space.

    For a positive semidefinite A whose other eigenvalues are below those of W, all that a certificate says of
    span(W) holds for it, too. Let `K` be the tangents from W to the true space and `K+ = R / theta` those to
    the answer. Then `theta_j (K - K+)_j = M K_j`, but for what R is off by and for the term of second order:
    every part of the angle shrinks by its eigenvalue over `theta_j`. So does the residual, to
    `M R_j / theta_j`.
    What R is off by, some e, enters as `e / theta_j`; together with `u / theta_j` times the bound
    `e / (theta_j - u)` that there was for it in K, that is the same bound again.
    """
    if not float(values[-1]) > 0.0:
        return W
    return np.asarray(geometry.polar(W + R / values))


def _certificate(explored: Explored, tol: float, total: float | None, sweeps: int) -> Certificate:
    rounding = explored.rounding if explored.d > explored.k else 0.0
    residual = spectral_norm(explored.R) + rounding if explored.d > explored.k else 0.0
    residual += explored.doubt
    columns = np.linalg.norm(explored.R, axis=0) + rounding + explored.doubts
    values = explored.values
    bottom = float(values[-1])
    found = explored.bounds(_wanted(residual, columns, values, tol), tol)
    rigorous = found.rigorous
    best = (
        Bound(rigorous, True) if rigorous <= found.upper else Bound(found.upper, False, explored.confidence)
    )
    strict = sine_bound(residual, columns, values, rigorous)
    sine = Bound(_sine(explored, residual, columns, best.value, found.beyond), best.rigorous, best.confidence)
    if sine.value < sine_bound(residual, columns, values, best.value):
        sine = Bound(sine.value, False, explored.confidence)
    if strict <= tol:
        sine, best = Bound(strict, True), Bound(rigorous, True)
    if explored.claimed:
        strict = 1.0
        sine, best = (Bound(bound.value, False, explored.confidence) for bound in (sine, best))
    return Certificate(
        tol=tol,
        values=values,
        residual_norm=residual,
        residuals=columns,
        eigenvalue_errors=_eigenvalue_errors(explored, residual, best.value),
        captured=float(np.sum(values)),
        total=total,
        next_lower=found.lower,
        next_value=best,
        gap=Bound(bottom - best.value, best.rigorous, best.confidence),
        sin_theta=sine,
        sin_theta_rigorous=strict,
        identified=explored.k if sine.value <= tol else 0,
        sweeps=sweeps,
        rounding=explored.rounding + explored.doubt,
        claimed=explored.claimed,
    )


def _sine(explored: Explored, residual: float, columns: Array, upper: float, beyond: float) -> float:
    """The best bound of the sine by upper bounds of `mu` and of what lies beyond the directions set apart."""
    values = explored.values
    sine = sine_bound(residual, columns, values, upper)
    if explored.claimed and sine < 0.5:
        # The values were claimed, too: W'AW is not quite diagonal.
        mixed = sine / math.sqrt(1.0 - sine**2) * float(np.linalg.norm(explored.doubts))
        sine = sine_bound(residual + mixed, columns + mixed, values, upper)
    if explored.apart is None:
        return sine
    off = explored.rounding + explored.doubts
    return explored.apart.sine(beyond, upper, sine, residual, off, explored.looseness)


def _within_reach(explored: Explored, certificate: Certificate) -> bool:
    """Whether the tolerance could be met if nothing new were found outside."""
    upper, beyond = explored.at_best()
    return _sine(explored, certificate.residual_norm, certificate.residuals, upper, beyond) <= certificate.tol


def _eigenvalue_errors(explored: Explored, residual: float, upper: float) -> Array:
    if explored.d == explored.k:
        return np.full(explored.k, explored.rounding)
    if not math.isfinite(upper):
        return np.full(explored.k, math.inf)
    height = explored.values - upper - _risen(residual, float(explored.values[-1]) - upper)
    if height[-1] > 0.0:
        error = 2.0 * residual**2 / (height + np.sqrt(height**2 + 4.0 * residual**2))
    else:
        error = np.maximum(-height, 0.0) + residual
    return np.asarray(error + explored.rounding + explored.doubt)


def _risen(residual: float, gap: float) -> float:
    """How far the largest eigenvalue on the complement of W can lie above the eigenvalue after the cut.

    By no more than the residual (Weyl) and, where that is small beside the gap, by its square over the gap:
    `rise <= residual^2 / (gap - rise)`.
    """
    if gap <= 2.0 * residual:
        return residual
    return 2.0 * residual**2 / (gap + math.sqrt((gap - 2.0 * residual) * (gap + 2.0 * residual)))


def _identified(explored: Explored, tol: float, upper: float) -> int:
    values, R, rounding = explored.values, explored.R, explored.rounding
    for j in range(explored.k - 1, 0, -1):
        head = spectral_norm(R[:, :j]) + rounding
        rest = spectral_norm(R[:, j:]) + rounding
        inner = float(values[j])
        # The complement of the first j is [[inner, rest], [rest, upper]] in norms.
        outer = (inner + upper) / 2.0 + math.hypot((inner - upper) / 2.0, rest)
        columns = np.linalg.norm(R[:, :j], axis=0) + rounding
        if sine_bound(head, columns, values[:j], outer) <= tol:
            return j
    return 0


def sine_bound(residual: float, columns: Array, values: Array, upper: float) -> float:
    """Bound of the sine of the largest angle, given that all other eigenvalues are at most `upper`.

    `columns` are the residual norms of the single Ritz vectors. With `X = U'W` for the other eigenvectors
    `U`, each column obeys `norm(X_j) <= columns[j] / (values[j] - upper)`: a residual counts by the distance
    of its own eigenvalue from the rest. Where the spectrum is spread that is far less than the residual
    over the gap.

    >>> sine_bound(1.0, np.array([1.0, 1e-3]), np.array([100.0, 2.0]), 1.0) < 0.0102
    True
    """
    heights = values - upper
    if not heights[-1] > 0.0:
        return 1.0
    if residual == 0.0:
        return 0.0
    one_by_one = float(np.linalg.norm(columns / heights))
    return min(1.0, residual / float(heights[-1]), one_by_one)


def _wanted(residual: float, columns: Array, values: Array, tol: float) -> float:
    """The largest upper bound of the other eigenvalues that would do."""
    bottom = float(values[-1])
    low, high = bottom - residual / tol, bottom  # what does for the plain bound does
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sine_bound(residual, columns, values, middle) <= tol else (low, middle)
    return low
