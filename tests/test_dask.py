"""Tasks on Dask that hang: a second copy of a worker answers instead; and plain scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grassia
from backend_tasks import Post, loaders, problem, sine
from conftest import eventually
from dask_runs import WHERE, full_client, held, kinds, two_places
from grassia.backends.dask import Dask
from grassia.data import OperatorLoader
from grassia.losses import LossPolicy
from grassia.messages import Failure, Lost, Reply, Restored

pytest.importorskip("distributed")

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def client() -> Any:
    return full_client()


@pytest.fixture
def post(client: Any) -> Iterator[Post]:
    with two_places(client) as made:
        yield made


# ------------------------------------------------------------------------- a second copy of a worker


def test_the_copy_of_a_hung_worker_answers_and_takes_its_place(post, tmp_path):
    task, pid = held(post, tmp_path, elsewhere="")
    told = np.arange(3.0)
    assert post.backend.hasten(task.id, 0, {"told": told})
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, True)
    np.testing.assert_array_equal(reply.arrays["told"], told)
    assert reply.scalars["pid"] != pid
    after = post.ask(0, WHERE)
    assert not after.moved
    assert (after.scalars["pid"], after.scalars["seen"]) == (reply.scalars["pid"], 2)
    (tmp_path / "here").touch()  # what the first one says in the end is not heard
    assert post.backend.receive(0.3) == []


def test_a_copy_that_is_not_first_is_forgotten(post, tmp_path):
    task, pid = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    assert post.backend.receive(0.5) == []
    (tmp_path / "here").touch()
    reply = post.gather(1)[0]
    assert (reply.moved, reply.scalars["pid"], reply.scalars["seen"]) == (False, pid, 2)
    (tmp_path / "elsewhere").touch()
    assert post.backend.receive(0.3) == []
    assert post.ask(0, WHERE).scalars["seen"] == 3


def test_while_a_copy_runs_the_death_of_the_worker_is_no_loss(post, tmp_path):
    task, pid = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    os.kill(pid, signal.SIGKILL)
    assert post.backend.receive(1.0) == []
    (tmp_path / "elsewhere").touch()
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, True)
    assert post.ask(0, WHERE).scalars["pid"] == reply.scalars["pid"]


def test_the_death_of_a_copy_is_not_heard_of_and_another_may_be_made(post, client, tmp_path):
    task, _ = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    assert not post.backend.hasten(task.id, 0, {})  # one is enough
    (copy,) = (seat for seat, place in post.backend._seated.items() if seat is place.copy)
    pids = client.run(os.getpid)
    os.kill(pids[copy.address], signal.SIGKILL)
    assert post.backend.receive(2.0) == []
    assert post.backend.hasten(task.id, 0, {})
    (tmp_path / "elsewhere").touch()
    assert post.gather(1)[0].moved


def test_worker_and_copy_both_dead_are_one_loss(post, client, tmp_path):
    task, pid = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    (copy,) = (seat for seat, place in post.backend._seated.items() if seat is place.copy)
    for one in (pid, client.run(os.getpid)[copy.address]):
        os.kill(one, signal.SIGKILL)
    lost, restored = post.gather(2)
    assert isinstance(lost, Lost)
    assert isinstance(restored, Restored)
    assert post.ask(0, WHERE).scalars["seen"] == 1


def test_a_copy_that_fails_does_not_count(client, tmp_path):
    """Its place may lack what the first one has."""
    flag = tmp_path / "opened"

    class Once:
        def open(self):
            if flag.exists():
                raise FileNotFoundError("only one worker has it")
            flag.touch()
            return grassia.components.MatrixComponent(np.eye(2))

    with Dask(client=client) as backend:
        post = Post(backend, [Once()])
        task, pid = held(post, tmp_path)
        assert backend.hasten(task.id, 0, {})
        assert backend.receive(1.0) == []
        (tmp_path / "here").touch()
        assert post.gather(1)[0].scalars["pid"] == pid


@pytest.mark.parametrize(("others", "heard"), [("fail", [Failure]), ("die", [Lost, Restored])])
def test_what_no_copy_can_do_does_not_wait_for_the_worker_for_ever(post, tmp_path, others, heard):
    """As when a worker hangs at a task that fails: the server must hear of it to ask something else."""
    task, pid = held(post, tmp_path, others=others)
    assert post.backend.hasten(task.id, 0, {})
    assert eventually(lambda: post.backend.receive(0.05) == [] and post.backend._places[0].copy is None)
    assert eventually(lambda: post.backend.receive(0.05) == [] and post.backend.hasten(task.id, 0, {}))
    messages = post.gather(len(heard))
    assert kinds(messages) == heard
    again = post.send(0, WHERE)
    if heard == [Failure]:
        assert messages[0].task == task.id
        assert post.backend.hasten(again.id, 0, {})
    reply = post.gather(1)[0]
    assert (reply.task, reply.scalars["pid"] == pid) == (again.id, False)
    (tmp_path / "here").touch()
    # Those that died come back, and places may move to them; but the task is done with.
    assert not any(isinstance(message, Reply | Failure) for message in post.backend.receive(0.3))


def test_a_task_taken_back_is_dropped_by_worker_and_copy(client):
    with Dask(client=client, faults="delay:0:1000s@1") as backend:
        post = Post(backend, loaders(1))
        first = post.ask(0, WHERE)
        slow = post.send(0, WHERE)
        assert backend.hasten(slow.id, 0, {})
        assert backend.receive(0.5) == []
        quick = post.send(0, WHERE, instead=slow)
        reply = post.gather(1)[0]
        assert (reply.task, reply.moved, reply.scalars["pid"]) == (quick.id, False, first.scalars["pid"])
        assert eventually(lambda: backend.receive(0.05) == [] and not backend._abandoned)


def test_a_task_behind_a_deaf_one_that_was_taken_back_can_be_hastened(post, tmp_path):
    deaf, pid = held(post, tmp_path)
    other = post.send(0, WHERE, instead=deaf)
    assert post.backend.receive(0.3) == []
    assert post.backend.hasten(other.id, 0, {})
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (other.id, True)
    assert reply.scalars["pid"] != pid
    (tmp_path / "here").touch()


def test_there_is_nothing_to_hasten_without_a_task_or_another_worker(post, client, tmp_path):
    done = post.send(0, WHERE)
    post.gather(1)
    assert not post.backend.hasten(done.id, 0, {})
    task, _ = held(post, tmp_path, here="here")
    assert not post.backend.hasten(task.id + 1, 0, {})
    post.backend.stays = True
    assert not post.backend.hasten(task.id, 0, {})
    (tmp_path / "here").touch()
    assert not post.gather(1)[0].moved


# ---------------------------------------------------------------------------------- slow questions


@pytest.mark.parametrize("policy", [{"hasten": 3.0, "hasten_after": 0.5}, {"hasten": None, "timeout": 2.0}])
def test_a_run_does_not_wait_for_a_product_that_hangs(client, tmp_path, policy):
    components, W = problem()
    A, flag = components[0], str(tmp_path / "hung")
    calls = []

    def multiply(V):
        calls.append(1)
        if len(calls) == 6:
            with contextlib.suppress(FileExistsError):  # only the first process that comes so far
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                time.sleep(3600.0)
        return A @ V

    first = OperatorLoader(multiply, n_features=len(A), trace=float(np.trace(A)))
    result = grassia.eigenspace(
        [first, *components[1:]],
        3,
        solver="grassia",
        backend=Dask(client=client),
        tol=1e-8,
        rng=0,
        on_loss=LossPolicy(**policy),
    )
    assert os.path.exists(flag)
    assert result.converged
    assert sine(result, W) <= 1e-8
    expected = "question put to another" if policy["hasten"] else "worker lost"
    assert expected in {event.kind for event in result.history.events}


# ---------------------------------------------------------------------------------- without a cluster


def test_a_plain_script_needs_no_guard(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "import numpy as np, grassia\n"
        "X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)\n"
        "shards = grassia.from_rows(X, n_components=2)\n"
        "print(grassia.eigenspace(shards, 2, solver='nystrom', backend='dask', rng=0).status.name)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, cwd="/")
    assert done.stdout == "CONVERGED\n", done.stderr


SEVERAL_RUNS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np, grassia
from conftest import children
X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
oracle = np.linalg.eigh(np.cov(X, rowvar=False))[1][:, :-3:-1]
with grassia.backends.Dask() as backend:
    for parts in (2, 1, 2, 3, 3):
        result = grassia.eigenspace(grassia.from_rows(X, parts), 2, solver="krylov", backend=backend, rng=0)
        off = np.linalg.norm(result.vectors - oracle @ (oracle.T @ result.vectors), 2)
        workers = sorted(pid for pid, command in children().items() if "distributed" in command)
        print(result.status.name, off < 1e-6, *workers)
print(len(children()))
"""


def test_a_local_cluster_is_kept_inside_a_block_and_replaced_by_a_larger_one(tmp_path):
    script = tmp_path / "several.py"
    script.write_text(SEVERAL_RUNS)
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, script, tests], capture_output=True, text=True, timeout=110, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    *runs, left = done.stdout.splitlines()
    assert [run.split()[:2] for run in runs] == [["CONVERGED", "True"]] * 5
    first, second, third, fourth, fifth = (run.split()[2:] for run in runs)
    assert len(first) > 0
    assert first == second == third
    assert fourth == fifth
    assert not set(first) & set(fourth)
    assert left == "0"
