"""Whole runs over several hosts that are distant, cut off, lost, or join: see hosts.py and host_runs.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conftest import unavailable
from host_clusters import Cluster, OnDask, OnRay
from host_runs import Oracle, Run, shards
from hosts import hosts, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(150)]

SPREAD = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}  # one of three actors on each of three hosts


@pytest.fixture(scope="module", params=[OnRay, OnDask], ids=["ray", "dask"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One for all tests of an engine: to start it takes longer than most of them."""
    pytest.importorskip("ray" if request.param is OnRay else "distributed")
    if (reason := why_not()) is not None:
        unavailable(reason)
    with hosts(5) as machines:
        made = request.param(machines)
        made.start()
        yield made


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    found = Oracle(shards())
    for i in range(3):  # who is left out is missed
        assert found.sine(Oracle([shard for j, shard in enumerate(shards()) if j != i]).vectors) > 0.5
    return found


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """The rows as files that every host sees."""
    for i, rows in enumerate(shards()):
        np.save(tmp_path / f"{i}.npy", rows)
    return [tmp_path / f"{i}.npy" for i in range(3)]


@pytest.mark.parametrize("solver", ["nystrom", "grassia"])
def test_distant_hosts_find_what_a_dense_solver_finds(cluster, solver, oracle, paths, tmp_path):
    cluster.tidy(cluster.others[:3])
    for host, milliseconds in zip(cluster.members, [2.5, 5.0, 10.0], strict=True):
        host.delay(milliseconds)
    Run(cluster, tmp_path, paths, solver, ray=SPREAD).check(oracle)


def test_each_host_opens_the_file_that_only_it_has(cluster, oracle, tmp_path):
    """The path is the same for all of them, the server has no such file, and no rows travel."""
    cluster.tidy(cluster.others[:3])
    for host, rows in zip(cluster.members, shards(), strict=True):
        np.save(host.files / "rows.npy", rows)
    path = cluster.front.disk / "rows.npy"
    Run(cluster, tmp_path, [path] * 3, ray={"num_cpus": 2}).check(oracle)


def test_a_link_that_is_cut_for_seconds_delays_the_answer_and_does_not_change_it(
    cluster, oracle, paths, tmp_path
):
    cluster.tidy(cluster.others[:3])
    run = Run(cluster, tmp_path, paths, pauses=["middle"], ray=SPREAD)
    host = cluster.members[1]
    with run.at("middle"):
        before = host.dropped
        host.cut()
    time.sleep(3.0)
    assert host.dropped > before
    assert not run.ended
    host.heal()
    run.check(oracle)


def test_a_host_that_counts_as_lost_and_comes_back_does_no_harm(cluster, oracle, paths, tmp_path):
    """Its components are opened elsewhere; what it still thinks it has to do is not wanted any more."""
    cluster.tidy(cluster.others[:3])
    run = Run(cluster, tmp_path, paths, pauses=["middle", "loss"], ray=SPREAD)
    with run.at("middle"):
        cluster.members[1].cut()
    with run.at("loss"):
        cluster.members[1].heal()
        time.sleep(2.0)
    run.check(oracle, "worker lost", "worker restored")


@pytest.mark.parametrize("solver", ["nystrom", "grassia"])
def test_components_of_a_host_that_dies_are_opened_on_another(cluster, solver, oracle, paths, tmp_path):
    cluster.tidy(cluster.others[:3])
    run = Run(cluster, tmp_path, paths, solver, pauses=["middle"], ray=SPREAD)
    with run.at("middle"):
        cluster.lose(cluster.members[1])
    run.check(oracle, "worker lost", "worker restored")


def test_a_silent_host_is_given_up_before_the_engine_notices(cluster, oracle, paths, tmp_path):
    """It stays cut off, and engines allow a host more time than this run wants to wait."""
    cluster.tidy(cluster.others[:3])
    policy = {"timeout": 2.0}
    run = Run(cluster, tmp_path, paths, pauses=["middle"], on_loss=policy, ray=SPREAD)
    with run.at("middle"):
        cluster.members[1].cut()
    run.check(oracle, "worker lost", "worker restored")


def test_a_question_that_a_silent_host_keeps_is_answered_by_another(cluster, oracle, paths, tmp_path):
    cluster.tidy(cluster.others[:3])
    policy = {"hasten": 1.0, "hasten_after": 1.0}
    run = Run(cluster, tmp_path, paths, pauses=["middle"], on_loss=policy, ray=SPREAD)
    with run.at("middle"):
        cluster.members[1].cut()
    run.check(oracle, "question put to another", "worker replaced")


def test_a_host_that_alone_has_its_file_is_waited_for(cluster, oracle, tmp_path):
    """It starts anew with the same disk, and its component is opened there, not where other files are."""
    cluster.tidy(cluster.others[:3])
    for host, rows in zip(cluster.members, shards(), strict=True):
        np.save(host.files / "rows.npy", rows)
    path = cluster.front.disk / "rows.npy"
    options = {"pauses": ["middle", "loss"], "on_loss": {"action": "wait"}}
    run = Run(cluster, tmp_path, [path] * 3, **options, ray={"num_cpus": 1, "scheduling_strategy": "SPREAD"})
    host = cluster.members[1]
    with run.at("middle"):
        cluster.lose(host)
    with run.at("loss"):
        assert not run.ended
    cluster.join(host)
    run.check(oracle, "worker lost", "worker restored")


def test_a_host_that_joins_in_the_middle_of_a_run_is_given_its_share(cluster, oracle, paths, tmp_path):
    cluster.tidy(cluster.others[:2])
    run = Run(cluster, tmp_path, paths, "grassia", pauses=["middle"], slow=0.1, ray=SPREAD)
    newcomer = cluster.others[2]
    with run.at("middle"):
        cluster.join(newcomer)
    assert newcomer.address in run.check(oracle, "worker lost", "worker restored")


def test_components_without_a_host_wait_for_one_that_joins(cluster, oracle, paths, tmp_path):
    cluster.tidy(cluster.others[:1])
    run = Run(cluster, tmp_path, paths, pauses=["middle", "loss"], ray={"num_cpus": 0.5})
    with run.at("middle"):
        cluster.lose(cluster.members[0])
    cluster.join(cluster.others[1])
    with run.at("loss"):
        pass
    run.check(oracle, "worker lost", "worker restored")
