"""What a lost worker means for a run: the choice a user makes."""

from __future__ import annotations

from dataclasses import dataclass

from grassia._checks import require_nonnegative, require_positive
from grassia.errors import InvalidInput

ACTIONS = ("reload", "wait", "exclude")
HASTEN = 10.0
PATIENCE = 300.0  # seconds that a component may be out of reach


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """What to do when a worker dies, falls silent or cannot be reached.

    Parameters
    ----------
    action : {"reload", "wait", "exclude"}
        "reload": the worker's components are opened again, elsewhere if need be. "wait": they are opened only
        where they were; until that place is back the last they said stays in the sum, for `patience` seconds.
        "exclude": they are left out, the weights of the others are scaled to sum to one, and the run goes on
        to the answer of that problem; the result says which it was.
    patience : float, optional
        Seconds that a component may be out of reach before the run ends with `Status.WORKER_LOST`, or, with
        "exclude", before it is left out. Default 300; none with "exclude".
    timeout : float, optional
        Seconds after which a worker that has not answered is given up as lost. They count from the question:
        let them be enough for the start of a worker and the opening of its data, too. Default: never; an
        engine notices by itself when one of its workers or nodes is gone.
    hasten : float, optional
        With "reload", a question that has been out so many times as long as the slowest answer of its
        component (before the first one: of any) is put a second time, to a copy of the worker elsewhere; the
        first answer counts. On Ray, Dask and the virtual clock. Default: never; where `on_loss` is just the
        name "reload", 10 on Ray and Dask.
    hasten_after : float
        But not before so many seconds.

    Examples
    --------
    >>> LossPolicy("exclude").bound
    0.0
    >>> LossPolicy("wait", patience=60.0).stays
    True
    """

    action: str = "reload"
    patience: float | None = None
    timeout: float | None = None
    hasten: float | None = None
    hasten_after: float = 30.0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise InvalidInput(f"`on_loss` must be 'reload', 'wait' or 'exclude'; got {self.action!r}.")
        if self.patience is not None:
            require_nonnegative(self.patience, "`patience` (in seconds)")
        if self.timeout is not None:
            require_positive(self.timeout, "`timeout` (in seconds)")
        if self.hasten is not None:
            require_positive(self.hasten, "`hasten`")
        require_nonnegative(self.hasten_after, "`hasten_after` (in seconds)")

    @property
    def bound(self) -> float:
        """Seconds that a component may be out of reach."""
        if self.patience is not None:
            return float(self.patience)
        return 0.0 if self.action == "exclude" else PATIENCE

    @property
    def stays(self) -> bool:
        """Whether components are opened only where their worker was."""
        return self.action != "reload"

    @property
    def hastens(self) -> bool:
        """Whether a slow worker's question may be put to another."""
        return self.hasten is not None and not self.stays


def as_policy(given: str | LossPolicy, remote: bool = False) -> LossPolicy:
    """The policy of that name, or as given; `remote`: the workers live on other machines."""
    if isinstance(given, LossPolicy):
        return given
    if not isinstance(given, str):
        raise InvalidInput(
            f"`on_loss` must be 'reload', 'wait', 'exclude' or a grassia.LossPolicy; got {given!r}."
        )
    return LossPolicy(given, hasten=HASTEN if remote else None)
