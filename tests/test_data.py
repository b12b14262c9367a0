"""Loaders travel and reopen; sources split without copying; wrong inputs are named."""

from __future__ import annotations

import operator
import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

from grassia.components import MatrixComponent, RowsComponent, SumComponent
from grassia.data import (
    CallableLoader,
    ComponentLoader,
    Components,
    Loader,
    MatrixLoader,
    MemmapRowsLoader,
    NpyRowsLoader,
    OperatorLoader,
    RowsLoader,
    SumLoader,
    as_components,
    from_rows,
)
from grassia.errors import InvalidComponent, InvalidInput


def covariance(X):
    D = X - X.mean(axis=0)
    return D.T @ D / len(X)


def dense(loader):
    component = loader.open()
    return component.apply(np.eye(component.n_features))


@pytest.fixture
def X():
    return np.random.default_rng(3).standard_normal((23, 4)) + np.arange(4)


@pytest.fixture
def npy(X, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, X)
    return path


# -------------------------------------------------------------------------------------- loaders


def every_loader(X, npy):
    A = covariance(X)
    return {
        "matrix": MatrixLoader(A),
        "sparse matrix": MatrixLoader(sp.csr_array(A)),
        "rows": RowsLoader(X),
        "sparse rows": RowsLoader(sp.csc_array(X)),
        "npy": NpyRowsLoader(str(npy), 0, None),
        "memmap": MemmapRowsLoader.of(np.load(npy, mmap_mode="r")),
        "callable": CallableLoader(lambda: X),
        "operator": OperatorLoader(aslinearoperator(A)),
        "function": OperatorLoader(lambda V: A @ V, 4, positive=True),
        "component": ComponentLoader(RowsComponent(X)),
        "sum": SumLoader((NpyRowsLoader(str(npy), 0, 9), RowsLoader(X[9:]))),
    }


def test_every_loader_travels_by_pickle_and_opens_to_the_same_product(X, npy):
    for name, loader in every_loader(X, npy).items():
        again = pickle.loads(cloudpickle.dumps(loader))
        assert type(again) is type(loader), name
        np.testing.assert_allclose(dense(again), covariance(X), atol=1e-12, err_msg=name)
        assert again.describe() == loader.describe()


def test_every_loader_is_a_loader_and_describes_itself_in_one_line(X, npy):
    for name, loader in every_loader(X, npy).items():
        assert isinstance(loader, Loader), name
        line = loader.describe()
        assert line, name
        assert "\n" not in line
        assert loader.n_features == (None if name == "callable" else 4)


def test_opening_twice_gives_independent_components(X, npy):
    loader = NpyRowsLoader(str(npy))
    first, second = loader.open(), loader.open()
    first.recenter(np.full(4, 50.0))
    np.testing.assert_allclose(second.apply(np.eye(4)), covariance(X))


def test_an_npy_loader_reads_only_its_rows(X, tmp_path):
    poisoned = X.copy()
    poisoned[:5] = poisoned[12:] = np.nan
    np.save(tmp_path / "p.npy", poisoned)
    loader = NpyRowsLoader(str(tmp_path / "p.npy"), 5, 12)
    assert loader.open().moments().count == 7
    np.testing.assert_allclose(dense(loader), covariance(X[5:12]))


def test_an_npy_file_is_mapped_and_not_loaded(X, npy):
    base = NpyRowsLoader(str(npy), 2, 9).open()._rows
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_missing_file_is_named_when_opened_and_described_without_failing(tmp_path):
    loader = NpyRowsLoader(str(tmp_path / "gone.npy"))
    with pytest.raises(InvalidComponent, match=r"must exist where the worker runs.*gone\.npy"):
        loader.open()
    assert "cannot be opened here" in loader.describe()
    assert loader.n_features is None


@settings(max_examples=40, deadline=None)
@given(
    offset=st.integers(0, 5000),
    order=st.sampled_from("CF"),
    dtype=st.sampled_from(["f8", "f4", ">i2"]),
    a=st.integers(0, 5),
    step=st.integers(1, 3),
    transpose=st.booleans(),
)
def test_any_view_of_a_memmap_reopens_from_its_file(
    tmp_path_factory, offset, order, dtype, a, step, transpose
):
    path = tmp_path_factory.mktemp("map") / "raw"
    file = np.memmap(path, dtype, "w+", offset, (30, 6), order)
    file[:] = np.random.default_rng(0).integers(-99, 99, (30, 6))
    view = file[a::step, ::step]
    view = view.T if transpose else view
    loader = MemmapRowsLoader.of(view)
    assert loader is not None
    np.testing.assert_array_equal(loader.open()._rows, view)
    assert len(cloudpickle.dumps(loader)) < 1000


def test_maps_that_their_file_cannot_give_back_are_held_instead(X, npy):
    assert MemmapRowsLoader.of(np.load(npy, mmap_mode="c")) is None
    mapped = np.load(npy, mmap_mode="r")
    assert MemmapRowsLoader.of(mapped[::-1]) is None
    assert MemmapRowsLoader.of(mapped + 1.0) is None
    assert MemmapRowsLoader.of(X) is None
    (held,) = from_rows(np.load(npy, mmap_mode="c"))
    assert isinstance(held, RowsLoader)
    np.testing.assert_allclose(dense(held), covariance(X))


def test_a_map_whose_file_is_gone_is_an_error_that_names_it(npy):
    loader = MemmapRowsLoader.of(np.load(npy, mmap_mode="r"))
    npy.unlink()
    with pytest.raises(InvalidComponent, match=r"cannot map the rows file .*rows\.npy"):
        loader.open()


# -------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("n", [1, 2, 5, 23])
@pytest.mark.parametrize("kind", ["array", "csr", "csc", "path", "str", "memmap"])
def test_every_source_splits_into_near_equal_blocks_that_sum_to_the_whole(X, npy, kind, n):
    source = {
        "array": X,
        "csr": sp.csr_array(X),
        "csc": sp.csc_matrix(X),
        "path": npy,
        "str": str(npy),
        "memmap": np.load(npy, mmap_mode="r"),
    }[kind]
    components = from_rows(source, n)
    assert len(components) == n
    assert components.n_features == 4
    opened = [loader.open() for loader in components]
    counts = [c.moments().count for c in opened]
    assert sum(counts) == 23
    assert max(counts) - min(counts) <= 1
    merged = SumComponent(opened)
    np.testing.assert_allclose(merged.apply(np.eye(4)), covariance(X), atol=1e-12)


def test_blocks_of_an_array_are_views(X):
    for loader in from_rows(X, 4):
        assert np.shares_memory(loader.rows, X)
        assert np.shares_memory(loader.open()._rows, X)


def test_blocks_of_a_csr_array_are_views(X):
    S = sp.csr_array(X)
    for loader in from_rows(S, 4):
        assert np.shares_memory(loader.rows.data, S.data)
        assert np.shares_memory(loader.rows.indices, S.indices)
        assert np.shares_memory(loader.open()._rows.data, S.data)


def test_memmaps_and_paths_travel_as_references(npy):
    for source in (npy, np.load(npy, mmap_mode="r")):
        for loader in from_rows(source, 3):
            assert isinstance(loader, NpyRowsLoader | MemmapRowsLoader)
            assert Path(loader.path).is_absolute()


def test_not_centring_reaches_every_block(X, npy):
    for source in (X, npy, [X, npy, lambda: X]):
        for loader in from_rows(source, center=False):
            np.testing.assert_allclose(dense(loader), X.T @ X / 23)


def test_a_list_of_shards_stays_as_it_is_split(X, npy):
    components = from_rows([X[:3], sp.csr_array(X[3:9]), npy, str(npy), lambda: X[9:]])
    kinds = [type(loader) for loader in components]
    assert kinds == [RowsLoader, RowsLoader, NpyRowsLoader, NpyRowsLoader, CallableLoader]
    assert from_rows((X, X), 2).n_features == 4


def test_fewer_components_than_shards_merge_neighbours(X):
    components = from_rows([X[:3], X[3:4], X[4:10], X[10:11], X[11:]], 2)
    assert len(components) == 2
    np.testing.assert_allclose(dense(components[0]), covariance(X[:4]))
    np.testing.assert_allclose(dense(components[1]), covariance(X[4:]))
    five = from_rows([X] * 5, 4)
    assert [type(loader) for loader in five].count(SumLoader) == 1


def test_a_callable_is_not_called_before_its_loader_is_opened(X):
    calls = []

    def make():
        calls.append(1)
        return X

    components = from_rows(make)
    assert components.n_features is None
    assert "make()" in components.describe()
    assert not calls
    np.testing.assert_allclose(dense(components[0]), covariance(X))
    assert calls == [1]


def test_components_concatenate_slice_and_describe(X):
    both = from_rows(X, 2) + as_components(np.eye(4))
    assert len(both) == 3
    assert isinstance(both[1:], Components)
    assert len(both[1:]) == 2
    lines = both.describe().splitlines()
    assert lines[0] == "3 components of 4 features"
    assert lines[1] == "  0  rows 11 x 4, float64, 352 B, centred"
    assert lines[3] == "  2  matrix 4 x 4, float64, 128 B"
    assert "unknown number" in from_rows(lambda: X).describe()
    with pytest.raises(TypeError):
        operator.add(both, [1])
    with pytest.raises(InvalidComponent, match="component 2: all components must have the same"):
        from_rows(X, 2) + as_components(np.eye(3))


def test_matrices_operators_components_and_loaders_mix(X):
    A = covariance(X)
    mixed = as_components([A, sp.csr_array(A), aslinearoperator(A), MatrixComponent(A), RowsLoader(X)])
    for loader in mixed:
        np.testing.assert_allclose(dense(loader), A, atol=1e-12)
    assert as_components(mixed) is mixed


@pytest.mark.parametrize(
    "alone", [np.eye(3), sp.eye_array(3), aslinearoperator(np.eye(3)), MatrixLoader(np.eye(3))]
)
def test_one_alone_is_a_list_of_one(alone):
    components = as_components(alone)
    assert len(components) == 1
    np.testing.assert_array_equal(dense(components[0]), np.eye(3))


def test_a_three_dimensional_array_is_a_list_of_matrices():
    stack = np.stack([np.eye(3), 2 * np.eye(3)])
    components = as_components(stack)
    assert len(components) == 2
    assert np.shares_memory(components[1].matrix, stack)


def test_anything_with_open_is_a_loader():
    class Mine:
        def open(self):
            return MatrixComponent(np.eye(2))

        def __repr__(self):
            return "my own loader"

    components = as_components([Mine(), np.eye(2)])
    assert components.n_features == 2
    assert "my own loader" in components.describe()


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        ([], "at least one component; got none"),
        (np.zeros((5, 2)), r"component 0: .* square; got shape \(5, 2\); for rows .* from_rows"),
        (
            [np.eye(2), np.eye(2), np.eye(3)],
            "component 2: all .* this one has 3, component 0 has 2",
        ),
        ([np.eye(2), np.eye(2) * 1j], "component 1: the matrix must be real numbers"),
        ([np.eye(2), lambda V: V], "component 1: a plain callable .* OperatorLoader.*n_features"),
        ([np.eye(2), "x.npy"], "component 1: .* got the path 'x.npy'; .* use from_rows"),
        ([np.eye(2), Path("x.npy")], "component 1: .* got the path"),
        ([[1.0, 2.0], [2.0, 1.0]], "component 0: must be a symmetric matrix.*; got list"),
        ([None], "component 0: .* got NoneType"),
        ([aslinearoperator(np.ones((2, 3)))], "component 0: the operator must be square"),
    ],
)
def test_what_is_not_a_component_is_refused_by_its_index(obj, text):
    with pytest.raises(InvalidInput, match=text):
        as_components(obj)


@pytest.mark.parametrize(
    ("source", "n", "text"),
    [
        ([], None, "at least one shard of rows; got an empty list"),
        (np.eye(3), 0, "n_components must be at least 1; got 0"),
        (np.eye(3), 4, "at most the number of rows, 3; got 4"),
        (sp.eye_array(3), 4, "at most the number of rows, 3; got 4"),
        ([np.eye(3)] * 2, 3, "at most the number of shards, 2; got 3; split"),
        (lambda: 1, 2, "n_components must be 1 for one callable"),
        (np.zeros(3), None, "2-D array"),
        (np.zeros((0, 3)), None, "must not be empty"),
        ([np.eye(3), np.zeros((0, 3))], None, "component 1: rows must not be empty"),
        ([np.eye(3), np.eye(2)], None, "component 1: all components must have the same number"),
        ([np.eye(3), np.eye(3).astype(str)], None, "component 1: rows must be real numbers"),
        ([np.eye(3), np.eye(2)], 1, "component 1: all components must have the same number"),
        ([[1.0, 2.0]], None, "component 0: rows must be a 2-D array.* got list"),
        (7, None, "rows must be a 2-D array, .* got int"),
        ("rows.csv", None, r"the rows file must exist; there is none at rows\.csv"),
        ("rows.doc", None, r"suffix that tells its format \(\.npy, .*got rows\.doc; .* in a callable"),
        ([np.eye(3), "gone.npy"], None, "component 1: the rows file must exist.* at gone.npy"),
    ],
)
def test_rows_that_break_a_rule_are_refused(source, n, text):
    with pytest.raises(InvalidInput, match=text):
        from_rows(source, n)


def test_files_that_are_not_arrays_of_rows_are_refused_by_name(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"not an array")
    with pytest.raises(InvalidComponent, match=r"x\.npy must be a \.npy file holding"):
        from_rows(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidComponent, match=r"x\.npy must be a \.npy file holding"):
        from_rows(path)
    np.save(path, np.arange(5.0))
    with pytest.raises(InvalidComponent, match="got 1-D of shape"):
        from_rows(path)
    np.save(path, np.zeros((0, 4)))
    with pytest.raises(InvalidComponent, match="empty"):
        from_rows(path)
    with pytest.raises(InvalidComponent, match="must exist; there is none at"):
        from_rows(tmp_path / "none.npy")
