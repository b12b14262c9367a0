"""Values as plain JSON and arrays, and back: what a checkpoint is made of. Nothing is pickled.

A tree of numbers, text, lists, tuples, sets, dicts, arrays and objects becomes a JSON value in which an array
is its place in a list. Objects are written by their class and attributes, and only classes of modules that
the reader trusts are made again, without a call of their constructors. What is the same array or object in
several places is so again afterwards, as solvers that change their models in place rely on.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from grassia.errors import GrassiaError

PLAIN = (bool, int, str, type(None))
DERIVED = (int, str, float, tuple, list, dict, set, frozenset, Enum, bytes)  # unless it is one of PLAIN
OURS = "grassia."


class NotPlain(GrassiaError, TypeError):
    """A value holds something that cannot be written, or a text that is not of this kind."""


def freeze(value: Any) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """(a JSON value, arrays).

    >>> import numpy as np
    >>> tree, arrays = freeze({"a": (1, np.eye(2)), 3: {4, 5}})
    >>> thaw(tree, arrays)
    {'a': (1, array([[1., 0.],
           [0., 1.]])), 3: {4, 5}}
    """
    writer = _Writer()
    return writer.write(value), writer.arrays


def thaw(tree: Any, arrays: Sequence[np.ndarray[Any, Any]], modules: Sequence[str] = ()) -> Any:
    """The value again; `modules` are trusted beside those of this package."""
    return _Reader(arrays, modules).read(tree)


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._known: dict[int, Any] = {}
        self._objects = 0
        self._alive: list[Any] = []  # a number that `id` gave must not be given again

    def write(self, value: Any) -> Any:
        kind = type(value)  # what is derived from one of these would not be itself again
        if kind in PLAIN:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, np.generic):
            return {"scalar": [value.dtype.str, repr(value.item())]}
        if kind is list:
            return [self.write(item) for item in value]
        if kind is tuple:
            return {"tuple": [self.write(item) for item in value]}
        if kind in (set, frozenset):
            return {kind.__name__: [self.write(item) for item in _sorted(value)]}
        if kind is dict:
            return {"dict": [[self.write(key), self.write(item)] for key, item in value.items()]}
        return self._shared(value)

    def _shared(self, value: Any) -> Any:
        if id(value) in self._known:
            return self._known[id(value)]
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf":
                raise NotPlain(f"an array of dtype {value.dtype} cannot be written to a checkpoint.")
            self.arrays.append(value)
            written: Any = {"array": len(self.arrays) - 1}
        else:
            written = self._object(value)
        self._known[id(value)] = written if "array" in written else {"same": written["object"]["number"]}
        self._alive.append(value)
        return written

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if callable(value) or kind.__module__ == "builtins" or isinstance(value, DERIVED):
            raise NotPlain(f"a value of type {kind.__qualname__} cannot be written to a checkpoint.")
        self._objects += 1
        number = self._objects
        self._known[id(value)] = {"same": number}
        attributes = {name: self.write(getattr(value, name)) for name in _attributes(value)}
        return {
            "object": {
                "class": f"{kind.__module__}:{kind.__qualname__}",
                "number": number,
                "attributes": attributes,
            }
        }


class _Reader:
    def __init__(self, arrays: Sequence[np.ndarray[Any, Any]], modules: Sequence[str]) -> None:
        self._arrays, self._modules = arrays, modules
        self._objects: dict[int, Any] = {}

    def read(self, tree: Any) -> Any:
        if isinstance(tree, (float, *PLAIN)):
            return tree
        if isinstance(tree, list):
            return [self.read(item) for item in tree]
        if not isinstance(tree, dict) or len(tree) != 1:
            raise NotPlain(f"{str(tree)[:60]!r} is no part of a checkpoint.")
        ((kind, content),) = tree.items()
        reader = getattr(self, f"_{kind}", None)
        if reader is None:
            raise NotPlain(f"a checkpoint has no values of the kind {kind!r}.")
        return reader(content)

    def _float(self, text: str) -> float:
        return float(text)

    def _scalar(self, content: list[str]) -> Any:
        dtype = np.dtype(content[0])
        number = content[1] == "True" if dtype.kind == "b" else float(content[1])
        return dtype.type(int(content[1]) if dtype.kind in "iu" else number)

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self.read(item) for item in items)

    def _set(self, items: list[Any]) -> set[Any]:
        return {self.read(item) for item in items}

    def _frozenset(self, items: list[Any]) -> frozenset[Any]:
        return frozenset(self.read(item) for item in items)

    def _dict(self, pairs: list[list[Any]]) -> dict[Any, Any]:
        return {self.read(key): self.read(item) for key, item in pairs}

    def _array(self, place: int) -> Any:
        return self._arrays[place]

    def _same(self, number: int) -> Any:
        return self._objects[number]

    def _object(self, content: dict[str, Any]) -> Any:
        kind = self._class(content["class"])
        made: Any = object.__new__(kind)
        self._objects[content["number"]] = made
        for name, tree in content["attributes"].items():
            object.__setattr__(made, name, self.read(tree))
        return made

    def _class(self, name: str) -> type:
        module, _, qualified = name.partition(":")
        if not (module.startswith(OURS) or module in self._modules):
            raise NotPlain(f"a checkpoint must not hold objects of {module!r}, which was not asked for.")
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
        if not isinstance(found, type):
            raise NotPlain(f"{name!r} is no class.")
        return found


def _sorted(values: Any) -> list[Any]:
    try:
        return sorted(values)
    except TypeError as error:
        raise NotPlain(f"a set whose members have no order cannot be written ({error}).") from error


def _attributes(value: Any) -> list[str]:
    """The names of all that an object holds."""
    names = list(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else tuple(slots)
        names += [name for name in slots if name not in ("__dict__", "__weakref__") and hasattr(value, name)]
    return names
