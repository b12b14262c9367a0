"""Tasks that fail on a copy of their worker while the worker itself is silent."""

from __future__ import annotations

from collections.abc import Iterable

from grassia.messages import Failure, Message

__all__ = ["Setbacks"]

ENOUGH = 2  # so often on a copy, and it is not for where the copy was


class Setbacks:
    """Counts, for one worker, how often in a row the same task was of no good to copies of it.

    Once may be for where the copy was. If no copy can do it, and the worker says nothing, nobody would ever
    answer. Then it is taken for the task's own doing: the failure is passed on, or the worker given up, and
    the server asks anew or ends the run, as if the worker had failed or died of it.

    Examples
    --------
    >>> failure, counted = Failure(7, 0, RuntimeError("no luck")), Setbacks()
    >>> counted.failed([failure]), counted.failed([failure]), counted.died(8)
    (False, True, False)
    """

    def __init__(self) -> None:
        self._task, self._count = -1, 0

    def failed(self, messages: Iterable[Message]) -> bool:
        """A copy has failed; whether that is to be passed on."""
        failures = [message for message in messages if isinstance(message, Failure)]
        if not failures or any(failure.final is not None for failure in failures):
            return False  # the data may not be there where the copy is
        return self.died(failures[0].task)

    def died(self, number: int) -> bool:
        """A copy has died of a task; whether the worker had better be given up."""
        self._count = self._count + 1 if number == self._task else 1
        self._task = number
        return self._count >= ENOUGH
