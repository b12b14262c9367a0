"""`grassia simulate`: solvers side by side on the virtual clock, with delays and failures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

import grassia
from grassia.backends import Simulated
from grassia.backends.service import Bursty, Fixed, LogNormal, Pareto, ServiceTime, Uniform
from grassia.cli import _options as opt
from grassia.cli._compare import HEAD, Outcome, chosen_solvers, compare
from grassia.cli._inputs import Source, format_options
from grassia.cli._kept import Journal
from grassia.cli._model import plain
from grassia.cli._outcome import FAILED, OK
from grassia.cli._running import check_numbers, check_size
from grassia.cli._tables import show_table
from grassia.cli.demo import generate
from grassia.data import Components
from grassia.errors import InvalidComponent, InvalidInput

_USUAL = ["nystrom", "grassia", "krylov", "power"]

_SERVICE: dict[str, tuple[Callable[..., ServiceTime], str]] = {
    "fixed": (Fixed, "fixed:SECONDS"),
    "uniform": (Uniform, "uniform:LOW:HIGH"),
    "lognormal": (LogNormal, "lognormal:MEAN:SIGMA"),
    "pareto": (Pareto, "pareto:ALPHA:SCALE"),
    "bursty": (lambda *given: Bursty(Fixed(), *given), "bursty:FACTOR:CALM:BURST"),
}


def simulate(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]", help="Files of rows, as for grassia pca. Default: made data."),
    ] = None,
    k: opt.K = 3,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Solvers to compare. May be repeated. Default: nystrom, grassia, krylov, power.",
            autocompletion=opt.solver_names,
        ),
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", "-w", metavar="N[,N...]", help="How many workers.")
    ] = "8",
    delay: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="How long tasks take: fixed:1, uniform:0.5:1.5, lognormal:0:1, pareto:1.5:1, bursty:10.",
            autocompletion=lambda: list(_SERVICE),
        ),
    ] = "fixed:1",
    straggler: Annotated[
        float, typer.Option(metavar="FACTOR", help="How many times slower worker 0 is; 1: not.")
    ] = 1.0,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="e.g. crash:2@20, corrupt:*@1%, delay:*:5s@10%. May be repeated."),
    ] = None,
    latency: Annotated[float, typer.Option(help="Seconds that each message travels.")] = 0.0,
    bandwidth: Annotated[float, typer.Option(help="Bytes a second of each worker's link.")] = math.inf,
    rows: Annotated[int, typer.Option(help="Rows of the made data.")] = 4000,
    features: Annotated[int, typer.Option(help="Its columns.")] = 60,
    tol: opt.Tol = 1e-6,
    max_passes: Annotated[
        float, typer.Option(help="Give up after so many passes.", rich_help_panel="Running")
    ] = 2000,
    seed: Annotated[
        int, typer.Option(help="Of data, start, delays and faults.", rich_help_panel="Running")
    ] = 0,
    no_center: opt.NoCenter = False,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    option: opt.Option = None,
    resume: opt.Resume = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> int:
    """Compare solvers under delays and failures on a virtual clock, without waiting for them.

    Products are computed for real; how long they take is made up, so that the same seed gives the
    same table everywhere. Seconds are virtual. Until all runs are done those that are done are kept
    in grassia-simulate.json, for --resume.

    Examples:

    grassia simulate --straggler 20
    grassia simulate --workers 4,16,64 --delay pareto:1.5:1 --solver nystrom,krylov
    grassia simulate rows.npy -k 10 --fault crash:2@20 --fault 'corrupt:*@1%'

    Exit codes: 0 at least one run was certified; 1 none was; 2 bad input or usage; 130 interrupted.
    """
    check_numbers(k, tol, seed)
    counts = _counts(workers)
    names = chosen_solvers(solver, _USUAL)
    service = _service(delay)
    if not straggler >= 1.0:
        raise InvalidInput(f"--straggler must be a factor of at least 1; got {straggler}.")
    if not max_passes > 0.0:
        raise InvalidInput(f"--max-passes must be positive; got {max_passes}.")
    rules = [*([f"slow:0:{straggler:g}x"] if straggler > 1.0 else []), *(fault or [])]
    injector = grassia.Injector.parse(rules, seed=seed)
    source = None
    if inputs:
        source = Source(inputs, format_options(dataset, columns, drop or [], option or []), not no_center)
    asked = {"inputs": list(inputs or []), "k": k, "delay": delay, "rules": rules, "latency": latency}
    asked |= {"bandwidth": str(bandwidth), "rows": rows, "features": features, "tol": tol}
    journal = Journal("grassia-simulate.json", {**asked, "max_passes": max_passes, "seed": seed}, resume)
    status = Console(stderr=True, highlight=False)
    outcomes: list[Outcome] = []
    with journal:
        for count in counts:
            injector.check(count)
            components = _components(source, count, rows, features, k, seed, not no_center)
            for name in names:
                known = journal.found(name, count)
                if known is not None:
                    outcomes.append(known)
                    continue
                engine = Simulated(
                    workers=count,
                    service=service,
                    latency=latency,
                    bandwidth=bandwidth,
                    seed=seed,
                    faults=injector,
                )
                with status.status(f"{name}, {count} workers"):
                    try:
                        found = compare(
                            name, components, k, engine, count, tol=tol, rng=seed, max_passes=max_passes
                        )
                    except InvalidComponent as error:
                        raise error if source is None else source.told(error) from error
                journal.add(found)
                outcomes.append(found)
    if as_json:
        print(
            json.dumps(plain({"k": k, "tol": tol, "delay": delay, "runs": [o.to_dict() for o in outcomes]}))
        )
    else:
        _show(outcomes, source, rows, features, k, tol, delay, rules)
    return OK if any(one.converged for one in outcomes) else FAILED


def _show(
    outcomes: list[Outcome],
    source: Source | None,
    rows: int,
    features: int,
    k: int,
    tol: float,
    delay: str,
    rules: list[str],
) -> None:
    console = Console(highlight=False)
    what = f"made data, {rows} x {features}" if source is None else source.text
    console.print(
        f"{what}; k = {k}, tol = {tol:g}; tasks take {delay}; faults: {', '.join(rules) or 'none'}",
        markup=False,
        soft_wrap=True,
    )
    show_table(
        console,
        ("solver", "workers", *HEAD),
        [(o.solver, f"{o.workers}", *o.cells()) for o in outcomes],
    )
    for one in outcomes:
        if one.text:
            console.print(f"{one.solver}: {one.text}", markup=False, soft_wrap=True)


def _components(
    source: Source | None, count: int, rows: int, features: int, k: int, seed: int, center: bool
) -> Components:
    """The data in one component for each worker."""
    if source is not None:
        components = source.components(count)
        check_size(k, components, source)
        if len(components) < count:
            raise InvalidInput(f"--workers must be at most the number of rows; got {count}.")
        return components
    if not 1 <= k < features:
        raise InvalidInput(f"-k must satisfy 1 <= k < features; got k={k}, features={features}.")
    if rows < max(2, count):
        raise InvalidInput(f"--rows must be at least 2 and at least the number of workers; got {rows}.")
    return grassia.from_rows(generate(rows, features, k, seed), count, center)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InvalidInput(f"--workers must be numbers of at least 1, with commas; got {text!r}.")
    return counts


def _service(text: str) -> ServiceTime:
    """A model of service times from its text.

    >>> _service("uniform:1:2")
    Uniform(low=1.0, high=2.0)
    """
    kind, *numbers = text.split(":")
    if kind not in _SERVICE:
        shapes = ", ".join(shape for _, shape in _SERVICE.values())
        raise InvalidInput(f"--delay must be one of {shapes}; got {text!r}.")
    make, shape = _SERVICE[kind]
    try:
        return make(*(float(number) for number in numbers))
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"--delay must be written {shape}; got {text!r}.") from error
