"""Rows in NPZ files, sparse and dense, and the blocks into which compressed rows are decoded."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from grassia.data import from_rows, room
from grassia.data.formats import decoding
from grassia.errors import InvalidComponent
from scientific_files import gone_through, opened, plain

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
