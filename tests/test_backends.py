"""The contract of a back-end, kept by every engine: see `grassia.backends.base`.

An engine is added to `ENGINES` in conftest.py, in one line.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import pickle
import sys
import threading
import time

import numpy as np
import pytest

import grassia
from grassia import geometry
from grassia._blas import libraries
from grassia.backends import Processes, Serial, Simulated, Threads, get
from grassia.backends.base import cores, threads_for
from grassia.components import MatrixComponent
from grassia.data import CallableLoader, MatrixLoader, NpyRowsLoader, as_components
from grassia.errors import InvalidComponent, InvalidInput
from grassia.faults import InjectedError
from grassia.messages import Failure, Lost, Query, Reply, Restored, Task, checksum

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]

COUNT = "test_backends:count"
RAISE = "test_backends:fail"
EXIT = "test_backends:leave"
FILL = "test_backends:fill"
HOLD = "test_backends:hold"


# ------------------------------------------------- procedures that the workers import by name


def count(component, cache, query):
    """How many tasks this worker's cache has seen."""
    cache["seen"] = cache.get("seen", 0) + 1
    return {"echo": np.full(2, float(cache["seen"]))}, {"seen": cache["seen"], "pid": os.getpid()}


def fail(component, cache, query):
    raise ZeroDivisionError("a text from the worker")


def leave(component, cache, query):
    if query.options["how"] == "exit":
        sys.exit(3)
    raise asyncio.CancelledError("withdrawn")


def fill(component, cache, query):
    """Arrays of the sizes that are asked for, whatever the size of the question."""
    rows, columns = int(query.options["rows"]), int(query.options["columns"])
    total = float(sum(array.sum() for array in query.arrays.values()))
    block = np.arange(float(rows * columns)).reshape(rows, columns)
    return {"block": block, "odd": np.arange(3.0), "none": np.zeros((0, 4))}, {"total": total}


def repeat(component, cache, query):
    """The same product a hundred thousand times."""
    for _ in range(100_000):
        component.apply(query.arrays["block"])
    return {}, {}


def hold(component, cache, query):
    """Busy, and deaf to everything, until a file appears."""
    while not os.path.exists(str(query.options["until"])):
        time.sleep(0.01)
    return {}, {}


# ------------------------------------------------------------------------------------- helpers


class Post:
    """A started back-end and the numbering of its tasks."""

    def __init__(self, backend, loaders):
        self.backend = backend
        self._ids = itertools.count(1)
        self._ordinals = [0] * len(loaders)
        backend.start(loaders)

    def send(self, component=0, procedure="apply", arrays=None, instead=None, **options):
        ordinal = self._ordinals[component]
        self._ordinals[component] += 1
        query = Query(procedure, arrays or {}, options)
        task = Task(next(self._ids), component, 0, ordinal, query, instead and instead.id)
        self.backend.send(task)
        return task

    def gather(self, n):
        """The next n messages, in the order in which they come; more than n is an error."""
        found = []
        deadline = time.monotonic() + 60.0
        while len(found) < n:
            found += self.backend.receive(1.0)
            assert time.monotonic() < deadline, f"only {found} arrived"
        assert len(found) == n, found
        return found

    def ask(self, component=0, procedure="apply", arrays=None, **options):
        self.send(component, procedure, arrays, **options)
        return self.gather(1)[0]


def matrices(n, d=4, seed=0):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((n, d, d))
    return found + found.transpose(0, 2, 1)


def loaders(n, d=4):
    return [MatrixLoader(A) for A in matrices(n, d)]


# ------------------------------------------------------------------------------------ the contract


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


# ---------------------------------------------------------------------------------------- failures


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
        long = post.send(0, "test_backends:repeat", {"block": block})
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


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"])
@pytest.mark.parametrize("name", ["threads", "processes", "simulated"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(name, workers):
    backend = get(name, workers=workers)
    with pytest.raises(InvalidInput, match=f"got {workers!r}"):
        backend.start(loaders(2))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", [Serial, Threads, Processes, Simulated])
def test_a_copy_of_a_back_end_is_a_new_one_with_the_same_parameters(kind, how):
    options = {} if kind is Serial else {"workers": 2}
    with kind(faults="duplicate:0@1", **options) as backend:
        Post(backend, loaders(3)).ask(0, COUNT)
        other = how(backend)
        assert other is not backend
        assert other.groups == []
        with other:
            other_post = Post(other, loaders(3))
            assert other.groups == backend.groups
            assert other_post.ask(0, COUNT).scalars["seen"] == 1
            other_post.send(0, COUNT)
            assert len(other_post.gather(2)) == 2  # the injected fault is its own, too


@pytest.mark.parametrize(("said", "least", "most"), [("1", 1, 1), ("1000", 1, 1000), ("many", 1, 1000)])
def test_what_the_environment_allows_blas_is_a_limit_for_workers(said, least, most, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert least <= threads_for(1, None) <= min(most, cores())
    assert threads_for(1, 3) == 3


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'processes'.*got 'abacus'"):
        get("abacus")


def test_options_beside_a_back_end_object_are_refused(engine):
    with pytest.raises(InvalidInput, match="workers"):
        get(engine(), workers=2)


# --------------------------------------------------------------------------------------- whole runs


def problem(n=4, d=12, k=3, seed=3):
    """Components that differ much, and the leading k-space of their mean."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = (turn * np.r_[np.linspace(6.0, 4.0, k), np.linspace(1.0, 0.0, d - k)]) @ turn.T
    noise = matrices(n, d, seed) * 0.3
    noise -= noise.mean(axis=0)
    return [A + part for part in noise], turn[:, :k]


def sine(result, W):
    return float(np.sin(geometry.principal_angles(result.vectors, W).max()))


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("table", ["worker", "server"])
def test_every_engine_finds_what_a_dense_solver_finds(engine, table, mode):
    components, W = problem()
    solver = grassia.solvers.Grassia(table=table, mode=mode)
    result = grassia.eigenspace(components, 3, solver=solver, backend=engine(2), tol=1e-8, rng=0)
    assert result.converged
    assert sine(result, W) <= 1e-8
    A = np.mean(components, axis=0)
    np.testing.assert_allclose(result.values, np.linalg.eigvalsh(A)[::-1][:3], rtol=1e-12)
    assert result.stats["backend"] == engine().name


@pytest.mark.parametrize("table", ["worker", "server"])
def test_faults_of_every_kind_do_not_change_the_answer(engine, table):
    components, W = problem()
    rules = [
        "slow:0:2x",
        "delay:1:1ms@5%",
        "crash:2@7",
        "corrupt:0,3@5",
        "duplicate:1@4",
        "error:1@6",
    ]
    solver = grassia.solvers.Grassia(table=table)
    result = grassia.eigenspace(
        components, 3, solver=solver, backend=engine(2, faults=rules), tol=1e-8, rng=0
    )
    assert result.converged
    assert sine(result, W) <= 1e-8
    events = result.history.events
    struck = {(event.kind, event.component) for event in events}
    assert {("worker lost", 2), ("worker restored", 2), ("task failed", 1)} <= struck
    assert {("corrupt reply rejected", 0), ("corrupt reply rejected", 3)} <= struck
    assert result.stats["replies_rejected"] == 2
    assert result.stats["replies_ignored"] == 1


def test_functions_defined_where_they_are_used_travel_to_the_workers(engine):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((90, 6)) * np.array([5.0, 4.0, 1.0, 1.0, 1.0, 1.0])

    def shard(first):
        def rows():
            return X[first : first + 30]

        return rows

    class Doubled:
        """A loader, and the class of its component, that no module holds."""

        def open(self):
            class Twice(MatrixComponent):
                def _product(self, V):
                    return 2.0 * super()._product(V)

            return Twice(np.diag([3.0, 2.0, 1.0]))

    components = grassia.from_rows([shard(0), shard(30), shard(60)])
    result = grassia.eigenspace(components, 2, backend=engine(2), rng=0)
    assert sine(result, np.linalg.eigh(np.cov(X.T))[1][:, -2:]) <= 1e-6

    result = grassia.eigenspace(as_components(Doubled()), 1, backend=engine(), rng=0)
    assert result.values[0] == pytest.approx(6.0)
    assert sine(result, np.eye(3)[:, :1]) <= 1e-6


def test_a_serial_run_leaves_blas_as_it_was():
    """Also when several runs overlap, and when one fails."""
    before = [library.num_threads for library in libraries()]
    X = np.random.default_rng(0).standard_normal((200, 12)) * np.r_[5, 4, np.ones(10)]
    started = threading.Barrier(3)

    def solve(seed: int) -> None:
        def wait(progress: grassia.Progress) -> None:
            if progress.passes == 1.0:
                started.wait(10.0)

        grassia.eigenspace(grassia.from_rows(X, 3), 2, solver="krylov", rng=seed, callbacks=wait)

    threads = [threading.Thread(target=solve, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [library.num_threads for library in libraries()] == before
    with pytest.raises(grassia.InvalidInput):
        grassia.eigenspace(np.full((3, 3), np.nan), 1)
    assert [library.num_threads for library in libraries()] == before
