"""Names of a package that are loaded when they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def attribute(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """What a package's `__getattr__` gives: a name from the module that is its home, or one of its modules.

    >>> attribute("grassia", "InvalidInput", {"InvalidInput": "grassia.errors"}).__module__
    'grassia.errors'
    """
    if name in homes:
        return getattr(import_module(homes[name]), name)
    if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
        return import_module(f"{package}.{name}")
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
