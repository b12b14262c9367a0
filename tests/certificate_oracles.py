"""Problems for certificates, certificates of them with exact products, and what dense eigh says of those."""

from __future__ import annotations

import numpy as np

from grassia.backends.service import Bursty, Fixed, LogNormal, Pareto, straggler
from grassia.certifying import certify
from grassia.geometry import projection_distance

ROUNDING = 1e-13  # slack of the dense oracle itself, relative to the largest eigenvalue


def drive(A, candidates, tol, rng, **options):
    steps = certify(candidates, tol, rng, **options)
    block = next(steps)
    while True:
        try:
            block = steps.send(A @ block)
        except StopIteration as end:
            return end.value


def spectrum(kind: str, d: int, k: int, rng: np.random.Generator) -> np.ndarray:
    values = np.sort(rng.uniform(0.0, 1.0, d))[::-1]
    if kind == "clustered":
        values[:k] = 1.5 + 1e-9 * rng.standard_normal(k)
    elif kind == "gapless":
        values[: k + 1] = 1.0 + np.r_[np.linspace(1.0, 0.1, k - 1), 0.0, 0.0]
        values[k + 1 :] *= 0.8
    elif kind == "tiny gap":
        values[: k + 1] = 1.0 + np.r_[np.linspace(1.0, 0.1, k - 1), 0.0, 0.0]
        values[k] -= 10.0 ** -rng.uniform(4.0, 9.0)
        values[k + 1 :] *= 0.8
    elif kind == "rank-deficient":
        values[int(rng.integers(0, k + 2)) :] = 0.0
    elif kind == "decaying":
        values = 0.7 ** np.arange(d)
    elif kind == "spike":  # one direction above a flat floor, far from every probe
        values = np.r_[np.linspace(3.0, 2.5, k), 1.0, np.full(d - k - 1, 0.3)]
    else:  # a clear gap
        values[:k] += 1.0
    return np.sort(values)[::-1] * 10.0 ** rng.uniform(-3.0, 3.0)


KINDS = ("clear", "clustered", "gapless", "tiny gap", "rank-deficient", "decaying", "spike")


def matrix(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    basis = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    A = (basis * values) @ basis.T
    return (A + A.T) / 2.0


def check(certificate, W, values, vectors, k):
    """(rigorous bounds hold, the sine bound given holds) against the dense oracle."""
    scale = max(abs(values[0]), abs(values[-1]))
    sine = projection_distance(W, vectors[:, :k])
    slack = 1e-9 * sine + ROUNDING
    unique = k == len(values) or values[k - 1] - values[k] > 1e-12 * scale
    rigorous = not unique or sine <= certificate.sin_theta_rigorous + slack
    given = not unique or sine <= certificate.sin_theta.value + slack
    noise = ROUNDING * scale
    rigorous &= bool((certificate.values <= values[:k] + noise).all())
    rigorous &= certificate.captured <= values[:k].sum() + k * noise
    if k < len(values):
        below = certificate.next_value.value >= values[k] - noise
        errors = bool((values[:k] - certificate.values <= certificate.eigenvalue_errors + noise).all())
        if certificate.next_value.rigorous:
            rigorous &= below and errors
        given &= below and errors
    if certificate.identified and certificate.next_value.rigorous:
        j = certificate.identified
        if j == len(values) or values[j - 1] - values[j] > 1e-12 * scale:
            rigorous &= projection_distance(W[:, :j], vectors[:, :j]) <= certificate.tol + slack
    return rigorous, given


def random_problem(seed: int):
    rng = np.random.default_rng(seed)
    kind = (*KINDS, "heterogeneous")[seed % (len(KINDS) + 1)]
    d = int(rng.integers(8, 36)) if seed % 5 else int(rng.integers(100, 160))
    k = int(rng.integers(1, 5))
    n = int(rng.integers(1, 7))
    values = spectrum("clear" if kind == "heterogeneous" else kind, d, k, rng)
    A = matrix(values, rng)
    size = values[0] * (1.0 if kind == "heterogeneous" else 0.1) / np.sqrt(d)
    parts = [size * (M + M.T) for M in rng.standard_normal((n, d, d))]
    mean = sum(parts) / n
    services = (LogNormal(), Pareto(1.5), Bursty(), straggler(n, 10.0), Fixed(1.0))
    return kind, [A + part - mean for part in parts], k, services[seed % len(services)]
