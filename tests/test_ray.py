"""What the Ray back-end does beyond the contract: copies, given-up workers, room, what is sent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import grassia
from backend_tasks import Post, loaders, matrices, sine
from conftest import eventually, ray_cluster
from grassia.backends import get
from grassia.backends.ray_actor import Actor
from grassia.backends.ray_wire import answer_of, cut
from grassia.backends.station import pack
from grassia.data import CallableLoader
from grassia.errors import InvalidInput
from grassia.faults import Injector
from grassia.messages import Failure, Lost, Query, Restored, Task, checksum
from ray_runs import KILL, WHERE, engines, held, kinds, leading, rows

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    with engines() as make:
        yield make


# ------------------------------------------------------------------------------------ second copies


def test_a_copy_answers_for_a_worker_that_is_stuck_and_takes_its_place(engine, tmp_path):
    post = Post(engine(1), loaders(2))
    first = post.ask(0, WHERE)
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {"mean": np.ones(4)})
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, True)
    assert reply.scalars["seen"] == 1  # its caches were empty
    assert reply.scalars["mean"] == 4.0  # it was told
    assert reply.scalars["pid"] != first.scalars["pid"]
    after = post.ask(0, WHERE)
    assert after.scalars["pid"] == reply.scalars["pid"]
    assert (after.scalars["seen"], after.moved) == (2, False)
    assert "mean" not in after.scalars
    (tmp_path / "go").touch()
    assert post.backend.receive(0.2) == []  # the one that was stuck is ended, and never heard of again


def test_the_worker_remains_if_it_answers_before_its_copy(engine, tmp_path):
    post = Post(engine(1), loaders(1))
    first = post.ask(0, WHERE)
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    (tmp_path / "go").touch()  # a copy takes much longer to start than the worker to look for a file
    reply = post.gather(1)[0]
    if not reply.moved:
        assert reply.scalars["pid"] == first.scalars["pid"]
        assert reply.scalars["seen"] == 2
    after = post.ask(0, WHERE)
    assert after.scalars["pid"] == reply.scalars["pid"]
    assert after.scalars["seen"] == reply.scalars["seen"] + 1
    assert post.backend.receive(0.2) == []


def test_the_copy_goes_on_when_its_worker_dies(engine, tmp_path):
    ray = ray_cluster()
    post = Post(engine(1), loaders(1))
    post.ask(0, WHERE)
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    ray.kill(post.backend._places[0].first._actor)
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved, reply.scalars["seen"]) == (task.id, True, 1)
    assert post.ask(0, WHERE).scalars["seen"] == 2


def test_a_copy_that_dies_is_forgotten_and_may_be_made_again(engine, tmp_path):
    ray = ray_cluster()
    post = Post(engine(1), loaders(1))
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    place = post.backend._places[0]
    ray.kill(place.second._actor)
    deadline = time.monotonic() + 30.0
    while place.second is not None:
        assert post.backend.receive(0.1) == []
        assert time.monotonic() < deadline
    assert post.backend.hasten(task.id, 0, {})
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, True)


def test_when_worker_and_copy_both_die_the_worker_is_lost_once(engine, tmp_path):
    ray = ray_cluster()
    post = Post(engine(1), loaders(2))
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    place = post.backend._places[0]
    for seat in list(place.seats):
        ray.kill(seat._actor)
    lost, restored = post.gather(2)
    assert isinstance(lost, Lost)
    assert lost.components == (0, 1)
    assert isinstance(restored, Restored)
    assert post.ask(1, WHERE).scalars["seen"] == 1
    assert post.backend.receive(0.3) == []


def test_a_task_taken_back_is_taken_back_from_the_copy_as_well(engine, tmp_path):
    """The delayed task holds both; the one sent instead of it is answered by one of them, and only once."""
    post = Post(engine(1, faults="delay:0:1000s@0"), loaders(1))
    slow = post.send(0, WHERE)
    while post.backend._places[0].node is None:
        assert post.backend.receive(0.1) == []
    assert post.backend.hasten(slow.id, 0, {"mean": np.ones(4)})
    while post.backend._places[0].second.node is None:
        assert post.backend.receive(0.1) == []
    quick = post.send(0, WHERE, instead=slow)
    reply = post.gather(1)[0]
    assert reply.task == quick.id
    assert reply.scalars["seen"] == 1
    assert reply.scalars.get("mean") == (4.0 if reply.moved else None)
    assert post.backend.receive(0.2) == []
    assert post.ask(0, WHERE).scalars["pid"] == reply.scalars["pid"]


def test_a_copy_of_a_deaf_worker_answers_what_was_sent_instead(engine, tmp_path):
    post = Post(engine(1), loaders(1))
    deaf = held(post, tmp_path)
    task = post.send(0, WHERE, instead=deaf)
    assert not post.backend.hasten(deaf.id, 0, {})  # nobody wants that any more
    assert post.backend.hasten(task.id, 0, {})
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, True)


def test_a_copy_that_cannot_open_the_data_says_nothing(engine, tmp_path):
    """It may be where there are no such files; the worker has them open."""
    file = tmp_path / "rows.npy"
    np.save(file, np.eye(4))
    post = Post(engine(1), [CallableLoader(lambda: np.load(file))])
    post.ask(0, "open")
    file.unlink()
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    deadline = time.monotonic() + 30.0
    while post.backend._places[0].second is not None:
        assert post.backend.receive(0.1) == []
        assert time.monotonic() < deadline
    (tmp_path / "go").touch()
    reply = post.gather(1)[0]
    assert (reply.task, reply.moved) == (task.id, False)


@pytest.mark.parametrize(("others", "heard"), [("fail", [Failure]), ("die", [Lost, Restored])])
def test_what_no_copy_can_do_does_not_wait_for_the_worker_for_ever(engine, tmp_path, others, heard):
    """As when a worker hangs at a task that fails: the server must hear of it to ask something else."""
    post = Post(engine(1), loaders(1))
    post.ask(0, WHERE)
    task = held(post, tmp_path, others=others)
    assert post.backend.hasten(task.id, 0, {})
    assert eventually(lambda: post.backend.receive(0.05) == [] and post.backend._places[0].second is None)
    assert post.backend.hasten(task.id, 0, {})
    messages = post.gather(len(heard))
    assert kinds(messages) == heard
    again = post.send(0, WHERE)
    if heard == [Failure]:
        assert messages[0].task == task.id
        assert post.backend.hasten(again.id, 0, {})
    assert post.gather(1)[0].task == again.id
    (tmp_path / "go").touch()
    assert post.backend.receive(0.2) == []


def test_a_run_does_not_wait_for_a_worker_that_is_stuck(engine, tmp_path):
    X = rows()

    def shard(i):
        def read():
            """Whoever comes first to the second shard never gets on."""
            import time

            if i == 1:
                try:
                    os.close(os.open(tmp_path / "held", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return X[30 * i : 30 * i + 30]
                time.sleep(1000.0)
            return X[30 * i : 30 * i + 30]

        return read

    policy = grassia.LossPolicy(hasten=2.0, hasten_after=1.0)
    components = grassia.from_rows([shard(i) for i in range(3)])
    result = grassia.eigenspace(components, 2, backend=engine(3), tol=1e-8, rng=0, on_loss=policy)
    assert result.converged
    assert sine(result, leading(X)) <= 1e-8


def test_what_a_worker_is_not_out_with_cannot_be_hastened(engine, tmp_path):
    post = Post(engine(2), loaders(2))
    done = post.ask(0, WHERE)
    assert not post.backend.hasten(done.task, 0, {})
    task = held(post, tmp_path)
    assert not post.backend.hasten(task.id, 1, {})
    post.backend.stays = True
    assert not post.backend.hasten(task.id, 0, {})


# --------------------------------------------------------------------------------- given-up workers


def test_a_worker_that_is_replaced_is_lost_with_the_reason_then_restored(engine, tmp_path):
    post = Post(engine(1), loaders(2))
    first = post.ask(0, WHERE)
    held(post, tmp_path)
    assert post.backend.replace(1, "it fell silent")
    lost, restored = post.gather(2)
    assert isinstance(lost, Lost)
    assert (lost.components, lost.reason, lost.permanent) == ((0, 1), "it fell silent", False)
    assert isinstance(restored, Restored)
    after = post.ask(0, WHERE)
    assert after.scalars["seen"] == 1
    assert after.scalars["pid"] != first.scalars["pid"]


def test_a_worker_is_not_replaced_for_ever(engine):
    post = Post(engine(1, max_restarts=1), loaders(1))
    assert post.backend.replace(0, "once")
    assert kinds(post.gather(2)) == [Lost, Restored]
    assert post.backend.replace(0, "twice")
    lost = post.gather(1)[0]
    assert lost.permanent
    assert not post.backend.replace(0, "thrice")


def test_actors_that_are_ended_before_they_are_up_keep_nothing(engine):
    """Ray may lose sight of one that is killed as it is made, with its CPU."""
    ray = ray_cluster()

    @ray.remote(num_cpus=1)
    def nap():
        time.sleep(0.01)

    for _ in range(6):
        # An idle process of Ray's takes an actor at once, and that is when a kill may be missed.
        ray.get([nap.remote() for _ in range(4)])
        backend = engine(4)
        backend.start(loaders(4))
        backend.close()
    assert eventually(lambda: ray.available_resources().get("CPU", 0.0) == 4.0, 20.0)


def test_an_actor_that_died_while_it_was_kept_is_replaced_and_nothing_is_lost(engine):
    with engine(2) as backend:
        post = Post(backend, loaders(2))
        before = [post.ask(i, WHERE).scalars["pid"] for i in range(2)]
        backend.release()
        os.kill(before[0], signal.SIGKILL)
        post = Post(backend, loaders(2))
        for i in (0, 0, 1, 1):
            post.send(i, WHERE)
        found = [message.scalars for message in post.gather(4)]
        assert sorted(reply["seen"] for reply in found) == [1, 1, 2, 2]
        assert len({reply["pid"] for reply in found}) == 2
        assert {before[1]} == {reply["pid"] for reply in found} & {*before}


def test_a_kept_actor_that_dies_of_its_first_task_is_lost(engine):
    with engine(1) as backend:
        Post(backend, loaders(1)).ask(0, WHERE)
        backend.release()
        post = Post(backend, loaders(1))
        post.send(0, KILL)
        assert kinds(post.gather(2)) == [Lost, Restored]
        assert post.ask(0, WHERE).scalars["seen"] == 1


def test_what_is_taken_back_is_a_task_of_its_own_run():
    """The word may be late, or early; tasks of different runs have the same numbers."""
    luggage = pack(dict(enumerate(loaders(1))), Injector())
    actor = Actor(luggage, [], 1)
    actor.drop(2, 2)  # early
    actor.rest()
    actor.begin(luggage, [], 1)
    actor.drop(1, 1)  # late
    actor.drop(3, 2)
    query = Query("apply", {"block": np.eye(4)})
    tasks = [Task(number, 0, 0, number, query) for number in (1, 2, 3, 4)]
    answers = [answer_of([actor.answer(*cut((task, [], 1)))]) for task in tasks]
    assert [[message.task for message in answer] for answer in answers] == [[1], [], [], [4]]


def test_a_worker_is_restored_only_once_there_is_room_for_it(engine):
    """Its CPUs go to someone else in the moment it dies; tasks sent to it wait."""
    ray = ray_cluster()
    post = Post(engine(1, num_cpus=3), loaders(1))
    post.ask(0, WHERE)

    @ray.remote(num_cpus=3)
    class Guest:
        def here(self):
            return True

    guest = Guest.remote()  # waits for the room
    post.send(0, KILL)
    messages = post.gather(1)
    assert kinds(messages) == [Lost]
    if not ray.wait([guest.here.remote()], timeout=10.0)[0]:
        pytest.fail("the guest was to have the room first")
    task = post.send(0, WHERE)
    assert post.backend.receive(1.0) == []
    ray.kill(guest)
    restored, reply = post.gather(2)
    assert isinstance(restored, Restored)
    assert reply.task == task.id
    assert reply.scalars["seen"] == 1


# ------------------------------------------------------------------------------------------ no room


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_cpus": -1}, "num_cpus"),
        ({"num_cpus": True}, "num_cpus"),
        ({"num_gpus": "two"}, "num_gpus"),
        ({"num_gpus": 1.5}, "whole number"),
        ({"resources": {"fast": -1.0}}, "fast"),
        ({"resources": ["fast"]}, "mapping"),
        ({"resources": {"CPU": 1}}, "num_cpus"),
        ({"scheduling_strategy": "scatter"}, "scatter"),
        ({"blas_threads": 0}, "blas_threads"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"patience": 0.0}, "patience"),
        ({"workers": 0}, "workers"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        get("ray", **options)


@pytest.mark.parametrize("options", [{"num_cpus": 64}, {"num_gpus": 1}, {"resources": {"telescope": 1.0}}])
def test_what_no_node_could_give_is_refused_at_the_start(engine, options):
    with pytest.raises(InvalidInput, match=r"1 x \(CPU 4"):
        engine(**options).start(loaders(2))


def test_actors_that_find_no_room_are_complained_about_in_time(engine):
    backend = engine(3, num_cpus=2, patience=4.0)
    backend.start(loaders(3))
    words = (
        r"3 actors with CPU 2 each; [123] of them were not started in 4 s; "
        r"it has 1 x \(CPU 4\), of which CPU [0-4] is free"
    )
    with pytest.raises(InvalidInput, match=words):  # noqa: PT012
        for _ in range(60):
            backend.receive(0.5)


# --------------------------------------------------------------------------------- what is sent


def test_a_large_block_for_many_workers_is_put_into_the_store_once(engine):
    post = Post(engine(3), loaders(3))
    block = np.random.default_rng(0).standard_normal((4, 40_000))
    for _ in range(2):
        for i in range(3):
            post.send(i, "apply", {"block": block})
        for reply in post.gather(3):
            np.testing.assert_allclose(
                reply.arrays["product"], matrices(3)[reply.component] @ block, rtol=0, atol=1e-10
            )
    assert post.backend.describe()["blocks_put"] == 1


def test_a_middling_block_is_put_only_when_it_is_sent_often(engine):
    post = Post(engine(1), loaders(1))
    block = np.random.default_rng(0).standard_normal((4, 5000))
    for count in range(1, 13):
        product = post.ask(0, "apply", {"block": block}).arrays["product"]
        np.testing.assert_allclose(product, matrices(1)[0] @ block, rtol=0, atol=1e-10)
        assert post.backend.describe()["blocks_put"] == int(count > 8)


def test_blocks_that_were_sent_are_let_go_of(engine):
    post = Post(engine(1), loaders(1))
    alive = []
    for i in range(20):
        block = np.full((4, 40_000), float(i))
        alive.append(weakref.ref(block))
        post.ask(0, "apply", {"block": block})
        del block
    assert len([one for one in alive if one() is not None]) <= 8
    assert alive[-1]() is not None


def test_answers_of_changing_sizes_arrive_intact(engine):
    """In the call itself, in pieces and through the store, whatever the last one was like."""
    post = Post(engine(1, faults=["duplicate:0@2", "corrupt:0@4"]), loaders(1))
    for ordinal, columns in enumerate((1, 3000, 5000, 9000, 5000, 20_000, 9000, 2, 15_000)):
        block = np.random.default_rng(columns).standard_normal((4, columns))
        post.send(0, "apply", {"block": block[:, ::-1].copy(order="F"), "unused": np.zeros((0, 3))})
        replies = post.gather(2 if ordinal == 2 else 1)
        for reply in replies:
            expected = (matrices(1)[0] @ block)[:, ::-1]
            close = np.allclose(reply.arrays["product"], expected, rtol=0, atol=1e-10)
            good = checksum(reply.arrays) == reply.checksum
            assert good == (ordinal != 4)
            assert close or not good


LEFT_AND_BACK = """
import numpy as np, ray, grassia
X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
start = dict(num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.init(**start)
with grassia.backends.Ray() as backend:
    for _ in range(2):
        shards = grassia.from_rows(X, n_components=2)
        print(grassia.eigenspace(shards, 2, solver="krylov", backend=backend, rng=0).status.name)
        ray.shutdown()
        ray.init(**start)
"""


def test_actors_of_a_cluster_that_was_left_are_not_asked_on_another(tmp_path):
    script = tmp_path / "left.py"
    script.write_text(LEFT_AND_BACK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, cwd="/")
    assert done.stdout.split() == ["CONVERGED"] * 2, done.stderr
