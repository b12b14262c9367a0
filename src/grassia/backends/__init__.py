"""The back-ends, each one small file. `get` finds one by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grassia.backends.base import Backend
from grassia.backends.processes import Processes
from grassia.backends.serial import Serial
from grassia.backends.simulated import Simulated
from grassia.backends.threads import Threads
from grassia.errors import InvalidInput

if TYPE_CHECKING:
    from grassia.backends.dask import Dask
    from grassia.backends.ray import Ray

__all__ = ["Backend", "Dask", "Processes", "Ray", "Serial", "Simulated", "Threads", "get", "names"]

_BY_NAME: dict[str, type[Backend]] = {kind.name: kind for kind in (Serial, Simulated, Threads, Processes)}
_CLUSTERS = {"ray": "Ray", "dask": "Dask"}  # each in a file of its own, loaded by name: they need an extra


def names() -> list[str]:
    """The names `get` knows."""
    return sorted([*_BY_NAME, *_CLUSTERS])


def __getattr__(name: str) -> Any:
    for module, kind in _CLUSTERS.items():
        if name == kind:
            return getattr(import_module(f"grassia.backends.{module}"), kind)
    raise AttributeError(f"module 'grassia.backends' has no attribute {name!r}")


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
    if isinstance(backend, str) and backend in _CLUSTERS:
        kind: type[Backend] = __getattr__(_CLUSTERS[backend])
        return kind(**options)
    raise InvalidInput(
        f"`backend` must be a back-end object or one of {', '.join(map(repr, names()))}; got {backend!r}."
    )
