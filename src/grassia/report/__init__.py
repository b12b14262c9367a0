"""Looking on while a run goes on, and reports of it.

`Show` shows a run in a notebook or on a terminal, `Watch` remembers samples, `Log` writes them as JSON lines,
`Announce` tells `logging`, `Live` keeps an HTML page up to date; all are callbacks for `grassia.eigenspace`,
`grassia.resume` and the estimators. `write` makes a page of a result.
"""

from __future__ import annotations

from grassia.report.contents import Contents, from_log, from_result, from_watch
from grassia.report.live import Live, save, write
from grassia.report.log import Log
from grassia.report.sample import Sample
from grassia.report.show import Show
from grassia.report.watch import Announce, Watch
from grassia.report.words import in_words

__all__ = [
    "Announce",
    "Contents",
    "Live",
    "Log",
    "Sample",
    "Show",
    "Watch",
    "from_log",
    "from_result",
    "from_watch",
    "in_words",
    "save",
    "write",
]
