"""Back-ends on the Ray cluster of the tests, and what their actors are asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from backend_tasks import Post
from conftest import ray_cluster
from grassia.backends import get

HOLD = "ray_runs:hold_first"
KILL = "ray_runs:end"
WHERE = "ray_runs:count_and_place"


# Procedures that the workers import by name.


def hold_first(component, cache, query):
    """Whoever makes the file first is held until another file appears; the others are not."""
    folder = str(query.options["folder"])
    try:
        os.close(os.open(os.path.join(folder, f"held-{query.options['once']}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if query.options.get("others") == "fail":
            raise ArithmeticError("no copy can do it") from None
        if query.options.get("others") == "die":
            os._exit(1)
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


@contextmanager
def engines() -> Iterator[Callable[..., Any]]:
    """Back-ends on the cluster of the session, which has four CPUs on one node."""
    made: list[Any] = []

    def make(workers: int | None = None, **options: Any) -> Any:
        ray_cluster()
        made.append(get("ray", workers=workers, **options))
        return made[-1]

    try:
        yield make
    finally:
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


def rows(seed=0, m=90, d=6):
    return np.random.default_rng(seed).standard_normal((m, d)) * np.r_[5.0, 4.0, np.ones(d - 2)] + 1.0


def leading(X, k=2):
    return np.linalg.eigh(np.cov(X.T))[1][:, -k:]
