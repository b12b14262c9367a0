"""Leading eigenspaces and PCA of data that lives in pieces, on machines that are uneven, slow, or failing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("grassia")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0"

from grassia import backends, datasets, geometry, solvers, theory
from grassia.api import eigenspace, replay
from grassia.certificate import Bound, Certificate, Certifier
from grassia.components import (
    Component,
    MatrixComponent,
    OperatorComponent,
    RowsComponent,
    SumComponent,
)
from grassia.data import Components, from_rows
from grassia.errors import (
    GrassiaError,
    InvalidComponent,
    InvalidInput,
    MissingExtra,
    ReplayMismatch,
)
from grassia.faults import Fault, Injector
from grassia.result import History, Result, Status
from grassia.run import Progress

__all__ = [
    "Bound",
    "Certificate",
    "Certifier",
    "Component",
    "Components",
    "Fault",
    "GrassiaError",
    "History",
    "Injector",
    "InvalidComponent",
    "InvalidInput",
    "MatrixComponent",
    "MissingExtra",
    "OperatorComponent",
    "Progress",
    "ReplayMismatch",
    "Result",
    "RowsComponent",
    "Status",
    "SumComponent",
    "__version__",
    "backends",
    "datasets",
    "eigenspace",
    "from_rows",
    "geometry",
    "replay",
    "solvers",
    "theory",
]
