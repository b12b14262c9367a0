"""Problems that the tests share, each with its dense oracle."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass

import numpy as np

import grassia
from grassia import datasets


def symmetric(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with these eigenvalues, descending, and its eigenvectors."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    return (U * values) @ U.T, U


@dataclass(frozen=True)
class Dense:
    """Symmetric components, held densely, and what dense eigh says of their sum."""

    components: list[np.ndarray]
    weights: np.ndarray

    @property
    def A(self) -> np.ndarray:
        return sum(w * A for w, A in zip(self.weights, self.components, strict=True))

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self.A)
        return values[::-1], vectors[:, ::-1]

    def leading(self, k: int) -> np.ndarray:
        return self.spectrum()[1][:, :k]


def heterogeneous(n: int, d: int, k: int, seed: int, gap: float = 0.5, noise: float = 0.3) -> Dense:
    """A sum with eigenvalues 2..1 above the gap, whose components differ by symmetric noise.

    The noise sums to zero, so the spectrum of the sum is exact; components are indefinite.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    top = np.linspace(2.0, 1.0, k)
    bottom = np.linspace(1.0 - gap, 0.0, d - k) if d > k else np.zeros(0)
    A = (basis * np.r_[top, bottom]) @ basis.T
    weights = rng.uniform(0.5, 1.5, n)
    weights /= weights.sum()
    parts = [_symmetric(rng.standard_normal((d, d))) * noise / np.sqrt(d) for _ in range(n)]
    mean = sum(w * part for w, part in zip(weights, parts, strict=True))
    return Dense([_symmetric(A + part - mean) for part in parts], weights)


def gaussian_rows(m: int, d: int, k: int, seed: int, offset: float = 3.0) -> np.ndarray:
    """Rows with k strong directions and a mean away from zero."""
    rng = np.random.default_rng(seed)
    scales = np.r_[np.linspace(6.0, 3.0, k), np.ones(d - k)]
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rng.standard_normal((m, d)) * scales) @ turn.T + offset * rng.standard_normal(d)


def leading_of_rows(X: np.ndarray, k: int, center: bool = True) -> np.ndarray:
    Y = X - X.mean(axis=0) if center else X
    return np.linalg.eigh(Y.T @ Y / len(Y))[1][:, ::-1][:, :k]


def _symmetric(M: np.ndarray) -> np.ndarray:
    return (M + M.T) / 2.0


def images(rows: int = 5000) -> tuple[np.ndarray, bool]:
    """(raw pixel rows, True) of CIFAR-10, or made rows of a like spectrum and (.., False) without it."""
    if datasets.local("cifar10") is not None:
        return datasets.load("cifar10", rows=rows).X.astype(np.float64), True
    rng = np.random.default_rng(7)
    d = 300
    scales = np.sqrt(np.r_[3.64e6, 1.40e6, 8.26e5, 4.62e5 / np.arange(1, d - 2) ** 1.2])
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    plain = rng.standard_normal((rows, d))
    uncorrelated = np.sqrt(rows) * np.linalg.qr(plain - plain.mean(axis=0))[0]
    return (uncorrelated * scales) @ turn.T + 120.0, False


def trajectory(problem, solver, backend, W0, updates, record=None, callbacks=()):
    """Every iterate of a run by version, with the residual stated at it."""
    found = {}

    def keep(progress):
        if progress.vectors is not None:
            found.setdefault(progress.version, (progress.vectors.copy(), progress.residual))
        return progress.version >= updates

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grassia.eigenspace(
            problem.components,
            W0.shape[1],
            weights=problem.weights,
            solver=solver,
            backend=backend,
            v0=W0,
            tol=1e-15,
            rng=0,
            callbacks=[keep, *callbacks],
            record=record,
        )
    return found


def iterates(problem, solver, backend, W0, updates, record=None):
    """The same without the residuals."""
    found = trajectory(problem, solver, backend, W0, updates, record)
    return {version: vectors for version, (vectors, _) in found.items()}


def recorded_sets(log, n):
    """The arriving subsets of a recorded run, by the update they preceded."""
    batches = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    replies = [[(m[2], m[3]) for m in batch["m"] if m[0] == "reply"] for batch in batches if "m" in batch]
    sets, before = {}, 0
    for batch in replies:
        if before >= 2 * n:  # after every component was opened and answered at the start
            sets[len(sets) + 1] = batch
        before += len(batch)
        assert before <= 2 * n or before - len(batch) >= 2 * n or before == 2 * n
    return sets


def low_rank(rank: int, d: int, n: int) -> list[np.ndarray]:
    """n equal matrices of this rank, with eigenvalues 2..1."""
    basis = np.linalg.qr(np.random.default_rng(3).standard_normal((d, rank)))[0]
    return [(basis * np.linspace(2.0, 1.0, rank)) @ basis.T] * n
