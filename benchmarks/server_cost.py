"""Does the server's cost per single-arrival update grow with the number of components?

Drives the real server by hand, with real workers on tiny shards, and times only `tell` and `ask`. The
sizes take turns within one run, so that a busy machine disturbs them alike. Memory is what the server
allocates between its making and its 200th update.

    python benchmarks/server_cost.py [--features 3072] [-k 3] [--sizes 10 100 1000]
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc

import numpy as np

import grassia
from grassia.server import SOLVING, Server
from grassia.solvers import Grassia
from grassia.worker import Worker


class Bench:
    """One server with n components, each on a worker of its own, answered in turn."""

    def __init__(self, n: int, d: int, k: int, step: float | str) -> None:
        rng = np.random.default_rng(0)
        shards = [rng.standard_normal((3, d)) for _ in range(n)]
        loaders = grassia.from_rows(shards, center=False)
        self.workers = [Worker({i: loader}) for i, loader in enumerate(loaders)]
        groups = [[i] for i in range(n)]
        solver = Grassia(step=step)
        self.server = Server(solver, k, groups, tol=1e-14, rng=np.random.default_rng(0))
        self.queue = list(self.server.ask())
        while self.server.phase != SOLVING or not self.server.solver.version(self.server.state):
            self.turn()
        for _ in range(n):  # out of step with the common start
            self.turn()

    def turn(self) -> float:
        task = self.queue.pop(0)
        reply = self.workers[task.component].handle(task)
        started = time.perf_counter()
        self.server.tell([reply])
        tasks = self.server.ask()
        seconds = time.perf_counter() - started
        self.queue.extend(tasks)
        return seconds


def memory(n: int, d: int, k: int, step: float | str) -> float:
    """Peak bytes of the server alone over 200 updates, in blocks of d x k doubles."""
    bench = Bench(n, d, k, step)
    peak = 0
    for _ in range(200):
        task = bench.queue.pop(0)
        reply = bench.workers[task.component].handle(task)
        tracemalloc.start()
        bench.server.tell([reply])
        bench.queue.extend(bench.server.ask())
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return peak / (8.0 * d * k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=3072)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--updates", type=int, default=3000)
    options = parser.parse_args()
    for step in (1e-6, "auto"):
        benches = {n: Bench(n, options.features, options.k, step) for n in options.sizes}
        times: dict[int, list[float]] = {n: [] for n in options.sizes}
        for _ in range(options.updates):
            for n, bench in benches.items():
                times[n].append(bench.turn())
        base = statistics.median(times[options.sizes[0]])
        print(f"step={step}, d={options.features}, k={options.k}, one arrival an update")
        print(f"{'n':>6} {'median us':>10} {'ratio':>7} {'memory of an update, d x k blocks':>36}")
        for n in options.sizes:
            median = statistics.median(times[n])
            blocks = memory(n, options.features, options.k, step)
            print(f"{n:>6} {1e6 * median:>10.1f} {median / base:>7.2f} {blocks:>36.1f}")


if __name__ == "__main__":
    main()
