"""Pool what the components report of themselves: weights, global mean, exact trace.

Memory is O(d) whatever n is, unless the means are to be kept. They are summed about a reference (the first
that came), which keeps the between-shard variance accurate when the data sit far from the origin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from grassia.errors import InvalidComponent, InvalidInput
from grassia.messages import Array, Scalar

SKETCH = ("sketch_length", "sketch_along", "sketch_mean", "sketch_aside")


class PooledMoments:
    """Sums over components, added in any order.

    Parameters
    ----------
    n : int
        Number of components.
    weights : ndarray (n,), optional
        None: by row counts where every component has one, else equal.
    keep : bool
        Whether to keep the mean of each component, in `means`.
    """

    def __init__(self, n: int, weights: Array | None = None, keep: bool = False) -> None:
        self.n = n
        self.means: dict[int, Array] = {}
        self._keep = keep
        self.n_features = 0
        self.mean: Array | None = None
        self._given = None if weights is None else np.asarray(weights, dtype=np.float64)
        self.counts = np.full(n, np.nan)
        self.traces = np.full(n, np.nan)
        self._noises = np.zeros(n)
        self.sketches = np.full((n, len(SKETCH)), np.nan)
        self._seen = np.zeros(n, dtype=bool)
        self.positive = True  # whether every component that has reported is known to be
        self.single = True  # whether every component can multiply in single precision
        self._centred: bool | None = None
        self._reference: Array | None = None
        # Sums with every weight there could be: given ones or row counts, and equal ones.
        self._first = np.zeros((2, 0))
        self._second = np.zeros(2)

    @property
    def complete(self) -> bool:
        """Whether every component has reported."""
        return bool(self._seen.all())

    @property
    def reported(self) -> int:
        """How many components have."""
        return int(self._seen.sum())

    def has(self, i: int) -> bool:
        """Whether component i has."""
        return bool(self._seen[i])

    def add(self, i: int, arrays: Mapping[str, Array], scalars: Mapping[str, Scalar]) -> None:
        """Take one component's report; a component that disagrees with the others is an error."""
        if self._seen[i]:
            return
        d = int(scalars["n_features"] or 0)
        if self.n_features == 0:
            self.n_features = d
        if d != self.n_features:
            raise InvalidComponent(
                f"every component must have the same number of features; it has {d}, "
                f"others have {self.n_features}.",
                i,
            )
        count, trace = scalars["count"], scalars["trace"]
        self.counts[i] = np.nan if count is None else float(count)
        self.traces[i] = np.nan if trace is None else float(trace)
        self._noises[i] = float(scalars.get("noise") or 0.0)
        self.sketches[i] = [float(scalars.get(name, np.nan) or 0.0) for name in SKETCH]  # where there are any
        self.positive &= bool(scalars["positive"])
        self.single &= bool(scalars.get("single"))
        mean = arrays.get("mean")
        if self._centred is None:
            self._centred = mean is not None
        if self._centred != (mean is not None):
            raise InvalidComponent(
                "centred and uncentred components must not be mixed: their sum is no covariance. "
                "Make them all with the same `center`.",
                i,
            )
        if mean is not None:
            self._add_mean(i, np.asarray(mean, dtype=np.float64))
        self._seen[i] = True

    def _add_mean(self, i: int, mean: Array) -> None:
        if self._reference is None:
            self._reference = mean
            self._first = np.zeros((2, mean.size))
        if self._keep:
            self.means[i] = mean
        offset = mean - self._reference
        own = float(self.counts[i]) if self._given is None else float(self._given[i])
        weights = np.array([own, 1.0])
        self._first += weights[:, None] * offset
        self._second += weights * float(offset @ offset)

    def so_far(self) -> tuple[Array, Array | None]:
        """(weights, mean) by those that have reported; the others are taken to be of average size."""
        seen = self._seen
        if self._given is not None:
            raw, which = self._given, 0
        elif not np.isnan(self.counts[seen]).any():
            raw, which = np.where(seen, self.counts, self.counts[seen].mean()), 0
        else:
            raw, which = np.ones(self.n), 1
        mean = None
        if self._reference is not None:
            mean = self._reference + self._first[which] / float(raw[seen].sum())
        return raw / float(raw.sum()), mean

    def finish(self) -> tuple[Array, float | None, bool, float]:
        """(weights, exact trace or None, whether A is known to be positive semidefinite, noise)."""
        counted = not np.isnan(self.counts).any()
        if self._given is not None:
            raw, which = self._given, 0
        elif counted:
            raw, which = self.counts, 0
        else:
            raw, which = np.ones(self.n), 1
        size = float(raw.sum())
        if not (np.isfinite(size) and size > 0.0):
            raise InvalidInput(f"the weights must have a positive finite sum; got {size}.")
        weights = raw / size
        total: float | None = None
        if not np.isnan(self.traces).any():
            total = float(weights @ self.traces)
        if self._reference is not None:
            shift = self._first[which] / size
            self.mean = self._reference + shift
            if total is not None:
                total += max(0.0, float(self._second[which]) / size - float(shift @ shift))
        noise = float(weights @ self._noises)
        if self.mean is not None and total is not None:
            # Differences of the shards' means lose the digits that the mean itself takes.
            offset = float(np.finfo(np.float64).eps * np.linalg.norm(self.mean))
            noise += 4.0 * offset * float(np.sqrt(total)) + offset**2
        return weights, total, self.positive, noise
