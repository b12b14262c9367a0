"""Workers of a Dask cluster that are given up, die, come and go, and components that stay where they are."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import grassia
from backend_tasks import HOLD, Post, loaders, problem, sine
from conftest import eventually
from dask_runs import WHERE, cluster, full_client, gathered, held, kinds, two_places
from grassia.backends.dask import Dask
from grassia.errors import InvalidInput
from grassia.messages import Lost, Restored
from grassia.result import Status

distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")  # which distributed needs

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def client() -> Any:
    return full_client()


@pytest.fixture
def post(client: Any) -> Iterator[Post]:
    with two_places(client) as made:
        yield made


@pytest.fixture(scope="module")
def elastic() -> Iterator[Callable[[int], tuple[Any, Any]]]:
    """A cluster that is given as many workers as a test wants."""
    with cluster(0) as (made, client):

        def scaled(n):
            made.scale(n)
            assert eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == n)
            return made, client

        yield scaled


def worker_process(address, *options):
    """A Dask worker without a nanny."""
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
    return subprocess.Popen(
        [*command, "--no-dashboard", *options], env=environment, stderr=subprocess.DEVNULL
    )


def ended(*processes):
    for process in processes:
        if process is not None:
            process.kill()
            process.wait()


def whole_run(client, disturb, at=2.0, **options):
    """A run that is disturbed once, and the space it should find."""
    components, W = problem()
    done = []

    def callback(progress):
        if progress.passes >= at and not done:
            done.append(True)
            disturb()

    backend = Dask(client=client, **options)
    result = grassia.eigenspace(
        components, 3, backend=backend, tol=1e-8, rng=0, callbacks=callback, solver="grassia"
    )
    assert done
    return result, W


# ----------------------------------------------------------------------- workers that are given up


def test_a_hung_worker_is_replaced_by_others_one_after_the_other(post, client, tmp_path):
    until = tmp_path / "here"
    seen = set()
    for turn in range(3):
        seen.add(post.ask(0, WHERE).scalars["address"])
        held(post, tmp_path, begun=f"begun {turn}")
        assert post.backend.replace(0, "it is silent")
        lost, restored = post.gather(2)
        assert (lost.components, lost.reason, lost.permanent) == ((0,), "it is silent", False)
        assert restored.components == (0,)
    last = post.ask(0, WHERE)
    assert len(seen | {last.scalars["address"]}) == 4  # never where a task that was given up still runs
    assert last.scalars["seen"] == 1
    until.touch()
    assert eventually(lambda: post.backend.receive(0.05) == [] and not post.backend._abandoned)


def test_the_only_worker_is_opened_anew_and_cannot_be_hastened(elastic, tmp_path):
    _, client = elastic(1)
    with Dask(client=client) as backend:
        post = Post(backend, loaders(2))
        assert post.ask(0, WHERE).scalars["seen"] == 1
        held_back = post.send(0, HOLD, until=str(tmp_path / "now"))
        assert backend.receive(0.3) == []
        assert not backend.hasten(held_back.id, 0, {})
        assert backend.replace(0, "it is silent")
        assert kinds(post.gather(2)) == [Lost, Restored]
        assert post.ask(0, WHERE).scalars["seen"] == 1  # though its thread is held still
        assert post.ask(1, WHERE).scalars["seen"] == 1
        (tmp_path / "now").touch()


def test_who_is_given_up_too_often_is_lost_for_good(client):
    with Dask(client=client, max_restarts=1) as backend:
        Post(backend, loaders(1))
        assert backend.replace(0, "once")
        assert kinds(gathered(backend, Restored)) == [Lost, Restored]
        assert backend.replace(0, "twice")
        (lost,) = backend.receive(1.0)
        assert (lost.permanent, lost.reason) == (True, "twice")
        assert not backend.replace(0, "again")


# --------------------------------------------------------------- components that stay where they are


def test_who_must_stay_waits_for_a_worker_of_the_same_name(client):
    with Dask(client=client) as backend:
        backend.stays = True
        post = Post(backend, loaders(1))
        before = post.ask(0, WHERE).scalars
        os.kill(before["pid"], signal.SIGKILL)
        lost, restored = gathered(backend, Restored)
        assert kinds([lost, restored]) == [Lost, Restored]
        assert (lost.components, lost.permanent) == ((0,), False)
        after = post.ask(0, WHERE).scalars
        assert (after["name"], after["seen"]) == (before["name"], 1)
        assert after["pid"] != before["pid"]
        assert backend.replace(0, "it is silent")
        post.gather(2)
        assert post.ask(0, WHERE).scalars["name"] == before["name"]


def test_nobody_is_opened_on_a_worker_that_is_dead_though_the_scheduler_does_not_know_it_yet(client):
    with Dask(client=client) as backend:
        backend.stays = True
        post = Post(backend, loaders(1))
        before = post.ask(0, WHERE).scalars
        home = backend._places[0].home.address
        backend._cluster.died(home)  # as when its connection breaks, before the scheduler has told
        backend._notices += backend._lose(backend._places[0], "its connection broke")
        assert kinds(backend.receive(0.2)) == [Lost]
        assert kinds(gathered(backend, Restored)) == [Restored]  # it was alive after all
        assert post.ask(0, WHERE).scalars["pid"] == before["pid"]


def test_a_worker_without_a_name_is_waited_for_on_its_host():
    with cluster(0) as (made, client):
        address = made.scheduler_address
        first = worker_process(address, "--name", "first")
        second = None
        try:
            with Dask(client=client) as backend:
                backend.stays = True
                post = Post(backend, loaders(1))
                assert post.ask(0, WHERE).scalars["name"] == "first"
                first.kill()
                assert kinds(gathered(backend, Lost)) == [Lost]
                assert backend.receive(0.5) == []
                second = worker_process(address, "--name", "second")
                assert kinds(gathered(backend, Restored)) == [Restored]
                assert post.ask(0, WHERE).scalars["name"] == "second"
        finally:
            ended(first, second)


# ------------------------------------------------------------------------ workers that come and go


def test_without_workers_a_loss_is_told_at_once_and_the_next_worker_is_taken(elastic):
    made, client = elastic(1)
    with Dask(client=client) as backend:
        post = Post(backend, loaders(2))
        assert post.ask(0, WHERE).scalars["seen"] == 1
        made.scale(0)
        assert kinds(gathered(backend, Lost, 2)) == [Lost, Lost]
        started = time.monotonic()
        assert backend.receive(0.2) == []
        assert time.monotonic() - started < 5.0  # it waits for what it was asked to, not for a worker
        made.scale(1)
        assert kinds(gathered(backend, Restored, 2)) == [Restored, Restored]
        assert [post.ask(i, WHERE).scalars["seen"] for i in range(2)] == [1, 1]


def test_after_some_patience_without_workers_the_loss_is_permanent(elastic):
    made, client = elastic(1)
    with Dask(client=client, patience=1.0) as backend:
        Post(backend, loaders(1))
        made.scale(0)
        first, *rest = gathered(backend, Lost, 2)
        assert (first.permanent, rest[0].permanent) == (False, True)
        assert "no Dask worker" in rest[0].reason


def test_a_cluster_without_workers_is_refused_at_the_start(elastic):
    _, client = elastic(0)
    with pytest.raises(InvalidInput, match="none came within"):
        Dask(client=client, patience=0.5).start(loaders(1))


def test_a_worker_that_comes_gets_its_share_of_the_places(elastic):
    made, client = elastic(1)
    with Dask(client=client) as backend:
        post = Post(backend, loaders(4))
        assert len({post.ask(i, WHERE).scalars["address"] for i in range(4)}) == 1
        made.scale(2)
        messages = gathered(backend, Restored, 2)
        assert kinds(messages) == [Lost, Restored] * 2
        assert all("has come" in message.reason for message in messages[::2])
        homes = [post.ask(i, WHERE).scalars["address"] for i in range(4)]
        assert sorted(homes.count(home) for home in set(homes)) == [2, 2]
        assert backend.receive(1.0) == []


def test_nothing_moves_for_the_sake_of_a_worker_that_hangs(elastic, tmp_path):
    """It has no places, so the others have more; but nobody would go there."""
    made, client = elastic(2)
    with Dask(client=client) as backend:
        post = Post(backend, loaders(4))
        homes = [post.ask(i, WHERE).scalars["address"] for i in range(4)]
        for i in (i for i in range(4) if homes[i] == homes[0]):
            task, _ = held(post, tmp_path, elsewhere="", begun=f"begun {i}", component=i)
            assert backend.hasten(task.id, i, {})
            assert post.gather(1)[0].moved
        made.scale(3)
        messages = gathered(backend, Restored, 2)
        assert kinds(messages) == [Lost, Restored] * 2
        assert not any(homes[0] in message.reason for message in messages[::2])
        assert backend.receive(2.0) == []
        assert homes[0] not in {post.ask(i, WHERE).scalars["address"] for i in range(4)}


def test_an_adaptive_cluster_provides_a_worker_and_keeps_it_while_it_is_in_use():
    with cluster(0) as (made, client):
        made.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        with Dask(client=client) as backend:
            post = Post(backend, loaders(2))
            first = post.ask(0, WHERE).scalars
            assert backend.receive(2.0) == []  # long enough for a worker without tasks to be closed
            assert post.ask(0, WHERE).scalars == {**first, "seen": 2}
        assert eventually(lambda: not client.scheduler_info(n_workers=-1)["workers"], 20.0)


def test_a_restarted_cluster_does_not_change_the_answer(elastic):
    _, client = elastic(2)

    def restart():
        with contextlib.suppress(TimeoutError):  # Dask's, while it waits for processes to start; they will
            client.restart(timeout=20, wait_for_workers=False)

    result, W = whole_run(client, restart)
    assert result.converged
    assert sine(result, W) <= 1e-8
    assert "worker restored" in {event.kind for event in result.history.events}


def test_retired_workers_do_not_change_the_answer(elastic):
    _, client = elastic(2)
    gone = sorted(client.scheduler_info(n_workers=-1)["workers"])[:1]
    result, W = whole_run(client, lambda: client.retire_workers(gone))
    assert result.converged
    assert sine(result, W) <= 1e-8
    assert "worker restored" in {event.kind for event in result.history.events}


def test_a_cluster_that_is_closed_ends_the_run_with_a_status():
    with cluster(1) as (made, client), pytest.warns(ConvergenceWarning, match="WORKER_LOST"):
        result, _ = whole_run(client, made.close)
    assert result.status is Status.WORKER_LOST


def test_workers_that_the_program_cannot_reach_are_called_through_the_scheduler(client):
    indirect = distributed.Client(client.cluster, direct_to_workers=False, set_as_default=False)
    with indirect, Dask(client=indirect, faults="crash:1@1") as backend:
        post = Post(backend, loaders(2))
        big = np.ones((300, 500))
        first, second = (post.ask(i, WHERE, {"told": big}) for i in range(2))
        np.testing.assert_array_equal(first.arrays["told"], big)
        post.send(1, WHERE)
        assert kinds(post.gather(2)) == [Lost, Restored]
        assert post.ask(1, WHERE).scalars["pid"] != second.scalars["pid"]
        assert backend._link.lines._pool.open == 0


# -------------------------------------------------------------------------- from run to run


def connections_to(address):
    """How many this process has to a worker."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    open_ones = psutil.Process().net_connections("tcp")
    return sum(one.status == "ESTABLISHED" and one.raddr == (host, int(port)) for one in open_ones)


def test_connections_are_kept_inside_a_block_and_no_longer(elastic):
    _, client = elastic(1)
    (address,) = client.scheduler_info(n_workers=-1)["workers"]
    before = connections_to(address)  # the scheduler lives in this process, too
    with Dask(client=client) as backend:
        for _ in range(2):
            assert Post(backend, loaders(1)).ask(0, WHERE).scalars["seen"] == 1
            backend.release()
            assert connections_to(address) == before + 1
    assert eventually(lambda: connections_to(address) == before)


def test_connections_of_one_client_are_not_those_of_the_next(client):
    with Dask() as backend:
        for _ in range(2):
            with distributed.Client(client.cluster, set_as_default=True) as another:
                assert Post(backend, loaders(1)).ask(0, WHERE).scalars["seen"] == 1
                assert backend._link.lines.client is another
                backend.release()


def test_a_worker_that_was_started_anew_at_the_same_address_serves_the_next_run(elastic):
    made, client = elastic(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, pids, process = f"tcp://127.0.0.1:{port}", [], None
    try:
        with Dask(client=client) as backend:
            for _ in range(2):
                ended(process)
                assert eventually(lambda: not client.scheduler_info(n_workers=-1)["workers"])
                process = worker_process(
                    made.scheduler_address, "--host", "127.0.0.1", "--worker-port", str(port)
                )
                assert eventually(lambda: address in client.scheduler_info(n_workers=-1)["workers"])
                found = Post(backend, loaders(1)).ask(0, WHERE).scalars
                pids.append(found["pid"])
                assert (found["address"], found["seen"]) == (address, 1)
                backend.release()
    finally:
        ended(process)
    assert len(set(pids)) == 2


# ------------------------------------------------------------------------------ real processes


def test_a_scheduler_that_is_killed_ends_the_run_with_a_status(tmp_path):
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen([*command, "--scheduler-file", str(file)], stderr=subprocess.DEVNULL)
    worker = None
    try:
        assert eventually(lambda: file.exists() and file.stat().st_size > 0)
        with distributed.Client(scheduler_file=str(file), set_as_default=False, timeout=10) as client:
            worker = worker_process(client.scheduler.address)
            client.wait_for_workers(1, timeout=30)
            with pytest.warns(ConvergenceWarning, match="WORKER_LOST"):
                result, _ = whole_run(client, scheduler.kill, patience=2.0)
            assert result.status is Status.WORKER_LOST
    finally:
        ended(scheduler, worker)
