"""A fit from files to a model folder: what `grassia pca` and `grassia resume` do once all is said.

With a checkpoint folder, what was asked is written there as `pca.json`, so that a run can be resumed by the
name of that folder alone.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.console import Console

import grassia
from grassia.checkpoint import Checkpoint, latest
from grassia.cli._inputs import Source, engine_of, parts_of, resolved_backend
from grassia.cli._kept import Looking, Stopped
from grassia.cli._model import Add, Model, ModelFolder
from grassia.cli._outcome import code_of, spoken
from grassia.cli._row_names import RowNames
from grassia.cli._running import check_size, run_watched
from grassia.cli._scores import score_dtype, write_scores
from grassia.cli._tables import show_table
from grassia.cli._writing import CsvRows, EigenvecRows, component_names
from grassia.data import Components
from grassia.errors import GrassiaError, InvalidInput
from grassia.messages import Array
from grassia.report.contents import Scatter, some_rows
from grassia.report.words import in_words
from grassia.result import Result, Status

__all__ = ["ASKED", "Fit"]

ASKED = "pca.json"
_MOST_SHOWN = 20
# How a run may end that would have gone on if it had been let.
_UNFINISHED = (Status.TIME_LIMIT, Status.MAX_PASSES, Status.WORKER_LOST, Status.COMPONENT_FAILED)


@dataclass(frozen=True)
class Fit:
    """What was asked of `grassia pca`; the names are those of its options.

    Parameters
    ----------
    resume : bool
        Go on from the checkpoint if there is one.
    temporary : bool
        Whether the checkpoint is of no use to anybody once the model is written.
    """

    inputs: Sequence[str]
    options: dict[str, Any] = field(default_factory=dict)
    center: bool = True
    k: int = 10
    output: str = "model"
    form: str = "npy"
    eigenvec: bool = False
    scores: bool = True
    overwrite: bool = False
    workers: int = 1
    backend: str | None = None
    address: str | None = None
    shards: int | None = None
    tol: float = 1e-6
    solver: str = "auto"
    time_limit: float | None = None
    precision: str = "auto"
    faults: Sequence[str] = ()
    seed: int | None = None
    id_column: str | None = None
    label_column: str | None = None
    on_loss: str = "reload"
    checkpoint: str = "model.checkpoint"
    temporary: bool = False
    resume: bool = False
    report: str | None = None
    log: str | None = None
    as_json: bool = False
    quiet: bool = False

    # -- what was asked before ----------------------------------------------------------------------

    @classmethod
    def kept_in(cls, folder: Path) -> Self | None:
        """What was asked of the run whose checkpoints are in a folder; None where it does not say."""
        path = folder / ASKED
        if not path.is_file():
            return None
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            known = {one.name for one in fields(cls)}
            return cls(**{name: value for name, value in written["asked"].items() if name in known})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{path} is damaged ({error}); name the inputs again.") from error

    @contextmanager
    def _kept(self, folder: Path) -> Iterator[None]:
        """Inside `with`, what is asked now is in the folder; what is refused leaves what was there."""
        path = folder / ASKED
        before = path.read_bytes() if path.exists() else None
        self._keep(folder)
        try:
            yield
        except GrassiaError:
            if before is not None:
                path.write_bytes(before)
            raise

    def _keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        passing = {"report": None, "log": None, "as_json": False, "quiet": False, "resume": False}
        asked = {**asdict(self), **passing}
        text = json.dumps({"grassia": grassia.__version__, "asked": asked}, indent=1)
        (folder / ASKED).write_text(text + "\n", encoding="utf-8")

    # -- the run ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Do it, and return the exit code."""
        # Its sketch costs a read of the data; whoever asks for a checkpoint may resume after a year.
        plan = Checkpoint(self.checkpoint, resume=self.resume, sketch=not self.temporary)
        try:
            return self._run(plan)
        except KeyboardInterrupt:
            raise Stopped(_how_to_go_on(plan)) from None
        finally:
            if self.temporary and not plan.there:
                plan.remove(ASKED)

    def _run(self, plan: Checkpoint) -> int:
        name = resolved_backend(self.backend, self.workers)
        source = Source(self.inputs, self.options, self.center)
        if (self.id_column or self.label_column) and not source.of_tables:
            raise InvalidInput(f"--id and --label name columns of CSV and Parquet files; got {source.text}.")
        if plan.there and self.temporary and self.overwrite and not self.resume:
            plan.remove(ASKED)
        going_on = plan.there
        if going_on and not self.resume:
            anew = "begin anew with --overwrite" if self.temporary else "take another folder"
            raise InvalidInput(
                f"{plan.path} holds the checkpoint of a run; go on from it with grassia resume {plan.path}, "
                f"or with --resume, or {anew}."
            )
        engine = engine_of(name, self.workers, self.address, list(self.faults) or None)
        for option, path in (("--report", self.report), ("--log", self.log)):
            source.refuse_as_output(path, option)
        looking = Looking(self.report, self.log, self.overwrite, f"grassia pca {source.text}")
        with looking, ModelFolder(self.output, self.form, self.overwrite) as folder:
            parts = parts_of(self.shards, name, self.workers)
            if going_on:
                parts = sum(len(group) for group in latest(plan.folder).header["groups"])
            components = source.components(parts)
            check_size(self.k, components, source)
            names = RowNames(components, self.id_column, self.label_column)
            with self._kept(plan.folder):
                result = run_watched(
                    source,
                    components,
                    self.k,
                    engine,
                    quiet=self.quiet,
                    callbacks=looking.callbacks,
                    begin=self._begin(plan, components) if going_on else None,
                    solver=self.solver,
                    tol=self.tol,
                    rng=self.seed,
                    time_limit=self.time_limit,
                    precision=self.precision,
                    on_loss=self.on_loss,
                    checkpoint=plan,
                )
            if result.status is Status.INTERRUPTED:  # without a certificate there is no model to write
                raise Stopped(_how_to_go_on(plan))
            model = _model_of(result, components)
            folder.arrays(model.components, model.eigenvalues, model.mean, model.feature_names)
            if self.eigenvec:
                _write_values(folder.path, model.eigenvalues)
            seen = _Seen(components.n_rows or 0, names) if looking.wanted else None
            if self.scores or self.eigenvec:
                _write_rows(folder, model, components, names, self.scores, self.eigenvec, seen)
            written = folder.finish(_manifest(self._asked(source, name), model, components, result))
        looking.finish(result, _what(written, source), None if seen is None else seen.scatter)
        if self.temporary and result.status not in _UNFINISHED:
            plan.remove(ASKED)
        if self.as_json:
            print(json.dumps(written))
        else:
            _show(written, result, Path(self.output), folder.files, self.quiet)
            if result.status in _UNFINISHED and not self.quiet:
                more = f"{_how_to_go_on(plan)} --overwrite"
                Console(highlight=False).print(more, markup=False, soft_wrap=True)
            if self.report is not None and not self.quiet:
                Console(highlight=False).print(f"report: {self.report}", markup=False, soft_wrap=True)
        return code_of(result.status)

    def _begin(self, plan: Checkpoint, components: Components) -> Callable[..., Result]:
        """Go on with the run of the checkpoint; whatever is part of that is not asked for anew."""

        def begin(**options: Any) -> Result:
            kept = {name: options[name] for name in ("backend", "callbacks", "tol", "time_limit", "on_loss")}
            held = latest(plan.folder).header
            if int(held["k"]) != self.k:
                raise InvalidInput(
                    f"-k must be that of the checkpoint in {plan.path}, {held['k']}; got {self.k}."
                )
            if self.solver not in ("auto", held["solver"]["name"]):
                raise InvalidInput(
                    f"--solver must be that of the checkpoint in {plan.path}, {held['solver']['name']}; "
                    f"got {self.solver}."
                )
            return grassia.resume(replace(plan, resume=True), components, **kept)

        return begin

    def _asked(self, source: Source, backend: str) -> dict[str, Any]:
        return {
            "inputs": list(self.inputs),
            "format": source.format,
            "options": dict(source.options),
            "k": self.k,
            "tol": self.tol,
            "solver": self.solver,
            "backend": backend,
            "workers": self.workers,
            "time_limit": self.time_limit,
            "precision": self.precision,
            "seed": self.seed,
            "id": self.id_column,
            "label": self.label_column,
        }


def _how_to_go_on(plan: Checkpoint) -> str:
    """One line for whoever has interrupted it."""
    if not plan.there:
        return "there was nothing to keep yet: give the same command again"
    return f"go on with: grassia resume {shlex.quote(str(plan.path))}"


class _Seen:
    """Takes some of the rows of the scores for a picture."""

    def __init__(self, n_rows: int, names: RowNames) -> None:
        self._wanted = some_rows(n_rows)
        self._label = names.header.index("label") if "label" in names.header else None
        self._rows, self._points = 0, list[tuple[float, float]]()
        self._labels: list[str] = []

    def add(self, rows: Any, names: Sequence[tuple[str, ...]]) -> None:
        first, self._rows = self._rows, self._rows + len(rows)
        if rows.shape[1] < 2:
            return
        here = np.searchsorted(self._wanted, [first, self._rows])
        taken = self._wanted[here[0] : here[1]] - first
        self._points += [(float(a), float(b)) for a, b in rows[taken, :2]]
        if self._label is not None:
            self._labels += [names[i][self._label] for i in taken]

    @property
    def scatter(self) -> Scatter | None:
        return Scatter(self._points, self._labels, self._rows) if self._points else None


def _what(written: dict[str, Any], source: Source) -> str:
    return (
        f"{source.text}: {written['n_rows']} rows, {written['n_features']} columns, k = {written['k']}; "
        f"{written['created']}"
    )


def _model_of(result: Result, components: Components) -> Model:
    names = components.feature_names
    return Model(
        components=np.ascontiguousarray(result.vectors.T),
        eigenvalues=np.asarray(result.values),
        mean=result.stats["mean"],
        feature_names=None if names is None else list(names),
    )


def _write_rows(
    folder: ModelFolder,
    model: Model,
    components: Components,
    names: RowNames,
    scores: bool,
    eigenvec: bool,
    seen: _Seen | None,
) -> None:
    """Scores and the table of sample eigenvectors, in one pass over the rows."""
    n_rows = components.n_rows or 0
    with ExitStack() as stack:
        takers: list[Add] = [] if seen is None else [seen.add]
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
        "busy_seconds",
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
                together = None if ratio is None else said
                rows.append((name, _number(variance, ".6g"), _number(ratio, ".2%"), _number(together, ".2%")))
        # The certificate speaks of eigenvalues, which have 1/n.
        variance = "variance, 1/(n-1)" if written["center"] else "second moment"
        show_table(console, ("", variance, "explained", "together"), rows)
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
        console.print(spoken(result.status.advice), markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
