"""`plan`: what a run would take, in memory, messages and passes, before anything is run."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from grassia import auto, backends, footprint, solvers
from grassia._blas import numpy_threads
from grassia._checks import require_count, require_positive
from grassia.api import SINGLE_TOL
from grassia.backends.base import Backend, deal, threads_for
from grassia.backends.processes import MOST_PROCESSES
from grassia.backends.threads import MOST_THREADS
from grassia.certificate import Certifier
from grassia.components import Component
from grassia.data import Components, as_components, extent_of, from_rows
from grassia.data.loaders import blocks_of, described, size_text
from grassia.errors import InvalidInput
from grassia.solvers import Covariance, Krylov, Nystrom, OneShot, Solver

__all__ = ["Plan", "plan"]

SAMPLE_ROWS = 2000
SAMPLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Plan:
    """What `plan` predicts; `str(plan)` is a table, `to_dict()` plain numbers and texts.

    Attributes
    ----------
    data : str
        What the source is.
    n_components, n_rows, n_features, k : int
        Sizes; None where the source does not tell before it is opened.
    data_bytes : int or None
        Of the data as it lies in memory or in a file.
    backend : str
    workers : int
        How many there are.
    solver, reason : str
        The one that would be taken, and why.
    server_bytes : int or None
        Peak of resident memory of this process: what it holds now, with all that it will add. Where workers
        live in it ("serial", "threads", "simulated"), with theirs.
    worker_bytes : int or None
        Peak of resident memory of each worker that is a process of its own; None where it is not.
    total_bytes : int or None
        Of all processes together, with shared memory counted once.
    available_bytes : int
        What processes may still take here.
    cached_bytes : int
        Size of the files that are read. The system keeps their pages as far as there is room and takes that
        back when it is needed; no process is charged for them.
    message_bytes : int or None
        Blocks to all workers and their answers, for one pass over the components.
    passes : (int, int)
        How many passes it may take.
    passes_from : str
        Where that comes from.
    notes : tuple of str
        What does not fit, and what is not known.
    """

    data: str
    n_components: int
    n_rows: int | None
    n_features: int | None
    k: int
    data_bytes: int | None
    backend: str
    workers: int
    solver: str
    reason: str
    server_bytes: int | None
    worker_bytes: int | None
    total_bytes: int | None
    available_bytes: int
    cached_bytes: int
    message_bytes: int | None
    passes: tuple[int, int]
    passes_from: str
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it: sizes are known, and the memory suffices."""
        return not self.notes

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, such as go into JSON."""
        return {**dataclasses.asdict(self), "passes": list(self.passes), "notes": list(self.notes)}

    def __str__(self) -> str:
        low, high = self.passes
        lines = [
            ("data", self.data),
            (
                "size",
                _size(self.data_bytes)
                + (f", {_size(self.cached_bytes)} of it in files" if self.cached_bytes else ""),
            ),
            ("solver", f"{self.solver} ({self.reason.removeprefix(self.solver + ': ')})"),
            ("back-end", f"{self.backend}, {self.workers} worker{'' if self.workers == 1 else 's'}"),
            ("server", f"{_size(self.server_bytes)} at its peak"),
            (
                "each worker",
                "in the server's process"
                if self.worker_bytes is None
                else f"{_size(self.worker_bytes)} at its peak",
            ),
            ("all together", f"{_size(self.total_bytes)}; {_size(self.available_bytes)} are free"),
            ("messages", f"{_size(self.message_bytes)} a pass"),
            ("passes", f"{low}" if low == high else f"{low} to {high}"),
            ("", self.passes_from),
        ]
        lines += [("note", note) for note in self.notes]
        return "\n".join(f"{name:14}{text}" for name, text in lines)


def plan(
    source: Any,
    k: int,
    *,
    solver: str | Solver[Any] = "auto",
    backend: str | Backend = "serial",
    n_components: int | None = None,
    tol: float = 1e-6,
    workers: int | None = None,
    budget: float | None = None,
    certifier: Certifier | None = None,
    sample: bool = False,
) -> Plan:
    """What a run would take: memory of server and workers, bytes on the wire, passes, the solver and why.

    Nothing is run and no row is read, only shapes, headers and sizes of files.

    Parameters
    ----------
    source : array, sparse, path, list of these, Components, ...
        Anything that `grassia.from_rows` or `grassia.eigenspace` takes. Square arrays and operators are
        symmetric matrices, as in `eigenspace`; for square rows give what `from_rows` makes of them.
    k : int
        Dimension wanted.
    solver, backend, tol, certifier
        As in `grassia.eigenspace`.
    n_components : int, optional
        As in `grassia.from_rows`. Default: `workers`, if rows come from one source and that is given.
    workers : int, optional
        Workers of the back-end. Default: its own.
    budget : float, optional
        Bytes that the solver may keep on the server, by which "auto" chooses. Default: 4e9, that of
        `eigenspace`.
    sample : bool
        Whether to estimate the passes by a run on a few of the rows (the first of every component, 2000 in
        all), which are read then. Its eigenvalues are not quite those of all rows.

    Returns
    -------
    Plan

    Notes
    -----
    Resident memory is what the kernel reports as such: private pages, shared memory, and pages of mapped
    files. Files are read block by block and their pages given back, so that a file adds a block or a few, not
    its size. What an interpreter with its libraries takes is measured here and now. Expect the peak within a
    quarter of what is predicted.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> plan = grassia.plan(np.ones((1000, 50), np.float32), 3)
    >>> plan.solver, plan.data_bytes, plan.passes
    ('covariance', 200000, (2, 2))
    """
    require_count(k, "`k`")
    if not 0.0 < float(tol) < 1.0:
        raise InvalidInput(f"`tol` is a sine and must satisfy 0 < tol < 1; got {tol!r}.")
    if budget is not None:
        require_positive(budget, "`budget` (in bytes)")
    engine = backends.get(backend)
    if workers is not None:
        require_count(workers, "`workers`")
    wanted = workers if workers is not None else engine.wanted_workers
    if n_components is not None:
        require_count(n_components, "`n_components`")
    loaders = _components(source, n_components, None if engine.name == "serial" else wanted)
    n, d = len(loaders), loaders.n_features
    if d is not None and k > d:
        raise InvalidInput(f"`k` must satisfy 1 <= k <= n_features; got k={k}, n_features={d}.")
    groups = _groups(engine, n, wanted)
    chosen, reason = _chosen(solver, loaders, k, engine, budget)
    probes = (certifier or auto.certifier(loaders)).probes
    memory = _memory(loaders, groups, chosen, k, engine, tol >= SINGLE_TOL, probes)
    if sample:
        passes, passes_from = _sampled(loaders, k, chosen, engine, groups, tol)
    else:
        passes = _usual_passes(chosen, n, k, tol)
        passes_from = "(what is usual; more where the gap after k is small. sample=True tries a few rows)"
    if isinstance(chosen, Covariance):
        passes_from = "(one to check the data, one to sum it up)"
    return Plan(
        data=_described(loaders),
        n_components=n,
        n_rows=loaders.n_rows,
        n_features=d,
        k=int(k),
        data_bytes=memory.data,
        backend=engine.name,
        workers=len(groups),
        solver=chosen.name,
        reason=reason,
        server_bytes=memory.server,
        worker_bytes=memory.worker,
        total_bytes=memory.total,
        available_bytes=memory.free,
        cached_bytes=memory.cached,
        message_bytes=_message_bytes(chosen, n, d, k),
        passes=passes,
        passes_from=passes_from,
        notes=memory.notes,
    )


# -- memory -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Memory:
    data: int | None
    server: int | None
    worker: int | None
    total: int | None
    free: int
    cached: int
    notes: tuple[str, ...]


def _memory(
    loaders: Components,
    groups: list[list[int]],
    solver: Solver[Any],
    k: int,
    engine: Backend,
    single: bool,
    probes: int,
) -> _Memory:
    n, d = len(loaders), loaders.n_features
    far = engine.name == "processes" or engine.remote
    now, free = footprint.resident(), footprint.available()
    each = [footprint.held(loaders[i] for i in group) for group in groups]
    whole = footprint.held(loaders)
    data = int(whole.arrays + max(whole.file, whole.kept)) if whole.known else None
    notes: list[str] = []
    if d is None or not whole.known:
        notes.append("the sizes of some components are not known before they are opened")
        return _Memory(data, None, None, None, int(free), int(whole.file), tuple(notes))
    threads = threads_for(len(groups), None) if far or engine.name == "threads" else numpy_threads()
    extents = [extent_of(loader) for loader in loaders]
    buffers = [
        footprint.worker_side(
            solver, [extents[i] for i in group], n, k, threads, single, far, part.window > 0.0, probes
        )
        for group, part in zip(groups, each, strict=True)
    ]
    state = footprint.server_side(solver, n, d, k, len(groups) if far else 0, probes)
    server = now + state
    worker: float | None = None
    if far:
        server += whole.arrays  # the copy that the workers share
        own = [part.kept + part.window + buffer for part, buffer in zip(each, buffers, strict=True)]
        base = footprint.bare_worker()
        worker = base + max(part.arrays + most for part, most in zip(each, own, strict=True))
        total = server + sum(base + most for most in own)
    else:
        at_once = len(groups) if engine.name == "threads" else 1
        busy = sorted(
            (part.window + buffer for part, buffer in zip(each, buffers, strict=True)), reverse=True
        )
        work = sum(busy[:at_once])
        # The matrices of workers are gone when the dense eigenproblem begins.
        peak = max(state, work + 8.0 * d * d) if isinstance(solver, Covariance) else state + work
        server = now + whole.kept + peak
        total = server
    if total - now > free:
        notes.append(
            f"too much for this machine: {_size(total - now)} more are needed, {_size(free)} are free"
        )
    elif whole.file > free - (total - now):
        notes.append("the files do not fit into memory beside it: every pass reads them from disk")
    return _Memory(
        data,
        int(server),
        None if worker is None else int(worker),
        int(total),
        int(free),
        int(whole.file),
        tuple(notes),
    )


# -- passes and messages ----------------------------------------------------------------------------


def _usual_passes(solver: Solver[Any], n: int, k: int, tol: float) -> tuple[int, int]:
    """From data with a gap as large as the eigenvalues to a gap of a thousandth of them."""
    if isinstance(solver, Covariance):
        return 2, 2
    if isinstance(solver, OneShot):
        return 2, 4
    digits = -math.log10(tol)
    if isinstance(solver, Krylov):
        rounds = max(1.0, k / 8.0) if n == 1 else 1.0  # blocks are narrow on one component
        return round(3 + 0.5 * digits * rounds), round(5 + 9.0 * digits * rounds)
    if isinstance(solver, Nystrom):
        return round(3 + 0.5 * digits), round(5 + 10.0 * digits)
    if solver.name in ("lobpcg", "power", "orthogonal"):
        return round(3 + digits), round(5 + 100.0 * digits)
    return round(3 + 5 * digits), round(5 + 1000.0 * digits)


def _sampled(
    loaders: Components, k: int, solver: Solver[Any], engine: Backend, groups: list[list[int]], tol: float
) -> tuple[tuple[int, int], str]:
    """Passes of a run on the first rows of every component, give or take a factor of two."""
    from grassia.api import eigenspace

    n, d = len(loaders), loaders.n_features
    extents = [extent_of(loader) for loader in loaders]
    if any(extent is not None and extent.kind != "rows" for extent in extents):
        raise InvalidInput(
            "`sample=True` needs components made of rows; leave it out for matrices and operators."
        )
    each = -(-SAMPLE_ROWS // n)
    if d is not None:
        each = max(1, min(each, SAMPLE_BYTES // (8 * d * n)))
    shards = []
    for loader in loaders:
        block = next(iter(blocks_of(loader, max_bytes=max(1, each * 8 * (d or 1000)))))[:each]
        shards.append(block.copy() if sp.issparse(block) else np.array(block))
    center = all(getattr(loader, "center", True) for loader in loaders)
    small: Any = engine.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = eigenspace(
            from_rows(shards, center=center),
            k,
            solver=solver,
            backend="serial" if small == "processes" else small,
            tol=tol,
            rng=0,
            max_passes=500,
        )
    found = float(result.stats["passes"])
    rows = sum(shard.shape[0] for shard in shards)
    text = f"(a run on the first {rows} rows took {found:.0f}: {result.status.name})"
    return (max(1, math.floor(found / 2)), math.ceil(2 * found)), text


def _message_bytes(solver: Solver[Any], n: int, d: int | None, k: int) -> int | None:
    if d is None:
        return None
    if isinstance(solver, Covariance):
        return 8 * d * d * n
    return 2 * 8 * d * footprint.query_width(solver, n, d, k) * n


# -- what was meant ---------------------------------------------------------------------------------


def _components(source: Any, n_components: int | None, workers: int | None) -> Components:
    shards = isinstance(source, list | tuple)
    if isinstance(source, Components) or all(map(_is_symmetric, source if shards else [source])):
        return as_components(source)
    return from_rows(source, n_components if shards or n_components is not None else workers)


def _is_symmetric(item: Any) -> bool:
    """Whether `eigenspace` would take it as it is; nothing is read, so squareness has to do."""
    if isinstance(item, Component | LinearOperator) or callable(getattr(item, "open", None)):
        return not hasattr(item, "__fspath__")
    shape: tuple[int, ...] = getattr(item, "shape", ())
    array = sp.issparse(item) or isinstance(item, np.ndarray)
    return array and (len(shape) == 3 or (len(shape) == 2 and shape[0] == shape[1]))


def _groups(engine: Backend, n: int, workers: int | None) -> list[list[int]]:
    if engine.name == "serial":
        return [list(range(n))]
    most = {"threads": MOST_THREADS, "processes": MOST_PROCESSES}.get(engine.name, n)
    return deal(n, workers, most)


def _chosen(
    solver: str | Solver[Any], loaders: Components, k: int, engine: Backend, budget: float | None
) -> tuple[Solver[Any], str]:
    if isinstance(solver, str) and solver == "auto":
        limit = auto.BUDGET if budget is None else float(budget)
        return auto.choose(loaders, int(k), concurrent=engine.name != "serial", budget=limit)
    return solvers.get(solver), "asked for"


def _described(loaders: Components) -> str:
    if len(loaders) == 1:
        return described(loaders[0])
    name, text = loaders.describe().splitlines()[-1].split(None, 1)
    return (
        f"{text}, in {len(loaders)} components" if name == "all" else f"{len(loaders)} components, as {text}"
    )


def _size(nbytes: float | None) -> str:
    return "unknown" if nbytes is None else size_text(round(nbytes))
