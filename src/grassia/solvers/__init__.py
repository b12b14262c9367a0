"""The solvers, one algorithm a file. `get` finds one by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from grassia.errors import InvalidInput
from grassia.solvers.base import Arrival, Problem, Solver
from grassia.solvers.covariance import Covariance
from grassia.solvers.delayed_oja import DelayedOja
from grassia.solvers.dsag import Dsag
from grassia.solvers.fedpower import FedPower
from grassia.solvers.grassia import Grassia
from grassia.solvers.iarg import Iarg
from grassia.solvers.krylov import Krylov
from grassia.solvers.lobpcg import Lobpcg
from grassia.solvers.nystrom import Nystrom
from grassia.solvers.oja import Oja
from grassia.solvers.oneshot import OneShot
from grassia.solvers.orthogonal import Orthogonal
from grassia.solvers.power import Power
from grassia.solvers.rgd import Rgd
from grassia.solvers.vrpca import VrPca

__all__ = [
    "Arrival",
    "Covariance",
    "DelayedOja",
    "Dsag",
    "FedPower",
    "Grassia",
    "Iarg",
    "Krylov",
    "Lobpcg",
    "Nystrom",
    "Oja",
    "OneShot",
    "Orthogonal",
    "Power",
    "Problem",
    "Rgd",
    "Solver",
    "VrPca",
    "get",
    "make",
    "names",
    "parameters",
]

_BY_NAME: dict[str, type[Solver[Any]]] = {
    kind.name: kind
    for kind in (
        Covariance,
        DelayedOja,
        Dsag,
        FedPower,
        Grassia,
        Iarg,
        Krylov,
        Lobpcg,
        Nystrom,
        Oja,
        OneShot,
        Orthogonal,
        Power,
        Rgd,
        VrPca,
    )
}


def names() -> list[str]:
    """The names `get` knows."""
    return sorted(_BY_NAME)


def parameters(solver: Solver[Any]) -> dict[str, Any]:
    """What a solver was made with; every solver is a frozen dataclass.

    >>> parameters(get("oja"))
    {'step': 'auto', 'decay': None, 'order': 'shuffled'}
    """
    return dataclasses.asdict(solver)  # type: ignore[call-overload, no-any-return]


def make(name: str, **chosen: Any) -> Solver[Any]:
    """The solver of this name, with some parameters chosen and the others as they come.

    >>> make("oja", step=0.1)
    Oja(step=0.1, decay=None, order='shuffled')
    """
    return type(get(name))(**chosen)


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
