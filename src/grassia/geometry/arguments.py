"""Checks that all of them make of their arguments, and inner products that stay finite."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from grassia.errors import InvalidInput

Array = Any


# A cosine below this many units of rounding cannot be told from zero, so neither can its sign.
CUT_LOCUS_ULPS = 64.0


def namespace(*arrays: Array) -> Any:
    try:
        return array_namespace(*arrays)
    except TypeError as error:
        kinds = ", ".join(type(a).__name__ for a in arrays)
        raise InvalidInput(
            f"arguments must be arrays of one array library; got {kinds}. "
            "Convert them first, for example with `numpy.asarray`."
        ) from error


@lru_cache(maxsize=32)
def precision(xp: Any, dtype: Any) -> tuple[float, float]:
    """Return (unit roundoff spacing, smallest normal number) of an accepted dtype."""
    if dtype not in (xp.float32, xp.float64):
        raise InvalidInput(
            f"arrays must be float32 or float64; got {dtype}. Convert them with `astype` first."
        )
    info = xp.finfo(dtype)
    return float(info.eps), float(info.smallest_normal)


def check_matrix(name: str, X: Array) -> tuple[int, int]:
    if X.ndim != 2:
        raise InvalidInput(
            f"`{name}` must be a matrix (2 axes); got shape {tuple(X.shape)}. "
            "Write a single vector as one column."
        )
    d, k = X.shape
    return d, k


def check_dims(d: int, k: int) -> None:
    if not 1 <= k <= d:
        raise InvalidInput(f"`k` must satisfy 1 <= k <= d; got k={k}, d={d}.")


def check_point(name: str, W: Array) -> tuple[int, int]:
    d, k = check_matrix(name, W)
    check_dims(d, k)
    return d, k


def check_pair(
    w_name: str, W: Array, v_name: str, V: Array, *, same_columns: bool = True
) -> tuple[Any, float]:
    """Check the base `W` and a companion `V`; return the namespace and eps."""
    xp = namespace(W, V)
    d, k = check_point(w_name, W)
    rows, columns = check_matrix(v_name, V)
    if rows != d or (same_columns and columns != k):
        rule = "the shape" if same_columns else "the number of rows"
        raise InvalidInput(
            f"`{v_name}` must have {rule} of `{w_name}`; got {tuple(V.shape)} and {tuple(W.shape)}."
        )
    if W.dtype != V.dtype:
        raise InvalidInput(
            f"`{w_name}` and `{v_name}` must have one dtype; got {W.dtype} and {V.dtype}. "
            "Convert one of them with `astype`."
        )
    return xp, precision(xp, W.dtype)[0]


def not_finite(names: str) -> InvalidInput:
    return InvalidInput(
        f"{names} must hold finite numbers only; got NaN, infinity or entries whose products "
        "overflow. Look at the step before this one: it diverged or divided by zero."
    )


def gram(W: Array, V: Array) -> Array:
    # NumPy would warn when the product overflows; callers look at the result and say more.
    with np.errstate(over="ignore", invalid="ignore"):
        return W.T @ V


def is_finite(xp: Any, M: Array) -> bool:
    # A sum is finite only if every term is, and it is one reduction rather than two.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(float(xp.sum(M)))


def finite_gram(xp: Any, w_name: str, W: Array, v_name: str, V: Array) -> Array:
    """Return W^T V; a NaN or infinity anywhere in W or V always reaches it (0 * inf is NaN)."""
    C = gram(W, V)
    if not is_finite(xp, C):
        raise not_finite(f"`{w_name}` and `{v_name}`")
    return C
