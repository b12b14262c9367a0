"""Columns to leave out of several files: each must be in one of them at least, not in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from grassia.data.formats.columns import NoSuchColumn, frozen_columns
from grassia.errors import InvalidInput

__all__ = ["Dropping"]

Opened = TypeVar("Opened")


class Dropping:
    """Opens files one after the other, and keeps account of the columns to leave out that they have.

    Examples
    --------
    >>> from grassia.data.formats.columns import chosen_columns
    >>> dropping = Dropping()
    >>> for names in (["x", "y"], ["id", "x", "y"]):
    ...     dropping.open(lambda options: chosen_columns(names, "a.csv", **options), {"drop": ("id",)})
    [0, 1]
    [1, 2]
    >>> dropping.check()
    """

    def __init__(self) -> None:
        self._opened = 0
        self._found: set[str | int] = set()
        self._absent: dict[str, list[NoSuchColumn]] = {}

    def open(self, open_with: Callable[[Mapping[str, Any]], Opened], options: Mapping[str, Any]) -> Opened:
        """What `open_with` makes of the options, without such columns to drop as are not there."""
        drop = frozen_columns(options.get("drop"), "drop") or ()
        misspelt: NoSuchColumn | None = None
        self._opened += 1
        while True:
            try:
                opened = open_with(options)
            except NoSuchColumn as error:
                if error.option != "drop" or error.column not in drop:
                    raise
                self._absent.setdefault(error.column, []).append(error)
                if error.hint and error.column not in self._found:
                    misspelt = misspelt or error
                drop = tuple(column for column in drop if column != error.column)
                options = {name: value for name, value in options.items() if name != "drop"}
                if drop:
                    options = {**options, "drop": drop}
            except InvalidInput as error:  # perhaps of a column that was to be left out, by another name
                if misspelt is None:
                    raise
                raise misspelt from error
            else:
                self._found.update(drop)
                return opened

    def check(self) -> None:
        """Refuse a column that none of them has.

        Raises
        ------
        NoSuchColumn
        """
        for column, errors in self._absent.items():
            if column in self._found:
                continue
            if self._opened == 1:
                raise errors[0]
            names = dict.fromkeys(name for error in errors for name in error.names)
            source = f"{errors[0].source.removesuffix(' has')} and {self._opened - 1} more have"
            raise NoSuchColumn(column, "drop", list(names), source)
