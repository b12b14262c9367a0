"""Clusters of Ray and Dask over hosts that may be lost and join again: see hosts.py."""

from __future__ import annotations

import secrets
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from conftest import eventually
from hosts import Host


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
