"""Ray and Dask on one machine, four workers: what they cost, and one worker that is ten times slower.

First table, equal workers: seconds of whole runs (opening and certificate included; the clusters themselves
run already, and the rows lie in a file) on each engine, and the ratio to the processes back-end. How many
passes and certificates an asynchronous method takes depends on who happens to answer first, so it is also
run for the same number of passes everywhere (`--passes`), which is what tells engines apart. The second one
is the same with `--product` seconds of sleep for each product, as on four machines that have nothing else to
do; where there are fewer cores than workers, products of the first table share them, and what an engine
computes for itself counts for more.

Third table, one worker ten times slower, each on a machine of its own: nystrom and synchronous block Krylov
on each engine. Four workers that share the cores of one machine slow each other down when all of them are
busy, as those of an asynchronous method are. So here a task is a sleep (of `--pace` seconds, ten times as
long for the slow worker) and a small product.

Fourth table, one worker ten times slower at what it computes on this machine (followed by nine times as
long a sleep), beside Dask's own `svd_compressed` on the same persisted rows, with the fewest power iterations
that reach the accuracy asked for. There the executor of one Dask worker does the same with every task.

Processes and actors are started once, before the clock, and kept from run to run, as those of Dask are in any
case. With `--fresh` each run starts its own, and its clock runs from there.

All methods take turns, so that a noisy spell hits each of them, with a short pause before each: the workers
of the run before it still put their data away when that is over. Medians over the repeats.

    python benchmarks/engines.py [--rows 60000] [--k 3] [--repeats 5] [--engines ray] [--fresh]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import grassia
from grassia.backends import Backend, Processes
from grassia.geometry import projection_distance
from grassia.solvers import Krylov, Nystrom

WORKERS = 4
SLOW = 10.0
PAUSE = 0.2
OUT_OF_REACH = 1e-15  # a tolerance that no run comes to: it ends after its passes


def rows(m: int, d: int, seed: int = 0) -> np.ndarray:
    """Rows with the leading eigenvalues of CIFAR-10 (in thousands) and a slowly decaying rest."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    X *= np.sqrt(np.r_[3640.0, 1400.0, 826.0, 462.0 / np.arange(1, d - 2) ** 0.8])
    return X - X.mean(axis=0)  # `svd_compressed` knows nothing of centring


class Sluggish(ThreadPoolExecutor):
    """An executor that takes `factor` times as long."""

    factor = SLOW

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        def slowly(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                time.sleep((self.factor - 1.0) * (time.perf_counter() - began))

        return super().submit(slowly, *args, **options)


class Clusters:
    """What runs before the clock does; with `kept` workers, too."""

    def __init__(self, engines: list[str], kept: ExitStack | None) -> None:
        self._kept, self._known = kept, dict[str, Backend]()
        self.client: Any = None
        if "dask" in engines:
            import distributed

            cluster = distributed.LocalCluster(
                n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
            )
            self.client = distributed.Client(cluster)
        if "ray" in engines:
            import ray

            # Room for the actors of each table, which are kept beside one another.
            ray.init(
                num_cpus=4 * WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
            )

    def backend(self, engine: str, **options: Any) -> Backend:
        if self._kept is None:
            return self._made(engine, **options)
        key = f"{engine} {options}"
        if key not in self._known:
            self._known[key] = self._kept.enter_context(self._made(engine, **options))
            rows = np.random.default_rng(0).standard_normal((100 * WORKERS, 10))
            grassia.eigenspace(grassia.from_rows(rows, WORKERS), 1, solver="krylov", backend=self._known[key])
        return self._known[key]

    def _made(self, engine: str, **options: Any) -> Backend:
        if engine == "processes":
            return Processes(workers=WORKERS, **options)
        if engine == "dask":
            options["client"] = self.client
        module = importlib.import_module(f"grassia.backends.{engine}")
        made: Backend = getattr(module, engine.capitalize())(**options)
        return made

    def persist(self, X: np.ndarray) -> Any:
        import dask.array as da
        import distributed

        persisted = da.from_array(X, chunks=(len(X) // WORKERS, -1)).persist()
        distributed.wait(persisted)
        return persisted

    @contextmanager
    def one_slow(self) -> Iterator[None]:
        """One of the Dask workers is slow, in whatever the scheduler has it do."""
        which = sorted(self.client.scheduler_info()["workers"])[-1]
        self.client.run(slow_down, workers=[which])
        try:
            yield
        finally:
            self.client.run(as_before, workers=[which])


def slow_down(dask_worker: Any = None) -> None:
    """Make this Dask worker a straggler."""
    dask_worker.quick = dask_worker.executors["default"]
    dask_worker.executors["default"] = Sluggish(1)


def as_before(dask_worker: Any = None) -> None:
    """And no longer."""
    dask_worker.executors["default"].shutdown(wait=False)
    dask_worker.executors["default"] = dask_worker.quick


class Bench:
    """Medians of what was measured in turn."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.notes: dict[str, str] = {}

    def time(self, name: str, call: Callable[[], str]) -> None:
        time.sleep(PAUSE)
        began = time.perf_counter()
        self.notes[name] = call()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def ratio(self, name: str, to: str) -> float:
        """Median of the ratios of what was measured in the same turn."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def show(self, title: str, reference: dict[str, str]) -> None:
        print(f"\n{title}")
        for name, found in self.seconds.items():
            to = reference.get(name)
            ratio = ""
            if to is not None:
                ratio = f"{self.ratio(name, to):5.2f} of {to}"
            print(f"  {name:28} {statistics.median(found):7.2f} s  {ratio:38} {self.notes[name]}", flush=True)


def solve(shards: Any, solver: Any, backend: Backend, leading: np.ndarray, **options: Any) -> str:
    result = grassia.eigenspace(shards, leading.shape[1], solver=solver, backend=backend, rng=0, **options)
    busy, answers = sum(result.stats["busy_seconds"]), sum(result.stats["answers"])
    sine = projection_distance(result.vectors, leading)
    return (
        f"{result.status.name}, sine {sine:.1e}, {result.stats['passes']:.1f} passes, "
        f"{1e3 * busy / answers:.0f} ms an answer"
    )


def enough_iterations(X: Any, k: int, leading: np.ndarray, wanted: float) -> int:
    """The fewest power iterations by which `svd_compressed` is as accurate; found outside the timing."""
    for iterations in range(20):
        if compressed(X, k, iterations, leading)[0] <= wanted:
            return iterations
    raise SystemExit("svd_compressed does not come to this accuracy")


def compressed(X: Any, k: int, iterations: int, leading: np.ndarray) -> tuple[float, str]:
    import dask.array as da

    found = da.linalg.svd_compressed(X, k, n_power_iter=iterations, seed=0)[2].compute()
    sine = float(projection_distance(np.linalg.qr(found.T)[0], leading))
    return sine, f"sine {sine:.1e}, {iterations} power iterations"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=2_000)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engines", nargs="*", default=["ray", "dask"])
    parser.add_argument("--tables", nargs="*", default=["overhead", "paced", "straggler", "machines"])
    parser.add_argument(
        "--solvers", nargs="*", default=["krylov", "power", "grassia"], help="of the first table"
    )
    parser.add_argument(
        "--passes",
        type=int,
        default=45,
        help="of asynchronous methods, in the first tables; 0: none of these",
    )
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of a task in the third table")
    parser.add_argument("--product", type=float, default=0.005, help="and in the second")
    parser.add_argument("--fresh", action="store_true", help="start the workers in each run")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    with ExitStack() as stack:
        measure(chosen, stack)


def measure(chosen: argparse.Namespace, stack: ExitStack) -> None:
    X = rows(chosen.rows, chosen.features)
    leading = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, : chosen.k]
    folder = tempfile.TemporaryDirectory()
    np.save(Path(folder.name) / "rows.npy", X)  # as on a cluster: workers open their part of a file
    shards = grassia.from_rows(Path(folder.name) / "rows.npy", n_components=WORKERS, center=False)
    kept = "" if chosen.fresh else ", kept from run to run"
    print(f"{chosen.rows} x {chosen.features}, k = {chosen.k}, tol {chosen.tol:g}, {WORKERS} workers{kept}")

    clusters = Clusters(chosen.engines, None if chosen.fresh else stack)
    solvers = {"nystrom": Nystrom(), "krylov": Krylov(), "grassia": "grassia", "power": "power"}

    def run(
        engine: str, name: str, data: Any = shards, answer: np.ndarray = leading, passes: int = 0, **made: Any
    ) -> Callable[[], str]:
        backend = clusters.backend(engine, **made)  # a kept one is started here, before the clock
        limits = {"max_passes": passes, "tol": OUT_OF_REACH} if passes else {"tol": chosen.tol}
        return lambda: solve(data, solvers[name], backend, answer, **limits)

    def overhead(title: str, *data: Any, **made: Any) -> None:
        bench, reference = Bench(), {}
        lengths = [(name, 0) for name in chosen.solvers]
        if chosen.passes:
            lengths += [(name, chosen.passes) for name in chosen.solvers if name != "krylov"]
        for _ in range(chosen.repeats):
            for name, passes in lengths:
                what = f"{name}, {passes} passes" if passes else name
                for engine in ("processes", *chosen.engines):
                    bench.time(f"{engine}, {what}", run(engine, name, *data, passes=passes, **made))
                    reference[f"{engine}, {what}"] = f"processes, {what}"
        bench.show(title, reference)

    def small(rows: int) -> tuple[Any, np.ndarray]:
        part, path = X[:rows], Path(folder.name) / f"{rows}.npy"
        np.save(path, part)
        return (
            grassia.from_rows(path, n_components=WORKERS, center=False),
            np.linalg.eigh(part.T @ part)[1][:, ::-1][:, : chosen.k],
        )

    if "overhead" in chosen.tables:
        overhead("Equal workers")

    if "paced" in chosen.tables:
        title = f"Equal workers, each task {chosen.product:g} s of another machine"
        overhead(title, *small(100 * WORKERS), faults=f"delay:*:{chosen.product}")

    if "machines" in chosen.tables:
        less, answer = small(len(X) // 10)
        pace = [f"delay:*:{chosen.pace}", f"delay:{WORKERS - 1}:{(SLOW - 1.0) * chosen.pace}"]
        bench, reference = Bench(), {}
        for _ in range(chosen.repeats):
            for engine in ("processes", *chosen.engines):
                for name in ("krylov", "nystrom"):
                    bench.time(f"{engine}, {name}", run(engine, name, less, answer, faults=pace))
                reference[f"{engine}, nystrom"] = f"{engine}, krylov"
        bench.show(f"One worker ten times slower, each task {chosen.pace:g} s of another machine", reference)

    if "straggler" in chosen.tables:
        bench, reference, theirs = Bench(), {}, "dask's svd_compressed"
        if clusters.client is not None:
            persisted = clusters.persist(X)
            iterations = enough_iterations(persisted, chosen.k, leading, chosen.tol)
        for _ in range(chosen.repeats):
            for engine in chosen.engines:
                for name in ("krylov", "nystrom"):
                    bench.time(f"{engine}, {name}", run(engine, name, faults=f"slow:{WORKERS - 1}:{SLOW}x"))
                reference[f"{engine}, nystrom"] = f"{engine}, krylov"
            if clusters.client is not None:
                with clusters.one_slow():
                    bench.time(theirs, lambda: compressed(persisted, chosen.k, iterations, leading)[1])
        bench.show("One worker ten times slower", reference)
        if clusters.client is not None:
            for engine in chosen.engines:
                print(f"  nystrom on {engine}: {bench.ratio(f'{engine}, nystrom', theirs):.2f} of {theirs}")


if __name__ == "__main__":
    main()
