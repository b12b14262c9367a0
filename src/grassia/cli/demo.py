"""`grassia demo`: generated data on local workers, one of them slow, checked by a dense oracle."""

from __future__ import annotations

import time
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import grassia
from grassia import backends, geometry, solvers
from grassia.cli import _demo_report as report
from grassia.cli import _options as opt
from grassia.cli._kept import Looking, interruptible, report_path
from grassia.cli._outcome import code_of, spoken
from grassia.cli._progress import watcher
from grassia.errors import InvalidInput, MissingExtra
from grassia.messages import Array
from grassia.plotting import distance_plot, text_chart
from grassia.report.contents import scatter_of
from grassia.result import Result, Status
from grassia.run import Progress

MOST_POINTS = 1000


class Name(StrEnum):
    """The back-ends."""

    processes = "processes"
    threads = "threads"
    serial = "serial"
    simulated = "simulated"


def demo(
    rows: Annotated[int, typer.Option(help="Rows of the generated data.")] = 40_000,
    features: Annotated[int, typer.Option(help="Its columns.")] = 400,
    k: Annotated[int, typer.Option("-k", help="Dimension of the eigenspace.")] = 5,
    workers: Annotated[int, typer.Option(help="Workers; each holds a block of rows.")] = 4,
    slow: Annotated[
        float, typer.Option(metavar="FACTOR", help="How many times slower worker 0 is; 1: not.")
    ] = 10.0,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="More faults, e.g. crash:2@20 or corrupt:*@1%. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data, the start and the faults.")] = 0,
    tol: Annotated[float, typer.Option(help="Wanted sine of the largest angle.")] = 1e-6,
    solver: Annotated[str, typer.Option(help="nystrom (far fewer passes), grassia, power, ...")] = "grassia",
    backend: Annotated[Name, typer.Option(help="Where the workers run.")] = Name.processes,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for what it writes.")] = Path(
        "grassia-demo"
    ),
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="The report. Default: report.html in the folder."),
    ] = None,
    resume: opt.Resume = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> int:
    """Find a leading eigenspace on local workers, one of them slow, and check the answer.

    Shows progress, eigenvalues, the certificate and the distance to a dense oracle. Writes report.html (to
    be opened in a browser, also while it runs), distance.png (extra `plot`) and result.npz. Ends with 0 if
    converged. Interrupted, it keeps the run in the folder `checkpoint` there, for --resume.
    """
    faults = _check(rows, features, k, workers, slow, fault or [], seed, tol)
    method = solvers.get(solver)
    output.mkdir(parents=True, exist_ok=True)
    page = report_path(str(report_file or output / "report.html"))
    console = Console(highlight=False)
    say = Console(quiet=True) if quiet else console
    what = f"{rows} x {features} rows on {workers} workers ({backend}), {method.name}, k = {k}, tol = {tol:g}"
    say.print(f"[bold]grassia {grassia.__version__}[/bold]  {what}")
    say.print(f"faults: {', '.join(faults) or 'none'}")

    X = generate(rows, features, k, seed)
    started = time.perf_counter()
    oracle, leading = dense_oracle(X, k)
    oracle_seconds = time.perf_counter() - started
    say.print(f"dense oracle (one covariance, eigh): {oracle_seconds:.2f} s")

    engine = _engine(backend, workers, faults, seed)
    names = [f"{'block' if backend is Name.serial else 'worker'} {i}" for i in range(workers)]
    notes = report.notes(workers, faults)
    trace, looking = Trace(), Looking(str(page), None, True, "grassia demo")
    kept = interruptible(output / "checkpoint", resume)
    with kept as plan, watcher(say, names, notes, quiet) as display, looking, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the status is reported below, in words
        result = grassia.eigenspace(
            grassia.from_rows(X, n_components=workers),
            k,
            solver=method,
            backend=engine,
            tol=tol,
            rng=seed,
            callbacks=[trace, *looking.callbacks, display],
            checkpoint=plan,
        )
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
    times, distances = trace.distances(oracle, result)
    found = report.Demo(
        what=what,
        faults=faults,
        seed=seed,
        names=names,
        notes=notes,
        result=result,
        leading=leading,
        oracle_seconds=oracle_seconds,
        sine=geometry.projection_distance(result.vectors, oracle),
        times=times,
        distances=distances,
        certifying=trace.certifying(result),
        virtual=backend is Name.simulated,
    )
    found.show(say)
    width = min(console.width, 100) - 1
    chart = text_chart(times, distances, width=width, tol=tol, ascii_only=not _unicode(console))
    say.print("\n[bold]Geodesic distance to the dense oracle over time[/bold]")
    say.print(chart, markup=False, soft_wrap=True)
    picture, missing = _picture(found, output / "distance.png", tol)
    told = f"{what}. Seed {seed}. Faults: {', '.join(faults) or 'none'}."
    scatter = scatter_of((X - X.mean(axis=0)) @ result.vectors)
    looking.finish(result, told, scatter, names=names, notes=notes, more=found.sections(tol))
    found.save(output / "result.npz")
    if missing:
        say.print(f"no distance.png: {missing}", markup=False, soft_wrap=True)
    files = [*([] if report_file else [page.name]), *([picture] if picture else []), "result.npz"]
    say.print(f"written to {output}: {', '.join(files)}", soft_wrap=True)
    if report_file:
        say.print(f"report: {page}", markup=False, soft_wrap=True)
    style = "bold green" if result.converged else "bold red"
    console.print(found.verdict(), style=style, soft_wrap=True)
    if not result.converged:
        console.print(spoken(result.status.advice), markup=False)
    return code_of(result.status)


def generate(rows: int, features: int, k: int, seed: int) -> Array:
    """Gaussian rows with a mean: variances 1 to 0.5 in k directions, then 0.4, falling by 2 %."""
    rng = np.random.default_rng(seed)
    head = np.linspace(1.0, 0.5, k)
    spectrum = np.concatenate([head, 0.4 * 0.98 ** np.arange(features - k)])
    turn = geometry.random_point(features, features, rng)
    X = rng.standard_normal((rows, features)) @ (np.sqrt(spectrum)[:, None] * turn.T)
    X += rng.standard_normal(features)
    return np.asarray(X)


def dense_oracle(X: Array, k: int) -> tuple[Array, Array]:
    """The leading k eigenvectors of the covariance, and its leading k + 1 eigenvalues."""
    values, vectors = np.linalg.eigh(np.cov(X, rowvar=False, bias=True))
    return np.ascontiguousarray(vectors[:, : -k - 1 : -1]), values[: -k - 2 : -1]


class Trace:
    """A callback that keeps iterates, evenly thinned; distances are worked out after the run."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._iterates: list[Array] = []
        self._stride, self._seen, self._last = 1, 0, -1
        self._frozen = 0.0
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "certifying" and self._phase != "certifying":
            self._frozen = progress.time
        self._phase = progress.phase
        vectors = progress.vectors
        if vectors is None or progress.version == self._last:
            return
        self._last = progress.version
        if self._seen % self._stride == 0:
            self._times.append(progress.time)
            self._iterates.append(vectors)
        self._seen += 1
        if len(self._times) > MOST_POINTS:
            self._times, self._iterates = self._times[::2], self._iterates[::2]
            self._stride *= 2

    def distances(self, oracle: Array, result: Result) -> tuple[Array, Array]:
        """Times, and geodesic distances to the oracle; the last is that of the answer."""
        pairs = [
            (moment, geometry.geodesic_distance(vectors, oracle))
            for moment, vectors in zip(self._times, self._iterates, strict=True)
        ]
        pairs.append((result.stats["seconds"], geometry.geodesic_distance(result.vectors, oracle)))
        times, distances = np.array(pairs).T
        return times, distances

    def certifying(self, result: Result) -> tuple[float, float] | None:
        """When the certificate that was accepted was made."""
        return (self._frozen, result.stats["seconds"]) if result.converged else None


def _check(
    rows: int,
    features: int,
    k: int,
    workers: int,
    slow: float,
    rules: list[str],
    seed: int,
    tol: float,
) -> list[str]:
    """Refuse what cannot run before anything is started; return all fault rules."""
    if features < 2:
        raise InvalidInput(f"--features must be at least 2; got {features}.")
    if not 1 <= k < features:
        raise InvalidInput(f"-k must satisfy 1 <= k < features; got k={k}, features={features}.")
    if workers < 1:
        raise InvalidInput(f"--workers must be at least 1; got {workers}.")
    if rows < max(2, workers):
        raise InvalidInput(
            f"--rows must be at least 2 and at least the number of workers; got rows={rows}, "
            f"workers={workers}."
        )
    if seed < 0:
        raise InvalidInput(f"--seed must be >= 0; got {seed}.")
    if not 0.0 < tol < 1.0:
        raise InvalidInput(f"--tol is a sine and must satisfy 0 < tol < 1; got {tol}.")
    if not slow >= 1.0:
        raise InvalidInput(f"--slow must be a factor of at least 1; got {slow}.")
    faults = [f"slow:0:{slow:g}x"] if slow > 1.0 else []
    grassia.Injector.parse(faults + rules).check(workers)
    return faults + rules


def _engine(name: Name, workers: int, faults: list[str], seed: int) -> backends.Backend:
    injector = grassia.Injector.parse(faults, seed=seed)
    if name is Name.serial:
        return backends.Serial(faults=injector)
    return backends.get(name.value, workers=workers, faults=injector)


def _picture(found: report.Demo, path: Path, tol: float) -> tuple[str | None, str | None]:
    """Draw the plot: (its file name, None), or (None, which extra is missing)."""
    path.unlink(missing_ok=True)  # one of an earlier run would not belong to this report
    marks = [(event.time, event.kind) for event in found.result.history.events[:50]]
    clock = "virtual" if found.virtual else "wall-clock"
    try:
        distance_plot(
            found.times,
            found.distances,
            path,
            tol=tol,
            marks=marks,
            span=found.certifying,
            title=found.caption,
            xlabel=f"{clock} time (s)",
        )
    except MissingExtra as error:
        return None, str(error)
    return path.name, None


def _unicode(console: Console) -> bool:
    return "utf" in console.encoding.lower()
