"""Rows that are read by ranges: whatever the blocks, the same moments and products as in memory."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import grassia
from grassia.components import MatrixComponent, RowsComponent
from grassia.data import NpyRowsLoader, StoredRowsLoader, as_components, from_rows, split_store
from grassia.data import mapped as mapped_rows
from grassia.data.blocks import balanced, block_ranges, read_ahead
from grassia.data.mapped import MappedRowsComponent
from grassia.data.room import Room
from grassia.data.stored import StoredRowsComponent
from grassia.errors import InvalidComponent, InvalidInput
from grassia.interruption import Withdrawn, watching
from problems import gaussian_rows


class ArrayStore:
    """Rows of an array as a store, which notes what was read of it."""

    feature_names = None

    def __init__(self, rows, chunk_rows=1, boundaries=None):
        self.rows = rows
        self.sparse = sp.issparse(rows)
        self.shape, self.dtype = rows.shape, rows.dtype
        self.stored = rows.nnz if self.sparse else rows.size
        self.chunk_rows = chunk_rows
        self.boundaries = boundaries
        self.reads = []

    def read(self, start, stop):
        self.reads.append((start, stop))
        return self.rows[start:stop]


@dataclass(frozen=True)
class ArrayOpener:
    """The opener of such a store; a user's own would have a path."""

    store: ArrayStore = field(hash=False)
    name = "mine"
    kind = "Mine"

    def open(self):
        return self.store


def random_rows(m, d, dtype="f8", sparse=False, seed=0):
    X = gaussian_rows(m, d, min(2, d), seed)
    X = np.where(np.abs(X) < 2.0, 0.0, X) if sparse else X
    X = X.astype(dtype)
    return sp.csr_array(X) if sparse else X


# ---------------------------------------------------------------------------- moments and products


@settings(max_examples=80, deadline=None)
@given(
    m=st.integers(1, 60),
    d=st.integers(1, 6),
    start=st.integers(0, 59),
    length=st.integers(1, 60),
    chunk=st.integers(1, 25),
    max_bytes=st.integers(1, 2000),
    dtype=st.sampled_from(["f8", "f4", "i2"]),
    sparse=st.booleans(),
    center=st.booleans(),
)
def test_however_rows_are_cut_they_are_the_same_component(
    m, d, start, length, chunk, max_bytes, dtype, sparse, center
):
    X = random_rows(m, d, dtype, sparse)
    start = start % m
    stop = min(m, start + length)
    stored = StoredRowsComponent(ArrayStore(X, chunk), start, stop, center, max_bytes=max_bytes)
    plain = RowsComponent(X[start:stop], center)
    found, expected = stored.moments(), plain.moments()
    assert found.count == expected.count
    assert found.single == expected.single
    assert found.trace == pytest.approx(expected.trace, rel=1e-12, abs=1e-14)
    if center:
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12)
    scale = max(abs(plain.dense()).max(), 1e-300)
    V = np.random.default_rng(1).standard_normal((d, 3))
    np.testing.assert_allclose(stored.apply(V), plain.apply(V), rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(stored.dense(), plain.dense(), rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(stored.apply(V, single=True), plain.apply(V, single=True), atol=1e-4 * scale)
    np.testing.assert_allclose(stored.dense(single=True), plain.dense(single=True), atol=1e-4 * scale)


def test_a_mean_far_away_costs_no_digits_over_many_blocks():
    X = random_rows(4000, 5) + 1e8
    stored = StoredRowsComponent(ArrayStore(X), max_bytes=37 * 40)
    Y = X - X.mean(axis=0)  # exact enough: the differences of neighbours are
    Y -= Y.mean(axis=0)
    covariance = Y.T @ Y / len(Y)
    assert stored.moments().trace == pytest.approx(np.trace(covariance), rel=1e-9)
    V = np.eye(5)
    np.testing.assert_allclose(stored.apply(V), covariance, rtol=0, atol=1e-9 * covariance.max())


def test_every_pass_reads_every_row_once_in_order_in_blocks_of_bounded_size():
    store = ArrayStore(random_rows(100, 4), chunk_rows=10)
    component = StoredRowsComponent(store, 5, 93, max_bytes=25 * 4 * 8)
    expected = [(5, 20), (20, 40), (40, 60), (60, 80), (80, 93)]
    for use in (component.moments, lambda: component.apply(np.eye(4)), component.dense):
        store.reads.clear()
        use()
        assert store.reads == expected


def test_rows_that_fit_one_block_are_read_once():
    store = ArrayStore(random_rows(100, 4))
    component = StoredRowsComponent(store)
    component.moments()
    component.apply(np.eye(4))
    assert store.reads == [(0, 100)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("fits", [0, 2.5, 10])
def test_rows_that_are_dear_to_decode_are_kept_as_far_as_there_is_room(fits, sparse, monkeypatch):
    X = random_rows(100, 4, sparse=sparse)
    store = ArrayStore(X)
    store.costly = True
    each = 20 * 4 * 8 if not sparse else 12 * X.nnz / 5 + 84
    room = Room(int(fits * each))
    monkeypatch.setattr("grassia.data.room.ROOM", room)
    component = StoredRowsComponent(store, max_bytes=int(each))
    plain = RowsComponent(X)
    V = np.random.default_rng(0).standard_normal((4, 2))
    for _ in range(3):
        store.reads.clear()
        np.testing.assert_allclose(component.apply(V), plain.apply(V))
    blocks = len(component._ranges)
    assert sum(b - a for a, b in store.reads) <= 100 * max(0.0, 1.0 - int(fits) / blocks) + 20
    assert bool(store.reads) == (fits < 10)
    del component
    assert room.take(int(fits * each))  # all was given back


@settings(max_examples=200, deadline=None)
@given(
    start=st.integers(0, 50),
    length=st.integers(1, 300),
    chunk=st.integers(1, 60),
    row=st.floats(0.5, 500),
    limit=st.integers(1, 5000),
)
def test_blocks_cover_the_rows_and_keep_to_their_limit(start, length, chunk, row, limit):
    ranges = block_ranges(start, start + length, row, chunk, limit)
    assert ranges[0][0] == start
    assert ranges[-1][1] == start + length
    assert all(b == c for (_, b), (c, _) in pairwise(ranges))
    assert all(a < b for a, b in ranges)
    assert all((b - a) * row <= 2 * max(limit, row) for a, b in ranges)
    if chunk * row <= limit:
        assert all(b % chunk == 0 for _, b in ranges[:-1])


@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(1, 400),
    n=st.integers(1, 20),
    chunk=st.integers(1, 100),
    irregular=st.booleans(),
    seed=st.integers(0, 99),
)
def test_cuts_cover_the_rows_in_parts_that_are_balanced(m, n, chunk, irregular, seed):
    n = min(n, m)
    boundaries = np.sort(np.random.default_rng(seed).integers(0, m, 8)).tolist() if irregular else None
    cuts = balanced(m, n, boundaries, chunk)
    sizes = [b - a for a, b in cuts]
    assert len(cuts) == n
    assert sum(sizes) == m
    assert cuts[0][0] == 0
    assert all(b == c for (_, b), (c, _) in pairwise(cuts))
    assert min(sizes) >= 1
    assert max(sizes) <= max(1.25 * m / n, -(-m // n))


# --------------------------------------------------------------------------------- reading ahead


def test_reading_ahead_overlaps_and_leaves_no_thread_behind():
    started = threading.Event()

    def read(a, b):
        if a == 1:
            started.set()
        return a, b

    blocks = read_ahead(read, [(0, 1), (1, 2), (2, 3)])
    assert next(blocks) == (0, 1)
    assert started.wait(10)  # the second is read though nobody asked for it yet
    blocks.close()
    assert not [t for t in threading.enumerate() if "grassia-read-ahead" in t.name]


def test_an_error_of_the_reader_reaches_the_caller_with_the_rows_and_the_name():
    class Broken(ArrayStore):
        def read(self, start, stop):
            if start >= 20:
                raise OSError("the disk is gone")
            return super().read(start, stop)

    component = StoredRowsComponent(Broken(random_rows(50, 4)), name="x.dat", max_bytes=10 * 32)
    with pytest.raises(InvalidComponent, match=r"rows 20:30 of x\.dat cannot be read: the disk is gone"):
        component.moments()


def test_a_store_that_gives_other_rows_than_it_was_asked_for_is_refused():
    class Short(ArrayStore):
        def read(self, start, stop):
            return super().read(start, stop - 1)

    with pytest.raises(InvalidComponent, match=r"rows 0:50 of x must come as \(50, 4\); got \(49, 4\)"):
        StoredRowsComponent(Short(random_rows(50, 4)), name="x").moments()


def test_a_pass_that_is_no_longer_wanted_is_cut_short():
    store = ArrayStore(random_rows(1000, 4))
    component = StoredRowsComponent(store, max_bytes=10 * 32)
    component.moments()
    store.reads.clear()
    with pytest.raises(Withdrawn), watching(lambda: len(store.reads) >= 5):
        component.apply(np.eye(4))
    assert len(store.reads) < 20


# ------------------------------------------------------------------------------- a store of one's own


def test_an_opener_of_ones_own_is_a_source_like_others():
    X = random_rows(90, 5)
    opener = ArrayOpener(ArrayStore(X, chunk_rows=15))
    components = from_rows(opener, 3)
    line = components.describe().splitlines()[2]
    assert line == "  1  rows 30 x 5, float64, 1.2 kB, from mine[30:60] (Mine in chunks of 15), centred"
    assert components.n_rows == 90
    result = grassia.eigenspace(components, 2, rng=0)
    expected = grassia.eigenspace(from_rows(X), 2, rng=0)
    np.testing.assert_allclose(result.values, expected.values, rtol=1e-8)


def test_boundaries_of_the_store_are_where_it_is_cut():
    opener = ArrayOpener(ArrayStore(random_rows(90, 5), boundaries=[0, 28, 57, 80]))
    assert [loader.start for loader in split_store(opener, 3)] == [0, 28, 57]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (np.zeros((0, 3)), "mine must not be empty; it has 0 rows x 3 features"),
        (np.zeros((3, 0)), "mine must not be empty"),
        (np.zeros((3, 2), complex), "the entries of mine must be real numbers"),
        (np.zeros(3), "mine must be two-dimensional"),
    ],
)
def test_a_store_without_rows_of_numbers_is_refused(rows, text):
    with pytest.raises(InvalidComponent, match=text):
        split_store(ArrayOpener(ArrayStore(rows)), 1)


def test_integers_that_double_precision_cannot_hold_are_refused_in_any_block():
    X = np.ones((100, 2), np.int64)
    X[77, 1] = 2**60
    with pytest.raises(InvalidComponent, match=r"integers must be at most 2\*\*53"):
        StoredRowsComponent(ArrayStore(X), max_bytes=160).moments()


@pytest.mark.parametrize("sparse", [False, True])
def test_nan_is_found_in_any_block_with_its_row_in_the_store(sparse):
    X = random_rows(100, 3)
    X[77, 1] = np.nan
    store = ArrayStore(sp.csr_array(X) if sparse else X)
    with pytest.raises(InvalidComponent, match="row 77 of x holds NaN or inf in column 1"):
        StoredRowsComponent(store, 30, 95, name="x", max_bytes=400).moments()


def test_squares_that_overflow_only_in_sum_are_refused():
    X = np.full((40, 2), 5e153)
    with pytest.raises(InvalidComponent, match="squares of the rows must not overflow"):
        StoredRowsComponent(ArrayStore(X * np.r_[1, -1]), center=False, max_bytes=16 * 3).moments()


def test_a_loader_without_facts_opens_its_store_to_learn_them():
    loader = StoredRowsLoader(ArrayOpener(ArrayStore(random_rows(30, 4))), 3)
    assert loader.n_features == 4
    assert loader.extent().n_rows == 27
    assert "rows 27 x 4" in loader.describe()

    class Gone(ArrayOpener):
        def open(self):
            raise FileNotFoundError("gone")

    gone = StoredRowsLoader(Gone(ArrayStore(np.eye(2))))
    assert gone.n_features is None
    assert gone.extent() is None
    assert "cannot be opened here" in gone.describe()
    with pytest.raises(InvalidComponent, match="must exist where the worker runs; mine does not: gone"):
        gone.open()


# ------------------------------------------------------------------------------- several files as one


class ClosingStore(ArrayStore):
    """A store that counts how many of its kind are open."""

    opened = 0
    most = 0

    def __init__(self, rows):
        super().__init__(rows)
        ClosingStore.opened += 1
        ClosingStore.most = max(ClosingStore.most, ClosingStore.opened)

    def close(self):
        ClosingStore.opened -= 1


@dataclass(frozen=True)
class ClosingOpener:
    rows: np.ndarray = field(hash=False)
    name: str = "part"
    kind = "Mine"

    def open(self):
        return ClosingStore(self.rows)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_merged_stores_are_one_and_only_one_of_them_is_open(sparse, n):
    X = random_rows(100, 4, sparse=sparse)
    cuts = [0, 7, 8, 30, 30 + 41, 90, 100]
    openers = [ClosingOpener(X[a:b], f"part {i}") for i, (a, b) in enumerate(pairwise(cuts))]
    ClosingStore.opened = ClosingStore.most = 0
    components = from_rows(openers, n)
    assert (components.n_rows, components.sparse, len(components)) == (100, sparse, n)
    for max_bytes in (1 << 20, 5 * 32):
        found = [b.toarray() if sp.issparse(b) else b for b in components.blocks(max_bytes)]
        np.testing.assert_array_equal(np.vstack(found), X.toarray() if sparse else X)
    result = grassia.eigenspace(components, 2, rng=0)
    expected = grassia.eigenspace(from_rows(X), 2, rng=0)
    np.testing.assert_allclose(result.values, expected.values, rtol=1e-8)
    assert ClosingStore.most == 1
    assert ClosingStore.opened == 0


def test_rows_of_merged_stores_are_named_by_their_own_store():
    X = random_rows(60, 4)
    X[47, 2] = np.inf
    components = from_rows([ClosingOpener(X[a : a + 20], f"part {a}") for a in (0, 20, 40)], 1)
    assert "from part 0 to part 40[0:60] (3 x Mine)" in components.describe()
    with pytest.raises(InvalidComponent, match="row 7 of part 40 holds NaN or inf in column 2"):
        components[0].open().moments()


# ------------------------------------------------------------------------------------ blocks of rows


@pytest.mark.parametrize("n", [None, 2])
def test_blocks_of_a_list_are_all_its_rows_in_order(n, tmp_path):
    X = random_rows(70, 4)
    np.save(tmp_path / "a.npy", X[10:30])
    S = sp.csr_array(X[50:])
    mapped = np.memmap(tmp_path / "raw", float, "w+", shape=(5, 4))
    mapped[:] = X[45:50]
    mapped.flush()
    shards = [X[:10], tmp_path / "a.npy", lambda: X[30:45], mapped, S]
    blocks = list(from_rows(shards, n).blocks(max_bytes=7 * 32))
    assert all(block.shape[0] <= 12 for block in blocks)
    found = np.vstack([b.toarray() if sp.issparse(b) else b for b in blocks])
    np.testing.assert_array_equal(found, X)


def test_components_that_are_not_rows_have_no_blocks():
    mixed = from_rows(np.eye(3)) + as_components([MatrixComponent(np.eye(3)), np.eye(3)])
    with pytest.raises(InvalidInput, match="only where components are made of rows; this is: Matrix"):
        list(mixed.blocks())
    assert (mixed.n_rows, mixed.nbytes, mixed.dtype, mixed.sparse) == (None, None, None, False)


def test_sizes_are_unknown_where_a_callable_makes_the_rows():
    components = from_rows([np.eye(3), lambda: np.eye(3)])
    assert (components.n_rows, components.nbytes, components.dtype) == (None, None, None)


def test_bytes_of_sparse_rows_are_those_of_their_arrays():
    S = sp.csr_array(random_rows(200, 30, sparse=True))
    held = S.data.nbytes + S.indices.nbytes + S.indptr.nbytes
    assert from_rows(S, 4).nbytes == pytest.approx(held, rel=0.01)


# -------------------------------------------------------------------------------------- mapped files


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("center", [True, False])
def test_a_large_mapped_file_is_worked_on_in_blocks_with_the_same_result(order, center, tmp_path):
    X = np.asarray(random_rows(3000, 7, "f4"), order=order)
    np.save(tmp_path / "a.npy", X)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    component = MappedRowsComponent(mapped[100:2900], mapped._mmap, center, max_bytes=4096)
    plain = RowsComponent(X[100:2900], center)
    V = np.random.default_rng(0).standard_normal((7, 2))
    np.testing.assert_allclose(component.apply(V), plain.apply(V), rtol=1e-10)
    np.testing.assert_allclose(component.apply(V, single=True), plain.apply(V, single=True), rtol=1e-4)
    assert component.moments().trace == pytest.approx(plain.moments().trace, rel=1e-12)
    blocks = list(component.raw_blocks(4096))
    np.testing.assert_array_equal(np.vstack(blocks), X[100:2900])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages are counted as Linux does")
def test_pages_of_a_large_mapped_file_are_given_back(tmp_path, monkeypatch):
    X = np.ones((12 << 20, 1), np.float64)  # 96 MB
    np.save(tmp_path / "ones.npy", X)
    resident = {}
    for small in (0, 1 << 30):
        monkeypatch.setattr(mapped_rows, "_SMALL_FILE", small)
        component = NpyRowsLoader(str(tmp_path / "ones.npy")).open()
        component.moments()
        found = re.search(r"ones\.npy\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
        resident[small] = int(found[1]) / 1000
        del component
    assert resident[0] < 40
    assert resident[1 << 30] > 80
