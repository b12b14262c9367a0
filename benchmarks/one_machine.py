"""PCA on one machine against every dense solver of scikit-learn: seconds, and the angle to the true space.

Both sides get the same float32 array, k and all cores; ours runs `solver="auto"` and certifies its answer,
all included. The tolerance is such that it is at least as near the true space as ARPACK's. Rows: CIFAR-10
images (5000 x 3072, from GRASSIA_DATA, or made rows of the same size), 20000 x 5000 and 60000 x 784 made
ones. Medians over repeats, methods taken in turn.

    python benchmarks/one_machine.py [--repeats 5] [--cases 5000x3072 20000x5000 60000x784]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA

import grassia
from grassia.geometry import projection_distance

KS = (10, 50)
CASES = ("5000x3072", "20000x5000", "60000x784")


def rows(case: str) -> tuple[np.ndarray, str]:
    """The rows of a case in float32, and what they are."""
    m, d = (int(size) for size in case.split("x"))
    file = Path(os.environ.get("GRASSIA_DATA", ".")) / "cifar10_train_5000.npz"
    if case == "5000x3072" and file.exists():
        with np.load(file) as data:
            return data["images"].astype(np.float32), "CIFAR-10"
    rng = np.random.default_rng(0)
    scales = (np.arange(1, d + 1) ** -0.7).astype(np.float32)
    mixed = rng.standard_normal((d, 64), dtype=np.float32)
    X = rng.standard_normal((m, d), dtype=np.float32) * scales
    X += 0.1 * (X[:, :64] @ mixed.T) / np.sqrt(np.float32(d))
    return X, "made rows"


def true_space(X: np.ndarray, k: int) -> np.ndarray:
    """The leading k-space of the covariance, from a dense eigenproblem in double precision."""
    mean = X.mean(axis=0, dtype=np.float64)
    gram = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), 2000):
        part = X[start : start + 2000].astype(np.float64) - mean
        gram += part.T @ part
    return np.linalg.eigh(gram)[1][:, ::-1][:, :k]


def methods(X: np.ndarray, k: int, tol: float) -> dict[str, Callable[[], tuple[np.ndarray, str]]]:
    def sklearn(name: str) -> Callable[[], tuple[np.ndarray, str]]:
        def run() -> tuple[np.ndarray, str]:
            return PCA(k, svd_solver=name, random_state=0).fit(X).components_.T, ""

        return run

    def ours(precision: str) -> Callable[[], tuple[np.ndarray, str]]:
        def run() -> tuple[np.ndarray, str]:
            result = grassia.eigenspace(grassia.from_rows(X), k, rng=0, tol=tol, precision=precision)
            assert result.certificate is not None
            return result.vectors, f"{result.stats['solver']}, {result.certificate.sin_theta}"

        return run

    compared = {f"sklearn {name}": sklearn(name) for name in ("arpack", "randomized", "covariance_eigh")}
    return {**compared, "grassia, float32": ours("float32"), "grassia, float64": ours("float64")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--tol", type=float, default=2e-5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for case in options.cases:
        X, what = rows(case)
        whole = true_space(X, max(KS))
        for k in KS:
            print(
                f"\n{case} ({what}, float32), k = {k}, medians of {options.repeats}; ratio to the best above"
            )
            table(methods(X, k, options.tol), whole[:, :k], options.repeats)


def table(compared: dict[str, Callable[[], tuple[np.ndarray, str]]], true: np.ndarray, repeats: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    found = {}
    for _ in range(repeats):
        for name, run in compared.items():
            time.sleep(0.2)  # threads of the one before may still be waiting busily
            begin = time.perf_counter()
            vectors, note = run()
            seconds[name].append(time.perf_counter() - begin)
            found[name] = (projection_distance(np.asarray(vectors, dtype=np.float64), true), note)
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    for name in compared:
        sine, note = found[name]
        # A solver that is less accurate than this one is no match for it.
        rivals = [
            middle[other]
            for other in compared
            if other.startswith("sklearn") and found[other][0] <= 1e3 * sine
        ]
        ratio = f"{middle[name] / min(rivals):5.2f}" if rivals and name.startswith("grassia") else "     "
        print(f"  {name:24s} {middle[name]:8.3f} s  {ratio}  sine {sine:.1e}  {note}", flush=True)


if __name__ == "__main__":
    main()
