"""Small clusters that may be hurt: each says where its workers are, loses and gains nodes, and is mended.

A node is a set of processes of this machine with an address of its own. Only processes that were started here
are ever signalled.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from conftest import children, eventually
from grassia.backends import Backend, Processes, Threads

MEND_SECONDS = 60.0


class Cluster(ABC):
    """What chaos is done to. `stopped` are the processes that were stopped for ever."""

    def __init__(self) -> None:
        self.stopped: set[int] = set()

    @abstractmethod
    def backend(self, workers: int | None, faults: Any) -> Backend:
        """A back-end that runs here."""

    @abstractmethod
    def workers(self) -> list[int]:
        """The processes that hold components now."""

    @abstractmethod
    def mend(self) -> None:
        """Whole again, with the nodes of the beginning, and nothing left of the last run."""

    def close(self) -> None:
        self.end_stopped()

    def end_stopped(self) -> None:
        for pid in self.stopped:
            signalled(pid, signal.SIGKILL)
        self.stopped.clear()


class OfNodes(Cluster):
    """One whose nodes may come and go."""

    @abstractmethod
    def lose_node(self) -> str:
        """One node is gone at once, as by a power cut; its address."""

    @abstractmethod
    def add_node(self, address: str | None = None) -> None:
        """A node comes: one that was there before, or one with a new address."""


def signalled(pid: int, number: int) -> bool:
    """Send a signal; False: the process is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


class Local(Cluster):
    """Processes of the run itself, which the back-end restarts."""

    def __init__(self, kind: type[Backend] = Processes) -> None:
        super().__init__()
        self._kind, self._made = kind, None

    def backend(self, workers: int | None, faults: Any) -> Backend:
        self._made = self._kind(workers=workers, faults=faults)
        return self._made

    def workers(self) -> list[int]:
        return [pid for pid in getattr(self._made, "pids", []) if pid > 0]

    def mend(self) -> None:
        self.end_stopped()


class OnRay(OfNodes):
    """A head, which is spared, and one more node; two CPUs each."""

    HOME = "127.0.0.2"

    def __init__(self) -> None:
        super().__init__()
        self.ray = importlib.import_module("ray")
        self.ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            # By default it takes a quarter of a minute until a node is known to be dead.
            _system_config={"health_check_period_ms": 500, "health_check_failure_threshold": 4},
        )
        self._cluster = importlib.import_module("ray.cluster_utils").Cluster(
            initialize_head=False, shutdown_at_exit=False
        )
        self._cluster.head_node = importlib.import_module("ray._private.worker")._global_node
        self._nodes: dict[str, Any] = {}
        self._next = 3
        self.add_node(self.HOME)

    def backend(self, workers: int | None, faults: Any) -> Backend:
        kind = importlib.import_module("grassia.backends.ray").Ray
        # A node that is lost must find room on the other one.
        made: Backend = kind(workers=workers, num_cpus=0.2, scheduling_strategy="SPREAD", faults=faults)
        return made

    def workers(self) -> list[int]:
        found = []
        for node in [self._cluster.head_node, *self._nodes.values()]:
            raylet = node.all_processes["raylet"][0].process.pid
            found += [pid for pid, command in children(raylet).items() if command.startswith("ray::Actor")]
        return found

    def lose_node(self) -> str:
        address, node = next(iter(self._nodes.items()))
        del self._nodes[address]
        self._cluster.remove_node(node, allow_graceful=False)
        return address

    def add_node(self, address: str | None = None) -> None:
        if address is None:
            address, self._next = f"127.0.0.{self._next}", self._next + 1
        self._nodes[address] = self._cluster.add_node(
            node_ip_address=address, num_cpus=2, object_store_memory=80 << 20
        )

    def mend(self) -> None:
        self.end_stopped()
        if not eventually(lambda: not self.workers(), 5.0):
            for pid in self.workers():  # one that was stopped when it should have ended
                signalled(pid, signal.SIGKILL)
        for address in [one for one in self._nodes if one != self.HOME]:
            self._cluster.remove_node(self._nodes.pop(address))
        if self.HOME not in self._nodes:
            self.add_node(self.HOME)
        wanted = {node.node_id for node in (self._cluster.head_node, *self._nodes.values())}
        whole = eventually(lambda: wanted == self._alive() and not self.workers(), MEND_SECONDS)
        assert whole, f"the cluster has the nodes {self._alive()}, and should have {wanted}"

    def _alive(self) -> set[str]:
        return {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}

    def close(self) -> None:
        super().close()
        for node in self._nodes.values():
            self._cluster.remove_node(node, allow_graceful=False)
        self.ray.shutdown()


class OnDask(OfNodes):
    """A scheduler, which is spared, and three nodes: a nanny and its worker each."""

    HOMES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

    def __init__(self) -> None:
        super().__init__()
        self._distributed = importlib.import_module("distributed")
        self._scheduler = self._distributed.LocalCluster(n_workers=0, dashboard_address=None)
        self.client = self._distributed.Client(self._scheduler, set_as_default=False)
        self._folder = tempfile.TemporaryDirectory()
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._next = 5
        for address in self.HOMES:
            self.add_node(address)
        self.mend()

    def backend(self, workers: int | None, faults: Any) -> Backend:
        kind = importlib.import_module("grassia.backends.dask").Dask
        made: Backend = kind(client=self.client, workers=workers, faults=faults, max_restarts=3)
        return made

    def workers(self) -> list[int]:
        return [pid for nanny in self._nodes.values() for pid in children(nanny.pid)]

    def lose_node(self) -> str:
        address = next(iter(self._nodes))
        self._end(address)
        return address

    def _end(self, address: str) -> None:
        nanny = self._nodes.pop(address)
        for pid in [nanny.pid, *children(nanny.pid)]:
            signalled(pid, signal.SIGKILL)
        nanny.wait()

    def add_node(self, address: str | None = None) -> None:
        if address is None:
            address, self._next = f"127.0.0.{self._next}", self._next + 1
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self._scheduler.scheduler_address]
        command += ["--name", address, "--host", address, "--nthreads", "1", "--no-dashboard"]
        command += ["--memory-limit", "0", "--local-directory", self._folder.name]
        nowhere = subprocess.DEVNULL
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self._nodes[address] = subprocess.Popen(
            command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere
        )

    def mend(self) -> None:
        self.end_stopped()
        for address in [one for one in self._nodes if one not in self.HOMES]:
            self._end(address)
        deadline = time.monotonic() + MEND_SECONDS
        while True:
            for address in self.HOMES:
                if address not in self._nodes or self._nodes[address].poll() is not None:
                    self.add_node(address)
            if eventually(self._whole, MEND_SECONDS / 4.0):
                return
            assert time.monotonic() < deadline, f"the cluster has {self._names()} only"
            for address in set(self._nodes) - self._names():  # its worker died before the nanny knew it
                self._end(address)

    def _names(self) -> set[str]:
        return {str(known["name"]) for known in self.client.scheduler_info(n_workers=-1)["workers"].values()}

    def _whole(self) -> bool:
        """Everybody is there and answers, and is known to its nanny."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if {str(known["name"]) for known in workers.values()} != set(self.HOMES):
            return False
        with suppress(OSError, RuntimeError):
            answering = set(self.client.run(os.getpid, on_error="return").values())
            nannies = self.client.run(_nanny_status, nanny=True, on_error="return").values()
            known = answering == set(self.workers()) and len(answering) == len(self.HOMES)
            return known and set(nannies) == {"running"}
        return False

    def close(self) -> None:
        super().close()
        for address in list(self._nodes):
            self._end(address)
        self.client.close()
        self._scheduler.close()
        self._folder.cleanup()


def _nanny_status(dask_worker: Any) -> str:
    return str(dask_worker.status.name)


KINDS = {
    "ray": OnRay,
    "dask": OnDask,
    "processes": Local,
    "threads": lambda: Local(Threads),
}


def of_token(token: str) -> list[int]:
    """The processes with a word in their environment that only one campaign has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if token.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found
