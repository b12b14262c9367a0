"""`eigenspace`, the one function most users need, and `replay`."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from grassia import auto, backends, solvers
from grassia._checks import require_count
from grassia.backends.base import Backend
from grassia.certificate import Certifier
from grassia.checkpoint import Checkpoint, latest
from grassia.data import Components, as_components
from grassia.errors import InvalidInput
from grassia.losses import LossPolicy, as_policy
from grassia.messages import Array
from grassia.record import Log, Recorder, Replay, decode_array, replay_loop
from grassia.result import History, Result
from grassia.resuming import check_same, check_same_solver, resume
from grassia.run import Callback, run, statistics
from grassia.running import (
    as_checkpoint,
    check_callbacks,
    check_limits,
    finished,
    in_use,
    keep,
    refuse_occupied,
    solver_from,
    written_header,
)
from grassia.server import Limits, Server
from grassia.solvers import Solver
from grassia.solvers.warm import LocalStart

# Products in single precision carry about seven digits; more are lost to a small gap.
SINGLE_TOL = 1e-5


def eigenspace(
    components: Any,
    k: int,
    *,
    weights: Any = None,
    solver: str | Solver[Any] = "auto",
    backend: str | Backend = "serial",
    tol: float = 1e-6,
    v0: Any = None,
    rng: int | np.random.Generator | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    checkpoint: str | Path | Checkpoint | None = None,
    max_passes: float = 10_000,
    time_limit: float | None = None,
    certifier: Certifier | None = None,
    precision: str = "auto",
    on_loss: str | LossPolicy = "reload",
    record: str | Path | None = None,
    history_limit: int = 20_000,
) -> Result:
    """Leading-k eigenspace of `A = sum_i w_i A_i`, each `A_i` held by one worker.

    Parameters
    ----------
    components : sequence
        Symmetric matrices (dense or sparse), operators, loaders, or what `grassia.from_rows` made of data.
        One alone is a sum of one.
    k : int
        Dimension, 1 <= k <= n_features.
    weights : array_like (n,), optional
        Positive; normalised to sum to one. Default: the row counts of components made from rows, else
        equal weights.
    solver : str or Solver
        "auto", one of `grassia.solvers.names()`, or a solver object with its own parameters. "auto" takes
        "nystrom" where components are worked on at the same time, "power" if its models would not fit into
        memory, "krylov" for data in one place, and "covariance" where one pass costs least;
        `result.stats["solver_reason"]` says why.
    backend : str or Backend
        "serial", "threads", "processes", "simulated", "ray", "dask", or a back-end object with its own
        parameters.
    tol : float
        Wanted bound on the sine of the largest principal angle between the answer and the true leading
        eigenspace. Convergence is certified against it, never assumed.
    v0 : array_like (d, b), b >= k, or "local", optional
        Start; any full-rank block, orthonormalised here, its first k columns being the iterate. "nystrom"
        and "krylov" follow the further ones, too. "local": one round before the first, in which every worker
        finds the leading eigenspace of its own component, and the average of those; it pays where shards are
        alike and rounds cost more than products. Default: random.
    rng : int or numpy Generator, optional
        Seed of everything random. Default: fresh; the one used is in `result.stats["seed"]`.
    callbacks : callable or iterable of callables
        Each is given a `Progress` after every turn of the loop; returning True ends the run.
    checkpoint : path or Checkpoint, optional
        A folder into which the run is written every minute, from which `grassia.resume` goes on after
        whatever ended it, on any back-end.
    max_passes : float
        Give up after so many passes over the components.
    time_limit : float, optional
        Give up after so many seconds of the back-end's clock; a last certificate may take a quarter (and
        at least one second) more.
    certifier : Certifier, optional
        How hard to certify. Default: with 16 probes, or 6 where 16 would take much memory beside sparse
        data.
    precision : {"auto", "float32", "float64"}
        What workers multiply in while solving. "float32" is about twice as fast for rows stored in single
        precision (or in small integers) and changes nothing for others; "auto" takes it if `tol` is 1e-5 or
        larger. The certificate is in double precision always; should it be refused, so is the rest.
    on_loss : {"reload", "wait", "exclude"} or LossPolicy
        What a lost worker means: its components are opened elsewhere, are waited for, or are left out (then
        `result.stats["excluded"]` says which, and the answer is that of the others). `grassia.LossPolicy` has
        time limits, too.
    record : path, optional
        Write a log from which `grassia.replay` reproduces the run bit for bit.
    history_limit : int
        Points kept in `result.history`; longer runs are thinned evenly.

    Returns
    -------
    Result
        Also when it did not converge: then with the best iterate, a status whose text is advice, and a
        `sklearn.exceptions.ConvergenceWarning`.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((300, 8)) * np.array([5, 4, 3, 1, 1, 1, 1, 1])
    >>> result = grassia.eigenspace(grassia.from_rows(X, n_components=5), k=3, rng=0)
    >>> result.converged
    True
    """
    loaders = as_components(components)
    n = len(loaders)
    _check(k, tol, max_passes, time_limit, certifier, history_limit)
    plan = as_checkpoint(checkpoint)
    given = _check_weights(weights, n)
    single = _check_precision(precision, float(tol))
    engine = backends.get(backend)
    policy = as_policy(on_loss, engine.remote)
    chosen, reason = _choose(solver, loaders, k, engine)
    generator, seed = _generator(rng)
    chosen, start = _started(chosen, v0, k)
    hooks = check_callbacks(callbacks)
    if plan is not None and plan.resume and plan.there:
        found = latest(plan.folder)
        check_same(found, k=int(k), weights=given)
        if solver != "auto":
            check_same_solver(found, chosen.inner if isinstance(chosen, LocalStart) else chosen)
        if record is not None:
            raise InvalidInput("a run that is resumed cannot be recorded: `record` must be None.")
        return resume(
            plan,
            loaders,
            solver=chosen if chosen.name not in solvers.names() else None,
            backend=engine,
            tol=tol,
            callbacks=hooks,
            max_passes=max_passes,
            time_limit=time_limit,
            certifier=certifier,
            on_loss=policy,
        )
    refuse_occupied(plan)
    recorder = None if record is None else Recorder(record)
    try:
        with in_use(engine):
            engine.stays = policy.stays
            engine.start(loaders)
            server = Server(
                chosen,
                int(k),
                engine.groups,
                weights=given,
                tol=float(tol),
                v0=start,
                rng=generator,
                certifier=certifier or auto.certifier(loaders),
                limits=Limits(max_passes=float(max_passes)),
                history=History(history_limit),
                losses=policy,
                single=single,
            )
            header = written_header(server, engine, given, start)
            if recorder is not None:
                recorder.header(header)
            keeper = None if plan is None else keep(plan, server, {**header, "seed": seed, "reason": reason})
            with nullcontext() if keeper is None else closing(keeper):
                refuse_occupied(plan)  # another run may have been quicker to start, and be over by now
                result = run(
                    server, engine, callbacks=hooks, time_limit=time_limit, recorder=recorder, keeper=keeper
                )
    finally:
        if recorder is not None:
            recorder.close()
    return finished(result, server, keeper, seed=seed, solver_reason=reason)


def replay(log: str | Path | Log, components: Any) -> Result:
    """Run a recorded run again, bit for bit, on the same components.

    Every recorded iterate is checked; the first that differs raises `ReplayMismatch`. Products are
    computed in this process, one after the other, whatever back-end the run had.
    """
    recorded = log if isinstance(log, Log) else Log(log)
    header = recorded.header
    loaders: Components = as_components(components)
    engine = Replay(recorded)
    engine.start(loaders)
    generator = np.random.Generator(getattr(np.random, header["rng"]["bit_generator"])())
    generator.bit_generator.state = header["rng"]
    try:
        server = Server(
            solver_from(header["solver"], header["v0"]),
            header["k"],
            engine.groups,
            weights=decode_array(header["weights"]),
            tol=header["tol"],
            v0=None if "local" in (header["v0"] or ()) else decode_array(header["v0"]),
            rng=generator,
            certifier=Certifier(**header["certifier"]),
            limits=Limits(**header["limits"]),
            losses=LossPolicy(**header.get("on_loss", {})),
            single=bool(header.get("single", False)),
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"{recorded.path} is damaged: its header lacks {error}.") from error
    replay_loop(server, engine)
    return server.result(statistics(server, engine))


def _choose(
    solver: str | Solver[Any], loaders: Components, k: int, engine: Backend
) -> tuple[Solver[Any], str]:
    if isinstance(solver, str) and solver == "auto":
        return auto.choose(loaders, int(k), concurrent=engine.name != "serial")
    return solvers.get(solver), "asked for"


def _check_precision(precision: Any, tol: float) -> bool:
    """Whether workers may multiply in single precision while solving."""
    if precision not in ("auto", "float32", "float64"):
        raise InvalidInput(f"`precision` must be 'auto', 'float32' or 'float64'; got {precision!r}.")
    return precision == "float32" or (precision == "auto" and tol >= SINGLE_TOL)


def _check(k: Any, tol: Any, max_passes: Any, time_limit: Any, certifier: Any, history: Any) -> None:
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
        raise InvalidInput(f"`k` must be an integer with 1 <= k <= n_features; got k={k!r}.")
    check_limits(tol, max_passes, time_limit, certifier)
    require_count(history, "`history_limit`", least=2)


def _real(values: Any) -> Array:
    """A float64 copy; complex numbers and text are refused rather than cut down."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"dtype {given.dtype}")
    return np.array(given, dtype=np.float64)


def _check_weights(weights: Any, n: int) -> Array | None:
    if weights is None:
        return None
    try:
        given = _real(weights)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"`weights` must be {n} positive numbers; got {weights!r}.") from error
    if given.shape != (n,):
        raise InvalidInput(
            f"`weights` must have one entry for each of the {n} components; got shape {given.shape}."
        )
    bad = np.flatnonzero(~(np.isfinite(given) & (given > 0.0)))
    if bad.size:
        raise InvalidInput(
            f"`weights` must be positive and finite; component {int(bad[0])} has {given[bad[0]]}. "
            "Leave out a component that should not count."
        )
    return given


def _started(solver: Solver[Any], v0: Any, k: int) -> tuple[Solver[Any], Array | None]:
    """The solver as it is to be started, and the block to start it from, if one is given."""
    if v0 is None:
        return solver, None
    if not isinstance(v0, str):
        return solver, _check_start(v0, k)
    if v0 != "local":
        raise InvalidInput(f"`v0` must be a real (n_features, b) array, 'local' or None; got {v0!r}.")
    # One-shot averaging begins with the same round by itself.
    return (solver if isinstance(solver, solvers.OneShot | LocalStart) else LocalStart(solver)), None


def _check_start(v0: Any, k: int) -> Array:
    try:
        start = _real(v0)
    except (TypeError, ValueError) as error:
        raise InvalidInput("`v0` must be a real (n_features, b) array.") from error
    if start.ndim == 1:
        start = start[:, None]
    if start.ndim != 2 or start.shape[1] < k:
        raise InvalidInput(
            f"`v0` must have shape (n_features, b) with b >= k = {k} columns; got {np.shape(v0)}."
        )
    if not np.isfinite(start).all():
        raise InvalidInput("`v0` must be finite; it has NaN or infinite entries.")
    if np.linalg.matrix_rank(start) < start.shape[1]:
        raise InvalidInput(f"`v0` must have full column rank {start.shape[1]}; its columns are dependent.")
    return start


def _generator(rng: int | np.random.Generator | None) -> tuple[np.random.Generator, int | None]:
    if isinstance(rng, np.random.Generator):
        return rng, None
    if rng is None:
        seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        return np.random.default_rng(seed), seed
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng)), int(rng)
    raise InvalidInput(f"`rng` must be a non-negative integer, a numpy Generator or None; got {rng!r}.")
