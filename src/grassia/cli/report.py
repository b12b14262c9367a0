"""`grassia report`: an HTML report from a log, from a model folder, or from both."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from grassia._optional import require
from grassia.cli import _options as opt
from grassia.cli._kept import report_path
from grassia.cli._model import MANIFEST, Model
from grassia.errors import InvalidInput
from grassia.report.contents import Contents, Scatter, from_log, now, read_certificate, scatter_of
from grassia.report.live import save


def report(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE", help="A log of --log, a model folder of grassia pca, or one of each."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The heading. Default: the name of the source.")] = None,
    overwrite: opt.Overwrite = False,
    debug: opt.Debug = False,
) -> int:
    """Make a self-contained HTML report of a run, from what it left behind.

    A log has how it went; a model folder has the spectrum, the certificate and the scores. Given both, the
    report has all of it.

    Examples:

    grassia report run.jsonl -o report.html
    grassia report model/ run.jsonl -o report.html

    Exit codes: 0 done; 2 bad input or usage.
    """
    path = report_path(str(output), overwrite)
    folders = [source for source in sources if Path(source).is_dir() or Path(source).name == MANIFEST]
    logs = [source for source in sources if source not in folders]
    if len(folders) > 1 or len(logs) > 1:
        raise InvalidInput(
            f"a report is of one log, one model folder, or one of each; got {', '.join(sources)}."
        )
    found = from_log(logs[0], title) if logs else Contents(written=now())
    if folders:
        found = _with_model(found, folders[0], bool(logs))
    if title is not None:
        found = replace(found, title=title)
    save(path, found)
    print(f"written: {path}")
    return 0


def _with_model(base: Contents, folder: str, logged: bool) -> Contents:
    """What a model folder has, beside what a log had."""
    model = Model.load(folder)
    said = model.manifest
    run = dict(said.get("run") or {})
    stats = {"solver": said["solver"], "backend": said["backend"], "seed": said["seed"], **run}
    stats["solver_reason"] = said.get("solver_reason")
    if logged and (base.k != model.k or (base.status is not None and base.status != said["status"])):
        raise InvalidInput(f"the log and the model in {folder} are not of the same run.")
    return replace(
        base,
        title=f"grassia pca {' '.join(said['asked']['inputs'][:3])}",
        what=f"{said['n_rows']} rows, {said['n_features']} columns, k = {model.k}; {said['created']}",
        k=model.k,
        tol=float(said["tol"]),
        status=str(said["status"]),
        advice=str(said["advice"]),
        certificate=read_certificate(said["certificate"]),
        values=[float(value) for value in model.eigenvalues],
        features=model.n_features,
        stats={**base.stats, **stats},
        scatter=_scatter(Path(folder), said),
    )


def _scatter(given: Path, said: Any) -> Scatter | None:
    """Scores along the first two components, with labels where there are any."""
    folder = given.parent if given.name == MANIFEST else given
    form, name = said["arrays"]["format"], said["arrays"]["files"].get("scores")
    if name is None or said["k"] < 2 or not (folder / name).is_file():
        return None
    if form in ("npy", "npz"):
        stored = np.load(folder / name, mmap_mode="r" if form == "npy" else None, allow_pickle=False)
        scores = stored if form == "npy" else stored["scores"]
        return scatter_of(scores[:, :2], _labels_beside(folder, len(scores)))
    if form == "parquet":
        columns = require("pyarrow.parquet", "parquet").read_table(folder / name).to_pydict()
    else:
        columns = _csv_columns(folder / name)
    points = np.column_stack([np.array(columns[c], dtype=np.float64) for c in ("PC1", "PC2")])
    return scatter_of(points, columns.get("label"))


def _labels_beside(folder: Path, count: int) -> list[str] | None:
    if not (folder / "rows.csv").is_file():
        return None
    labels = _csv_columns(folder / "rows.csv").get("label")
    return labels if labels is not None and len(labels) == count else None


def _csv_columns(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        head = next(rows)
        return dict(zip(head, map(list, zip(*rows, strict=True)), strict=False))
