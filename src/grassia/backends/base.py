"""The contract of a back-end: an addressed mailbox of four methods.

`start(loaders)` pins the components to workers and says so in `groups`; `send(task)` never blocks;
`receive(timeout)` gives what arrived together (an empty list after `timeout` seconds of nothing);
`close()` may be called twice, and `start` again after it. Inside a `with` block of the user's own a run ends
with `release()` instead: what the next run can use, such as processes, is kept until the block ends. A worker
handles its tasks one after the other. A task sent *instead* of another says that the answer to that one is
not wanted any more: a back-end drops it if it can, and otherwise sends its answer, which does no harm. A task
that raises comes back as `Failure`; a worker that dies, with whatever was queued for it, as `Lost`, then
`Restored` once it runs again with empty caches.

A worker that is slow or silent need not be waited for. `hasten(task)` has what it is out with computed a
second time, on a copy of the worker elsewhere, and the first answer counts; `replace(component)` gives the
worker up. Not every back-end can do so. Where `stays` is set, components are never opened anywhere but in
their worker's own place: a lost worker is restored when that place is back.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from grassia._checks import require_count
from grassia.errors import InvalidInput
from grassia.faults import Fault, Injector, as_injector
from grassia.messages import Array, Message, Task
from grassia.worker import Loader

Faults = Injector | Fault | str | Sequence[str | Fault] | None


class Backend(ABC):
    """Base of every back-end.

    Parameters
    ----------
    faults : Injector or rules, optional
        Delays, stragglers, crashes and corrupt replies to inject; see `grassia.faults`.
    """

    name: ClassVar[str]
    #: Seconds that `receive` may be asked to wait while nothing is due; None on a virtual clock, which jumps.
    poll: ClassVar[float | None] = 0.5
    #: Whether the workers may live on other machines, of which one may fall silent.
    remote: ClassVar[bool] = False
    #: Whether a component may only be opened where its worker was first; set before `start`.
    stays: bool = False
    _entered = 0  # how many `with` blocks it is inside of

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._made_with = (args, options)
        return made

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __init__(self, *, faults: Faults = None) -> None:
        self.injector = as_injector(faults)
        self.groups: list[list[int]] = []
        self.blas_threads: int | None = None

    @abstractmethod
    def start(self, loaders: Sequence[Loader]) -> None:
        """Pin each component to a worker."""

    @abstractmethod
    def send(self, task: Task) -> None:
        """Post a task to the worker that holds its component."""

    @abstractmethod
    def receive(self, timeout: float | None = None) -> list[Message]:
        """What arrived together; waits for the first of it."""

    @abstractmethod
    def close(self) -> None:
        """Stop the workers and free what they hold."""

    def release(self) -> None:
        """The run is over, another may follow: free the data, and keep what saves the next one time."""
        self.close()

    def hasten(self, task: int, component: int, arrays: Mapping[str, Array]) -> bool:
        """Have the task that a component's worker is out with computed a second time, on a copy of it.

        `arrays` go with it beside its own: what a worker that was just opened must be told. The first answer
        counts. Is it the copy's, its reply has `moved` set, the copy is the worker from then on, and what
        it replaced is ended; otherwise the copy is. Should the worker die meanwhile, the copy goes on in
        its place. False: nothing was done, for this back-end cannot, or the worker is not out with that task.
        """
        return False

    def replace(self, component: int, reason: str) -> bool:
        """Give up the worker of a component, which does not answer, and start another in its place.

        `Lost` with that reason and `Restored` follow, as for a worker that died. False: it cannot.
        """
        return False

    @abstractmethod
    def now(self) -> float:
        """Seconds since `start`, by this back-end's own clock."""

    @property
    def wanted_workers(self) -> int | None:
        """How many were asked for; None: as many as it takes by default."""
        wanted: int | None = getattr(self, "_wanted", None)
        return wanted

    def describe(self) -> dict[str, Any]:
        """What goes into `result.stats`."""
        return {"backend": self.name, "workers": len(self.groups)}

    def __copy__(self) -> Self:
        """A new one with the same parameters, not started; so an estimator that holds one can be cloned."""
        args, options = self._made_with
        return type(self)(*args, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), *self._made_with)

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            self.close()

    @property
    def held(self) -> bool:
        """Whether somebody else is inside of a `with` block, who may have another run."""
        return self._entered > 1


def _made(kind: type[Backend], args: tuple[Any, ...], options: dict[str, Any]) -> Backend:
    return kind(*args, **options)


def deal(n: int, workers: int | None, default: int) -> list[list[int]]:
    """Deal n components to workers in turn; `workers=None` takes `default`, never more than n.

    >>> deal(5, 2, 8)
    [[0, 2, 4], [1, 3]]
    """
    if workers is not None:
        require_count(workers, "`workers`")
    count = min(n, default if workers is None else workers)
    return [list(range(w, n, count)) for w in range(count)]


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        return os.cpu_count() or 1


def threads_for(workers: int, wanted: int | None, each: float | None = None) -> int:
    """BLAS threads for each worker, so that together they do not outnumber the cores.

    `each` are the cores of a worker, where those of this machine are not what counts. What the user allows
    BLAS in the environment is a limit for the default, too.
    """
    if wanted is not None and wanted < 1:
        raise InvalidInput(f"`blas_threads` must be at least 1, or None; got {wanted}.")
    if wanted is not None:
        return wanted
    said = os.environ.get("OMP_NUM_THREADS", "")
    share = cores() // max(1, workers) if each is None else int(each)
    allowed = int(said) if said.isdigit() and int(said) > 0 else share
    return max(1, min(allowed, share))
