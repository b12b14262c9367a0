"""The back-ends as fixtures, and the check that a test leaves nothing behind."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from grassia.backends import Backend, Processes, Serial, Simulated, Threads


def serial(workers: int | None = None, **options: Any) -> Backend:
    return Serial(**options)  # it has one worker, whatever is asked


@cache
def ray_cluster() -> Any:
    """One for the session: to start it takes longer than most tests."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    atexit.register(ray.shutdown)
    return ray


DASK_WORKERS = 4


@cache
def dask_client() -> Any:
    """The same."""
    distributed = pytest.importorskip("distributed")
    # Else a worker that was killed twice within 15 s may be closed for good as it comes back.
    importlib.import_module("dask.config").set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    cluster = distributed.LocalCluster(n_workers=DASK_WORKERS, threads_per_worker=1, dashboard_address=None)
    client = distributed.Client(cluster)
    atexit.register(cluster.close)
    atexit.register(client.close)
    return client


def on_ray(**options: Any) -> Backend:
    ray_cluster()
    return importlib.import_module("grassia.backends.ray").Ray(**options)


def on_dask(**options: Any) -> Backend:
    return importlib.import_module("grassia.backends.dask").Dask(client=dask_client(), **options)


#: Every engine that must keep the contract: a factory that takes `workers` and `faults`.
ENGINES: dict[str, Callable[..., Backend]] = {
    "serial": serial,
    "threads": Threads,
    "processes": Processes,
    "simulated": Simulated,
    "ray": on_ray,
    "dask": on_dask,
}
CLUSTERS = ("ray", "dask")


def each_engine() -> list[Any]:
    """Their names, those that need a cluster marked so."""
    return [pytest.param(name, marks=pytest.mark.engines) if name in CLUSTERS else name for name in ENGINES]


@pytest.fixture(params=each_engine())
def engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Backend]]:
    """The factory of one back-end; what it made is closed after the test."""
    made: list[Backend] = []

    def make(workers: int | None = None, **options: Any) -> Backend:
        made.append(ENGINES[request.param](workers=workers, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def unavailable(reason: str) -> None:
    """Skip a test that this machine cannot run; where it was made for it, that is a failure."""
    if os.environ.get("GRASSIA_MUST_RUN"):
        pytest.fail(f"this machine was to run it: {reason}")
    pytest.skip(reason)


def children(of: int | None = None) -> dict[int, str]:
    """Process ids and command lines of the children of a process, zombies included.

    Python's own resource tracker, which lives as long as the process it serves, is left out.
    """
    parent = os.getpid() if of is None else of
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == parent and "resource_tracker" not in command:
            found[int(folder.name)] = command
    return found


def segments(of: int | None = None) -> set[str]:
    """Names of the shared memory segments a process has made and not removed."""
    return {path.name for path in Path("/dev/shm").glob(f"grassia_{of or os.getpid()}_*")}


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether it comes to hold; for other processes, whose end cannot be waited for."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No child process and no shared memory segment outlives the test.

    The workers of a cluster outlive it, and are replaced when a test kills them.
    """
    mark = request.node.get_closest_marker("engines")
    before = set(children())
    yield
    assert mark is not None or set(children()) <= before
    assert not segments()


@pytest.fixture(autouse=True)
def handler_of_ctrl_c() -> Iterator[None]:
    """Every test, and what it starts, has Python's own.

    A library may have set another in the test before, the background jobs of a shell ignore Ctrl-C, and
    those of `nohup` the end of their terminal.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
