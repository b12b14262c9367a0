"""Rows at addresses: read where they lie, or copied to this machine within a limit."""

from __future__ import annotations

import os
import sys
import time
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

import grassia
from grassia.data import formats, from_rows
from grassia.data.formats import copies as copying
from grassia.errors import InvalidComponent, InvalidInput, MissingExtra

fsspec = pytest.importorskip("fsspec")

K = 2


@pytest.fixture
def X():
    rng = np.random.default_rng(8)
    scores = rng.standard_normal((50, K)) * [5.0, 3.0]
    return np.round(np.abs(scores @ rng.standard_normal((K, 6)) + 0.3 * rng.standard_normal((50, 6))), 3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(copying.CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def bucket(cache):
    fs = fsspec.filesystem("memory")
    yield "memory://bucket"
    if fs.exists("/bucket"):
        fs.rm("/bucket", recursive=True)


def save_npy(path, X):
    np.save(path, X)


def save_npy_by_columns(path, X):
    np.save(path, np.asfortranarray(X))


def save_npz(path, X):
    sp.save_npz(path, sp.csr_array(X))


def save_stored_npz(path, X):
    sp.save_npz(path, sp.csr_array(X), compressed=False)


def save_libsvm(path, X):
    dump_svmlight_file(X, np.zeros(len(X)), str(path))


def save_h5(path, X):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["group/X"] = X


def save_h5ad(path, X):
    pytest.importorskip("anndata").AnnData(X).write_h5ad(path)


def save_parquet(path, X):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas").DataFrame(X, columns=list("abcdef")).to_parquet(path)


def save_csv(path, X):
    pytest.importorskip("pandas").DataFrame(X, columns=list("abcdef")).to_csv(path, index=False)


IN_PLACE = {
    "x.npy": save_npy,
    "x.npz": save_npz,
    "stored.npz": save_stored_npz,
    "x.svm": save_libsvm,
    "x.csv": save_csv,
    "x.parquet": save_parquet,
}
COPIED = {
    "columns.npy": save_npy_by_columns,
    "x.h5": save_h5,
    "x.h5ad": save_h5ad,
}


def upload(bucket, folder, name, save, X):
    save(folder / name, X)
    address = f"{bucket}/{name}"
    with fsspec.open(address, "wb") as file:
        file.write((folder / name).read_bytes())
    return address


def projection(vectors):
    return vectors @ vectors.T


def oracle(X):
    return projection(np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:K].T)


def gone_through(source):
    for loader in from_rows(source):
        loader.open().moments()


def copies(cache):
    return [file for file in cache.rglob("*") if file.is_file()] if cache.exists() else []


@pytest.mark.parametrize("name", [*IN_PLACE, *COPIED])
def test_the_eigenspace_of_what_is_at_an_address_is_that_of_the_array(name, bucket, tmp_path, X, cache):
    address = upload(bucket, tmp_path, name, {**IN_PLACE, **COPIED}[name], X)
    components = from_rows(address, 3)
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(X), atol=1e-8)
    assert len(copies(cache)) == (name in COPIED)
    assert ("copied to this machine" in components.describe()) == (name in COPIED)
    assert f"bucket/{name}" in components.describe()


@pytest.mark.parametrize("name", ["x.npy", "stored.npz", "x.svm"])
def test_a_range_of_rows_is_read_without_the_rest(name, bucket, tmp_path, X):
    big = np.tile(X, (4000, 1)) if name != "x.svm" else np.tile(X, (1000, 1))
    address = upload(bucket, tmp_path, name, IN_PLACE[name], big)
    store = formats.open_path(address, {}).open()
    read = []
    file = store._file if name != "stored.npz" else store._data._stream

    class Counting:
        def read(self, size=-1):
            content = file.read(size)
            read.append(len(content))
            return content

        def __getattr__(self, attribute):
            return getattr(file, attribute)

    if name == "stored.npz":
        store._data._stream = store._indices._stream = Counting()
    else:
        store._file = Counting()
    rows = store.read(len(big) - 7, len(big))
    np.testing.assert_allclose(rows.toarray() if sp.issparse(rows) else rows, big[-7:])
    assert sum(read) < (tmp_path / name).stat().st_size / 4


def test_an_address_of_this_machine_is_a_path(tmp_path, X):
    save_npy(tmp_path / "x.npy", X)
    save_npz(tmp_path / "x.npz", X)
    for name in ("x.npy", "x.npz"):
        assert (
            from_rows(f"file://{tmp_path}/{name}", 2).describe() == from_rows(tmp_path / name, 2).describe()
        )
    assert len(from_rows(f"file://{tmp_path}/*.npy")) == 1


def test_a_pattern_stands_for_all_the_files_it_matches(bucket, tmp_path, X):
    for i, rows in enumerate(np.array_split(X, 3)):
        upload(bucket, tmp_path, f"part{i}.npy", save_npy, rows)
    components = from_rows(f"{bucket}/part*.npy")
    assert len(components) == 3
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
    with pytest.raises(InvalidComponent, match=r"other\*\.npy matches none"):
        from_rows(f"{bucket}/other*.npy")


def test_a_folder_stands_for_its_files(bucket, tmp_path, X):
    (tmp_path / "table.parquet").mkdir()
    for i, rows in enumerate(np.array_split(X, 3)):
        upload(f"{bucket}/table.parquet", tmp_path / "table.parquet", f"part{i}.parquet", save_parquet, rows)
    for note in ("_SUCCESS", ".part0.parquet.crc", "README.txt", "notes.md"):
        fsspec.filesystem("memory").pipe(f"/bucket/table.parquet/{note}", b"of no account")
    for address in (f"{bucket}/table.parquet", f"{bucket}/table.parquet/"):
        components = from_rows(address)
        assert len(components) == 3
        np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
    upload(bucket, tmp_path, "x.npy", save_npy, X)
    with pytest.raises(InvalidComponent, match=r"one format.*x\.npy"):
        from_rows(bucket)
    fsspec.filesystem("memory").pipe("/bucket/empty/notes.md", b"")
    with pytest.raises(InvalidComponent, match="holds none"):
        from_rows(f"{bucket}/empty")


def test_a_remote_zarr_store_is_copied_whole(bucket, tmp_path, X, cache):
    zarr = pytest.importorskip("zarr")
    zarr.save(str(tmp_path / "x.zarr"), X)
    fsspec.filesystem("memory").put(str(tmp_path / "x.zarr"), "/bucket/x.zarr", recursive=True)
    components = from_rows(f"{bucket}/x.zarr", 2)
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
    assert len(copies(cache)) == len([file for file in (tmp_path / "x.zarr").rglob("*") if file.is_file()])


def test_a_fragment_names_a_part_of_a_remote_file(bucket, tmp_path, X):
    address = upload(bucket, tmp_path, "x.h5", save_h5, X)
    np.testing.assert_array_equal(next(from_rows(f"{address}::group/X").blocks()), X)
    with pytest.raises(InvalidComponent, match="group/Y"):
        from_rows(f"{address}::group/Y")


def test_a_file_in_an_archive_is_reached_by_a_chain(tmp_path, X):
    save_npy(tmp_path / "x.npy", X)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "x.npy", "inside/x.npy")
    components = from_rows(f"zip://inside/x.npy::file://{tmp_path}/all.zip", 2)
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)


def test_the_three_files_of_plink_come_together(bucket, tmp_path):
    bed_reader = pytest.importorskip("bed_reader")
    genotypes = np.random.default_rng(0).integers(0, 3, (11, 5)).astype(np.int8)
    bed_reader.to_bed(tmp_path / "x.bed", genotypes, num_threads=1)
    fs = fsspec.filesystem("memory")
    for suffix in ("bed", "bim", "fam"):
        fs.pipe(f"/bucket/x.{suffix}", (tmp_path / f"x.{suffix}").read_bytes())
    np.testing.assert_array_equal(next(from_rows(f"{bucket}/x.bed").blocks()), genotypes)


def test_a_copy_is_made_once_and_anew_when_the_file_changes(bucket, tmp_path, X, cache):
    address = upload(bucket, tmp_path, "x.h5", save_h5, X)
    from_rows(address, 2)
    (first,) = copies(cache)
    written = first.stat().st_mtime_ns
    from_rows(address, 2)
    assert [file.stat().st_mtime_ns for file in copies(cache)] == [written]
    upload(bucket, tmp_path, "x.h5", save_h5, 2 * X)
    np.testing.assert_array_equal(next(from_rows(address).blocks()), 2 * X)


def test_copies_take_no_more_than_their_limit(bucket, tmp_path, X, cache):
    size = 0
    for i in range(4):
        address = upload(bucket, tmp_path, f"x{i}.h5", save_h5, X + i)
        size = (tmp_path / f"x{i}.h5").stat().st_size
        with pytest.raises(InvalidComponent, match=rf"x{i}\.h5.*cache_limit"):
            from_rows(address, options={"cache_limit": size - 1})
    limit = {"cache_limit": 2 * size}
    for i in range(2):
        from_rows(f"{bucket}/x{i}.h5", options=limit)
    # Both are in use, as far as can be known; so there is no room for a third.
    with pytest.raises(InvalidComponent, match=r"room.*x2\.h5"):
        from_rows(f"{bucket}/x2.h5", options=limit)
    yesterday = time.time() - 86_400
    oldest = next(place for place in cache.iterdir() if (place / "x1.h5").exists())
    os.utime(oldest, (yesterday, yesterday))
    from_rows(f"{bucket}/x2.h5", options=limit)
    assert sorted(file.name for file in copies(cache)) == ["x0.h5", "x2.h5"]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.svm", "x.h5", "x.parquet"])
def test_a_missing_or_damaged_remote_file_is_named(name, bucket):
    with pytest.raises(InvalidInput, match=name):
        from_rows(f"{bucket}/{name}")
    for content in (b"", b"certainly nothing of the kind\n" * 9):
        fsspec.filesystem("memory").pipe(f"/bucket/{name}", content)
        with pytest.raises(InvalidInput, match=name):
            gone_through(f"{bucket}/{name}")


def test_a_remote_array_cut_short_is_refused(bucket, tmp_path, X):
    address = upload(bucket, tmp_path, "x.npy", save_npy, X)
    fs = fsspec.filesystem("memory")
    fs.pipe("/bucket/x.npy", fs.cat("/bucket/x.npy")[:-8])
    with pytest.raises(InvalidComponent, match=r"x\.npy.*cut short"):
        from_rows(address)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("nothing://x.npy", "nothing://x.npy.*[Pp]rotocol"),
        ("memory://bucket/x", "suffix"),
        ("memory://bucket/x.npy::part", "no options"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(bucket, address, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        from_rows(address)


def test_a_protocol_whose_package_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(InvalidInput, match=r"s3://bucket/x\.npy.*s3fs"):
        from_rows("s3://bucket/x.npy")


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("x.npy", "fsspec", "data"), ("x.h5", "fsspec", "data")]
)
def test_without_fsspec_its_extra_is_named(name, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*grassia\[{extra}\]"):
        from_rows(f"memory://bucket/{name}")


def test_options_of_the_format_reach_it(bucket, tmp_path, X):
    address = upload(bucket, tmp_path, "x.svm", save_libsvm, X)
    assert from_rows(address, options={"n_features": 9}).n_features == 9
    with pytest.raises(InvalidInput, match="features"):
        from_rows(address, options={"features": 9})
    with pytest.raises(InvalidInput, match="storage_options"):
        from_rows(address, options={"storage_options": 3})
    assert from_rows(address, options={"storage_options": {"skip_instance_cache": True}}).n_rows == len(X)
