"""Random subspaces, and pairs with given principal angles, for the laws of `grassia.geometry`."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from grassia import geometry as geo

EPS = np.finfo(np.float64).eps
laws = settings(max_examples=60, deadline=None)


@st.composite
def shapes(draw, max_d=12):
    d = draw(st.integers(1, max_d))
    return d, draw(st.integers(1, d))


seeds = st.integers(0, 2**32 - 1)


def generator(seed):
    return np.random.default_rng(seed)


def rotation(k, rng):
    return geo.random_point(k, k, rng)


def point_at_angles(angles, rng, d):
    """Two points of Gr(d, k) with the given principal angles, in random bases (2k <= d)."""
    k = len(angles)
    frame = rotation(d, rng)
    W, N = frame[:, :k], frame[:, k : 2 * k]
    V = W * np.cos(angles) + N * np.sin(angles)
    return W @ rotation(k, rng), V @ rotation(k, rng)
