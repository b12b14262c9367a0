"""Ray with several nodes, which join, hang and are lost.

Each is made of processes of this machine, with an address of its own.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grassia
from backend_tasks import Post, loaders, problem, sine
from conftest import ray_cluster
from grassia.messages import Lost, Restored
from ray_runs import KILL, WHERE, engines, held, kinds

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    with engines() as make:
        yield make


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


def test_a_kept_worker_may_stay_elsewhere_when_its_node_was_lost_between_two_runs(nodes, engine):
    there = nodes.add(ELSEWHERE)
    with engine(4, scheduling_strategy="SPREAD") as backend:
        backend.stays = True
        post = Post(backend, loaders(4))
        assert there in {post.ask(i, WHERE).scalars["node"] for i in range(4)}
        backend.release()
        nodes.kill(ELSEWHERE)
        post = Post(backend, loaders(4))
        for i in range(4):
            post.send(i, WHERE)
        found = post.gather(4)
        assert {reply.scalars["seen"] for reply in found} == {1}
        assert there not in {reply.scalars["node"] for reply in found}


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
    here = Post(backend, loaders(1)).ask(0, WHERE).scalars["node"]
    assert backend._other_than(here) == there
    backend._probed.clear()
    nodes.kill(ELSEWHERE)
    assert backend._other_than(here) is None
    assert there in backend._nodes  # as far as Ray knows


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
