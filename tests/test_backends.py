"""The contract of a back-end, kept by every engine: see `grassia.backends.base`.

An engine is added to `ENGINES` in conftest.py, in one line. Its other parts are in the modules beside:
failures, the parameters of back-ends, whole runs.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from backend_tasks import COUNT, FILL, HOLD, REPEAT, Post, loaders, matrices
from grassia.backends import Processes, Threads
from grassia.data import MatrixLoader, NpyRowsLoader
from grassia.messages import Reply, checksum

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]


# ---------------------------------------------------------------------------- questions and answers


@pytest.mark.parametrize(("n", "workers"), [(1, None), (3, None), (5, 2), (2, 7)])
def test_start_pins_each_component_to_exactly_one_worker(engine, n, workers):
    backend = engine(workers)
    backend.start(loaders(n))
    assert sorted(itertools.chain(*backend.groups)) == list(range(n))
    assert all(backend.groups)
    assert len(backend.groups) <= min(n, workers or n)
    assert backend.describe()["workers"] == len(backend.groups)
    assert backend.describe()["backend"] == backend.name


def test_a_reply_answers_its_task(engine):
    post = Post(engine(2), loaders(3))
    blocks = np.random.default_rng(1).standard_normal((3, 4, 2))
    tasks = [post.send(i, "apply", {"block": blocks[i]}) for i in range(3)]
    replies = {reply.task: reply for reply in post.gather(3)}
    for task, A, block in zip(tasks, matrices(3), blocks, strict=True):
        reply = replies[task.id]
        assert isinstance(reply, Reply)
        assert reply.component == task.component
        assert reply.checksum == checksum(reply.arrays)
        assert reply.elapsed >= 0.0
        np.testing.assert_allclose(reply.arrays["product"], A @ block, rtol=0, atol=1e-12)
    # And the questions were not changed by being asked.
    np.testing.assert_array_equal(blocks, np.random.default_rng(1).standard_normal((3, 4, 2)))


def test_tasks_of_one_worker_are_handled_in_the_order_in_which_they_were_sent(engine):
    post = Post(engine(1), loaders(2))
    sent = [post.send(i % 2, COUNT).id for i in range(10)]
    replies = post.gather(10)
    assert [reply.task for reply in replies] == sent
    assert [reply.scalars["seen"] for reply in replies] == [1 + i // 2 for i in range(10)]


def test_fewer_workers_than_components_answer_for_all_of_them(engine):
    post = Post(engine(2), loaders(5))
    assert len(post.backend.groups) <= 2
    block = np.eye(4)
    tasks = {post.send(i, "apply", {"block": block}).id: i for i in range(5)}
    for reply in post.gather(5):
        expected = matrices(5)[tasks[reply.task]]
        np.testing.assert_allclose(reply.arrays["product"], expected, rtol=0, atol=1e-12)


def test_receiving_when_nothing_is_under_way_gives_an_empty_list(engine):
    post = Post(engine(1), loaders(2))
    assert post.backend.receive(0.05) == []
    post.ask(1, COUNT)
    assert post.backend.receive(0.0) == []


def test_the_clock_starts_at_zero_and_does_not_run_backwards(engine):
    backend = engine()
    post = Post(backend, loaders(1))
    times = [backend.now()]
    for _ in range(3):
        post.ask(0, COUNT)
        times.append(backend.now())
    assert times[0] >= 0.0
    assert times == sorted(times)


def test_answers_far_larger_than_their_questions_arrive_intact(engine):
    post = Post(engine(), loaders(1))
    for rows, columns in [(1, 1), (300, 500), (301, 500), (2, 3), (1000, 700)]:
        reply = post.ask(0, FILL, {"x": np.ones(3)}, rows=rows, columns=columns)
        expected = np.arange(float(rows * columns)).reshape(rows, columns)
        np.testing.assert_array_equal(reply.arrays["block"], expected)
        np.testing.assert_array_equal(reply.arrays["odd"], np.arange(3.0))
        assert reply.arrays["none"].shape == (0, 4)
        assert reply.checksum == checksum(reply.arrays)


def test_large_questions_of_any_layout_arrive_intact(engine):
    post = Post(engine(), loaders(1))
    big = np.arange(600_000.0).reshape(1000, 600)
    for block in (big, big.T, big[::2, ::3], np.zeros((0, 5)), big):
        reply = post.ask(0, FILL, {"x": block, "y": np.ones(1)}, rows=1, columns=1)
        assert reply.scalars["total"] == block.sum() + 1.0


def test_an_answer_is_not_overwritten_by_the_next(engine):
    post = Post(engine(), loaders(1))
    post.ask(0, FILL, {"x": np.ones((4, 4))}, rows=1, columns=1)
    first = post.ask(0, "apply", {"block": np.eye(4)}).arrays["product"]
    kept = first.copy()
    post.ask(0, "apply", {"block": 2.0 * np.eye(4)})
    np.testing.assert_array_equal(first, kept)


# -------------------------------------------------------------------------- tasks that are taken back


@pytest.mark.timeout(60)
def test_a_task_sent_instead_of_a_delayed_one_does_not_wait_for_it(engine):
    with engine(1, faults="delay:0:1000s@0") as backend:
        post = Post(backend, loaders(1))
        slow = post.send(0, COUNT)
        assert backend.name in ("serial", "simulated") or backend.receive(0.5) == []
        quick = post.send(0, COUNT, instead=slow)
        assert post.gather(1)[0].task == quick.id
        assert backend.now() < 60.0
        assert post.ask(0, COUNT).task == quick.id + 1


def test_a_task_that_waits_in_the_queue_can_be_taken_back(engine, tmp_path):
    with engine(1) as backend:
        post = Post(backend, loaders(1))
        until = tmp_path / "now"
        first = post.send(0, HOLD, until=str(until))
        second = post.send(0, COUNT)
        third = post.send(0, COUNT, instead=second)
        until.touch()
        found = post.gather(2)
        assert [reply.task for reply in found] == [first.id, third.id]
        assert found[1].scalars["seen"] == 1


def test_a_task_taken_back_too_late_is_answered_and_the_other_too(engine):
    with engine(1) as backend:
        post = Post(backend, loaders(1))
        early = post.send(0, COUNT)
        assert post.gather(1)[0].task == early.id
        late = post.send(0, COUNT, instead=early)
        assert post.gather(1)[0].task == late.id


@pytest.mark.parametrize("kind", [Threads, Processes])
def test_a_deaf_task_is_finished_before_the_one_that_takes_its_place(kind, tmp_path):
    """What cannot be cut short is not: its answer comes, or does not, and the next one comes anyway."""
    with kind(1) as backend:
        post = Post(backend, loaders(1))
        until = tmp_path / "now"
        deaf = post.send(0, HOLD, until=str(until))
        assert backend.receive(0.5) == []
        other = post.send(0, COUNT, instead=deaf)
        assert backend.receive(0.5) == []
        until.touch()
        found = []
        while other.id not in [reply.task for reply in found]:
            found += backend.receive(10.0)
        assert {reply.task for reply in found} <= {deaf.id, other.id}


@pytest.mark.parametrize("kind", [Threads, Processes])
def test_a_long_product_is_cut_short(kind, tmp_path):
    """A thousand products in tiles, one of which takes a noticeable time; the next task comes far earlier."""
    with kind(1) as backend:
        file = tmp_path / "rows.npy"
        np.save(file, np.random.default_rng(0).standard_normal((4000, 300)))
        post = Post(backend, [NpyRowsLoader(file, 0, 4000, True)])
        post.ask(0, "open")
        block = np.random.default_rng(1).standard_normal((300, 100))
        long = post.send(0, REPEAT, {"block": block})
        assert backend.receive(0.3) == []
        post.send(0, "open", instead=long)
        started = time.monotonic()
        assert post.gather(1)[0].task == long.id + 1
        assert time.monotonic() - started < 10.0


# ------------------------------------------------------------------------------------------ closing


def test_closing_twice_or_without_a_start_is_harmless(engine):
    engine().close()
    backend = engine(1)
    Post(backend, loaders(2)).ask(0, COUNT)
    backend.close()
    backend.close()


@pytest.mark.timeout(30)
def test_closing_does_not_wait_for_delayed_tasks(engine):
    backend = engine(3, faults="delay:*:300s")
    post = Post(backend, loaders(6))
    for i in range(6):
        post.send(i, COUNT)
    backend.close()


@pytest.mark.timeout(30)
def test_closing_does_not_wait_for_workers_that_are_deaf(engine, tmp_path):
    backend = engine(3)
    post = Post(backend, loaders(6))
    until = tmp_path / "now"
    for i in range(6):
        post.send(i, HOLD, until=str(until))
    backend.close()
    until.touch()  # threads cannot be ended, only left: let them go


def test_a_closed_back_end_can_be_started_again_and_has_forgotten_everything(engine):
    backend = engine(2)
    post = Post(backend, loaders(3))
    post.ask(0, COUNT)
    for i in range(3):
        post.send(i, COUNT)  # never received
    backend.close()
    again = Post(backend, [MatrixLoader(np.eye(2)), MatrixLoader(2.0 * np.eye(2))])
    assert sorted(itertools.chain(*backend.groups)) == [0, 1]
    assert backend.receive(0.05) == []
    assert again.ask(1, COUNT).scalars["seen"] == 1
    np.testing.assert_array_equal(
        again.ask(1, "apply", {"block": np.eye(2)}).arrays["product"], 2.0 * np.eye(2)
    )


def test_leaving_a_with_block_closes_it_also_by_an_exception(engine):
    backend = engine(1, faults="delay:*:300s")
    with pytest.raises(KeyError), backend:  # noqa: PT012
        Post(backend, loaders(2)).send(0, COUNT)
        raise KeyError
