"""The BLAS libraries of this process. Finding them takes milliseconds, so they are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import scipy.linalg  # noqa: F401  (scipy brings a BLAS of its own; it must be loaded to be found)
from threadpoolctl import ThreadpoolController

__all__ = ["libraries", "numpy_blas", "one_thread", "threads"]


@lru_cache(maxsize=1)
def libraries() -> tuple[Any, ...]:
    """All of them, as threadpoolctl sees them."""
    return tuple(lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas")


@lru_cache(maxsize=1)
def numpy_blas() -> Any:
    """The one that numpy uses, or None."""
    of_numpy = [lib for lib in libraries() if "numpy" in str(lib.filepath)]
    return next(iter(of_numpy or libraries()), None)


def threads() -> int | None:
    """Threads that BLAS takes now; None where there is none to ask."""
    return max((lib.num_threads for lib in libraries()), default=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS on one thread inside `with`, so that threads of our own can each call it.

    The limit is that of the whole process: only the main thread may set it, or two could undo each other.
    """
    assert threading.current_thread() is threading.main_thread()
    before = [(library, library.num_threads) for library in libraries()]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, count in before:
            library.set_num_threads(count)
