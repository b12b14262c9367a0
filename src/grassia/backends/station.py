"""A worker where an engine runs it: Ray and Dask move the messages, this answers them."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import cloudpickle

from grassia._blas import libraries
from grassia.backends.child import portable
from grassia.backends.withdrawals import Withdrawals
from grassia.errors import InvalidComponent
from grassia.faults import Crash, Injector, perform
from grassia.interruption import Withdrawn, watching
from grassia.messages import Array, Failure, Message, Task
from grassia.worker import Loader, Worker, find_procedure


def pack(loaders: Mapping[int, Loader], injector: Injector) -> bytes:
    """What a station is made from, wherever that is."""
    try:
        packed = cloudpickle.dumps((dict(loaders), injector))
        # Modules that lie beside the program are found by its path, where a worker sees the same files.
        return bytes(pickle.dumps(([os.path.abspath(path) for path in sys.path], packed)))
    except Exception as error:
        raise InvalidComponent(
            f"it cannot be pickled, so it cannot travel to another machine ({error}); "
            "use backend='threads', or a loader that opens it in the worker",
            next((i for i, loader in loaders.items() if not _packs(loader)), None),
        ) from error


def _packs(loader: Loader) -> bool:
    try:
        cloudpickle.dumps(loader)
    except Exception:
        return False
    return True


def bare(task: Task) -> Task:
    """The task without its arrays, which an engine moves in its own way."""
    return replace(task, query=replace(task.query, arrays={}))


class Station:
    """The components of one worker.

    Parameters
    ----------
    luggage : bytes
        From `pack`.
    blas_threads : int
        The limit for the process it lives in.
    """

    def __init__(self, luggage: bytes, blas_threads: int) -> None:
        self._withdrawals = Withdrawals()
        self._broken: Exception | None = None
        self._worker, self._injector = Worker({}), Injector()
        try:
            paths, packed = pickle.loads(luggage)
            sys.path += [path for path in paths if path not in sys.path and os.path.exists(path)]
            loaders, self._injector = pickle.loads(packed)
            self._worker = Worker(loaders)
        except Exception as error:  # for example a module that is not installed there
            self._broken = error
        self._blas_threads = blas_threads
        self._limited: set[str] = set()
        self._limit_blas()

    def _limit_blas(self) -> None:
        """Those that are loaded by now, each once: the limit is that of all workers in this process."""
        for library in libraries():
            if library.filepath not in self._limited:
                self._limited.add(library.filepath)
                library.set_num_threads(self._blas_threads)

    def answer(self, task: Task, arrays: Mapping[str, Array]) -> list[Message]:
        """The messages that answer a task; none if it was withdrawn."""
        number = task.id
        task = replace(task, query=replace(task.query, arrays=arrays))
        try:
            if self._broken is not None:
                raise self._broken
            find_procedure(task.query.procedure)  # it may be what loads another BLAS
            self._limit_blas()
            pause = partial(self._withdrawals.sleep, number=number)
            with watching(partial(self._withdrawals.unwanted, number)):
                pause(0.0)  # it may have been dropped before it began
                return perform(self._worker, task, self._injector.plan(task.component, task.ordinal), pause)
        except Withdrawn:
            return []
        except Crash:
            os.kill(os.getpid(), signal.SIGKILL)
            raise
        except Exception as error:
            return [Failure(number, task.component, portable(error))]

    def drop(self, number: int) -> None:
        """Called by another thread: the answer to this task is not wanted any more."""
        self._withdrawals.drop(number)

    def stop(self) -> None:
        """The same for all of them."""
        self._withdrawals.stop()
