"""The back-ends, each one small file. `get` finds one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grassia._lazy import attribute
from grassia.errors import InvalidInput

if TYPE_CHECKING:
    from grassia.backends.base import Backend
    from grassia.backends.dask import Dask
    from grassia.backends.processes import Processes
    from grassia.backends.ray import Ray
    from grassia.backends.serial import Serial
    from grassia.backends.simulated import Simulated
    from grassia.backends.threads import Threads

__all__ = ["Backend", "Dask", "Processes", "Ray", "Serial", "Simulated", "Threads", "get", "names"]

# Each is loaded when it is first asked for: a worker needs none of them, and some need an extra.
_KINDS = {
    "dask": "Dask",
    "processes": "Processes",
    "ray": "Ray",
    "serial": "Serial",
    "simulated": "Simulated",
    "threads": "Threads",
}
_MODULE_OF = {kind: f"{__name__}.{name}" for name, kind in _KINDS.items()} | {"Backend": f"{__name__}.base"}


def names() -> list[str]:
    """The names `get` knows."""
    return sorted(_KINDS)


def __getattr__(name: str) -> Any:
    value = globals()[name] = attribute(__name__, name, _MODULE_OF)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def get(backend: str | Backend, **options: Any) -> Backend:
    """A back-end from its name (with `options`), or the back-end itself.

    >>> get("serial").name
    'serial'
    """
    from grassia.backends.base import Backend

    if isinstance(backend, Backend):
        if options:
            raise InvalidInput(
                f"options {sorted(options)} were given beside a back-end object; set them on the object."
            )
        return backend
    if isinstance(backend, str) and backend in _KINDS:
        kind: type[Backend] = __getattr__(_KINDS[backend])
        return kind(**options)
    raise InvalidInput(
        f"`backend` must be a back-end object or one of {', '.join(map(repr, names()))}; got {backend!r}."
    )
