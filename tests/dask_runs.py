"""Back-ends on the Dask cluster of the tests, clusters of one's own, and what their workers are asked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backend_tasks import Post, loaders
from conftest import DASK_WORKERS, dask_client, eventually
from grassia.backends.dask import Dask

WHERE = "dask_runs:where"
STALL = "dask_runs:stall"


# ------------------------------------------------- procedures that the workers import by name


def where(component, cache, query):
    """Which Dask worker this is, and how often it was asked."""
    import distributed

    worker = distributed.get_worker()
    cache["seen"] = cache.get("seen", 0) + 1
    facts = {"name": str(worker.name), "address": worker.address, "pid": os.getpid(), "seen": cache["seen"]}
    return {"told": query.arrays.get("told", np.zeros(0))}, facts


def stall(component, cache, query):
    """Deaf until a file appears: one for the process that is named, another for all others."""
    at_home = os.getpid() == query.options["pid"]
    if at_home:
        Path(str(query.options["begun"])).touch()
    elif query.options.get("others") == "fail":
        raise ArithmeticError("no copy can do it")
    elif query.options.get("others") == "die":
        os._exit(1)
    until = query.options["here" if at_home else "elsewhere"]
    while until and not os.path.exists(str(until)):
        time.sleep(0.01)
    return where(component, cache, query)


# ------------------------------------------------------------------------------------ clusters


def full_client() -> Any:
    """A client of the session's cluster, with all of its workers.

    A cluster gives up a worker that does not come back within 15 s of its death, and has one fewer from then
    on unless it is asked for it again.
    """
    found = dask_client()

    def complete():
        found.cluster.scale(DASK_WORKERS)
        return all_there(found)

    assert eventually(complete)
    return found


def all_there(client):
    """Whether the workers are there again, and known to their nannies: else a death goes unnoticed."""
    nannies = list(client.cluster.workers.values())
    there = len(client.scheduler_info(n_workers=-1)["workers"])
    return there == len(nannies) == DASK_WORKERS and all(one.status.name == "running" for one in nannies)


@contextmanager
def cluster(n: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A small cluster of one's own."""
    import distributed

    made = distributed.LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address=None, **options)
    with made, distributed.Client(made, set_as_default=False) as client:
        yield made, client


@contextmanager
def two_places(client: Any) -> Iterator[Post]:
    """A back-end with two places on a cluster."""
    with Dask(client=client) as backend:
        yield Post(backend, loaders(2))


# ------------------------------------------------------------------------- tasks and messages


def gathered(backend, kind, n=1, seconds=40.0):
    """Messages until n of a kind have come."""
    found = []
    deadline = time.monotonic() + seconds
    while sum(isinstance(one, kind) for one in found) < n:
        found += backend.receive(0.5)
        assert time.monotonic() < deadline, f"only {found} arrived"
    return found


def kinds(messages):
    return [type(message) for message in messages]


def held(post, tmp_path, here="here", elsewhere="elsewhere", begun="begun", component=0, **more):
    """A task that a component's worker is out with, and that worker's process id."""
    pid = post.ask(component, WHERE).scalars["pid"]
    files = {
        "here": str(tmp_path / here) if here else "",
        "elsewhere": str(tmp_path / elsewhere) if elsewhere else "",
    }
    task = post.send(component, STALL, pid=pid, begun=str(tmp_path / begun), **files, **more)
    assert eventually((tmp_path / begun).exists)
    return task, pid
