"""Seconds to a certified answer on local processes, four workers, one of them ten times slower.

All methods in one run on the same rows, medians over repeats, and the ratio to synchronous block Krylov,
as it comes and at nystrom's query width. The rows lie in a file, of which each worker opens its part; that,
the start of the workers and the certificate are included. With `--kept` the workers run already.

Four workers that are all busy, as those of an asynchronous method are, slow each other down where they share
two cores. With `--pace` every task takes so many seconds more, without a core (and `--slow` times as many for
the slow worker): closer to workers on machines of their own.

    python benchmarks/wall_clock.py [--rows 100000] [--features 3000] [--k 3] [--slow 10] [--pace 0] [--kept]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import grassia
from grassia.backends import Processes
from grassia.geometry import projection_distance
from grassia.solvers import Krylov, Nystrom


def rows(m: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows with the leading eigenvalues of CIFAR-10 (in thousands) and a slowly decaying rest."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    X *= np.sqrt(np.r_[3640.0, 1400.0, 826.0, 462.0 / np.arange(1, d - 2) ** 0.8])
    return X


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=3_000)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--slow", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of each task on another machine")
    parser.add_argument("--kept", action="store_true", help="start the workers once, before the clock")
    options = parser.parse_args()
    with ExitStack() as stack:
        compare(options, Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rows.npy", stack)


def compare(options: argparse.Namespace, file: Path, stack: ExitStack) -> None:
    k = options.k
    X = rows(options.rows, options.features)
    np.save(file, X)
    X -= X.mean(axis=0)
    leading = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :k]
    del X
    compared: dict[str, Any] = {
        "krylov, synchronous": Krylov(),
        "krylov, nystrom's width": Krylov(width=max(k, 8)),
        "nystrom": Nystrom(),
        "nystrom, width k": Nystrom(width=k),
    }
    shards = grassia.from_rows(file, n_components=4)
    faults = [f"slow:0:{options.slow:g}x"]
    if options.pace > 0.0:
        faults = [f"delay:*:{options.pace}", f"delay:0:{(options.slow - 1.0) * options.pace}"]
    print(
        f"{options.rows} x {options.features}, k = {k}, tol {options.tol:g}, 4 processes, "
        f"one {options.slow:g}x slow, pace {options.pace:g} s, medians of {options.repeats}"
        f"{', workers kept' if options.kept else ''}"
    )
    kept = None
    if options.kept:
        kept = stack.enter_context(Processes(workers=4, faults=faults))
        grassia.eigenspace(shards, k, backend=kept, rng=0)
    print(f"{'':26s} seconds  ratio  sweeps  straggler's answers  largest angle (sine)")
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    shown = {}
    for repeat in range(options.repeats):  # in turn, so that a noisy spell hits all of them
        for name, solver in compared.items():
            begin = time.perf_counter()
            result = grassia.eigenspace(
                shards,
                k,
                solver=solver,
                backend=kept or Processes(workers=4, faults=faults),
                tol=options.tol,
                rng=repeat,
            )
            seconds[name].append(time.perf_counter() - begin)
            assert result.converged, result.status
            assert result.certificate is not None
            sine = projection_distance(result.vectors, leading)
            shown[name] = (result.certificate.sweeps, result.stats["answers"][0], sine)
    base = statistics.median(seconds["krylov, synchronous"])
    for name, times in seconds.items():
        middle = statistics.median(times)
        sweeps, answers, sine = shown[name]
        print(f"{name:26s} {middle:7.2f}  {middle / base:5.2f}  {sweeps:6d}  {answers:19d}  {sine:.1e}")


if __name__ == "__main__":
    main()
