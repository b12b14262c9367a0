"""Record a run, and replay it bit for bit.

The log is a text file of JSON lines: a header with everything that decides a run but the data, then one
line for each batch of messages in the order in which the server took them (for a reply: task, component,
version of the iterate it was computed at, seconds, whether it was damaged), which tasks were asked anew
since the last, and a check value of the iterate. No product is stored: a replay computes them again from the
same components, one after the other, in the recorded order.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from threadpoolctl import ThreadpoolController

from grassia.backends.base import Backend
from grassia.errors import GrassiaError, InvalidInput, ReplayMismatch
from grassia.faults import corrupted
from grassia.messages import Array, Failure, Lost, Message, Reply, Restored, Task, checksum
from grassia.result import Status
from grassia.worker import Loader, Worker

if TYPE_CHECKING:
    from grassia.server import Server

FORMAT = 2


class Recorder:
    """Writes the log of one run; lines are flushed as they are written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._same_turn = False
        self._broken = False
        self._renewed: list[int] = []
        try:
            self._file: IO[str] = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"cannot write the log {self.path}: {error.strerror}.") from error

    def header(self, header: Mapping[str, Any]) -> None:
        """The first line."""
        self._write({"grassia-log": FORMAT, **header})

    def batch(self, now: float, messages: Sequence[Message], server: Server) -> None:
        """What arrived together, and the iterate it led to."""
        self._same_turn = True
        line = {"t": now, "m": [_written(message) for message in messages], "w": fingerprint(server)}
        if self._renewed:
            line["r"], self._renewed = self._renewed, []
        self._write(line)

    def renewals(self, renew: Callable[[Task], Task]) -> Callable[[Task], Task]:
        """The function, watched: which tasks were asked anew is noted with the batch that comes next."""

        def watched(task: Task) -> Task:
            self._renewed.append(task.id)
            return renew(task)

        return watched

    def control(self, what: str, status: Status) -> None:
        """The clock or the user ended the run here."""
        self._write({"c": what, "status": status.name, "same_turn": self._same_turn})

    def turned(self) -> None:
        """New tasks went out: what follows belongs to another turn of the loop."""
        self._same_turn = False

    def end(self, server: Server) -> None:
        """The last line."""
        status = None if server.status is None else server.status.name
        self._write({"end": status, "w": fingerprint(server)})
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._broken:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk must not cost the run
            self._broken = True
            warnings.warn(
                f"recording to {self.path} stopped: {error.strerror}; the run goes on.", stacklevel=2
            )

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be flushed was reported
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def fingerprint(server: Server) -> int:
    """A check value of the iterate's bits; 0 before there is one."""
    if server.state is None:
        return 0
    return zlib.crc32(np.ascontiguousarray(server.solver.subspace(server.state)).view(np.uint8).data)


def _written(message: Message) -> list[Any]:
    if isinstance(message, Reply):
        damaged = checksum(message.arrays) != message.checksum
        about = [message.task, message.component, message.version, message.elapsed, damaged, message.moved]
        return ["reply", *about]
    if isinstance(message, Failure):
        return ["failure", message.task, message.component, repr(message.error), message.final]
    if isinstance(message, Lost):
        return ["lost", list(message.components), message.reason, message.permanent]
    return ["restored", list(message.components)]


class Log:
    """A log read back.

    Attributes
    ----------
    header : dict
        What decided the run.
    lines : list of dict
        The batches, controls and the end, in order.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            text = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise InvalidInput(f"cannot read the log {self.path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{self.path} is not a grassia log: it is no text.") from error
        self.lines: list[dict[str, Any]] = []
        for number, line in enumerate(text, start=1):
            try:
                self.lines.append(json.loads(line))
            except json.JSONDecodeError as error:
                if number == len(text):
                    break  # the run was killed while it wrote this line
                raise InvalidInput(f"{self.path}, line {number} is not JSON: {error}.") from error
        odd = [number for number, line in enumerate(self.lines, start=1) if not isinstance(line, dict)]
        if odd:
            raise InvalidInput(f"{self.path}, line {odd[0]} is not a JSON object: the log is damaged.")
        if not self.lines or self.lines[0].get("grassia-log") != FORMAT:
            raise InvalidInput(f"{self.path} is not a grassia log of format {FORMAT}.")
        self.header = self.lines.pop(0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.lines)


class Replay(Backend):
    """A back-end that computes the recorded answers in the recorded order, in this process."""

    name: ClassVar[str] = "replay"

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._lines = deque(log)
        self._tasks: dict[int, Task] = {}
        self._loaders: list[Loader] = []
        self._workers: dict[int, Worker] = {}
        self._owner: dict[int, int] = {}
        self._clock = 0.0
        self.expected: int | None = None
        self.pending_control: tuple[str, Status] | None = None
        self.finished = False
        last = log.lines[-1] if log.lines else {}
        self.recorded_end: str | None = last.get("end")
        #: The server's, for gradients that were evaluated at return.
        self.renew: Any = None
        #: The server's, which says what such a copy must be told.
        self.introduction: Any = dict

    def start(self, loaders: Sequence[Loader]) -> None:
        self.groups = [list(group) for group in self._log.header["groups"]]
        if sum(map(len, self.groups)) != len(loaders):
            raise InvalidInput(
                f"the log is of a run with {sum(map(len, self.groups))} components; got {len(loaders)}."
            )
        self._loaders = list(loaders)
        self._owner = {i: w for w, group in enumerate(self.groups) for i in group}
        self._workers = {w: self._new_worker(w) for w in range(len(self.groups))}
        # Sums depend on how many threads share them, and the server need not have had as many as the workers.
        self._server_threads = self._log.header.get("server_blas_threads")
        self.blas_threads = self._log.header.get("blas_threads") or self._server_threads
        self._blas = ThreadpoolController()
        self._limits = self._blas.limit(limits=self._server_threads)

    def _new_worker(self, w: int) -> Worker:
        return Worker({i: self._loaders[i] for i in self.groups[w]})

    def send(self, task: Task) -> None:
        self._tasks[task.id] = task

    def receive(self, timeout: float | None = None) -> list[Message]:
        self.expected = None
        self.pending_control = None
        if not self._lines or "end" in self._lines[0]:
            self.finished = True
            return []
        line = self._lines.popleft()
        try:
            return self._turn(line)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InvalidInput(
                f"{self._log.path} is damaged: {json.dumps(line)[:80]} is no line of a log ({error!r})."
            ) from error

    def _turn(self, line: dict[str, Any]) -> list[Message]:
        if "c" in line:
            self.pending_control = (line["c"], Status[line["status"]])
            return []
        if self._lines and self._lines[0].get("same_turn"):
            control = self._lines.popleft()
            self.pending_control = (control["c"], Status[control["status"]])
        self._clock = float(line["t"])
        self.expected = int(line["w"])
        messages: list[Message] = []
        for number in line.get("r", ()):
            if number in self._tasks:
                self._tasks[number] = self.renew(self._tasks[number])
        for written in line["m"]:
            messages.extend(self._again(written))
        return messages

    def _again(self, written: list[Any]) -> Iterable[Message]:
        kind = written[0]
        if kind == "reply":
            _, number, _, _, elapsed, damaged = written[:6]
            task = self._tasks.pop(number, None)
            if task is None:
                return []  # a repeated reply: the server ignored it
            moved = bool(written[6]) if len(written) > 6 else False
            if moved:
                task = self._introduced(task)
            with self._blas.limit(limits=self.blas_threads):
                reply = self._workers[self._owner[task.component]].handle(task)
            reply = dataclasses.replace(reply, elapsed=elapsed, moved=moved)
            return [corrupted(reply) if damaged else reply]
        if kind == "failure":
            self._tasks.pop(written[1], None)
            error = GrassiaError(written[3]) if written[4] is None else InvalidInput(written[4])
            return [Failure(written[1], written[2], error)]
        components = tuple(written[1])
        w = self._owner[components[0]]
        if kind == "lost":
            self._workers[w] = self._new_worker(w)
            return [Lost(components, written[2], written[3])]
        return [Restored(components)]

    def _introduced(self, task: Task) -> Task:
        """The task as a copy of its worker was given it, which had only just opened its components."""
        w = self._owner[task.component]
        self._workers[w] = self._new_worker(w)
        arrays = {**task.query.arrays, **self.introduction()}
        return dataclasses.replace(task, query=dataclasses.replace(task.query, arrays=arrays))

    def close(self) -> None:
        limits = getattr(self, "_limits", None)
        if limits is not None:
            limits.restore_original_limits()
            self._limits = None
        self._workers.clear()

    def now(self) -> float:
        return self._clock


def replay_loop(server: Server, backend: Replay) -> None:
    """Drive a server through a log, checking the iterate after every batch."""
    backend.renew = server.renew
    backend.introduction = server.introduction
    with backend:
        for task in server.due():
            backend.send(task)
        while server.status is None and not backend.finished:
            messages = backend.receive()
            server.tell(messages, backend.now())
            found = fingerprint(server)
            if backend.expected is not None and found != backend.expected:
                version = 0 if server.state is None else server.solver.version(server.state)
                raise ReplayMismatch(
                    f"after {version} updates the iterate differs from the recorded one. The "
                    "components, the library versions and the number of BLAS threads must be those of "
                    "the recorded run."
                )
            if backend.pending_control is not None:
                what, status = backend.pending_control
                if what == "end":
                    server.end(status, sweeps=1)
                else:
                    server.abandon(status)
            for task in server.due():
                backend.send(task)
    if server.status is None:
        server.abandon(Status.INTERRUPTED)  # the recorded run was killed
    elif backend.recorded_end is not None and backend.recorded_end != server.status.name:
        raise ReplayMismatch(
            f"the recorded run ended as {backend.recorded_end}, the replay as {server.status.name}."
        )


def encode_array(array: Array | None) -> dict[str, Any] | None:
    """An array as JSON, without losing a bit."""
    if array is None:
        return None
    data = np.ascontiguousarray(array, dtype="<f8")
    return {"shape": list(data.shape), "f8": base64.b64encode(data.tobytes()).decode("ascii")}


def decode_array(written: Mapping[str, Any] | None) -> Array | None:
    """The inverse of `encode_array`.

    >>> import numpy as np
    >>> decode_array(encode_array(np.array([[0.1, 2.0]])))
    array([[0.1, 2. ]])
    """
    if written is None:
        return None
    flat = np.frombuffer(base64.b64decode(written["f8"]), dtype="<f8")
    return flat.reshape(written["shape"]).astype(np.float64)
