"""Scores of all rows, block by block: nothing larger than a block of rows is in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia.cli._fitting import wrong_width
from grassia.cli._model import Add, Model
from grassia.cli._row_names import RowNames
from grassia.data import Components
from grassia.errors import InvalidInput

__all__ = ["score_blocks", "score_dtype", "write_scores"]

BLOCK_BYTES = 16 << 20

_NAMES = "there must be as many names as rows; the files of names do not fit those of rows: are they whole?"


def score_dtype(components: Components) -> np.dtype[Any]:
    """Single precision where that of the rows is single, else double."""
    dtype = components.dtype
    single = dtype is not None and dtype.newbyteorder("=") == np.float32
    return np.dtype(np.float32 if single else np.float64)


def score_blocks(
    model: Model, components: Components, told: str = "the input", skip: int = 0
) -> Iterator[NDArray[np.float64]]:
    """Scores of the rows, in their order; rows of another width, or not finite, are refused.

    The first `skip` rows are passed over.
    """
    first = 0
    for rows in components.blocks(BLOCK_BYTES):
        if rows.shape[1] != model.n_features:
            raise InvalidInput(wrong_width(told, int(rows.shape[1]), model))
        passed = min(max(skip - first, 0), rows.shape[0])
        first += passed
        if passed == rows.shape[0]:
            continue
        block = rows[passed:] if passed else rows
        scores = model.project(block)
        if not np.isfinite(scores).all():
            for loader in components:
                loader.open().moments()  # refuses rows that are not finite, with file, row and column
            row = first + int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
            raise InvalidInput(
                f"rows must be finite; row {row} of {told} holds NaN or inf; drop or fill it first."
            )
        first += len(scores)
        yield scores


def write_scores(
    model: Model, components: Components, names: RowNames, takers: Sequence[Add], skip: int = 0
) -> None:
    """Hand every block of scores, with the names of its rows, to all takers; the first `skip` rows not."""
    each = islice(names, skip, None)
    for scores in score_blocks(model, components, skip=skip):
        called = list(islice(each, len(scores)))
        if len(called) < len(scores):
            raise InvalidInput(_NAMES)
        for take in takers:
            take(scores, called)
    if next(each, None) is not None:
        raise InvalidInput(_NAMES)
