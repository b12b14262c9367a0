"""Cutting a task short: whoever runs it says when, whoever computes looks now and then.

A back-end runs a task inside `watching(asked)`. Long computations call what `checker()` gave them between
tiles; it raises `Withdrawn` once `asked()` is true. A computation that never looks is simply not cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Withdrawn", "checker", "watching"]

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
