"""Runs of several solvers on the same components, as the rows of a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from grassia import solvers
from grassia.api import eigenspace
from grassia.backends import Backend
from grassia.cli._outcome import one_of
from grassia.data import Components
from grassia.data.loaders import size_text
from grassia.errors import GrassiaError, InvalidComponent, InvalidInput
from grassia.result import Result

__all__ = ["Outcome", "chosen_solvers", "compare"]


@dataclass(frozen=True)
class Outcome:
    """How one run ended.

    Attributes
    ----------
    sine : float or None
        The certified bound; None without a certificate.
    answers : tuple of int
        The fewest and the most that any component gave.
    asked : str
        The name by which the solver was asked for, which may be "auto".
    """

    solver: str
    workers: int
    status: str
    converged: bool
    seconds: float | None = None
    passes: float | None = None
    updates: int | None = None
    sine: float | None = None
    nbytes: int | None = None
    answers: tuple[int, int] | None = None
    text: str = ""
    asked: str = ""

    @classmethod
    def of(cls, result: Result) -> Outcome:
        """The outcome of a run that gave a result."""
        stats, certificate = result.stats, result.certificate
        return cls(
            solver=stats["solver"],
            workers=stats["workers"],
            status=result.status.name,
            converged=result.converged,
            seconds=stats["seconds"],
            passes=stats["passes"],
            updates=stats["updates"],
            sine=None if certificate is None else certificate.sin_theta.value,
            nbytes=stats["bytes_sent"] + stats["bytes_received"],
            answers=(min(stats["answers"]), max(stats["answers"])),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, written: dict[str, Any]) -> Outcome:
        """The inverse.

        >>> one = Outcome("nystrom", 4, "CONVERGED", True, answers=(3, 9))
        >>> Outcome.from_dict(one.to_dict()) == one
        True
        """
        answers = written["answers"]
        return cls(**{**written, "answers": None if answers is None else tuple(answers)})

    def cells(self) -> tuple[str, ...]:
        """Its row, without solver and workers."""
        least, most = self.answers or (0, 0)
        return (
            "-" if self.seconds is None else f"{self.seconds:.2f}",
            "-" if self.passes is None else f"{self.passes:.1f}",
            "-" if self.updates is None else f"{self.updates}",
            "-" if self.sine is None else f"{self.sine:.1e}",
            "-" if self.answers is None else f"{least}" if least == most else f"{least}..{most}",
            "-" if self.nbytes is None else size_text(self.nbytes),
            self.status,
        )


#: The heads of `Outcome.cells`.
HEAD = ("seconds", "passes", "updates", "sine <=", "answers", "traffic", "status")


def chosen_solvers(wanted: Sequence[str] | None, usual: Sequence[str]) -> list[str]:
    """The names given (each may be several, with commas), checked; or the usual ones."""
    names = [name.strip() for text in wanted or () for name in text.split(",")] or list(usual)
    return list(dict.fromkeys(one_of(name, ["auto", *solvers.names()], "--solver") for name in names))


def compare(
    name: str, components: Components, k: int, engine: Backend, workers: int, **options: Any
) -> Outcome:
    """One run; a solver that cannot do it is an outcome, too, but bad data are not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = Outcome.of(eigenspace(components, k, solver=name, backend=engine, **options))
            return replace(found, asked=name)
        except InvalidComponent:
            raise
        except (InvalidInput, GrassiaError) as error:
            return Outcome(name, workers, "REFUSED", False, text=str(error), asked=name)
