"""The BLAS libraries of this process. Finding them takes milliseconds, so they are kept."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

from grassia._scipy import loaded

__all__ = ["ServerThreads", "libraries", "numpy_blas", "numpy_threads", "one_thread", "threads"]

# What loads the BLAS that scipy brings beside numpy's. A process that never imports it has no such library.
_OF_SCIPY = "scipy.linalg"


def libraries() -> tuple[Any, ...]:
    """All that are loaded by now, as threadpoolctl sees them."""
    return _found(_OF_SCIPY in sys.modules)


@lru_cache(maxsize=2)
def _found(with_scipy: bool) -> tuple[Any, ...]:
    if with_scipy:
        loaded(_OF_SCIPY)  # by another thread, it may not be yet
    return tuple(lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas")


@lru_cache(maxsize=1)
def numpy_blas() -> Any:
    """The one that numpy uses, or None."""
    of_numpy = [lib for lib in libraries() if "numpy" in str(lib.filepath)]
    return next(iter(of_numpy or libraries()), None)


def numpy_threads() -> int:
    """Threads that numpy's BLAS may take now, one where there is none to ask."""
    return int(getattr(numpy_blas(), "num_threads", None) or 1)


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


class ServerThreads:
    """BLAS on few threads while a run lasts, but for what is done inside `with`.

    The small problems of the server gain little by a second thread. What is worse, the threads of BLAS go on
    waiting busily for some milliseconds after each, on the cores that the products need. Of several runs at
    once in a process the first has its way and the others leave BLAS alone.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _taken: ClassVar[bool] = False

    def __init__(self, count: int = 1) -> None:
        import scipy.linalg  # noqa: F401  (the server will use it: it is too late to limit what comes after)

        self.threads = threads()
        self._count = count
        with self._lock:
            self._mine = [] if self._taken else [(library, library.num_threads) for library in libraries()]
            type(self)._taken = True
        self.__exit__()

    def __enter__(self) -> None:
        for library, before in self._mine:
            library.set_num_threads(before)

    def __exit__(self, *error: object) -> None:
        for library, before in self._mine:
            library.set_num_threads(min(before, self._count))

    def end(self) -> None:
        """As it was before."""
        if self._mine:
            self.__enter__()
            self._mine = []
            with self._lock:
                type(self)._taken = False
