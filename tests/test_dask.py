"""What a Dask cluster does to a run: workers that hang, die, come and go; and rows that are there already."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pd = pytest.importorskip("pandas")

import grassia  # noqa: E402
from conftest import dask_client, eventually  # noqa: E402
from grassia.backends.dask import Dask  # noqa: E402
from grassia.data import OperatorLoader  # noqa: E402
from grassia.errors import InvalidComponent, InvalidInput  # noqa: E402
from grassia.losses import LossPolicy  # noqa: E402
from grassia.messages import Lost, Restored  # noqa: E402
from grassia.result import Status  # noqa: E402
from test_backends import HOLD, Post, loaders, problem, sine  # noqa: E402

WHERE = "test_dask:where"
STALL = "test_dask:stall"


# ------------------------------------------------- procedures that the workers import by name


def where(component, cache, query):
    """Which Dask worker this is, and how often it was asked."""
    worker = distributed.get_worker()
    cache["seen"] = cache.get("seen", 0) + 1
    facts = {"name": str(worker.name), "address": worker.address, "pid": os.getpid(), "seen": cache["seen"]}
    return {"told": query.arrays.get("told", np.zeros(0))}, facts


def stall(component, cache, query):
    """Deaf until a file appears: one for the process that is named, another for all others."""
    at_home = os.getpid() == query.options["pid"]
    if at_home:
        Path(str(query.options["begun"])).touch()
    until = query.options["here" if at_home else "elsewhere"]
    while until and not os.path.exists(str(until)):
        time.sleep(0.01)
    return where(component, cache, query)


# ------------------------------------------------------------------------------------- helpers


@pytest.fixture
def client():
    """A client of the session's cluster, with all of its workers."""
    found = dask_client()
    assert eventually(lambda: all_there(found))
    return found


def all_there(client):
    """Whether the workers are there again, and known to their nannies: else a death goes unnoticed."""
    nannies = client.cluster.workers.values()
    running = all(nanny.status.name == "running" for nanny in nannies)
    return running and len(client.scheduler_info(n_workers=-1)["workers"]) == len(nannies)


@contextlib.contextmanager
def cluster(n, **options):
    """A small cluster of one's own."""
    made = distributed.LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None, **options)
    with made, distributed.Client(made, set_as_default=False) as client:
        yield made, client


@pytest.fixture(scope="module")
def elastic():
    """A cluster that is given as many workers as a test wants."""
    with cluster(0) as (made, client):

        def scaled(n):
            made.scale(n)
            assert eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == n)
            return made, client

        yield scaled


@pytest.fixture
def post(client):
    """A back-end with two places on the session's cluster."""
    with Dask(client=client) as backend:
        yield Post(backend, loaders(2))


def gathered(backend, kind, n=1, seconds=40.0):
    """Messages until n of a kind have come."""
    found = []
    deadline = time.monotonic() + seconds
    while sum(isinstance(one, kind) for one in found) < n:
        found += backend.receive(0.5)
        assert time.monotonic() < deadline, f"only {found} arrived"
    return found


def kinds(messages):
    return [type(message) for message in messages]


def held(post, tmp_path, here="here", elsewhere="elsewhere", begun="begun"):
    """A task that component 0's worker is out with, and that worker's process id."""
    pid = post.ask(0, WHERE).scalars["pid"]
    files = {
        "here": str(tmp_path / here) if here else "",
        "elsewhere": str(tmp_path / elsewhere) if elsewhere else "",
    }
    task = post.send(0, STALL, pid=pid, begun=str(tmp_path / begun), **files)
    assert eventually((tmp_path / begun).exists)
    return task, pid


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


def test_an_adaptive_cluster_provides_a_worker_and_keeps_it_while_it_is_in_use():
    with cluster(0) as (made, client):
        made.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        with Dask(client=client) as backend:
            post = Post(backend, loaders(2))
            first = post.ask(0, WHERE).scalars
            assert backend.receive(2.0) == []  # long enough for a worker without tasks to be closed
            assert post.ask(0, WHERE).scalars == {**first, "seen": 2}
        assert eventually(lambda: not client.scheduler_info(n_workers=-1)["workers"], 20.0)


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
        assert backend._link._pool.open == 0


# ------------------------------------------------------------------------------ real processes


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


# ---------------------------------------------------------------------- rows that are there already


def rows(m=120, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((m, d)) * np.r_[5.0, 4.0, np.ones(d - 2)]


def leading(X, k=2):
    return np.linalg.eigh(np.cov(X.T))[1][:, -k:]


def test_the_chunks_of_a_persisted_array_are_opened_where_they_are(client):
    X = rows()
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = [client.scatter(X[i : i + 30], workers=[addresses[3 - i // 30]]) for i in range(0, 120, 30)]
    array = da.concatenate([da.from_delayed(dask.delayed(p), (30, 6), float) for p in parts])
    persisted = client.persist(array, workers={}, allow_other_workers=False)
    distributed.wait(persisted)
    components = grassia.from_rows(persisted)
    assert all(len(cloudpickle.dumps(loader)) < 5_000 for loader in components)
    holders = client.who_has(distributed.futures_of(persisted))
    expected = [set(holders[(persisted.name, i, 0)]) for i in range(4)]
    with Dask(client=client) as backend:
        post = Post(backend, components)
        assert all(post.ask(i, WHERE).scalars["address"] in expected[i] for i in range(4))
    result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
    assert sine(result, leading(X)) <= 1e-6


def made(i):
    return rows(30, seed=i)


def test_a_chunk_that_dies_with_its_worker_is_computed_again(client):
    array = da.concatenate([da.from_delayed(dask.delayed(made)(i), (30, 6), float) for i in range(4)])
    persisted = array.persist()
    distributed.wait(persisted)
    X = np.concatenate([made(i) for i in range(4)])
    components = grassia.from_rows(persisted)
    victim = client.who_has(distributed.futures_of(persisted))[(persisted.name, 0, 0)][0]
    pid = client.run(os.getpid, workers=[victim])[victim]
    killed = []

    def kill(progress):
        if progress.passes >= 2.0 and not killed:
            killed.append(os.kill(pid, signal.SIGKILL))

    result = grassia.eigenspace(
        components, 2, solver="grassia", backend=Dask(client=client), tol=1e-8, rng=0, callbacks=kill
    )
    assert killed
    assert sine(result, leading(X)) <= 1e-8
    assert "worker restored" in {event.kind for event in result.history.events}


def test_what_is_made_of_a_persisted_array_is_computed_on_the_cluster(client):
    X = rows()
    persisted = da.from_array(X, chunks=(40, 3)).persist()
    for n in (None, 2):
        components = grassia.from_rows(persisted * 2.0 + 1.0, n)
        result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
        assert sine(result, leading(X)) <= 1e-6


def test_a_lazy_array_whose_chunks_the_client_knows_is_not_computed_twice(client):
    lazy = da.from_array(rows(), chunks=(30, 6)) + 0.0
    kept = lazy.persist()
    distributed.wait(kept)
    for loader in grassia.from_rows(lazy):
        assert {future.key for future in loader.opener.futures} <= set(client.futures)
        assert len(loader.opener.futures) == 1


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, pd.DataFrame])
@pytest.mark.parametrize("source", ["delayed", "persisted", "futures"])
def test_delayed_objects_and_futures_are_shards(client, kind, source):
    X = rows()
    shards = [dask.delayed(kind)(X[i : i + 40]) for i in range(0, 120, 40)]
    if source == "persisted":
        shards = list(dask.persist(*shards))
    elif source == "futures":
        shards = client.compute(shards)
    components = grassia.from_rows(shards)
    assert len(components) == 3
    assert ("future" if source == "futures" else "delayed") in components.describe()
    result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
    assert sine(result, leading(X)) <= 1e-6


def test_rows_on_a_cluster_can_be_had_by_the_program_but_not_by_its_processes(client):
    X = rows()
    persisted = da.from_array(X, chunks=(60, 6)).persist()
    for components in (grassia.from_rows(persisted), grassia.from_rows(client.compute([dask.delayed(X)]))):
        result = grassia.eigenspace(components, 2, backend="threads", rng=0)
        assert sine(result, leading(X)) <= 1e-6
    with pytest.raises(InvalidComponent, match="use backend='dask'"):
        grassia.eigenspace(components, 2, backend="processes", rng=0)


def test_rows_that_were_cancelled_are_named(client):
    future = client.submit(made, 1)
    distributed.wait(future)
    components = grassia.from_rows([future])
    future.cancel()
    assert eventually(lambda: not client.who_has().get(future.key))
    with pytest.raises(InvalidComponent, match="persist it again"):
        grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)


def test_a_delayed_object_that_raises_is_named(client):
    shard = dask.delayed(int)("pears")
    for source in (shard, client.compute(shard)):
        with pytest.raises(InvalidComponent, match=r"cannot be computed: ValueError.*pears"):
            grassia.eigenspace(grassia.from_rows([source]), 2, backend=Dask(client=client), rng=0)


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
