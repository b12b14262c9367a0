"""What Ray itself costs: products on four workers with nothing of grassia in between.

Four workers hold a quarter of the rows each. A block of k columns goes to each of them and their product
comes back, as plain bytes; whoever has answered is asked again at once. That is done over the pipes of
`multiprocessing` and with calls of Ray actors. The ratio is what no back-end that calls actors can be
expected to beat, so it tells what part of the first table of `engines.py` is ours. Starting four workers that
hold next to nothing is timed as well.

Both take turns; medians over the repeats. The cluster runs before the clock does.

    python benchmarks/bare_ray.py [--rows 5000] [--rounds 200] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from multiprocessing import connection, get_context
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

WORKERS = 4


class Holder:
    """What a worker is: some rows, and their product with a block."""

    def __init__(self, m: int, d: int) -> None:
        threadpool_limits(1)  # as in our own workers
        self._X = np.random.default_rng(0).standard_normal((m, d))

    def answer(self, sent: bytes) -> bytes:
        V = np.frombuffer(sent).reshape(self._X.shape[1], -1)
        product: np.ndarray = self._X.T @ (self._X @ V)
        return product.tobytes()

    def ready(self) -> bool:
        return True


def serve(pipe: Any, m: int, d: int) -> None:
    holder = Holder(m, d)
    pipe.send_bytes(b"ready")
    while sent := pipe.recv_bytes():
        pipe.send_bytes(holder.answer(sent))


class Pipes:
    def __init__(self, m: int, d: int) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["numpy"])
        self._pipes, self._children = [], []
        for _ in range(WORKERS):
            mine, other = context.Pipe()
            child = context.Process(target=serve, args=(other, m, d), daemon=True)
            child.start()
            self._pipes.append(mine)
            self._children.append(child)
        for pipe in self._pipes:
            pipe.recv_bytes()

    def call(self, worker: int, sent: bytes) -> None:
        self._pipes[worker].send_bytes(sent)

    def arrivals(self) -> Iterator[tuple[int, bytes]]:
        for pipe in connection.wait(self._pipes):
            yield self._pipes.index(pipe), pipe.recv_bytes()

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send_bytes(b"")
        for child in self._children:
            child.join()


class RayActors:
    def __init__(self, m: int, d: int) -> None:
        import ray

        self._ray, self._calls = ray, dict[Any, int]()
        kind = ray.remote(num_cpus=1, max_restarts=0)(Holder)
        self._actors = [kind.remote(m, d) for _ in range(WORKERS)]
        ray.get([actor.ready.remote() for actor in self._actors])

    def call(self, worker: int, sent: bytes) -> None:
        self._calls[self._actors[worker].answer.remote(sent)] = worker

    def arrivals(self) -> Iterator[tuple[int, bytes]]:
        ready, rest = self._ray.wait(list(self._calls), num_returns=1)
        if rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        for call in ready:
            yield self._calls.pop(call), self._ray.get(call)

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


def a_round(engine: Any, block: bytes, rounds: int) -> float:
    """Milliseconds in which each worker is asked once."""
    began = time.perf_counter()
    for worker in range(WORKERS):
        engine.call(worker, block)
    asked = out = WORKERS
    while out:
        for worker, _ in engine.arrivals():
            out -= 1
            if asked < rounds * WORKERS:
                engine.call(worker, block)
                asked, out = asked + 1, out + 1
    return 1e3 * (time.perf_counter() - began) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--features", type=int, default=2_000)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    import ray

    ray.init(num_cpus=2 * WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    kinds: dict[str, Any] = {"pipes": Pipes, "ray": RayActors}

    starts: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(chosen.repeats):
        for name, found in starts.items():
            time.sleep(0.5)
            began = time.perf_counter()
            engine = kinds[name](1, 1)
            found.append(time.perf_counter() - began)
            engine.close()

    m, d = chosen.rows // WORKERS, chosen.features
    block = np.random.default_rng(1).standard_normal((d, chosen.k)).tobytes()
    engines = {name: kind(m, d) for name, kind in kinds.items()}
    rounds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(chosen.repeats + 1):
        for name, engine in engines.items():
            taken = a_round(engine, block, chosen.rounds)
            if turn:  # the first one warms up
                rounds[name].append(taken)
    for engine in engines.values():
        engine.close()

    print(f"{chosen.rows} x {d}, blocks of {chosen.k} columns, {WORKERS} workers, {os.cpu_count()} cores\n")
    print(f"{'':6} {'start of 4 workers':>20} {'4 products':>14} {'of pipes':>10}")
    for name, found in rounds.items():
        started = f"{statistics.median(starts[name]):.2f} s"
        ratio = statistics.median(mine / pipes for mine, pipes in zip(found, rounds["pipes"], strict=True))
        print(f"{name:6} {started:>20} {statistics.median(found):11.2f} ms {ratio:10.2f}")


if __name__ == "__main__":
    main()
