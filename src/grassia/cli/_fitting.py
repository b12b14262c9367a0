"""Rows that are to fit a model: read as those it was made of, their columns found by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grassia.cli._inputs import Source
from grassia.cli._model import Model
from grassia.data import Components
from grassia.errors import InvalidInput

__all__ = ["fitting_rows", "wrong_width"]


def fitting_rows(
    model: Model, inputs: Sequence[str], options: Mapping[str, Any], parts: int
) -> tuple[Source, Components]:
    """The rows of the inputs, of the features of the model.

    Options of the user are taken as they are. Without any, files of the format that the model was made of are
    read as those were, and of tables its columns are taken by name, in whatever order they are.
    """
    source = Source(inputs, options, model.center)
    if not options:
        source = Source(inputs, _inherited(model, source), model.center)
    names = model.feature_names
    # Columns of the same name, which cannot be told apart by it, are taken as they are.
    distinct = names is not None and len(set(names)) == len(names)
    if not options and names is not None and distinct and source.of_tables:
        by_name = {name: value for name, value in source.options.items() if name not in ("columns", "drop")}
        source = Source(inputs, {**by_name, "columns": names}, model.center)
    components = source.components(parts)
    width = components.n_features
    if width is not None and width != model.n_features:
        raise InvalidInput(wrong_width(source.text, width, model))
    found = components.feature_names
    if names is not None and found is not None and list(found) != names:
        at = next(j for j, (a, b) in enumerate(zip(found, names, strict=True)) if a != b)
        raise InvalidInput(
            f"the columns of {source.text} must be those of the model, in its order; column {at} is "
            f"{found[at]!r}, not {names[at]!r}. Choose them with --columns."
        )
    return source, components


def wrong_width(told: str, width: int, model: Model) -> str:
    """Rows that do not have the features of the model."""
    return (
        f"rows must have the {model.n_features} features of the model; {told} has {width}. "
        "Give those, in the order of the model (of tables, choose them with --columns or --drop)."
    )


def _inherited(model: Model, source: Source) -> Mapping[str, Any]:
    asked = model.manifest["asked"]
    return dict(asked["options"]) if asked.get("format") == source.format else {}
