"""`partial_fit`: the estimators on rows that come in batches."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from grassia._checks import require_exact_integers
from grassia.errors import InvalidInput
from grassia.estimators.base import RowsEstimator
from grassia.estimators.exact import rank_of
from grassia.estimators.inputs import checked_weights, components_of, is_source, whole_or_not
from grassia.streaming import Settled, Stream

Float = NDArray[np.float64]

# Of so many features everything is kept, and nothing is ever lost.
_FEW_FEATURES = 256


class StreamedEstimator(RowsEstimator):
    """An estimator with `partial_fit`.

    After a batch its attributes are not there; `__getattr__` works them out when one is first looked at, so
    that batches of one row cost little.
    """

    _streamed: ClassVar[frozenset[str]] = frozenset(
        {
            "components_",
            "explained_variance_",
            "explained_variance_ratio_",
            "singular_values_",
            "n_components_",
            "mean_",
            "noise_variance_",
            "lost_variance_",
            "converged_",
        }
    )

    # -- what a subclass says -------------------------------------------------------------------------

    @abstractmethod
    def _stream_wanted(self, n_features: int) -> int | None:
        """How many components are wanted, n_features at most; None: all that may turn out to be needed."""

    @abstractmethod
    def _fit_settled(self, settled: Settled) -> None:
        """Set the attributes from what a stream knows."""

    @abstractmethod
    def _settled_model(self) -> Settled:
        """What was fitted, as the beginning of a stream."""

    # -- streams --------------------------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take one more batch of a stream of rows, of any size; see `grassia.streaming` for what is kept.

        Parameters
        ----------
        X : as in `fit`
            A source is gone through block by block. Missing values are an error.
        y : ignored
        sample_weight : array-like of shape (n_samples,), optional
            For rows in memory.

        Returns
        -------
        self
            After `fit` the stream goes on from what was fitted.
        """
        self._check_parameters()
        weights: Float | None = None
        if is_source(X):
            if sample_weight is not None:
                raise InvalidInput("`sample_weight` in partial_fit is for rows in memory; got a source.")
            components = components_of(X, None, self._center)
            blocks: Iterable[Any] = self._component_blocks(components)
        else:
            batch = self._validated(X, reset=not self.__sklearn_is_fitted__(), fill=False)
            weights = None if sample_weight is None else checked_weights(sample_weight, batch.shape[0])
            components, blocks = None, [batch]
        # A copy, so that of a source that fails half-way nothing is counted.
        stream: Stream | None = None
        for block in blocks:
            require_exact_integers(block)
            stream = self._stream_of(int(block.shape[1])) if stream is None else stream
            stream.add(block, weights)
        if stream is None:
            raise InvalidInput("rows must not be empty; got a source of none.")
        if components is not None and not self.__sklearn_is_fitted__():
            self._set_features(stream.n_features, components.feature_names)
        self._stream = stream
        for name in self._streamed:
            self.__dict__.pop(name, None)
        self.result_ = self.certificate_ = self.history_ = None
        self.n_samples_seen_ = self.n_samples_ = whole_or_not(stream.weight)
        self.n_iter_ = stream.batches
        return self

    def _stream_of(self, n_features: int) -> Stream:
        """A copy of the stream that is under way, or a new one where there is none."""
        stream: Stream | None = self.__dict__.get("_stream")
        if stream is not None:
            return copy.copy(stream)
        rank = self._stream_rank(n_features)
        if "components_" not in self.__dict__:
            return Stream(n_features, rank)
        stream = Stream.resume(self._settled_model(), rank, self._distinct, self._center)
        stream.single = self.components_.dtype == np.float32
        return stream

    def _stream_rank(self, n_features: int) -> int:
        wanted = self._stream_wanted(n_features)
        if wanted is None or (self.n_oversamples is None and n_features <= _FEW_FEATURES):
            return n_features
        return wanted + (max(10, wanted) if self.n_oversamples is None else self.n_oversamples)

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._streamed and self.__dict__.get("_stream") is not None:
            self._fit_settled(self._stream.settle())
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_is_fitted__(self) -> bool:
        return "components_" in self.__dict__ or self.__dict__.get("_stream") is not None

    def _forget(self) -> None:
        for name in ("_stream", "n_samples_seen_", "lost_variance_"):
            self.__dict__.pop(name, None)


def stream_spectrum(settled: Settled, k: int) -> tuple[Float, Float, float, float]:
    """(eigenvalues, directions as rows, their sum in all, and after k) of what a stream knows."""
    singular, turn = settled.decomposition()
    singular[rank_of(singular, turn.shape) :] = 0.0
    weight = max(settled.weight, np.finfo(np.float64).tiny)
    values = singular**2 / weight
    if settled.lost == 0.0:  # no difference of large numbers
        total = float(values.sum())
        return values, turn, total, float(values[k:].sum())
    return values, turn, settled.squares / weight, float(values[k:].sum()) + settled.outside / weight
