"""`grassia bench`: the solvers side by side on one's own data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from grassia.api import eigenspace
from grassia.cli import _options as opt
from grassia.cli._compare import HEAD, Outcome, chosen_solvers, compare
from grassia.cli._inputs import Source, engine_of, format_options, parts_of, resolved_backend
from grassia.cli._kept import Journal
from grassia.cli._model import plain
from grassia.cli._outcome import FAILED, OK
from grassia.cli._running import check_numbers, check_size
from grassia.cli._tables import show_table
from grassia.data import Components, from_rows

# With more features than this the matrix of all of them is not what one waits for.
_MOST_FEATURES = 4000


def bench(
    inputs: opt.Inputs,
    k: opt.K = 10,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Solvers to compare. May be repeated. Default: those for such data.",
            autocompletion=opt.solver_names,
            rich_help_panel="Running",
        ),
    ] = None,
    workers: opt.Workers = 1,
    backend: opt.Backend = None,
    address: opt.Address = None,
    shards: opt.Shards = None,
    tol: opt.Tol = 1e-6,
    time_limit: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="The most that each may take.", rich_help_panel="Running"),
    ] = 30.0,
    seed: Annotated[int, typer.Option(help="Of everything random.", rich_help_panel="Running")] = 0,
    no_center: opt.NoCenter = False,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    option: opt.Option = None,
    resume: opt.Resume = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Compare solvers on your own data: time, passes over the data, certified sine, bytes moved.

    Each run starts from the same seed and opens the data anew. Until all are done those that are
    done are kept in grassia-bench.json, for --resume; nothing else is written.

    Examples:

    grassia bench rows.npy -k 10 --workers 4
    grassia bench table.csv -k 3 --solver nystrom,power,grassia --time-limit 10

    Exit codes: 0 at least one solver was certified; 1 none was; 2 bad input or usage; 130 interrupted.
    """
    check_numbers(k, tol, seed, time_limit)
    name = resolved_backend(backend, workers)
    source = Source(inputs, format_options(dataset, columns, drop or [], option or []), not no_center)
    components = source.components(parts_of(shards, name, workers))
    check_size(k, components, source)
    names = chosen_solvers(solver, _usual(components))
    asked: dict[str, Any] = {"inputs": list(inputs), "k": k, "tol": tol, "backend": name, "workers": workers}
    asked |= {"rows": components.n_rows, "columns": components.n_features, "shards": len(components)}
    asked |= {"time_limit": time_limit, "seed": seed}
    journal = Journal("grassia-bench.json", asked, resume)
    status = Console(stderr=True, highlight=False)
    outcomes: list[Outcome] = []
    with journal:
        _warm_up()
        for one in names:
            found = journal.found(one, workers)
            if found is None:
                with status.status(f"{one} ({len(outcomes) + 1} of {len(names)})"):
                    engine = engine_of(name, workers, address)
                    limits = {"tol": tol, "rng": seed, "time_limit": time_limit}
                    with source.telling():
                        found = compare(one, components, k, engine, workers, **limits)
                journal.add(found)
            outcomes.append(found)
    if as_json:
        print(
            json.dumps(plain({"k": k, "tol": tol, "backend": name, "runs": [o.to_dict() for o in outcomes]}))
        )
    else:
        console = Console(highlight=False)
        console.print(
            f"{source.text}: {components.n_rows} rows x {components.n_features} columns, k = {k}, "
            f"tol = {tol:g}, {name}, {workers} worker{'' if workers == 1 else 's'}",
            markup=False,
            soft_wrap=True,
        )
        show_table(console, ("solver", *HEAD), [(o.solver, *o.cells()) for o in outcomes])
        for refused in (outcome for outcome in outcomes if outcome.text):
            console.print(f"{refused.solver}: {refused.text}", markup=False, soft_wrap=True)
    return OK if any(outcome.converged for outcome in outcomes) else FAILED


def _usual(components: Components) -> list[str]:
    """What one would try on such data."""
    d = components.n_features
    small = d is not None and d <= _MOST_FEATURES
    return [*(["covariance"] if small else []), "krylov", "nystrom", "lobpcg", "power", "grassia"]


def _warm_up() -> None:
    """A small run, so that the first solver is not charged for what is loaded on first use."""
    rows = np.random.default_rng(0).standard_normal((40, 4)) * [4.0, 3.0, 2.0, 1.0]
    eigenspace(from_rows(rows), 1, solver="krylov", rng=0)
