"""What a component is: a symmetric matrix ``A_i`` that multiplies blocks and tells its moments.

That is all a solver needs. To add another kind (data on an accelerator, a remote service), subclass
`Component` and write two methods, `Component._measure` and `Component._product`; a third,
`Component._product_single`, if it can multiply faster in single precision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from grassia import _checks

__all__ = ["Component", "Moments"]

Float = NDArray[np.float64]


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
