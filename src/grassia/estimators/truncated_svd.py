"""`TruncatedSVD`: the leading singular vectors of rows that are not centred."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from grassia._checks import require_count
from grassia.certificate import Certifier
from grassia.errors import InvalidInput
from grassia.estimators.decompose import Decomposition, Options, decompose, most
from grassia.estimators.inputs import Rows
from grassia.estimators.streamed import StreamedEstimator, stream_spectrum
from grassia.losses import LossPolicy
from grassia.result import fix_signs
from grassia.streaming import Settled
from grassia.weighted import RunningMoments

Float = NDArray[np.float64]


class TruncatedSVD(StreamedEstimator):
    """Singular value decomposition without centring, as for term counts: a drop-in for scikit-learn's.

    Parameters
    ----------
    n_components : int
        How many, at most min(n_samples, n_features).
    solver, backend, n_shards, n_workers, tol, max_iter, time_limit
        As those of `PCA`.
    random_state, warm_start, missing, callbacks, certifier, n_oversamples, on_loss
        As those of `PCA`.

    Attributes
    ----------
    components_ : ndarray (n_components, n_features)
        Right singular vectors; the largest entry of each (in size) is positive.
    singular_values_ : ndarray (n_components,)
    explained_variance_, explained_variance_ratio_ : ndarray (n_components,)
        Variances of the transformed rows, with 1/n as in scikit-learn, and their parts of the columns'.
    n_features_in_, feature_names_in_, n_components_, n_samples_, n_iter_
        As those of `PCA`.
    converged_, certificate_, history_, result_, n_samples_seen_, lost_variance_
        As those of `PCA`.

    Examples
    --------
    >>> import scipy.sparse as sp, grassia
    >>> X = sp.random_array((300, 40), density=0.1, rng=0)
    >>> svd = grassia.TruncatedSVD(n_components=3, random_state=0).fit(X)
    >>> svd.components_.shape, svd.converged_
    ((3, 40), True)
    """

    _center: ClassVar[bool] = False
    _least_features: ClassVar[int] = 2

    def __init__(
        self,
        n_components: int = 2,
        *,
        solver: Any = "auto",
        backend: Any = "serial",
        n_shards: int | None = None,
        n_workers: int | None = None,
        tol: float | None = None,
        max_iter: float = 10_000,
        time_limit: float | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        missing: str = "error",
        callbacks: Any = None,
        certifier: Certifier | None = None,
        n_oversamples: int | None = None,
        on_loss: str | LossPolicy = "reload",
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.backend = backend
        self.n_shards = n_shards
        self.n_workers = n_workers
        self.tol = tol
        self.max_iter = max_iter
        self.time_limit = time_limit
        self.random_state = random_state
        self.warm_start = warm_start
        self.missing = missing
        self.callbacks = callbacks
        self.certifier = certifier
        self.n_oversamples = n_oversamples
        self.on_loss = on_loss

    # -- fitting ------------------------------------------------------------------------------------

    def _fit_rows(self, rows: Rows, options: Options) -> Decomposition:
        require_count(self.n_components, "`n_components`")
        k = int(self.n_components)
        if k > most(rows):
            raise InvalidInput(
                "`n_components` must satisfy 1 <= n_components <= min(n_samples, n_features); "
                f"got n_components={k}, n_samples={rows.count}, n_features={rows.n_features}."
            )
        found = decompose(rows, k, options, center=False)
        # From one more pass: differences of second moments would cancel where the mean is large.
        whole, along = RunningMoments(rows.n_features), RunningMoments(k)
        for block, weights in rows.weighted_blocks():
            whole.add(block, weights)
            along.add(block @ found.vectors, weights)
        variances, total = along.column_squares / rows.weight, whole.squares / rows.weight
        self._set_model(found.vectors, found.values * rows.weight, variances, total, rows.dtype)
        self._mean, self._squares = whole.mean, found.total * rows.weight
        return found

    def _set_model(
        self, vectors: Float, squares: Float, variances: Float, total: float, dtype: np.dtype[Any]
    ) -> None:
        ratio = variances / total if total > 0.0 else np.full(len(variances), np.nan)
        self.components_ = np.ascontiguousarray(vectors.T, dtype=dtype)
        self.singular_values_ = np.sqrt(squares).astype(dtype)
        self.explained_variance_ = variances.astype(dtype)
        self.explained_variance_ratio_ = ratio.astype(dtype)
        self.n_components_ = vectors.shape[1]

    def _stream_wanted(self, n_features: int) -> int | None:
        require_count(self.n_components, "`n_components`")
        if self.n_components > n_features:
            raise InvalidInput(
                f"`n_components` must be at most n_features={n_features}; got {self.n_components}."
            )
        return int(self.n_components)

    def _fit_settled(self, settled: Settled) -> None:
        center, weight, mean = self._stream.center, settled.weight, settled.mean
        moment = settled
        if center:  # the second moment is that about the mean, and the mean's
            moment = replace(settled, factor=np.vstack([settled.factor, np.sqrt(weight) * mean]))
        values, turn, second, _ = stream_spectrum(moment, 0)
        k = min(int(self.n_components), self._stream.count, len(values))
        vectors = fix_signs(turn[:k].T)
        if center:
            variances = np.sum((settled.factor @ vectors) ** 2, axis=0) / weight
            total = settled.squares / weight
        else:  # a stream that goes on from a fit, which knows its squares about zero only
            variances = np.maximum(values[:k] - (mean @ vectors) ** 2, 0.0)
            total = max(0.0, second - float(mean @ mean))
        dtype = np.dtype(np.float32 if self._stream.single else np.float64)
        self._set_model(vectors, values[:k] * weight, variances, total, dtype)
        self._mean = mean
        self.lost_variance_ = settled.lost / max(weight, 1.0)
        self.converged_ = settled.lost == 0.0

    def _settled_model(self) -> Settled:
        singular = self.singular_values_.astype(np.float64)
        lost = max(0.0, self._squares - float(np.sum(singular**2)))
        lost = 0.0 if lost <= 1e-12 * self._squares else lost
        factor = singular[:, None] * self.components_
        return Settled(self._weight, self._mean, self._squares, factor, lost, lost)

    # -- transforming -------------------------------------------------------------------------------

    def _projected(self, block: Any) -> NDArray[Any]:
        return np.asarray(block @ self.components_.T)

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """From coordinates back to rows: `X @ components_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, `n_components_`)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        return np.asarray(self._coordinates(X) @ self.components_)

    def _column_means(self) -> Float:
        if "_mean" not in self.__dict__:  # a stream knows it once it has been asked for anything
            self._fit_settled(self._stream.settle())
        return self._mean
