"""The solvers, one algorithm a file. `get` finds one by name."""

from __future__ import annotations

from typing import Any

from grassia.errors import InvalidInput
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.covariance import Covariance
from grassia.solvers.grassia import Grassia
from grassia.solvers.krylov import Krylov
from grassia.solvers.lobpcg import Lobpcg
from grassia.solvers.nystrom import Nystrom
from grassia.solvers.orthogonal import Orthogonal
from grassia.solvers.power import Power

__all__ = [
    "Arrival",
    "Covariance",
    "Grassia",
    "Krylov",
    "Lobpcg",
    "Nystrom",
    "Orthogonal",
    "Power",
    "Problem",
    "Solver",
    "get",
    "names",
]

_BY_NAME: dict[str, type[Solver[Any]]] = {
    kind.name: kind for kind in (Covariance, Grassia, Krylov, Lobpcg, Nystrom, Orthogonal, Power)
}


def names() -> list[str]:
    """The names `get` knows."""
    return sorted(_BY_NAME)


def get(solver: str | Solver[Any]) -> Solver[Any]:
    """A solver from its name (with its default parameters), or the solver itself.

    >>> get("grassia").name
    'grassia'
    """
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, str) and solver in _BY_NAME:
        return _BY_NAME[solver]()
    known = ", ".join(map(repr, ["auto", *names()]))
    raise InvalidInput(f"`solver` must be a solver object or one of {known}; got {solver!r}.")
