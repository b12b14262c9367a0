"""What the states of gradient baselines hold: aggregates, frozen vectors, steps, restarts."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from gradient_baselines import UNEVEN, gradient, seven_components, solve
from grassia.backends import Simulated
from grassia.data import as_components
from grassia.messages import Task
from grassia.solvers import DelayedOja, Iarg, Oja, Rgd
from grassia.solvers.base import Arrival, Problem
from grassia.worker import Worker
from problems import heterogeneous


@pytest.fixture(scope="module")
def problem():
    return seven_components()


def drive(solver, problem, answers, lose=(), late=0):
    """Run IARG by hand, each task run twice; each answer is told `late` answers after it was asked.

    Yields the state after each, with the vector at which every component's counted gradient was computed.
    """
    n, d = len(problem.components), len(problem.components[0])
    W = np.linalg.qr(np.random.default_rng(0).standard_normal((d, 2)))[0]
    state = solver.init(Problem(n, d, 2, problem.weights, None, False), W, None)
    loaders = as_components(problem.components)
    workers = [Worker({i: loaders[i]}) for i in range(n)]
    held, out = {}, []
    for number in range(answers):
        i = number % n
        if number in lose:
            workers[i] = Worker({i: loaders[i]})
            out = [entry for entry in out if entry[0] != i]
            state = solver.lost(state, i)
        if all(entry[0] != i for entry in out):
            version = solver.version(state)
            task = Task(number, i, version, 0, solver.ask(state, i))
            workers[i].handle(task)
            out.append((i, version, workers[i].handle(task), task.query.arrays["iterate"]))
        if len(out) > late:
            i, version, reply, at = out.pop(0)
            if version >= state.began:
                held[i] = at
            state = solver.tell(state, [Arrival(i, version, 0, reply.arrays, reply.scalars)])
            yield state, held


@pytest.mark.parametrize(("late", "table"), [(0, "worker"), (2, "worker"), (2, "server")])
@pytest.mark.parametrize("lose", [(), (9,), (2, 61, 62), (9, 10, 11, 90, 130, 131)])
def test_the_aggregate_of_iarg_is_of_the_vector_sought_alone(late, table, lose):
    """Whatever was lost or came too late, once every component has answered for this vector again."""
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    solver = Iarg(step=0.1, deflation_tol=1e-2, table=table, resum_passes=0)
    widths, since_loss, checked = set(), 100, 0
    for number, (state, held) in enumerate(drive(solver, problem, 200, lose, late)):
        since_loss = 0 if any(number <= lost <= number + late + 1 for lost in lose) else since_loss + 1
        if not state.inner.gradients.started or state.inner.gradients.fresh is not None or since_loss < 20:
            continue
        P = np.eye(12) - state.found @ state.found.T
        exact = sum(
            w * gradient(P @ A @ P, held[i])
            for i, (w, A) in enumerate(zip(problem.weights, problem.components, strict=True))
        )
        np.testing.assert_allclose(state.inner.G, exact, atol=1e-13)
        widths.add(state.found.shape[1])
        checked += 1
    assert widths == {0, 1}
    assert checked >= 40


def test_frozen_vectors_stay_frozen_and_are_eigenvectors_to_the_tolerance(problem):
    frozen = {}

    def watch(progress):
        if progress.vectors is not None and progress.phase == "solving":
            state = progress._server.state
            frozen.setdefault(state.found.shape[1], []).append(state.found)

    solver = Iarg(deflation_tol=1e-4, repeat=False)
    solve(problem, 3, solver, backend=Simulated(UNEVEN), tol=1e-10, callbacks=watch)
    for j in (1, 2):
        assert all(np.array_equal(U, frozen[j][0]) for U in frozen[j])
        np.testing.assert_array_equal(frozen[j + 1][0][:, :j], frozen[j][0])
    leading = problem.spectrum()[1][:, :3]
    overlaps = np.abs(np.sum(leading * frozen[3][0], axis=0))
    assert np.arccos(np.minimum(overlaps, 1.0)).max() <= 2e-3


def test_the_automatic_step_of_rgd_never_loses_captured_variance_for_long():
    """Its guard halves the step; without Lanczos steps to speak of the estimate is poor."""
    A = np.diag(np.r_[10.0, 9.0, np.zeros(40)])
    result = grassia.eigenspace([A], 1, solver=Rgd(spread_steps=1), tol=1e-8, rng=0)
    assert result.converged
    assert abs(result.vectors[0, 0]) == pytest.approx(1.0, abs=1e-12)


def test_the_spreads_are_asked_for_once():
    A = np.diag([3.0, 1.0, 0.0])
    solver = Rgd()
    state = solver.init(Problem(1, 3, 1, np.ones(1), None, False), np.eye(3)[:, 1:2], 0)
    assert solver.ask(state, 0).procedure == "apply-and-spread"
    state = solver.tell(state, [Arrival(0, 0, 0, {"product": A @ state.round.block}, {"spread": 3.0})])
    assert solver.step_size(state) == pytest.approx(0.8 / 3.0)
    assert solver.ask(state, 0).procedure == "apply"


def test_a_second_vector_does_not_ask_for_the_spreads_again():
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    solver = Iarg(deflation_tol=1e-2)
    states = [state for state, _ in drive(solver, problem, 120)]
    starts = [state for state in states if not state.inner.gradients.started]
    first, second = starts[0], starts[-1]
    assert "spread_steps" in solver.ask(first, 3).options
    assert second.found.shape[1] == 1
    assert "spread_steps" not in solver.ask(second, 3).options
    np.testing.assert_array_equal(second.inner.spread, states[-1].inner.spread)


@pytest.mark.parametrize("solver", [Rgd(), Iarg(), Oja(step=0.1), DelayedOja(step=0.1)])
def test_a_restart_is_an_update_to_the_space_given(solver):
    start, other = np.eye(6)[:, :2], np.eye(6)[:, 3:5]
    state = solver.init(Problem(2, 6, 2, np.full(2, 0.5), None, False), start, 0)
    np.testing.assert_array_equal(solver.subspace(state), start)
    again = solver.restart(state, other)
    np.testing.assert_array_equal(solver.subspace(again), other)
    assert solver.version(again) > solver.version(state)
