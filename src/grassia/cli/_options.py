"""Options that several commands have, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

from grassia.cli._inputs import BACKENDS

__all__ = [
    "Address",
    "Backend",
    "Columns",
    "Dataset",
    "Debug",
    "Drop",
    "Inputs",
    "Json",
    "K",
    "Log",
    "NoCenter",
    "Option",
    "Overwrite",
    "Quiet",
    "Report",
    "Resume",
    "Seed",
    "Shards",
    "SolverName",
    "TimeLimit",
    "Tol",
    "Workers",
]

_READING, _RUNNING, _SHOWING = "Reading", "Running", "Showing"


def solver_names() -> list[str]:
    """For the completion of `--solver`, and its check."""
    from grassia import solvers

    return ["auto", *solvers.names()]


def backend_names() -> list[str]:
    """For the completion of `--backend`."""
    return BACKENDS


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files, patterns, folders or addresses of rows: .npy, .csv, .parquet, .h5, .zarr, .h5ad, .npz, "
        ".svm, .bed, ... HDF5 datasets as file.h5::name.",
    ),
]
K = Annotated[int, typer.Option("-k", help="How many components.")]
Tol = Annotated[
    float, typer.Option(help="Wanted bound on the sine of the largest angle.", rich_help_panel=_RUNNING)
]
SolverName = Annotated[
    str,
    typer.Option(
        "--solver",
        help="auto, nystrom, krylov, covariance, power, grassia, ...",
        autocompletion=solver_names,
        rich_help_panel=_RUNNING,
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", "-w", help="How many work at once.", rich_help_panel=_RUNNING)
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="serial, threads, processes, ray or dask. Default: processes for several workers, else serial.",
        autocompletion=backend_names,
        rich_help_panel=_RUNNING,
    ),
]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray or Dask cluster that is running.", rich_help_panel=_RUNNING)
]
Shards = Annotated[
    int | None,
    typer.Option(
        help="Into how many components the rows are split. Default: one a worker.", rich_help_panel=_RUNNING
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Of everything random. Default: a fresh one.", rich_help_panel=_RUNNING)
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Stop after so long, from now, with the best so far.",
        rich_help_panel=_RUNNING,
    ),
]
NoCenter = Annotated[
    bool,
    typer.Option(
        "--no-center", help="Do not remove the mean: second moments, as an SVD.", rich_help_panel=_RUNNING
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="The dataset of HDF5, Zarr, .npz or AnnData files.", rich_help_panel=_READING),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...", help="Columns of tables to take, in this order.", rich_help_panel=_READING
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="A column of tables to leave out. May be repeated.", rich_help_panel=_READING
    ),
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="What else a format can be told: delimiter=';', header=false, n_features=100, ...",
        rich_help_panel=_READING,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")]
Report = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.html",
        help="Write a report there, kept up to date while the run goes on.",
        rich_help_panel=_SHOWING,
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.jsonl", help="Write a line of JSON there every second.", rich_help_panel=_SHOWING
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on from where the same command was interrupted.", rich_help_panel=_RUNNING
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON, and nothing else, on stdout.", rich_help_panel=_SHOWING),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the last line only.", rich_help_panel=_SHOWING)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=_SHOWING)]
