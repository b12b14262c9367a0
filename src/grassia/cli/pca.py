"""`grassia pca`: principal components of files, certified, written into a model folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from grassia.cli import _options as opt
from grassia.cli._fit import Fit
from grassia.cli._inputs import format_options
from grassia.cli._outcome import one_of
from grassia.cli._running import check_numbers
from grassia.cli._writing import FORMATS

_OUTPUT = "Output"
_PRECISIONS = ["auto", "float32", "float64"]
_ON_LOSS = ["reload", "wait"]


def pca(
    inputs: opt.Inputs,
    k: opt.K = 10,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the model, new or empty.", rich_help_panel=_OUTPUT),
    ] = Path("model"),
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="npy, npz, csv or parquet.",
            autocompletion=lambda: FORMATS,
            rich_help_panel=_OUTPUT,
        ),
    ] = "npy",
    eigenvec: Annotated[
        bool,
        typer.Option(
            "--eigenvec", help="Also PLINK's tables: .eigenvec, .eigenval.", rich_help_panel=_OUTPUT
        ),
    ] = False,
    scores: Annotated[
        bool,
        typer.Option("--scores/--no-scores", help="Write the scores of the rows.", rich_help_panel=_OUTPUT),
    ] = True,
    overwrite: opt.Overwrite = False,
    workers: opt.Workers = 1,
    backend: opt.Backend = None,
    address: opt.Address = None,
    shards: opt.Shards = None,
    tol: opt.Tol = 1e-6,
    solver: opt.SolverName = "auto",
    time_limit: opt.TimeLimit = None,
    precision: Annotated[
        str,
        typer.Option(
            help="What workers multiply in: auto, float32 or float64. The certificate is in double.",
            autocompletion=lambda: _PRECISIONS,
            rich_help_panel="Running",
        ),
    ] = "auto",
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Trouble to make on purpose, e.g. slow:0:10x or crash:1@5. May be repeated.",
            rich_help_panel="Running",
        ),
    ] = None,
    on_loss: Annotated[
        str,
        typer.Option(
            help="What a lost worker means: reload its rows elsewhere, or wait for it.",
            autocompletion=lambda: _ON_LOSS,
            rich_help_panel="Running",
        ),
    ] = "reload",
    seed: opt.Seed = None,
    no_center: opt.NoCenter = False,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="The column that names the rows; not part of the data.",
            rich_help_panel="Reading",
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label",
            metavar="COLUMN",
            help="A column to leave out and write beside the scores.",
            rich_help_panel="Reading",
        ),
    ] = None,
    option: opt.Option = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep checkpoints there, also when it is done. Default: OUTPUT.checkpoint, until then.",
            rich_help_panel="Running",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the checkpoint, if there is one.", rich_help_panel="Running"
        ),
    ] = False,
    report: opt.Report = None,
    log: opt.Log = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> int:
    """Find principal components of files, with a certificate, and write a model folder.

    Files are read in blocks by the workers; nothing needs to fit into memory. The folder has
    model.json, components, eigenvalues, mean and scores, for grassia project and grassia check.
    Until it is written, the run is kept in OUTPUT.checkpoint every minute and at Ctrl-C, for grassia resume.

    Examples:

    grassia pca rows.npy -k 10 --workers 4 -o model/
    grassia pca table.csv -k 5 --id sample --label group --format csv -o model/
    grassia pca data/*.parquet -k 20 -w 4 --tol 1e-4 --no-scores -o model/
    grassia pca store.h5 --dataset X -k 3 --json
    grassia pca rows.npy -k 10 --checkpoint kept/ --report report.html -o model/
    grassia pca geno.bed -k 10 --option missing=mean --eigenvec -o model/

    Exit codes: 0 certified; 1 finished, but not certified; 2 bad input or usage;
    3 a worker was lost or a component failed; 130 interrupted.
    """
    check_numbers(k, tol, seed, time_limit)
    one_of(solver, opt.solver_names(), "--solver")
    one_of(form, FORMATS, "--format")
    one_of(precision, _PRECISIONS, "--precision")
    one_of(on_loss, _ON_LOSS, "--on-loss")
    left_out = [*(drop or []), *(column for column in (id_column, label_column) if column is not None)]
    return Fit(
        inputs=inputs,
        options=format_options(dataset, columns, left_out, option or []),
        center=not no_center,
        k=k,
        output=str(output),
        form=form,
        eigenvec=eigenvec,
        scores=scores,
        overwrite=overwrite,
        workers=workers,
        backend=backend,
        address=address,
        shards=shards,
        tol=tol,
        solver=solver,
        time_limit=time_limit,
        precision=precision,
        faults=fault or [],
        seed=seed,
        id_column=id_column,
        label_column=label_column,
        on_loss=on_loss,
        checkpoint=checkpoint or f"{os.path.normpath(output)}.checkpoint",
        temporary=checkpoint is None,
        resume=resume,
        report=report,
        log=log,
        as_json=as_json,
        quiet=quiet,
    ).run()
