"""`resume`: go on with a run from its last checkpoint, on whatever back-end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from grassia import auto, backends, solvers
from grassia.backends.base import Backend
from grassia.certificate import Certifier
from grassia.checkpoint import Checkpoint, Found, latest
from grassia.data import as_components
from grassia.errors import InvalidInput
from grassia.losses import LossPolicy, as_policy
from grassia.messages import Array
from grassia.record import decode_array
from grassia.result import Result
from grassia.run import Callback, run
from grassia.running import check_callbacks, check_limits, finished, in_use, keep, solver_from
from grassia.server import Limits, Server
from grassia.solvers import Solver


def resume(
    checkpoint: str | Path | Checkpoint,
    components: Any,
    *,
    solver: Solver[Any] | None = None,
    backend: str | Backend = "serial",
    tol: float | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    max_passes: float | None = None,
    time_limit: float | None = None,
    certifier: Certifier | None = None,
    on_loss: str | LossPolicy | None = None,
) -> Result:
    """Go on from the last checkpoint of a run, with the same data.

    The back-end and the number of workers may be others than before. What the server had learnt is there
    again, up to the last checkpoint; the components are opened anew (which reads the data once), and have to
    be those of the run, in their order. The run goes on writing checkpoints into the same folder. A newest
    checkpoint that is damaged is named in a warning, and the one before is used.

    Parameters
    ----------
    checkpoint : path or Checkpoint
        The folder that `eigenspace(..., checkpoint=)` was given.
    components
        As for `eigenspace`.
    solver : Solver, optional
        Only where the run had a solver that is not one of grassia's: one with the same parameters.
    backend, callbacks, certifier
        As for `eigenspace`; they are not part of the checkpoint.
    tol, max_passes, on_loss : optional
        Default: those of the run.
    time_limit : float, optional
        Seconds from now; default: none.

    Returns
    -------
    Result
        Of the whole run: history, counts and seconds go on from what they were.

    Examples
    --------
    >>> import tempfile, numpy as np, grassia
    >>> X = np.random.default_rng(0).standard_normal((200, 10)) * np.arange(10, 0, -1)
    >>> shards = grassia.from_rows(X, n_components=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stop = lambda progress: progress.passes > 3  # as if it had been interrupted
    ...     part = grassia.eigenspace(shards, 2, solver="power", checkpoint=folder, callbacks=stop, rng=0)
    ...     result = grassia.resume(folder, shards, backend="threads")
    >>> part.status.name, result.converged
    ('INTERRUPTED', True)
    """
    plan = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    loaders = as_components(components)
    found = latest(plan.folder)
    header = found.header
    chosen = _solver(found, solver)
    snapshot = found.snapshot([type(chosen).__module__])
    tolerance = float(header["tol"] if tol is None else tol)
    limits = Limits(**header["limits"])
    if max_passes is not None:
        limits = replace(limits, max_passes=float(max_passes))
    check_limits(tolerance, limits.max_passes, time_limit, certifier)
    engine = backends.get(backend)
    policy = LossPolicy(**header["on_loss"]) if on_loss is None else as_policy(on_loss, engine.remote)
    hooks = check_callbacks(callbacks)
    with in_use(engine):
        engine.stays = policy.stays
        engine.start(loaders)
        server = Server(
            chosen,
            int(header["k"]),
            engine.groups,
            weights=decode_array(header["weights"]),
            tol=tolerance,
            v0=None,
            rng=_generator(header["rng"]),
            certifier=certifier or auto.certifier(loaders),
            limits=limits,
            losses=policy,
            single=bool(header["single"]),
        )
        snapshot.hand_to(server)
        keeper = keep(plan, server, _again(header, server, engine), snapshot.sketched)
        with closing(keeper):
            result = run(server, engine, callbacks=hooks, time_limit=time_limit, keeper=keeper)
    reason = f"{header.get('reason')}; resumed from {found.manifest.name}"
    return finished(result, server, keeper, seed=header.get("seed"), solver_reason=reason)


def check_same(found: Found, k: int, weights: Array | None) -> None:
    """Refuse to go on with another problem than that of the checkpoint."""
    if int(found.header["k"]) != k:
        raise InvalidInput(f"the checkpoint in {found.manifest.parent} has k={found.header['k']}; got k={k}.")
    then = decode_array(found.header["weights"])
    same = then is None and weights is None
    if then is not None and weights is not None:
        same = np.array_equal(then, weights)
    if not same:
        raise InvalidInput(f"the checkpoint in {found.manifest.parent} is of a run with other weights.")


def check_same_solver(found: Found, solver: Solver[Any]) -> None:
    """Refuse to go on with another method than that of the checkpoint."""
    then = found.header["solver"]
    # As it would have been written: a tuple is a list there.
    now = json.loads(json.dumps({"name": solver.name, **solvers.parameters(solver)}))
    if now != then:
        differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        text = ", ".join(f"{name}={then.get(name)!r}, not {now.get(name)!r}" for name in differing)
        raise InvalidInput(
            f"the run in {found.manifest.parent} had another solver ({text}). Name that one, or take another "
            "folder."
        )


def _solver(found: Found, given: Solver[Any] | None) -> Solver[Any]:
    written = found.header["solver"]
    if given is not None:
        if given.name != written["name"]:
            raise InvalidInput(f"the run had the solver {written['name']!r}; got {given.name!r}.")
        return given
    if written["name"] not in solvers.names():
        raise InvalidInput(
            f"the run had the solver {written['name']!r}, which is not one of grassia's; pass it as `solver`."
        )
    return solver_from(written, found.header["v0"])


def _generator(state: dict[str, Any]) -> np.random.Generator:
    generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    generator.bit_generator.state = state
    return generator


def _again(header: dict[str, Any], server: Server, engine: Backend) -> dict[str, Any]:
    """The header of the checkpoints to come."""
    of_the_moment = ("tree", "arrays", "seconds", "grassia-checkpoint")
    kept = {name: value for name, value in header.items() if name not in of_the_moment}
    now = {"tol": server.tol, "limits": asdict(server.limits), "on_loss": asdict(server.policy)}
    return {**kept, **now, "backend": engine.name, "groups": engine.groups}
