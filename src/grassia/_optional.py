"""Import an optional dependency, or say which extra brings it."""

from __future__ import annotations

import importlib
from typing import Any

from grassia.errors import MissingExtra


def require(package: str, extra: str) -> Any:
    """Return the module `package`; raise `MissingExtra` naming `extra` when it is absent.

    >>> require("math", "plot").floor(1.5)
    1
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and package.split(".")[0] != error.name.split(".")[0]:
            raise  # the package is there but something it needs is broken: do not hide that
        raise MissingExtra(package.split(".")[0], extra) from error
