"""Step sizes: the automatic one needs no tuning anywhere, the theorem's one is what the paper says."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

import grassia
from grassia import theory
from grassia.errors import InvalidInput
from grassia.geometry import projection_distance
from grassia.solvers import Grassia
from problems import gaussian_rows, heterogeneous, leading_of_rows
from worlds import PROBLEMS, WORLDS

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_automatic_step_converges_untuned(name, world):
    problem = PROBLEMS[name]
    backend, order = WORLDS[world](len(problem.components))
    result = eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        backend=backend,
        rng=0,
        tol=1e-5,
        solver=Grassia(order=order),
        max_passes=4000,
    )
    assert result.converged, result.summary()
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-5


def test_the_automatic_step_converges_synchronously():
    for problem in PROBLEMS.values():
        result = eigenspace(
            problem.components,
            3,
            weights=problem.weights,
            rng=0,
            solver=Grassia(mode="synchronous"),
        )
        assert result.converged


@pytest.mark.parametrize("given", [False, True])
def test_the_step_of_the_theorem_converges_but_is_small(given):
    X = gaussian_rows(200, 6, 2, seed=0)
    components = grassia.from_rows(X, n_components=2)
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    solver = Grassia(step="theory", delta=values[1] - values[2] if given else None)
    result = eigenspace(components, 2, solver=solver, rng=0, tol=1e-4)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 2)) <= 1e-4
    auto = eigenspace(components, 2, rng=0, tol=1e-4)
    assert result.history["step"][-1] < 0.2 * auto.history["step"][-1]


def test_the_theorem_step_never_exceeds_the_bound_of_the_true_constants():
    """Spreads are estimated from above, so the step is admissible for the exact problem."""
    problem = heterogeneous(6, 25, 3, 0)
    values = problem.spectrum()[0]
    nu = values[0] - values[-1]
    ends = [np.linalg.eigvalsh(A)[[0, -1]] for A in problem.components]
    nu_avg = problem.weights @ [high - low for low, high in ends]
    result = eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        rng=0,
        solver=Grassia(step="theory", delta=values[2] - values[3]),
        callbacks=lambda p: p.version >= 60,
    )
    tau = int(result.history["staleness"].max()) + 5  # a cyclic visit ages the others by n - 1 = 5
    bound = theory.broad_step(3, nu, nu_avg, values[2] - values[3], tau)
    assert 0.0 < result.history["step"][-1] <= bound * (1.0 + 1e-9)


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("tau", [0, 1, 7])
def test_the_compatibility_step_is_that_of_the_papers_remark(k, tau):
    """Radii pi/(3 sqrt 2) and pi/3: the closed form printed in the paper."""
    nu, nu_avg, delta = 2.0, 3.0, 0.3
    B = 17.0 / 8.0 + 2.0 * (2.0 + 4.0 * math.sqrt(k) / 3.0) * math.sqrt(k) * math.pi / 3.0
    expected = 1.0 / (4.0 * B * nu)
    if tau:
        root = math.sqrt(144.0 + 27.0 * math.sqrt(3.0) * math.pi * nu / delta)
        expected = min(expected, 1.0 / (2.0 * nu_avg * tau * root))
    assert theory.compatibility_step(k, nu, nu_avg, delta, tau) == pytest.approx(expected, rel=1e-12)


def test_the_local_step_does_not_feel_the_gap():
    """Delta is at most the spread, so its term never binds: the sharper phase is free of it."""
    steps = {theory.local_step(3, 1.0, 1.0, delta, 4) for delta in (1e-6, 1e-3, 1.0)}
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"step": -1.0}, "`step` must be a positive"),
        ({"step": math.nan}, "`step` must be a positive"),
        ({"step": True}, "`step` must be a positive"),
        ({"step": None}, "`step` must be a positive"),
        ({"step": "fast"}, "`step` must be one of 'auto', 'theory'"),
        ({"mode": "later"}, "`mode` must be one of"),
        ({"order": "backwards"}, "`order` must be one of"),
        ({"table": "cloud"}, "`table` must be one of"),
        ({"resum_passes": -1}, "`resum_passes` must be at least 0"),
        ({"resum_passes": 1.5}, "`resum_passes` must be an integer"),
        ({"spread_steps": 0}, "`spread_steps` must be at least 1"),
        ({"tau": -1}, "`tau` must be at least 0"),
        ({"delta": -1.0}, "`delta` must be a positive"),
    ],
)
def test_bad_parameters_are_refused(options, text):
    with pytest.raises(InvalidInput, match=text):
        Grassia(**options)
