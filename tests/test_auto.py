"""`solver="auto"` chooses by size, sparsity, back-end and memory, and says why."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.auto import certifier, choose
from grassia.backends import Threads
from grassia.data import CallableLoader, OperatorLoader, as_components, extent_of
from grassia.geometry import projection_distance
from grassia.solvers import Covariance, Krylov, Nystrom


def shape(m: int, d: int, n: int = 1, dtype: str = "float64"):
    """Rows of a size, without their memory."""
    return grassia.from_rows(np.broadcast_to(np.zeros(1, dtype), (m, d)), n)


@pytest.mark.parametrize(
    ("components", "k", "concurrent", "expected"),
    [
        (shape(60_000, 784), 10, False, "covariance"),
        (shape(60_000, 784), 50, False, "covariance"),
        (shape(5_000, 3_072), 10, False, "krylov"),
        (shape(5_000, 3_072), 50, False, "krylov"),
        (shape(20_000, 5_000), 10, False, "krylov"),
        (shape(20_000, 5_000), 50, False, "krylov"),
        (shape(20_000, 2_500), 50, False, "krylov"),
        (shape(30_000, 1_500), 10, False, "krylov"),
        (shape(200_000, 300), 4, False, "covariance"),
        (shape(20_000, 2_500, 2), 10, True, "nystrom"),
        (shape(5_000, 3_072, 20), 3, True, "nystrom"),
        (shape(5_000, 3_072, 20), 3, False, "krylov"),
        (shape(1_000_000, 100, 20), 3, True, "covariance"),
        (shape(5_000, 3_072), 3, True, "krylov"),  # one component: there is nobody to wait for
        (as_components([np.eye(50)] * 3), 2, True, "nystrom"),
        (as_components([np.eye(50)] * 3), 2, False, "krylov"),
    ],
)
def test_the_choice_follows_size_and_back_end(components, k, concurrent, expected):
    solver, reason = choose(components, k, concurrent)
    assert solver.name == expected
    assert reason.startswith(expected)


def test_sparse_rows_are_never_filled_in():
    X = sp.random_array((20_000, 300), density=0.01, rng=np.random.default_rng(0), format="csr")
    assert choose(grassia.from_rows(X.toarray()), 5, False)[0].name == "covariance"
    solver, reason = choose(grassia.from_rows(X), 5, False)
    assert solver.name == "krylov"
    assert "sparse" in reason


def test_memory_decides():
    """Too wide to hold models of: 40 operators in 2 million features. Nothing is run."""
    wide = as_components([OperatorLoader(lambda V: V, n_features=2_000_000)] * 40)
    solver, reason = choose(wide, 10, True)
    assert solver.name == "power"
    assert "would take more than 4 GB" in reason
    alone = as_components([OperatorLoader(lambda V: V, n_features=4_000_000)])
    assert choose(alone, 3, False)[0].memory < 40  # a shorter basis, 2 x 40 columns being too many
    assert choose(alone, 3, False, budget=1e8)[0].name == "power"


def test_a_size_that_is_not_known_yet_is_no_obstacle():
    X = np.random.default_rng(0).standard_normal((300, 12)) * np.r_[5, 4, 3, np.ones(9)]
    shards = grassia.from_rows([lambda: X[:100], lambda: X[100:]])
    assert extent_of(CallableLoader(lambda: X)) is None
    for backend in ("serial", Threads(workers=2)):
        result = grassia.eigenspace(shards, 2, rng=0, backend=backend)
        assert result.converged
        assert result.stats["solver"] == ("krylov" if backend == "serial" else "nystrom")


def test_extents_are_those_of_the_data(tmp_path):
    X = np.arange(40.0).reshape(10, 4)
    np.save(tmp_path / "rows.npy", X)
    for source in (X, sp.csr_array(X), tmp_path / "rows.npy", np.load(tmp_path / "rows.npy", mmap_mode="r")):
        parts = [extent_of(loader) for loader in grassia.from_rows(source, 3)]
        assert sum(part.n_rows for part in parts) == 10
        assert {part.n_features for part in parts} == {4}
        assert {part.kind for part in parts} == {"rows"}
        assert sum(part.stored for part in parts) == (39 if sp.issparse(source) else 40)
    merged = extent_of(grassia.from_rows([X, X, X], 1)[0])
    assert (merged.n_rows, merged.stored) == (30, 120)
    (tmp_path / "rows.npy").write_bytes(b"gone")
    loader = grassia.data.NpyRowsLoader(str(tmp_path / "rows.npy"))
    assert extent_of(loader) is None


@pytest.mark.parametrize("solver", [Nystrom(), Krylov(), Covariance()])
def test_the_memory_estimate_is_in_the_statistics(solver):
    X = np.random.default_rng(0).standard_normal((400, 60)) * np.r_[5, 4, 3, np.ones(57)]
    result = grassia.eigenspace(grassia.from_rows(X, 4), 3, rng=0, solver=solver)
    assert result.stats["server_bytes"] == solver.server_bytes(4, 60, 3) > 8 * 60 * 3


def test_auto_is_right_and_says_why():
    X = np.random.default_rng(1).standard_normal((500, 40)) * np.r_[5, 4, 3, np.ones(37)]
    centred = X - X.mean(axis=0)
    leading = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :3]
    for backend in ("serial", "threads"):
        result = grassia.eigenspace(grassia.from_rows(X, 4), 3, rng=0, backend=backend)
        assert result.converged
        assert result.stats["solver"] == "covariance"
        assert "one pass" in result.stats["solver_reason"]
        assert projection_distance(result.vectors, leading) <= 1e-6


def test_a_basis_is_short_where_it_would_outgrow_sparse_data():
    """Twelve bytes an entry are little beside blocks of as many numbers as there are features."""
    rng = np.random.default_rng(0)
    strong = sp.csr_array(np.array([5.0, 3.0]) * rng.standard_normal((2000, 2)))
    wide = sp.hstack([strong, sp.random_array((2000, 20_000), density=1e-3, rng=rng)], format="csr")
    tall = sp.random_array((20_000, 200), density=0.1, format="csr", rng=rng)
    lean, why = choose(grassia.from_rows(wide), 5, concurrent=False)
    usual, _ = choose(grassia.from_rows(tall), 5, concurrent=False)
    assert "short basis" in why
    assert lean.server_bytes(1, 20_000, 5) < usual.server_bytes(1, 20_000, 5) / 2
    assert certifier(grassia.from_rows(wide)).probes < certifier(grassia.from_rows(tall)).probes
    runs = [grassia.eigenspace(grassia.from_rows(wide), 2, rng=0, solver=one) for one in ("auto", "krylov")]
    assert all(run.converged for run in runs)
    assert projection_distance(runs[0].vectors, runs[1].vectors) <= 2e-6
