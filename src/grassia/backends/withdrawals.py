"""Tasks whose answers are not wanted any more, told to a worker by another thread of its process."""

from __future__ import annotations

import threading

from grassia.interruption import Withdrawn


class Withdrawals:
    """Which tasks of a worker were dropped, and whether it is to stop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._dropped: set[int] = set()
        self._stopped = False

    def drop(self, number: int) -> None:
        """The answer to this task is not wanted any more."""
        with self._changed:
            self._dropped.add(number)
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing is wanted any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def unwanted(self, number: int) -> bool:
        """Whether the answer to a task is wanted no more, or nothing is."""
        return self._stopped or number in self._dropped

    def sleep(self, seconds: float, number: int) -> None:
        """An injected delay of a task; ends when the task is dropped or the worker stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.unwanted(number), seconds)
        if number in self._dropped:
            raise Withdrawn
