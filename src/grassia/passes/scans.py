"""Scans of rows and matrices for entries that are not finite, and for asymmetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._scipy import issparse
from grassia.passes.tiling import dense_tile_rows

__all__ = ["SymmetryScan", "first_bad_entry", "scan_symmetry"]


def first_bad_entry(X: Any) -> tuple[int, int] | None:
    """Row and column of the first NaN or inf, or None; a read made only on the way to an error.

    Examples
    --------
    >>> first_bad_entry(np.array([[0.0, 1.0], [2.0, np.nan]]))
    (1, 1)
    """
    if issparse(X):
        bad = np.flatnonzero(~np.isfinite(X.data))
        if not bad.size:
            return None
        return int(np.searchsorted(X.indptr, bad[0], side="right")) - 1, int(X.indices[bad[0]])
    step = dense_tile_rows(X.shape[1])
    for start in range(0, X.shape[0], step):
        found = np.argwhere(~np.isfinite(X[start : start + step]))
        if found.size:
            return start + int(found[0, 0]), int(found[0, 1])
    return None


@dataclass(frozen=True, slots=True)
class SymmetryScan:
    """Largest |entry|, largest |A - A.T| and where it is; or the first entry not finite."""

    largest: float
    gap: float
    at: tuple[int, int]
    bad: tuple[int, int] | None = None


def scan_symmetry(A: Any) -> SymmetryScan:
    """Scan a square matrix strip by strip; working memory is a strip (a copy, if sparse)."""
    d = A.shape[0]
    sparse = issparse(A)
    step = d if sparse else dense_tile_rows(d)
    largest, gap, at = 0.0, 0.0, (0, 0)
    for start in range(0, d, step):
        strip = A[start : start + step].astype(np.float64, copy=False)
        entries = strip.data if sparse else strip
        if not np.isfinite(entries).all():
            full = strip.tocoo() if sparse else None
            found = _first(~np.isfinite(full.data if full is not None else strip), full)
            return SymmetryScan(np.inf, np.inf, at, (start + found[0], found[1]))
        largest = max(largest, float(abs(entries).max(initial=0.0)))
        difference = abs(strip - A[:, start : start + step].astype(np.float64, copy=False).T)
        full = difference.tocoo() if sparse else None
        worst = full.data if full is not None else difference
        if worst.size and float(worst.max()) > gap:
            gap = float(worst.max())
            found = _first(worst == gap, full)
            at = (start + found[0], found[1])
    return SymmetryScan(largest, gap, at)


def _first(mask: NDArray[np.bool_], coo: Any) -> tuple[int, int]:
    k = int(mask.argmax())
    if coo is not None:
        return int(coo.row[k]), int(coo.col[k])
    i, j = divmod(k, mask.shape[1])
    return i, j
