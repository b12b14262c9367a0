"""Everything that a report shows, wherever it comes from: a run that goes on, a result, a log."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.certificate import Bound, Certificate
from grassia.errors import InvalidInput
from grassia.report.log import FORMAT, ending, read_event, staleness_counts
from grassia.report.sample import Sample
from grassia.report.watch import Watch
from grassia.result import Event, Result

__all__ = ["Contents", "Scatter", "Section", "from_log", "from_result", "from_watch", "scatter_of"]

MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Scatter:
    """Scores of some rows along the first two components; `labels` is empty where there are none."""

    points: list[tuple[float, float]]
    labels: list[str]
    rows: int


@dataclass(frozen=True, slots=True)
class Section:
    """Something more to show under a heading: HTML, made by `grassia.report.parts` and `figures`."""

    title: str
    html: str


@dataclass(frozen=True)
class Contents:
    """What is known of a run; whatever is not known is None or empty.

    Attributes
    ----------
    status : str or None
        None where the run goes on, or was killed.
    goes_on : bool
        Whether it goes on for sure: then the page looks for news.
    samples : list of Sample
    staleness : list of (int, int)
        Staleness, and how many updates had it.
    answers, busy : list
        Of each worker.
    """

    title: str = "grassia run"
    what: str = ""
    k: int | None = None
    tol: float | None = None
    status: str | None = None
    advice: str = ""
    goes_on: bool = False
    certificate: Certificate | None = None
    values: Sequence[float] = ()
    features: int | None = None
    samples: Sequence[Sample] = ()
    groups: Sequence[Sequence[int]] = ()
    names: Sequence[str] = ()
    notes: Sequence[str] = ()
    staleness: Sequence[Sequence[int]] = ()
    events: Sequence[Event] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    scatter: Scatter | None = None
    more: Sequence[Section] = ()
    started: str | None = None
    written: str = ""

    @property
    def converged(self) -> bool:
        return self.status == "CONVERGED"

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    @property
    def workers(self) -> int:
        """How many there are, as far as is known."""
        return len(self.groups) or int(self.stats.get("workers") or 0)

    def name(self, worker: int) -> str:
        """What to call a worker."""
        return self.names[worker] if len(self.names) == self.workers else f"worker {worker}"

    def note(self, worker: int) -> str:
        """A word on it."""
        held = self.groups[worker] if worker < len(self.groups) else [worker]
        return ", ".join(dict.fromkeys(self.notes[i] for i in held if i < len(self.notes) and self.notes[i]))

    def of_workers(self, name: str) -> list[float]:
        """`answers` or `busy_seconds` of each worker."""
        by_component = self.stats.get(name)
        if by_component and self.groups:
            return [float(sum(by_component[i] for i in group)) for group in self.groups]
        if by_component and self.workers == len(by_component):
            return [float(value) for value in by_component]
        if self.last is not None:
            return [float(v) for v in (self.last.answers if name == "answers" else self.last.busy)]
        return []


def from_watch(watch: Watch, title: str = "grassia run", **more: Any) -> Contents:
    """A run that goes on, or that has ended as `watch.result` says."""
    seen = Contents(
        title=title,
        k=watch.asked.get("k"),
        tol=watch.asked.get("tol"),
        goes_on=watch.result is None,
        samples=list(watch.samples),
        groups=watch.groups,
        events=watch.events,
        stats={"solver": watch.asked.get("solver"), "components": watch.asked.get("components")},
        written=now(),
    )
    progress = watch.progress
    if progress is not None:
        certificate = progress.certificate
        values = () if certificate is None else [float(value) for value in certificate.values]
        counts = staleness_counts(progress.history)
        seen = replace(seen, certificate=certificate, values=values, staleness=counts)
    if watch.result is not None:
        seen = _ended(seen, watch.result)
    return replace(seen, **more)


def from_result(
    result: Result, watch: Watch | None = None, title: str = "grassia run", **more: Any
) -> Contents:
    """A run that has ended. Without a `Watch` its history stands in, as far as it goes."""
    if watch is not None:
        base = from_watch(watch, title)
    else:
        base = Contents(title=title, samples=_from_history(result), written=now())
    ended = _ended(base, result)
    tol = result.stats.get("tol") or (result.certificate.tol if result.certificate else None)
    return replace(ended, k=result.vectors.shape[1], tol=tol, **more)


def _ended(seen: Contents, result: Result) -> Contents:
    end = ending(result)
    return replace(
        seen,
        status=result.status.name,
        advice=result.status.advice,
        goes_on=False,
        certificate=result.certificate,
        values=[float(value) for value in result.values],
        features=int(result.vectors.shape[0]),
        staleness=end["staleness"],
        events=list(result.history.events),
        stats={**seen.stats, **end["stats"]},
    )


def _from_history(result: Result) -> list[Sample]:
    """Samples without what a history does not hold."""
    certificate, tol = result.certificate, result.stats.get("tol")
    gap = math.nan if certificate is None or certificate.gap.value <= 0.0 else certificate.gap.value
    points = list(result.history)[:: max(1, len(result.history) // 600)]
    blank: dict[str, Any] = {"phase": "solving", "answers": [], "busy": [], "states": "", "waited": []}
    blank |= {"staleness": [], "sent": 0, "received": 0, "events": 0, "bound": math.nan}
    made = [
        Sample(
            time=point["time"],
            version=int(point["version"]),
            passes=point["passes"],
            residual=point["residual"],
            target=gap * tol if tol else math.nan,
            estimate=min(1.0, point["residual"] / gap) if gap > 0.0 else math.nan,
            **blank,
        )
        for point in points
    ]
    if made and certificate is not None:
        end = float(result.stats["seconds"])
        made.append(replace(made[-1], time=end, bound=certificate.sin_theta.value))
    return made


def from_log(path: str | Path, title: str | None = None) -> Contents:
    """A run from its log, whole or not."""
    path = Path(path)
    lines = _lines(path)
    head = lines[0]
    try:
        end = next((line for line in lines if "end" in line), None)
        samples = [Sample.from_dict(line) for line in lines[1:] if "phase" in line]
        events = [read_event(event) for line in lines[1:] for event in line.get("happened", ())]
        seen = Contents(
            title=title or f"grassia run {path.stem}",
            k=int(head["k"]),
            tol=float(head["tol"]),
            samples=samples,
            groups=[[int(i) for i in group] for group in head["groups"]],
            events=events,
            stats={"solver": head["solver"], "components": head["components"]},
            started=head.get("started"),
            written=now(),
        )
        if end is None:
            return seen
        return replace(
            seen,
            status=str(end["end"]),
            advice=str(end["advice"]),
            certificate=read_certificate(end["certificate"]),
            values=[math.nan if value is None else float(value) for value in end["values"]],
            features=int(end["features"]),
            staleness=[[int(a), int(b)] for a, b in end["staleness"]],
            stats={**seen.stats, **end["stats"]},
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInput(f"{path} is damaged: {error!r} in one of its lines.") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInput(f"cannot read the log {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no log of a run: it is no text.") from error
    lines = []
    for i, text in enumerate(texts):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            if i == len(texts) - 1 and i:
                break  # the run was killed while it wrote this line
            raise InvalidInput(f"{path}, line {i + 1} is not JSON: {error}.") from error
    if lines and isinstance(lines[0], dict) and "grassia-log" in lines[0]:
        raise InvalidInput(f"{path} is a log for grassia.replay; a report needs what --log writes.")
    good = lines and all(isinstance(line, dict) for line in lines)
    if not good or lines[0].get("grassia-run") != FORMAT:
        raise InvalidInput(f"{path} is no log of a run, of format {FORMAT}, as --log writes it.")
    return lines


def read_certificate(written: Mapping[str, Any] | None) -> Certificate | None:
    """A certificate from JSON."""
    if written is None:
        return None
    values: dict[str, Any] = {}
    for one in fields(Certificate):
        value = written.get(one.name, False if one.name == "claimed" else None)
        if isinstance(value, Mapping):
            value = Bound(**{**value, "value": math.nan if value["value"] is None else value["value"]})
        elif isinstance(value, list):
            value = np.array([math.nan if item is None else item for item in value], dtype=np.float64)
        elif value is None and one.name != "total":
            value = math.nan
        values[one.name] = value
    return Certificate(**values)


def scatter_of(scores: Any, labels: Sequence[Any] | None = None, most: int = MOST_POINTS) -> Scatter | None:
    """Scores (n, k) of rows, or of so many as a page can bear; None for fewer than two columns.

    >>> import numpy as np
    >>> found = scatter_of(np.zeros((5, 3)), labels=list("aabbb"), most=2)
    >>> found.rows, len(found.points), len(found.labels)
    (5, 2, 2)
    """
    array = np.asarray(scores)
    if array.ndim != 2:
        raise InvalidInput(f"`scores` must have two dimensions; got shape {array.shape}.")
    if labels is not None and len(labels) != len(array):
        raise InvalidInput(f"`labels` must be as many as rows; got {len(labels)} for {len(array)} rows.")
    if array.shape[1] < 2 or not len(array):
        return None
    taken = some_rows(len(array), most)
    points = [(float(a), float(b)) for a, b in array[taken, :2]]
    return Scatter(points, [] if labels is None else [str(labels[i]) for i in taken], len(array))


def some_rows(count: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """The numbers of rows to show, in order: all, or a random selection that is always the same.

    Every so many-th row would not do: what repeats along the rows would be shown as something else.

    >>> some_rows(4, 10).tolist(), len(some_rows(10**9, 10))
    ([0, 1, 2, 3], 10)
    """
    if count <= most:
        return np.arange(count, dtype=np.int64)
    chosen = np.random.default_rng(0).choice(count, most, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)


def now() -> str:
    """The time of day, as a person reads it."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z").strip()
