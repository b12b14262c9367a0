"""Components: the symmetric matrices ``A_i`` whose weighted sum is the matrix of interest.

Matrices, operators and sums are here; what they have in common is in `grassia.component`, those made of rows
are in `grassia.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grassia import _checks
from grassia._checks import matrix_shape, rows_shape
from grassia._scipy import is_linear_operator, issparse
from grassia.component import Component, Moments
from grassia.errors import InvalidComponent
from grassia.passes.scans import scan_symmetry
from grassia.passes.sparse import as_csr
from grassia.passes.tiling import dense_tile_rows, single_block, single_in_range
from grassia.rows import BlockedRows, RowsComponent

__all__ = [
    "BlockedRows",
    "Component",
    "MatrixComponent",
    "Moments",
    "OperatorComponent",
    "RowsComponent",
    "SumComponent",
    "matrix_shape",
    "rows_shape",
]

Float = NDArray[np.float64]


class MatrixComponent(Component):
    """A symmetric matrix, dense or scipy sparse, of any real dtype.

    Parameters
    ----------
    matrix : array or sparse of shape (d, d)
        Kept as it is: neither copied nor, if sparse, filled in.

    Notes
    -----
    The full check, in `moments`, costs one pass over the entries. Symmetry is tested relative to
    the largest entry: 1e-10 for float64, 1e-5 for float32, 2e-3 for float16. What there is of it
    counts as `noise`, so that a certificate allows for it.

    Examples
    --------
    >>> A = MatrixComponent([[2.0, 1.0], [1.0, 3.0]])
    >>> A.apply([[1.0], [1.0]])
    array([[3.],
           [4.]])
    >>> A.moments().trace
    5.0
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix_shape(matrix))
        self._sparse = issparse(matrix)
        self._matrix = as_csr(matrix) if self._sparse else np.asarray(matrix)

    def _measure(self) -> Moments:
        A = self._matrix
        scan = scan_symmetry(A)
        if scan.bad is not None:
            raise InvalidComponent(
                f"the matrix must be finite; the entry at {scan.bad} is {A[scan.bad]}; "
                "fill or remove it first"
            )
        if scan.gap > _checks.symmetry_tolerance(A.dtype) * scan.largest:
            raise InvalidComponent(
                f"the matrix must be symmetric; the largest |A - A.T| is {scan.gap:.3g} at "
                f"{scan.at}, beside a largest entry of {scan.largest:.3g}; "
                "use (A + A.T) / 2 if the difference is noise, or grassia.from_rows if these are data rows"
            )
        trace = float(A.diagonal().sum(dtype=np.float64))
        # A matrix whose entries differ from their mirror by g is within g d of a symmetric one.
        noise = scan.gap * self.n_features
        in_range = single_in_range(scan.largest, scan.largest * self.n_features)
        single = not self._sparse and A.dtype == np.float32 and in_range
        return Moments(self.n_features, None, None, trace, False, noise, bool(single))

    def _product(self, V: Float) -> Float:
        A = self._matrix
        if self._sparse or A.dtype == np.float64:
            return np.ascontiguousarray(A @ V, dtype=np.float64)
        out = np.empty(V.shape)
        step = dense_tile_rows(self.n_features)
        for start in range(0, self.n_features, step):
            # Upcast strip by strip, so that a float32 matrix never takes the memory of a float64.
            strip = A[start : start + step].astype(np.float64)
            np.matmul(strip, V, out=out[start : start + step])
        return out

    def _product_single(self, V: Float) -> Float:
        block, scale = single_block(V)
        return np.multiply(self._matrix @ block, scale, dtype=np.float64, order="C")

    def _dense(self) -> Float:
        A: Any = self._matrix
        return np.array(A.toarray() if self._sparse else A, dtype=np.float64, order="C")


class OperatorComponent(Component):
    """A symmetric operator known only by its products.

    Parameters
    ----------
    operator : LinearOperator or callable
        A callable takes a block ``V`` of shape (d, b) and returns ``A V``.
    n_features : int, optional
        Size d; needed for a callable.
    trace : float, optional
        The exact trace, when it is known.
    positive : bool, default False
        Whether the operator is known to be positive semidefinite; taken on trust.

    Notes
    -----
    `moments` makes one product with a block of four fixed random vectors to test symmetry, so an
    asymmetry that those four do not see passes.

    Examples
    --------
    >>> D = OperatorComponent(lambda V: 2.0 * V, n_features=3, trace=6.0)
    >>> D.apply(np.ones((3, 1))).ravel()
    array([2., 2., 2.])
    """

    def __init__(
        self,
        operator: Any,
        n_features: int | None = None,
        trace: float | None = None,
        positive: bool = False,
    ) -> None:
        super().__init__(_checks.operator_size(operator, n_features))
        linear = is_linear_operator(operator)
        self._call: Callable[[Float], Any] = operator.matmat if linear else operator
        if trace is not None and not np.isfinite(trace):
            raise InvalidComponent(f"trace must be finite; got {trace}; leave it out if unknown")
        self._trace = None if trace is None else float(trace)
        self._positive = bool(positive)

    def _measure(self) -> Moments:
        P = np.random.default_rng(0).standard_normal((self.n_features, 4))
        AP, dtype = self._call_checked(P)
        if not np.isfinite(AP).all():
            raise InvalidComponent("the operator must return finite numbers; it gave NaN or inf")
        M = P.T @ AP
        scale = np.outer(np.linalg.norm(P, axis=0), np.linalg.norm(AP, axis=0))
        worst = float((abs(M - M.T) / np.maximum(np.maximum(scale, scale.T), 1e-300)).max())
        if worst > (1e-4 if dtype.itemsize < 8 and dtype.kind == "f" else 1e-8):
            raise InvalidComponent(
                "the operator must be symmetric; |u.T A v - v.T A u| reached "
                f"{worst:.3g} |u| |A v| for random u, v; check that it applies A and not a factor"
            )
        return Moments(self.n_features, None, None, self._trace, self._positive)

    def _product(self, V: Float) -> Float:
        return self._call_checked(V)[0]

    def _call_checked(self, V: Float) -> tuple[Float, np.dtype[Any]]:
        # The block is copied for the call because an operator may work in place.
        out = np.asarray(self._call(V.copy()))
        if out.shape != V.shape:
            raise InvalidComponent(
                f"the operator must return the shape it is given, {V.shape}; got {out.shape}"
            )
        _checks.require_real(out.dtype, "the operator's result")
        return np.array(out, dtype=np.float64, order="C"), out.dtype


class SumComponent(Component):
    """A weighted mean of components, such as one worker's several files, as one component.

    Parameters
    ----------
    parts : sequence of Component
        All of the same size; all centred rows, or none. Owned by the sum from here on.
    weights : sequence of float, optional
        Positive; divided by their sum. By default the row counts if all parts have them (the sum
        is then the covariance, or second moment, of the rows put together), else equal.

    Examples
    --------
    >>> X = np.arange(12.0).reshape(6, 2) ** 2
    >>> parts = [RowsComponent(X[:2]), RowsComponent(X[2:])]
    >>> np.allclose(SumComponent(parts).apply(np.eye(2)), np.cov(X.T, bias=True))
    True
    """

    def __init__(self, parts: Sequence[Component], weights: Sequence[float] | Float | None = None) -> None:
        self._parts = tuple(parts)
        if not self._parts:
            raise InvalidComponent("a sum must have at least one part; got none")
        super().__init__(self._parts[0].n_features)
        for i, part in enumerate(self._parts):
            if part.n_features != self.n_features:
                raise InvalidComponent(
                    f"all parts must have the same number of features; part 0 has "
                    f"{self.n_features}, part {i} has {part.n_features}"
                )
        n = len(self._parts)
        self._weights = None if weights is None else _checks.normalised_weights(weights, n)

    def _measure(self) -> Moments:
        found = []
        for i, part in enumerate(self._parts):
            try:
                found.append(part.moments())
            except InvalidComponent as error:
                raise InvalidComponent(f"part {i}: {error.rule}") from error
        counts = [m.count for m in found if m.count is not None]
        counted = len(counts) == len(found)
        if self._weights is None:
            raw = counts if counted else [1.0] * len(found)
            self._weights = _checks.normalised_weights(raw, len(found))
        means = [m.mean for m in found if m.mean is not None]
        if means and len(means) < len(found):
            raise InvalidComponent(
                f"parts must be all centred or all not; {len(means)} of {len(found)} are centred; "
                "give every part the same `center`"
            )
        mean = None
        if means:
            # Averaged about the first mean, so that a large common offset costs no digits.
            mean = means[0] + self._weights @ np.array([m - means[0] for m in means])
            for part in self._parts:
                part.recenter(mean)
        traces = [part.moments().trace if mean is None else part.trace_about(mean) for part in self._parts]
        known = [t for t in traces if t is not None]
        trace = float(self._weights @ np.array(known)) if len(known) == len(found) else None
        positive = all(m.positive for m in found)
        noise = float(self._weights @ np.array([m.noise for m in found]))
        count = sum(counts) if counted else None
        single = any(m.single for m in found)
        return Moments(self.n_features, count, mean, trace, positive, noise, single)

    def _product(self, V: Float) -> Float:
        return self._mix(V.shape, lambda part: part.apply(V))

    def _product_single(self, V: Float) -> Float:
        return self._mix(V.shape, lambda part: part.apply(V, single=True))

    def _dense(self) -> Float:
        return self._mix((self.n_features, self.n_features), lambda part: part.dense())

    def _dense_single(self) -> Float:
        return self._mix((self.n_features, self.n_features), lambda part: part.dense(single=True))

    def _mix(self, shape: tuple[int, ...], of: Callable[[Component], Float]) -> Float:
        self.moments()
        assert self._weights is not None
        out = np.zeros(shape)
        for weight, part in zip(self._weights, self._parts, strict=True):
            out += weight * of(part)
        return out

    def recenter(self, mean: ArrayLike) -> None:
        """Recentre every part; their weighted mean is then recentred, with no term of its own."""
        if self.moments().mean is not None:
            for part in self._parts:
                part.recenter(mean)
