"""Time and memory of going over rows that lie in files, format by format.

Each format is written once and read in an interpreter of its own, as one component: opening (with the pass
that counts the rows of text), the first pass (moments), and the mean of three products with 10 vectors after
it. "memory" is how much the peak resident size grew over that of the interpreter with its libraries;
"in memory" is the size of the same rows as an array or as CSR arrays.

    python benchmarks/stored_formats.py [--scale 1.0] [--keep-mb 512] [--formats npz h5ad ...]

Linux only. `--keep-mb` is the room for decoded rows; what it does not hold is decoded in every pass.
Formats: npz (compressed), npz-stored, h5ad (CSR, gzip), h5ad-dense, libsvm, libsvm-gz, bed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

FORMATS = ("npz", "npz-stored", "h5ad", "h5ad-dense", "libsvm", "libsvm-gz", "bed")
FEATURES = 20_000
NAMES = {"npz": "x.npz", "npz-stored": "y.npz", "h5ad": "x.h5ad", "h5ad-dense": "y.h5ad"}
NAMES |= {"libsvm": "x.svm", "libsvm-gz": "x.svm.gz", "bed": "x.bed"}


def write(folder: Path, format: str, scale: float) -> int:
    """Write the file; the bytes its rows take in memory."""
    rng = np.random.default_rng(0)
    path = folder / NAMES[format]
    if format in ("h5ad-dense", "bed"):
        m = int(5_000 * scale)
        X = rng.integers(0, 3, (m, FEATURES)).astype(np.int8)
        if format == "bed":
            from bed_reader import to_bed

            to_bed(path, X, num_threads=1)
            return X.nbytes
        import anndata

        anndata.AnnData(X.astype(np.float32)).write_h5ad(path)
        return 4 * X.nbytes
    m = int(300_000 * scale)
    rows = sp.random_array((m, FEATURES), density=1e-3, format="csr", rng=rng)
    rows = sp.csr_matrix(
        (rows.data.round(4), rows.indices.astype(np.int32), rows.indptr.astype(np.int32)), rows.shape
    )
    if format.startswith("npz"):
        sp.save_npz(path, rows, compressed=format == "npz")
    elif format == "h5ad":
        import anndata

        anndata.AnnData(rows).write_h5ad(path, compression="gzip")
    else:
        from sklearn.datasets import dump_svmlight_file

        plain = folder / "x.svm"
        dump_svmlight_file(rows, np.zeros(m), str(plain))
        if format == "libsvm-gz":
            with plain.open("rb") as source, gzip.open(path, "wb", 1) as target:
                shutil.copyfileobj(source, target)
            plain.unlink()
    return int(rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes)


def peak() -> float:
    """The largest resident size so far, in MB; getrusage's would begin with that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1.024e-3


def measure(path: Path, keep_mb: float) -> dict[str, float]:
    from sklearn.datasets import load_svmlight_file  # noqa: F401  (its memory is none of the rows')

    from grassia import from_rows
    from grassia.data import room

    if path.suffix == ".bed":
        import bed_reader  # noqa: F401
    room.ROOM = room.Room(int(keep_mb * 1e6))
    before = peak()
    begin = time.perf_counter()
    options = {"n_features": FEATURES} if "svm" in path.name else None
    (loader,) = from_rows(path, options=options)
    component = loader.open()
    opened = time.perf_counter()
    component.moments()
    first = time.perf_counter()
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((FEATURES, 10)))[0]
    for _ in range(3):
        component.apply(V)
    last = time.perf_counter()
    return {
        "open": opened - begin,
        "first": first - opened,
        "product": (last - first) / 3,
        "memory": peak() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--keep-mb", type=float, default=512 * 1.048576)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.keep_mb)))
        return
    columns = ("file MB", "in memory MB", "open s", "first pass s", "product s", "memory MB")
    print(f"{'format':<11}" + "".join(f"{column:>14}" for column in columns))
    for format in given.formats:
        with tempfile.TemporaryDirectory() as folder:
            size = write(Path(folder), format, given.scale)
            path = Path(folder) / NAMES[format]
            command = [sys.executable, __file__, "--measure", str(path), "--keep-mb", str(given.keep_mb)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            figures = [path.stat().st_size / 1e6, size / 1e6, *found.values()]
        print(f"{format:<11}" + "".join(f"{figure:>14.2f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
