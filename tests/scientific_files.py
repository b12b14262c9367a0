"""The same genotypes in sparse, annotated and genetic files: NPZ, AnnData, LIBSVM, PLINK."""

from __future__ import annotations

import bz2
import gzip
import lzma

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from grassia.data import formats, from_rows

anndata = pytest.importorskip("anndata")
bed_reader = pytest.importorskip("bed_reader")

M, D, K = 61, 9, 2


def some_genotypes():
    """Counts 0, 1, 2 with two strong directions: every format here can hold them."""
    rng = np.random.default_rng(5)
    groups = rng.integers(0, 3, M)
    frequencies = np.array([[0.1] * 9, [0.8] * 5 + [0.1] * 4, [0.1] * 5 + [0.7] * 4])
    return rng.binomial(2, frequencies[groups]).astype(np.int8)


def write_npz(folder, X):
    sp.save_npz(folder / "x.npz", sp.csr_array(X.astype(float)))
    return folder / "x.npz"


def write_plain_npz(folder, X):
    sp.save_npz(folder / "y.npz", sp.csr_matrix(X.astype(np.float32)), compressed=False)
    return folder / "y.npz"


def write_csc_npz(folder, X):
    sp.save_npz(folder / "z.npz", sp.csc_array(X))
    return folder / "z.npz"


def write_h5ad(folder, X):
    anndata.AnnData(X.astype(np.float32)).write_h5ad(folder / "dense.h5ad")
    return folder / "dense.h5ad"


def write_packed_h5ad(folder, X):
    anndata.AnnData(X.astype(np.float32)).write_h5ad(folder / "packed.h5ad", compression="gzip")
    return folder / "packed.h5ad"


def write_plain_h5ad(folder, X):
    anndata.AnnData(sp.csr_matrix(X.astype(np.int64))).write_h5ad(folder / "plain.h5ad")
    return folder / "plain.h5ad"


def write_sparse_h5ad(folder, X):
    anndata.AnnData(sp.csr_matrix(X.astype(np.float32))).write_h5ad(folder / "x.h5ad", compression="gzip")
    return folder / "x.h5ad"


def write_libsvm(folder, X):
    dump_svmlight_file(X.astype(float), np.arange(len(X)), str(folder / "x.svm"))
    return folder / "x.svm"


def compressed(compress, suffix):
    def write(folder, X):
        path = write_libsvm(folder, X)
        packed = path.with_name(path.name + suffix)
        packed.write_bytes(compress(path.read_bytes()))
        return packed

    return write


def write_bed(folder, X):
    names = {"sid": [str(j) for j in range(X.shape[1])]}  # anndata's own names
    bed_reader.to_bed(folder / "x.bed", X, properties=names, num_threads=1)
    return folder / "x.bed"


def write_dense_npz(folder, X):
    np.savez(folder / "dense.npz", X=X, labels=np.arange(len(X)))
    return folder / "dense.npz"


def write_packed_npz(folder, X):
    np.savez_compressed(folder / "packed.npz", X.astype(float))
    return folder / "packed.npz"


FILES = {
    "npz": write_npz,
    "npz dense": write_dense_npz,
    "npz packed": write_packed_npz,
    "npz stored": write_plain_npz,
    "npz by columns": write_csc_npz,
    "h5ad dense": write_h5ad,
    "h5ad dense packed": write_packed_h5ad,
    "h5ad sparse": write_plain_h5ad,
    "h5ad sparse packed": write_sparse_h5ad,
    "libsvm": write_libsvm,
    "libsvm gz": compressed(gzip.compress, ".gz"),
    "libsvm bz2": compressed(bz2.compress, ".bz2"),
    "libsvm xz": compressed(lzma.compress, ".xz"),
    "bed": write_bed,
}
SPARSE = set(FILES) - {"npz dense", "npz packed", "h5ad dense", "h5ad dense packed", "bed"}


def plain(rows):
    return rows.toarray() if sp.issparse(rows) else np.asarray(rows)


def projection(vectors):
    return vectors @ vectors.T


def oracle(X, k=K, center=True):
    Y = X - X.mean(axis=0) if center else X.astype(float)
    return projection(np.linalg.svd(Y, full_matrices=False)[2][:k].T)


def opened(path, **options):
    return formats.open_path(str(path), options).open()


def gone_through(source, **options):
    """All that a run does with a source before its first product; each row is read."""
    for loader in from_rows(source, options=options or None):
        loader.open().moments()
