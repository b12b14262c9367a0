"""`grassia reproduce`: the paper's figures and its table, measured here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from grassia._optional import require
from grassia.cli._kept import Stopped


class What(StrEnum):
    """What can be reproduced."""

    fig1 = "fig1"
    fig2 = "fig2"
    table1 = "table1"
    all = "all"
    theory = "theory"


class Data(StrEnum):
    """Which data."""

    real = "real"
    made = "made"


def reproduce(
    what: Annotated[What, typer.Argument(help="fig1, fig2, table1, all of them, or theory.")],
    output: Annotated[Path, typer.Option(help="Folder for what it writes.")] = Path("grassia-reproduction"),
    extended: Annotated[
        bool, typer.Option("--extended", help="Add methods beyond the paper to the same axes.")
    ] = False,
    grid: Annotated[bool, typer.Option("--grid", help="Search the steps of every method anew.")] = False,
    data: Annotated[
        Data,
        typer.Option(help="real: a1a, w1a, CIFAR-10 from GRASSIA_DATA or downloaded; made: small made sets."),
    ] = Data.real,
    quick: Annotated[bool, typer.Option("--quick", help="Two seeds and a tenth of the ranges.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the last line only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Run the experiments of the GRASSIA paper again and compare with its claims.

    Writes figures (.png, .pdf), their numbers (.csv) and a summary (.md). Curves that are finished are kept
    in the folder: after an interruption the same command goes on where it was.

    `theory` is not an experiment of the paper: it draws runs under the envelopes of its theorems, and its
    gradient dominance at random points.

    Examples: `grassia reproduce fig2`, `grassia reproduce all --extended`,
    `grassia reproduce all --data made --quick`.
    """
    from grassia.experiments.reproduce import PARTS, Reproduction

    require("matplotlib", "plot")  # before minutes of work, not after
    logging.getLogger("grassia").setLevel(logging.ERROR)  # nobody wants the best iterate of a curve
    console = Console(highlight=False)
    started = time.perf_counter()
    if what is What.theory:
        from grassia.experiments.theorems import reproduce as draw

        summary = draw(output, quick)
        console.print(f"written: {summary}, with figures and numbers beside it", soft_wrap=True)
        return 0
    job = Reproduction(output, Shown(console, quiet), data.value, quick, extended, grid)
    try:
        summary = job.run(PARTS if what is What.all else (what.value,))
    except KeyboardInterrupt:
        raise Stopped(f"what is finished is in {output}; go on with the same command") from None
    seconds = time.perf_counter() - started
    console.print(f"written: {summary}, with figures and numbers beside it; {seconds:.0f} s", soft_wrap=True)
    return 0


class Shown:
    """Progress: a bar on a terminal, elsewhere a line for each finished piece, or nothing."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console, self._quiet = console, quiet

    def __call__(
        self,
        what: str,
        work: Sequence[Any],
        do: Callable[[Any, Callable[[float], None]], Any],
        name: Callable[[Any], str],
    ) -> None:
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
            console=self._console,
            transient=True,
            disable=self._quiet or not self._console.is_terminal,
        )
        with bar:
            shown = bar.add_task(what, total=len(work), now="")
            for done, piece in enumerate(work):
                started = time.perf_counter()
                bar.update(shown, completed=done, now=name(piece))
                do(piece, partial(_advance, bar, shown, done))
                if not (self._quiet or self._console.is_terminal):
                    seconds = time.perf_counter() - started
                    line = f"{what} {done + 1}/{len(work)}: {name(piece)} ({seconds:.1f} s)"
                    self._console.print(line, markup=False, soft_wrap=True)
            bar.update(shown, completed=len(work))


def _advance(bar: Progress, task: TaskID, done: int, part: float) -> None:
    bar.update(task, completed=done + part)
