"""Workers as processes: killed, dead for good, limited in threads, deaf, two runs at once."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia import Status, geometry
from grassia.backends import Processes
from grassia.backends.base import cores
from grassia.data import OperatorLoader
from grassia.errors import GrassiaError, InvalidInput
from grassia.faults import Fault
from grassia.messages import Query, Task
from process_runs import LINUX_AND_NOTHING_LEFT, MOMENTS, D, K, Killer, eigenspace, leading, sine, some_rows

pytestmark = LINUX_AND_NOTHING_LEFT


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@pytest.fixture(scope="module")
def truth(rows):
    return leading(rows)


# ------------------------------------------------------------------------------- killed workers


@pytest.mark.parametrize("table", ["worker", "server"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_worker_does_not_change_the_answer(rows, truth, moment, table):
    backend = Processes(2)
    killer = Killer(backend, MOMENTS[moment])
    result = eigenspace(
        grassia.from_rows(rows, 4),
        K,
        solver=grassia.solvers.Grassia(table=table),
        backend=backend,
        tol=1e-8,
        rng=0,
        callbacks=killer,
    )
    assert result.converged
    assert sine(result.vectors, truth) <= 1e-8
    assert len(killer.killed) == 1
    events = [(event.kind, event.component) for event in result.history.events]
    for component in (1, 3):
        assert events.count(("worker lost", component)) == 1
        assert events.count(("worker restored", component)) == 1
    lost = next(event for event in result.history.events if event.kind == "worker lost")
    assert "SIGKILL" in lost.text
    assert str(killer.killed[0]) in lost.text


def test_every_worker_killed_at_once_does_not_change_the_answer(rows, truth):
    backend = Processes(3)
    killers = [Killer(backend, MOMENTS["solving"], worker=w) for w in range(3)]
    result = eigenspace(grassia.from_rows(rows, 3), K, backend=backend, tol=1e-8, rng=0, callbacks=killers)
    assert all(len(killer.killed) == 1 for killer in killers)
    assert result.history.count("worker restored") == 3
    assert result.converged
    assert sine(result.vectors, truth) <= 1e-8


def test_a_worker_that_dies_again_and_again_without_an_answer_ends_the_run_with_the_best_iterate(
    rows,
):
    start = geometry.random_point(D, K, np.random.default_rng(0))
    # From its 15th task on each attempt at component 0 kills the worker before it answers.
    backend = Processes(max_restarts=1, faults=Fault("crash", (0,), at=tuple(range(15, 99))))
    seen = []
    with pytest.warns(ConvergenceWarning, match="WORKER_LOST"):
        result = eigenspace(
            grassia.from_rows(rows, 4),
            K,
            backend=backend,
            tol=1e-15,  # out of reach, so that the run is still on when the worker dies again
            rng=0,
            v0=start,
            callbacks=lambda progress: seen.append(progress.version),
        )
    assert result.status is Status.WORKER_LOST
    assert not result.converged
    assert result.history.count("worker lost") == 2 * result.history.count("worker restored") == 2
    assert max(seen) >= 15
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(K), atol=1e-12)
    variance = np.cov(rows.T)
    captured = [np.trace(W.T @ variance @ W) for W in (start, result.vectors)]
    assert captured[1] > captured[0] + 0.1 * np.trace(variance)


def test_a_worker_that_can_never_open_its_data_ends_the_run_with_an_error_and_no_hang():
    def rows():
        os.kill(os.getpid(), signal.SIGKILL)

    components = grassia.from_rows([lambda: np.eye(3), rows])
    with pytest.raises(GrassiaError, match="before every component was opened"):
        eigenspace(components, 1, backend=Processes(max_restarts=1))


def test_a_worker_that_cannot_even_start_is_reported_and_not_waited_for(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(GrassiaError, match="WORKER_LOST"):
        eigenspace(np.eye(3), 1, backend=Processes(max_restarts=1))


# ------------------------------------------------------------------------------------- the workers


def environment_of_workers(backend, n):
    """What each of n workers sees: its environment's and its libraries' number of BLAS threads."""

    def report():
        import threadpoolctl

        np.ones((50, 50)) @ np.ones((50, 50))
        found = [int(os.environ["OMP_NUM_THREADS"])]
        found += [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
        return np.array([found], dtype=float)

    with backend:
        backend.start(list(grassia.from_rows([report] * n, center=True)))
        for i in range(n):
            backend.send(Task(i, i, 0, 0, Query("open")))
        found = []
        while len(found) < n:
            found += backend.receive(1.0)
    return [message.arrays["mean"] for message in found]


def test_blas_threads_of_the_workers_do_not_outnumber_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    share = max(1, cores() // 2)
    for report in environment_of_workers(Processes(), 2):
        assert report.size >= 2  # there is a BLAS to speak of
        assert set(report) == {share}


def test_blas_threads_of_the_workers_are_those_asked_for():
    (report,) = environment_of_workers(Processes(blas_threads=2), 1)
    assert report[0] == 2
    assert set(report[1:]) == {min(2, cores())}  # a BLAS never takes more than the cores


@pytest.mark.parametrize(
    "options", [{"max_restarts": -1}, {"blas_threads": 0}], ids=lambda options: next(iter(options))
)
def test_options_that_make_no_sense_are_refused(options):
    (name,) = options
    with pytest.raises(InvalidInput, match=name):
        eigenspace(np.eye(3), 1, backend=Processes(**options))


def test_two_runs_at_once_in_two_threads_do_not_mix(rows, truth):
    from concurrent.futures import ThreadPoolExecutor

    def one(seed):
        with warnings.catch_warnings():
            return eigenspace(grassia.from_rows(rows, 2), K, backend=Processes(), tol=1e-8, rng=seed)

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(one, range(2)):
            assert sine(result.vectors, truth) <= 1e-8


def test_a_run_can_be_stopped_while_a_worker_is_deaf():
    def operator(V):
        if V.shape[1] != 4:  # not the symmetry check at the opening
            time.sleep(600.0)
        return V

    components = [np.eye(3), OperatorLoader(operator, n_features=3)]
    result = eigenspace(
        components,
        1,
        backend=Processes(),
        rng=0,
        callbacks=lambda progress: progress.phase == "solving",
    )
    assert result.status is Status.INTERRUPTED
