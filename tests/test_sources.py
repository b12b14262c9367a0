"""Every kind of source of rows gives the answer of the array, and says what it holds."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.backends import Processes
from grassia.data import extent_of, from_rows
from grassia.geometry import projection_distance
from problems import leading_of_rows
from row_sources import FILES, NAMES, OBJECTS, SOURCES, D, K, M, hdf5, some_rows, zarr_array


@pytest.fixture(scope="module")
def X():
    return some_rows()


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
