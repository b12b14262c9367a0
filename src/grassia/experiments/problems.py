"""The problems of the experiments: data in components, and the dense oracle they are measured against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh

import grassia
from grassia import datasets, geometry
from grassia.data import Components
from grassia.messages import Array

BATCH = 50
WORKERS = 20


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows split into components, and the exact leading eigenspace of their second moment.

    The oracle is worked out when it is first asked for.

    Attributes
    ----------
    name : str
    rows : ndarray or sparse matrix (m, d)
        Centred already where the experiment centres.
    parts : tuple of int
        Rows of each component, in order.
    k : int
    """

    name: str
    rows: Any
    parts: tuple[int, ...]
    k: int

    @cached_property
    def components(self) -> Components:
        """What `grassia.eigenspace` takes; weighted by rows."""
        ends = np.cumsum(self.parts)
        blocks = [self.rows[end - size : end] for end, size in zip(ends.tolist(), self.parts, strict=True)]
        return grassia.from_rows(blocks, center=False)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the rows and of how they are split."""
        digest = hashlib.sha256(repr((self.rows.shape, self.parts, self.k)).encode())
        held = [self.rows]
        if sp.issparse(self.rows):
            held = [self.rows.data, self.rows.indices, self.rows.indptr]
        for array in held:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @cached_property
    def matrix(self) -> Array:
        """A, densely."""
        gram: Any = self.rows.T @ self.rows
        dense: Array = np.asarray(gram.toarray() if sp.issparse(gram) else gram)
        return dense / float(self.rows.shape[0])

    @cached_property
    def _leading(self) -> tuple[Array, Array]:
        d = len(self.matrix)
        values, vectors = eigh(self.matrix, subset_by_index=[d - self.k - 1, d - 1])
        return values[::-1], np.ascontiguousarray(vectors[:, ::-1])

    @property
    def oracle(self) -> Array:
        """The leading eigenspace, (d, k)."""
        return self._leading[1][:, : self.k]

    @property
    def values(self) -> Array:
        """The k + 1 leading eigenvalues."""
        return self._leading[0]

    def distance(self, W: Array) -> float:
        """Geodesic distance to the oracle."""
        return float(geometry.geodesic_distance(W, self.oracle))

    def gaps(self, iterates: Sequence[Array]) -> Array:
        """Objective gaps `F(W) - F(W*)`, F(W) = -trace(W'AW), of many iterates at once.

        Formed from what W lacks of the oracle and what it has outside of it, so that small gaps have all
        their digits: the difference of two traces would lose them.
        """
        U, values, k = self.oracle, self.values[: self.k], self.k
        outside = [W - U @ (U.T @ W) for W in iterates]
        lacking = [U - W @ (W.T @ U) for W in iterates]
        wide = np.hstack(outside)
        carried = np.sum(wide * (self.matrix @ wide), axis=0).reshape(-1, k).sum(axis=1)
        missed = np.array([np.sum(values * np.sum(part**2, axis=0)) for part in lacking])
        return np.asarray(np.maximum(missed - carried, 0.0))


def in_batches(name: str, X: Any, k: int, batch: int = BATCH) -> Problem:
    """Uncentred rows in batches in order, the last one short: the paper's serial problems."""
    m = X.shape[0]
    parts = tuple(min(batch, m - start) for start in range(0, m, batch))
    return Problem(name, X, parts, k)


def over_workers(name: str, X: Any, k: int, workers: int = WORKERS) -> Problem:
    """Centred rows split evenly: the paper's distributed problem."""
    centred = np.asarray(X, dtype=np.float64)
    centred -= centred.mean(axis=0)
    sizes = [len(block) for block in np.array_split(np.arange(len(centred)), workers)]
    return Problem(name, centred, tuple(sizes), k)


def made_rows(seed: int = 0) -> Array:
    """Binary rows, 405 x 40, of a few topics: a small stand-in for the LIBSVM sets."""
    rng = np.random.default_rng(seed)
    topics = rng.random((4, 40)) < 0.3
    chosen = rng.choice(4, size=405, p=[0.4, 0.3, 0.2, 0.1])
    likely = np.where(topics[chosen], 0.7, 0.05)
    return np.asarray(rng.random((405, 40)) < likely, dtype=np.float64)


def made_images(seed: int = 0) -> Array:
    """Rows, 1000 x 60, with the leading eigenvalues of the CIFAR images: a small stand-in for them."""
    rng = np.random.default_rng(seed)
    d, m = 60, 1000
    scales = np.sqrt(np.r_[3.64e6, 1.40e6, 8.26e5, 4.62e5 / np.arange(1, d - 2) ** 1.2])
    turn = geometry.random_point(d, d, rng)
    plain = rng.standard_normal((m, d))
    uncorrelated = np.sqrt(m) * np.linalg.qr(plain - plain.mean(axis=0))[0]
    return np.asarray((uncorrelated * scales) @ turn.T + 120.0)


_MAKERS: dict[str, Callable[[], Problem]] = {
    "a1a": lambda: in_batches("a1a", datasets.load("a1a", progress=True).X, 10),
    "w1a": lambda: in_batches("w1a", datasets.load("w1a", progress=True).X, 10),
    "cifar10": lambda: over_workers("cifar10", datasets.load("cifar10", progress=True).X, 3),
    "made rows": lambda: in_batches("made rows", made_rows(), 3),
    "made images": lambda: over_workers("made images", made_images(), 3),
}


def get(name: str) -> Problem:
    """A problem of the experiments by the name of its data."""
    return _MAKERS[name]()
