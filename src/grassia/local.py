"""The eigenspaces of single components, and their averages: what one round can tell of the whole.

Fan, Wang, Wang, Zhu 2019 ("Distributed estimation of principal eigenspaces") average the projectors `V_i
V_i'` of the local eigenspaces and take the leading eigenspace of that. Charisopoulos, Benson, Damle 2021
("Communication-efficient distributed eigenspace estimation") average the bases themselves, each turned onto
a common reference by orthogonal Procrustes. Both are off by the bias of the local eigenspaces, which is of
second order in the unlikeness of the components: where shards are samples of one population it is small, and
where they are not it need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from grassia import geometry
from grassia.messages import Array


def leading_eigenspace(
    apply: Callable[[Array], Array],
    d: int,
    k: int,
    rng: np.random.Generator,
    *,
    extra: int = 4,
    products: int = 40,
    tol: float = 1e-6,
) -> tuple[Array, Array]:
    """Leading eigenpairs of one symmetric operator, by block Krylov with thick restarts.

    Parameters
    ----------
    apply : callable
        The product with a d x b block.
    d, k : int
        Size, and how many eigenpairs.
    rng : numpy Generator
        For the first block.
    extra : int
        Columns of a block beyond k.
    products : int
        Blocks multiplied at most; the best found by then is returned.
    tol : float
        Wanted norm of the residual, relative to the largest Ritz value.

    Returns
    -------
    values : ndarray (k,)
        Descending.
    vectors : ndarray (d, k)
        Orthonormal.

    Notes
    -----
    Memory: two bases of at most 8 (k + extra) columns, or 40 if that is more. The largest eigenvalues with
    their signs are found; no matrix is formed.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.diag(np.arange(40.0))
    >>> values, _ = leading_eigenspace(lambda V: A @ V, 40, 2, np.random.default_rng(0))
    >>> values.round(6)
    array([39., 38.])
    """
    width = min(d, k + extra)
    room = min(d, max(40, 8 * width))
    block = geometry.random_point(d, width, rng)
    basis, images = np.zeros((d, 0)), np.zeros((d, 0))
    for _ in range(products):
        basis, images = np.hstack([basis, block]), np.hstack([images, apply(block)])
        values, turn = geometry.ritz(basis, images)
        residuals = images @ turn[:, :width] - (basis @ turn[:, :width]) * values[:width]
        wanted = tol * float(np.abs(values).max())
        if float(np.linalg.norm(residuals[:, :k], 2)) <= wanted or basis.shape[1] == d:
            break
        block = geometry.orthonormalize(residuals, against=basis)[:, : d - basis.shape[1]]
        if block.shape[1] == 0:
            break
        if basis.shape[1] + block.shape[1] > room:
            kept = turn[:, : 2 * width]
            basis, images = basis @ kept, images @ kept
    values, turn = geometry.ritz(basis, images)
    return values[:k], np.asarray(geometry.polar(basis @ turn[:, :k]))


def procrustes_average(bases: Sequence[Array], weights: Array, refinements: int = 1) -> Array:
    """The orthonormal factor of the weighted mean of bases, each turned onto a reference before.

    Parameters
    ----------
    bases : sequence of ndarray (d, k)
        Orthonormal.
    weights : ndarray (n,)
        Positive.
    refinements : int
        The reference is the basis of the largest weight; so many times the average takes its place and all
        are aligned anew.

    Notes
    -----
    The mean has full rank: with R the reference, R'(V_i D_i) is positive semidefinite for each i, and the
    identity for the reference itself.

    Examples
    --------
    >>> import numpy as np
    >>> W = np.eye(4)[:, :2]
    >>> turned = W @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> bool(np.allclose(procrustes_average([W, turned], np.array([0.6, 0.4])), W))
    True
    """
    found = bases[int(np.argmax(weights))]
    for _ in range(1 + refinements):
        aligned = [w * geometry.align(V, found) for w, V in zip(weights, bases, strict=True)]
        found = np.asarray(geometry.polar(np.sum(aligned, axis=0)))
    return found


def projector_average(bases: Sequence[Array], weights: Array) -> Array:
    """The leading eigenspace of `sum w_i V_i V_i'`.

    Examples
    --------
    >>> import numpy as np
    >>> V = [np.eye(3)[:, [0]], np.eye(3)[:, [0]], np.eye(3)[:, [1]]]
    >>> abs(projector_average(V, np.ones(3) / 3))
    array([[1.],
           [0.],
           [0.]])
    """
    stacked = np.hstack([np.sqrt(w) * V for w, V in zip(weights, bases, strict=True)])
    U, _, _ = np.linalg.svd(stacked, full_matrices=False)
    return np.ascontiguousarray(U[:, : bases[0].shape[1]])
