"""Cutting a task short: whoever runs it says when, whoever computes looks now and then.

A back-end runs a task inside `watching(asked)`. Long computations call what `checker()` gave them between
tiles; it raises `Withdrawn` once `asked()` is true. A computation that never looks is simply not cut short.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts", "Withdrawn", "checker", "watching"]

_local = threading.local()


class Withdrawn(BaseException):
    """The answer to the task under way is no longer wanted. No error: nothing but a back-end may catch it."""


@contextmanager
def watching(asked: Callable[[], bool]) -> Iterator[None]:
    """Inside `with`, what this thread computes can be cut short when `asked()` is true."""
    before = getattr(_local, "asked", None)
    _local.asked = asked
    try:
        yield
    finally:
        _local.asked = before


def checker() -> Callable[[], None]:
    """A function to call between the parts of a long computation, from whatever thread does them.

    >>> with watching(lambda: True):
    ...     check = checker()
    >>> check()
    Traceback (most recent call last):
    ...
    grassia.interruption.Withdrawn
    """
    asked = getattr(_local, "asked", None)

    def check() -> None:
        if asked is not None and asked():
            raise Withdrawn

    return check


class Interrupts:
    """Ctrl-C during a run: not in the middle of a step, and never lost.

    Between `with self` and its end, a first Ctrl-C inside a `held` block waits until the end of the block; a
    second one does not. An exception that was swallowed, as Python does in a finaliser, is raised again at
    the end of the next block. Of use in the main thread, to which signals come; elsewhere it does nothing.

    Attributes
    ----------
    broken : bool
        Whether a block was left in the middle, by an error or a second Ctrl-C.

    Examples
    --------
    >>> interrupts = Interrupts()
    >>> with interrupts, interrupts.held():
    ...     pass
    >>> interrupts.broken
    False
    """

    def __init__(self) -> None:
        self.broken = False
        self._before: Any = None
        self._held = self._asked = False
        self._number = int(signal.SIGINT)

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # one that was set aside, or is not Python's, is left alone
                self._before = handler
                signal.signal(signal.SIGINT, self._take)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        waits = self._held and not self._asked
        self._asked, self._number = True, number
        if not waits:
            self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._before(number, frame)
        self._asked = False  # the user's own handler saw to it, and the run goes on

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block that a first Ctrl-C does not end."""
        self._held = True
        try:
            yield
        except BaseException:
            self.broken = True
            raise
        finally:
            self._held = False
        if self._asked:
            self._pass_on(self._number, None)
