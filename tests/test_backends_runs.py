"""Whole runs on every back-end: the right answer, also after faults, from code that no module holds."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import grassia
from backend_tasks import problem, sine
from grassia._blas import libraries
from grassia.components import MatrixComponent
from grassia.data import as_components

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("table", ["worker", "server"])
def test_every_engine_finds_what_a_dense_solver_finds(engine, table, mode):
    components, W = problem()
    solver = grassia.solvers.Grassia(table=table, mode=mode)
    result = grassia.eigenspace(components, 3, solver=solver, backend=engine(2), tol=1e-8, rng=0)
    assert result.converged
    assert sine(result, W) <= 1e-8
    A = np.mean(components, axis=0)
    np.testing.assert_allclose(result.values, np.linalg.eigvalsh(A)[::-1][:3], rtol=1e-12)
    assert result.stats["backend"] == engine().name


@pytest.mark.parametrize("table", ["worker", "server"])
def test_faults_of_every_kind_do_not_change_the_answer(engine, table):
    components, W = problem()
    rules = [
        "slow:0:2x",
        "delay:1:1ms@5%",
        "crash:2@7",
        "corrupt:0,3@5",
        "duplicate:1@4",
        "error:1@6",
    ]
    solver = grassia.solvers.Grassia(table=table)
    result = grassia.eigenspace(
        components, 3, solver=solver, backend=engine(2, faults=rules), tol=1e-8, rng=0
    )
    assert result.converged
    assert sine(result, W) <= 1e-8
    events = result.history.events
    struck = {(event.kind, event.component) for event in events}
    assert {("worker lost", 2), ("worker restored", 2), ("task failed", 1)} <= struck
    assert {("corrupt reply rejected", 0), ("corrupt reply rejected", 3)} <= struck
    assert result.stats["replies_rejected"] == 2
    assert result.stats["replies_ignored"] == 1


def test_functions_defined_where_they_are_used_travel_to_the_workers(engine):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((90, 6)) * np.array([5.0, 4.0, 1.0, 1.0, 1.0, 1.0])

    def shard(first):
        def rows():
            return X[first : first + 30]

        return rows

    class Doubled:
        """A loader, and the class of its component, that no module holds."""

        def open(self):
            class Twice(MatrixComponent):
                def _product(self, V):
                    return 2.0 * super()._product(V)

            return Twice(np.diag([3.0, 2.0, 1.0]))

    components = grassia.from_rows([shard(0), shard(30), shard(60)])
    result = grassia.eigenspace(components, 2, backend=engine(2), rng=0)
    assert sine(result, np.linalg.eigh(np.cov(X.T))[1][:, -2:]) <= 1e-6

    result = grassia.eigenspace(as_components(Doubled()), 1, backend=engine(), rng=0)
    assert result.values[0] == pytest.approx(6.0)
    assert sine(result, np.eye(3)[:, :1]) <= 1e-6


def test_a_serial_run_leaves_blas_as_it_was():
    """Also when several runs overlap, and when one fails."""
    before = [library.num_threads for library in libraries()]
    X = np.random.default_rng(0).standard_normal((200, 12)) * np.r_[5, 4, np.ones(10)]
    started = threading.Barrier(3)

    def solve(seed: int) -> None:
        def wait(progress: grassia.Progress) -> None:
            if progress.passes == 1.0:
                started.wait(10.0)

        grassia.eigenspace(grassia.from_rows(X, 3), 2, solver="krylov", rng=seed, callbacks=wait)

    threads = [threading.Thread(target=solve, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [library.num_threads for library in libraries()] == before
    with pytest.raises(grassia.InvalidInput):
        grassia.eigenspace(np.full((3, 3), np.nan), 1)
    assert [library.num_threads for library in libraries()] == before
