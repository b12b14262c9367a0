"""How data reach workers that are processes: files, shared memory, pickles."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import grassia
from conftest import segments
from grassia.backends import Processes
from grassia.backends.store import SMALL, SharedStore
from grassia.data import MatrixLoader, OperatorLoader, RowsLoader, as_components
from grassia.errors import InvalidComponent
from process_runs import LINUX_AND_NOTHING_LEFT, K, eigenspace, leading, sine, some_rows

pytestmark = LINUX_AND_NOTHING_LEFT


@pytest.fixture(scope="module")
def rows():
    return some_rows()


@pytest.fixture(scope="module")
def truth(rows):
    return leading(rows)


def test_workers_open_their_own_files(rows, truth, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, rows)
    shards = []
    for i, shard in enumerate(np.array_split(rows, 3)):
        np.save(tmp_path / f"{i}.npy", shard)
        shards.append(tmp_path / f"{i}.npy")
    for components in (
        grassia.from_rows(path, 3),
        grassia.from_rows(shards),
        grassia.from_rows(np.load(path, mmap_mode="r"), 3),
    ):
        backend = Processes(1)
        result = eigenspace(components, K, backend=backend, tol=1e-8, rng=0)
        assert sine(result.vectors, truth) <= 1e-8
        store = SharedStore()
        assert len(store.dumps(list(components))) < 4096
        assert not segments()  # nothing was copied on the way


def test_arrays_in_memory_are_placed_in_shared_memory_once():
    X = np.random.default_rng(0).standard_normal((4000, 40))
    store = SharedStore()
    try:
        luggage = store.dumps([RowsLoader(X), RowsLoader(X), MatrixLoader(X[:40].copy())])
        again = store.dumps(RowsLoader(X))
        assert X.nbytes > 10 * SMALL
        assert len(luggage) + len(again) < SMALL  # the 12.8 kB matrix travels inside
        (name,) = segments()
        assert Path("/dev/shm", name).stat().st_size >= X.nbytes
        first, second, _ = pickle.loads(luggage)
        np.testing.assert_array_equal(first.rows, X)
        assert first.rows is second.rows
        assert not first.rows.flags.writeable
    finally:
        store.close()


@pytest.mark.parametrize(
    "view",
    [
        lambda X: X,
        np.asfortranarray,
        lambda X: X[::2, ::3],
        lambda X: X.astype(">f4"),
        lambda X: X.astype(np.float16),
        lambda X: X > 0,
    ],
    ids=["C", "F", "strided", "big-endian", "half", "bool"],
)
def test_an_array_of_any_layout_and_dtype_is_the_same_on_the_other_side(view):
    X = view(np.random.default_rng(0).standard_normal((600, 500)))
    store = SharedStore()
    try:
        luggage = store.dumps(X)
        assert len(luggage) < 1024
        np.testing.assert_array_equal(pickle.loads(luggage), X)
    finally:
        store.close()


def test_what_was_written_to_a_copy_on_write_map_is_not_lost_on_the_way(tmp_path):
    path = tmp_path / "matrix.npy"
    d = 120
    np.save(path, np.diag(np.arange(1.0, d + 1)))
    matrix = np.load(path, mmap_mode="c")
    matrix[0, 0] = 1000.0  # in this process's memory, not in the file
    assert matrix.nbytes > SMALL
    result = eigenspace([matrix], 1, backend=Processes(), rng=0)
    assert result.values[0] == pytest.approx(1000.0)


def test_data_beyond_the_shared_memory_there_is_goes_through_a_file(rows, truth, monkeypatch, tmp_path):
    monkeypatch.setattr("grassia.backends.store._room_in_memory", lambda: 0.0)
    monkeypatch.setattr("grassia.backends.store.SMALL", 1024)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    result = eigenspace(
        grassia.from_rows(rows, 2),
        K,
        backend=Processes(),
        tol=1e-8,
        rng=0,
        callbacks=lambda progress: seen.extend(tmp_path.glob("grassia-*/*")),
    )
    assert len(set(seen)) == 2
    assert not list(tmp_path.iterdir())
    assert sine(result.vectors, truth) <= 1e-8


def test_a_component_that_cannot_be_pickled_is_refused_by_its_number():
    lock = threading.Lock()
    components = [
        np.eye(3),
        OperatorLoader(lambda V: V * lock.locked(), n_features=3),
    ]
    with pytest.raises(InvalidComponent, match="component 1: it cannot be pickled"):
        eigenspace(components, 1, backend=Processes(1))


def test_components_given_as_components_travel_with_their_data(rows, truth):
    components = as_components([grassia.RowsComponent(part) for part in np.array_split(rows, 2)])
    result = eigenspace(components, K, backend=Processes(), tol=1e-8, rng=0)
    assert sine(result.vectors, truth) <= 1e-8
