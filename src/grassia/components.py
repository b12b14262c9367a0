"""Components: the symmetric matrices ``A_i`` whose weighted sum is the matrix of interest.

A component can multiply a block of vectors and tell its moments; that is all a solver needs. To
add another kind (data on an accelerator, a remote service), subclass `Component` and write two
methods, `Component._measure` and `Component._product`; a third, `Component._product_single`, if it
can multiply faster in single precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from grassia import _checks, gram
from grassia._checks import matrix_shape, rows_shape
from grassia.errors import InvalidComponent

__all__ = [
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

# With |mean|^2 beyond this many traces, centring by algebra would lose digits that an explicit
# subtraction keeps, so tiles are centred in a buffer instead.
_LARGE_OFFSET = 1e4
# The same in single precision, which has fewer digits to lose; beyond _LARGE_OFFSET it is not used.
_LARGE_OFFSET_SINGLE = 10.0


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known about a component before any product.

    Attributes
    ----------
    n_features : int
        Size ``d`` of the symmetric operator.
    count : float or None
        Number of rows; None when the component is not made of rows.
    mean : ndarray of shape (d,) or None
        The component's own mean; None when it is not centred.
    trace : float or None
        Trace of the operator before the rank-one term that `Component.recenter` adds; None when
        unknown.
    positive : bool
        Whether the operator is known to be positive semidefinite.
    noise : float
        How far products may be from those of an exact symmetric operator, beyond rounding at the
        operator's own size: the part of a matrix that is not symmetric, digits lost far from the origin.
    single : bool
        Whether ``single=True`` makes a difference to `Component.apply`. It is then faster, and its
        error some float32 rounding units of the operator's size.
    """

    n_features: int
    count: float | None
    mean: Float | None
    trace: float | None
    positive: bool
    noise: float = 0.0
    single: bool = False


class Component(ABC):
    """One symmetric operator ``A_i`` of size ``d``.

    A subclass calls ``super().__init__(d)`` and writes `_measure`, which validates the data and
    returns its `Moments`, and `_product`, which multiplies a checked float64 block. Caching,
    checks of the block and the rank-one term of centred rows are done here. One that can also
    multiply in single precision writes `_product_single` and says so in ``Moments.single``.

    Notes
    -----
    A component is used by one thread at a time, and `recenter` changes it: do not share one
    between two solvers.
    """

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._moments: Moments | None = None
        self._offset: Float | None = None

    @abstractmethod
    def _measure(self) -> Moments:
        """Validate the data and return its moments; called once."""

    @abstractmethod
    def _product(self, V: Float) -> Float:
        """``A_i V`` in a new C-contiguous array, for a C-contiguous float64 block of d rows."""

    def _product_single(self, V: Float) -> Float:
        """`_product` in faster, less exact arithmetic; called only if ``Moments.single``."""
        return self._product(V)

    def moments(self) -> Moments:
        """Count, mean, trace and sign; reads the data at most once, then answers from memory.

        Raises
        ------
        InvalidComponent
            If the data holds NaN or infinities, is not symmetric, or breaks another rule.
        """
        if self._moments is None:
            self._moments = self._measure()
        return self._moments

    def apply(self, V: ArrayLike, single: bool = False) -> Float:
        """``A_i V``, plus ``(mu_i - mu)((mu_i - mu)^T V)`` once `recenter` has told the mean.

        Parameters
        ----------
        V : array-like of shape (n_features, b)
            Any real dtype; the arithmetic is float64.
        single : bool, default False
            Multiply in float32 where ``moments().single`` says that the data allow it; where they
            do not, nothing changes.

        Returns
        -------
        ndarray of shape (n_features, b)
            New, float64, C-contiguous.
        """
        block = _checks.block_of(V, self.n_features)
        out = self._product_single(block) if single and self.moments().single else self._product(block)
        if self._offset is not None:
            out += np.outer(self._offset, self._offset @ block)
        return out

    def dense(self, single: bool = False) -> Float:
        """``A_i`` itself, d x d, with the same rank-one term as `apply`; for d up to a few thousand.

        `single` is that of `apply`.

        Cost: that of the kind of component (rows: ``m d^2`` flops in one read), and d^2 numbers of
        memory a few times over.
        """
        out = self._dense_single() if single and self.moments().single else self._dense()
        if self._offset is not None:
            out += np.outer(self._offset, self._offset)
        return out

    def _dense(self) -> Float:
        """``A_i`` without the rank-one term, in a new array; by products with the identity."""
        d, step = self.n_features, 256
        out = np.empty((d, d))
        for start in range(0, d, step):
            width = min(step, d - start)
            block = np.zeros((d, width))
            block[np.arange(start, start + width), np.arange(width)] = 1.0
            out[:, start : start + width] = self._product(block)
        return (out + out.T) / 2.0

    def _dense_single(self) -> Float:
        """`_dense` in faster, less exact arithmetic; called only if ``Moments.single``."""
        return self._dense()

    def recenter(self, mean: ArrayLike) -> None:
        """Tell a centred component the mean ``mu`` of all the data; no effect on other kinds.

        From then on `apply` stands for the second moment of the rows about ``mu``, so that the
        weighted sum over components is the covariance of all rows together. A second call replaces
        the first.
        """
        own = self.moments().mean
        if own is not None:
            self._offset = own - _checks.mean_of(mean, self.n_features)

    def trace_about(self, mean: ArrayLike) -> float | None:
        """Trace of what `apply` stands for after ``recenter(mean)``; None when unknown."""
        moments = self.moments()
        if moments.trace is None or moments.mean is None:
            return moments.trace
        offset = moments.mean - _checks.mean_of(mean, self.n_features)
        return moments.trace + float(offset @ offset)


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
        self._sparse = bool(sp.issparse(matrix))
        self._matrix = sp.csr_array(matrix) if self._sparse else np.asarray(matrix)

    def _measure(self) -> Moments:
        A = self._matrix
        scan = gram.scan_symmetry(A)
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
        in_range = gram.single_in_range(scan.largest, scan.largest * self.n_features)
        single = not self._sparse and A.dtype == np.float32 and in_range
        return Moments(self.n_features, None, None, trace, False, noise, bool(single))

    def _product(self, V: Float) -> Float:
        A = self._matrix
        if self._sparse or A.dtype == np.float64:
            return np.ascontiguousarray(A @ V, dtype=np.float64)
        out = np.empty(V.shape)
        step = gram.dense_tile_rows(self.n_features)
        for start in range(0, self.n_features, step):
            # Upcast strip by strip, so that a float32 matrix never takes the memory of a float64.
            strip = A[start : start + step].astype(np.float64)
            np.matmul(strip, V, out=out[start : start + step])
        return out

    def _product_single(self, V: Float) -> Float:
        block, scale = gram.single_block(V)
        return np.multiply(self._matrix @ block, scale, dtype=np.float64, order="C")

    def _dense(self) -> Float:
        A: Any = self._matrix
        return np.array(A.toarray() if self._sparse else A, dtype=np.float64, order="C")


class RowsComponent(Component):
    """The covariance, or second moment, of the rows of ``X``, without forming a d x d matrix.

    Stands for ``(1/m)(X - 1 mu_i^T)^T (X - 1 mu_i^T)`` with ``mu_i`` the mean of these rows, or for
    ``X^T X / m`` with ``center=False``.

    Parameters
    ----------
    rows : array, memmap or sparse of shape (m, d)
        Any real dtype. Sparse rows are kept as CSR and centred by algebra, never filled in.
    center : bool, default True
    tile_rows : int, optional
        Rows multiplied at a time; by default chosen from the sizes, see `gram.dense_tile_rows`.

    Notes
    -----
    Each `apply` reads the rows once, in tiles, at ``4 m d b`` flops (``4 nnz b`` sparse), computing
    in float64; other dtypes are upcast tile by tile. With ``single=True`` dense rows of float32,
    float16, bool or integers of at most 16 bits are multiplied in float32 and summed over tiles in
    float64, unless their mean dwarfs their spread or float32 would overflow.

    A memmap is read through the page cache and not copied into memory. Fortran-ordered memmaps
    work, but every tile then touches every page. NaN and infinities are found by `moments`, which
    `apply` in double precision does not call when ``center=False``.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [3.0, 4.0]])
    >>> C = RowsComponent(X)
    >>> C.apply(np.eye(2))
    array([[1., 2.],
           [2., 4.]])
    >>> C.moments().mean
    array([2., 2.])
    """

    def __init__(self, rows: Any, center: bool = True, tile_rows: int | None = None) -> None:
        m, d = rows_shape(rows)
        super().__init__(d)
        if tile_rows is not None:
            _checks.require_count(tile_rows, "tile_rows")
        self.n_rows = m
        self.center = bool(center)
        self._tile_rows = tile_rows
        self._sparse = bool(sp.issparse(rows))
        self._tiles: list[tuple[Any, Any]] = []
        if self._sparse:
            self._rows = gram.canonical_csr(rows)
            self._tiles = list(gram.sparse_tiles(self._rows, tile_rows))
        else:
            # The plain-array view of a memmap spares the subclass's cost at every slice.
            self._rows = np.asarray(rows)
        # How tiles are centred, in double and in single precision; decided when measured.
        self._explicit = False
        self._explicit_single = False

    def _measure(self) -> Moments:
        d = self.n_features
        if self._sparse:
            sums = gram.sparse_row_sums(self._tiles, d, self.center)
        else:
            sums = gram.dense_row_sums(self._rows, self.center, tile_rows=self._dense_tile())
        if not np.isfinite(sums.squares):
            raise InvalidComponent(_checks.bad_rows(self._rows))
        _checks.require_exact_integers(self._rows)
        trace = sums.squares / self.n_rows
        mean = sums.mean
        offset_squared = 0.0 if mean is None else float(mean @ mean)
        self._explicit = offset_squared > _LARGE_OFFSET * trace
        self._explicit_single = offset_squared > _LARGE_OFFSET_SINGLE * trace
        offset = float(np.finfo(np.float64).eps * np.sqrt(offset_squared))
        noise = 4.0 * offset * float(np.sqrt(trace)) + offset**2
        single = self._single_suffices(trace, trace + offset_squared)
        return Moments(d, float(self.n_rows), mean, trace, True, noise, single)

    def _single_suffices(self, trace: float, trace_about_zero: float) -> bool:
        if self._sparse or self._explicit or not gram.exact_in_single(self._rows.dtype):
            return False
        # A bound on any number met on the way, for blocks whose entries are at most one.
        largest = self.n_rows * trace_about_zero * float(np.sqrt(self.n_features))
        return gram.single_in_range(trace, largest)

    def _dense_tile(self) -> int:
        return self._tile_rows or gram.dense_tile_rows(self.n_features)

    def _mean(self) -> Float | None:
        return self.moments().mean if self.center else None

    def _product(self, V: Float) -> Float:
        mean = self._mean()
        if self._sparse:
            out = gram.sparse_gram_product(self._tiles, V, mean)
        else:
            tile, explicit = self._dense_tile(), self._explicit
            out = gram.dense_gram_product(self._rows, V, mean, tile_rows=tile, explicit=explicit)
        out /= self.n_rows
        return out

    def _product_single(self, V: Float) -> Float:
        tile, explicit = self._dense_tile(), self._explicit_single
        mean = self._mean()
        out = gram.dense_gram_product(self._rows, V, mean, tile_rows=tile, explicit=explicit, single=True)
        out /= self.n_rows
        return out

    def _dense(self) -> Float:
        mean = self._mean()
        if self._sparse:
            out = gram.sparse_gram(self._tiles, self.n_features, mean)
        else:
            out = gram.dense_gram(self._rows, mean, tile_rows=self._tile_rows)
        out /= self.n_rows
        return out

    def _dense_single(self) -> Float:
        out = gram.dense_gram(self._rows, self._mean(), tile_rows=self._tile_rows, single=True)
        out /= self.n_rows
        return out


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
        linear = isinstance(operator, LinearOperator)
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
