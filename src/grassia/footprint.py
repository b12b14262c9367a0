"""How much memory a run takes, part by part, from sizes alone: what `grassia.plan` adds up.

All numbers are bytes of resident memory. Arrays that are passed along are counted where they are made. The
counts follow `passes`, `components`, the solver and `explored`; where the course of a run decides (how often
a basis is restarted, how many sweeps a certificate takes) they take the worse of what is common.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from grassia.data import (
    Extent,
    MatrixLoader,
    MemmapRowsLoader,
    NpyRowsLoader,
    RowsLoader,
    StoredRowsLoader,
    SumLoader,
    extent_of,
)
from grassia.data.blocks import BLOCK_BYTES
from grassia.data.mapped import _SMALL_FILE
from grassia.passes.dense import SMALL_GRAM
from grassia.passes.tiling import BUFFER_BYTES, dense_tile_rows, exact_in_single, product_tile_rows
from grassia.solvers import Covariance, Krylov, Nystrom, Solver
from grassia.solvers.base import Problem
from grassia.solvers.krylov import MORE

__all__ = [
    "Held",
    "available",
    "bare_worker",
    "held",
    "query_width",
    "resident",
    "server_side",
    "worker_side",
]

NUMBER = 8
# Consistent sweeps of a certificate; most take one to five.
SWEEPS = 4
# Blocks of rows that are alive at once while a store is read ahead.
READ_AHEAD = 3
# What BLAS touches of its own buffers, a thread.
BLAS_BUFFER = 4e6


@dataclass(frozen=True, slots=True)
class Held:
    """What one worker has of its components' data.

    `arrays` were in memory before the run; `kept` is read and stays; `window` is what a pass over the rest
    has in memory at a time; `file` is the size of what is read from files, which the system caches as it can.
    `known` is False where a loader does not tell.
    """

    arrays: float = 0.0
    kept: float = 0.0
    window: float = 0.0
    file: float = 0.0
    known: bool = True

    def beside(self, other: Held) -> Held:
        return Held(
            self.arrays + other.arrays,
            self.kept + other.kept,
            max(self.window, other.window),
            self.file + other.file,
            self.known and other.known,
        )


def held(loaders: Iterable[Any]) -> Held:
    """What the components of these loaders keep together.

    >>> held([RowsLoader(np.zeros((100, 3)))]).arrays
    2400.0
    """
    total = Held()
    for loader in loaders:
        total = total.beside(_held(loader))
    return total


def _held(loader: Any) -> Held:
    if isinstance(loader, SumLoader):
        return held(loader.loaders)
    extent = extent_of(loader)
    size = None if extent is None else extent.nbytes
    if size is None:
        return Held(known=extent is not None and extent.kind == "operator")
    if isinstance(loader, RowsLoader | MatrixLoader):
        data = loader.rows if isinstance(loader, RowsLoader) else loader.matrix
        converted = sp.issparse(data) and data.format != "csr"
        return Held(arrays=float(size), kept=float(size) if converted else 0.0)
    if isinstance(loader, NpyRowsLoader | MemmapRowsLoader):
        try:
            whole = os.path.getsize(loader.path)
        except OSError:
            whole = size
        if whole <= _SMALL_FILE:  # its pages are left where they are
            return Held(kept=float(size), file=float(size))
        return Held(window=float(min(size, BLOCK_BYTES)), file=float(size))
    if isinstance(loader, StoredRowsLoader):
        if size <= BLOCK_BYTES:
            return Held(kept=float(size), file=float(size))
        return Held(window=float(READ_AHEAD * BLOCK_BYTES), file=float(size))
    return Held(kept=float(size))


def query_width(solver: Solver[Any], n: int, d: int, k: int) -> int:
    """Columns of the block that a component is asked to multiply."""
    if isinstance(solver, Covariance):
        return d
    if isinstance(solver, Krylov):
        return solver.block_width(_cold(n, d, k))
    if isinstance(solver, Nystrom):
        return solver.sizes(n, d, k)[0]
    return k


def server_side(solver: Solver[Any], n: int, d: int, k: int, workers: int, probes: int = 16) -> float:
    """The solver's state, the certificate, and answers that wait; `workers` are those in other processes."""
    if isinstance(solver, Covariance):
        # The matrix, the copy that LAPACK destroys, a product or an answer; and those that wait.
        return NUMBER * d * d * (3.0 + max(0, workers - 1))
    width = query_width(solver, n, d, k)
    explored = min(d, probes * SWEEPS)
    if isinstance(solver, Krylov):
        columns = solver.columns(_cold(n, d, k))
        known = min(columns, MORE)
        explored = min(d, explored + known)
        solving = 4.4 * columns + 6 * width + 4 * k
        certifying = 2.0 * columns + 2 * known
    else:
        solving = certifying = solver.server_bytes(n, d, k) / (NUMBER * d)
        if isinstance(solver, Nystrom):  # a prior is worked out from copies of what it is made of
            solving = certifying = solving + 6.0 * solver._prior_rank(n, d, k)
    # The explored space and its products, and one of them once more while it grows.
    certifying += 3.0 * explored + 3 * (k + probes) + 2 * (width + probes)
    return NUMBER * d * (max(solving, certifying) + 3.0 * width * workers)


def worker_side(
    solver: Solver[Any],
    extents: Iterable[Extent | None],
    n: int,
    k: int,
    threads: int,
    single: bool,
    far: bool,
    in_blocks: bool = False,
    probes: int = 16,
) -> float:
    """Tiles, blocks and answers of one worker.

    `far` says that it is another process than the server, `in_blocks` that it reads rows from files.
    """
    found = [extent for extent in extents if extent is not None]
    if not found:
        return 0.0
    d = found[0].n_features
    width = query_width(solver, n, d, k)
    most = max(_buffers(extent, solver, d, max(width, k + probes + 4), threads, single) for extent in found)
    if far:
        # The block and its answer, each in shared memory and outside of it; a whole matrix goes by the pipe.
        most += NUMBER * d * (d if isinstance(solver, Covariance) else 4.0 * width)
    if in_blocks:
        most += NUMBER * d * width  # the sum over blocks
    return most + BLAS_BUFFER * threads


def _buffers(extent: Extent, solver: Solver[Any], d: int, b: int, threads: int, single: bool) -> float:
    m = max(1, extent.n_rows)
    if extent.kind != "rows":
        return NUMBER * 3.0 * d * (d if isinstance(solver, Covariance) else b)
    item = 4 if single and extent.dtype is not None and exact_in_single(extent.dtype) else NUMBER
    if extent.sparse:
        per_row = max(extent.stored / m, 1e-9)
        tile = min(m, int(min(max(8 * d / per_row, 4096), 65536)))
        moments = NUMBER * (3.0 * tile * per_row + 6.0 * d)
        indptr = 4.0 * m
        if isinstance(solver, Covariance):
            return NUMBER * 3.0 * d * d + moments + indptr
        return max(NUMBER * (2.0 * tile * b + 4.0 * d * b), moments) + indptr
    tile = min(m, dense_tile_rows(d))
    moments = threads * NUMBER * (tile * d + 6.0 * d)
    if isinstance(solver, Covariance):
        share = threads if d * d <= SMALL_GRAM else 1
        rows = min(m, max(1, min(4096, BUFFER_BYTES // (item * d))))
        return max(share * (d * d * (NUMBER + item) + rows * d * item), moments)
    tile = min(m, product_tile_rows(d, b, threads))
    product = threads * (b * d * (NUMBER + item) + tile * (b + d) * item) + 5.0 * NUMBER * b * d
    return max(product, moments)


def _cold(n: int, d: int, k: int) -> Problem:
    return Problem(n, d, min(k, d), np.ones(n) / n, None, False, cold=True)


# -- what is there ----------------------------------------------------------------------------------


def _status(process: str = "self") -> Mapping[str, float]:
    """Sizes of a process in bytes, from the kernel; empty where it does not tell."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in lines)
    return {name: float(value.split()[0]) * 1024 for name, value in pairs if value.strip().endswith("kB")}


def resident() -> float:
    """Bytes of this process that are resident now, once everything a run needs is imported."""
    _imported()
    found = _status().get("VmRSS")
    if found is not None:
        return found
    import resource  # what is not Linux tells only the most there ever was

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(most if sys.platform == "darwin" else most * 1024)


@lru_cache(maxsize=1)
def _imported() -> None:
    """Load what a run loads, by making a small one."""
    from grassia.api import eigenspace

    eigenspace(np.diag(np.arange(8.0)), 1, solver="krylov", rng=0)


@lru_cache(maxsize=1)
def bare_worker() -> float:
    """Bytes of a worker process that has done nothing yet; one is started to find out."""
    code = (
        "import grassia.backends.child, grassia.footprint as f; f._imported(); "
        "print(f._status().get('VmHWM') or f.resident())"
    )
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, check=True, env=environment, timeout=60
        )
        return float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return resident()


def available() -> float:
    """Bytes that processes may still take on this machine, or in this container."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return free
    return min(free, max(0.0, limit - used))
