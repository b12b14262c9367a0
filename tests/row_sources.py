"""The same rows as text, Parquet, HDF5, Zarr, arrays and tables."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from problems import gaussian_rows

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

M, D, K = 240, 8, 3
NAMES = tuple(f"f{j}" for j in range(D))


def some_rows():
    return gaussian_rows(M, D, K, seed=11)


def frame(X):
    return pd.DataFrame(X, columns=NAMES)


def polars(X):
    return pl.DataFrame(X, schema=list(NAMES))


def arrow(X):
    return pa.table({name: X[:, j] for j, name in enumerate(NAMES)})


def folder(path, parts, write):
    path.mkdir()
    for i, part in enumerate(parts):
        write(part, path / f"part-{i}")
    return path


def csv(X, path):
    frame(X).to_csv(path, index=False)
    return path


def hdf5(X, path, name="X", **layout):
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=X, **layout)
    return path


def hdf5_among_others(X, path):
    with h5py.File(path, "w") as file:
        file["group/X"] = X
        file["group/Y"] = X[:, :2]
        file["labels"] = np.arange(len(X))
    return f"{path}::group/X"


def zarr_array(X, path, version=3, chunks=(32, 5)):
    array = zarr.create_array(str(path), shape=X.shape, dtype=X.dtype, chunks=chunks, zarr_format=version)
    array[:] = X
    return path


def zarr_zip(X, path):
    with zarr.storage.ZipStore(str(path), mode="w") as store:
        zarr.create_array(store, data=X, chunks=(50, D))
    return path


def zarr_group(X, path):
    group = zarr.open_group(str(path), mode="w")
    group.create_array("layers/X", data=X, chunks=(50, D))
    group.create_array("layers/Y", data=X[:, :2])
    return f"{path}::layers/X"


def parquet(X, path, **layout):
    pq.write_table(arrow(X), path, **layout)
    return path


def opened_dataset(X, path):
    hdf5(X, path, chunks=(60, D))
    return h5py.File(path, "r")["X"]


# Each takes the rows and a folder of its own, and returns what to give to from_rows.
FILES = {
    "npy": lambda X, p: np.save(p / "a.npy", X) or p / "a.npy",
    "folder of npy": lambda X, p: folder(p / "f", np.split(X, 3), lambda x, q: np.save(f"{q}.npy", x)),
    "csv": lambda X, p: csv(X, p / "a.csv"),
    "csv without a header": lambda X, p: np.savetxt(p / "a.csv", X, "%.17g", ",") or p / "a.csv",
    "csv with an index": lambda X, p: frame(X).to_csv(p / "i.csv") or p / "i.csv",
    "csv by polars": lambda X, p: polars(X).write_csv(p / "p.csv") or p / "p.csv",
    "csv, semicolons": lambda X, p: frame(X).to_csv(p / "s.csv", sep=";", index=False) or p / "s.csv",
    "csv.gz": lambda X, p: csv(X, p / "a.csv.gz"),
    "tsv": lambda X, p: frame(X).to_csv(p / "a.tsv", sep="\t", index=False) or p / "a.tsv",
    "csv files by a pattern": lambda X, p: (
        f"{folder(p / 'f', np.split(X, 4), lambda x, q: csv(x, f'{q}.csv'))}/part-*.csv"
    ),
    "parquet": lambda X, p: parquet(X, p / "a.parquet"),
    "parquet in row groups": lambda X, p: parquet(X, p / "g.parquet", row_group_size=60),
    "parquet by pandas": lambda X, p: (
        frame(X).set_index(np.arange(M) * 2).to_parquet(p / "q.pq") or p / "q.pq"
    ),
    "parquet by polars": lambda X, p: polars(X).write_parquet(p / "r.parquet") or p / "r.parquet",
    "folder of parquet": lambda X, p: folder(
        p / "f", np.split(X, 4), lambda x, q: parquet(x, f"{q}.parquet", row_group_size=17)
    ),
    "hdf5, chunked and compressed": lambda X, p: hdf5(X, p / "a.h5", chunks=(32, 3), compression="gzip"),
    "hdf5, contiguous": lambda X, p: hdf5(X, p / "c.hdf5", "deep/inside/X"),
    "hdf5, one of several": lambda X, p: hdf5_among_others(X, p / "m.h5"),
    "hdf5 dataset": lambda X, p: opened_dataset(X, p / "o.h5"),
    "zarr 3": lambda X, p: zarr_array(X, p / "a.zarr"),
    "zarr 2": lambda X, p: zarr_array(X, p / "b.zarr", 2),
    "zarr without the suffix": lambda X, p: zarr_array(X, p / "store"),
    "zarr, one of several": lambda X, p: zarr_group(X, p / "g.zarr"),
    "zarr zip": lambda X, p: zarr_zip(X, p / "z.zarr.zip"),
    "zarr array": lambda X, p: zarr.open(str(zarr_array(X, p / "o.zarr")), mode="r"),
}
OBJECTS = {
    "array": lambda X, p: X,
    "csr": lambda X, p: sp.csr_array(X),
    "csc matrix": lambda X, p: sp.csc_matrix(X),
    "pandas": lambda X, p: frame(X),
    "pandas, mixed": lambda X, p: frame(X).assign(f0=pd.array(X[:, 0], dtype="Float64")),
    "pandas, sparse": lambda X, p: frame(X).astype(pd.SparseDtype(float, 0.0)),
    "polars": lambda X, p: polars(X),
    "pyarrow table": lambda X, p: arrow(X),
    "pyarrow table in chunks": lambda X, p: pa.concat_tables([arrow(X[:100]), arrow(X[100:])]),
    "pyarrow record batch": lambda X, p: arrow(X).to_batches()[0],
}
SOURCES = FILES | OBJECTS
