"""The log of a run as JSON lines: a head, a line a second or so, an end; for programs, and for reports.

The head has what was asked, each line is a `Sample` with the events since the one before, the end has the
status and the certificate. Lines are flushed as they are written; the log of a killed run has no end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

import grassia
from grassia._checks import require_positive
from grassia.errors import InvalidInput
from grassia.report.sample import Sample, Throttle, plain_number
from grassia.result import Event, History, Result
from grassia.run import Progress

__all__ = ["FORMAT", "Log", "plain", "staleness_counts"]

FORMAT = 1

#: What of `result.stats` is written down at the end.
STATS = (
    "backend", "clock", "solver", "solver_reason", "seed", "workers", "components", "excluded", "seconds",
    "updates", "passes", "products", "bytes_sent", "bytes_received", "replies_rejected", "replies_ignored",
    "tasks_withdrawn", "tasks_hastened", "answers", "busy_seconds",
)  # fmt: skip


class Log:
    """A callback that writes a structured log, a JSON value a line.

    Parameters
    ----------
    path : path
        Written anew when the run begins; until then, what is there stays.
    every : float
        Seconds from one line to the next. Events are never left out.

    Examples
    --------
    >>> import json, tempfile, numpy as np, grassia
    >>> from pathlib import Path
    >>> X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "run.jsonl")
    ...     with grassia.report.Log(path) as log:
    ...         result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, callbacks=log, rng=0)
    ...     lines = [json.loads(line) for line in path.read_text().splitlines()]
    >>> lines[0]["k"], lines[-1]["end"]
    (2, 'CONVERGED')
    """

    def __init__(self, path: str | Path, every: float = 1.0) -> None:
        require_positive(every, "`every` (in seconds)")
        self.path = Path(path)
        self._throttle = Throttle(float(every))
        self._progress: Progress | None = None
        self._told = 0
        self._broken = False
        try:
            self._file: IO[str] = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"cannot write the log {self.path}: {error.strerror}.") from error

    def __call__(self, progress: Progress) -> None:
        if not self._throttle.due():
            return
        if progress is not self._progress:
            self._head(progress)
        self._line(progress)
        self._throttle.done()

    def _head(self, progress: Progress) -> None:
        if self._progress is None:
            self._file.truncate(0)
        self._progress, self._told = progress, 0
        groups = [where.components for where in progress.workers]
        started = datetime.now(UTC).isoformat(timespec="seconds")
        head = {"grassia-run": FORMAT, "grassia": grassia.__version__, "started": started}
        self._write({**head, **progress.asked, "groups": groups})

    def _line(self, progress: Progress) -> None:
        events = progress.history.events[self._told :]
        self._told += len(events)
        line = Sample.of(progress).to_dict()
        self._write({**line, "happened": [dataclasses.asdict(event) for event in events]})

    def run_ended(self, result: Result) -> None:
        """The last lines."""
        if self._progress is not None:
            self._line(self._progress)
        self._write(ending(result))
        self._file.flush()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._broken:
            return
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:  # a full disk must not cost the run
            self._broken = True
            warnings.warn(f"writing to {self.path} stopped ({error}); the run goes on.", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # what could not be flushed was reported
            self._file.close()
            if self._progress is None and not self.path.stat().st_size:
                self.path.unlink()  # there was no run


def ending(result: Result) -> dict[str, Any]:
    """What is to be known of a run that has ended."""
    known = {name: plain(result.stats[name]) for name in STATS if name in result.stats}
    return {
        "end": result.status.name,
        "advice": result.status.advice,
        "converged": result.converged,
        "values": plain(result.values),
        "features": int(result.vectors.shape[0]),
        "certificate": plain(result.certificate),
        "staleness": staleness_counts(result.history),
        "stats": known,
    }


def staleness_counts(history: History) -> list[list[int]]:
    """How many updates had which staleness (the largest, where several answers came together).

    >>> history = History()
    >>> for stale in (0, 2, 2):
    ...     history.add(time=0.0, version=1, residual=1.0, staleness=stale, arrivals=1, passes=1)
    >>> staleness_counts(history)
    [[0, 1], [2, 2]]
    """
    seen = history["staleness"] if len(history) else np.zeros(0)
    counts = Counter(int(value) for value in seen[np.isfinite(seen)])
    return [[value, counts[value]] for value in sorted(counts)]


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings as JSON has them; what is not finite is None."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain_number(value, 17) if isinstance(value, float) else value


def read_event(written: Mapping[str, Any]) -> Event:
    """An event of a line."""
    component = written["component"]
    return Event(
        float(written["time"]),
        int(written["version"]),
        str(written["kind"]),
        None if component is None else int(component),
        str(written["text"]),
    )
