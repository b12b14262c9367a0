"""What every way to begin a run shares: checks, the header that is written down, the end."""

from __future__ import annotations

import dataclasses
import math
import numbers
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import grassia
from grassia import _blas, solvers
from grassia._checks import require_positive
from grassia.backends.base import Backend
from grassia.certificate import Certifier
from grassia.checkpoint import Checkpoint, Keeper
from grassia.errors import ExclusionWarning, InvalidInput
from grassia.interruption import Interrupts
from grassia.messages import Array
from grassia.record import encode_array
from grassia.result import Result, Status
from grassia.run import Callback
from grassia.server import Server
from grassia.solvers import Solver
from grassia.solvers.warm import LocalStart

_in_use: weakref.WeakSet[Backend] = weakref.WeakSet()
_in_use_lock = threading.Lock()


# -- arguments ------------------------------------------------------------------------------------


def check_limits(tol: Any, max_passes: Any, time_limit: Any, certifier: Any) -> None:
    """Refuse what cannot be meant."""
    if not (isinstance(tol, numbers.Real) and 0.0 < float(tol) < 1.0):
        raise InvalidInput(f"`tol` is a sine and must satisfy 0 < tol < 1; got {tol!r}.")
    require_positive(max_passes, "`max_passes`")
    if time_limit is not None:
        require_positive(time_limit, "`time_limit` (in seconds)")
    if certifier is not None and not isinstance(certifier, Certifier):
        raise InvalidInput(f"`certifier` must be a grassia.Certifier or None; got {certifier!r}.")


def check_callbacks(callbacks: Any) -> list[Callback]:
    """One callable or several, as a list."""
    if callable(callbacks):
        return [callbacks]
    hooks = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    if not all(callable(hook) for hook in hooks):
        raise InvalidInput(f"`callbacks` must be a callable or several; got {callbacks!r}.")
    return hooks


def as_checkpoint(given: Any) -> Checkpoint | None:
    """From a path, as given, or None."""
    return given if given is None or isinstance(given, Checkpoint) else Checkpoint(given)


def refuse_occupied(plan: Checkpoint | None) -> None:
    """A folder that holds another run is not written into."""
    if plan is not None and plan.there:
        raise InvalidInput(
            f"{plan.folder} holds the checkpoint of a run. Go on from it with grassia.resume, or with "
            "checkpoint=grassia.Checkpoint(path, resume=True); or take another folder."
        )


@contextmanager
def in_use(engine: Backend) -> Iterator[None]:
    """No two runs at once with one back-end; at the end it is closed, or released where the user holds it."""
    with _in_use_lock:
        if engine in _in_use:
            raise InvalidInput("this back-end object is in use by another run; give each run its own.")
        _in_use.add(engine)
    try:
        with engine:
            try:
                yield
            finally:
                interrupts = Interrupts()  # what is released by half would be in the way of the next run
                with interrupts, interrupts.held():
                    if engine.held:
                        engine.release()
    finally:
        with _in_use_lock:
            _in_use.discard(engine)


# -- what is written down -------------------------------------------------------------------------


def written_header(
    server: Server, engine: Backend, weights: Array | None, start: Array | None
) -> dict[str, Any]:
    """Everything that decides a run but the data."""
    solver, v0 = server.solver, encode_array(start)
    if isinstance(server.solver, LocalStart):
        solver, v0 = server.solver.inner, {"local": dataclasses.asdict(server.solver.local)}
    return {
        "version": grassia.__version__,
        "numpy": np.__version__,
        "k": server.k,
        "tol": server.tol,
        "groups": engine.groups,
        "backend": engine.name,
        "blas_threads": engine.blas_threads,
        "server_blas_threads": _blas.threads(),
        "evaluate": getattr(engine, "evaluate", "dispatch"),
        "weights": encode_array(weights),
        "v0": v0,
        "rng": server.rng.bit_generator.state,
        "solver": {"name": solver.name, **solvers.parameters(solver)},
        "certifier": dataclasses.asdict(server.certifier),
        "limits": dataclasses.asdict(server.limits),
        "on_loss": dataclasses.asdict(server.policy),
        "single": server.single,
    }


def solver_from(written: dict[str, Any], v0: dict[str, Any] | None) -> Solver[Any]:
    """The solver of a header."""
    solver = solvers.make(**written)
    if v0 is not None and "local" in v0:
        return LocalStart(solver, solvers.OneShot(**v0["local"]))
    return solver


def keep(plan: Checkpoint, server: Server, header: dict[str, Any], sketched: bool = True) -> Keeper:
    """Have a run written down; `sketched`: as far as it was, its components had been sketched."""
    server.keeps_course = True
    server.sketching = "product" if plan.sketch and sketched else "mean"
    return Keeper(plan, header)


# -- the end --------------------------------------------------------------------------------------


def finished(result: Result, server: Server, keeper: Keeper | None, **stats: Any) -> Result:
    """The result with all that is to be told of the run, after the warnings there may be."""
    size = None
    if server.problem is not None:
        size = server.solver.server_bytes(server.n, server.problem.d, server.k)
    result.stats.update(tol=server.tol, server_bytes=size, **stats)
    if keeper is not None:
        kept = {"folder": str(keeper.plan.folder), "written": keeper.written, "seconds": keeper.seconds}
        result.stats["checkpoint"] = kept
    _warn(result)
    return result


def _warn(result: Result) -> None:
    left_out = result.stats.get("excluded")
    if left_out:
        n = result.stats["components"]
        warnings.warn(
            f"{len(left_out)} of {n} components were left out ({_few(left_out)}): the answer, and its "
            "certificate, are those of the others, with the weights in result.stats['weights'].",
            ExclusionWarning,
            stacklevel=4,
        )
    if result.status in (Status.CONVERGED, Status.INTERRUPTED):
        return
    from sklearn.exceptions import ConvergenceWarning

    certificate = result.certificate
    sine = math.nan if certificate is None else certificate.sin_theta.value
    warnings.warn(
        f"{result.status.name} (sine bound {sine:.3g}): {result.status.advice}",
        ConvergenceWarning,
        stacklevel=4,
    )


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ..."
