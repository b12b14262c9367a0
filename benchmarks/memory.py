"""Peak memory of fits that must not outgrow their data, and how near `grassia.plan` comes to it.

Every case runs in an interpreter of its own, on data that another one has written to a temporary folder, so
that its peak is that of loading, planning and solving together. Peaks are the kernel's (`ru_maxrss`, and for
workers `VmHWM`). They count every resident page: the interpreter and its libraries, pages of mapped files,
shared memory. "anon" is the part that is neither a file's nor shared, sampled every 20 ms.

    sparse         200000 x 50000, density 1e-3, float64, centred, as it comes: peak below 3x the CSR
                   arrays, certified
    mapped         4 GB of float32 in a .npy file, as it comes: peak below 600 MB, certified at 1e-6
    others         predicted against measured peak: arrays of float32 and float64, one pass and many, threads,
                   four processes on a file and on an array

    python benchmarks/memory.py [--cases sparse mapped ...] [--scale 1.0] [--folder /tmp]

It exits with 1 if a target is missed: those above, a certificate, or a prediction off by more than a quarter.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import grassia

MB = 1e6
OFF = 0.25


@dataclass(frozen=True)
class Case:
    """One fit: how its data is written and opened, and what is asked."""

    write: Callable[[Path, float], None]
    source: Callable[[Path], Any]
    k: int
    backend: str = "serial"
    workers: int | None = None
    solver: Any = "auto"
    limit: Callable[[Path], float] | None = None
    limit_name: str = ""


# -- data -------------------------------------------------------------------------------------------


def write_dense(m: int, d: int, dtype: Any = np.float32) -> Callable[[Path, float], None]:
    """Ten strong directions and noise, block by block."""

    def write(folder: Path, scale: float) -> None:
        rows = max(1000, int(m * scale))
        rng = np.random.default_rng(0)
        strong = (
            rng.standard_normal((12, d), dtype=np.float32)
            * np.linspace(0.5, 0.1, 12, dtype=np.float32)[:, None]
        )
        out = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=dtype, shape=(rows, d))
        step = max(1, 20_000_000 // d)
        for start in range(0, rows, step):
            n = min(step, rows - start)
            block = rng.standard_normal((n, d), dtype=np.float32)
            block += rng.standard_normal((n, 12), dtype=np.float32) @ strong
            out[start : start + n] = block + 1.0
        out.flush()

    return write


def write_sparse(folder: Path, scale: float) -> None:
    """Rows of 50 entries, of which some fall into a few columns that belong together: CSR arrays."""
    m, d, each = int(200_000 * scale), int(50_000 * max(scale, 0.1)), 50
    rng = np.random.default_rng(0)
    arrays = {"data": (np.float64, m * each), "indices": (np.int32, m * each)}
    out = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=(size,))
        for name, (dtype, size) in arrays.items()
    }
    topics, words = 12, 400
    for start in range(0, m, 2000):
        n = min(2000, m - start)
        topic = rng.integers(0, topics, n)
        # A few words more of the row's own topic than of the others; all places are distinct.
        own = topic[:, None] * words + np.sort(
            rng.random((n, words)).argpartition(10, axis=1)[:, :10], axis=1
        )
        step = (d - topics * words) // (each - 10)
        other = topics * words + np.arange(each - 10) * step + rng.integers(0, step, (n, each - 10))
        places = slice(start * each, (start + n) * each)
        out["indices"][places] = np.hstack([own, other]).ravel()
        strength = np.where(np.arange(each) < 10, 1.0 + 0.1 * topic[:, None], 1.0)
        out["data"][places] = (rng.exponential(1.0, (n, each)) * strength).ravel()
    for array in out.values():
        array.flush()
    np.save(folder / "shape.npy", np.array([m, d, each]))


def open_sparse(folder: Path) -> Any:
    m, d, each = (int(size) for size in np.load(folder / "shape.npy"))
    indptr = np.arange(0, m * each + 1, each, dtype=np.int32)
    X = sp.csr_array((np.load(folder / "data.npy"), np.load(folder / "indices.npy"), indptr), shape=(m, d))
    X.has_sorted_indices = True
    return X


def csr_bytes(folder: Path) -> float:
    m, _, each = (int(size) for size in np.load(folder / "shape.npy"))
    return 12.0 * m * each + 4.0 * (m + 1)


def in_memory(folder: Path) -> Any:
    return np.load(folder / "x.npy")


def on_file(folder: Path) -> Any:
    return folder / "x.npy"


def three_csr(folder: Path) -> float:
    return 3.0 * csr_bytes(folder)


CASES: dict[str, Case] = {
    "sparse": Case(write_sparse, open_sparse, 5, limit=three_csr, limit_name="3x the CSR arrays"),
    "mapped": Case(write_dense(500_000, 2000), on_file, 10, limit=lambda folder: 600e6, limit_name="600 MB"),
    "dense": Case(write_dense(150_000, 1000), in_memory, 10),
    "dense float64": Case(write_dense(50_000, 3000, np.float64), in_memory, 5),
    "covariance": Case(write_dense(60_000, 2000), in_memory, 50),
    "threads": Case(write_dense(150_000, 1500), in_memory, 10, "threads", 4),
    "threads, krylov": Case(write_dense(60_000, 4000), in_memory, 5, "threads", 4, "krylov"),
    "processes, file": Case(write_dense(250_000, 2000), on_file, 10, "processes", 4),
    "processes, array": Case(write_dense(100_000, 2000), in_memory, 10, "processes", 4),
    "processes, auto": Case(write_dense(30_000, 8000), on_file, 5, "processes", 4),
}


# -- one case, in a process of its own --------------------------------------------------------------


def status(process: Any, field: str) -> int:
    """A size of a process in bytes; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), 0)


class Sampler(threading.Thread):
    """The largest anonymous memory seen, and the peaks of workers that are processes.

    A worker's peak is its own high-water mark: `ru_maxrss` of a child begins with what its parent had.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(daemon=True)
        self.engine, self.anonymous, self.worker = engine, 0, 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            self.anonymous = max(self.anonymous, status("self", "RssAnon"))
            for pid in getattr(self.engine, "pids", ()):
                self.worker = max(self.worker, status(pid, "VmHWM"))


def measure(case: Case, folder: Path) -> dict[str, Any]:
    options = {} if case.workers is None else {"workers": case.workers}
    engine = grassia.backends.get(case.backend, **options)
    sampler = Sampler(engine)
    sampler.start()
    source = case.source(folder)
    plan = grassia.plan(
        source,
        case.k,
        solver=case.solver,
        backend=case.backend,
        workers=case.workers,
    )
    print("\n".join("    " + line for line in str(plan).splitlines()), file=sys.stderr, flush=True)
    shown = [0.0]

    def progress(now: Any) -> None:
        if time.monotonic() > shown[0] + 5.0:
            shown[0] = time.monotonic()
            print(f"    {now.passes:5.0f} passes  residual {now.residual:.3g}", file=sys.stderr, flush=True)

    began = time.perf_counter()
    result = grassia.eigenspace(
        grassia.from_rows(source, case.workers),
        case.k,
        solver=case.solver,
        backend=engine,
        rng=0,
        callbacks=progress,
    )
    sampler.done.set()
    return {
        "status": result.status.name,
        "certified": result.converged,
        "sine": float(result.certificate.sin_theta.value),
        "solver": result.stats["solver"],
        "passes": result.stats["passes"],
        "seconds": time.perf_counter() - began,
        "anonymous": sampler.anonymous,
        "server": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "worker": sampler.worker,
        "plan": plan.to_dict(),
    }


# -- all of them ------------------------------------------------------------------------------------


def run_case(name: str, scale: float, parent: Path) -> tuple[dict[str, Any], float | None]:
    case = CASES[name]
    folder = Path(tempfile.mkdtemp(prefix="grassia-memory-", dir=parent))
    try:
        subprocess.run(
            [sys.executable, __file__, "--write", name, str(folder), "--scale", str(scale)], check=True
        )
        done = subprocess.run(
            [sys.executable, __file__, "--measure", name, str(folder)], check=True, stdout=subprocess.PIPE
        )
        limit = None if case.limit is None or scale != 1.0 else case.limit(folder)
        return json.loads(done.stdout), limit
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of the rows to take; the targets are those of all"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.write:
        CASES[chosen.write[0]].write(Path(chosen.write[1]), chosen.scale)
        return 0
    if chosen.measure:
        print(json.dumps(measure(CASES[chosen.measure[0]], Path(chosen.measure[1]))))
        return 0
    missed = []
    print(
        f"{'case':17} {'solver':10} {'passes':>6} {'s':>6} {'sine':>8}   {'process':7} {'peak MB':>8} "
        f"{'anon MB':>8} {'planned':>8} {'ratio':>6}   target"
    )
    for name in chosen.cases:
        found, limit = run_case(name, chosen.scale, chosen.folder)
        rows = [("server", found["server"], found["plan"]["server_bytes"])]
        if CASES[name].backend == "processes":
            rows.append(("worker", found["worker"], found["plan"]["worker_bytes"]))
        for process, peak, planned in rows:
            first = process == "server"
            verdict = ""
            if limit is not None and first:
                ok = peak <= limit
                verdict = f"{CASES[name].limit_name} = {limit / MB:.0f} MB: {'met' if ok else 'MISSED'}"
                if not ok:
                    missed.append(f"{name}: {verdict}")
            ratio = planned / peak
            if abs(ratio - 1.0) > OFF:
                missed.append(f"{name}: the plan for the {process} is off by a factor of {ratio:.2f}")
            head = f"{name:17} {found['solver']:10} {found['passes']:6.0f} {found['seconds']:6.1f} "
            head += f"{found['sine']:8.1e}"
            anonymous = f"{found['anonymous'] / MB:8.0f}"
            if not first:
                head, anonymous = " " * len(head), " " * len(anonymous)
            sizes = f"{peak / MB:8.0f} {anonymous} {planned / MB:8.0f} {ratio:6.2f}"
            print(f"{head}   {process:7} {sizes}   {verdict}", flush=True)
        if not found["certified"]:
            missed.append(f"{name}: {found['status']}")
    for line in missed:
        print("missed:", line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
