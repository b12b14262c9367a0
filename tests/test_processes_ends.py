"""What a run on processes leaves behind, which is nothing, and scripts that end in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grassia
from conftest import children, eventually, segments
from grassia.backends import Processes
from process_runs import LINUX_AND_NOTHING_LEFT, MOMENTS, K, Killer, eigenspace, some_rows

pytestmark = LINUX_AND_NOTHING_LEFT


@pytest.fixture(scope="module")
def rows():
    return some_rows()


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


def test_the_server_does_not_keep_a_dead_workers_pipe_open(rows):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        backend = Processes(2)
        killer = Killer(backend, MOMENTS["solving"])
        eigenspace(grassia.from_rows(rows, 2), K, backend=backend, rng=0, callbacks=killer)
        assert killer.killed
    # One for Python's resource tracker, which may have been started meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before + 1


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
