"""Sources of rows that are refused: paths, damage, changes, bad entries, options, absent libraries."""

from __future__ import annotations

import gzip
import re
import shutil
import sys

import numpy as np
import pytest

import grassia
from grassia.data import from_rows
from grassia.errors import InvalidComponent, InvalidInput
from row_sources import D, K, M, csv, hdf5, hdf5_among_others, parquet, some_rows, zarr_array, zarr_group

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def X():
    return some_rows()


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        ("nothing/*.csv", None, r"must match at least one file; .*nothing/\*\.csv matches none"),
        ("gone.parquet", None, r"must exist; there is none at .*gone\.parquet"),
        ("gone.h5::X", None, r"must exist; there is none at .*gone\.h5"),
        ("rows.xlsx", lambda p: p.touch(), r"suffix that tells its format .*got .*rows\.xlsx"),
        ("empty", lambda p: p.mkdir(), r"folder of rows must hold files of a known format .* holds no files"),
        ("notes", lambda p: p.mkdir() or (p / "a.md").touch(), r"notes holds files of suffix '\.md'"),
    ],
)
def test_paths_that_lead_nowhere_are_refused_by_name(name, make, text, tmp_path):
    if make is not None:
        make(tmp_path / name)
    with pytest.raises(InvalidComponent, match=text):
        from_rows(str(tmp_path / name))


def test_a_folder_of_several_formats_is_refused_with_one_of_each(X, tmp_path):
    csv(X, tmp_path / "a.csv")
    parquet(X, tmp_path / "b.parquet")
    with pytest.raises(InvalidComponent, match=r"one format; there are .*a\.csv and .*b\.parquet; give"):
        from_rows(tmp_path)
    with pytest.raises(InvalidComponent, match=r"matches the folder .*; end it with a suffix"):
        from_rows(f"{tmp_path.parent}/{tmp_path.name[:-1]}*")


def half(content, text):
    """The first half; of text up to a line's second field, because a number cut short is still a number."""
    middle = len(content) // 2
    return content[: content.find(b",", content.find(b"\n", middle)) + 1] if text else content[:middle]


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "other bytes": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20),
    "cut short": lambda path: path.write_bytes(half(path.read_bytes(), path.suffix == ".csv")),
}
ONE_FILE = {
    "a.npy": lambda X, p: np.save(p, X),
    "a.csv": csv,
    "a.csv.gz": csv,
    "a.parquet": parquet,
    "a.h5": hdf5,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ONE_FILE)
def test_damaged_files_are_refused_by_name(name, damage, X, tmp_path):
    path = tmp_path / name
    ONE_FILE[name](X, path)
    DAMAGE[damage](path)
    with pytest.raises(InvalidComponent, match=re.escape(name)):
        [loader.open().moments() for loader in from_rows(path, 2)]


@pytest.mark.parametrize("name", ["a.parquet", "a.h5", "a.zarr"])
def test_damage_that_only_reading_can_show_is_reported_by_the_worker_with_the_file(name, X, tmp_path):
    path = tmp_path / name
    if name == "a.zarr":
        zarr_array(X, path)
        chunk = max((file for file in path.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size)
        chunk.write_bytes(b"not a chunk")
    else:
        layout = {"compression": "gzip"}
        parquet(X, path, **layout) if name == "a.parquet" else hdf5(X, path, chunks=(40, D), **layout)
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 400] = bytes(400)
        path.write_bytes(content)
    components = from_rows(path, 2)
    assert f"rows {M} x {D}" in components.describe()
    with pytest.raises(InvalidComponent, match=f"{name}.* cannot be read: .*damaged"):
        grassia.eigenspace(components, K, rng=0)


@pytest.mark.parametrize("name", [*ONE_FILE, "a.zarr"])
def test_a_file_that_changes_after_it_was_looked_at_is_refused_by_its_name(name, X, tmp_path):
    path = tmp_path / name
    (ONE_FILE | {"a.zarr": zarr_array})[name](X, path)
    components = from_rows(path, 2)
    components[0].open().moments()
    if name == "a.zarr":
        shutil.rmtree(path)
    (ONE_FILE | {"a.zarr": zarr_array})[name](X[: M - 7], path)
    with pytest.raises(InvalidComponent, match=f"{name} must not change while it is in use"):
        components[1].open()
    path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(InvalidComponent, match=f"must exist.*{name}"):
        components[1].open()


@pytest.mark.parametrize("name", [*ONE_FILE, "a.zarr"])
def test_nan_is_reported_with_the_file_and_the_row(name, X, tmp_path):
    bad = X.copy()
    bad[197, 5] = np.nan
    (ONE_FILE | {"a.zarr": zarr_array})[name](bad, tmp_path / name)
    column = "'f5'" if name.startswith(("a.csv", "a.parquet")) else "5"
    with pytest.raises(InvalidComponent, match=f"row 197 of .*{name} holds NaN or inf in column {column}"):
        grassia.eigenspace(from_rows(tmp_path / name, 3), K, rng=0)


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.write_bytes(b"no store")])
def test_what_is_no_zarr_store_is_refused_by_name(make, tmp_path):
    make(tmp_path / "a.zarr")
    with pytest.raises(InvalidComponent, match=r"a\.zarr"):
        from_rows(tmp_path / "a.zarr")


def test_a_store_of_several_arrays_asks_which(X, tmp_path):
    path = zarr_group(X, tmp_path / "g.zarr").partition("::")[0]
    with pytest.raises(InvalidComponent, match=r"g\.zarr must hold one .*it has 2; .*layers/X \(240, 8\)"):
        from_rows(path)
    with pytest.raises(InvalidComponent, match=r"g\.zarr::layers must be an array; the store has: layers/"):
        from_rows(f"{path}::layers")
    hdf5_among_others(X, tmp_path / "m.h5")
    with pytest.raises(InvalidComponent, match=r"m\.h5 must hold one .*it has 2; .*group/X \(240, 8\)"):
        from_rows(tmp_path / "m.h5")
    with pytest.raises(InvalidComponent, match=r"m\.h5 must hold the dataset 'Z'; its datasets are: group/X"):
        from_rows(tmp_path / "m.h5", options={"dataset": "Z"})
    with pytest.raises(InvalidComponent, match=r"m\.h5::labels must be two-dimensional"):
        from_rows(f"{tmp_path / 'm.h5'}::labels")


def test_a_dataset_that_is_closed_or_only_in_memory_is_refused(X, tmp_path):
    hdf5(X, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        dataset = file["X"]
    for closed in (dataset, file):
        with pytest.raises(InvalidComponent, match="must be an open dataset"):
            from_rows(closed)
    with h5py.File("nowhere.h5", "w", driver="core", backing_store=False) as file:
        file["X"] = X
        with pytest.raises(InvalidComponent, match=r"nowhere\.h5 must be a file that workers can open"):
            from_rows(file["X"])


def test_options_that_a_format_does_not_have_are_refused_with_those_it_has(X, tmp_path):
    with pytest.raises(InvalidInput, match="of the format parquet: it has columns, drop; got dataset"):
        from_rows(parquet(X, tmp_path / "a.parquet"), options={"dataset": "X"})
    with pytest.raises(InvalidInput, match="of the format hdf5: it has dataset; got columns"):
        from_rows(hdf5(X, tmp_path / "a.h5"), options={"columns": [1]})
    with pytest.raises(InvalidInput, match="are for files and tables; got columns for rows of type ndarray"):
        from_rows(X, options={"columns": [1]})
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(InvalidInput, match=r"\.npy files have no options; got columns"):
        from_rows(tmp_path / "a.npy", options={"columns": [1]})
    with pytest.raises(InvalidInput, match="`options` must be a mapping"):
        from_rows(X, options=["columns"])


def test_a_library_that_is_absent_is_named_with_its_extra(X, tmp_path, monkeypatch):
    csv(X, tmp_path / "a.csv")
    parquet(X, tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(grassia.errors.MissingExtra, match=r"grassia\[parquet\]"):
        from_rows(tmp_path / "a.parquet")
    assert from_rows(tmp_path / "a.csv").n_rows == M


def test_compressed_text_that_is_not_compressed_is_refused_by_name(X, tmp_path):
    csv(X, tmp_path / "a.csv").rename(tmp_path / "a.csv.gz")
    with pytest.raises(InvalidComponent, match=r"a\.csv\.gz cannot be opened"):
        from_rows(tmp_path / "a.csv.gz")
    whole = gzip.compress((tmp_path / "a.csv.gz").read_bytes())
    (tmp_path / "a.csv.gz").write_bytes(whole)
    assert from_rows(tmp_path / "a.csv.gz").n_rows == M
