"""`eigsh` and `svds` as scipy.sparse.linalg has them, on everything grassia can multiply by.

Both find a subspace with `grassia.eigenspace` and read values and vectors off it. What scipy bounds is the
residual of each pair; what is certified here is that the pairs are the wanted ones and none was missed. Where
that cannot be shown, the best there is comes back with a `ConvergenceWarning`, and nothing is raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.linalg import svd

from grassia import geometry
from grassia._checks import require_count
from grassia.backends.base import Backend
from grassia.data import Components, OperatorLoader, as_components, extent_of
from grassia.errors import InvalidInput
from grassia.finest import FinestRun, Seed, Solvers, warn
from grassia.messages import Array
from grassia.operands import NegatedLoader, Square, operand, tall
from grassia.result import Result, fix_signs
from grassia.run import Callback
from grassia.solvers import Krylov

__all__ = ["eigsh", "svds"]

REFINEMENTS = 6
SMALLEST = 1e-140  # whose square a Gram matrix can hold with all its digits


def eigsh(
    A: Any,
    k: int = 6,
    M: None = None,
    sigma: None = None,
    which: str = "LM",
    v0: Any = None,
    ncv: int | None = None,
    maxiter: float | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: None = None,
    OPinv: None = None,
    mode: str = "normal",
    rng: Seed = None,
    *,
    weights: Any = None,
    solver: Solvers = "auto",
    backend: str | Backend = "serial",
    callbacks: Callback | Iterable[Callback] = (),
    time_limit: float | None = None,
) -> Any:
    """k eigenvalues and eigenvectors of a real symmetric matrix, in scipy's form.

    Parameters
    ----------
    A : array, sparse, LinearOperator, list of them, or Components
        Symmetric. A list (or what `grassia.from_rows` made) stands for the weighted mean of its members, each
        held by a worker.
    k : int
        How many, 1 <= k <= n_features.
    which : {"LM", "LA", "SA", "BE"}
        Largest in size, largest, smallest, or half from each end. "LM" costs two products for one unless A
        is made of rows, for which it is "LA", and takes one matrix, not a list. "SM" is refused: eigenvalues
        inside the spectrum need a factorisation, which is scipy's `sigma=0`.
    v0 : array_like (d,) or (d, b), optional
        Start: one vector, as in scipy, or a block, such as the eigenvectors of a similar matrix.
    ncv : int, optional
        Columns that the Krylov solver keeps, k + 8 at least.
    maxiter : float, optional
        Most passes over the components; default 10 000.
    tol : float
        Bound, certified, on the sine of the largest angle between the span of the answer and the true one.
        The eigenvalues are then right to about its square. 0: as far as double precision goes, to residuals
        of about a thousand rounding units of A; where the gap is small, the angle that those allow.
    return_eigenvectors : bool
        Whether to give the vectors, too.
    rng : int or numpy Generator, optional
        Seed of everything random.
    M, sigma, Minv, OPinv, mode
        In scipy's place, for generalised and shifted problems; anything but the default is refused.
    weights, solver, backend, callbacks, time_limit
        As in `grassia.eigenspace`.

    Returns
    -------
    w : ndarray (k,)
        Eigenvalues, ascending.
    v : ndarray (d, k)
        Orthonormal eigenvectors, ``v[:, i]`` that of ``w[i]``; not without `return_eigenvectors`.

    Notes
    -----
    Where scipy raises `ArpackNoConvergence`, this warns (`sklearn.exceptions.ConvergenceWarning`) and
    returns the best iterate; eigenvalues are NaN if the run was stopped before there was one. It also warns
    where scipy says nothing: when the eigenvalues on both sides of the cut are too close to tell which
    vectors belong to the k wanted ones. The largest entry of each vector (in size) is positive.
    `grassia.eigenspace` gives the certificate itself.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> w, v = grassia.eigsh(np.diag(np.arange(-20.0, 31.0)), k=3, which="LA", rng=0)
    >>> w.round(10)
    array([28., 29., 30.])
    >>> grassia.eigsh(np.diag(np.arange(-20.0, 31.0)), k=2, which="SA", return_eigenvectors=False).round(10)
    array([-20., -19.])
    """
    _refuse(M=M, sigma=sigma, Minv=Minv, OPinv=OPinv, mode=None if mode == "normal" else mode)
    A = operand(A, "eigsh")
    loaders = as_components(A)
    _check_k(k, loaders.n_features)
    run = FinestRun(
        _precise(A), tol, v0, maxiter, rng, _solver(solver, ncv, k), backend, callbacks, time_limit
    )
    run.options["weights"] = weights
    if which == "LM":
        w, v = _largest_in_size(loaders, k, run)
    elif which in ("LA", "SA"):
        w, v = _one_end(loaders, k, which, run)
    elif which == "BE":
        parts = [_one_end(loaders, n, end, run) for n, end in ((k // 2, "SA"), (k - k // 2, "LA")) if n]
        w, v = np.hstack([values for values, _ in parts]), np.hstack([vectors for _, vectors in parts])
    else:
        raise InvalidInput(
            f"`which` must be 'LM', 'LA', 'SA' or 'BE'; got {which!r}. For eigenvalues near a point use "
            "scipy.sparse.linalg.eigsh with `sigma`."
        )
    w, v = w.astype(run.dtype, copy=False), v.astype(run.dtype, copy=False)
    return (w, v) if return_eigenvectors else w


def svds(
    A: Any,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0,
    which: str = "LM",
    v0: Any = None,
    maxiter: float | None = None,
    return_singular_vectors: bool | str = True,
    solver: Solvers = "auto",
    rng: Seed = None,
    options: None = None,
    *,
    backend: str | Backend = "serial",
    callbacks: Callback | Iterable[Callback] = (),
    time_limit: float | None = None,
) -> Any:
    """The k largest singular values of a real matrix, with their vectors, in scipy's form.

    Parameters
    ----------
    A : array (m, n), sparse, LinearOperator, or any source of rows
        A LinearOperator needs `rmatvec` or `rmatmat`. What `grassia.from_rows` takes (paths, lists of shards,
        tables) is read by blocks and not centred; what it made is centred if it was told so.
    k : int
        How many, 1 <= k <= min(m, n).
    ncv, maxiter, rng, backend, callbacks, time_limit
        As in `eigsh`.
    tol : float
        Bound on the sine of the largest angle between the span of the right singular vectors (the left ones
        if m < n) and the true one. 0: as far as double precision goes.
    which : {"LM"}
        The largest ones. "SM" is refused.
    v0 : array_like (min(m, n),) or (min(m, n), b), optional
        Start: one vector or a block.
    return_singular_vectors : {True, False, "u", "vh"}
        Which vectors to give; those left out are None.
    solver : str or Solver
        One of `grassia.solvers.names()`, not one of scipy's.
    options : None
        In scipy's place, not used.

    Returns
    -------
    u : ndarray (m, k), s : ndarray (k,), vh : ndarray (k, n)
        ``A v_i = s_i u_i`` with `s` ascending; only `s` if `return_singular_vectors` is False.

    Notes
    -----
    The subspace is that of the Gram matrix of the shorter side, in which singular values below about
    1e-8 of the largest drown. So it is refined by a few products with A and its transpose in turn, each
    orthonormalised, and the values are those of ``A V`` itself: right to the rounding of the largest one,
    also if they are 1e-5 of it. Those below 1e-6 of it are found, too, but it is not certified then that
    none as small was missed.

    What cannot be certified is given with a `ConvergenceWarning`, see `eigsh`. Memory beside the data: a
    few blocks of (m + n) x k numbers; sparse matrices with m < n are copied once, transposed.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> u, s, vh = grassia.svds(np.diag([3.0, 2.0, 1e-5, 1e-7]), k=3, rng=0)
    >>> print(s)
    [1.e-05 2.e+00 3.e+00]
    """
    _refuse(options=options)
    if which != "LM":
        raise InvalidInput(
            f"`which` must be 'LM'; got {which!r}. Smallest singular values of a matrix that fits into "
            "memory are numpy.linalg.svd's; of a sparse one scipy.sparse.linalg.svds's."
        )
    if not isinstance(return_singular_vectors, bool | np.bool_) and return_singular_vectors not in (
        "u",
        "vh",
    ):
        raise InvalidInput(
            f"`return_singular_vectors` must be True, False, 'u' or 'vh'; got {return_singular_vectors!r}."
        )
    A = operand(A, "svds")
    matrix = tall(A)
    _check_k(k, None if matrix.shape is None else min(matrix.shape), "min(m, n)")
    run = FinestRun(
        _precise(A), tol, v0, maxiter, rng, _solver(solver, ncv, k), backend, callbacks, time_limit
    )
    result, told = run(matrix.gram, k)
    left, s, right, unseen = _refined(matrix, result, run)
    if told is not None and not unseen:
        warn(result, told)
    order = slice(None, None, -1)
    u, vh = (right, left.T) if matrix.turned else (left, right.T)
    u, s, vh = (part.astype(run.dtype, copy=False) for part in (u[:, order], s[order], vh[order]))
    if return_singular_vectors is False:
        return s
    return None if return_singular_vectors == "vh" else u, s, None if return_singular_vectors == "u" else vh


# -- eigsh ------------------------------------------------------------------------------------------


def _one_end(loaders: Components, k: int, which: str, run: FinestRun) -> tuple[Array, Array]:
    if which == "LA":
        result, told = run(loaders, k)
        result = _with_values(result, loaders)
        w, v = result.values[::-1], result.vectors[:, ::-1]
    else:
        negated = Components(NegatedLoader(loader) for loader in loaders)
        result, told = run(negated, k)
        result = _with_values(result, negated)
        w, v = -result.values, result.vectors
    if told is not None:
        warn(result, told, stacklevel=4)
    return np.ascontiguousarray(w), np.ascontiguousarray(v)


def _with_values(result: Result, loaders: Components) -> Result:
    """With Ritz values where a run was stopped before it knew any, for one more product, made here."""
    if np.isfinite(result.values).all():
        return result
    W, total = result.vectors, np.zeros(result.vectors.shape)
    for weight, loader in zip(result.stats["weights"], loaders, strict=True):
        component = loader.open()
        if result.stats["mean"] is not None:
            component.recenter(result.stats["mean"])
        total += float(weight) * component.apply(W)
    values, turn = geometry.ritz(W, total)
    return dataclasses.replace(result, vectors=fix_signs(W @ turn), values=values)


def _largest_in_size(loaders: Components, k: int, run: FinestRun) -> tuple[Array, Array]:
    """Those of A squared, from which a Rayleigh quotient with A itself tells the two signs apart."""
    extents = [extent_of(loader) for loader in loaders]
    if all(extent is not None and extent.kind == "rows" for extent in extents):
        return _one_end(loaders, k, "LA", run)  # a covariance has no negative eigenvalues
    if len(loaders) > 1:
        raise InvalidInput(
            f"`which='LM'` takes one matrix, or rows; got {len(loaders)} components, the square of whose sum "
            "is no sum of squares. Ask for 'SA', or for 'LA': the same if the sum is positive semidefinite."
        )
    component = loaders[0].open()
    component.moments()  # so that a matrix that is not symmetric is refused as such
    square = OperatorLoader(Square.of(component), component.n_features, None, True)
    result, told = run([square], k)
    if told is not None:
        warn(result, told, stacklevel=4)
    W = result.vectors
    values, turn = geometry.ritz(W, component.apply(W))
    return values[::-1], fix_signs(W @ turn[:, ::-1])


def _refined(matrix: Any, result: Result, run: FinestRun) -> tuple[Array, Array, Array, bool]:
    """Left vectors, values (descending), right vectors from a Gram matrix's subspace; whether none is missed.

    Products with A and its transpose in turn, each orthonormalised, lose nothing to squaring: what a Gram
    matrix could not tell apart comes into order by the ratio of the singular values at every turn.
    """
    V, k = result.vectors, result.vectors.shape[1]
    matrix.centre = result.stats["mean"]
    n = len(V)
    width = min(n, k + max(2, k // 10))
    assert isinstance(run.rng, np.random.Generator)
    if width > k:
        V = np.hstack([V, geometry.orthonormalize(run.rng.standard_normal((n, width - k)), against=V)])
    eps = float(np.finfo(np.float64).eps)
    best: tuple[float, Array, Array, Array] | None = None
    for _ in range(REFINEMENTS):
        U, s, V = _svd_of_product(matrix.times(V), V)
        back = matrix.adjoint(U)
        largest = float(s[0])
        residual = float(np.linalg.norm((back - V * s)[:, :k], axis=0).max())
        better = best is None or residual < 0.5 * best[0]
        if best is None or residual < best[0]:
            best = residual, U[:, :k], s[:k], V[:, :k]
        if not better or residual <= 10.0 * eps * largest:
            break
        V = np.linalg.qr(back)[0]
    assert best is not None
    residual, U, s, V = best
    largest = float(s[0])
    if 0.0 < largest < SMALLEST:
        raise InvalidInput(
            "the squares of the entries must not vanish in float64; the largest singular value seen is "
            f"{largest:.3g}; rescale the data"
        )
    certificate = result.certificate
    if certificate is None or matrix.shape is None:
        return U, s, V, False
    # Nothing was missed but what a Gram matrix cannot see: as good as zero, and the residuals say the rest.
    beyond = certificate.next_value.value * matrix.shape[0]
    unseen = beyond <= max(float(s[-1]) ** 2, 1e-11 * largest**2)
    return U, s, V, unseen and residual <= max(1e-13, float(run.tol)) * largest


def _svd_of_product(B: Array, V: Array) -> tuple[Array, Array, Array]:
    """Singular triplets of A as far as the span of V shows them, B being ``A V``."""
    Q, R = np.linalg.qr(B)
    left, s, right = svd(R)
    return Q @ left, s, V @ right.T


# -- arguments --------------------------------------------------------------------------------------


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"`{name}` is there for scipy's order of arguments and must keep its default; got {value!r}. "
                "Generalised, shifted and tuned problems are scipy.sparse.linalg's."
            )


def _check_k(k: Any, size: int | None, name: str = "n_features") -> None:
    require_count(k, "`k`")
    if size is not None and k > size:
        raise InvalidInput(f"`k` must satisfy 1 <= k <= {name}; got k={k}, {name}={size}.")


def _solver(solver: Solvers, ncv: int | None, k: int) -> Solvers:
    if ncv is None:
        return solver
    if solver not in ("auto", "krylov"):
        raise InvalidInput(
            f"`ncv` is for the solver 'krylov'; got {ncv} with {solver!r}. Leave one of them out."
        )
    require_count(ncv, "`ncv`", least=k + 1)
    return Krylov(memory=max(ncv, k + 8))


def _precise(A: Any) -> np.dtype[Any]:
    """The dtype of the answer: that of the data if it is single precision, else double."""
    single = getattr(A, "dtype", None) == np.float32
    return np.dtype(np.float32 if single else np.float64)
