"""The back-ends, each one small file. `get` finds one by name."""

from __future__ import annotations

from typing import Any

from grassia.backends.base import Backend
from grassia.backends.processes import Processes
from grassia.backends.serial import Serial
from grassia.backends.simulated import Simulated
from grassia.backends.threads import Threads
from grassia.errors import InvalidInput

__all__ = ["Backend", "Processes", "Serial", "Simulated", "Threads", "get", "names"]

_BY_NAME: dict[str, type[Backend]] = {kind.name: kind for kind in (Serial, Simulated, Threads, Processes)}

PLANNED = ("ray", "dask")


def names() -> list[str]:
    """The names `get` knows."""
    return sorted(_BY_NAME)


def get(backend: str | Backend, **options: Any) -> Backend:
    """A back-end from its name (with `options`), or the back-end itself.

    >>> get("serial").name
    'serial'
    """
    if isinstance(backend, Backend):
        if options:
            raise InvalidInput(
                f"options {sorted(options)} were given beside a back-end object; set them on the object."
            )
        return backend
    if isinstance(backend, str) and backend in _BY_NAME:
        return _BY_NAME[backend](**options)
    if backend in PLANNED:
        raise InvalidInput(f"the back-end {backend!r} is not in this version yet; use 'processes'.")
    raise InvalidInput(
        f"`backend` must be a back-end object or one of {', '.join(map(repr, names()))}; got {backend!r}."
    )
