"""Leading eigenspaces and PCA of data that lives in pieces, on machines that are uneven, slow, or failing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grassia._lazy import attribute

if TYPE_CHECKING:
    __version__: str
    from grassia import backends, datasets, geometry, report, solvers, theory
    from grassia.api import eigenspace, replay
    from grassia.certificate import Bound, Certificate, Certifier
    from grassia.checkpoint import Checkpoint
    from grassia.components import (
        Component,
        MatrixComponent,
        OperatorComponent,
        RowsComponent,
        SumComponent,
    )
    from grassia.data import Components, from_rows
    from grassia.errors import (
        CheckpointWarning,
        ExclusionWarning,
        GrassiaError,
        InvalidComponent,
        InvalidInput,
        MissingExtra,
        ReplayMismatch,
    )
    from grassia.estimators import PCA, TruncatedSVD
    from grassia.faults import Fault, Injector
    from grassia.losses import LossPolicy
    from grassia.planning import Plan, plan
    from grassia.result import History, Result, Status
    from grassia.resuming import resume
    from grassia.run import Progress
    from grassia.scipy_api import eigsh, svds

__all__ = [
    "PCA",
    "Bound",
    "Certificate",
    "Certifier",
    "Checkpoint",
    "CheckpointWarning",
    "Component",
    "Components",
    "ExclusionWarning",
    "Fault",
    "GrassiaError",
    "History",
    "Injector",
    "InvalidComponent",
    "InvalidInput",
    "LossPolicy",
    "MatrixComponent",
    "MissingExtra",
    "OperatorComponent",
    "Plan",
    "Progress",
    "ReplayMismatch",
    "Result",
    "RowsComponent",
    "Status",
    "SumComponent",
    "TruncatedSVD",
    "__version__",
    "backends",
    "datasets",
    "eigenspace",
    "eigsh",
    "from_rows",
    "geometry",
    "plan",
    "replay",
    "report",
    "resume",
    "solvers",
    "svds",
    "theory",
]

# Loaded when they are first asked for: a worker process needs few of them, and starts in half the time.
_HOME = {
    "grassia.api": ("eigenspace", "replay"),
    "grassia.certificate": ("Bound", "Certificate", "Certifier"),
    "grassia.checkpoint": ("Checkpoint",),
    "grassia.components": (
        "Component",
        "MatrixComponent",
        "OperatorComponent",
        "RowsComponent",
        "SumComponent",
    ),
    "grassia.data": ("Components", "from_rows"),
    "grassia.errors": (
        "CheckpointWarning",
        "ExclusionWarning",
        "GrassiaError",
        "InvalidComponent",
        "InvalidInput",
        "MissingExtra",
        "ReplayMismatch",
    ),
    "grassia.estimators": ("PCA", "TruncatedSVD"),
    "grassia.faults": ("Fault", "Injector"),
    "grassia.losses": ("LossPolicy",),
    "grassia.planning": ("Plan", "plan"),
    "grassia.result": ("History", "Result", "Status"),
    "grassia.resuming": ("resume",),
    "grassia.run": ("Progress",),
    "grassia.scipy_api": ("eigsh", "svds"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    value = globals()[name] = _version() if name == "__version__" else attribute(__name__, name, _MODULE_OF)
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("grassia")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0.0.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
