"""What `PCA` and `TruncatedSVD` share: parameters, checks of input, runs, and transforms block by block."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from grassia import backends
from grassia._checks import require_count, require_positive
from grassia.backends import Backend
from grassia.backends.base import cores
from grassia.data import Components
from grassia.data.blocks import slices
from grassia.errors import InvalidInput
from grassia.estimators.decompose import Decomposition, Options
from grassia.estimators.inputs import (
    BLOCK_BYTES,
    MISSING,
    Rows,
    components_of,
    is_source,
    prepare,
    whole_or_not,
)
from grassia.losses import as_policy
from grassia.result import History, Result, Status
from grassia.weighted import filled

Float = NDArray[np.float64]

# The sine to aim at by default, and the one to be content with where rounding allows no better.
_DOUBLE = (1e-8, 1e-6)
_SINGLE = (1e-5, 1e-4)

_MISSING = (
    "Input X contains NaN: missing values are an error by default. Fill or drop them, or make the "
    "estimator with missing='mean' to have them replaced by the means of their columns."
)
_MISSING_IN_STREAM = (
    "Input X contains NaN: partial_fit cannot fill what is missing, since the means of the columns are known "
    "at the end only. Fill or drop those rows first."
)


class RowsEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Base of the estimators; a subclass says what it makes of a decomposition and of a block of rows."""

    _center: ClassVar[bool]
    _least_rows: ClassVar[int] = 1
    _least_features: ClassVar[int] = 1

    # Parameters, as the subclasses' constructors set them.
    n_components: Any
    solver: Any
    backend: Any
    n_shards: int | None
    n_workers: int | None
    tol: float | None
    max_iter: float
    time_limit: float | None
    random_state: Any
    warm_start: bool
    missing: str
    callbacks: Any
    certifier: Any
    n_oversamples: int | None
    on_loss: Any

    # -- what a subclass says -------------------------------------------------------------------------

    @abstractmethod
    def _fit_rows(self, rows: Rows, options: Options) -> Decomposition:
        """Decompose the rows and set the attributes that are the subclass's own."""

    @abstractmethod
    def _projected(self, block: Any) -> NDArray[Any]:
        """The transform of one block of rows."""

    @abstractmethod
    def _column_means(self) -> Float:
        """The means of the columns, which stand for what is missing."""

    @abstractmethod
    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model."""

    # -- fitting --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows.

        Parameters
        ----------
        X : array, sparse, table, or any source of rows
            Of shape (n_samples, n_features): what scikit-learn takes, or what `grassia.from_rows` does, such
            as a path, a pattern, a list of shards or `Components`.
        y : ignored
        sample_weight : array-like of shape (n_samples,), optional
            How often each row counts; at least zero. Whole numbers are the same as rows repeated.

        Returns
        -------
        self
        """
        self._check_parameters()
        rows = self._rows(X, sample_weight)
        options = self._options(rows)
        self._forget()
        found = self._fit_rows(rows, options)
        self.n_samples_ = whole_or_not(rows.weight)
        self._weight, self._distinct = rows.weight, rows.distinct
        self._set_run(found.result, rows.dtype)
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[Any]:
        """Fit to rows and return their transform; the arguments are those of `fit`."""
        return self.fit(X, y, sample_weight)._transform(X)

    def _forget(self) -> None:
        """Forget what a fit before has left that this one may not set."""

    def _check_parameters(self) -> None:
        if self.missing not in MISSING:
            raise InvalidInput(f"`missing` must be 'error' or 'mean'; got {self.missing!r}.")
        for name in ("n_shards", "n_workers"):
            if getattr(self, name) is not None:
                require_count(getattr(self, name), f"`{name}`")
        if self.n_oversamples is not None:
            require_count(self.n_oversamples, "`n_oversamples`", least=0)
        require_positive(self.max_iter, "`max_iter`")
        if as_policy(self.on_loss).action == "exclude":
            raise InvalidInput(
                f"`on_loss` of {type(self).__name__} must be 'reload' or 'wait', for the model is one of all "
                "rows; got 'exclude'. grassia.eigenspace can leave components out."
            )
        given = self.tol
        if given is not None and not (isinstance(given, numbers.Real) and 0.0 < float(given) < 1.0):
            raise InvalidInput(f"`tol` is a sine and must satisfy 0 < tol < 1; got {given!r}.")

    def _rows(self, X: Any, sample_weight: Any) -> Rows:
        if not is_source(X):
            X = self._validated(X, reset=True, least_rows=self._least_rows)
            components = components_of(X, self._shards(X), self._center)
            return prepare(components, X.dtype, sample_weight, self.missing, self._center)
        components = self._split(X, components_of(X, self._shards(X), self._center))
        rows = prepare(components, None, sample_weight, self.missing, self._center)
        if rows.distinct < self._least_rows:
            raise InvalidInput(
                f"{type(self).__name__} needs at least {self._least_rows} rows; got {rows.distinct}."
            )
        self._set_features(rows.n_features, rows.feature_names)
        return rows

    def _set_features(self, n_features: int, names: tuple[str, ...] | None) -> None:
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        else:
            self.__dict__.pop("feature_names_in_", None)

    def _validated(self, X: Any, reset: bool, least_rows: int = 1, fill: bool = True) -> Any:
        """Rows in memory as scikit-learn checks them; integers stay what they are, floats are not copied."""
        if isinstance(X, np.ma.MaskedArray):
            X = np.where(np.ma.getmaskarray(X), np.nan, X.data) if np.ma.is_masked(X) else X.data
        fill &= self.missing == "mean"
        given = X
        try:
            X = validate_data(
                self,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype="numeric",
                ensure_all_finite="allow-nan" if fill else True,
                ensure_min_samples=least_rows,
                ensure_min_features=self._least_features if reset else 1,
            )
        except (ValueError, TypeError) as error:
            if "contains NaN" not in str(error):
                column = _not_of_numbers(X)
                if column is None:
                    raise
                raise InvalidInput(
                    f"all columns must be numeric; column {column[0]!r} is {column[1]}; leave it out, or "
                    "turn it into numbers first."
                ) from error
            raise InvalidInput(_MISSING if self.missing == "error" else _MISSING_IN_STREAM) from error
        if X.dtype.kind not in "fiub":
            column = _not_of_numbers(given)
            what = f"got dtype {X.dtype}" if column is None else f"column {column[0]!r} is {column[1]}"
            raise InvalidInput(f"X must be real numbers; {what}.")
        return X.astype(np.float64) if X.dtype.kind == "f" and X.dtype.itemsize not in (4, 8) else X

    def _split(self, X: Any, components: Components) -> Components:
        """One file for several workers is cut for them, as an array is."""
        whole = isinstance(X, str | os.PathLike) and len(components) == 1 and components.n_rows
        if not whole or self.n_shards is not None or self._engine().name == "serial":
            return components
        return components_of(X, max(1, min(components.n_rows or 1, self.n_workers or cores())), self._center)

    def _shards(self, X: Any) -> int | None:
        if self.n_shards is not None:
            return self.n_shards
        if isinstance(X, list | tuple) or not hasattr(X, "shape") or self._engine().name == "serial":
            return None
        return max(1, min(int(X.shape[0]), self.n_workers or cores()))

    def _engine(self) -> Backend:
        if callable(self.backend):
            return backends.get(self.backend())
        if not isinstance(self.backend, str) or self.n_workers is None or self.backend == "serial":
            return backends.get(self.backend)
        return backends.get(self.backend, workers=int(self.n_workers))

    def _options(self, rows: Rows) -> Options:
        if isinstance(self.random_state, np.random.Generator):
            seed = int(self.random_state.integers(2**31 - 1))
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        before = getattr(self, "components_", None) if self.warm_start else None
        fits = before is not None and before.shape[1] == rows.n_features
        return Options(
            solver=self.solver,
            engine=self._engine,
            tol=self._tolerances(rows.dtype)[0],
            max_iter=float(self.max_iter),
            time_limit=self.time_limit,
            seed=seed,
            callbacks=self.callbacks,
            certifier=self.certifier,
            on_loss=self.on_loss,
            start=np.asarray(before.T, dtype=np.float64) if before is not None and fits else None,
        )

    def _tolerances(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        if self.tol is not None:
            return float(self.tol), float(self.tol)
        return _SINGLE if dtype == np.float32 else _DOUBLE

    def _set_run(self, result: Result, dtype: np.dtype[Any]) -> None:
        enough = self._tolerances(dtype)[1]
        certificate = result.certificate
        sine = math.nan if certificate is None else certificate.sin_theta.value
        if certificate is not None and not result.converged and sine <= enough:
            certificate = dataclasses.replace(certificate, tol=enough, identified=len(certificate.values))
            result = dataclasses.replace(
                result, certificate=certificate, converged=True, status=Status.CONVERGED
            )
        self.result_: Result | None = result
        self.certificate_ = certificate
        self.converged_ = result.converged
        self.history_: History | None = result.history
        self.n_iter_ = max(1, math.ceil(result.stats.get("passes", 1.0)))
        if not result.converged:
            bound = "no bound" if math.isnan(sine) else f"sine bound {sine:.3g}, asked {enough:.3g}"
            warnings.warn(
                f"{type(self).__name__} did not converge: {result.status.name}, {bound}. {_advice(result)}",
                ConvergenceWarning,
                stacklevel=3,
            )

    # -- transforming ---------------------------------------------------------------------------------

    def transform(self, X: Any) -> NDArray[Any]:
        """Coordinates of rows along the components.

        Parameters
        ----------
        X : as in `fit`
            A source is gone through block by block; only the result is held.

        Returns
        -------
        ndarray of shape (n_samples, `n_components_`)
        """
        return self._transform(X)

    def _transform(self, X: Any) -> NDArray[Any]:
        parts = [self._projected(block) for block in self._blocks(X)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _blocks(self, X: Any) -> Iterator[Any]:
        """New rows, checked, in blocks, what is missing filled."""
        check_is_fitted(self)
        fill = self._column_means() if self.missing == "mean" else None
        if is_source(X):
            yield from self._component_blocks(components_of(X, None, self._center), fill)
            return
        for block in slices(self._validated(X, reset=False), BLOCK_BYTES):
            yield filled(block, fill)

    def _component_blocks(self, components: Components, fill: Float | None = None) -> Iterator[Any]:
        """The rows of a source in blocks, checked against those before, if there were any."""
        fitted = self.__sklearn_is_fitted__()
        expected: int | None = self.n_features_in_ if fitted else components.n_features
        known = getattr(self, "feature_names_in_", None) if fitted else None
        names = components.feature_names
        if names is not None and known is not None and list(names) != list(known):
            raise InvalidInput(
                "The feature names should match those that were passed during fit, in their order; "
                f"got {', '.join(names[:5])}... instead of {', '.join(known[:5])}..."
            )
        for block in components.blocks(BLOCK_BYTES):
            if expected is not None and block.shape[1] != expected:
                raise InvalidInput(_wrong_width(self, int(block.shape[1]), expected))
            rows = filled(block, fill)
            entries = rows.data if sp.issparse(rows) else rows
            if entries.dtype.kind == "f" and not np.isfinite(entries).all():
                raise InvalidInput("Input X contains NaN or infinity; fill or drop those rows first.")
            yield rows

    def _coordinates(self, X: Any) -> NDArray[Any]:
        """What `inverse_transform` is given, checked."""
        check_is_fitted(self)
        Z: NDArray[Any] = check_array(X, input_name="X", dtype=[np.float64, np.float32])
        if Z.shape[1] != self.n_components_:
            raise InvalidInput(
                f"X must have one column for each of the {self.n_components_} components; got {Z.shape[1]}."
            )
        return Z

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "mean"
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _not_of_numbers(X: Any) -> tuple[str, Any] | None:
    """The first column of a pandas table that is not of numbers, and its dtype."""
    dtypes: Any = getattr(X, "dtypes", None)
    for name, dtype in dtypes.items() if hasattr(dtypes, "items") else ():
        if getattr(dtype, "kind", "O") not in "fiub":
            return str(name), dtype
    return None


def _wrong_width(estimator: Any, got: int, expected: int) -> str:
    return f"X has {got} features, but {type(estimator).__name__} is expecting {expected} features as input."


def _advice(result: Result) -> str:
    if result.stats.get("updates") == 0:
        return (
            "It was stopped before the first answer: these components are the random start, and of no use. "
            "Allow more time."
        )
    if result.status is Status.INTERRUPTED:
        return "The fit was interrupted: this is the best so far. To go on, fit again with warm_start=True."
    text = result.status.advice.replace("`max_passes`", "`max_iter`").replace(
        "`certificate.", "`certificate_."
    )
    return text.replace("pass the answer as `v0`", "fit again with warm_start=True")
