"""`solver="auto"`: which solver for which data on which back-end, and why.

What is known before any data is read: how many components there are, how large and whether sparse they
are, and whether they are worked on at the same time. The rules:

- several components worked on at once (any back-end but serial): `nystrom`, or `power` where the models of
  nystrom would not fit into the server's memory; but one pass of `covariance` where d is so small that it
  costs less than the few queries of nystrom;
- all in one place: `covariance` or `krylov`, whichever costs less.

Costs are counted in operations: ``m d^2`` for a Gram matrix, ``5 d^3`` for a dense eigenproblem, ``4 m d``
for a column of a product. How many columns an iteration takes to six digits on common data, a slower one
counted for more, was measured (`benchmarks/auto.py`), and depends on k alone. Some data take more of them,
while one pass is one pass: in one place the iteration has to be clearly cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from grassia.certificate import Certifier
from grassia.data import Components, Extent, extent_of
from grassia.errors import InvalidInput
from grassia.solvers import Covariance, Krylov, Nystrom, Power, Solver

BUDGET = 4e9
_EIGH = 5.0
_CLEARLY = 1.4


@dataclass(frozen=True, slots=True)
class Data:
    """What the components have in common."""

    n: int
    d: int
    n_rows: int
    stored: int
    sparse: bool
    rows_only: bool

    @classmethod
    def of(cls, loaders: Components) -> Data | None:
        found = [extent_of(loader) for loader in loaders]
        known: list[Extent] = [extent for extent in found if extent is not None]
        if len(known) < len(found):
            return None
        return cls(
            n=len(known),
            d=known[0].n_features,
            n_rows=sum(extent.n_rows for extent in known),
            stored=sum(extent.stored for extent in known),
            sparse=any(extent.sparse for extent in known),
            rows_only=all(extent.kind == "rows" for extent in known),
        )


def choose(loaders: Components, k: int, concurrent: bool, budget: float = BUDGET) -> tuple[Solver[Any], str]:
    """The solver that fits, and why.

    Parameters
    ----------
    concurrent : bool
        Whether components are worked on at the same time, by workers that need not wait for one another.

    Examples
    --------
    >>> import numpy as np, grassia
    >>> solver, why = choose(grassia.from_rows(np.zeros((100_000, 50)), 4), 5, concurrent=True)
    >>> solver.name
    'covariance'
    >>> solver, why = choose(grassia.from_rows(np.zeros((100, 5000)), 4), 5, concurrent=True)
    >>> solver.name, why[:33]
    ('nystrom', 'nystrom: 4 components at once; it')
    """
    data = Data.of(loaders)
    if data is not None and data.rows_only and not data.sparse and _one_pass_is_cheaper(data, k, concurrent):
        return Covariance(), (
            f"covariance: with {data.n_rows} rows of {data.d} features one pass and a dense "
            "eigenproblem cost less than the products of an iteration"
        )
    if concurrent and len(loaders) > 1:
        return _asynchronous(loaders, k, budget)
    return _in_one_place(loaders, k, budget, data)


def certifier(loaders: Components) -> Certifier:
    """The usual one; with fewer probes where so many columns would take much memory beside sparse data.

    >>> import scipy.sparse as sp
    >>> from grassia import from_rows
    >>> certifier(from_rows(sp.random_array((1000, 5000), density=1e-3))).probes
    6
    """
    data, usual = Data.of(loaders), Certifier()
    if data is None or not (data.rows_only and data.sparse):
        return usual
    column = 8.0 * data.d
    return usual if usual.probes * column <= 0.05 * 12.0 * data.stored else replace(usual, probes=6)


def _one_pass_is_cheaper(data: Data, k: int, concurrent: bool) -> bool:
    d, m = float(data.d), float(data.n_rows)
    return m * d**2 + _EIGH * d**3 <= 4.0 * m * d * _columns(data.n, k, concurrent)


def _columns(n: int, k: int, concurrent: bool) -> float:
    """Columns of products that an iteration takes: nystrom, or krylov with narrow or with wide blocks."""
    if n == 1:
        return _CLEARLY * (90.0 + 7.0 * k)
    if concurrent:
        return 150.0 + 36.0 * k
    return _CLEARLY * (40.0 + 12.0 * (k + max(2, k // 10)))


def _asynchronous(loaders: Components, k: int, budget: float) -> tuple[Solver[Any], str]:
    n, d = len(loaders), loaders.n_features
    flagship = Nystrom(budget=budget)
    if d is None:
        return flagship, f"nystrom: {n} components at once; the number of features is not known yet"
    try:
        _, _, kept = flagship.sizes(n, d, min(k, d))
    except InvalidInput:
        return (
            Power(),
            f"power: the models of nystrom would take more than {budget / 1e9:.3g} GB on the server",
        )
    size = flagship.server_bytes(n, d, min(k, d)) / 1e9
    return flagship, (
        f"nystrom: {n} components at once; its models ({kept} columns each) take {size:.3g} GB on the server"
    )


def _in_one_place(loaders: Components, k: int, budget: float, data: Data | None) -> tuple[Solver[Any], str]:
    d = loaders.n_features
    solver = Krylov()
    if data is not None and data.rows_only and data.sparse:
        # Two numbers of the basis for each feature and column, beside about 12 bytes an entry.
        basis, rows = solver.server_bytes(1, data.d, min(k, data.d)), 12.0 * data.stored
        if basis > 0.25 * rows:
            lean = Krylov(width=max(4, k // 2), memory=max(3 * k + 1, 16))
            if lean.server_bytes(1, data.d, min(k, data.d)) < basis:
                return lean, (
                    "krylov, with a short basis: the usual one would take as much memory as a good part "
                    f"of the sparse data ({basis / 1e6:.3g} MB beside {rows / 1e6:.3g} MB)"
                )
    if d is not None and solver.server_bytes(1, d, min(k, d)) > budget:
        solver = Krylov(memory=2 * k + 2 * max(2, k // 10) + 2)  # two blocks: the least that makes progress
        if solver.server_bytes(1, d, min(k, d)) > budget:
            return Power(), f"power: the basis of krylov would take more than {budget / 1e9:.3g} GB"
    kind = "sparse " if data is not None and data.sparse else ""
    where = "one component" if len(loaders) == 1 else f"{len(loaders)} components, one after the other"
    return solver, f"krylov: {kind}data in one place ({where}); no answer has to be waited for"
