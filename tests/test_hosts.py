"""Whole runs over several hosts with addresses, latency and disks of their own: see hosts.py.

The server runs on the first host, in a process of its own; Ray's nodes or Dask's workers run on the others.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conftest import eventually, unavailable
from grassia import geometry
from hosts import Host, hosts, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(150)]

K, FEATURES, TOL = 4, 3200, 1e-7  # so a block is larger than what Ray sends within a call
SECONDS = 60.0  # the most a run may take


# ------------------------------------------------------------------------------------ the two engines


class Cluster(ABC):
    """Hosts of which some belong to a cluster; the first is where its head and the server are."""

    settings: ClassVar[dict[str, str]]  # of the environment: mostly, after how long a host counts as lost

    def __init__(self, machines: Sequence[Host]) -> None:
        self.front, *self.others = machines
        self.members: list[Host] = []
        self._dropped: dict[Host, int] = {}  # before they joined

    @abstractmethod
    def start(self) -> None:
        """The part that runs on the first host."""

    @abstractmethod
    def command(self, host: Host) -> list[str]:
        """What makes a host join."""

    @property
    def nodes(self) -> list[Host]:
        """Those that the engine counts."""
        return self.members

    @property
    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """What the driver needs to know of the cluster."""

    @abstractmethod
    def has_joined(self, host: Host, process: subprocess.Popen[bytes]) -> bool:
        """Whether what `command` started is done with that."""

    def join(self, *joining: Host) -> None:
        """These hosts become members."""
        started = {host: host.start(self.command(host), self.settings) for host in joining}
        self.members += joining
        self._dropped.update({host: host.dropped for host in joining})
        for host, process in started.items():
            assert eventually(lambda at=host, by=process: self.has_joined(at, by)), host.said(process)

    def lose(self, host: Host) -> None:
        """As in a power cut."""
        host.kill()
        self.members.remove(host)

    def tidy(self, wanted: Sequence[Host]) -> None:
        """Just these are members, none of which was ever cut off, on a wire that works."""
        for host in self.others:
            host.heal()
            host.delay(0.0)
            if host in self.members and (host not in wanted or host.dropped > self._dropped[host]):
                self.lose(host)
        self.join(*[host for host in wanted if host not in self.members])


class OnRay(Cluster):
    settings: ClassVar[dict[str, str]] = {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "6",
        "RAY_enable_worker_prestart": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    light = ("--object-store-memory=100000000", "--disable-usage-stats", "--include-log-monitor=false")

    def start(self) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        address, disk = self.front.address, self.front.disk
        command = [ray, "start", "--head", f"--node-ip-address={address}", "--port=6379", "--num-cpus=0"]
        self.front.run(
            [*command, f"--temp-dir={disk}/ray", "--include-dashboard=false", "--no-monitor", *self.light],
            self.settings,
        )

    def command(self, host: Host) -> list[str]:
        ray = str(Path(sys.executable).with_name("ray"))
        address = f"--address={self.front.address}:6379"
        return [ray, "start", address, f"--node-ip-address={host.address}", "--num-cpus=2", *self.light]

    def has_joined(self, host: Host, process: subprocess.Popen[bytes]) -> bool:
        return process.poll() == 0

    @property
    def plan(self) -> dict[str, Any]:
        return {"engine": "ray", "address": f"{self.front.address}:6379"}

    @property
    def nodes(self) -> list[Host]:
        return [self.front, *self.members]


class OnDask(Cluster):
    settings: ClassVar[dict[str, str]] = {
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "6s",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "8s",
    }

    def start(self) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--no-show"]
        self.front.start([*command, "--host", self.front.address, "--port", "8786"], self.settings)

    def command(self, host: Host) -> list[str]:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.plan["address"]]
        own = ["--host", host.address, "--local-directory", f"{host.disk}"]
        return [*command, *own, "--nthreads", "1", "--nworkers", "1", "--nanny", "--no-dashboard"]

    def has_joined(self, host: Host, process: subprocess.Popen[bytes]) -> bool:
        return "Registered to:" in host.said(process)

    @property
    def plan(self) -> dict[str, Any]:
        return {"engine": "dask", "address": f"tcp://{self.front.address}:8786"}


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


# --------------------------------------------------------------------------------------- the driver

DRIVER = '''
"""A user's program. It finds an eigenspace on the cluster, and stops where the test wants it to."""

import json
import logging
import sys
import time
from pathlib import Path

import numpy as np

import grassia
from grassia.data import NpyRowsLoader

plan = json.loads(Path(sys.argv[1]).read_text())
folder = Path(sys.argv[1]).parent
heard = []


class Ear(logging.Handler):
    def emit(self, record):
        heard.append(record.getMessage())


logging.getLogger("grassia").setLevel(logging.INFO)
logging.getLogger("grassia").addHandler(Ear())


def until(holds):
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def members(addresses):
    return sorted(addresses) == sorted(plan["members"])


moments = {
    "middle": lambda progress: progress.phase == "solving" and progress.passes >= 2.0,
    "loss": lambda progress: any(text.startswith("worker lost") for text in heard),
}


def pause(progress):
    if not any(text.startswith("worker lost") for text in heard):
        time.sleep(plan["slow"])
    for name in plan["pauses"]:
        if moments[name](progress) and not (folder / f"at {name}").exists():
            (folder / f"at {name}").touch()
            until((folder / f"after {name}").exists)


if plan["engine"] == "ray":
    import ray

    ray.init(address=plan["address"], log_to_driver=False)
    until(lambda: members(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
    backend = grassia.backends.Ray(**plan["options"])
else:
    from distributed import Client

    client = Client(plan["address"])
    workers = lambda: client.scheduler_info(n_workers=-1)["workers"].values()
    until(lambda: members(worker["host"] for worker in workers()))
    backend = grassia.backends.Dask(client=client, **plan["options"])

result = grassia.eigenspace(
    [NpyRowsLoader(path) for path in plan["paths"]],
    plan["k"],
    solver=plan["solver"],
    backend=backend,
    tol=plan["tol"],
    rng=0,
    callbacks=pause,
    time_limit=plan["seconds"],
    on_loss=grassia.LossPolicy(**plan["on_loss"]),
)
np.savez(folder / "answer.npz", vectors=result.vectors, values=result.values)
events = [[event.kind, event.component, event.text] for event in result.history.events]
(folder / "told.json").write_text(json.dumps({"status": result.status.name, "events": events}))
'''


class Run:
    """A driver that runs on the first host.

    Parameters
    ----------
    pauses : names of moments at which it stops and waits for the test
    slow : seconds that every turn of its loop takes longer until a worker is lost
    on_loss : the parameters of the `LossPolicy`
    ray, dask : options of the back-end, for the one that is used
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        paths: Sequence[Path],
        solver: str = "nystrom",
        pauses: Sequence[str] = (),
        slow: float = 0.0,
        on_loss: dict[str, Any] | None = None,
        **options: dict[str, Any],
    ) -> None:
        self._front, self._folder = cluster.front, folder
        plan = {
            **cluster.plan,
            "members": [host.address for host in cluster.nodes],
            "paths": [str(path) for path in paths],
            "k": K,
            "tol": TOL,
            "seconds": SECONDS,
            "solver": solver,
            "pauses": list(pauses),
            "slow": slow,
            "on_loss": on_loss or {},
            "options": options.get(cluster.plan["engine"], {}),
        }
        (folder / "driver.py").write_text(DRIVER)
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, str(folder / "driver.py"), str(folder / "plan.json")]
        self._process = self._front.start(command, cluster.settings)

    @contextmanager
    def at(self, moment: str) -> Iterator[None]:
        """While the driver waits at this moment of the run."""
        self._until((self._folder / f"at {moment}").exists, f"to get to the {moment}")
        yield
        (self._folder / f"after {moment}").touch()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self, oracle: Oracle, *kinds: str) -> str:
        """The run ends, certified, with the right answer, and had events of these kinds; their texts."""
        self._until(lambda: self.ended, "to end")
        assert self._process.returncode == 0, self._front.said(self._process)
        told = json.loads((self._folder / "told.json").read_text())
        assert told["status"] == "CONVERGED", told
        answer = np.load(self._folder / "answer.npz")
        assert oracle.sine(answer["vectors"]) <= TOL
        np.testing.assert_allclose(answer["values"], oracle.values, rtol=1e-10)
        assert set(kinds) <= {kind for kind, _, _ in told["events"]}, told
        return "\n".join(text for _, _, text in told["events"])

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        eventually(lambda: holds() or self.ended, SECONDS + 40.0)
        assert holds(), f"waited in vain for the driver {what}:\n{self._front.said(self._process)}"


# --------------------------------------------------------------------------------------- the problem


class Oracle:
    """The leading eigenspace of the covariance of all rows, by eigh, the smaller way round."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        rows = np.concatenate(shards)
        rows -= rows.mean(axis=0)
        values, left = np.linalg.eigh(rows @ rows.T / len(rows))
        self.values = values[::-1][:K]
        self.vectors = np.linalg.qr(rows.T @ left[:, ::-1][:, :K])[0]

    def sine(self, vectors: np.ndarray) -> float:
        return float(np.sin(geometry.principal_angles(vectors, self.vectors).max()))


def shards() -> list[np.ndarray]:
    """Rows for three workers. Each of them has a direction that the others know nothing of."""
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((FEATURES, K)))[0]
    scales = np.array([[4.0, 8.0, 0.0, 0.0], [4.0, 0.0, 7.0, 0.0], [4.0, 0.0, 0.0, 6.0]])
    return [
        (rng.standard_normal((200 + 40 * i, K)) * scale) @ directions.T
        + 0.3 * rng.standard_normal((200 + 40 * i, FEATURES))
        + 0.02 * i
        for i, scale in enumerate(scales)
    ]


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


SPREAD = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}  # one of three actors on each of three hosts


# ------------------------------------------------------------------------------------- the hosts


@pytest.fixture
def machines() -> Iterator[list[Host]]:
    if (reason := why_not()) is not None:
        unavailable(reason)
    with hosts(2) as made:
        yield made


LISTEN = """
import socket
server = socket.create_server(("", 5000))
while True:
    peer, _ = server.accept()
    while word := peer.recv(1):
        peer.sendall(word)
"""
ASK = """
import socket, sys, time
started = time.monotonic()
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))
        break
    except ConnectionRefusedError:  # it does not listen yet
        time.sleep(0.02)
started = time.monotonic()
peer.sendall(b"?")
assert peer.recv(1) == b"?"
print(time.monotonic() - started)
"""


def test_what_is_sent_to_a_distant_host_takes_its_time_both_ways(machines: list[Host]) -> None:
    near, far = machines
    far.start([sys.executable, "-c", LISTEN])
    far.delay(50.0)
    assert float(near.run([sys.executable, "-c", ASK, far.address, "30"])) >= 0.1


def test_a_host_that_is_cut_off_cannot_be_reached_until_it_is_healed(machines: list[Host]) -> None:
    near, far = machines
    far.start([sys.executable, "-c", LISTEN])
    ask = [sys.executable, "-c", ASK, far.address]
    near.run([*ask, "30"])
    far.cut()
    with pytest.raises(AssertionError, match="TimeoutError"):
        near.run([*ask, "0.5"])
    assert far.dropped > 0
    far.heal()
    near.run([*ask, "30"])


def test_hosts_share_neither_loopback_nor_disk(machines: list[Host]) -> None:
    one, other = machines
    one.start([sys.executable, "-c", LISTEN])
    one.run([sys.executable, "-c", ASK, "127.0.0.1", "30"])
    with pytest.raises(AssertionError, match="does not end"):
        other.run([sys.executable, "-c", ASK, "127.0.0.1", "30"], timeout=1.0)
    one.run(["touch", one.disk / "mine"])
    one.run(["ls", one.disk / "mine"])
    with pytest.raises(AssertionError, match="No such file"):
        other.run(["ls", other.disk / "mine"])


def test_nothing_is_left_of_hosts_that_are_gone_also_after_an_error(machines: list[Host]) -> None:
    folder = machines[0].files.parent
    assert machines[0].pids() == []
    with pytest.raises(KeyError), hosts(2) as others:  # noqa: PT012
        # A process that would outlive its parent, as daemons do.
        others[0].run(["sh", "-c", "setsid sleep 600 &"])
        (daemon,) = others[0].pids()
        raise KeyError
    assert eventually(lambda: not Path(f"/proc/{daemon}").exists())
    assert not others[0].files.exists()
    assert folder.exists()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert others[0].name not in left
    assert machines[0].name in left


# ---------------------------------------------------------------------------------------- whole runs


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
