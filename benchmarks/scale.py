"""A thousand workers on the virtual clock: heavy-tailed service times, some of them failing.

Two scenes. `crashes`: every hundredth task kills its worker, which is back after a while with its data opened
anew. `gone`: every hundredth worker dies for good after two tasks, and `on_loss="exclude"` goes on without
it. Service times are Pareto(1.5): their variance is infinite. The answer is compared with that of dense eigh
for the rows that are in the problem.

The table shows time on the virtual clock, passes, what the server itself took (real seconds, all of them and
for each arrival), the traffic, and the largest staleness that was seen.

    python benchmarks/scale.py [--workers 1000] [--features 300] [--solvers nystrom power krylov grassia]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import numpy as np

import grassia
from grassia.backends import Simulated
from grassia.backends.service import Pareto
from grassia.geometry import projection_distance
from grassia.messages import Message


class Timed(Simulated):
    """The virtual cluster, with the real seconds that its products take: the rest is the server's."""

    spent = 0.0

    def receive(self, timeout: float | None = None) -> list[Message]:
        began = time.perf_counter()
        try:
            return super().receive(timeout)
        finally:
            self.spent += time.perf_counter() - began


def rows(workers: int, each: int, features: int, seed: int) -> list[np.ndarray]:
    """Shards of one data set, unequal in size."""
    rng = np.random.default_rng(seed)
    scales = np.r_[np.linspace(6.0, 3.0, 3), 1.0 / np.sqrt(np.arange(1.0, features - 2))]
    turn = np.linalg.qr(rng.standard_normal((features, features)))[0]
    sizes = rng.integers(each // 2, 2 * each, workers)
    return [(rng.standard_normal((size, features)) * scales) @ turn.T + 2.0 for size in sizes]


def oracle(shards: Sequence[np.ndarray], k: int) -> np.ndarray:
    X = np.vstack(shards)
    return np.linalg.eigh(np.cov(X.T, bias=True))[1][:, -k:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=40, help="of a worker, about")
    parser.add_argument("--features", type=int, default=300)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--solvers", nargs="*", default=["nystrom", "power", "krylov"])
    parser.add_argument("--scenes", nargs="*", default=["crashes", "gone"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=20_000.0, help="virtual")
    chosen = parser.parse_args()

    shards = rows(chosen.workers, chosen.rows, chosen.features, chosen.seed)
    dying = np.random.default_rng(chosen.seed).choice(chosen.workers, chosen.workers // 100, replace=False)
    print(f"{chosen.workers} workers, {sum(map(len, shards))} x {chosen.features}, k = {chosen.k}")
    print(
        f"{'scene':8} {'solver':8} {'status':10} {'sine':>8} {'left out':>8} {'lost':>5} {'time':>7} "
        f"{'passes':>7} {'updates':>8} {'server s':>8} {'ms each':>7} {'MB out':>7} {'MB in':>7} {'stale':>6}"
    )
    for scene in chosen.scenes:
        for solver in chosen.solvers:
            gone = scene == "gone"
            # A task that is taken back may be the one that would have killed its worker: the next one does.
            tasks = ",".join(map(str, range(2, 50)))
            faults = [f"crash:{','.join(map(str, dying))}@{tasks}"] if gone else ["crash:*@1%"]
            backend = Timed(
                Pareto(1.5),
                seed=chosen.seed,
                restart_time=20.0,
                max_restarts=0 if gone else None,
                faults=faults,
            )
            began = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = grassia.eigenspace(
                    grassia.from_rows(shards),
                    chosen.k,
                    solver=solver,
                    backend=backend,
                    tol=chosen.tol,
                    on_loss="exclude" if gone else "reload",
                    time_limit=chosen.time_limit,
                    rng=chosen.seed,
                )
            server = time.perf_counter() - began - backend.spent
            stats = result.stats
            left = [shard for i, shard in enumerate(shards) if i not in stats["excluded"]]
            sine = projection_distance(result.vectors, oracle(left, chosen.k))
            arrivals = sum(stats["answers"])
            print(
                f"{scene:8} {solver:8} {result.status.name:10} {sine:8.1e} {len(stats['excluded']):8d} "
                f"{result.history.count('worker lost'):5d} {stats['seconds']:7.0f} {stats['passes']:7.1f} "
                f"{stats['updates']:8d} {server:8.1f} {1e3 * server / arrivals:7.2f} "
                f"{stats['bytes_sent'] / 1e6:7.0f} {stats['bytes_received'] / 1e6:7.0f} "
                f"{np.nanmax(result.history['staleness']):6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
