"""`grassia check`: certify a stored model against data anew, trusting none of its numbers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from grassia.certificate import Certificate, Certifier
from grassia.cli import _options as opt
from grassia.cli._fitting import fitting_rows
from grassia.cli._given import Frozen, once_certified
from grassia.cli._inputs import engine_of, format_options, parts_of, resolved_backend
from grassia.cli._kept import interruptible
from grassia.cli._model import Model, plain
from grassia.cli._outcome import FAILED, OK, code_of
from grassia.cli._running import check_numbers, run_watched
from grassia.errors import InvalidInput
from grassia.messages import Array
from grassia.report.words import in_words
from grassia.result import Result, Status

# Stored numbers may differ from those found now by so much of the largest, beside what is uncertain of them.
ALLOWED = 1e-8


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder that grassia pca wrote.")],
    inputs: opt.Inputs,
    tol: Annotated[
        float | None,
        typer.Option(help="The sine to certify. Default: that of the model.", rich_help_panel="Running"),
    ] = None,
    workers: opt.Workers = 1,
    backend: opt.Backend = None,
    address: opt.Address = None,
    shards: opt.Shards = None,
    sweeps: Annotated[
        int, typer.Option(help="Passes over the data at most.", rich_help_panel="Running")
    ] = 40,
    seed: opt.Seed = None,
    resume: opt.Resume = False,
    dataset: opt.Dataset = None,
    columns: opt.Columns = None,
    drop: opt.Drop = None,
    option: opt.Option = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> int:
    """Certify a model against data, independently of the run that made it.

    Every worker multiplies the stored components once more, and random vectors beside them; the bounds
    come from these products alone. The stored mean and eigenvalues are compared with what is found.
    Columns are those that the model was made of, by name. Interrupted, it keeps what it has in
    MODEL.check, for --resume.

    Examples:

    grassia check model/ rows.npy
    grassia check model/ 'data/*.parquet' --workers 4 --tol 1e-4
    grassia check model/ table.csv --json | jq .sine

    Exit codes: 0 the model holds; 1 it does not; 2 bad input or usage;
    3 a worker was lost or a component failed; 130 interrupted.
    """
    found = Model.load(model)
    asked = float(found.manifest["tol"]) if tol is None else tol
    check_numbers(found.k, asked, seed)
    if sweeps < 1:
        raise InvalidInput(f"--sweeps must be at least 1; got {sweeps}.")
    name = resolved_backend(backend, workers)
    engine = engine_of(name, workers, address)
    chosen = format_options(dataset, columns, drop or [], option or [])
    parts = parts_of(shards, name, workers)
    source, components = fitting_rows(found, inputs, chosen, parts)
    with interruptible(f"{os.path.normpath(model)}.check", resume) as plan:
        result = run_watched(
            source,
            components,
            found.k,
            engine,
            quiet=quiet,
            callbacks=[once_certified],
            solver=Frozen(),
            v0=_basis(found),
            tol=asked,
            rng=seed,
            certifier=Certifier(max_sweeps=sweeps, rigorous=True),
            checkpoint=plan if os.access(plan.folder.parent, os.W_OK) else None,
        )
        certificate = result.certificate
        if certificate is None and result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
    if certificate is None:
        return code_of(result.status)
    verdict = Verdict.of(found, result, certificate)
    if as_json:
        print(json.dumps(plain(verdict.to_dict(certificate))))
    else:
        verdict.show(Console(highlight=False), certificate, quiet)
    return OK if verdict.holds else FAILED


@dataclass(frozen=True)
class Verdict:
    """What was found wrong; nothing, where the model holds."""

    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.wrong

    @classmethod
    def of(cls, model: Model, result: Result, certificate: Certificate) -> Verdict:
        """Compare a model with a certificate of its subspace."""
        wrong = []
        sine = certificate.sin_theta.value
        if not certificate.converged:
            wrong.append(
                f"the sine of the largest angle is at most {sine:.3g}, which is {sine / certificate.tol:.3g} "
                f"times the {certificate.tol:g} asked; {_reason(certificate)}"
            )
        skew = float(np.abs(model.components @ model.components.T - np.eye(model.k)).max())
        if skew > ALLOWED:
            wrong.append(f"the components are off from orthonormal by {skew:.3g}")
        wrong += _of_values(model, result, certificate) + _of_mean(model, result.stats["mean"], certificate)
        return cls(tuple(wrong))

    def to_dict(self, certificate: Certificate) -> dict[str, Any]:
        """For JSON."""
        return {
            "holds": self.holds,
            "wrong": self.wrong,
            "sine": certificate.sin_theta.value,
            "tol": certificate.tol,
            "certificate": certificate,
        }

    def show(self, console: Console, certificate: Certificate, quiet: bool) -> None:
        """In words."""
        if not quiet:
            for sentence in in_words(certificate):
                console.print(f"- {sentence}", markup=False, soft_wrap=True)
        if self.holds:
            console.print(
                f"HOLDS: sine <= {certificate.sin_theta.value:.2g}, asked {certificate.tol:g}; "
                "eigenvalues and mean agree",
                style="bold green",
                soft_wrap=True,
            )
            return
        console.print(
            f"DOES NOT HOLD: {'; '.join(self.wrong)}", style="bold red", soft_wrap=True, markup=False
        )


def _basis(model: Model) -> Array:
    W = model.components.T
    if np.linalg.matrix_rank(W) < model.k:
        raise InvalidInput("the components of the model must be independent; they are not: it is damaged.")
    return W


def _reason(certificate: Certificate) -> str:
    """Why the bound is not smaller."""
    ahead = certificate.next_lower - float(certificate.values[-1])
    if ahead > certificate.residual_norm:
        return (
            f"a direction outside has variance {certificate.next_lower:.6g}, the last one inside "
            f"{certificate.values[-1]:.6g}: it is not the leading subspace of these rows"
        )
    return (
        f"residual norm {certificate.residual_norm:.3g}, gap at least {max(certificate.gap.value, 0.0):.3g}"
    )


def _of_values(model: Model, result: Result, certificate: Certificate) -> list[str]:
    """The stored eigenvalues against the variances along the stored vectors."""
    largest = float(np.abs(certificate.values).max())
    turn = result.vectors.T @ np.linalg.qr(model.components.T)[0]
    along = np.sum(certificate.values[:, None] * turn**2, axis=0)
    off = np.abs(model.eigenvalues - along)
    allowed = (
        ALLOWED * largest
        + certificate.rounding
        + np.minimum(certificate.eigenvalue_errors, largest * ALLOWED)
    )
    bad = np.flatnonzero(~(off <= allowed))
    if not bad.size:
        return []
    i = int(bad[0])
    return [
        f"eigenvalue {i + 1} is stored as {model.eigenvalues[i]:.9g}; along that component "
        f"the variance is {along[i]:.9g}"
    ]


def _of_mean(model: Model, mean: Array | None, certificate: Certificate) -> list[str]:
    if model.mean is None or mean is None:
        return []
    size = float(np.linalg.norm(mean)) + float(np.sqrt(max(certificate.total or 0.0, 0.0)))
    off = float(np.linalg.norm(model.mean - mean))
    if off <= ALLOWED * size:
        return []
    return [f"the stored mean is off by {off:.3g} (length {np.linalg.norm(mean):.3g})"]
