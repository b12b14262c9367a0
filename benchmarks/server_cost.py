"""What does the server's work for one arrival cost, and does it grow with the number of components?

GRASSIA: the real server, driven by hand, with real workers on tiny shards; only `tell` and `ask` are timed.
Memory is what the server allocates between its making and its 200th update.

nystrom: the real solver's `ask` and `tell`, once every model is full, so that each arrival is followed by a
compression. Next to it the first version one would write, which rebuilds everything at each arrival; both
start from the same models and are asked to agree.

The sizes take turns within one run, so that a busy machine disturbs them alike.

    python benchmarks/server_cost.py [--only grassia nystrom] [--features 3072] [-k 3] [--sizes 10 100 1000]
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc

import numpy as np

import grassia
from grassia.geometry import orthonormalize, projection_distance, random_point
from grassia.messages import Query
from grassia.server import SOLVING, Server
from grassia.solvers import Grassia, Nystrom
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.surrogate import ordered_basis
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


class Rows:
    """n components `X_i' X_i / rows`: a few directions in common, many of their own, and noise."""

    def __init__(self, n: int, d: int, rows: int) -> None:
        self.n, self.d = n, d
        rng = np.random.default_rng(0)
        common = rng.standard_normal((60, d)) * 0.97 ** np.arange(60)[:, None]
        self.X = np.empty((n, rows, d))
        for i in range(n):
            own = rng.standard_normal((10, d)) * 0.5 ** np.arange(10)[:, None]
            self.X[i] = rng.standard_normal((rows, 70)) @ np.vstack([common, own])
            self.X[i] += 0.3 * rng.standard_normal((rows, d))

    def apply(self, i: int, V: np.ndarray) -> np.ndarray:
        return np.asarray(self.X[i].T @ (self.X[i] @ V) / self.X.shape[1])


class Naive:
    """nystrom as one would first write it: all `Z_i`, all of `Z'Z` and all its eigenpairs at each arrival."""

    def __init__(self, bench: NystromBench) -> None:
        surrogate = bench.state.surrogate
        self.k, self.E = bench.k, bench.state.E
        self.width, _, self.kept = bench.solver.sizes(surrogate.n, surrogate.d, bench.k)
        self.weights = surrogate.weights
        self.Q = [surrogate.basis(i).copy() for i in range(surrogate.n)]
        self.Y = [surrogate.products(i).copy() for i in range(surrogate.n)]

    def ask(self, i: int) -> np.ndarray:
        return np.asarray(orthonormalize(self.E[:, : self.width], against=self.Q[i], tol=1e-14))

    def tell(self, i: int, V: np.ndarray, P: np.ndarray) -> None:
        self.Q[i], self.Y[i] = np.hstack([self.Q[i], V]), np.hstack([self.Y[i], P])
        factors = [self.factor(j) for j in range(len(self.Q))]
        Z = np.hstack([Y @ F for Y, F in zip(self.Y, factors, strict=True)])
        values, U = np.linalg.eigh(Z.T @ Z)
        m = self.E.shape[1]
        self.E = Z @ (U[:, ::-1][:, :m] / np.sqrt(values[::-1][:m]))
        q = self.Q[i].shape[1]
        if q > self.kept:
            seen = factors[i] @ (factors[i].T @ (self.Y[i].T @ self.E))
            latest = np.eye(q)[:, ::-1]
            wanted = [seen[:, : self.k], latest[:, : self.width], seen[:, self.k :], latest[:, self.width :]]
            R = ordered_basis(np.hstack(wanted))[:, : self.kept]
            self.Q[i], self.Y[i] = self.Q[i] @ R, self.Y[i] @ R

    def factor(self, i: int) -> np.ndarray:
        H = self.Q[i].T @ self.Y[i]
        s, U = np.linalg.eigh((H + H.T) / 2.0)
        keep = s > 1e-14 * s[-1]
        return np.asarray(np.sqrt(self.weights[i]) * U[:, keep] / np.sqrt(s[keep]))


class NystromBench:
    """The solver on n components that answer in turn, once its models are full."""

    def __init__(self, solver: Nystrom, n: int, d: int, k: int) -> None:
        self.solver, self.k = solver, k
        width, self.followed, self.kept = solver.sizes(n, d, k)
        self.rows = Rows(n, d, 2 * (self.kept + width))
        problem = Problem(n, d, k, np.full(n, 1.0 / n), None, True)
        self.state = solver.init(problem, random_point(d, k, np.random.default_rng(1)), None)
        self.next = 0
        for _ in range(self.kept // width + 2):
            asked = [(i, solver.ask(self.state, i)) for i in range(n)]
            arrivals = [self.answer(i, query) for i, query in asked if query is not None]
            self.state = solver.tell(self.state, arrivals)

    def answer(self, i: int, query: Query) -> Arrival:
        product = self.rows.apply(i, query.arrays["block"])
        return Arrival(i, self.state.version, 0, {"product": product}, {})

    def turn(self, naive: Naive | None) -> tuple[float, float, float]:
        """Seconds of `ask`, of `ask` and `tell`, and of the naive version; each about its own iterate."""
        query, asked = None, 0.0
        while query is None:  # the solver may leave a component alone for a while
            i, self.next = self.next, (self.next + 1) % self.rows.n
            started = time.perf_counter()
            query = self.solver.ask(self.state, i)
            asked += time.perf_counter() - started
        arrival = self.answer(i, query)
        started = time.perf_counter()
        self.state = self.solver.tell(self.state, [arrival])
        ours = asked + time.perf_counter() - started
        if naive is None:
            return asked, ours, float("nan")
        started = time.perf_counter()
        V = naive.ask(i)
        theirs = time.perf_counter() - started
        product = self.rows.apply(i, V)
        started = time.perf_counter()
        naive.tell(i, V, product)
        return asked, ours, theirs + time.perf_counter() - started


def nystrom(d: int, k: int, sizes: list[int], repeats: int) -> None:
    """The table of the nystrom solver; the naive version only where it takes no minutes."""
    narrow = Nystrom(width=k, extra=k, memory=3 * k, budget=16e9)
    cases = [(f"width {k}, memory {3 * k}", narrow, n) for n in sizes]
    cases.append(("defaults", Nystrom(budget=16e9), 20))
    print(f"\nnystrom, d={d}, k={k}, one arrival and one compression; ms, least and median; the lower ratio")
    print(
        f"{'solver':>20} {'n':>5} {'columns':>8} {'ask':>13} {'ask + tell':>15} {'naive':>15}"
        f" {'ratio':>6} {'apart':>8}"
    )
    for name, solver, n in cases:
        bench = NystromBench(solver, n, d, k)
        naive = Naive(bench) if n * bench.kept <= 2000 else None
        times = np.array([bench.turn(naive) for _ in range(repeats)])
        least, middle = 1e3 * times.min(axis=0), 1e3 * np.median(times, axis=0)
        shown = [f"{a:7.2f} {b:7.2f}" for a, b in zip(least, middle, strict=True)]
        apart = projection_distance(bench.state.W, orthonormalize(naive.E[:, :k])) if naive else float("nan")
        ratio = min(middle[2] / middle[1], least[2] / least[1])
        print(f"{name:>20} {n:>5} {n * bench.kept:>8} {shown[0][1:]:>13} {shown[1]} {shown[2]}", end="")
        print(f" {ratio:>6.1f} {apart:>8.0e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=int, default=3072)
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--only", nargs="+", choices=["grassia", "nystrom"], default=["grassia", "nystrom"])
    parser.add_argument("--repeats", type=int, default=30, help="arrivals timed for nystrom")
    options = parser.parse_args()
    if "grassia" in options.only:
        of_grassia(options)
    if "nystrom" in options.only:
        nystrom(options.features, options.k, options.sizes, options.repeats)


def of_grassia(options: argparse.Namespace) -> None:
    """The table of GRASSIA, with a fixed and a chosen step size."""
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
