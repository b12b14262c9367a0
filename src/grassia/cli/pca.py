"""`grassia pca`: principal components of files, certified, written into a model folder."""

from __future__ import annotations

import json
import math
import platform
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import grassia
from grassia.cli import _options as opt
from grassia.cli._demo_report import in_words
from grassia.cli._inputs import Source, engine_of, format_options, resolved_backend
from grassia.cli._model import Add, Model, ModelFolder
from grassia.cli._outcome import INTERRUPTED, code_of, one_of
from grassia.cli._row_names import RowNames
from grassia.cli._running import check_numbers, check_size, run_watched
from grassia.cli._scores import score_dtype, write_scores
from grassia.cli._tables import show_table
from grassia.cli._writing import FORMATS, CsvRows, EigenvecRows, component_names
from grassia.data import Components
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.result import Result, Status

_OUTPUT = "Output"
_PRECISIONS = ["auto", "float32", "float64"]
_MOST_SHOWN = 20


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
    time_limit: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Stop after so long with the best so far.", rich_help_panel="Running"
        ),
    ] = None,
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
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> int:
    """Find principal components of files, with a certificate, and write a model folder.

    Files are read in blocks by the workers; nothing needs to fit into memory. The folder has
    model.json, components, eigenvalues, mean and scores, for grassia project and grassia check.

    Examples:

    grassia pca rows.npy -k 10 --workers 4 -o model/
    grassia pca table.csv -k 5 --id sample --label group --format csv -o model/
    grassia pca data/*.parquet -k 20 -w 4 --tol 1e-4 --no-scores -o model/
    grassia pca store.h5 --dataset X -k 3 --json
    grassia pca geno.bed -k 10 --option missing=mean --eigenvec -o model/

    Exit codes: 0 certified; 1 finished, but not certified; 2 bad input or usage;
    3 a worker was lost or a component failed; 130 interrupted.
    """
    check_numbers(k, tol, seed, time_limit)
    one_of(solver, opt.solver_names(), "--solver")
    one_of(form, FORMATS, "--format")
    one_of(precision, _PRECISIONS, "--precision")
    name = resolved_backend(backend, workers)
    left_out = [*(drop or []), *(column for column in (id_column, label_column) if column is not None)]
    source = Source(inputs, format_options(dataset, columns, left_out, option or []), not no_center)
    if (id_column or label_column) and not source.of_tables:
        raise InvalidInput(f"--id and --label name columns of CSV and Parquet files; got {source.text}.")
    engine = engine_of(name, workers, address, fault)
    with ModelFolder(output, form, overwrite) as folder:
        components = source.components(shards or (1 if name == "serial" else workers))
        check_size(k, components, source)
        names = RowNames(components, id_column, label_column)
        result = run_watched(
            source,
            components,
            k,
            engine,
            quiet=quiet,
            solver=solver,
            tol=tol,
            rng=seed,
            time_limit=time_limit,
            precision=precision,
        )
        if result.status is Status.INTERRUPTED:  # without a certificate there is no model to write
            return INTERRUPTED
        model = _model_of(result, components)
        folder.arrays(model.components, model.eigenvalues, model.mean, model.feature_names)
        if eigenvec:
            _write_values(folder.path, model.eigenvalues)
        if scores or eigenvec:
            _write_rows(folder, model, components, names, scores, eigenvec)
        asked = {
            "inputs": list(inputs),
            "format": source.format,
            "options": dict(source.options),
            "k": k,
            "tol": tol,
            "solver": solver,
            "backend": name,
            "workers": workers,
            "time_limit": time_limit,
            "precision": precision,
            "seed": seed,
            "id": id_column,
            "label": label_column,
        }
        written = folder.finish(_manifest(asked, model, components, result))
    if as_json:
        print(json.dumps(written))
    else:
        _show(written, result, output, folder.files, quiet)
    return code_of(result.status)


def _model_of(result: Result, components: Components) -> Model:
    names = components.feature_names
    return Model(
        components=np.ascontiguousarray(result.vectors.T),
        eigenvalues=np.asarray(result.values),
        mean=result.stats["mean"],
        feature_names=None if names is None else list(names),
    )


def _write_rows(
    folder: ModelFolder, model: Model, components: Components, names: RowNames, scores: bool, eigenvec: bool
) -> None:
    """Scores and the table of sample eigenvectors, in one pass over the rows."""
    n_rows = components.n_rows or 0
    with ExitStack() as stack:
        takers: list[Add] = []
        if scores:
            dtype = score_dtype(components)
            takers.append(stack.enter_context(folder.scores(n_rows, model.k, dtype, names.header)))
            if names.known and folder.form in ("npy", "npz"):
                stream = stack.enter_context(
                    open(folder.path / "rows.csv", "w", encoding="utf-8", newline="")
                )
                takers.append(_NamesOnly(CsvRows(stream, names.header)).add)
        if eigenvec:
            stream = stack.enter_context(open(folder.path / "model.eigenvec", "w", encoding="utf-8"))
            lengths = np.sqrt(np.maximum(np.nan_to_num(model.eigenvalues), 0.0) * n_rows)
            table = EigenvecRows(stream, lengths, names.families)
            families = names.with_families() if names.families else None
            takers.append(lambda rows, called: table.add(rows, _samples(called, families)))
        write_scores(model, components, names, takers)


class _NamesOnly:
    """What rows are called, for formats that hold numbers only."""

    def __init__(self, table: CsvRows) -> None:
        self._table = table

    def add(self, rows: Any, names: Any) -> None:
        self._table.add(np.empty((len(names), 0)), names)


def _samples(called: Any, families: Any) -> list[tuple[str, ...]]:
    """Only what names a row; with its family, where there is one."""
    if families is None:
        return [(name[0],) for name in called]
    return [next(families) for _ in called]


def _write_values(folder: Path, values: Array) -> None:
    text = "".join(f"{value:.10g}\n" for value in values)
    (folder / "model.eigenval").write_text(text, encoding="utf-8")


def _manifest(asked: dict[str, Any], model: Model, components: Components, result: Result) -> dict[str, Any]:
    rows, certificate, stats = components.n_rows, result.certificate, result.stats
    total = None if certificate is None else certificate.total
    values = model.eigenvalues
    # Variances have n - 1 degrees of freedom; about zero there is no mean to take one off.
    scale = rows / (rows - 1) if rows and rows > 1 and model.center else 1.0
    counts = (
        "seconds",
        "passes",
        "updates",
        "products",
        "bytes_sent",
        "bytes_received",
        "answers",
        "workers",
    )
    return {
        "grassia": grassia.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "asked": asked,
        "status": result.status.name,
        "converged": result.converged,
        "advice": result.status.advice,
        "k": model.k,
        "tol": asked["tol"],
        "center": model.center,
        "solver": stats["solver"],
        "solver_reason": stats["solver_reason"],
        "backend": stats["backend"],
        "seed": stats["seed"],
        "n_rows": rows,
        "n_features": model.n_features,
        "dtype": None if components.dtype is None else str(components.dtype),
        "sparse": components.sparse,
        "eigenvalues": values,
        "explained_variance": np.maximum(values, 0.0) * scale,
        "explained_variance_ratio": np.maximum(values, 0.0) / (total or math.nan),
        "singular_values": None if rows is None else np.sqrt(np.maximum(values, 0.0) * rows),
        "total_variance": None if total is None else total * scale,
        "certificate": certificate,
        "run": {name: stats[name] for name in counts},
        "events": [
            f"{event.time:.3f} s: {event.kind}: {event.text}" for event in result.history.events[:100]
        ],
        "feature_names": model.feature_names,
    }


def _show(written: dict[str, Any], result: Result, output: Path, files: list[str], quiet: bool) -> None:
    console = Console(highlight=False)
    if not quiet:
        said, rows = 0.0, []
        ratios = zip(
            component_names(written["k"]),
            written["explained_variance"],
            written["explained_variance_ratio"],
            strict=True,
        )
        for i, (name, variance, ratio) in enumerate(ratios):
            said += ratio or 0.0
            if i < _MOST_SHOWN or i == written["k"] - 1:
                rows.append((name, _number(variance, ".6g"), _number(ratio, ".2%"), _number(said, ".2%")))
        show_table(console, ("", "variance", "explained", "together"), rows)
        for sentence in in_words(result.certificate):
            console.print(f"- {sentence}", markup=False, soft_wrap=True)
        run = written["run"]
        console.print(
            f"{written['n_rows']} rows x {written['n_features']} columns; {written['solver']} on "
            f"{written['backend']}, {run['passes']:.1f} passes, {run['seconds']:.1f} s; "
            f"seed {written['seed']}",
            soft_wrap=True,
        )
        console.print(f"written to {output}: {', '.join(files)}", markup=False, soft_wrap=True)
    certificate = result.certificate
    bound = "no bound" if certificate is None else f"sine <= {certificate.sin_theta.value:.2g}"
    style = "bold green" if result.converged else "bold red"
    console.print(f"{result.status.name}: {bound}, asked {written['tol']:g}", style=style, soft_wrap=True)
    if not result.converged:
        console.print(result.status.advice, markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
