"""What the Ray back-end does beyond the contract: copies, losses of nodes, joins, sources on the cluster.

Each cluster of several nodes is made of processes of this machine, with addresses of their own.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from conftest import ray_cluster
from grassia.backends import Processes, get
from grassia.data import CallableLoader
from grassia.errors import InvalidComponent, InvalidInput
from grassia.messages import Lost, Restored, checksum
from test_backends import Post, loaders, matrices, problem, sine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]

HOLD = "test_ray:hold_first"
MEAN = "test_ray:shifted"
KILL = "test_ray:end"


# ------------------------------------------------- procedures that the workers import by name


def hold_first(component, cache, query):
    """Whoever makes the file first is held until another file appears; the others are not."""
    folder = str(query.options["folder"])
    try:
        os.close(os.open(os.path.join(folder, f"held-{query.options['once']}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return count_and_place(component, cache, query)
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    return count_and_place(component, cache, query)


def count_and_place(component, cache, query):
    import ray

    cache["seen"] = cache.get("seen", 0) + 1
    sums = {name: float(array.sum()) for name, array in query.arrays.items()}
    node = ray.get_runtime_context().get_node_id()
    return {}, {"seen": cache["seen"], "pid": os.getpid(), "node": node, **sums}


def end(component, cache, query):
    os._exit(1)


WHERE = "test_ray:count_and_place"


# ------------------------------------------------------------------------------------- helpers


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    """Back-ends on the cluster of the session, which has four CPUs on one node."""
    made: list[Any] = []

    def make(workers: int | None = None, **options: Any) -> Any:
        ray_cluster()
        made.append(get("ray", workers=workers, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def held(post: Post, tmp_path, component=0, once=1, **more):
    """A task whose worker has begun with it and does not get on."""
    task = post.send(component, HOLD, folder=str(tmp_path), once=once, **more)
    file = tmp_path / f"held-{once}"
    deadline = time.monotonic() + 60.0
    while not file.exists():
        assert post.backend.receive(0.05) == []
        assert time.monotonic() < deadline
    return task


def kinds(messages):
    return [type(message) for message in messages]


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


def test_a_run_does_not_wait_for_a_worker_that_is_stuck(engine, tmp_path):
    X = rows()

    def shard(i):
        def read():
            """Whoever comes first to the second shard never gets on."""
            import os
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


# ------------------------------------------------------------------------------- rows on the cluster


def rows(seed=0, m=90, d=6):
    return np.random.default_rng(seed).standard_normal((m, d)) * np.r_[5.0, 4.0, np.ones(d - 2)] + 1.0


def leading(X, k=2):
    return np.linalg.eigh(np.cov(X.T))[1][:, -k:]


def as_frame(X):
    return importlib.import_module("pandas").DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])


def as_arrow(X):
    return importlib.import_module("pyarrow").Table.from_pandas(as_frame(X))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, as_frame, as_arrow])
def test_objects_in_the_store_are_shards_that_can_be_read_here(form):
    ray = ray_cluster()
    X = rows()
    references = [ray.put(form(X[i : i + 30])) for i in (0, 30, 60)]
    components = grassia.from_rows(references)
    assert [loader.extent().n_rows for loader in components] == [30, 30, 30]
    assert components.n_features == 6
    assert components.sparse == (form is sp.csr_array)
    assert (components.feature_names is None) == (form in (np.asarray, sp.csr_array))
    result = grassia.eigenspace(components, 2, backend="threads", tol=1e-8, rng=0)
    assert result.converged
    assert sine(result, leading(X)) <= 1e-8


def test_objects_in_the_store_are_shards_that_actors_open():
    ray = ray_cluster()
    X = rows()
    forms = (np.asarray, sp.csr_array, as_frame, as_arrow)
    references = [
        ray.put(form(X[a:b])) for form, a, b in zip(forms, (0, 20, 40, 60), (20, 40, 60, 90), strict=True)
    ]
    result = grassia.eigenspace(
        grassia.from_rows(references), 2, backend=get("ray", workers=2), tol=1e-8, rng=0
    )
    assert result.converged
    assert sine(result, leading(X)) <= 1e-8


def test_one_object_can_be_cut_into_several_components():
    X = rows()
    components = grassia.from_rows(ray_cluster().put(X), 4)
    assert len(components) == 4
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
    assert sine(grassia.eigenspace(components, 2, rng=0), leading(X)) <= 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["numpy", "columns", "filtered"])
def test_a_ray_dataset_is_read_block_by_block_where_it_is(kind):
    ray_cluster()
    data = importlib.import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    X = rows()
    if kind == "numpy":
        dataset = data.from_numpy([X[:40], X[40:]])
        found = grassia.from_rows(dataset)
    else:
        dataset = data.from_pandas([as_frame(X[:40]).assign(key="a"), as_frame(X[40:]).assign(key="b")])
        if kind == "filtered":
            dataset, X = dataset.map_batches(lambda t: t[t["key"] == "b"], batch_format="pandas"), X[40:]
        found = grassia.from_rows(dataset, options={"drop": "key"})
        assert found.feature_names == tuple(f"c{j}" for j in range(6))
    assert found.n_rows == len(X)
    backend = get("ray" if kind == "numpy" else "threads", workers=1)
    result = grassia.eigenspace(found, 2, backend=backend, tol=1e-8, rng=0)
    assert sine(result, leading(X)) <= 1e-8


def test_an_array_in_the_store_is_used_in_place(engine):
    ray = ray_cluster()
    loader = grassia.from_rows(ray.put(rows(m=20_000)))[0]
    view = next(loader.blocks())
    assert not view.flags.owndata
    assert not view.flags.writeable  # the store's own memory
    post = Post(engine(1), [loader])
    assert post.ask(0, "open").scalars["count"] == 20_000.0


def test_the_store_keeps_an_object_as_long_as_an_actor_may_need_it(engine):
    """The program forgets its reference while the run goes on; the worker dies and reads again."""
    ray = ray_cluster()

    def started() -> Post:
        return Post(engine(1, faults="crash:0@1"), list(grassia.from_rows([ray.put(rows(m=50_000))])))

    post = started()
    assert post.ask(0, "open").scalars["count"] == 50_000.0
    post.send(0, "open")
    assert kinds(post.gather(2)) == [Lost, Restored]
    assert post.ask(0, "open").scalars["count"] == 50_000.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(3), "2-D"),
        ({"a": 1}, "dict"),
        (np.array([["a"]]), "real numbers"),
        (np.ones((0, 3)), "empty"),
    ],
)
def test_objects_that_are_no_rows_are_refused_with_their_number(value, words):
    ray = ray_cluster()
    with pytest.raises(InvalidComponent, match=words) as caught:
        grassia.from_rows([ray.put(np.eye(3)), ray.put(value)])
    assert caught.value.component == 1


def test_an_object_whose_task_failed_is_refused_with_the_cause():
    ray = ray_cluster()

    @ray.remote
    def broken():
        raise RuntimeError("no such telescope")

    with pytest.raises(InvalidComponent, match="no such telescope"):
        grassia.from_rows(broken.remote())


def test_references_do_not_travel_without_ray():
    components = grassia.from_rows(ray_cluster().put(rows()))
    with pytest.raises(InvalidComponent, match="backend='ray'"):
        Processes(1).start(list(components))
    with pytest.raises(InvalidComponent, match="backend='ray'"):
        pickle.dumps(components[0])


def test_bad_rows_in_the_store_are_reported_with_their_place():
    X = rows()
    X[7, 2] = np.nan
    with pytest.raises(InvalidComponent, match=r"row 7 of the Ray object"):
        grassia.eigenspace(grassia.from_rows([ray_cluster().put(X)]), 2, backend="ray")


# ------------------------------------------------------------------------------------- several nodes


def offspring(parent: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    try:
        started = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [pid for child in map(int, started) for pid in (child, *offspring(child))]


class Nodes:
    """Nodes that join the cluster of the session, as processes of this machine, and leave it."""

    def __init__(self) -> None:
        ray = ray_cluster()
        self._cluster = importlib.import_module("ray.cluster_utils").Cluster(initialize_head=False)
        self._cluster.head_node = ray._private.worker._global_node
        self.there: dict[str, Any] = {}

    def add(self, address: str, **options: Any) -> str:
        if address not in self.there:
            self.there[address] = self._cluster.add_node(node_ip_address=address, num_cpus=3, **options)
        return str(self.there[address].node_id)

    def kill(self, address: str) -> None:
        """As a machine that has lost its power: nothing on it answers any more."""
        node = self.there.pop(address)
        processes = [pid for raylet in node.all_processes["raylet"] for pid in offspring(raylet.process.pid)]
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in processes:  # they would notice only after a while, and answer until then
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leave(self) -> None:
        for node in self.there.values():
            self._cluster.remove_node(node)
        self.there.clear()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    found = Nodes()
    yield found
    found.leave()


ELSEWHERE = "127.0.0.2"


def test_a_node_that_joins_takes_idle_workers_and_those_that_waited_for_it(nodes, engine, tmp_path):
    """A program that has connected to a cluster cannot know what will join it, and waits for some time."""
    script = """
        import numpy as np, ray, grassia, sys
        from grassia.backends import get
        from grassia.data import MatrixLoader
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        try:
            get("ray", resources={"periscope": 1.0}, patience=1.0).start([MatrixLoader(np.eye(2))])
        except grassia.InvalidInput as error:
            print("refused:", error, flush=True)
        backend = get("ray", resources={"telescope": 1.0}, patience=60.0)
        result = grassia.eigenspace(np.diag([3.0, 2.0, 1.0]), 1, backend=backend)
        print("found:", round(float(result.values[0]), 9))
    """
    address = ray_cluster().get_runtime_context().gcs_address
    command = [sys.executable, "-c", textwrap.dedent(script), address]
    post = Post(engine(4, num_cpus=0.5), loaders(4))
    for i in range(4):
        post.ask(i, WHERE)
    held(post, tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        refused = program.stdout.readline()
        assert "actors with CPU 1, periscope 1 each; no node that could hold one came in 1 s" in refused
        there = nodes.add(ELSEWHERE, resources={"telescope": 1.0})
        lost, restored, lost_too, restored_too = post.gather(4)
        assert kinds([lost, restored, lost_too, restored_too]) == [Lost, Restored] * 2
        assert ELSEWHERE in lost.reason
        assert lost.components == restored.components
        assert lost_too.components == restored_too.components
        moved = {*lost.components, *lost_too.components}
        assert moved < {1, 2, 3}  # the busy one is left alone
        where = {i: post.ask(i, WHERE).scalars["node"] for i in (1, 2, 3)}
        assert {i for i, node in where.items() if node == there} == moved
        assert "found: 3.0" in program.stdout.read()


def test_rows_are_opened_on_the_node_that_holds_them(nodes, engine):
    ray = ray_cluster()
    there = nodes.add(ELSEWHERE)

    @ray.remote(num_cpus=0, resources={f"node:{ELSEWHERE}": 0.001})
    def made():
        return np.random.default_rng(0).standard_normal((20_000, 6))

    reference = made.remote()
    post = Post(engine(1), list(grassia.from_rows([reference])))
    assert post.ask(0, "open").scalars["count"] == 20_000.0
    assert post.ask(0, WHERE).scalars["node"] == there


def test_a_copy_runs_on_another_node_than_its_worker(nodes, engine, tmp_path):
    nodes.add(ELSEWHERE)
    post = Post(engine(1), loaders(1))
    here = post.ask(0, WHERE).scalars["node"]
    task = held(post, tmp_path)
    assert post.backend.hasten(task.id, 0, {})
    reply = post.gather(1)[0]
    assert reply.moved
    assert reply.scalars["node"] != here


def test_a_worker_that_stays_waits_for_its_node(nodes, engine, tmp_path):
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    there = nodes.add(ELSEWHERE)
    backend = engine(1, scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(there, soft=True))
    backend.stays = True
    post = Post(backend, loaders(1))
    assert post.ask(0, WHERE).scalars["node"] == there
    post.send(0, KILL)
    assert kinds(post.gather(2)) == [Lost, Restored]
    assert post.ask(0, WHERE).scalars["node"] == there  # though there is room elsewhere
    held(post, tmp_path)
    nodes.kill(ELSEWHERE)
    assert kinds(post.gather(1)) == [Lost]
    assert post.backend.receive(3.0) == []
    again = nodes.add(ELSEWHERE)
    assert again != there
    assert kinds(post.gather(1)) == [Restored]
    reply = post.ask(0, WHERE)
    assert (reply.scalars["node"], reply.scalars["seen"]) == (again, 1)


def test_an_actor_that_does_not_come_up_is_asked_for_again_elsewhere(nodes, engine, monkeypatch):
    """Ray goes on asking a node that hangs until it has missed its heartbeats, half a minute later."""
    monkeypatch.setattr("grassia.backends.ray_actor.OVERDUE_SECONDS", 1.0)
    there = nodes.add(ELSEWHERE)
    post = Post(engine(1), loaders(1))
    here = post.ask(0, WHERE).scalars["node"]
    assert here != there
    manager = nodes.there[ELSEWHERE].all_processes["raylet"][0].process.pid
    os.kill(manager, signal.SIGSTOP)
    try:
        began = time.monotonic()
        [lost] = post.backend._places[0].lose("it is told to move", on=there)
        task = post.send(0, WHERE)
        restored, reply = post.gather(2)
        assert time.monotonic() - began < 15.0
    finally:
        os.kill(manager, signal.SIGCONT)
    assert kinds([lost, restored]) == [Lost, Restored]
    assert (reply.task, reply.scalars["node"]) == (task.id, here)


def test_a_node_that_is_gone_is_avoided_before_ray_notices(nodes, engine):
    there = nodes.add(ELSEWHERE)
    backend = engine(1)
    Post(backend, loaders(1))
    assert backend.answers(there)
    backend._probed.clear()
    nodes.kill(ELSEWHERE)
    assert there in backend._nodes
    assert not backend.answers(there)


def test_a_lost_node_does_not_change_the_answer(nodes, engine):
    there = nodes.add(ELSEWHERE)
    components, W = problem()
    backend = engine(4, scheduling_strategy="SPREAD")
    affected: list[int] = []

    def kill(progress: grassia.Progress) -> None:
        if progress.passes > 6.0 and not affected:
            affected.extend(i for place in backend._places if place.node == there for i in place.components)
            nodes.kill(ELSEWHERE)

    result = grassia.eigenspace(
        components, 3, solver="grassia", backend=backend, tol=1e-8, rng=0, callbacks=kill
    )
    assert affected
    assert result.converged
    assert sine(result, W) <= 1e-8
    assert {event.component for event in result.history.events if event.kind == "worker lost"} >= set(
        affected
    )
