"""What `eigsh` and `svds` multiply by: negatives and squares of components, matrices with their Gram ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from grassia._scipy import is_linear_operator, issparse
from grassia.components import Component, Moments
from grassia.data import Components, Extent, OperatorLoader, extent_of, from_rows
from grassia.data.loaders import described
from grassia.errors import InvalidInput
from grassia.messages import Array

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["NegatedLoader", "OperatorMatrix", "RowsMatrix", "Square", "operand", "tall"]


def operand(A: Any, name: str) -> Any:
    """`A` itself, or a LinearOperator of what has scipy's methods; complex numbers are refused."""
    known = isinstance(A, Component) or is_linear_operator(A)
    if not known and hasattr(A, "matvec") and hasattr(A, "shape"):
        from scipy.sparse.linalg import aslinearoperator

        A = aslinearoperator(A)
    for part in A if isinstance(A, list | tuple) else [A]:
        kind = getattr(getattr(part, "dtype", None), "kind", "")
        if kind == "c":
            raise InvalidInput(
                f"{name} takes real matrices; got dtype {part.dtype}. For complex ones use "
                f"scipy.sparse.linalg.{name}."
            )
    return A


@dataclass(frozen=True)
class Square:
    """``V -> A (A V) / size^2``: the square of a matrix of any size stays within the range of numbers."""

    component: Component
    size: float

    @classmethod
    def of(cls, component: Component) -> Square:
        """The square of a component, measured by what it makes of a fixed random vector."""
        x = np.random.default_rng(0).standard_normal((component.n_features, 1))
        longest = float(abs(component.apply(x)).max())
        return cls(component, longest if longest > 0.0 else 1.0)

    def __call__(self, V: Array) -> Array:
        return self.component.apply(self.component.apply(V) / self.size) / self.size


@dataclass(frozen=True, slots=True, eq=False)
class NegatedLoader:
    """The negative of another loader's component; its largest eigenvalues are the smallest of that one."""

    whole: Any

    @property
    def n_features(self) -> int | None:
        size: int | None = getattr(self.whole, "n_features", None)
        return size

    def open(self) -> Component:
        return Negated(self.whole.open())

    def describe(self) -> str:
        return f"minus {described(self.whole)}"

    def extent(self) -> Extent | None:
        return extent_of(self.whole)


class Negated(Component):
    """``-A_i``, for the other end of the spectrum.

    >>> minus = Negated(NegatedLoader(OperatorLoader(lambda V: 2.0 * V, 2)).open())
    >>> minus.apply(np.eye(2))
    array([[2., 0.],
           [0., 2.]])
    """

    def __init__(self, whole: Component) -> None:
        super().__init__(whole.n_features)
        self._whole = whole

    def _measure(self) -> Moments:
        found = self._whole.moments()
        # Pooling adds the spread of the means to the trace, which would have the wrong sign here.
        trace = None if found.trace is None or found.mean is not None else -found.trace
        return Moments(self.n_features, found.count, found.mean, trace, False, found.noise, found.single)

    def _product(self, V: Array) -> Array:
        return -self._whole.apply(V)

    def _product_single(self, V: Array) -> Array:
        return -self._whole.apply(V, single=True)

    def _dense(self) -> Array:
        return -self._whole.dense()

    def _dense_single(self) -> Array:
        return -self._whole.dense(single=True)

    def recenter(self, mean: Any) -> None:
        self._whole.recenter(mean)


class RowsMatrix:
    """A matrix of rows that come in blocks, with at least as many rows as columns where that is known.

    `turned` says that it is the transpose of the one that was given; `gram` are the components whose
    weighted sum is ``A^T A / m``; `centre` is what to take from every row.
    """

    def __init__(self, gram: Components, turned: bool = False) -> None:
        self.gram, self.turned = gram, turned
        self.centre: Array | None = None

    @property
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns, as far as they are known before the rows are read."""
        extents = [extent_of(loader) for loader in self.gram]
        if any(extent is None for extent in extents):
            return None
        known = [extent for extent in extents if extent is not None]
        if any(extent.kind != "rows" for extent in known):
            raise InvalidInput(
                "svds takes rows of data; these components are symmetric matrices or operators, "
                "whose eigenvectors are `eigsh`'s."
            )
        return sum(extent.n_rows for extent in known), known[0].n_features

    def times(self, V: Array) -> Array:
        """``A V``, by blocks of rows."""
        shift = 0.0 if self.centre is None else self.centre @ V
        return np.vstack([_double(block) @ V - shift for block in self._blocks()])

    def adjoint(self, U: Array) -> Array:
        """``A^T U``, by blocks of rows."""
        out: Any = 0.0
        start = 0
        for block in self._blocks():
            stop = start + block.shape[0]
            out = out + _double(block).T @ U[start:stop]
            start = stop
        return np.asarray(out if self.centre is None else out - np.outer(self.centre, U.sum(axis=0)))

    def _blocks(self) -> Iterator[Any]:
        return self.gram.blocks()


class OperatorMatrix:
    """A LinearOperator, transposed where it is wider than tall."""

    def __init__(self, operator: LinearOperator) -> None:
        m, n = (int(size) for size in operator.shape)
        self.turned = m < n
        self.shape: tuple[int, int] | None = (max(m, n), min(m, n))
        self.centre: Array | None = None
        times, adjoint = operator.matmat, operator.rmatmat
        self._times, self._adjoint = (adjoint, times) if self.turned else (times, adjoint)
        try:
            operator.rmatvec(np.zeros(m))
        except NotImplementedError as error:
            raise InvalidInput(
                "svds needs the products of A and of its transpose; this LinearOperator has no `rmatvec`. "
                "Give it one, or `rmatmat`."
            ) from error
        self.gram = Components([OperatorLoader(self._gram, self.shape[1], None, True)])

    def _gram(self, V: Array) -> Array:
        return self.adjoint(self.times(V)) / self.shape[0] if self.shape is not None else V

    def times(self, V: Array) -> Array:
        return _real(self._times, V)

    def adjoint(self, U: Array) -> Array:
        return _real(self._adjoint, U)


def tall(A: Any) -> RowsMatrix | OperatorMatrix:
    """The matrix, or its transpose if that has fewer columns; a source of rows stays as it is."""
    if is_linear_operator(A):
        return OperatorMatrix(A)
    if isinstance(A, Components):
        return RowsMatrix(A)
    in_memory = issparse(A) or (isinstance(A, np.ndarray) and not isinstance(A, np.memmap))
    if in_memory and A.ndim == 2 and A.shape[0] < A.shape[1]:
        across = A.T.tocsr() if issparse(A) else A.T
        return RowsMatrix(from_rows(across, center=False), turned=True)
    return RowsMatrix(from_rows(A, center=False))


def _double(block: Any) -> Any:
    return block.astype(np.float64, copy=False)


def _real(product: Callable[[Array], Any], V: Array) -> Array:
    return np.asarray(product(V), dtype=np.float64)
