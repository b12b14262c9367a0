"""What travels between the server and the workers: small frozen values, nothing else.

A back-end moves these and never looks inside; the server and the workers never see a back-end.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grassia.errors import InvalidInput

Array = NDArray[np.float64]
Scalar = float | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Query:
    """What a solver wants from one component: a procedure's name and its input."""

    procedure: str
    arrays: Mapping[str, Array] = field(default_factory=dict)
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """A query addressed to one component.

    Attributes
    ----------
    id : int
        Unique in a run. A reply is accepted once for each id, so a repeated one does no harm.
    component : int
        Whose data it needs.
    version : int
        The server's update count when the task was made: staleness is counted from it.
    ordinal : int
        How many tasks this component was given before, over all restarts of its worker.
    instead : int or None
        The task, of the same worker, whose place it takes: the answer to that one is no longer wanted. A
        back-end that can drop it does; its answer does no harm where it comes all the same.
    """

    id: int
    component: int
    version: int
    ordinal: int
    query: Query
    instead: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays it carries."""
        return sum(array.nbytes for array in self.query.arrays.values())


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a task, with a checksum taken where it was computed.

    `moved` says that a second copy of the worker computed it, which had empty caches before this task and has
    taken the first one's place.
    """

    task: int
    component: int
    version: int
    arrays: Mapping[str, Array]
    scalars: Mapping[str, Scalar]
    checksum: int
    elapsed: float = 0.0
    moved: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays it carries."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True, slots=True)
class Failure:
    """A task raised in its worker; the worker lives on. `error` is what it raised."""

    task: int
    component: int
    error: Exception

    @property
    def final(self) -> str | None:
        """What is wrong, where to try again cannot help."""
        if not isinstance(self.error, InvalidInput | FileNotFoundError):
            return None
        return str(getattr(self.error, "rule", self.error))


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of these components died: its caches and its outstanding task are gone.

    `permanent` is True when the back-end has given up restarting it.
    """

    components: tuple[int, ...]
    reason: str
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """The worker of these components runs again, with its data reopened and empty caches."""

    components: tuple[int, ...]


Message = Reply | Failure | Lost | Restored


def checksum(arrays: Mapping[str, Array]) -> int:
    """Adler-32 over the bytes of the arrays, in the order of their names.

    It guards against a reply damaged on its way (about 3 GB/s, so a few percent of an update); it is
    no defence against a worker that lies.

    >>> import numpy as np
    >>> a = {"x": np.arange(3.0)}
    >>> b = {"x": np.array([0.0, 1.0, 2.0 + 1e-15])}
    >>> checksum(a) == checksum({"x": np.arange(3.0)}), checksum(a) == checksum(b)
    (True, False)
    """
    total = 1
    for name in sorted(arrays):
        total = zlib.adler32(name.encode(), total)
        total = zlib.adler32(np.ascontiguousarray(arrays[name]).view(np.uint8).data, total)
    return total
