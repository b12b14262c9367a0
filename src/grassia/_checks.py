"""The rules for a component's data and arguments, and the words in which they are refused."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grassia._scipy import is_linear_operator, issparse
from grassia.errors import InvalidComponent, InvalidInput

Float = NDArray[np.float64]

OVERFLOW = "the squares of the rows must not overflow float64; rescale the data"


def rows_shape(rows: Any) -> tuple[int, int]:
    """Shape of `rows` after the checks that do not read them.

    Raises
    ------
    InvalidComponent
        If masked, not two-dimensional, not of a real dtype, or empty.
    """
    X = plain(rows, "rows")
    if X.ndim != 2:
        raise InvalidComponent(
            f"rows must be a 2-D array (rows x features); got {X.ndim}-D of shape {X.shape}; "
            "reshape one sample with .reshape(1, -1), one feature with .reshape(-1, 1)"
        )
    require_real(X.dtype, "rows")
    m, d = X.shape
    if m == 0 or d == 0:
        raise InvalidComponent(
            f"rows must not be empty; got {m} rows x {d} features; leave the empty shard out"
        )
    return int(m), int(d)


def matrix_shape(matrix: Any) -> int:
    """Size of a symmetric matrix after the checks that do not read its entries.

    Raises
    ------
    InvalidComponent
        If masked, not square, not of a real dtype, or empty.
    """
    A = plain(matrix, "the matrix")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise InvalidComponent(
            f"the matrix must be square; got shape {A.shape}; "
            "for rows of data use from_rows, which stands for their covariance"
        )
    require_real(A.dtype, "the matrix")
    if A.shape[0] == 0:
        raise InvalidComponent("the matrix must not be empty; got shape (0, 0)")
    return int(A.shape[0])


def require_count(value: Any, name: str, least: int = 1) -> None:
    """Refuse what is no integer of at least `least`; True is none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidInput(f"{name} must be an integer; got {value!r}")
    if int(value) < least:
        raise InvalidInput(f"{name} must be at least {least}; got {value}")


def require_positive(value: Any, name: str) -> None:
    """Refuse what is no positive finite number; True is none."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and 0.0 < float(value) < float("inf")):
        raise InvalidInput(f"{name} must be a positive finite number; got {value!r}")


def require_nonnegative(value: Any, name: str) -> None:
    """Refuse what is no finite number of at least zero; True is none."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and 0.0 <= float(value) < float("inf")):
        raise InvalidInput(f"{name} must be a finite number >= 0; got {value!r}")


def plain(data: Any, name: str) -> Any:
    if isinstance(data, np.ma.MaskedArray):
        raise InvalidComponent(
            f"{name} must not be a masked array; fill the masked entries first, with .filled(value)"
        )
    return data if issparse(data) else np.asarray(data)


def require_exact_integers(rows: Any) -> None:
    """Refuse integers that float64 cannot hold, such as nanoseconds since 1970."""
    entries = rows.data if issparse(rows) else rows
    if entries.dtype.kind not in "iu" or entries.dtype.itemsize < 8 or entries.size == 0:
        return
    largest = max(int(entries.max()), -int(entries.min()))
    if largest > 2**53:
        raise InvalidComponent(
            f"integers must be at most 2**53 in size to be exact in float64; found {largest}; "
            "subtract an offset from the column first"
        )


def require_real(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind not in "fiub":
        raise InvalidComponent(
            f"{name} must be real numbers (float, integer or bool); got dtype {dtype}; "
            "convert with .astype(float)"
        )


def block_of(V: ArrayLike, n_features: int) -> Float:
    block = np.asarray(V)
    if block.ndim != 2 or block.shape[0] != n_features or block.dtype.kind not in "fiub":
        raise InvalidInput(
            f"V must be a real array of shape ({n_features}, b); got shape {block.shape}, dtype {block.dtype}"
        )
    return np.ascontiguousarray(block, dtype=np.float64)


def mean_of(mean: ArrayLike, n_features: int) -> Float:
    out = np.asarray(mean, dtype=np.float64)
    if out.shape != (n_features,):
        raise InvalidInput(f"mean must have shape ({n_features},); got {out.shape}")
    return out


def normalised_weights(weights: Sequence[float] | Float, n: int) -> Float:
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != (n,) or not (np.isfinite(w).all() and (w > 0).all()):
        raise InvalidInput(f"weights must be {n} positive finite numbers; got {w.tolist()}")
    out: Float = w / w.sum()
    return out


def operator_size(operator: Any, n_features: int | None) -> int:
    if is_linear_operator(operator):
        shape = operator.shape
        if shape[0] != shape[1] or shape[0] == 0:
            raise InvalidComponent(f"the operator must be square, at least 1 x 1; got {shape}")
        if operator.dtype is not None:
            require_real(np.dtype(operator.dtype), "the operator")
        if n_features not in (None, shape[0]):
            raise InvalidComponent(f"n_features must be the operator's size, {shape[0]}; got {n_features}")
        return int(shape[0])
    if not callable(operator):
        raise InvalidComponent(
            "the operator must be a scipy LinearOperator or a callable V -> A V; got "
            f"{type(operator).__name__}; for a matrix use MatrixComponent"
        )
    whole = isinstance(n_features, numbers.Integral) and not isinstance(n_features, bool)
    if n_features is None or not whole or n_features < 1:
        raise InvalidComponent(
            "n_features must be given, at least 1, for a callable operator, as an integer; "
            f"got {n_features!r}"
        )
    return int(n_features)


def symmetry_tolerance(dtype: np.dtype[Any]) -> float:
    return {2: 2e-3, 4: 1e-5}.get(dtype.itemsize, 1e-10) if dtype.kind == "f" else 1e-10
