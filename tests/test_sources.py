"""Every source of rows, made by its own library, against the plain array; and damaged, against its name."""

from __future__ import annotations

import gc
import gzip
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.backends import Processes
from grassia.components import SumComponent
from grassia.data import extent_of, from_rows
from grassia.errors import InvalidComponent, InvalidInput
from grassia.geometry import projection_distance
from problems import gaussian_rows, leading_of_rows

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

M, D, K = 240, 8, 3
NAMES = tuple(f"f{j}" for j in range(D))


@pytest.fixture(scope="module")
def X():
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


@pytest.mark.parametrize("kind", SOURCES)
def test_the_eigenspace_of_every_source_is_that_of_the_array(kind, X, tmp_path):
    source = SOURCES[kind](X, tmp_path)
    components = from_rows(source, 3)
    assert len(components) == 3
    result = grassia.eigenspace(components, K, tol=1e-9, rng=0)
    assert projection_distance(result.vectors, leading_of_rows(X, K)) <= 1e-8
    np.testing.assert_allclose(result.values, np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1][:K], rtol=1e-9)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_says_what_it_holds_before_any_run(kind, X, tmp_path):
    components = from_rows(SOURCES[kind](X, tmp_path), 3)
    assert (components.n_rows, components.n_features) == (M, D)
    assert components.dtype == np.float64
    assert components.sparse == ("csr" in kind or "csc" in kind or "sparse" in kind)
    assert components.sparse or components.nbytes == X.nbytes
    lines = components.describe().splitlines()
    assert lines[0] == f"3 components of {D} features"
    assert f"rows {M} x {D}, float64" in lines[-1]
    for line, loader in zip(lines[1:-1], components, strict=True):
        extent = extent_of(loader)
        if "sum of" not in line:
            assert f"rows {extent.n_rows} x {D}, float64" in line


@pytest.mark.parametrize("kind", SOURCES)
def test_the_rows_of_every_source_come_back_in_order_block_by_block(kind, X, tmp_path):
    for n in (1, 3):
        components = from_rows(made(kind, X, tmp_path, n), n)
        blocks = list(components.blocks(max_bytes=10 * D * 8))
        found = np.vstack([block.toarray() if sp.issparse(block) else block for block in blocks])
        np.testing.assert_array_equal(found, X)
        if not components.sparse:
            assert max(len(block) for block in blocks) <= 20


def made(kind, X, tmp_path, n):
    place = tmp_path / str(n)
    place.mkdir()
    return SOURCES[kind](X, place)


@pytest.mark.parametrize("kind", FILES)
def test_files_travel_as_references(kind, X, tmp_path):
    for loader in from_rows(FILES[kind](X, tmp_path), 3):
        packed = cloudpickle.dumps(loader)
        assert len(packed) < X.nbytes / 4
        again = pickle.loads(packed)
        assert again.describe() == loader.describe()
        np.testing.assert_allclose(again.open().moments().mean, loader.open().moments().mean)


def test_workers_in_other_processes_read_every_kind_of_file(X, tmp_path):
    shards = []
    for i, kind in enumerate(FILES):
        (tmp_path / str(i)).mkdir()
        shards.append(FILES[kind](X + i, tmp_path / str(i)))
    everything = np.vstack([X + i for i in range(len(FILES))])
    components = from_rows(shards)
    components = components + from_rows([make(X, tmp_path) for make in OBJECTS.values()])
    everything = np.vstack([everything, *[X] * len(OBJECTS)])
    result = grassia.eigenspace(components, K, backend=Processes(workers=2), tol=1e-9, rng=0)
    assert projection_distance(result.vectors, leading_of_rows(everything, K)) <= 1e-8
    np.testing.assert_allclose(result.stats["mean"], everything.mean(axis=0))


@pytest.mark.parametrize("kind", [k for k in FILES if "npy" not in k])
def test_columns_keep_their_names(kind, X, tmp_path):
    names = from_rows(FILES[kind](X, tmp_path)).feature_names
    if "zarr" in kind or "hdf5" in kind or "without a header" in kind:
        assert names is None
    else:
        assert names == NAMES


@pytest.mark.parametrize("dtype", ["f4", "i2", "u1", "?", ">f8", "f2"])
@pytest.mark.parametrize("kind", ["npy", "parquet", "hdf5", "zarr", "pandas", "polars", "pyarrow table"])
def test_dtypes_are_kept_and_single_precision_is_used_where_it_is_exact(kind, dtype, tmp_path):
    X = np.random.default_rng(0).standard_normal((60, D)) * 3 + 4
    X = X > 4 if dtype == "?" else X.astype(dtype)
    if dtype == ">f8" and kind in ("parquet", "polars", "pyarrow table"):
        X = X.astype("f8")  # Arrow has no byte order
    if dtype == "f2" and kind == "polars":
        X = X.astype("f4")
    make = {
        "hdf5": lambda X, p: hdf5(X, p / "a.h5"),
        "zarr": lambda X, p: zarr_array(X, p / "a.zarr", 2),  # format 3 has no byte order
    }
    (loader,) = from_rows((make | SOURCES)[kind](X, tmp_path))
    component = loader.open()
    assert extent_of(loader).dtype == X.dtype
    exact = np.can_cast(X.dtype, np.float32)
    assert component.moments().single == exact
    V = np.random.default_rng(1).standard_normal((D, 2))
    expected = np.cov(X.T.astype(float), bias=True) @ V
    np.testing.assert_allclose(component.apply(V), expected, rtol=1e-9, atol=1e-12)
    if exact:
        np.testing.assert_allclose(component.apply(V, single=True), expected, rtol=1e-4, atol=1e-4)


def test_no_file_is_left_open(X, tmp_path):
    before = open_files()
    for i, kind in enumerate(FILES):
        if kind == "hdf5 dataset":
            continue  # opened by the test itself
        (tmp_path / str(i)).mkdir()
        components = from_rows(FILES[kind](X, tmp_path / str(i)), 3)
        opened = [loader.open() for loader in components]
        for component in opened:
            component.moments()
        next(components.blocks(1000))
        del component, opened, components
    gc.collect()
    assert [path for path in open_files() if path not in before and str(tmp_path) in path] == []


def open_files():
    return [os.path.realpath(link) for link in Path("/proc/self/fd").glob("*")]


# ---------------------------------------------------------------------------------- many files


def test_a_pattern_gives_a_component_a_file_sorted_by_name(X, tmp_path):
    for name, part in zip(["b", "c", "a"], np.split(X, 3), strict=True):
        parquet(part, tmp_path / f"{name}.parquet")
    components = from_rows(str(tmp_path / "*.parquet"))
    assert len(components) == 3
    np.testing.assert_array_equal(np.vstack(list(components.blocks())), np.roll(X, M // 3, axis=0))


def test_brackets_in_the_name_of_a_folder_that_exists_are_no_pattern(X, tmp_path, monkeypatch):
    place = tmp_path / "run [1]" / "part[a-b]"
    place.mkdir(parents=True)
    for i, part in enumerate(np.split(X, 3)):
        np.save(place / f"{i}.npy", part)
    monkeypatch.chdir(tmp_path)
    for pattern in (place / "*.npy", "run [1]/part[[]a-b]/*.npy", "run [1]/*/[0-2].npy", "run [1]/**/*.npy"):
        found = from_rows(str(pattern))
        assert len(found) == 3
        np.testing.assert_array_equal(np.vstack(list(found.blocks())), X)
    with pytest.raises(InvalidComponent, match=r"run \[2\]/\*\.npy matches none"):
        from_rows("run [2]/*.npy")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_files_of_different_sizes_are_merged_or_split_to_the_number_asked_for(n, X, tmp_path):
    place = tmp_path / "rows"
    folder(place, [X[:20], X[20:140], X[140:]], lambda x, q: parquet(x, f"{q}.parquet"))
    components = from_rows(place, n)
    assert len(components) == n
    np.testing.assert_array_equal(np.vstack(list(components.blocks())), X)
    merged = SumComponent([loader.open() for loader in components])
    np.testing.assert_allclose(merged.apply(np.eye(D)), np.cov(X.T, bias=True), atol=1e-12)
    if n == 9:
        sizes = [extent_of(loader).n_rows for loader in components]
        assert max(sizes) <= 2 * M / 9


def test_a_folder_is_read_past_notes_hidden_files_and_subfolders(X, tmp_path):
    place = tmp_path / "data set" / "year=2024"
    place.mkdir(parents=True)
    parquet(X[:100], place / "part 0.parquet")
    parquet(X[100:], place.parent / "rest.parquet")
    (place / "_SUCCESS").touch()
    (place / ".part.parquet").write_bytes(b"half written")
    (place / "readme.md").write_text("notes")
    (place.parent / "_temporary").mkdir()
    parquet(X, place.parent / "_temporary" / "x.parquet")
    components = from_rows(place.parent)
    assert components.n_rows == M
    assert len(components) == 2


def test_a_list_may_hold_patterns_and_stays_split_as_it_is(X, tmp_path):
    for i, part in enumerate(np.split(X, 4)):
        csv(part, tmp_path / f"{i}.csv")
    components = from_rows([str(tmp_path / "[0-2].csv"), frame(X[180:])])
    assert [extent_of(loader).n_rows for loader in components] == [60, 60, 60, 60]
    with pytest.raises(InvalidInput, match="at most the number of shards, 4; got 5"):
        from_rows([str(tmp_path / "[0-2].csv"), X], 5)


def test_cuts_fall_on_row_groups_and_chunks_where_that_balances(X, tmp_path):
    def starts(source, n):
        return [loader.start for loader in from_rows(source, n)]

    assert starts(parquet(X, tmp_path / "a.parquet", row_group_size=130), 3) == [0, 80, 160]
    assert starts(parquet(X, tmp_path / "b.parquet", row_group_size=20), 3) == [0, 80, 160]
    assert starts(parquet(X, tmp_path / "c.parquet", row_group_size=18), 3) == [0, 72, 162]
    assert starts(hdf5(X, tmp_path / "a.h5", chunks=(24, D)), 4) == [0, 72, 120, 192]
    assert starts(zarr_array(X, tmp_path / "a.zarr", chunks=(100, D)), 4) == [0, 60, 120, 180]
    with pytest.raises(InvalidInput, match=f"at most the number of rows, {M}; got 241"):
        from_rows(tmp_path / "a.parquet", M + 1)


def test_files_with_other_columns_are_refused_with_the_column(X, tmp_path):
    csv(X, tmp_path / "0.csv")
    frame(X)[[*NAMES[1:], NAMES[0]]].to_csv(tmp_path / "1.csv", index=False)
    with pytest.raises(InvalidComponent, match=r"component 1: .*same order; column 0 is 'f1' here, 'f0' in"):
        from_rows(str(tmp_path / "*.csv"))
    chosen = from_rows(str(tmp_path / "*.csv"), options={"columns": ["f2", "f0"]})
    np.testing.assert_array_equal(np.vstack(list(chosen.blocks())), np.vstack([X[:, [2, 0]]] * 2))


# ------------------------------------------------------------------------------------- refusals


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
