"""What a run leaves behind beside its model: a report, kept up to date, and a log; and how it is stopped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from grassia.errors import InvalidInput
from grassia.report import Live, Log, Watch, from_result, save
from grassia.report.contents import Scatter
from grassia.result import Result
from grassia.run import Callback

__all__ = ["Looking", "Stopped", "report_path"]


class Stopped(Exception):
    """The user has interrupted a run; the text says how to go on."""


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
