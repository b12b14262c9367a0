"""What `solver="auto"` takes for dense rows of several shapes, and the alternatives: seconds of whole runs.

In one place: `covariance` and `krylov`. On two local processes, which are started once: `covariance` and
`nystrom`. Medians over the repeats, the solvers taken in turn; the last column is the time of what auto takes
over that of the quickest.

    python benchmarks/auto.py [--shapes 60000x784 20000x2500] [--k 4 10 50] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import numpy as np

import grassia
from grassia.auto import choose
from grassia.backends import Backend, Processes, Serial

SHAPES = ("200000x300", "60000x784", "30000x1500", "20000x2500")


def rows(m: int, d: int) -> np.ndarray:
    """Made rows in float32 whose spectrum decays slowly."""
    scales = (np.arange(1, d + 1) ** -0.7).astype(np.float32)
    return np.random.default_rng(0).standard_normal((m, d), dtype=np.float32) * scales


def row(X: np.ndarray, k: int, solvers: tuple[str, ...], backend: Backend, parts: int, repeats: int) -> str:
    components = grassia.from_rows(X, n_components=parts)
    seconds: dict[str, list[float]] = {name: [] for name in solvers}
    for _ in range(repeats):
        for name in solvers:
            began = time.perf_counter()
            result = grassia.eigenspace(components, k, solver=name, backend=backend, rng=0)
            seconds[name].append(time.perf_counter() - began)
            assert result.converged, (name, result.status)
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    taken = choose(components, k, concurrent=parts > 1)[0].name
    columns = "  ".join(f"{name} {value:6.2f} s" for name, value in middle.items())
    return f"{columns}   auto: {taken:10s} {middle[taken] / min(middle.values()):5.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="ROWSxFEATURES")
    parser.add_argument("--k", nargs="+", type=int, default=[4, 10, 50])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    with Processes(2) as processes:
        for shape in chosen.shapes:
            m, d = (int(size) for size in shape.split("x"))
            X = rows(m, d)
            for k in chosen.k:
                places = (("one place", ("covariance", "krylov"), Serial(), 1),)
                places += (("processes", ("covariance", "nystrom"), processes, 2),)
                for where, solvers, backend, parts in places:
                    found = row(X, k, solvers, backend, parts, chosen.repeats)
                    print(f"{shape:12s} k = {k:<4d} {where}  {found}", flush=True)


if __name__ == "__main__":
    main()
