"""Dense rows in files of several formats: seconds and memory of opening, the first pass and a product.

Each format is read in an interpreter of its own, in four components one after the other. "grown" is by how
much the peak resident memory grew over that of the interpreter with its libraries; "again" is the mean of
three products with 10 vectors after the first pass. Linux only.

    python benchmarks/sources.py [--rows 500000] [--features 128] [--keep-mb 512] [--formats npy csv ...]

`--keep-mb` is the room for rows that are dear to decode; with 0 they are decoded in every pass.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FORMATS = {
    "npy": "x.npy",
    "hdf5": "x.h5",
    "hdf5, gzip": "y.h5",
    "zarr": "x.zarr",
    "parquet": "x.parquet",
    "parquet, one group": "y.parquet",
    "csv": "x.csv",
    "csv.gz": "x.csv.gz",
}


def write(path: Path, format: str, X: np.ndarray) -> None:
    m, d = X.shape
    if format == "npy":
        np.save(path, X)
    elif format.startswith("hdf5"):
        import h5py

        with h5py.File(path, "w") as file:
            chunks = (min(m, 8192), d)
            file.create_dataset("X", data=X, chunks=chunks, compression="gzip" if "gzip" in format else None)
    elif format == "zarr":
        import zarr

        zarr.create_array(str(path), data=X, chunks=(min(m, 32768), d))
    elif format.startswith("parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({f"x{j}": X[:, j] for j in range(d)})
        pq.write_table(table, path, row_group_size=m if "one" in format else 100_000)
    else:
        np.savetxt(path, X, "%.7g", ",")


def measure(path: Path, keep_mb: float) -> list[float]:
    import grassia
    from grassia.data import room

    if path.suffix in (".h5", ".zarr"):
        __import__({".h5": "h5py", ".zarr": "zarr"}[path.suffix])
    elif path.suffix != ".npy":
        import pyarrow.csv
        import pyarrow.parquet  # noqa: F401
    room.ROOM = room.Room(int(keep_mb * 1e6))
    before = peak()
    times = [time.perf_counter()]
    components = grassia.from_rows(path, 4)
    times.append(time.perf_counter())
    opened = [loader.open() for loader in components]
    for component in opened:
        component.moments()
    times.append(time.perf_counter())
    V = np.random.default_rng(0).standard_normal((components.n_features or 0, 10))
    for _ in range(3):
        for component in opened:
            component.apply(V)
    times.append(time.perf_counter())
    spans = np.diff(times) / (1, 1, 3)
    return [*spans.tolist(), peak() - before]


def peak() -> float:
    """Peak resident memory, in MB; that of `resource` would begin with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--keep-mb", type=float, default=512.0)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.keep_mb)))
        return
    X = np.random.default_rng(0).standard_normal((options.rows, options.features), dtype=np.float32)
    print(
        f"{options.rows} x {options.features}, float32, {X.nbytes / 1e6:.0f} MB; room {options.keep_mb:g} MB"
    )
    print(f"{'':20s}{'on disk':>10s}{'from_rows':>11s}{'first':>9s}{'again':>9s}{'grown':>10s}")
    with tempfile.TemporaryDirectory() as folder:
        for format in options.formats:
            path = Path(folder) / FORMATS[format]
            write(path, format, X)
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            size = sum(file.stat().st_size for file in files) / 1e6
            command = [sys.executable, __file__, "--measure", str(path), "--keep-mb", str(options.keep_mb)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            opening, first, again, grown = json.loads(found)
            figures = f"{size:7.0f} MB{opening:9.2f} s{first:7.2f} s{again:7.2f} s{grown:7.0f} MB"
            print(f"{format:20s}{figures}", flush=True)


if __name__ == "__main__":
    main()
