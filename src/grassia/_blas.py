"""The BLAS libraries of this process. Finding them takes milliseconds, so they are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar

import scipy.linalg  # noqa: F401  (scipy brings a BLAS of its own; it must be loaded to be found)
from threadpoolctl import ThreadpoolController

__all__ = ["ServerThreads", "libraries", "numpy_blas", "one_thread", "threads"]


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


class ServerThreads:
    """BLAS on few threads while a run lasts, but for what is done inside `with`.

    The small problems of the server gain little by a second thread. What is worse, the threads of BLAS go on
    waiting busily for some milliseconds after each, on the cores that the products need. Of several runs at
    once in a process the first has its way and the others leave BLAS alone.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _taken: ClassVar[bool] = False

    def __init__(self, count: int = 1) -> None:
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
