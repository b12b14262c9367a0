"""Running `grassia.eigenspace` for a command: watched on a terminal, its errors with the names of files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rich.console import Console

from grassia.api import eigenspace
from grassia.backends import Backend
from grassia.cli._inputs import Source
from grassia.cli._progress import watcher
from grassia.data import Components
from grassia.errors import InvalidInput
from grassia.result import Result
from grassia.run import Callback

__all__ = ["check_numbers", "check_size", "run_watched"]


def run_watched(
    source: Source,
    components: Components,
    k: int,
    engine: Backend,
    quiet: bool,
    callbacks: Iterable[Callback] = (),
    begin: Callable[..., Result] | None = None,
    **options: Any,
) -> Result:
    """`eigenspace`, with a display on stderr if that is a terminal, and with nothing printed if not.

    Checkpoints, and whatever else a run can be told, go through `options`. `begin` takes the place of
    `eigenspace` where a run is gone on with; it is given back-end, callbacks and options by name.
    """
    begin = begin or partial(eigenspace, components, k)
    console = Console(stderr=True, highlight=False)
    names = [f"{'block' if engine.name == 'serial' else 'worker'} {i}" for i in range(len(components))]
    silent = quiet or not console.is_terminal
    with watcher(console, names, [""] * len(names), silent) as display, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status is told in words
        with source.telling():
            return begin(backend=engine, callbacks=[*callbacks, display], **options)


def check_numbers(k: int, tol: float, seed: int | None = None, time_limit: float | None = None) -> None:
    """Refuse numbers that cannot be before any file is opened."""
    if k < 1:
        raise InvalidInput(f"-k must be at least 1; got {k}.")
    if not 0.0 < tol < 1.0:
        raise InvalidInput(f"--tol is a sine and must satisfy 0 < tol < 1; got {tol}.")
    if seed is not None and seed < 0:
        raise InvalidInput(f"--seed must be >= 0; got {seed}.")
    if time_limit is not None and not 0.0 < time_limit < math.inf:
        raise InvalidInput(f"--time-limit must be seconds > 0; got {time_limit}.")


def check_size(k: int, components: Components, source: Source) -> None:
    """There are no more components than rows, or columns."""
    rows, columns = components.n_rows, components.n_features
    if (columns is not None and k > columns) or (rows is not None and k > rows):
        raise InvalidInput(
            f"-k must be at most the number of rows, and of columns; got {k}, and {source.text} has "
            f"{rows} rows x {columns} columns."
        )
