"""`grassia resume`: go on with an interrupted run from its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from grassia.checkpoint import latest
from grassia.cli import _options as opt
from grassia.cli._fit import ASKED, Fit
from grassia.cli._running import check_numbers
from grassia.errors import InvalidInput


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="OUTPUT.checkpoint, or what --checkpoint was given.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]", help="The same rows as before, where they are elsewhere now."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the model. Default: that of the run.")
    ] = None,
    overwrite: opt.Overwrite = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-w", help="How many work at once. Default: as before.", rich_help_panel="Running"
        ),
    ] = None,
    backend: opt.Backend = None,
    address: opt.Address = None,
    tol: Annotated[
        float | None,
        typer.Option(help="Wanted bound on the sine. Default: that of the run.", rich_help_panel="Running"),
    ] = None,
    time_limit: opt.TimeLimit = None,
    report: opt.Report = None,
    log: opt.Log = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> int:
    """Go on with a run of grassia pca from its last checkpoint, and write the model.

    The checkpoint folder knows what was asked; what is given here takes its place. The rows must be the same;
    workers and back-end may be others. Interrupted again, it can be resumed again.

    Examples:

    grassia pca rows.npy -k 10 --workers 4 -o model/   (then Ctrl-C)
    grassia resume model.checkpoint
    grassia resume model.checkpoint --workers 16 --backend ray --report report.html

    Exit codes: 0 certified; 1 finished, but not certified; 2 bad input or usage;
    3 a worker was lost or a component failed; 130 interrupted.
    """
    held = latest(folder).header
    asked = Fit.kept_in(folder)
    if asked is None and not inputs:
        raise InvalidInput(
            f"{folder} has no {ASKED} that says which rows the run had; name them: "
            f"grassia resume {folder} INPUT."
        )
    changed: dict[str, Any] = {
        "inputs": inputs or None,
        "output": None if output is None else str(output),
        "workers": workers,
        "backend": backend,
        "address": address,
        "tol": tol,
    }
    if backend == "serial" and workers is None:
        changed["workers"] = 1
    if workers is not None and backend is None:
        changed["backend"] = "processes" if workers > 1 else "serial"
    base = asked or Fit(inputs=inputs or [], k=int(held["k"]), tol=float(held["tol"]), temporary=False)
    fit = replace(
        base,
        **{name: value for name, value in changed.items() if value is not None},
        overwrite=overwrite or base.overwrite,
        time_limit=time_limit,
        checkpoint=str(folder),
        resume=True,
        report=report,
        log=log,
        as_json=as_json,
        quiet=quiet,
    )
    check_numbers(fit.k, fit.tol, None, time_limit)
    return fit.run()
