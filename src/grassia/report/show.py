"""`Show`: where a run is, in a notebook or on a terminal, while it goes on."""

from __future__ import annotations

import secrets
import shutil
import sys
from typing import Any

from grassia._checks import require_positive
from grassia.report.sample import Throttle
from grassia.report.watch import Watch
from grassia.result import Result
from grassia.run import Progress

__all__ = ["Show"]

_FREE = 0.1  # seconds: the first drawing loads what draws, and tells nothing of the others


class Show(Watch):
    """A `Watch` that shows itself while the run goes on.

    In a notebook it is one output of the cell, kept up to date: a line about the run, and a table of its
    workers. On a terminal it is one line of stderr, drawn over. Elsewhere nothing is shown. Showing takes a
    hundredth of the time at most: it is done less often where it takes longer.

    Parameters
    ----------
    every : float
        Seconds from one drawing to the next.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> X = np.random.default_rng(0).standard_normal((300, 8)) * np.arange(8, 0, -1)
    >>> show = grassia.report.Show()
    >>> result = grassia.eigenspace(grassia.from_rows(X, n_components=4), 2, callbacks=show, rng=0)
    >>> show.samples[-1].bound <= 1e-6
    True
    """

    def __init__(self, every: float = 0.5) -> None:
        super().__init__()
        require_positive(every, "`every` (in seconds)")
        self._pace = Throttle(float(every), share=0.01, free=_FREE)
        self._place = ""

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        if self.samples and self._pace.due():
            self._draw()
            self._pace.done()

    def _begin(self, progress: Progress) -> None:
        super()._begin(progress)
        self._place = ""  # another run has an output of its own
        self._pace.soon()

    def run_ended(self, result: Result) -> None:
        """The last drawing, which stays."""
        super().run_ended(result)
        self._draw()

    def _draw(self) -> None:
        if _in_a_notebook():
            self._update()
        elif sys.stderr is not None and sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            end = "" if self.result is None else "\n"
            print(f"\r\x1b[K{str(self)[:width]}", end=end, file=sys.stderr, flush=True)

    def _update(self) -> None:
        """Publish what there is, in the place of what was there before."""
        # Not rich's own display: it needs widgets, and whoever lacks those sees nothing.
        display: Any = sys.modules["IPython.display"].display
        new, self._place = not self._place, self._place or secrets.token_hex(8)
        bundle = {"text/plain": str(self), "text/html": self._repr_html_()}
        display(bundle, raw=True, display_id=self._place, update=not new)


def _in_a_notebook() -> bool:
    """Whether this interpreter is a Jupyter kernel. What is not loaded is not the shell we run in."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
