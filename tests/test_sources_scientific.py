"""Rows in NPZ, AnnData, LIBSVM and PLINK files: the same answer as in memory, or a file named."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

import grassia
from grassia.backends import Processes
from grassia.data import formats, from_rows
from grassia.errors import InvalidComponent, InvalidInput, MissingExtra
from scientific_files import (
    FILES,
    SPARSE,
    D,
    K,
    M,
    gone_through,
    opened,
    oracle,
    plain,
    projection,
    some_genotypes,
)

anndata = pytest.importorskip("anndata")
da = pytest.importorskip("dask.array")


@pytest.fixture
def genotypes():
    return some_genotypes()


@pytest.fixture(params=FILES)
def file(request, tmp_path, genotypes):
    return request.param, FILES[request.param](tmp_path, genotypes)


@pytest.mark.parametrize("center", [True, False])
def test_the_eigenspace_of_a_file_is_that_of_the_array(file, genotypes, center):
    components = from_rows(file[1], 3, center=center)
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(genotypes, center=center), atol=1e-9)


def test_any_range_of_rows_of_a_file_is_that_of_the_array(file, genotypes):
    store = opened(file[1])
    assert store.shape == (M, D)
    assert store.sparse == (file[0] in SPARSE)
    assert store.stored == (np.count_nonzero(genotypes) if store.sparse else genotypes.size)
    rng = np.random.default_rng(0)
    for start, stop in [(0, M), (M - 1, M), (0, 1), *np.sort(rng.choice(M + 1, (20, 2)), axis=1)]:
        if start < stop:
            rows = store.read(int(start), int(stop))
            assert sp.issparse(rows) == store.sparse
            assert rows.dtype == store.dtype
            np.testing.assert_array_equal(plain(rows), genotypes[start:stop])
    store.close()


def test_an_opener_travels_and_says_what_it_opens(file, genotypes):
    opener = formats.open_path(str(file[1]), {})
    again = pickle.loads(pickle.dumps(opener))
    assert again == opener
    assert hash(again) == hash(opener)
    assert file[1].name in opener.name
    np.testing.assert_array_equal(plain(again.open().read(2, 5)), genotypes[2:5])
    lines = from_rows(file[1], 2).describe().splitlines()
    assert len(lines) == 4
    assert all(f"x {D}" in line and file[1].name in line and opener.kind in line for line in lines[1:3])


def test_shards_of_all_kinds_in_other_processes_are_pooled(tmp_path, genotypes, nothing_is_left):
    kinds = ["npz", "h5ad sparse", "libsvm", "bed"]
    pieces = np.array_split(genotypes, len(kinds) + 1)
    shards = []
    for kind, rows in zip(kinds, pieces, strict=False):
        (tmp_path / kind).mkdir()
        shards.append(FILES[kind](tmp_path / kind, rows))
    shards.append(da.from_array(pieces[-1].astype(float), chunks=(5, 4)))
    components = from_rows(shards)
    with contextlib.closing(Processes(workers=2)) as backend:
        result = grassia.eigenspace(components, K, backend=backend, tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(genotypes), atol=1e-9)


def damaged(path, how):
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[: len(content) * 2 // 3],
            "noise": rng.bytes(len(content)),
            "text": b"this file is a letter, not a matrix\n" * 20,
            "another": b"\x93NUMPY\x01\x00 something else altogether\n" * 3,
        }[how]
    )


@pytest.mark.parametrize("how", ["empty", "cut", "noise", "text", "another"])
def test_a_damaged_or_wrong_file_is_named(file, how):
    kind, path = file
    damaged(path, how)
    if (kind, how) == ("libsvm", "cut"):
        path.write_bytes(path.read_bytes().rpartition(b":")[0])  # whole lines less are a shorter file
    with pytest.raises(InvalidInput, match=path.name):
        gone_through(path)


@pytest.mark.parametrize("kind", [name for name in FILES if not name.startswith("h5ad")])
def test_one_wrong_byte_gives_rows_or_an_error_that_names_the_file(kind, tmp_path, genotypes):
    # Not for HDF5: a few of its bytes, when wrong, make the library itself hang or crash.
    path = FILES[kind](tmp_path, genotypes)
    content = path.read_bytes()
    rng = np.random.default_rng(2)
    refused = 0
    for _ in range(25):
        at = int(rng.integers(len(content)))
        path.write_bytes(content[:at] + bytes([content[at] ^ int(rng.integers(1, 256))]) + content[at + 1 :])
        try:
            gone_through(path)
        except InvalidInput as error:
            assert path.name in str(error)  # noqa: PT017
            refused += 1
    assert refused


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_not_there_is_named(kind, tmp_path, genotypes):
    path = FILES[kind](tmp_path, genotypes)
    loader = from_rows(path, 2)[0]
    path.unlink()
    with pytest.raises(InvalidComponent, match=path.name):
        loader.open()
    with pytest.raises(InvalidComponent, match=path.name):
        from_rows(path)


def test_a_file_that_changes_is_refused(file, genotypes):
    kind, path = file
    loader = from_rows(path)[0]
    FILES[kind](path.parent, np.concatenate([genotypes, genotypes]))
    with pytest.raises(InvalidComponent, match="must not change"):
        loader.open()


def test_options_a_format_does_not_have_are_refused(file):
    with pytest.raises(InvalidInput, match="rows_per_page"):
        from_rows(file[1], options={"rows_per_page": 3})


@pytest.mark.parametrize(
    ("kind", "package", "extra"), [("h5ad dense", "h5py", "anndata"), ("bed", "bed_reader", "plink")]
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    kind, package, extra, tmp_path, genotypes, monkeypatch
):
    path = FILES[kind](tmp_path, genotypes)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*grassia\[{extra}\]"):
        from_rows(path)


@pytest.mark.parametrize("write", ["npz", "npz stored", "h5ad sparse", "libsvm"])
def test_sparse_rows_are_never_filled_in(write, tmp_path):
    d = 3_000_000
    rng = np.random.default_rng(0)
    rows = sp.coo_array((np.ones(600), (rng.integers(0, 300, 600), rng.integers(0, d, 600))), shape=(300, d))
    rows = rows.tocsr().astype(np.float32)
    if write == "h5ad sparse":
        # The names of so many variables would take most of the time.
        anndata.AnnData(sp.csr_matrix((300, 1))).write_h5ad(tmp_path / "x.h5ad")
        import h5py

        with h5py.File(tmp_path / "x.h5ad", "a") as file:
            del file["X"]
            anndata.io.write_elem(file, "X", sp.csr_matrix(rows))
        path = tmp_path / "x.h5ad"
    elif write == "libsvm":
        rows.indptr, rows.indices = rows.indptr.astype(np.int32), rows.indices.astype(np.int32)
        dump_svmlight_file(rows, np.zeros(300), str(tmp_path / "x.svm"), zero_based=True)
        path = tmp_path / "x.svm"
    else:
        path = tmp_path / "x.npz"
        sp.save_npz(path, rows, compressed=write == "npz")
    options = {"n_features": d} if write == "libsvm" else None
    # 7 GB if it were filled in.
    trace = sum(loader.open().moments().trace for loader in from_rows(path, 2, False, options)) / 2
    assert trace == pytest.approx((rows.data.astype(float) ** 2).sum() / 300)


def test_folders_are_no_files(tmp_path):
    (tmp_path / "x.npz").mkdir()
    (tmp_path / "x.npz" / "y.npz").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"x\.npz"):
        gone_through(Path(tmp_path / "x.npz"))
