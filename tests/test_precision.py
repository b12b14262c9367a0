"""Workers may multiply in single precision while solving; certificates never do. Wide starts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import grassia
from grassia.backends import Simulated
from grassia.backends.service import Fixed, straggler
from grassia.components import RowsComponent
from grassia.geometry import projection_distance
from grassia.solvers import Krylov, Nystrom

K = 3


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(5)
    scales = np.r_[9.0, 7.0, 5.0, 3.0 / np.arange(1, 118) ** 0.5]
    return (rng.standard_normal((900, 120)) * scales + 1.0).astype(np.float32)


def leading(rows: np.ndarray, k: int = K) -> np.ndarray:
    X = rows.astype(np.float64)
    X -= X.mean(axis=0)
    return np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :k]


class Watched(RowsComponent):
    """Rows that write down in which precision they were multiplied."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows)
        self.calls: list[str] = []

    def apply(self, V, single=False):
        self.calls.append("single" if single else "double")
        return super().apply(V, single)


@pytest.mark.parametrize("solver", ["krylov", "nystrom", "grassia", "power", "orthogonal", "lobpcg"])
def test_only_the_certificate_is_double(rows, solver):
    component = Watched(rows)
    result = grassia.eigenspace([component], K, rng=0, solver=solver, tol=1e-3, precision="float32")
    assert result.converged
    assert projection_distance(result.vectors, leading(rows)) <= 1e-3
    sweeps = result.certificate.sweeps
    assert component.calls[-sweeps:] == ["double"] * sweeps
    assert "single" in component.calls


@pytest.mark.parametrize(
    ("precision", "tol", "expected"),
    [("auto", 1e-4, True), ("auto", 1e-7, False), ("float64", 1e-3, False), ("float32", 1e-7, True)],
)
def test_when_single_precision_is_used(rows, precision, tol, expected):
    component = Watched(rows)
    result = grassia.eigenspace([component], K, rng=0, solver="krylov", tol=tol, precision=precision)
    assert result.converged
    assert ("single" in component.calls) is expected


def test_rows_in_double_are_multiplied_in_double(rows):
    component = Watched(rows.astype(np.float64))
    grassia.eigenspace([component], K, rng=0, solver="krylov", tol=1e-3, precision="float32")
    assert "single" not in component.calls


@pytest.mark.parametrize("solver", ["krylov", "nystrom", "covariance", "power"])
def test_what_single_precision_cannot_reach_is_finished_in_double(rows, solver):
    """At 1e-11 the first certificate must be refused, and the answer has to be right all the same."""
    shards = grassia.from_rows(rows, 4)
    result = grassia.eigenspace(shards, K, rng=0, solver=solver, tol=1e-11, precision="float32")
    assert [event.kind for event in result.history.events][:1] == ["double precision"]
    assert result.converged
    assert projection_distance(result.vectors, leading(rows)) <= 1e-11


def test_a_run_in_single_precision_is_replayed(rows, tmp_path):
    shards = grassia.from_rows(rows, 4)
    backend = Simulated(straggler(4, 10.0), seed=1)
    log = tmp_path / "run.jsonl"
    result = grassia.eigenspace(
        shards, K, rng=0, solver="nystrom", tol=1e-10, precision="float32", backend=backend, record=log
    )
    again = grassia.replay(log, shards)
    assert again.vectors.tobytes() == result.vectors.tobytes()


@pytest.mark.parametrize("precision", ["single", 32, None, np.float32])
def test_other_precisions_are_refused(precision):
    with pytest.raises(grassia.InvalidInput, match="`precision` must be 'auto', 'float32' or 'float64'"):
        grassia.eigenspace(np.eye(4), 1, precision=precision)


@pytest.mark.parametrize("solver", [Nystrom(), Krylov(), Krylov(width=5), "grassia", "covariance"])
@pytest.mark.parametrize("columns", [3, 4, 9, 60, 120])
def test_a_start_may_be_wider_than_k(rows, solver, columns):
    start = leading(rows, columns) + 1e-3 * np.random.default_rng(0).standard_normal((120, columns))
    result = grassia.eigenspace(grassia.from_rows(rows, 4), K, rng=0, solver=solver, v0=start)
    assert result.converged
    assert projection_distance(result.vectors, leading(rows)) <= 1e-6


@pytest.mark.parametrize("solver", ["nystrom", "krylov"])
def test_a_wide_start_saves_passes(rows, solver):
    """The k leading directions wrong, the next ones of the block right: the whole block must be used."""
    shards = grassia.from_rows(rows, 4)
    right = leading(rows, 9)
    start = right[:, ::-1]  # what is wanted comes last
    passes = {}
    for name, v0 in {"wide": start, "narrow": start[:, :K]}.items():
        result = grassia.eigenspace(shards, K, rng=0, solver=solver, v0=v0, backend=Simulated(Fixed(1.0)))
        assert result.converged
        passes[name] = result.stats["passes"]
    assert passes["wide"] < passes["narrow"]


@pytest.mark.parametrize("backend", ["serial", "simulated"])
def test_components_of_low_rank_do_not_keep_single_precision_waiting(backend):
    """35 rows of 77 features each: models soon hold all of a component, and single precision nothing more."""
    rng = np.random.default_rng(7)
    X = (rng.standard_normal((105, 77)) * np.linspace(3.0, 0.3, 77)).astype(np.float32)
    passes = {}
    for precision in ("float32", "float64"):
        components = grassia.from_rows(X, n_components=3)
        result = grassia.eigenspace(
            components, 2, solver="nystrom", backend=backend, tol=1e-4, rng=0, precision=precision
        )
        assert result.converged
        passes[precision] = result.stats["passes"]
    assert passes["float32"] <= passes["float64"] + 60


def test_fewer_eigenpairs_than_asked_of_a_cluster_are_made_up_for():
    """A driver of LAPACK that looks for some eigenpairs only may miss some of a tight cluster."""
    for seed in range(6):
        V = np.linalg.qr(np.random.default_rng(seed).standard_normal((145, 145)))[0]
        A = (V * np.r_[np.full(35, 2.0), np.full(110, 2.0 - 1e-10)]) @ V.T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = grassia.eigenspace([(A + A.T) / 2], 35, solver=Krylov(oversample=1), tol=1e-9, rng=seed)
        assert result.vectors.shape == (145, 35)
