"""Where a run starts, and whether the numbers are of a size that can be worked with."""

from __future__ import annotations

import numpy as np

from grassia import geometry
from grassia.errors import GrassiaError, InvalidInput
from grassia.messages import Array

SMALLEST = 1e-120  # matrices of a size beyond this, or its inverse, are refused


def check_range(size: float) -> None:
    """Refuse a matrix whose squares, or their squares, would leave the range of double precision."""
    if size != 0.0 and not SMALLEST < size < 1.0 / SMALLEST:
        raise GrassiaError(
            f"eigenvalues must be between {SMALLEST:g} and {1.0 / SMALLEST:g} for bounds on them to be worth "
            f"anything in double precision; here they are of the size {size:.3g}. Scale the data (and its "
            "weights) to a moderate size."
        )


def starting_point(v0: Array | None, d: int, k: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
    """(the iterate to start from, more directions beside it or None)."""
    if v0 is None:
        return np.asarray(geometry.random_point(d, k, rng)), None
    if v0.shape[0] != d or not k <= v0.shape[1] <= d:
        raise InvalidInput(
            f"`v0` must have shape (n_features, b) with n_features = {d} and k = {k} <= b <= n_features; "
            f"got {v0.shape}."
        )
    W = v0[:, :k]
    if np.linalg.norm(W.T @ W - np.eye(k)) > 1e-13 * k:  # where it is orthonormal, leave its bits alone
        W = np.asarray(geometry.polar(W))
    if v0.shape[1] == k:
        return W, None
    return W, np.asarray(geometry.orthonormalize(v0[:, k:], against=W))
