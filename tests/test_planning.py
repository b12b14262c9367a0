"""`plan` against what runs do, and against what they are told."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import grassia
from grassia import footprint
from grassia.backends import Processes, Threads
from grassia.data import CallableLoader, Components
from grassia.errors import InvalidInput
from problems import gaussian_rows


@pytest.fixture(scope="module")
def rows():
    return gaussian_rows(600, 40, 3, seed=0).astype(np.float32)


def test_sizes_are_those_of_the_data(rows, tmp_path):
    plan = grassia.plan(rows, 3)
    assert (plan.n_rows, plan.n_features, plan.k, plan.n_components) == (600, 40, 3, 1)
    assert plan.data_bytes == rows.nbytes
    assert plan.cached_bytes == 0
    np.save(tmp_path / "x.npy", rows)
    from_file = grassia.plan(tmp_path / "x.npy", 3)
    assert from_file.data_bytes == from_file.cached_bytes == rows.nbytes
    sparse = sp.random_array((500, 300), density=0.02, format="csr", rng=np.random.default_rng(0))
    in_arrays = sparse.data.nbytes + sparse.indices.nbytes + sparse.indptr.nbytes
    assert grassia.plan(sparse, 3).data_bytes == pytest.approx(in_arrays, rel=0.01)


@pytest.mark.parametrize("backend", ["serial", "threads", "simulated"])
@pytest.mark.parametrize("shape", [(4000, 20), (60, 400)])
def test_the_solver_is_the_one_that_a_run_takes(backend, shape):
    X = np.random.default_rng(0).standard_normal(shape) * np.r_[5.0, 4.0, np.ones(shape[1] - 2)]
    parts = grassia.from_rows(X, 3)
    plan = grassia.plan(parts, 2, backend=backend)
    result = grassia.eigenspace(parts, 2, backend=backend, rng=0)
    assert (plan.solver, plan.reason) == (result.stats["solver"], result.stats["solver_reason"])
    assert plan.workers == result.stats["workers"]


@pytest.mark.parametrize("solver", ["covariance", "krylov", "nystrom", "grassia", "power"])
def test_messages_of_a_pass_are_about_what_a_run_sends(rows, solver):
    parts = grassia.from_rows(rows, 4)
    plan = grassia.plan(parts, 3, solver=solver, backend="simulated")
    result = grassia.eigenspace(parts, 3, solver=solver, backend="simulated", rng=0)
    # The first pass only opens the data, and the blocks of a certificate have a width of their own.
    passes = result.stats["passes"] - 1.0
    measured = (result.stats["bytes_sent"] + result.stats["bytes_received"]) / passes
    assert 0.4 <= plan.message_bytes / measured <= 2.5


@pytest.mark.parametrize("solver", ["covariance", "krylov"])
def test_the_range_of_passes_holds_what_a_run_takes(rows, solver):
    low, high = grassia.plan(rows, 3, solver=solver).passes
    result = grassia.eigenspace(grassia.from_rows(rows), 3, solver=solver, rng=0)
    assert low <= result.stats["passes"] <= high


def test_a_sample_tells_the_passes_of_data_like_it():
    X = gaussian_rows(9000, 60, 3, seed=2)
    for source in (X, grassia.from_rows(X, 3, center=False)):
        plan = grassia.plan(source, 3, solver="krylov", sample=True)
        low, high = plan.passes
        taken = grassia.eigenspace(
            source if isinstance(source, Components) else grassia.from_rows(X), 3, solver="krylov", rng=1
        ).stats["passes"]
        assert low <= taken <= high
        assert "2000" in plan.passes_from or "2001" in plan.passes_from


def test_without_a_sample_no_row_is_read_and_no_function_called(tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.full((50, 4), np.nan))
    assert grassia.plan(file, 2).n_rows == 50

    def rows():
        raise AssertionError("called")

    plan = grassia.plan([rows, rows], 2)
    assert plan.server_bytes is None
    assert plan.n_rows is None
    assert not plan.fits
    assert "not known" in plan.notes[0]
    assert "unknown" in str(plan)


def test_memory_grows_by_what_is_added(rows):
    now = footprint.resident()
    small = grassia.plan(rows, 3).server_bytes
    assert small >= 0.9 * now  # this process with all its arrays is part of it
    # A dense eigenproblem of 3000 features holds three matrices.
    large = grassia.plan(np.zeros((9000, 3000)), 3, solver="covariance").server_bytes
    assert large - small >= 3 * 8 * 3000**2
    kept = [
        grassia.plan(np.zeros((2000, 3000)), 3, solver=grassia.solvers.Krylov(memory=size)).server_bytes
        for size in (20, 400)
    ]
    assert kept[1] - kept[0] >= 2 * 8 * 3000 * 300


def test_a_large_file_adds_a_block_and_not_its_size(tmp_path):
    file = tmp_path / "x.npy"
    # Sparse on disk: only the header is written.
    np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(1_000_000, 1000))
    plan = grassia.plan(file, 3)
    assert plan.cached_bytes == 4_000_000_000
    in_memory = grassia.plan(grassia.from_rows(np.zeros((1000, 1000), np.float32)), 3, solver=plan.solver)
    assert plan.server_bytes - in_memory.server_bytes < 100e6


def test_workers_that_are_processes_have_memory_of_their_own(rows, tmp_path):
    plan = grassia.plan(rows, 3, backend="processes", workers=3)
    assert (plan.workers, plan.n_components) == (3, 3)
    assert plan.worker_bytes > 20e6  # an interpreter with numpy and scipy
    assert plan.total_bytes >= plan.server_bytes + 3 * footprint.bare_worker()
    assert grassia.plan(rows, 3, backend="threads", workers=3).worker_bytes is None
    # Arrays are copied once for all workers, files are opened by them.
    X = np.ones((2500, 2000))
    np.save(tmp_path / "x.npy", X)
    shared = grassia.plan(X, 3, backend="processes", workers=2, solver="power")
    opened = grassia.plan(tmp_path / "x.npy", 3, backend="processes", workers=2, solver="power")
    assert shared.server_bytes - opened.server_bytes == pytest.approx(X.nbytes, rel=0.2)
    assert shared.worker_bytes == pytest.approx(opened.worker_bytes, rel=0.1)


def test_a_back_end_object_says_how_many_workers_it_has(rows):
    assert grassia.plan(rows, 3, backend=Threads(workers=5)).workers == 5
    assert grassia.plan(grassia.from_rows(rows, 3), 3, backend=Processes(workers=8)).workers == 3


def test_what_does_not_fit_is_said(rows, tmp_path):
    assert grassia.plan(rows, 3).fits
    d = 200_000
    wide = sp.csr_array((1000, d))
    plan = grassia.plan(wide, 3, solver="covariance")
    assert not plan.fits
    assert "too much for this machine" in plan.notes[0]
    assert "too much for this machine" in str(plan)
    huge = tmp_path / "x.npy"
    terabyte = (250_000_000, 1000)
    np.lib.format.open_memmap(huge, mode="w+", dtype=np.float32, shape=terabyte)
    assert "every pass reads them from disk" in grassia.plan(huge, 3, solver="krylov").notes[0]


def test_the_budget_is_what_auto_chooses_by():
    X = np.zeros((400, 20_000))
    assert grassia.plan(X, 5, n_components=4, backend="threads").solver == "nystrom"
    assert grassia.plan(X, 5, n_components=4, backend="threads", budget=1e6).solver == "power"


def test_fewer_probes_take_less_memory():
    X = sp.random_array((500, 30_000), density=1e-3, format="csr", rng=np.random.default_rng(0))
    lean, usual = (grassia.plan(X, 3, certifier=grassia.Certifier(probes=p)).server_bytes for p in (4, 16))
    assert lean < usual - 10e6
    assert grassia.plan(X, 3).server_bytes < usual  # as it comes it is lean beside sparse data


@pytest.mark.parametrize(
    "source",
    [
        np.eye(30),
        [np.eye(30), 2 * np.eye(30)],
        np.stack([np.eye(30)] * 2),
        sp.eye_array(30, format="csr"),
        aslinearoperator(np.eye(30)),
        [grassia.MatrixComponent(np.eye(30))],
    ],
)
def test_matrices_and_operators_are_taken_as_eigenspace_takes_them(source):
    plan = grassia.plan(source, 2)
    assert plan.n_features == 30
    assert plan.server_bytes > 0
    assert plan.n_rows is None


def test_shards_are_merged_as_from_rows_does_it(rows):
    shards = [rows[:100], rows[100:300], rows[300:]]
    assert grassia.plan(shards, 2).n_components == 3
    assert grassia.plan(shards, 2, n_components=2).n_components == 2
    assert grassia.plan(shards, 2, backend="threads", workers=8).workers == 3
    assert grassia.plan(rows, 2, backend="threads", workers=8).n_components == 8


def test_a_sample_of_what_has_no_rows_is_refused():
    with pytest.raises(InvalidInput, match="sample"):
        grassia.plan(np.eye(30), 2, sample=True)


def test_square_rows_are_meant_if_from_rows_made_them():
    assert grassia.plan(grassia.from_rows(np.eye(30)), 2).n_rows == 30


def test_the_plan_is_plain_numbers_and_a_table(rows):
    plan = grassia.plan(rows, 3, backend="threads", workers=2)
    assert json.loads(json.dumps(plan.to_dict()))["n_rows"] == 600
    table = str(plan)
    for words in ("600 x 40", plan.solver, "threads, 2 workers", "a pass", "at its peak", "are free"):
        assert words in table
    assert max(map(len, table.splitlines())) < 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k": 0}, "`k`"),
        ({"k": 41}, "n_features=40"),
        ({"tol": 0}, "`tol`"),
        ({"budget": -1}, "`budget`"),
        ({"workers": 0}, "`workers`"),
        ({"solver": "arpack"}, "`solver`"),
        ({"backend": "mpi"}, "`backend`"),
        ({"n_components": 601}, "n_components"),
    ],
)
def test_bad_arguments_are_named(rows, arguments, words):
    with pytest.raises(InvalidInput, match=words):
        grassia.plan(rows, **{"k": 3, **arguments})


def test_loaders_of_your_own_are_planned_for_too():
    plan = grassia.plan(Components([CallableLoader(lambda: np.eye(3))]), 2)
    assert plan.solver == "krylov"
    assert plan.message_bytes is None


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_the_workers_of_a_cluster_are_processes_of_their_own(engine):
    X = np.ones((4000, 50))
    shards = grassia.from_rows(X, n_components=4)
    far, here = grassia.plan(shards, 3, backend=engine), grassia.plan(shards, 3, backend="threads")
    assert far.worker_bytes is not None
    assert far.worker_bytes >= X.nbytes // 4
    assert here.worker_bytes is None
