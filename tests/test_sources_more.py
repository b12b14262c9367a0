"""Rows in sparse, annotated and genetic files, and in dask arrays: the same answer as in memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import pickle
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

import grassia
from grassia.backends import Processes
from grassia.data import formats, from_rows, room
from grassia.data.formats import decoding, libsvm
from grassia.errors import InvalidComponent, InvalidInput, MissingExtra

anndata = pytest.importorskip("anndata")
bed_reader = pytest.importorskip("bed_reader")
da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
bag = pytest.importorskip("dask.bag")

M, D, K = 61, 9, 2


@pytest.fixture
def genotypes():
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


@pytest.fixture(params=FILES)
def file(request, tmp_path, genotypes):
    return request.param, FILES[request.param](tmp_path, genotypes)


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


# ----------------------------------------------------------------------------------- all the files


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


# ------------------------------------------------------------------------------------------ npz


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("compress", [True, False])
def test_every_dtype_of_a_sparse_npz_is_kept(tmp_path, dtype, compress):
    X = (np.random.default_rng(0).random((12, 5)) < 0.5).astype(dtype)
    sp.save_npz(tmp_path / "x.npz", sp.csr_array(X), compressed=compress)
    store = opened(tmp_path / "x.npz")
    assert store.dtype == dtype
    np.testing.assert_array_equal(plain(store.read(3, 9)), X[3:9])


def test_repeated_entries_of_a_sparse_npz_add_up(tmp_path):
    rows = sp.csr_array((np.ones(3), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    sp.save_npz(tmp_path / "x.npz", rows)
    moments = from_rows(tmp_path / "x.npz", center=False)[0].open().moments()
    assert moments.trace == pytest.approx((2.0**2 + 1.0) / 2)


@pytest.mark.parametrize("column", [-1, 3, 2**30])
def test_a_column_index_out_of_range_is_refused_and_not_written_to(tmp_path, column):
    rows = sp.csr_array(np.eye(3))
    rows.indices[1] = column
    sp.save_npz(tmp_path / "x.npz", rows)
    with pytest.raises(InvalidComponent, match=r"x\.npz.*from 0 to 2"):
        gone_through(tmp_path / "x.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_of_several_dense_arrays_is_named(tmp_path, save):
    first, second = (
        np.arange(12.0).reshape(4, 3),
        np.asfortranarray(np.arange(8, dtype=np.int16).reshape(4, 2)),
    )
    save(tmp_path / "x.npz", first=first, second=second, labels=np.ones(4))
    path = f"{tmp_path}/x.npz"
    with pytest.raises(InvalidComponent, match=r"first \(4, 3\), second \(4, 2\).*file\.npz::name"):
        from_rows(path)
    with pytest.raises(InvalidComponent, match=r"'third'.*first"):
        from_rows(f"{path}::third")
    with pytest.raises(InvalidComponent, match=r"labels must hold a two-dimensional"):
        from_rows(f"{path}::labels")
    np.testing.assert_array_equal(opened(path, dataset="first").read(1, 4), first[1:4])
    np.testing.assert_array_equal(next(from_rows(f"{path}::second").blocks()), second)


def test_blocks_of_compressed_rows_are_decoded_as_they_are_needed(tmp_path, monkeypatch):
    from grassia.data.formats import npz

    monkeypatch.setattr(npz, "_BLOCK_ENTRIES", 20)
    X = np.random.default_rng(0).random((50, 4))
    np.savez_compressed(tmp_path / "dense.npz", X)
    sp.save_npz(tmp_path / "sparse.npz", sp.csr_array(X))
    for name in ("dense.npz", "sparse.npz"):
        store = opened(tmp_path / name)
        np.testing.assert_array_equal(plain(store.read(23, 31)), X[23:31])
        assert store.costly  # so that components keep rows
        for start in (40, 7, 0, 33):
            np.testing.assert_array_equal(plain(store.read(start, start + 9)), X[start : start + 9])


def test_a_pickle_in_an_npz_is_not_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", format=np.array([{}]), shape=np.array([2, 2]), data=np.array([{}]))
    with pytest.raises(InvalidComponent, match=r"x\.npz"):
        from_rows(tmp_path / "x.npz")


# ----------------------------------------------------------------------------------- decoded blocks


def counted(X, calls):
    def decode(i):
        calls.append(i)
        return X[5 * i : 5 * i + 5]

    return decode


def in_passes(blocks, X, step, passes=2):
    for _ in range(passes):
        for start in range(0, len(X), step):
            stop = min(start + step, len(X))
            np.testing.assert_array_equal(blocks.read(start, stop), X[start:stop])


def test_a_block_is_decoded_once_a_pass_however_it_is_cut():
    X = np.arange(100.0).reshape(50, 2)
    for step in (1, 4, 5, 7, 50):
        calls = []
        in_passes(decoding.DecodedBlocks(range(0, 51, 5), counted(X, calls)), X, step)
        assert calls == [*range(10), *range(10)]


def test_blocks_are_kept_within_the_room_of_the_process_and_give_it_back(monkeypatch):
    monkeypatch.setattr(room, "ROOM", room.Room(3 * 80))
    X = np.arange(100.0).reshape(50, 2)
    calls = []
    first = decoding.DecodedBlocks(range(0, 51, 5), counted(X, calls), keep=True)
    in_passes(first, X, 4)
    assert calls == [*range(10), *range(3, 10)]
    calls.clear()
    second = decoding.DecodedBlocks(range(0, 51, 5), counted(X, calls), keep=True)
    in_passes(second, X, 4)
    assert calls == [*range(10), *range(10)]
    assert not room.ROOM.take(1)
    del first
    assert room.ROOM.take(3 * 80)


# ------------------------------------------------------------------------------------------ AnnData


@pytest.fixture
def cells(genotypes):
    X = genotypes.astype(np.float32)
    cells = anndata.AnnData(sp.csr_matrix(X))
    cells.var_names = [f"gene{j}" for j in range(D)]
    cells.layers["twice"] = 2 * X
    cells.layers["columns"] = sp.csc_matrix(X)
    cells.obsm["X_first"] = X[:, :2]
    cells.raw = cells.copy()
    return cells


def test_layers_and_other_matrices_are_named_by_a_fragment_or_an_option(cells, tmp_path, genotypes):
    path = tmp_path / "cells.h5ad"
    cells.write_h5ad(path)
    for source, options, expected in [
        (f"{path}::layers/twice", None, 2 * genotypes),
        (path, {"layer": "twice"}, 2 * genotypes),
        (path, {"dataset": "raw/X"}, genotypes),
        (f"{path}::obsm/X_first", None, genotypes[:, :2]),
        (path, None, genotypes),
    ]:
        components = from_rows(source, 2, options=options)
        np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), expected)
        names = None if expected.shape[1] == 2 else tuple(cells.var_names)
        assert components.feature_names == names


def test_matrices_that_cannot_be_read_by_rows_are_refused_with_what_there_is(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    path = f"{tmp_path}/cells.h5ad"
    with pytest.raises(InvalidComponent, match="CSC"):
        from_rows(path + "::layers/columns")
    with pytest.raises(InvalidComponent, match=r"cells\.h5ad must have layers/counts.*layers/twice"):
        from_rows(path, options={"layer": "counts"})
    with pytest.raises(InvalidComponent, match=r"must be a matrix.*layers/twice"):
        from_rows(path + "::obs")
    with pytest.raises(InvalidInput, match="not both"):
        from_rows(path, options={"layer": "twice", "dataset": "X"})


def test_an_anndata_object_stands_for_its_rows_in_memory_or_in_its_file(cells, tmp_path, genotypes):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    try:
        for source, options, expected in [
            (cells, None, genotypes),
            (cells, {"layer": "twice"}, 2 * genotypes),
            (cells[10:30, :4], None, genotypes[10:30, :4]),
            (backed, None, genotypes),
        ]:
            components = from_rows(source, 2, options=options)
            np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), expected)
            assert components.feature_names == tuple(cells.var_names[: expected.shape[1]])
        # It travels as a path, not as its numbers.
        assert b"cells.h5ad" in cloudpickle.dumps(from_rows(backed)[0])
        with pytest.raises(InvalidComponent, match="to_memory"):
            from_rows(backed[:5])
    finally:
        backed.file.close()
    with pytest.raises(InvalidInput, match="twice"):
        from_rows(cells, options={"layer": "counts"})
    with pytest.raises(InvalidComponent, match="must have X"):
        from_rows(anndata.AnnData(shape=(3, 2)))


def test_a_file_of_the_first_anndata_format_is_read(tmp_path, genotypes):
    import h5py

    X = sp.csr_matrix(genotypes.astype(np.float32))
    with h5py.File(tmp_path / "old.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["h5sparse_format"] = b"csr"
        group.attrs["h5sparse_shape"] = X.shape
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(X, part)
        file["var"] = np.array([(f"g{j}".encode(),) for j in range(D)], dtype=[("index", "S8")])
    components = from_rows(tmp_path / "old.h5ad")
    np.testing.assert_array_equal(plain(next(components.blocks())), genotypes)
    assert components.feature_names == tuple(f"g{j}" for j in range(D))


# ------------------------------------------------------------------------------------------ LIBSVM

ODD = b"""# a comment before all
1,2 1:0.5\t3:-2e-3   # two labels, a tab

-1
3 qid:7 2:1 4:1
+1 2:4\r
"""
ODD_ROWS = np.array([[0.5, 0, -2e-3, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 4, 0, 0]])


def test_comments_blank_lines_tabs_query_ids_and_several_labels_are_understood(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(ODD)
    np.testing.assert_array_equal(plain(opened(path).read(0, 4)), ODD_ROWS)
    assert libsvm.labels(str(path)) == [(1.0, 2.0), (-1.0,), (3.0,), (1.0,)]
    assert opened(path).stored == np.count_nonzero(ODD_ROWS)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_fast_parser_gives_what_scikit_learn_gives_or_nothing(data):
    odd = [
        "3:1e400",
        "1:nan",
        "2:",
        ":4",
        "5",
        "1:2:3",
        "+4:1",
        "2:.5",
        "3:1.",
        "7:-0",
        "x:1",
        "0x1:2",
        "1:0x2",
    ]
    entries = st.dictionaries(st.integers(0, 12), st.floats(-1e3, 1e3), max_size=4)
    usual = st.builds(lambda found: [f"{i}:{found[i]}" for i in sorted(found)], entries)
    either = st.one_of(usual, usual, usual, st.lists(st.sampled_from(["4:1", "9:2", *odd]), max_size=3))
    label = st.sampled_from(["1", "-1.5", "+2", "1e3", "1", "-1", "0", "x"])
    gap = st.sampled_from([" ", "  "])
    lines = data.draw(st.lists(st.tuples(label, either, gap), min_size=1, max_size=3))
    text = "".join(gap.join([label, *words]) + gap[1:] + "\n" for label, words, gap in lines).encode()
    opener = libsvm.LibsvmOpener("x.svm", (len(lines), 13), 0, True, False, (0,), (0,))
    store = object.__new__(libsvm.LibsvmStore)
    store._opener = opener
    try:
        rows, labels = store._parsed(text)
    except ValueError:
        rows = None
    try:
        fast = store._parsed_fast(text)
    except ValueError:
        fast = None
    if fast is None:
        event("left to scikit-learn")
        return
    assert rows is not None
    np.testing.assert_array_equal(fast[0].toarray(), rows.toarray())
    np.testing.assert_array_equal(fast[1], labels)
    event("fast")


def test_labels_are_kept_available(tmp_path, genotypes):
    path = write_libsvm(tmp_path, genotypes)
    np.testing.assert_array_equal(libsvm.labels(str(path)), np.arange(M))


@pytest.mark.parametrize("most", [4, 5, 4096])
def test_a_worker_goes_straight_to_its_rows(tmp_path, genotypes, monkeypatch, most):
    monkeypatch.setattr(libsvm, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(libsvm, "_MOST_BLOCKS", most)
    opener = libsvm.open_path(str(write_libsvm(tmp_path, genotypes)))
    assert 2 <= len(opener.marks) - 1 <= most
    store = opener.open()
    passed = []
    seek = store._file.seek

    class Watched:
        def seek(self, offset):
            passed.append(offset)
            return seek(offset)

        def __getattr__(self, name):
            return getattr(store_file, name)

    store_file = store._file
    store._file = Watched()
    np.testing.assert_array_equal(plain(store.read(M - 3, M)), genotypes[-3:])
    assert min(passed) > 0  # what comes before is not even read
    np.testing.assert_array_equal(plain(store.read(0, M)), genotypes)


def test_the_number_of_features_is_found_or_told(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1 2:1\n1 2:3\n")
    (tmp_path / "b.svm").write_text("1 1:1 5:1\n0 3:2\n")
    assert from_rows(tmp_path / "a.svm").n_features == 2
    with pytest.raises(InvalidInput, match="same number of features"):
        from_rows(tmp_path / "*.svm")
    both = from_rows(tmp_path / "*.svm", options={"n_features": 6})
    assert [block.shape for block in both.blocks()] == [(2, 6), (2, 6)]
    with pytest.raises(InvalidInput, match="at least 5"):
        from_rows(tmp_path / "b.svm", options={"n_features": 4})


def test_indices_from_zero_are_recognised_or_told(tmp_path):
    (tmp_path / "a.svm").write_text("1 0:1 2:1\n")
    (tmp_path / "b.svm").write_text("1 1:1 2:1\n")
    assert plain(opened(tmp_path / "a.svm").read(0, 1)).tolist() == [[1, 0, 1]]
    assert plain(opened(tmp_path / "b.svm").read(0, 1)).tolist() == [[1, 1]]
    assert plain(opened(tmp_path / "b.svm", zero_based=True).read(0, 1)).tolist() == [[0, 1, 1]]
    with pytest.raises(InvalidInput, match="zero_based"):
        from_rows(tmp_path / "a.svm", options={"zero_based": False})
    with pytest.raises(InvalidInput, match="yes"):
        from_rows(tmp_path / "a.svm", options={"zero_based": "yes"})


@pytest.mark.parametrize(
    "line",
    [
        "1 1:x",
        "1 a:1",
        "1 2:1 1:1",
        "1 1:1 1:2",
        "1 1:1 2",
        "1.0 2.0 3.0",
        "1:1 2:1",
        "1 -3:1 2:1",
        "one 1:1",
        "1 1: 2:1",
        "1 1:1 99999999999:1",
        "1 1:1\r1 2:1",
    ],
)
def test_the_row_at_fault_is_shown(tmp_path, line):
    (tmp_path / "x.svm").write_text(f"1 1:1 4:1\n0 2:1\n{line}\n1 3:1\n")
    with pytest.raises(InvalidInput, match=r"x\.svm") as caught:
        gone_through(tmp_path / "x.svm")
    assert "row 2" in str(caught.value) or "indices" in str(caught.value)


def test_text_without_any_entry_is_refused(tmp_path):
    (tmp_path / "x.svm").write_text("1\n2\n")
    with pytest.raises(InvalidInput, match=r"x\.svm.*n_features"):
        from_rows(tmp_path / "x.svm")
    (tmp_path / "table.svm").write_text("1,2,3\n4,5,6\n")
    with pytest.raises(InvalidInput, match=r"table\.svm.*\.csv"):
        from_rows(tmp_path / "table.svm")
    assert from_rows(tmp_path / "x.svm", options={"n_features": 3}).n_features == 3
    (tmp_path / "x.svm").write_text("# nothing\n\n")
    with pytest.raises(InvalidInput, match=r"x\.svm.*at least one row"):
        from_rows(tmp_path / "x.svm")


def test_a_note_in_a_folder_of_data_is_not_taken_for_data(tmp_path, genotypes):
    write_libsvm(tmp_path, genotypes)
    (tmp_path / "README.txt").write_text("What these files are.\n")
    assert from_rows(tmp_path).n_features == D


# ------------------------------------------------------------------------------------------- PLINK


def with_missing(genotypes):
    X = genotypes.astype(float)
    X[3, 1] = X[7, 1] = X[60, 8] = np.nan
    return X


def test_missing_genotypes_are_refused_by_name_unless_the_mean_is_asked_for(tmp_path, genotypes):
    X = with_missing(genotypes)
    names = {"iid": [f"person{i}" for i in range(M)], "sid": [f"rs{j}" for j in range(D)]}
    bed_reader.to_bed(tmp_path / "x.bed", X, properties=names, num_threads=1)
    with pytest.raises(InvalidComponent, match=r"sample 3 \(person3\) at variant 1 \(rs1\) in .*x\.bed"):
        gone_through(tmp_path / "x.bed")
    # The remedy must be one that an estimator, which takes no options of a file, can be given.
    with pytest.raises(InvalidComponent, match=r"from_rows\(path, options=\{'missing': 'mean'\}\)"):
        grassia.PCA(K).fit(tmp_path / "x.bed")
    grassia.PCA(K).fit(from_rows(tmp_path / "x.bed", options={"missing": "mean"}))
    components = from_rows(tmp_path / "x.bed", 3, options={"missing": "mean"})
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    np.testing.assert_allclose(np.concatenate(list(components.blocks())), filled, rtol=1e-15)
    assert components.feature_names == tuple(names["sid"])
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(filled), atol=1e-9)
    with pytest.raises(InvalidInput, match="median"):
        from_rows(tmp_path / "x.bed", options={"missing": "median"})


def test_a_variant_without_any_genotype_is_no_obstacle(tmp_path, genotypes):
    X = genotypes.astype(float)
    X[:, 4] = np.nan
    bed_reader.to_bed(tmp_path / "x.bed", X, num_threads=1)
    rows = next(from_rows(tmp_path / "x.bed", options={"missing": "mean"}).blocks())
    np.testing.assert_array_equal(rows, np.where(np.isnan(X), 0.0, X))


@pytest.mark.parametrize("major", ["SNP", "individual"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (5, 3), (7, 9)])
def test_files_by_variant_and_by_sample_of_any_size_are_read(tmp_path, major, shape, monkeypatch):
    from grassia.data.formats import plink

    monkeypatch.setattr(plink, "_BLOCK_BYTES", 10)
    X = np.random.default_rng(0).integers(0, 3, shape).astype(np.int8)
    bed_reader.to_bed(tmp_path / "x.bed", X, major=major, num_threads=1)
    np.testing.assert_array_equal(opened(tmp_path / "x.bed").read(0, shape[0]), X)
    np.testing.assert_array_equal(opened(tmp_path / "x.bed", count_A1=False).read(0, shape[0]), 2 - X)
    np.testing.assert_allclose(opened(tmp_path / "x.bed").means(), X.mean(axis=0))


def test_files_that_do_not_belong_to_the_bed_file_are_named(tmp_path, genotypes):
    path = write_bed(tmp_path, genotypes)
    fam = path.with_suffix(".fam")
    lines = fam.read_text().splitlines(keepends=True)
    fam.write_text("".join(lines[:-9]))
    with pytest.raises(InvalidComponent, match=r"x\.bed must have \d+ bytes for the 52 samples"):
        from_rows(path)
    fam.unlink()
    with pytest.raises(InvalidComponent, match=r"there is no .*x\.fam"):
        from_rows(path)


def test_a_bed_file_of_genomic_intervals_is_told_apart(tmp_path):
    (tmp_path / "genes.bed").write_text("chr1\t100\t200\tgene1\n")
    with pytest.raises(InvalidComponent, match=r"genes\.bed.*genomic intervals"):
        from_rows(tmp_path / "genes.bed")


# -------------------------------------------------------------------------------------------- dask


def test_the_row_chunks_of_a_dask_array_are_its_components(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=((20, 1, 40), (4, 5))) * 2.0 + 1.0
    components = from_rows(x)
    assert [block.shape[0] for block in components.blocks()] == [20, 1, 40]
    for n in (1, 2, 3, 8):
        result = grassia.eigenspace(from_rows(x, n), K, backend="serial", tol=1e-10, rng=0)
        np.testing.assert_allclose(projection(result.vectors), oracle(genotypes), atol=1e-9)


def test_a_component_of_a_dask_array_carries_its_own_numbers_alone():
    x = da.from_array(np.random.default_rng(0).random((4000, 50)), chunks=(1000, 50))
    whole = x.nbytes
    for loader in from_rows(x, 4):
        assert len(cloudpickle.dumps(loader)) < whole / 4 + 20_000
    lazy = da.random.default_rng(0).random((4000, 50), chunks=(1000, 50))
    assert all(len(cloudpickle.dumps(loader)) < 20_000 for loader in from_rows(lazy, 4))


def test_sparse_chunks_of_a_dask_array_stay_sparse(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=(17, D)).map_blocks(sp.csr_matrix)
    components = from_rows(x)
    assert all(sp.issparse(block) for block in components.blocks())
    np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), genotypes)


def failing(block):
    if block.shape[0] == 1:
        raise RuntimeError("no more pears")
    return block


def test_what_dask_cannot_compute_is_named(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=((20, 1, 40), D))
    with pytest.raises(InvalidComponent, match=r"chunk 1 of the dask array.*RuntimeError: no more pears"):
        gone_through(x.map_blocks(failing, meta=np.empty((0, 0))))
    with pytest.raises(InvalidComponent, match="compute_chunk_sizes"):
        from_rows(x[x[:, 0] > 0])
    with pytest.raises(InvalidComponent, match="two-dimensional"):
        from_rows(x[:, 0])
    with pytest.raises(InvalidComponent, match="meta"):
        gone_through(x.map_blocks(sp.csr_matrix, meta=np.empty((0, 0))))
    with pytest.raises(InvalidComponent, match="masked"):
        gone_through(da.ma.masked_equal(x, 1.0))
    with pytest.raises(InvalidComponent, match="real"):
        from_rows(x + 1j)
    with pytest.raises(InvalidComponent, match="must be an array"):
        from_rows(bag.from_sequence([1, 2]))


def test_a_delayed_object_is_a_shard_of_its_own(genotypes):
    parts = [dask.delayed(kind)(genotypes[a:b]) for kind, a, b in [(np.array, 0, 20), (sp.csr_array, 20, 61)]]
    components = from_rows(parts)
    assert components.describe().count("rows from delayed") == 2
    np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), genotypes)
    result = grassia.eigenspace(components, K, backend="processes", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(genotypes), atol=1e-9)


def test_the_rows_of_an_anndata_object_may_be_a_dask_array(genotypes):
    cells = anndata.AnnData(da.from_array(genotypes.astype(np.float32), chunks=(30, D)))
    assert [block.shape[0] for block in from_rows(cells).blocks()] == [30, 30, 1]


def test_folders_are_no_files(tmp_path):
    (tmp_path / "x.npz").mkdir()
    (tmp_path / "x.npz" / "y.npz").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"x\.npz"):
        gone_through(Path(tmp_path / "x.npz"))
