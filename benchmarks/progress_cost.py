"""What it costs to look on: runs with and without the display, the log and the live report, in mixed order.

The display draws on a pseudo-terminal that is read and thrown away. Each kind runs as often as the others, in
mixed order, so that whatever else the machine does falls on all of them alike; `control` is nothing once
more. Two things are printed: how long the callbacks took of the time of their run, measured inside of it, and
the ratios of the median and of the least times of runs, which are noisy on a machine that has other things to
do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

import grassia
from grassia import backends
from grassia.cli._progress import Bars
from grassia.report import Live, Log, Watch

KINDS = ("nothing", "control", "display", "log", "report", "all")


class Timed:
    """A callback, and the seconds it has taken."""

    def __init__(self, inner: object) -> None:
        self.inner, self.seconds = inner, 0.0

    def __call__(self, progress: grassia.Progress) -> None:
        began = time.perf_counter()
        self.inner(progress)
        self.seconds += time.perf_counter() - began


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[Console]:
    """A terminal that somebody reads."""
    ours, theirs = pty.openpty()
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.read(ours, 65536)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as file:
        yield Console(file=file, force_terminal=True, width=columns, height=40)
        file.write("end")
        stop.set()


def one(
    kind: str, components: grassia.Components, k: int, passes: float, engine: backends.Backend, width: int
):
    """Seconds of a run, and of its callbacks."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        callbacks = []
        if kind in ("report", "all"):
            watch = Watch()
            live = stack.enter_context(Live(folder / "report.html", watch=watch))
            callbacks += [Timed(watch), Timed(live)]
        if kind in ("log", "all"):
            callbacks.append(Timed(stack.enter_context(Log(folder / "run.jsonl"))))
        if kind in ("display", "all"):
            console = stack.enter_context(terminal(width))
            names = [f"worker {i}" for i in range(len(components))]
            callbacks.append(Timed(stack.enter_context(Bars(console, names, [""] * len(names)))))
        began = time.perf_counter()
        grassia.eigenspace(
            components, k, solver="grassia", backend=engine, tol=1e-13, max_passes=passes, rng=0,
            callbacks=callbacks,
        )  # fmt: skip
        return time.perf_counter() - began, sum(callback.seconds for callback in callbacks)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=200)
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--passes", type=float, default=150.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--columns", type=int, default=200)
    parser.add_argument("--backend", choices=["serial", "threads"], default="serial")
    args = parser.parse_args()
    X = np.random.default_rng(0).standard_normal((args.rows, args.features))
    components = grassia.from_rows(X, n_components=args.workers)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    share: dict[str, list[float]] = {kind: [] for kind in KINDS}
    warnings.simplefilter("ignore")  # the passes are meant to run out
    shuffle = random.Random(0)
    for _ in range(args.repeats):
        for kind in shuffle.sample(KINDS, len(KINDS)):
            engine = backends.get(args.backend)
            took, looking = one(kind, components, args.k, args.passes, engine, args.columns)
            seconds[kind].append(took)
            share[kind].append(looking / took)
    median_of = {kind: statistics.median(times) for kind, times in seconds.items()}
    print(
        f"{args.rows} x {args.features}, {args.workers} components, {args.backend}, {args.repeats} runs each"
    )
    print(f"{'callbacks':<10} {'median s':>9} {'ratio':>7} {'of minima':>10} {'their share':>12}")
    for kind in KINDS:
        ratio, least = median_of[kind] / median_of["nothing"], min(seconds[kind]) / min(seconds["nothing"])
        print(
            f"{kind:<10} {median_of[kind]:>9.3f} {ratio:>7.3f} {least:>10.3f} "
            f"{statistics.median(share[kind]):>11.2%}"
        )


if __name__ == "__main__":
    main()
