"""Inside a `with` block a back-end keeps its workers from run to run, and nothing of the runs."""

from __future__ import annotations

import itertools
import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import grassia
from backend_tasks import COUNT, Post
from conftest import children
from grassia.backends import Processes
from grassia.backends.shared import Slot
from grassia.data import MatrixLoader
from grassia.errors import GrassiaError
from grassia.geometry import projection_distance
from problems import gaussian_rows, leading_of_rows

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]

K = 2


def solved(backend, seed=0, parts=3, solver="nystrom", **options):
    X = gaussian_rows(400, 12, K, seed=seed)
    result = grassia.eigenspace(
        grassia.from_rows(X, parts), K, solver=solver, backend=backend, rng=0, **options
    )
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, K)) < 1e-6
    return result


def test_runs_inside_a_block_are_those_of_their_own_data(engine):
    with engine(2) as backend:
        for seed, parts, solver in ((0, 3, "nystrom"), (1, 4, "krylov"), (2, 2, "grassia"), (3, 1, "power")):
            solved(backend, seed, parts, solver)
    solved(backend)  # and after it, as any other


def test_a_released_back_end_has_forgotten_everything(engine):
    with engine(2) as backend:
        post = Post(backend, [MatrixLoader(np.eye(3)) for _ in range(3)])
        first = post.ask(0, COUNT).scalars
        for i in range(3):
            post.send(i, COUNT)  # never received
        backend.release()
        again = Post(backend, [MatrixLoader(np.eye(2)), MatrixLoader(2.0 * np.eye(2))])
        assert sorted(itertools.chain(*backend.groups)) == [0, 1]
        assert backend.receive(0.05) == []
        assert (
            first["seen"] == again.ask(0, COUNT).scalars["seen"] == again.ask(1, COUNT).scalars["seen"] == 1
        )
        np.testing.assert_array_equal(
            again.ask(1, "apply", {"block": np.eye(2)}).arrays["product"], 2.0 * np.eye(2)
        )


def workers_of(backend, seen):
    """The processes that answer, of two components."""
    post = Post(backend, [MatrixLoader(np.eye(3)) for _ in range(2)])
    seen.append({post.ask(i, COUNT).scalars["pid"] for i in range(2)})
    return post


@pytest.mark.parametrize("name", ["processes", pytest.param("ray", marks=pytest.mark.engines)])
def test_the_processes_are_the_same_and_are_gone_after_the_block(name):
    from conftest import ENGINES

    seen: list[set[int]] = []
    with ENGINES[name](workers=2) as backend:
        for _ in range(3):
            workers_of(backend, seen)
            backend.release()
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 2
    deadline = time.monotonic() + 30.0
    while any(Path(f"/proc/{pid}").exists() for pid in seen[0]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_that_are_busy_at_the_end_are_kept_too():
    seen: list[set[int]] = []
    with Processes(2, faults="delay:0:60s@1") as backend:
        post = workers_of(backend, seen)
        post.send(0, COUNT)  # a delay that is not waited for
        backend.release()
        workers_of(backend, seen)
    assert seen[0] == seen[1]


def test_a_worker_that_has_died_or_is_deaf_is_replaced():
    seen: list[set[int]] = []
    with Processes(2) as backend:
        workers_of(backend, seen)
        os.kill(backend.pids[0], signal.SIGSTOP)
        os.kill(backend.pids[1], signal.SIGKILL)
        backend.release()
        workers_of(backend, seen)
        assert not seen[0] & seen[1]
        assert len(children()) == 2
    assert children() == {}


def test_the_data_of_a_run_are_not_held_by_workers_that_rest():
    X = gaussian_rows(20_000, 20, K, seed=5)
    with Processes(2) as backend:
        for _ in range(2):
            grassia.eigenspace(grassia.from_rows(X, 2), K, backend=backend, rng=0)
            assert not list(Path("/dev/shm").glob(f"grassia_{os.getpid()}_*"))
            for pid in children():
                deadline = time.monotonic() + 10.0
                while f"grassia_{os.getpid()}_" in Path(f"/proc/{pid}/maps").read_text():
                    assert time.monotonic() < deadline, "it still maps the rows"
                    time.sleep(0.02)


def test_a_run_that_fails_leaves_the_block_usable():
    bad = grassia.from_rows(np.full((10, 4), np.nan), 2)
    good = grassia.from_rows(gaussian_rows(300, 12, K, seed=7), 2)

    def stop(progress):
        raise ZeroDivisionError

    with Processes(2, max_restarts=0) as backend:
        solved(backend)
        with pytest.raises(GrassiaError):
            grassia.eigenspace(bad, 1, backend=backend)
        solved(backend, seed=1)
        with pytest.raises(ZeroDivisionError):
            grassia.eigenspace(good, K, backend=backend, callbacks=stop)
        solved(backend, seed=2)
    assert children() == {}


def test_a_block_inside_a_run_ends_nothing_of_it(engine):
    """Nor does one of another thread: only the run itself releases what it has used."""
    backend = engine(2)

    def enter(progress):
        with backend:
            pass

    with backend:
        for _ in range(2):
            solved(backend, callbacks=enter)
    solved(backend, callbacks=enter)


def test_released_twice_is_released(engine):
    """As when Ctrl-C comes in the middle of the first time."""
    with engine(2) as backend:
        Post(backend, [MatrixLoader(np.eye(3)) for _ in range(2)])
        kept = list(backend._workers) if isinstance(backend, Processes) else []
        backend.release()
        for worker in kept:
            worker.rest()
        backend.release()
        solved(backend)


def test_a_slot_whose_closing_was_cut_short_can_be_closed():
    slot = Slot()
    slot.ensure(100)
    segment = Path("/dev/shm") / slot.name
    segment.unlink()
    slot.close()
    assert slot.size == 0
    slot.close()


def test_relative_paths_are_those_of_the_program_at_each_run(tmp_path, monkeypatch):
    for name, scale in (("one", 1.0), ("two", 2.0)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "rows.npy", scale * gaussian_rows(100, 6, K, seed=3))
    values = []
    with Processes(2) as backend:
        for name in ("one", "two"):
            monkeypatch.chdir(tmp_path / name)
            shards = grassia.from_rows([partial(np.load, "rows.npy")] * 2)
            values.append(grassia.eigenspace(shards, K, backend=backend, rng=0).values)
    np.testing.assert_allclose(values[1], 4.0 * values[0], rtol=1e-9)
