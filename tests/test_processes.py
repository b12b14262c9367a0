"""Workers that are real processes, killed for real, and what they leave behind: nothing."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from conftest import children, eventually, segments
from grassia import Status, geometry
from grassia.backends import Processes
from grassia.backends.base import cores
from grassia.backends.shared import SMALL, SharedStore
from grassia.data import MatrixLoader, OperatorLoader, RowsLoader, as_components
from grassia.errors import GrassiaError, InvalidComponent, InvalidInput
from grassia.faults import Fault
from grassia.messages import Query, Task

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc"),
    pytest.mark.usefixtures("nothing_is_left"),
]

D, K = 12, 3


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(11)
    return rng.standard_normal((240, D)) * np.r_[6.0, 5.0, 4.0, np.linspace(1.5, 0.5, D - K)]


@pytest.fixture(scope="module")
def truth(rows):
    return np.linalg.eigh(np.cov(rows.T))[1][:, -K:]


def sine(vectors, truth):
    return float(np.sin(geometry.principal_angles(vectors, truth).max()))


class Killer:
    """A callback that kills a worker, as an out-of-memory killer would, at a chosen moment."""

    def __init__(self, backend, moment, times=1, worker=1):
        self.backend, self.moment, self.left, self.worker = backend, moment, times, worker
        self.killed = []

    def __call__(self, progress):
        pid = self.backend.pids[self.worker]
        if self.left and pid not in self.killed and self.moment(progress):
            self.left -= 1
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)


MOMENTS = {
    "opening": lambda progress: progress.phase == "opening",
    "solving": lambda progress: progress.version >= 10,
    "certifying": lambda progress: progress.phase == "certifying",
}


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


# ------------------------------------------------------------------------------- where the data is


def test_workers_open_their_own_files(rows, truth, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, rows)
    shards = []
    for i, shard in enumerate(np.array_split(rows, 3)):
        np.save(tmp_path / f"{i}.npy", shard)
        shards.append(tmp_path / f"{i}.npy")
    for components in (
        grassia.from_rows(path, 3),
        grassia.from_rows(shards),
        grassia.from_rows(np.load(path, mmap_mode="r"), 3),
    ):
        backend = Processes(1)
        result = eigenspace(components, K, backend=backend, tol=1e-8, rng=0)
        assert sine(result.vectors, truth) <= 1e-8
        store = SharedStore()
        assert len(store.dumps(list(components))) < 4096
        assert not segments()  # nothing was copied on the way


def test_arrays_in_memory_are_placed_in_shared_memory_once():
    X = np.random.default_rng(0).standard_normal((4000, 40))
    store = SharedStore()
    try:
        luggage = store.dumps([RowsLoader(X), RowsLoader(X), MatrixLoader(X[:40].copy())])
        again = store.dumps(RowsLoader(X))
        assert X.nbytes > 10 * SMALL
        assert len(luggage) + len(again) < SMALL  # the 12.8 kB matrix travels inside
        (name,) = segments()
        assert Path("/dev/shm", name).stat().st_size >= X.nbytes
        first, second, _ = pickle.loads(luggage)
        np.testing.assert_array_equal(first.rows, X)
        assert first.rows is second.rows
        assert not first.rows.flags.writeable
    finally:
        store.close()


@pytest.mark.parametrize(
    "view",
    [
        lambda X: X,
        np.asfortranarray,
        lambda X: X[::2, ::3],
        lambda X: X.astype(">f4"),
        lambda X: X.astype(np.float16),
        lambda X: X > 0,
    ],
    ids=["C", "F", "strided", "big-endian", "half", "bool"],
)
def test_an_array_of_any_layout_and_dtype_is_the_same_on_the_other_side(view):
    X = view(np.random.default_rng(0).standard_normal((600, 500)))
    store = SharedStore()
    try:
        luggage = store.dumps(X)
        assert len(luggage) < 1024
        np.testing.assert_array_equal(pickle.loads(luggage), X)
    finally:
        store.close()


def test_what_was_written_to_a_copy_on_write_map_is_not_lost_on_the_way(tmp_path):
    path = tmp_path / "matrix.npy"
    d = 120
    np.save(path, np.diag(np.arange(1.0, d + 1)))
    matrix = np.load(path, mmap_mode="c")
    matrix[0, 0] = 1000.0  # in this process's memory, not in the file
    assert matrix.nbytes > SMALL
    result = eigenspace([matrix], 1, backend=Processes(), rng=0)
    assert result.values[0] == pytest.approx(1000.0)


def test_data_beyond_the_shared_memory_there_is_goes_through_a_file(rows, truth, monkeypatch, tmp_path):
    monkeypatch.setattr("grassia.backends.shared._room_in_memory", lambda: 0.0)
    monkeypatch.setattr("grassia.backends.shared.SMALL", 1024)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    result = eigenspace(
        grassia.from_rows(rows, 2),
        K,
        backend=Processes(),
        tol=1e-8,
        rng=0,
        callbacks=lambda progress: seen.extend(tmp_path.glob("grassia-*/*")),
    )
    assert len(set(seen)) == 2
    assert not list(tmp_path.iterdir())
    assert sine(result.vectors, truth) <= 1e-8


def test_a_component_that_cannot_be_pickled_is_refused_by_its_number():
    lock = threading.Lock()
    components = [
        np.eye(3),
        OperatorLoader(lambda V: V * lock.locked(), n_features=3),
    ]
    with pytest.raises(InvalidComponent, match="component 1: it cannot be pickled"):
        eigenspace(components, 1, backend=Processes(1))


# ------------------------------------------------------------------------------- nothing is left


def test_a_run_leaves_no_process_and_no_segment_also_when_workers_were_killed(rows):
    backend = Processes(2)
    running = []

    def look(progress):
        running.append((len(children()), len(segments())))

    killer = Killer(backend, MOMENTS["solving"])
    eigenspace(grassia.from_rows(rows, 2), K, backend=backend, rng=0, callbacks=[look, killer])
    most = [max(column) for column in zip(*running, strict=True)]
    assert most[0] >= 2  # there was something to be left
    assert most[1] >= 2
    assert not children()
    assert not segments()


def test_an_exception_in_a_callback_leaves_no_process_and_no_segment(rows):
    class Boom(Exception):
        pass

    def fail(progress):
        if progress.version >= 3:
            raise Boom

    with pytest.raises(Boom):
        eigenspace(grassia.from_rows(rows, 2), K, backend=Processes(), rng=0, callbacks=fail)
    assert not children()
    assert not segments()


def test_a_failed_start_leaves_no_process_and_no_segment(monkeypatch):
    real, calls = subprocess.Popen, []

    def popen(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise OSError("no more processes")
        return real(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="no more processes"):
        eigenspace([np.eye(100)] * 4, 1, backend=Processes())
    assert len(calls) == 3
    assert not children()
    assert not segments()


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


# ---------------------------------------------------------------------------------------- scripts

PLAIN = """
import numpy as np, grassia
print("once")
def rows(seed):
    return lambda: np.random.default_rng(seed).standard_normal((50, 5)) * np.array([9, 7, 1, 1, 1])
result = grassia.eigenspace(grassia.from_rows([rows(0), rows(1)]), 2, backend="processes", rng=0)
print(result.status.name)
"""

# A minute or more, by a step that leads nowhere and tasks that take their time.
ENDLESS = """
import signal, numpy as np, grassia
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
rng = np.random.default_rng(0)
X = rng.standard_normal((2000, 20)) * np.r_[6.0, 5.0, np.ones(18)]
print("ready", flush=True)
def tell(progress):
    if progress.version == 10:
        print("going", flush=True)
solver = grassia.solvers.Grassia(step=1e-9, resum_passes=0)
backend = grassia.backends.Processes(3, faults="delay:*:100ms")
result = grassia.eigenspace(grassia.from_rows(X, 3), 2, solver=solver, backend=backend, rng=0,
                            callbacks=tell)
print(result.status.name, result.vectors.shape, flush=True)
"""


@pytest.fixture
def script(tmp_path):
    """Runs a script in a process of its own, which does not outlive the test."""
    started = []

    def run(text, **options):
        path = tmp_path / "script.py"
        path.write_text(text)
        options = {"cwd": tmp_path, "text": True, **options}
        command = [sys.executable, str(path)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, **options))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_a_script_needs_no_main_guard(script):
    process = script(PLAIN)
    out, err = process.communicate(timeout=90)
    assert (out.split(), err) == (["once", "CONVERGED"], "")


def test_a_module_beside_a_script_reaches_the_workers(script, tmp_path):
    (tmp_path / "beside.py").write_text(
        "import numpy as np\ndef rows():\n    return np.diag([3.0, 2.0, 1.0])\n"
    )
    text = """
import beside, grassia
result = grassia.eigenspace(grassia.from_rows([beside.rows]), 1, backend="processes", rng=0)
print(result.status.name)
"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out, err = script(text, cwd=elsewhere).communicate(timeout=90)
    assert (out.split(), err) == (["CONVERGED"], "")


def test_a_file_in_the_current_folder_that_is_named_like_a_library_does_not_reach_the_workers(
    script, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("queue", "numpy", "grassia"):
        (elsewhere / f"{name}.py").write_text(f"raise ImportError('the wrong {name}')\n")
    out, err = script(PLAIN, cwd=elsewhere).communicate(timeout=90)
    assert (out.split(), err) == (["once", "CONVERGED"], "")


def test_ctrl_c_gives_the_best_iterate_and_leaves_no_child(script):
    process = script(ENDLESS, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "going\n"
    workers = children(process.pid)
    assert len(workers) == 3
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    out, err = process.communicate(timeout=90)
    assert out == "INTERRUPTED (20, 2)\n"
    assert process.returncode == 0
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not segments(process.pid)


def test_workers_and_segments_do_not_outlive_a_server_that_is_killed(script):
    process = script(ENDLESS)
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "going\n"
    workers = children(process.pid)
    assert len(workers) == 3
    assert segments(process.pid)
    process.kill()
    process.communicate(timeout=90)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert eventually(lambda: not segments(process.pid))


def test_the_server_does_not_keep_a_dead_workers_pipe_open(rows):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        backend = Processes(2)
        killer = Killer(backend, MOMENTS["solving"])
        eigenspace(grassia.from_rows(rows, 2), K, backend=backend, rng=0, callbacks=killer)
        assert killer.killed
    # One for Python's resource tracker, which may have been started meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_two_runs_at_once_in_two_threads_do_not_mix(rows, truth):
    from concurrent.futures import ThreadPoolExecutor

    def one(seed):
        with warnings.catch_warnings():
            return eigenspace(grassia.from_rows(rows, 2), K, backend=Processes(), tol=1e-8, rng=seed)

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(one, range(2)):
            assert sine(result.vectors, truth) <= 1e-8


def test_components_given_as_components_travel_with_their_data(rows, truth):
    components = as_components([grassia.RowsComponent(part) for part in np.array_split(rows, 2)])
    result = eigenspace(components, K, backend=Processes(), tol=1e-8, rng=0)
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
