"""What tests ask of back-ends: procedures that workers import by name, who sends them, what they work on."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time

import numpy as np

from grassia import geometry
from grassia.data import MatrixLoader
from grassia.messages import Query, Task

COUNT = "backend_tasks:count"
RAISE = "backend_tasks:fail"
EXIT = "backend_tasks:leave"
FILL = "backend_tasks:fill"
REPEAT = "backend_tasks:repeat"
HOLD = "backend_tasks:hold"


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


# ------------------------------------------------------------------------- who sends and receives


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


# ---------------------------------------------------------------------------------- what they work on


def matrices(n, d=4, seed=0):
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((n, d, d))
    return found + found.transpose(0, 2, 1)


def loaders(n, d=4):
    return [MatrixLoader(A) for A in matrices(n, d)]


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
