"""From the arguments of a command to components: files are opened, dealt to workers, and named in errors."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from grassia import backends
from grassia.backends import Backend
from grassia.backends.base import Faults
from grassia.cli._outcome import one_of
from grassia.data import Components
from grassia.data.cutting import Divisible, divide, open_source
from grassia.data.dropping import Dropping
from grassia.data.paths import find_files
from grassia.data.several import groups_by_rows, merged
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["BACKENDS", "AskedParts", "Source", "engine_of", "format_options", "parts_of", "resolved_backend"]

BACKENDS = ["serial", "threads", "processes", "ray", "dask"]

_COMPONENT = re.compile(r"\bcomponent (\d+)\b")


class AskedParts(int):
    """A number of components that the user has named, rather than one that follows from the workers."""


@dataclass(frozen=True)
class Source:
    """What the user has named: files, patterns, folders or addresses, and how to read them.

    Parameters
    ----------
    inputs : sequence of str
        As they were typed.
    options : mapping
        Of the format, as `grassia.from_rows` takes them.
    center : bool
    """

    inputs: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    center: bool = True

    def components(self, parts: int) -> Components:
        """All the rows, in order, in so many components.

        Where there are fewer rows there are fewer components; if so many were asked for, that is refused.
        """
        pieces, names = self._pieces()
        loaders = [loader for piece in pieces for loader in piece.cut(1)]
        try:
            whole = Components(loaders)  # whose columns must be alike
        except InvalidComponent as error:
            raise InvalidComponent(self._with_names(error, names)) from error
        rows = [piece.n_rows for piece in pieces]
        if parts > sum(rows) and isinstance(parts, AskedParts):
            raise InvalidInput(
                f"--shards must be at most the number of rows, {sum(rows)} in {self.text}; got {parts}."
            )
        parts = min(parts, sum(rows))
        if parts == len(pieces):
            return whole
        if parts > len(pieces):
            return Components(divide(pieces, parts))
        return Components(merged(loaders[a:b]) for a, b in groups_by_rows(rows, parts))

    def _pieces(self) -> tuple[list[Divisible], list[str]]:
        """The pieces of all inputs, and what to call each."""
        pieces: list[Divisible] = []
        names: list[str] = []
        dropping = Dropping()
        try:
            for text in self.inputs:
                found = open_source(text, self.center, self.options, dropping)
                pieces += found
                names += self._names(text, len(found))
            dropping.check()
        except InvalidComponent as error:
            raise InvalidComponent(self._as_typed(error.rule)) from error
        except InvalidInput as error:
            raise InvalidInput(self._as_typed(str(error))) from error
        return pieces, names

    def _names(self, text: str, pieces: int) -> list[str]:
        """What to call the pieces of one input."""
        if pieces == 1:
            return [text]
        try:
            files = find_files(text).files
        except InvalidComponent:
            files = ()
        if len(files) != pieces:
            return [f"{text} [{i}]" for i in range(pieces)]
        return [self._as_typed(file) for file in files]

    def _with_names(self, error: InvalidComponent, names: Sequence[str]) -> str:
        rule = self._as_typed(error.rule).replace("all components", "all files").replace("this one", "it")
        rule = _COMPONENT.sub(lambda found: names[int(found[1])], rule)
        own = "" if error.component is None else names[error.component]
        return rule if own in rule else f"{own}: {rule}"

    def _as_typed(self, text: str) -> str:
        """A text in which paths of the inputs are absolute, with them as the user has typed them."""
        for given in self.inputs:
            typed = _beginning(given)
            whole = os.path.abspath(os.path.expanduser(typed))
            if typed != whole:
                text = text.replace(whole, typed) if typed else text.replace(whole + os.sep, "")
        return text

    @property
    def files(self) -> list[str]:
        """The local files of the inputs, as far as there are such."""
        found: list[str] = []
        for text in self.inputs:
            with suppress(InvalidComponent):
                found += [file for file in find_files(text).files if os.path.exists(file)]
        return found

    def refuse_as_output(self, path: str | os.PathLike[str] | None, option: str) -> None:
        """Nothing is written over the rows."""
        there = path is not None and os.path.exists(path)
        if path is not None and there and any(os.path.samefile(path, file) for file in self.files):
            raise InvalidInput(f"{option} must not be one of the inputs; got {path}.")

    @property
    def format(self) -> str | None:
        """The format of the files, where it is one."""
        try:
            found = {find_files(text).format for text in self.inputs}
        except InvalidComponent:
            return None
        return found.pop() if len(found) == 1 else None

    @property
    def of_tables(self) -> bool:
        """Whether the inputs are files whose columns have names."""
        return self.format in ("csv", "parquet")

    def told(self, error: InvalidComponent) -> InvalidComponent:
        """An error of a worker without the number of its component, where a file's name says more."""
        named = any(
            os.path.abspath(os.path.expanduser(_beginning(text))) in error.rule for text in self.inputs
        )
        return InvalidComponent(self._as_typed(error.rule), None if named else error.component)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Errors of workers inside `with` as `told`."""
        try:
            yield
        except InvalidComponent as error:
            raise self.told(error) from error

    @property
    def text(self) -> str:
        """The inputs in a few words."""
        more = f" and {len(self.inputs) - 1} more" if len(self.inputs) > 1 else ""
        return f"{self.inputs[0]}{more}"


def format_options(
    dataset: str | None, columns: str | None, drop: Sequence[str], more: Sequence[str]
) -> dict[str, Any]:
    """The options of a format, from those of the command line.

    >>> format_options("X", "a,b", ["name"], ["header=false", "n_features=20"])
    {'dataset': 'X', 'columns': ['a', 'b'], 'drop': ['name'], 'header': False, 'n_features': 20}
    """
    chosen: dict[str, Any] = {}
    if dataset is not None:
        chosen["dataset"] = dataset
    if columns is not None:
        chosen["columns"] = [name.strip() for name in columns.split(",")]
    if drop:
        chosen["drop"] = list(dict.fromkeys(drop))
    for text in more:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInput(f"--option must be NAME=VALUE, such as delimiter=';'; got {text!r}.")
        try:
            chosen[name] = json.loads(value.lower() if value in ("True", "False") else value)
        except ValueError:  # not a number, true, false, nor JSON: a text
            chosen[name] = value
    return chosen


def resolved_backend(name: str | None, workers: int) -> str:
    """The back-end meant: processes where several workers are wanted, else this process.

    >>> resolved_backend(None, 1), resolved_backend(None, 4)
    ('serial', 'processes')
    """
    if workers < 1:
        raise InvalidInput(f"--workers must be at least 1; got {workers}.")
    if name is None:
        return "serial" if workers == 1 else "processes"
    if name == "serial" and workers > 1:
        raise InvalidInput(
            f"--backend serial has one worker; got --workers {workers}. Take threads or processes; --shards "
            "splits the rows."
        )
    return one_of(name, BACKENDS, "--backend")


def parts_of(shards: int | None, backend: str, workers: int) -> int:
    """Into how many components the rows are split.

    >>> parts_of(None, "processes", 4), parts_of(None, "serial", 1), parts_of(7, "serial", 1)
    (4, 1, 7)
    """
    if shards is None:
        return 1 if backend == "serial" else workers
    if shards < 1:
        raise InvalidInput(f"--shards must be at least 1; got {shards}.")
    return AskedParts(shards)


def engine_of(name: str, workers: int, address: str | None = None, faults: Faults = None) -> Backend:
    """A back-end with so many workers, on the cluster at `address` where one is given."""
    more: dict[str, Any] = {} if faults is None else {"faults": faults}
    if address is not None:
        if name == "dask":
            more["client"] = address
        elif name == "ray":
            os.environ["RAY_ADDRESS"] = address
        else:
            raise InvalidInput(f"--address is that of a cluster, for --backend ray or dask; got {name!r}.")
    if name == "serial":
        return backends.get(name, **more)
    return backends.get(name, workers=workers, **more)


def _beginning(text: str) -> str:
    """That part of an input which the paths of all its files begin with: a file, a folder, or nothing.

    >>> _beginning("data/2024-*/rows.npy"), _beginning("rows.h5::X"), _beginning("*.csv")
    ('data', 'rows.h5', '')
    """
    path = text if os.path.exists(os.path.expanduser(text)) else text.partition("::")[0]
    if glob.has_magic(path) and not os.path.exists(os.path.expanduser(path)):
        parts = path.split(os.sep)
        path = os.sep.join(parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))])
    return path.rstrip(os.sep)
