"""Every back-end with tasks that fail, data that cannot be opened, workers that die, and injected faults."""

from __future__ import annotations

import numpy as np
import pytest

from backend_tasks import COUNT, EXIT, RAISE, Post, loaders, matrices
from grassia.data import CallableLoader, MatrixLoader, NpyRowsLoader
from grassia.errors import InvalidComponent, InvalidInput
from grassia.faults import InjectedError
from grassia.messages import Failure, Lost, Reply, Restored, checksum

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]


def test_a_task_that_raises_is_a_failure_and_its_worker_lives_on(engine):
    post = Post(engine(1), loaders(2))
    assert post.ask(0, COUNT).scalars["seen"] == 1
    failure = post.ask(0, RAISE)
    assert isinstance(failure, Failure)
    assert failure.component == 0
    assert isinstance(failure.error, ZeroDivisionError)
    assert "a text from the worker" in str(failure.error)
    assert post.ask(0, COUNT).scalars["seen"] == 2


def test_an_unknown_procedure_is_a_failure_that_names_it(engine):
    post = Post(engine(), loaders(1))
    failure = post.ask(0, "no such thing")
    assert isinstance(failure.error, InvalidInput)
    assert "no such thing" in str(failure.error)


def test_code_that_exits_the_interpreter_is_a_failure_and_ends_nothing(engine):
    post = Post(engine(), loaders(1))
    for how, text in [("exit", "SystemExit(3)"), ("cancel", "CancelledError('withdrawn')")]:
        failure = post.ask(0, EXIT, how=how)
        assert isinstance(failure, Failure)
        assert text in str(failure.error)
    assert post.ask(0, COUNT).scalars["seen"] == 1


def test_an_error_that_cannot_be_pickled_keeps_its_name_and_text(engine):
    class Odd(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} and {second}")

    def rows():
        raise Odd("this", "that")

    post = Post(engine(), [CallableLoader(rows)])
    failure = post.ask(0, "open")
    assert "this and that" in str(failure.error)
    assert "Odd" in repr(failure.error)


def test_an_injected_error_strikes_its_task_alone(engine):
    post = Post(engine(1, faults="error:1@1"), loaders(2))
    messages = [post.ask(i, COUNT) for i in (0, 1, 0, 1, 1)]
    assert [type(m) for m in messages] == [Reply, Reply, Reply, Failure, Reply]
    assert isinstance(messages[3].error, InjectedError)


def test_a_loader_that_cannot_open_its_file_is_a_failure_that_names_it(engine, tmp_path):
    path = tmp_path / "absent.npy"
    post = Post(engine(1), [NpyRowsLoader(str(path)), MatrixLoader(np.eye(2))])
    failure = post.ask(0, "open")
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, InvalidComponent)
    assert str(path) in str(failure.error)
    assert isinstance(post.ask(1, "open"), Reply)
    np.save(path, np.eye(3))  # and it is opened anew at the next task
    assert post.ask(0, "open").scalars["n_features"] == 3


def test_what_a_loader_opens_must_be_a_component(engine):
    class Wrong:
        def open(self):
            return np.eye(3)

    post = Post(engine(), [Wrong()])
    failure = post.ask(0, "open")
    assert isinstance(failure.error, InvalidComponent)
    assert "ndarray" in str(failure.error)


def test_a_worker_that_is_killed_is_lost_then_restored_with_empty_caches(engine):
    post = Post(engine(faults="crash:0@2"), loaders(2))
    group = next(tuple(group) for group in post.backend.groups if 0 in group)
    assert [post.ask(0, COUNT).scalars["seen"] for _ in range(2)] == [1, 2]
    assert post.ask(1, COUNT).scalars["seen"] == 1
    post.send(0, COUNT)
    lost, restored = post.gather(2)
    assert isinstance(lost, Lost)
    assert lost.components == group
    assert lost.reason
    assert not lost.permanent
    assert isinstance(restored, Restored)
    assert restored.components == group
    assert post.ask(0, COUNT).scalars["seen"] == 1
    assert post.ask(1, COUNT).scalars["seen"] == (1 if 1 in group else 2)


def test_what_is_queued_for_a_worker_dies_with_it(engine):
    post = Post(engine(1, faults=["crash:0@0", "delay:0:500ms@0"]), loaders(2))
    for _ in range(3):
        post.send(0, COUNT)
    lost, restored = post.gather(2)
    assert isinstance(lost, Lost)
    assert isinstance(restored, Restored)
    task = post.send(1, COUNT)
    assert [reply.task for reply in post.gather(1)] == [task.id]
    assert post.backend.receive(0.1) == []


def test_a_corrupt_reply_is_given_away_by_its_checksum(engine):
    post = Post(engine(faults="corrupt:0@1"), loaders(1))
    replies = [post.ask(0, "apply", {"block": np.eye(4)}) for _ in range(3)]
    good = [checksum(reply.arrays) == reply.checksum for reply in replies]
    assert good == [True, False, True]


def test_a_duplicate_reply_comes_twice(engine):
    post = Post(engine(faults="duplicate:0@1"), loaders(1))
    assert isinstance(post.ask(0, COUNT), Reply)
    task = post.send(0, COUNT)
    first, second = post.gather(2)
    assert first.task == second.task == task.id
    np.testing.assert_array_equal(first.arrays["echo"], second.arrays["echo"])
    assert checksum(second.arrays) == second.checksum
    assert post.ask(0, COUNT).scalars["seen"] == 3


def test_a_slowed_or_delayed_task_gives_the_same_answer(engine):
    post = Post(engine(faults=["slow:0:3x", "delay:0:1ms"]), loaders(1))
    reply = post.ask(0, "apply", {"block": np.eye(4)})
    np.testing.assert_allclose(reply.arrays["product"], matrices(1)[0], rtol=0, atol=1e-12)


def test_a_fault_for_a_component_there_is_not_is_refused_at_the_start(engine):
    with pytest.raises(InvalidInput, match="names 7"):
        engine(faults="crash:7").start(loaders(2))
