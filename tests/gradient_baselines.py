"""Gradient baselines to try out: solvers, back-ends, a problem and its start."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import grassia
from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.solvers import DelayedOja, Iarg, Oja, Rgd
from problems import heterogeneous

SPEEDS = [1, 2, 3, 5, 2, 1, 4]
UNEVEN = Fixed(SPEEDS)
BACKENDS = {
    "serial": Serial,
    "dispatch": lambda **o: Simulated(UNEVEN, **o),
    "return": lambda **o: Simulated(UNEVEN, evaluate="return", **o),
    "lognormal": lambda **o: Simulated(LogNormal(), seed=11, workers=4, **o),
    "threads": lambda **o: Threads(**{"faults": ["delay:0:1ms", "delay:1:2ms"], **o}),
}
EXACT = {"rgd": Rgd(), "iarg": Iarg(), "iarg, table": Iarg(table="server")}
NOISY = {"oja": Oja(step=0.02), "delayed-oja": DelayedOja(step=0.01)}
each_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
each_kind_of_backend = pytest.mark.parametrize(
    "backend",
    [BACKENDS[name] for name in ("serial", "dispatch", "threads")],
    ids=["serial", "dispatch", "threads"],
)
each_exact = pytest.mark.parametrize("solver", EXACT.values(), ids=EXACT)
each_noisy = pytest.mark.parametrize("solver", NOISY.values(), ids=NOISY)


def seven_components():
    return heterogeneous(n=7, d=20, k=3, seed=1)


def random_start():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((20, 3)))[0]


def solve(problem, k, solver, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return grassia.eigenspace(
            problem.components, k, weights=problem.weights, solver=solver, **{"rng": 0, **options}
        )


def gradient(A, W):
    return -2.0 * (np.eye(len(W)) - W @ W.T) @ A @ W
