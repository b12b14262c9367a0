"""What a worker imports: nothing of scipy's where rows are dense, what it needs where they are not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import grassia
from grassia.backends import Processes
from grassia.data import CallableLoader, Components, MatrixLoader, OperatorLoader, RowsLoader
from process_runs import LINUX_AND_NOTHING_LEFT, K, leading, sine, some_rows
from reporting_loaders import ReportingLoader, reports

REPEATED = 20  # so many times the rows are too large for the pickle, and lie in shared memory


def in_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reporting(components, folder):
    return Components(ReportingLoader(loader, str(folder)) for loader in components)


class TestOfARun:
    pytestmark = LINUX_AND_NOTHING_LEFT

    @pytest.mark.parametrize(
        ("kind", "center", "solver"),
        [
            ("memory", True, "krylov"),
            ("memory", False, "nystrom"),
            ("single", True, "nystrom"),
            ("single", False, "krylov"),
            ("npy", True, "nystrom"),
            ("memmap", False, "krylov"),
        ],
    )
    def test_workers_that_multiply_dense_rows_do_not_import_scipy(self, kind, center, solver, tmp_path):
        rows = np.tile(some_rows(), (REPEATED, 1))
        precision = "auto"
        if kind == "single":
            rows, precision = rows.astype(np.float32), "float32"
        source = rows
        if kind in ("npy", "memmap"):
            np.save(tmp_path / "rows.npy", rows)
            source = tmp_path / "rows.npy" if kind == "npy" else np.load(tmp_path / "rows.npy", mmap_mode="r")
        folder = tmp_path / "reports"
        folder.mkdir()
        result = grassia.eigenspace(
            reporting(grassia.from_rows(source, 2, center=center), folder),
            K,
            backend=Processes(2),
            solver=solver,
            precision=precision,
            tol=1e-4,
            rng=0,
        )
        rows = rows.astype(np.float64)
        truth = leading(rows) if center else np.linalg.eigh(rows.T @ rows)[1][:, -K:]
        assert sine(result.vectors, truth) <= 1e-4
        found = reports(folder)
        wanted = {"opened", "measured", "multiplied"}
        if kind == "single":
            wanted.add("multiplied in single precision")
        assert len(found) == 2
        assert all(said == wanted for said in found.values()), found

    @pytest.mark.parametrize("kind", ["rows", "made in the worker", "not CSR"])
    def test_a_worker_of_sparse_rows_imports_what_it_needs(self, kind, tmp_path):
        rng = np.random.default_rng(5)
        dense = some_rows() * (rng.random((240, 12)) < 0.4)
        loaders = [RowsLoader(dense[:100])]
        if kind == "rows":
            loaders.append(RowsLoader(sp.csr_array(dense[100:])))
        elif kind == "not CSR":
            loaders.append(RowsLoader(sp.coo_matrix(dense[100:])))
        else:

            def made():
                import scipy.sparse

                return scipy.sparse.csc_array(dense[100:])

            loaders.append(CallableLoader(made))
        result = grassia.eigenspace(
            reporting(loaders, tmp_path), K, backend=Processes(2), solver="krylov", tol=1e-8, rng=0
        )
        values, vectors = np.linalg.eigh(np.cov(dense.T, bias=True))
        assert sine(result.vectors, vectors[:, -K:]) <= 1e-8
        assert np.allclose(result.values, values[: -K - 1 : -1], rtol=1e-10)
        # The worker of the dense shard has no use for scipy, whatever the other one has.
        assert sorted(any("scipy" in line for line in said) for said in reports(tmp_path).values()) == [
            False,
            True,
        ]

    def test_sparse_matrices_and_operators_are_known_as_such_in_a_worker(self, tmp_path):
        rng = np.random.default_rng(6)
        A = rng.standard_normal((30, 30)) * (rng.random((30, 30)) < 0.2)
        A, B = A + A.T + 20.0 * np.diag(np.arange(30)), np.diag(np.arange(30.0)[::-1])
        loaders = [MatrixLoader(sp.csc_matrix(A)), OperatorLoader(aslinearoperator(B)), MatrixLoader(A)]
        result = grassia.eigenspace(
            reporting(loaders, tmp_path), 2, backend=Processes(3), solver="krylov", tol=1e-8, rng=0
        )
        assert sine(result.vectors, np.linalg.eigh(2.0 * A + B)[1][:, -2:]) <= 1e-8
        assert sum("opened" in said for said in reports(tmp_path).values()) == 1

    def test_a_procedure_of_a_solver_is_found_where_nothing_of_solvers_was_imported(self, tmp_path):
        rows = some_rows()
        result = grassia.eigenspace(
            reporting(grassia.from_rows(rows, 2), tmp_path),
            K,
            backend=Processes(2),
            solver="grassia",
            tol=1e-6,
            rng=0,
        )
        assert sine(result.vectors, leading(rows)) <= 1e-6
        # It was opened before that.
        assert all("opened" in said for said in reports(tmp_path).values())


@pytest.mark.parametrize(
    "modules",
    [
        "grassia.backends.child",
        "grassia.backends.station, grassia.backends.ray_actor, grassia.backends.dask_worker",
        "grassia.data.loaders, grassia.data.mapped, grassia.data.stored, grassia.data.several",
        "grassia.operands, grassia.data.sources",
        "grassia.data.formats.csv, grassia.data.formats.parquet, grassia.data.formats.tables",
        "grassia.data.formats.hdf5, grassia.data.formats.zarr, grassia.data.formats.npz",
    ],
)
def test_modules_that_workers_import_do_not_import_scipy(modules):
    code = f"import sys, {modules}\nprint([name for name in ('scipy', 'sklearn') if name in sys.modules])"
    assert in_fresh_interpreter(code).strip() == "[]"


@pytest.mark.parametrize("package", ["grassia.data", "grassia.backends"])
def test_what_a_package_offers_is_there_before_anybody_has_imported_it(package):
    code = (
        f"import sys, {package} as package\n"
        "listed = dir(package)\n"
        "offered = [name for name in package.__all__ if name not in ('Ray', 'Dask')]\n"
        "print(all(name in listed for name in package.__all__))\n"
        "print(all(getattr(package, name).__name__ == name for name in offered))\n"
        "print(hasattr(package, 'no_such_thing'))\n"
    )
    assert in_fresh_interpreter(code).split() == ["True", "True", "False"]


# ------------------------------------------------------------------------------------ BLAS

BLAS = """
import numpy as np
from grassia import _blas
def counts():
    return [library.num_threads for library in _blas.libraries()]
"""


def test_a_blas_that_scipy_brings_later_is_found_when_it_is_there():
    found = in_fresh_interpreter(
        BLAS + "import threadpoolctl\n"
        "def all_there_are():\n"
        "    found = threadpoolctl.threadpool_info()\n"
        "    return sorted(each['filepath'] for each in found if each['user_api'] == 'blas')\n"
        "def known():\n"
        "    return sorted(library.filepath for library in _blas.libraries())\n"
        "print(known() == all_there_are(), _blas.numpy_blas() is not None)\n"
        "import scipy.linalg\n"
        "print(known() == all_there_are(), _blas.numpy_blas().filepath in known())\n"
    )
    assert found.split() == ["True"] * 4


def test_the_server_limits_every_blas_also_that_of_a_scipy_nobody_had_imported():
    found = in_fresh_interpreter(
        BLAS + "_blas.libraries()\n"
        "limits = _blas.ServerThreads(1)\n"
        "import scipy.linalg\n"
        "print(max(counts()))\n"
        "limits.end()\n"
        "print(counts() == [limits.threads] * len(counts()), limits.threads == _blas.threads())\n"
    )
    assert found.split() == ["1", "True", "True"]


def test_a_worker_of_an_engine_limits_a_blas_that_a_procedure_brings_before_it_runs():
    found = in_fresh_interpreter(
        BLAS + "import sys\n"
        "from grassia.backends.station import Station, pack\n"
        "from grassia.data import RowsLoader\n"
        "from grassia.faults import Injector\n"
        "from grassia.messages import Query, Task\n"
        "station = Station(pack({0: RowsLoader(np.eye(3))}, Injector()), 1)\n"
        "def ask(number, query):\n"
        "    (reply,) = station.answer(Task(number, 0, 0, number, query), query.arrays)\n"
        "    return reply\n"
        "ask(0, Query('open'))\n"
        "ask(1, Query('apply', {'block': np.eye(3)}))\n"
        "print('scipy' in sys.modules)\n"
        "from pathlib import Path\n"
        "import tempfile\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    Path(folder, 'brings_scipy.py').write_text(\n"
        "        'import scipy.linalg\\nfrom grassia import _blas\\n'\n"
        "        'def report(component, cache, query):\\n'\n"
        "        '    return {}, {\"most\": max(lib.num_threads for lib in _blas.libraries())}\\n')\n"
        "    sys.path.append(folder)\n"
        "    print(ask(2, Query('brings_scipy:report')).scalars['most'], 'scipy' in sys.modules)\n"
    )
    assert found.split() == ["False", "1", "True"]
