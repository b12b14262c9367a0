"""How an estimator finds its directions: the whole spectrum where that is cheap, else an iteration.

- Few features (or many directions of a moderate number): one pass of the `covariance` solver for all
  eigenvectors, on the estimator's back-end. Where small eigenvalues are wanted beside large ones, one more
  pass over the rows makes those as exact as a singular value decomposition would.
- Fewer rows than features, and few enough to hold: a singular value decomposition of the rows.
- Otherwise `grassia.eigenspace` with the estimator's solver. A fraction of the variance is reached by growing
  k, each run starting where the last one ended.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from grassia import auto, geometry
from grassia.api import eigenspace
from grassia.backends import Backend
from grassia.certificate import Certificate, Certifier
from grassia.errors import InvalidComponent, InvalidInput
from grassia.estimators.exact import (
    EPS,
    Wanted,
    certificate_of,
    number_of,
    padded,
    rank_of,
    singular_noise,
    spread,
    squares_across,
    status_of,
    triangle,
)
from grassia.estimators.inputs import Rows
from grassia.losses import LossPolicy
from grassia.result import History, Result, Status, fix_signs
from grassia.solvers import Covariance, Krylov, Nystrom
from grassia.starting import check_range
from grassia.weighted import TOO_SMALL, RunningMoments, bad_row

Float = NDArray[np.float64]

# All eigenvectors of so many features are found for next to nothing, however few are wanted.
_FEW_FEATURES = 300
# Of so many they are found where the covariance is the way to go, of more only those that are wanted.
_FEW_EIGENVECTORS = 1000
# The most features for which it is, where many are wanted.
_MOST_FEATURES = 4096
# The most numbers that rows of more features than rows may have to be decomposed as they are.
_MOST_NUMBERS = 10_000_000
_MOST_NUMBERS_SPARSE = 4_000_000
# Eigenvalues below this part of the largest are taken from the rows and not from their covariance, if that
# costs no more than so many operations.
_GRADED = 1e-4
_GRADED_OPERATIONS = 1e11
# The same for an iteration, whose extra pass is over rows that may lie on a disk.
_GRADED_ITERATION = 1e-8
# The rest of the variance is measured by one more pass where it is less than this part of all.
_CANCELS = 1e-6
# Whether there is any variance at all is looked into where it is less than this part of the mean's square.
_CONSTANT = 1e-24
# By how much a start is blurred for a method that looks beyond k.
_BLUR = 1e-2
# How exactly k is located for a fraction of the variance; eigenvalues are then right to its square.
_LOCATING_TOL = 1e-4


@dataclass(frozen=True, slots=True)
class Options:
    """What an estimator passes on to the runs."""

    solver: Any
    engine: Callable[[], Backend]
    tol: float
    max_iter: float
    time_limit: float | None
    seed: int
    callbacks: Any
    certifier: Certifier | None = None
    on_loss: str | LossPolicy = "reload"
    precision: str = "auto"
    start: Float | None = None


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Leading directions of rows.

    Attributes
    ----------
    vectors : ndarray (d, k)
        Orthonormal, by descending variance; their signs are those of `fix_signs`.
    values : ndarray (k,)
        Eigenvalues of the (weighted) second moment, about the mean or about zero.
    mean : ndarray (d,) or None
    total : float
        Its exact trace.
    rest : float
        What the eigenvalues after k add up to.
    result : Result
        Of the run, or put together from the whole decomposition.
    """

    vectors: Float
    values: Float
    mean: Float | None
    total: float
    rest: float
    result: Result


def decompose(rows: Rows, wanted: Wanted, options: Options, center: bool) -> Decomposition:
    """The leading `wanted` directions: a number, a fraction of the variance, or None for all there are.

    Raises
    ------
    GrassiaError
        If the squares of the rows are too large or too small for double precision.
    """
    found = _decomposed(rows, wanted, options, center)
    size = 0.0 if found.mean is None else float(found.mean @ found.mean)
    if found.total > _CONSTANT * size:
        return found
    if spread(rows.weighted_blocks(), center) > 0.0:
        if found.total == 0.0:
            raise InvalidInput(TOO_SMALL)
        return found
    # All rows are equal: what variance there seems to be is the rounding of the mean.
    k = number_of(wanted, np.zeros(1), most(rows))
    vectors, values = padded(np.empty((rows.n_features, 0)), np.empty(0), k)
    run = dataclasses.replace(
        found.result,
        vectors=vectors,
        values=values,
        certificate=None,
        status=Status.CONVERGED,
        converged=True,
    )
    return Decomposition(vectors, values, found.mean, 0.0, 0.0, run)


def _decomposed(rows: Rows, wanted: Wanted, options: Options, center: bool) -> Decomposition:
    route = _route(rows, wanted, options)
    if route == "rows":
        return _from_rows(rows, wanted, options, center)
    if route == "covariance":
        few = rows.n_features <= (_FEW_EIGENVECTORS if _many(rows, wanted) else _FEW_FEATURES)
        if not isinstance(wanted, int) or few:
            return _from_covariance(rows, wanted, options, center)
        found = _iterated(rows, wanted, dataclasses.replace(options, solver=Covariance(), start=None), center)
        reason = f"covariance: one pass over rows of {rows.n_features} features costs less than an iteration"
        found.result.stats["solver_reason"] = reason
        return found
    if wanted is None:
        return _iterated(rows, most(rows), options, center)
    if isinstance(wanted, float):
        return _grown(rows, wanted, options, center)
    return _iterated(rows, wanted, options, center)


def most(rows: Rows) -> int:
    """The most directions that can be asked for."""
    return min(rows.count, rows.n_features)


def _many(rows: Rows, wanted: Wanted) -> bool:
    return not isinstance(wanted, int) or wanted > most(rows) // 5


def _route(rows: Rows, wanted: Wanted, options: Options) -> str:
    """ "covariance", "rows" or "iteration"."""
    d, m, solver = rows.n_features, rows.distinct, options.solver
    if isinstance(solver, Covariance) or solver == "covariance":
        return "covariance"
    if not isinstance(solver, str) or solver != "auto":
        return "iteration"
    many = _many(rows, wanted)
    if m < d and many and m * d <= (_MOST_NUMBERS_SPARSE if rows.sparse else _MOST_NUMBERS):
        return "rows"
    if d <= _FEW_FEATURES or (many and d <= _MOST_FEATURES):
        return "covariance"
    if isinstance(wanted, int) and d <= _FEW_EIGENVECTORS:
        chosen, _ = auto.choose(rows.loaders, wanted, concurrent=options.engine().name != "serial")
        return "covariance" if isinstance(chosen, Covariance) else "iteration"
    return "iteration"


# -- the whole spectrum ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Every direction with its eigenvalue; the first `rank` have variance. `noise`: see `certificate_of`."""

    vectors: Float
    values: Float
    mean: Float | None
    rank: int
    noise: tuple[float, float | None]


def _from_covariance(rows: Rows, wanted: Wanted, options: Options, center: bool) -> Decomposition:
    d = rows.n_features
    # In double precision: what is single would have to be checked by a product with all of d columns.
    whole = dataclasses.replace(options, solver=Covariance(), start=None, precision="float64")
    run = _run(rows, d, whole)
    mean = run.stats["mean"]
    if run.status is Status.INTERRUPTED or run.certificate is None:
        return _measured(rows, _cut_short(run, wanted, most(rows)), mean, center)
    values, vectors = np.maximum(run.values, 0.0), run.vectors
    rank = int(np.count_nonzero(values > values[0] * d * EPS))
    noise: tuple[float, float | None] = (run.certificate.rounding, None)
    k = number_of(wanted, values, most(rows))
    tail = float(values[k:].sum())
    graded = values[k - 1] < _GRADED * values[0] or (k < most(rows) and tail < _GRADED * values[0])
    if graded and rows.distinct * float(d) ** 2 <= _GRADED_OPERATIONS:
        singular, turn = np.linalg.svd(triangle(rows.weighted_blocks(), mean))[1:]
        singular = np.r_[singular, np.zeros(d - len(singular))]
        vectors, values = turn.T, singular**2 / rows.weight
        rank = rank_of(singular, (rows.distinct, d))
        noise = (noise[0], singular_noise(singular, mean, rows.weight))
    run.stats["solver_reason"] = f"covariance: all eigenvectors of {d} features cost less than an iteration"
    spectrum = Spectrum(vectors, values, mean, min(rank, rows.distinct - center), noise)
    return _cut(rows, spectrum, wanted, options, run)


def _from_rows(rows: Rows, wanted: Wanted, options: Options, center: bool) -> Decomposition:
    d = rows.n_features
    X, weights = _gathered(rows)
    sums = RunningMoments(d, center)
    sums.add(X, weights)
    if not np.isfinite(sums.squares):
        raise InvalidComponent(bad_row(X))
    check_range(sums.squares / rows.weight)
    mean = sums.mean if center else None
    if mean is not None:
        X -= mean
    if weights is not None:
        X *= np.sqrt(weights)[:, None]
    singular, turn = np.linalg.svd(X, full_matrices=False)[1:]
    values, vectors = singular**2 / rows.weight, turn.T
    rank = min(rank_of(singular, X.shape), rows.distinct - center)
    noise = singular_noise(singular, mean, rows.weight)
    product_noise = 2.0 * noise * float(singular[0]) / rows.weight
    stats = {
        "solver": "svd",
        "backend": "none",
        "solver_reason": f"svd: {rows.distinct} rows are fewer than their {d} features",
        "passes": 1.0,
        "mean": mean,
    }
    about = Result(vectors, values, Status.CONVERGED, True, None, History(), stats)
    spectrum = Spectrum(vectors, values, mean, rank, (product_noise, noise))
    return _cut(rows, spectrum, wanted, options, about)


def _gathered(rows: Rows) -> tuple[Float, Float | None]:
    """All rows, dense, as a new array, and their weights."""
    blocks, weights = zip(*rows.weighted_blocks(), strict=True)
    dense = [block.toarray() if sp.issparse(block) else block for block in blocks]
    X = np.concatenate(dense, dtype=np.float64)
    return X, None if weights[0] is None else np.concatenate(weights)


def _cut(rows: Rows, spectrum: Spectrum, wanted: Wanted, options: Options, run: Result) -> Decomposition:
    """The leading part of a whole decomposition, certified as far as there is variance; then arbitrary."""
    rank = spectrum.rank
    V, values = spectrum.vectors[:, :rank], spectrum.values[:rank]
    k = number_of(wanted, values, most(rows))
    sure = min(k, rank)
    certificate: Certificate | None = None
    if sure == rows.n_features:
        certificate = run.certificate  # there is nothing outside
    if certificate is None and sure > 0:
        singular = np.sqrt(values * rows.weight)
        certificate = certificate_of(
            V, singular, sure, rows.weight, spectrum.noise, options.tol, options.seed, options.certifier
        )
    W, found = padded(V[:, :sure], values[:sure], k)
    status = status_of(certificate)
    result = dataclasses.replace(
        run,
        vectors=W,
        values=found,
        certificate=certificate,
        status=status,
        converged=status is Status.CONVERGED,
    )
    return Decomposition(W, found, spectrum.mean, math.fsum(values), math.fsum(values[k:]), result)


# -- an iteration ---------------------------------------------------------------------------------------


def _run(rows: Rows, k: int, options: Options) -> Result:
    with warnings.catch_warnings():
        # The estimator says it in its own words, once, of the answer it gives.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return eigenspace(
            rows.loaders,
            k,
            solver=options.solver,
            backend=options.engine(),
            tol=options.tol,
            v0=options.start,
            rng=options.seed,
            callbacks=options.callbacks or (),
            max_passes=options.max_iter,
            time_limit=options.time_limit,
            certifier=options.certifier,
            on_loss=options.on_loss,
            precision=options.precision,
        )


def _iterated(rows: Rows, k: int, options: Options, center: bool) -> Decomposition:
    # So many directions can have variance; beyond them every cut goes through equal eigenvalues, zero.
    bearing = max(1, min(k, rows.distinct - center))
    start = None if options.start is None else _fitting(options.start, bearing, options)
    run = _run(rows, bearing, dataclasses.replace(options, start=start))
    mean = run.stats["mean"]
    if run.certificate is None or run.values[-1] <= _GRADED_ITERATION * run.values[0]:
        return _measured(rows, run, mean, center, k)
    total = run.certificate.total
    assert total is not None  # rows know theirs
    vectors, values = padded(run.vectors, np.maximum(run.values, 0.0), k)
    rest = _rest(rows, vectors, values, mean, total)
    return Decomposition(vectors, values, mean, total, rest, run)


def _rest(rows: Rows, vectors: Float, values: Float, mean: Float | None, total: float) -> float:
    """What the eigenvalues after the last add up to: a difference, or where it cancels from one more pass."""
    rest = max(0.0, total - math.fsum(values))
    if len(values) >= most(rows) or rest >= _CANCELS * total:
        return rest
    return squares_across(rows.weighted_blocks(), mean, vectors) / rows.weight


def _measured(
    rows: Rows, run: Result, mean: Float | None, center: bool, k: int | None = None
) -> Decomposition:
    """The same with variances, and directions within the space, from the rows themselves: one more pass."""
    sums = RunningMoments(rows.n_features, center)

    def counted() -> Any:
        for block, weights in rows.weighted_blocks():
            sums.add(block, weights)
            yield block, weights

    singular, turn = np.linalg.svd(triangle(counted(), mean, run.vectors))[1:]
    bearing = rank_of(singular, (rows.distinct, rows.n_features))
    vectors, values = fix_signs(run.vectors @ turn.T)[:, :bearing], singular[:bearing] ** 2 / rows.weight
    total = max(0.0, sums.squares) / rows.weight
    rest = _rest(rows, vectors, values, mean, total)
    all_in = bearing < run.vectors.shape[1] and rest <= 1e-13 * total
    if all_in and run.status in (Status.GAP_TOO_SMALL, Status.PRECISION):
        # Everything that has variance is in; the cut goes through directions that have none.
        run = dataclasses.replace(run, converged=True, status=Status.CONVERGED)
    vectors, values = padded(vectors, values, k or run.vectors.shape[1])
    run = dataclasses.replace(run, vectors=vectors, values=values)
    return Decomposition(vectors, values, mean, total, rest, run)


def _grown(rows: Rows, fraction: float, options: Options, center: bool) -> Decomposition:
    """Grow k until the fraction is captured, then solve for the smallest that does."""
    limit = most(rows)
    k = min(16, limit)
    rough = dataclasses.replace(options, tol=max(options.tol, _LOCATING_TOL))
    while True:
        found = _iterated(rows, k, rough, center)
        reached = np.cumsum(found.values) / found.total if found.total > 0.0 else np.ones(k)
        if found.result.status is Status.INTERRUPTED or reached[-1] > fraction or k == limit:
            break
        k = min(limit, max(2 * k, _extrapolated(reached, fraction)))
        rough = dataclasses.replace(rough, start=found.vectors)
    if found.result.status is Status.INTERRUPTED:
        return found
    k = min(int(np.searchsorted(reached, fraction, side="right")) + 1, limit)
    while True:
        found = _iterated(rows, k, dataclasses.replace(options, start=found.vectors), center)
        short = math.fsum(found.values) <= fraction * found.total
        if not short or k == limit or found.result.status is Status.INTERRUPTED:
            return found
        k += 1


def _looks_beyond(solver: Any) -> bool:
    """Whether a solver follows directions beyond k, by which the gap is certified."""
    return isinstance(solver, Krylov | Nystrom) or solver in ("auto", "krylov", "nystrom")


def _extrapolated(reached: Float, fraction: float) -> int:
    """Where the last directions' pace would lead to."""
    pace = float(reached[-1] - reached[len(reached) // 2]) / max(1, len(reached) - len(reached) // 2)
    missing = fraction - float(reached[-1])
    return min(4 * len(reached), len(reached) + math.ceil(1.2 * missing / pace)) if pace > 0.0 else 0


# -- bases ----------------------------------------------------------------------------------------------


def _fitting(start: Float, k: int, options: Options) -> Float:
    """A start of more than k columns: the given ones, and random ones to find what those have missed."""
    d, have = start.shape
    rng = np.random.default_rng(options.seed)
    if _looks_beyond(options.solver):
        # Begun at the answer itself they would explore nothing beyond it, and the certificate would have to.
        start = start + _BLUR * rng.standard_normal((d, have)) / math.sqrt(d)
    more = max(0, min(d, max(2 * k, k + 10)) - have)
    return np.asarray(geometry.orthonormalize(np.hstack([start, rng.standard_normal((d, more))])))


def _cut_short(run: Result, wanted: Wanted, limit: int) -> Result:
    """The first columns of a run for all eigenvectors that was interrupted."""
    k = wanted if isinstance(wanted, int) else limit
    return dataclasses.replace(run, vectors=np.ascontiguousarray(run.vectors[:, :k]), values=run.values[:k])
