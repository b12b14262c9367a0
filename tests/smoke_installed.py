"""Whether an installed grassia works by itself: `python -I tests/smoke_installed.py`, in an empty folder.

It needs nothing but grassia and its own dependencies, and no test framework. It ends with an error where
something does not hold. With `-I` neither the working folder nor that of this script is searched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import grassia


def command(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command that was installed beside this interpreter, which is to end with that code."""
    program = Path(sys.executable).with_name("grassia")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def where_it_is() -> None:
    version = importlib.metadata.version("grassia")
    assert Path(grassia.__file__).is_relative_to(sys.prefix), grassia.__file__
    assert grassia.__version__ == version
    assert command("--version").stdout == f"grassia {version}\n"
    assert importlib.resources.files("grassia").joinpath("py.typed").is_file()
    assert not list(Path.cwd().iterdir()), "the folder must be empty"


def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((400, 6)) * np.r_[5.0, 4.0, 3.0, 1.0, 0.9, 0.8] + 1.0


def sine(vectors: np.ndarray, X: np.ndarray) -> float:
    """Of the largest angle to what a dense decomposition finds."""
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][: vectors.shape[1]].T
    return float(np.linalg.norm(vectors - V @ (V.T @ vectors), 2))


def on_the_command_line(X: np.ndarray) -> None:
    np.savetxt("table.csv", X, delimiter=",", header="a,b,c,d,e,f", comments="", fmt="%.17g")
    command("pca", "table.csv", "-k", "3", "--workers", "2", "-o", "model", "--report", "report.html")
    assert sine(np.load("model/components.npy").T, X) < 1e-6
    told = json.loads(Path("model/model.json").read_text(encoding="utf-8"))
    assert told["status"] == "CONVERGED"
    assert "CONVERGED" in Path("report.html").read_text(encoding="utf-8")
    command("check", "model", "table.csv")
    projected = command("project", "model", "1,2,3,4,5,6").stdout.splitlines()[-1].split(",")
    expected = (np.arange(1.0, 7.0) - X.mean(axis=0)) @ np.load("model/components.npy").T
    assert np.allclose([float(x) for x in projected[-3:]], expected, rtol=1e-4)
    assert "none.csv" in command("pca", "none.csv", "-o", "other", code=2).stderr


def in_python(X: np.ndarray) -> None:
    for backend in ("serial", "threads", "processes", "simulated"):
        parts = grassia.from_rows(X, n_components=3)
        result = grassia.eigenspace(parts, 3, solver="nystrom", backend=backend, rng=0)
        assert result.converged, backend
        assert sine(result.vectors, X) < 1e-6, backend
    pca = grassia.PCA(n_components=3, callbacks=grassia.report.Show()).fit(X)
    assert sine(pca.components_.T, X) < 1e-6


def what_is_missing_is_named() -> None:
    for package, extra, name in (("pyarrow", "parquet", "x.parquet"), ("h5py", "hdf5", "x.h5")):
        if importlib.util.find_spec(package) is None:
            Path(name).write_bytes(b"PAR1")
            assert f"grassia[{extra}]" in command("pca", name, "-o", "other", code=2).stderr


if __name__ == "__main__":
    where_it_is()
    X = rows()
    on_the_command_line(X)
    in_python(X)
    what_is_missing_is_named()
    print(f"grassia {grassia.__version__} works in {sys.version.split()[0]}")
