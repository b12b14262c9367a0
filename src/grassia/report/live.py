"""Reports on disk: `write` makes one, `Live` keeps one up to date while a run goes on."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from grassia._checks import require_positive
from grassia.errors import InvalidInput
from grassia.report.contents import Contents, from_result, from_watch, scatter_of
from grassia.report.page import page
from grassia.report.sample import Throttle
from grassia.report.watch import Watch
from grassia.result import Result
from grassia.run import Progress

__all__ = ["Live", "save", "write"]


def write(
    path: str | Path,
    result: Result,
    *,
    watch: Watch | None = None,
    scores: Any = None,
    labels: Sequence[Any] | None = None,
    title: str = "grassia run",
) -> Path:
    """Write a report of a run: one HTML file that needs nothing else.

    Parameters
    ----------
    path : path
        Replaced if it is there.
    result : Result
    watch : Watch, optional
        The callback that looked on. Without it there is no timeline of the workers.
    scores : array_like (n, k), optional
        Of the rows, for a picture along the first two components.
    labels : sequence (n,), optional
        Of the rows.
    title : str

    Returns
    -------
    Path
        Of the file.

    Examples
    --------
    >>> import tempfile, numpy as np, grassia
    >>> X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
    >>> watch = grassia.report.Watch()
    >>> result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, callbacks=watch, rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = grassia.report.write(f"{folder}/report.html", result, watch=watch)
    ...     text = path.read_text(encoding="utf-8")
    >>> "Certified" in text, "http" in text.replace("http-equiv", "")
    (True, False)
    """
    picture = None if scores is None else scatter_of(scores, labels)
    return save(path, from_result(result, watch, title, scatter=picture))


def save(path: str | Path, contents: Contents, refresh: float | None = None) -> Path:
    """Write a page beside its place and move it there: whoever opens it finds a whole one."""
    target = Path(path)
    text = page(contents, refresh)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, target)
    except OSError as error:
        raise InvalidInput(f"cannot write the report {target}: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return target


class Live:
    """A callback that writes a report every few seconds, to be opened in a browser while the run goes on.

    The page says that the run goes on and loads itself anew, until the run has ended. Writing takes a
    hundredth of the time at most: it is done less often where it takes longer.

    Parameters
    ----------
    path : path
        Of the HTML file.
    every : float
        Seconds from one page to the next.
    title : str
    watch : Watch, optional
        One that looks on already; it must stand before this in the list of callbacks.

    Examples
    --------
    >>> import tempfile, numpy as np, grassia
    >>> from pathlib import Path
    >>> X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "report.html")
    ...     with grassia.report.Live(path) as live:
    ...         result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, callbacks=live, rng=0)
    ...     "CONVERGED" in path.read_text(encoding="utf-8")
    True
    """

    def __init__(
        self, path: str | Path, every: float = 5.0, *, title: str = "grassia run", watch: Watch | None = None
    ) -> None:
        require_positive(every, "`every` (in seconds)")
        self.path, self.every, self.title = Path(path), float(every), title
        self._own = watch is None
        self.watch = watch or Watch()
        self._throttle = Throttle(float(every), share=0.01)
        self._broken = False
        if not self.path.parent.is_dir():
            raise InvalidInput(f"cannot write the report {self.path}: there is no folder {self.path.parent}.")
        if not os.access(self.path.parent, os.W_OK):
            raise InvalidInput(f"cannot write the report {self.path}: permission denied.")
        if self.path.is_dir():
            raise InvalidInput(f"the report must be a file; {self.path} is a folder.")

    def __call__(self, progress: Progress) -> None:
        if self._own:
            self.watch(progress)
        if not self._throttle.due():
            return
        self._write(from_watch(self.watch, self.title), max(self.every, 1.0))
        self._throttle.done()

    def run_ended(self, result: Result) -> None:
        """The last page."""
        if self._own:
            self.watch.run_ended(result)
        self._write(from_result(result, self.watch, self.title))

    def _write(self, contents: Contents, refresh: float | None = None) -> None:
        if self._broken:
            return
        try:
            save(self.path, contents, refresh)
        except InvalidInput as error:  # a full disk must not cost the run
            self._broken = True
            warnings.warn(f"{error} The run goes on without it.", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self.watch.result is None and self.watch.samples:
            said = f"The run was ended by an error ({kind.__name__})."
            contents = from_watch(self.watch, self.title, goes_on=False, status="FAILED", advice=said)
            self._write(contents)
