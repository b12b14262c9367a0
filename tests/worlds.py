"""Problems of every kind, and the worlds they are solved in: back-ends, service times, orders of asking."""

from __future__ import annotations

import numpy as np

from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import Bursty, Fixed, LogNormal, Pareto, straggler
from problems import Dense, heterogeneous


def rank_one_samples() -> Dense:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 10)) * np.r_[3.0, 2.5, 2.0, np.full(7, 0.7)]
    return Dense([np.outer(x, x) for x in X], np.full(30, 1.0 / 30.0))


def disjoint_blocks() -> Dense:
    """Each component sees directions of its own only: the spreads add up to far more than that of A."""
    parts = []
    for i in range(6):
        A = np.zeros((18, 18))
        A[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] = np.diag([6.0 - 0.5 * i, 0.3, 0.1])
        parts.append(A)
    return Dense(parts, np.full(6, 1.0 / 6.0))


def one_heavy_component() -> Dense:
    base = heterogeneous(n=4, d=20, k=3, seed=4)
    weights = np.array([0.85, 0.05, 0.05, 0.05])
    return Dense(base.components, weights)


PROBLEMS = {
    "alike": heterogeneous(8, 30, 3, 0, gap=0.4, noise=0.1),
    "unlike": heterogeneous(8, 30, 3, 1, gap=0.4, noise=1.0),
    "very unlike": heterogeneous(5, 20, 3, 2, gap=0.5, noise=3.0),
    "rank one": rank_one_samples(),
    "disjoint": disjoint_blocks(),
    "one heavy": one_heavy_component(),
    "tiny scale": Dense([1e-9 * A for A in heterogeneous(4, 15, 3, 3).components], np.full(4, 0.25)),
    "huge scale": Dense([1e9 * A for A in heterogeneous(4, 15, 3, 3).components], np.full(4, 0.25)),
    "shifted": Dense(
        [A + 40.0 * np.eye(15) for A in heterogeneous(4, 15, 3, 3).components], np.full(4, 0.25)
    ),
    "negative": Dense(
        [A - 40.0 * np.eye(15) for A in heterogeneous(4, 15, 3, 3).components], np.full(4, 0.25)
    ),
}

WORLDS = {
    "serial": lambda n: (Serial(), "cyclic"),
    "serial, random": lambda n: (Serial(), "random"),
    "equal": lambda n: (Simulated(Fixed(1.0)), "cyclic"),
    "lognormal": lambda n: (Simulated(LogNormal(), seed=1), "cyclic"),
    "bursty": lambda n: (Simulated(Bursty(), seed=1), "cyclic"),
    "straggler": lambda n: (Simulated(straggler(n, 20.0)), "cyclic"),
    "pareto": lambda n: (Simulated(Pareto(1.5), seed=1), "cyclic"),
    "at return": lambda n: (Simulated(LogNormal(), seed=1, evaluate="return"), "cyclic"),
    "two workers": lambda n: (Simulated(LogNormal(), seed=2, workers=2), "shuffled"),
    "threads": lambda n: (Threads(), "cyclic"),
}
