"""What components that are added up must have in common: the number of their features, and the names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grassia.data.formats.columns import leave_out, listed
from grassia.data.loaders import Loader
from grassia.errors import InvalidComponent

__all__ = ["common_names", "common_size"]

_MOST_NAMED = 3


def common_size(loaders: Sequence[Loader]) -> int | None:
    """The number of features of all that tell it.

    Raises
    ------
    InvalidComponent
        If two differ, with the number and the file of the second.
    """
    size: int | None = None
    first = 0
    for i, loader in enumerate(loaders):
        found = getattr(loader, "n_features", None)
        if found is None:
            continue
        if size is None:
            size, first = int(found), i
        elif found != size:
            here, there = _called(loader, "this one"), _called(loaders[first], f"component {first}")
            raise InvalidComponent(
                f"all components must have the same number of features; {here} has {found}, {there} has "
                f"{size}",
                i,
            )
    return size


def common_names(loaders: Sequence[Loader]) -> tuple[str, ...] | None:
    """The names of the features; shards that name them differently would be added up wrongly.

    Raises
    ------
    InvalidComponent
        If two differ, with the number and the file of the second, and what it lacks or has in addition.
    """
    names: tuple[str, ...] | None = None
    first = 0
    for i, loader in enumerate(loaders):
        found = getattr(loader, "feature_names", None)
        if found is None or found is names:
            continue
        if names is None:
            names, first = tuple(found), i
        elif tuple(found) != names:
            here, there = _called(loader, "this one"), _called(loaders[first], f"component {first}")
            raise InvalidComponent(_difference(tuple(found), names, here, there), i)
    return names


def _difference(found: tuple[str, ...], names: tuple[str, ...], here: str, there: str) -> str:
    lacks = sorted(set(names) - set(found), key=names.index)
    extra = sorted(set(found) - set(names), key=found.index)
    if not lacks and not extra:
        pairs = zip(found, names, strict=False)
        at = next((j for j, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            return (
                f"all components must have the same columns; {here} has {len(found)}, {there} {len(names)}, "
                "of which some have the same name; choose and order them with options columns"
            )
        return (
            f"all components must have the same columns in the same order; column {at} of {here} is "
            f"{found[at]!r}, of {there} {names[at]!r}; choose and order them with options columns"
        )
    differs = [f"lacks {listed(lacks, _MOST_NAMED)}"] * bool(lacks)
    differs += [f"has {listed(extra, _MOST_NAMED)} in addition"] * bool(extra)
    remedy = "choose and order them with options columns"
    if len(lacks) + len(extra) <= _MOST_NAMED:
        remedy = f"{leave_out([*lacks, *extra])}, or {remedy}"
    return (
        f"all components must have the same columns; {here} {' and '.join(differs)}, compared with {there}; "
        f"{remedy}"
    )


def _called(loader: Any, otherwise: str) -> str:
    """The file that a loader reads, where it is one."""
    name = getattr(getattr(loader, "opener", None), "name", None) or getattr(loader, "path", None)
    return name if isinstance(name, str) else otherwise
