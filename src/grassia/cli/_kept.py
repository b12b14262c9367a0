"""What a run leaves behind beside its model: a report, kept up to date, a log, and what Ctrl-C must not cost.

Every command that takes long can be interrupted and gone on with. Until it is done a run is kept in a folder
of its own beside what it writes, a comparison in a file; both are gone afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from grassia.checkpoint import Checkpoint
from grassia.cli._compare import Outcome
from grassia.errors import InvalidInput
from grassia.report import Live, Log, Watch, from_result, save
from grassia.report.contents import Scatter
from grassia.result import Result, Status
from grassia.run import Callback

__all__ = ["Journal", "Looking", "Stopped", "interruptible", "report_path"]


class Stopped(Exception):
    """The user has interrupted a run; the text says how to go on."""


_SAME_COMMAND = "go on with the same command and --resume"
_NOTHING_YET = "there was nothing to keep yet: give the same command again"


@contextmanager
def interruptible(folder: str | Path, resume: bool) -> Iterator[Checkpoint]:
    """A checkpoint that is gone once all is done, and stays when it is interrupted.

    Parameters
    ----------
    folder : path
        Where to keep the run.
    resume : bool
        Go on from what is there; else that is removed.
    """
    plan = Checkpoint(folder, resume=resume, sketch=False)  # which would cost a read of the data
    if not resume:
        plan.remove()
    try:
        yield plan
    except KeyboardInterrupt:
        raise Stopped(_SAME_COMMAND if plan.there else _NOTHING_YET) from None
    else:
        plan.remove()
    finally:
        if not plan.there:
            plan.remove()


class Journal:
    """The rows of a comparison that are done, in a file, as long as there are others to come.

    Parameters
    ----------
    path : path
        The file.
    asked : dict
        What is compared; a file with another question is refused.
    resume : bool
        Take what is in the file.
    """

    def __init__(self, path: str | Path, asked: dict[str, Any], resume: bool) -> None:
        self._path = Path(path)
        self._asked = json.loads(json.dumps(asked))
        self.done: list[Outcome] = []
        if resume and self._path.exists():
            self.done = self._read()

    def _read(self) -> list[Outcome]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            asked, done = kept["asked"], [Outcome.from_dict(one) for one in kept["done"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{self._path} is damaged ({error}); remove it and start again.") from error
        differing = [name for name in self._asked if asked.get(name) != self._asked[name]]
        if differing:
            raise InvalidInput(
                f"{self._path} is of another comparison ({', '.join(differing)}); give the same options, or "
                "remove it."
            )
        return done

    def found(self, solver: str, workers: int) -> Outcome | None:
        """What came of that run before the interruption."""
        return next((one for one in self.done if (one.asked, one.workers) == (solver, workers)), None)

    def _stopped(self) -> Stopped:
        how = f"{len(self.done)} done runs are kept in {self._path}; {_SAME_COMMAND}"
        return Stopped(how if self.done else _NOTHING_YET)

    def add(self, outcome: Outcome) -> None:
        """One more is done; or it was interrupted, and this says how to go on."""
        if outcome.status == Status.INTERRUPTED.name:
            raise self._stopped()
        self.done.append(outcome)
        kept = {"asked": self._asked, "done": [one.to_dict() for one in self.done]}
        with suppress(OSError):  # the folder may be read-only, and they are shown in the end
            self._path.write_text(json.dumps(kept) + "\n", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:  # all are done
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        elif issubclass(kind, KeyboardInterrupt):
            raise self._stopped() from None


class Looking:
    """The callbacks behind `--report` and `--log`; closed at the end of a `with` block.

    Parameters
    ----------
    report, log : str or None
        Where to write; None: not at all.
    overwrite : bool
        Whether a file that is there may be replaced though grassia did not write it.
    """

    def __init__(self, report: str | None, log: str | None, overwrite: bool, title: str) -> None:
        self._report = None if report is None else report_path(report, overwrite)
        self._title = title
        self._watch = Watch()
        self._stack = ExitStack()
        self._live = self._log = None
        if self._report is not None:
            self._live = Live(self._report, title=title, watch=self._watch)
        if log is not None:
            _refuse_foreign(Path(log), overwrite, "--log", '{"grassia-run"')
            self._log = Log(log)

    @property
    def wanted(self) -> bool:
        """Whether there is to be a report."""
        return self._live is not None

    @property
    def callbacks(self) -> list[Callback]:
        """For the run, in this order."""
        found: list[Any] = [] if self._live is None else [self._watch, self._live]
        return found if self._log is None else [*found, self._log]

    def finish(self, result: Result, what: str, scatter: Scatter | None, **more: Any) -> None:
        """The report once more, with all that is known in the end."""
        if self._report is not None:
            contents = from_result(result, self._watch, self._title, what=what, scatter=scatter, **more)
            save(self._report, contents)

    def __enter__(self) -> Self:
        for one in (self._log, self._live):
            if one is not None:
                self._stack.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def report_path(text: str, overwrite: bool = False) -> Path:
    """Where a report may be written; not over anything that is no report."""
    path = Path(text)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"a report must be a file .html; got {text}.")
    _refuse_foreign(path, overwrite, "--report", 'content="grassia')
    return path


def _refuse_foreign(path: Path, overwrite: bool, option: str, sign: str) -> None:
    if path.is_dir():
        raise InvalidInput(f"{option} must be a file; {path} is a folder.")
    if overwrite or not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(1000)
    if beginning and sign not in beginning:
        raise InvalidInput(f"{path} exists, and grassia did not write it; give another name, or --overwrite.")
