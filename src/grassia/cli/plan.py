"""`grassia plan`: what a run would take, before it is made."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

import grassia
from grassia.cli import _options as opt
from grassia.cli._inputs import Source, engine_of, format_options, parts_of, resolved_backend
from grassia.cli._outcome import one_of
from grassia.cli._running import check_numbers, check_size


def plan(
    inputs: opt.Inputs,
    k: opt.K = 10,
    workers: opt.Workers = 1,
    backend: opt.Backend = None,
    shards: opt.Shards = None,
    tol: opt.Tol = 1e-6,
    solver: opt.SolverName = "auto",
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES", help="What the solver may keep on the server.", rich_help_panel="Running"
        ),
    ] = None,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Try a few rows to estimate the passes.", rich_help_panel="Running"),
    ] = False,
    no_center: opt.NoCenter = False,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    option: opt.Option = None,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Say beforehand what a run would take: memory, messages, passes, and which solver and why.

    No row is read, except of text files, which are gone through to count them. Takes the options of
    grassia pca.

    Examples:

    grassia plan rows.npy -k 10 --workers 4
    grassia plan 'data/*.parquet' -k 50 --sample --json

    Exit codes: 0 done; 2 bad input or usage.
    """
    check_numbers(k, tol)
    one_of(solver, opt.solver_names(), "--solver")
    name = resolved_backend(backend, workers)
    source = Source(inputs, format_options(dataset, columns, drop or [], option or []), not no_center)
    components = source.components(parts_of(shards, name, workers))
    check_size(k, components, source)
    found = grassia.plan(
        components,
        k,
        solver=solver,
        backend=engine_of(name, workers),
        tol=tol,
        workers=None if name == "serial" else workers,
        budget=budget,
        sample=sample,
    )
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        Console(highlight=False).print(
            str(found).replace("sample=True", "--sample"), markup=False, soft_wrap=True
        )
    return 0
