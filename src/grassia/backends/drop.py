"""How a worker process hears, in the middle of a task, that the answer is not wanted any more."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from grassia.interruption import Withdrawn

LOOK_SECONDS = 0.001  # to look costs some microseconds, a tile may take not much longer


@dataclass(frozen=True, slots=True)
class Drop:
    """What the server sends: forget the task of this number."""

    task: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The run is over: drop what there is, say the same when that is done, and wait for other luggage."""


@dataclass(frozen=True, slots=True)
class Luggage:
    """The components of another run, pickled; where the server finds its modules, and where it is itself."""

    paths: list[str]
    folder: str
    packed: bytes


class Ears:
    """The worker's end of the pipe while it is busy.

    Nothing but a `Drop`, `Rest` or the order to stop (None) comes while a task is under way; several threads
    may listen at once.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._task: int | None = None
        self._dropped = self.stopped = self.resting = False
        self._looked = 0.0

    def begin(self, task: int) -> None:
        """From now on listen for this task."""
        self._task, self._dropped = task, False

    def unwanted(self) -> bool:
        """Whether the task under way is not wanted any more."""
        if self._dropped or time.monotonic() - self._looked < LOOK_SECONDS:
            return self._dropped
        with self._lock:
            self._looked = time.monotonic()
            while not self._dropped and self._connection.poll():
                self._hear(self._connection.recv())
        return self._dropped

    def sleep(self, seconds: float) -> None:
        """An injected delay, ended by a drop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0 and not self._dropped:
            with self._lock:
                if self._connection.poll(left):
                    self._hear(self._connection.recv())
        if self._dropped:
            raise Withdrawn

    def _hear(self, message: Any) -> None:
        if message is None:
            self.stopped = self._dropped = True
        elif isinstance(message, Rest):
            self.resting = self._dropped = True
        elif isinstance(message, Drop) and message.task == self._task:
            self._dropped = True
