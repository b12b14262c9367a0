"""The back-ends as fixtures, and the check that a test leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grassia.backends import Backend, Processes, Serial, Simulated, Threads


def serial(workers: int | None = None, **options: Any) -> Backend:
    return Serial(**options)  # it has one worker, whatever is asked


#: Every engine that must keep the contract: a factory that takes `workers` and `faults`.
ENGINES: dict[str, Callable[..., Backend]] = {
    "serial": serial,
    "threads": Threads,
    "processes": Processes,
    "simulated": Simulated,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., Backend]]:
    """The factory of one back-end; what it made is closed after the test."""
    made: list[Backend] = []

    def make(workers: int | None = None, **options: Any) -> Backend:
        made.append(ENGINES[request.param](workers=workers, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


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
def nothing_is_left() -> Iterator[None]:
    """No child process and no shared memory segment outlives the test."""
    before = set(children())
    yield
    assert set(children()) <= before
    assert not segments()
