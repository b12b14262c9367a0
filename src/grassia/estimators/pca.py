"""`PCA`: scikit-learn's estimator on data that lives in pieces, with a certificate for the answer."""

from __future__ import annotations

import numbers
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from grassia.certificate import Certifier
from grassia.errors import InvalidInput
from grassia.estimators.decompose import Decomposition, Options, decompose, most
from grassia.estimators.exact import Wanted, number_of
from grassia.estimators.inputs import Rows
from grassia.estimators.likelihood import GaussianModel
from grassia.estimators.streamed import StreamedEstimator, stream_spectrum
from grassia.losses import LossPolicy
from grassia.result import fix_signs
from grassia.streaming import Settled

Float = NDArray[np.float64]


class PCA(StreamedEstimator):
    """Principal component analysis: a drop-in for scikit-learn's.

    Parameters
    ----------
    n_components : int, float or None
        How many components; as a fraction between 0 and 1, as few as explain more than that part of the
        variance; None: min(n_samples, n_features).
    copy : bool
        Accepted for scikit-learn's sake; the data are never written to.
    whiten : bool
        Whether `transform` divides by the standard deviations.
    solver : str or Solver
        As in `grassia.eigenspace`. "auto" finds the whole spectrum where that costs least, else it iterates.
    backend : str, Backend or callable
        "serial", "threads", "processes", "simulated", "ray", "dask", a back-end object, or a function that
        makes one, as `functools.partial(grassia.backends.Processes, 4)`.
    n_shards : int, optional
        Into how many components one source of rows is split. Default: an array or file on a back-end with
        workers has one for each, all others one. Lists of shards stay as they are.
    n_workers : int, optional
        Workers of a back-end given by name.
    tol : float, optional
        Wanted bound on the sine of the largest angle between the span of the components and the true one.
        None: 1e-8, or what rounding allows up to 1e-6; for float32 rows 1e-5, up to 1e-4.
    max_iter : float
        Give up after so many passes over the data.
    time_limit : float, optional
        Give up after so many seconds.
    random_state : int, RandomState, Generator or None
    warm_start : bool
        Whether `fit` starts from the components of the fit before.
    missing : {"error", "mean"}
        What becomes of NaN: an error, or the mean of what there is in the column.
    callbacks : callable or iterable of callables, optional
        Given a `grassia.Progress` after each turn; one that returns True ends the fit with the best so far.
    certifier : Certifier, optional
        How hard to certify; fewer `probes` take less memory.
    n_oversamples : int, optional
        Directions that `partial_fit` keeps beside n_components. Default: all, of up to 256 features; of more
        as many again as n_components, 10 at least.
    on_loss : {"reload", "wait"} or LossPolicy
        What a lost worker means, as in `grassia.eigenspace`; none is left out: the model is one of all rows.

    Attributes
    ----------
    components_ : ndarray (`n_components_`, n_features)
        Orthonormal rows by descending variance; the largest entry of each (in size) is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray (`n_components_`,)
        Variances with n - 1 degrees of freedom; their parts of the exact total; singular values of the
        centred rows.
    mean_, noise_variance_, n_components_, n_samples_, n_features_in_, feature_names_in_
        As scikit-learn's. `n_samples_` is the sum of the weights where there are any.
    n_iter_ : int
        Passes over the data (after `partial_fit`: batches).
    converged_ : bool
        Whether `tol` is certified; after `partial_fit`, whether nothing had to be dropped.
    certificate_ : Certificate or None
        Bounds on the error of the components that have variance; None after `partial_fit`.
    history_, result_ : History and Result or None
        Of the run.
    n_samples_seen_, lost_variance_
        After `partial_fit` only: rows so far (or their weight), and how far the variances may be too low.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 5)) * np.array([5.0, 3.0, 1.0, 1.0, 1.0])
    >>> pca = grassia.PCA(n_components=2).fit(X)
    >>> pca.converged_, pca.components_.shape, pca.transform(X).shape
    (True, (2, 5), (200, 2))
    """

    _center: ClassVar[bool] = True
    _least_rows: ClassVar[int] = 2

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        copy: bool = True,
        whiten: bool = False,
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
        self.copy = copy
        self.whiten = whiten
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

    def _wanted(self, limit: int, n_samples: int | None, n_features: int) -> Wanted:
        """The parameter n_components, checked."""
        given = self.n_components
        if given is None:
            return None
        if isinstance(given, numbers.Integral) and not isinstance(given, bool):
            if not 1 <= int(given) <= limit:
                rows = "" if n_samples is None else f"n_samples={n_samples}, "
                raise InvalidInput(
                    "`n_components` must satisfy 1 <= n_components <= min(n_samples, n_features); "
                    f"got n_components={given}, {rows}n_features={n_features}."
                )
            return int(given)
        if isinstance(given, numbers.Real) and not isinstance(given, bool) and 0.0 < float(given) < 1.0:
            return float(given)
        more = (
            " Minka's rule is not there: give a fraction of the variance instead." if given == "mle" else ""
        )
        raise InvalidInput(
            "`n_components` must be None, an integer, or a fraction strictly between 0 and 1; "
            f"got {given!r}.{more}"
        )

    def _fit_rows(self, rows: Rows, options: Options) -> Decomposition:
        if not rows.weight > 1.0:
            raise InvalidInput(
                "`sample_weight` says how often each row counts, and variances divide by its sum less one, "
                f"which must be positive; the sum is {rows.weight:.3g}. Scale it to the number of rows."
            )
        limit = most(rows)
        found = decompose(rows, self._wanted(limit, rows.count, rows.n_features), options, center=True)
        assert found.mean is not None
        spectrum = (found.values, found.total, found.rest)
        self._set_model(found.vectors, spectrum, found.mean, rows.weight, limit, rows.dtype)
        return found

    def _set_model(
        self,
        vectors: Float,
        spectrum: tuple[Float, float, float],
        mean: Float,
        weight: float,
        limit: int,
        dtype: np.dtype[Any],
    ) -> None:
        """Set the attributes; the spectrum has the eigenvalues, their sum in all and that after the last."""
        k = vectors.shape[1]
        values, total, rest = spectrum
        # From 1/n to 1/(n - 1); one row has no variance.
        scale = weight / (weight - 1.0) if weight > 1.0 else 0.0
        ratio = values / total if total > 0.0 else np.full(k, np.nan)
        self.components_ = np.ascontiguousarray(vectors.T, dtype=dtype)
        self.explained_variance_ = (values * scale).astype(dtype)
        self.explained_variance_ratio_ = ratio.astype(dtype)
        self.singular_values_ = np.sqrt(values * weight).astype(dtype)
        self.mean_, self._mean = mean.astype(dtype), mean
        self.noise_variance_ = dtype.type(rest * scale / (limit - k) if k < limit else 0.0)
        self.n_components_ = k
        self._squares, self._rest = total * weight, rest * weight

    def _stream_wanted(self, n_features: int) -> int | None:
        wanted = self._wanted(n_features, None, n_features)
        return wanted if isinstance(wanted, int) else None

    def _fit_settled(self, settled: Settled) -> None:
        d, rows = self.n_features_in_, self._stream.count
        values, _, total, _ = stream_spectrum(settled, 0)
        limit = min(rows, d, len(values))
        wanted = self._wanted(d, None, d)
        k = min(number_of(wanted, values, limit), limit)
        values, turn, total, rest = stream_spectrum(settled, k)
        dtype = np.dtype(np.float32 if self._stream.single else np.float64)
        spectrum = (values[:k], total, rest)
        self._set_model(fix_signs(turn[:k].T), spectrum, settled.mean, settled.weight, min(rows, d), dtype)
        self.lost_variance_ = settled.lost / max(settled.weight - 1.0, 1.0)
        self.converged_ = settled.lost == 0.0

    def _settled_model(self) -> Settled:
        singular = self.singular_values_.astype(np.float64)
        # What a fit has left out is at most all that it does not explain.
        lost = self._rest if self._rest > 1e-12 * self._squares else 0.0
        factor = singular[:, None] * self.components_
        return Settled(self._weight, self._mean, self._squares, factor, lost, lost)

    # -- transforming -------------------------------------------------------------------------------

    def _projected(self, block: Any) -> NDArray[Any]:
        V = self.components_.T
        if hasattr(block, "toarray"):
            Z = np.asarray(block @ V) - self.mean_ @ V
        else:
            Z = (block - self.mean_) @ V
        if self.whiten:
            Z = Z / self._deviations()
        return np.asarray(Z)

    def _deviations(self) -> NDArray[Any]:
        """Standard deviations to divide by; those of directions without variance are next to nothing."""
        scale = np.sqrt(self.explained_variance_)
        return np.asarray(np.maximum(scale, np.finfo(scale.dtype).eps))

    def inverse_transform(self, X: Any) -> NDArray[Any]:
        """From coordinates along the components back to rows: `X @ components_ + mean_`, whitening undone.

        Parameters
        ----------
        X : array-like of shape (n_samples, `n_components_`)

        Returns
        -------
        ndarray of shape (n_samples, n_features)
        """
        Z = self._coordinates(X)
        if self.whiten:
            Z = Z * np.sqrt(self.explained_variance_)
        return np.asarray(Z @ self.components_ + self.mean_)

    def _column_means(self) -> Float:
        means: Float = self.mean_
        return means

    # -- the model ----------------------------------------------------------------------------------

    def _model(self) -> GaussianModel:
        check_is_fitted(self)
        variances = self.explained_variance_
        above = np.maximum(variances - self.noise_variance_, 0.0)
        if self.whiten:
            above = above * variances  # as scikit-learn has it
        return GaussianModel(self.mean_, self.components_, above + self.noise_variance_, self.noise_variance_)

    def get_covariance(self) -> NDArray[Any]:
        """The covariance of the model: variances along the components, `noise_variance_` across them.

        With ``whiten=True`` it is scikit-learn's, too, in which the variances enter twice.
        """
        return self._model().covariance()

    def get_precision(self) -> NDArray[Any]:
        """The inverse of `get_covariance()`."""
        return self._model().precision()

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Log-likelihood of each row under the model; sources are gone through block by block."""
        model = self._model()
        return np.concatenate([model.log_likelihood(block) for block in self._blocks(X)])

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows under the model."""
        return float(np.mean(self.score_samples(X)))
