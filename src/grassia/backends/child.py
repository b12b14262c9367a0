"""The main program of a worker process: `python -m grassia.backends.child FD`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from grassia.backends import shared
from grassia.backends.drop import Drop, Ears, Luggage, Rest
from grassia.faults import Crash, Injector, perform
from grassia.interruption import Withdrawn, watching
from grassia.messages import Failure, Reply, Task
from grassia.worker import Worker


def main() -> None:
    """Serve until the server says stop or is gone."""
    shared.leave_tracking_to_the_owner()
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    code = 0
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the server is gone
    except BaseException:
        traceback.print_exc()
        code = 1
    # Skip the destructors: views of shared segments are still about, and that is fine.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(connection: Connection[Any, Any]) -> None:
    """Open the luggage, then answer one task after another, until there is other luggage."""
    worker, injector, broken = unpacked(connection.recv_bytes())
    slots, ears = Slots(), Ears(connection)
    while not ears.stopped:
        message = Rest() if ears.resting else connection.recv()
        if message is None:
            return
        if isinstance(message, Rest):
            worker, broken, ears.resting = Worker({}), None, False
            slots.keep()
            shared.forget()
            connection.send(message)
            continue
        if isinstance(message, Luggage):
            sys.path += [path for path in message.paths if path not in sys.path]
            with suppress(OSError):  # it is gone: paths in it lead nowhere in any case
                os.chdir(message.folder)
            worker, injector, broken = unpacked(message.packed)
            continue
        if isinstance(message, Drop):
            continue  # it came too late: the answer is on its way
        task, inbox, layout, outbox = message
        ears.begin(task.id)
        try:
            if broken is not None:
                raise broken
            slots.keep(inbox, outbox)
            with watching(ears.unwanted):
                answer(connection, worker, injector, task, slots, inbox, layout, outbox, ears)
        except Withdrawn:
            connection.send(("dropped", task.id))
        except Crash:
            os.kill(os.getpid(), signal.SIGKILL)
        except Exception as error:
            connection.send(("failure", Failure(task.id, task.component, portable(error))))


def unpacked(luggage: bytes) -> tuple[Worker, Injector, Exception | None]:
    """The worker, what is done to its tasks, and why there is none."""
    try:
        loaders, injector = pickle.loads(luggage)
        return Worker(loaders), injector, None
    except Exception as error:
        return Worker({}), Injector(), error


def answer(
    connection: Connection[Any, Any],
    worker: Worker,
    injector: Injector,
    task: Task,
    slots: Slots,
    inbox: str,
    layout: shared.Layout,
    outbox: str,
    ears: Ears,
) -> None:
    """Run one task and post the reply through the outbox, or by the pipe if that is too small."""
    arrays = shared.unpack(layout, slots[inbox]) if layout else {}
    task = replace(task, query=replace(task.query, arrays=arrays))
    messages = perform(worker, task, injector.plan(task.component, task.ordinal), ears.sleep)
    replies = [message for message in messages if isinstance(message, Reply)]
    results = dict(replies[0].arrays)
    bare = [replace(reply, arrays={}) for reply in replies]
    if outbox and shared.packed_size(results) <= slots[outbox].size:
        where = shared.pack(results, slots[outbox])
        connection.send(("reply", bare, where, None))
    else:
        connection.send(("reply", bare, [], results))


class Slots:
    """The segments this worker is attached to, the current ones only."""

    def __init__(self) -> None:
        self._open: dict[str, SharedMemory] = {}

    def keep(self, *names: str) -> None:
        """Detach from segments that were replaced, attach to new ones."""
        for name in set(self._open) - set(names):
            self._open.pop(name).close()
        for name in set(names) - set(self._open) - {""}:
            self._open[name] = shared.attach(name)

    def __getitem__(self, name: str) -> SharedMemory:
        return self._open[name]


def portable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
