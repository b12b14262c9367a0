"""Rows in many files: patterns, folders, lists; merged, split, and checked against each other."""

from __future__ import annotations

import numpy as np
import pytest

from grassia.components import SumComponent
from grassia.data import extent_of, from_rows
from grassia.errors import InvalidComponent, InvalidInput
from row_sources import NAMES, D, M, csv, folder, frame, hdf5, parquet, some_rows, zarr_array


@pytest.fixture(scope="module")
def X():
    return some_rows()


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
    with pytest.raises(
        InvalidComponent, match=r"component 1: .*column 0 of .*1\.csv is 'f1', of .*0\.csv 'f0'"
    ):
        from_rows(str(tmp_path / "*.csv"))
    chosen = from_rows(str(tmp_path / "*.csv"), options={"columns": ["f2", "f0"]})
    np.testing.assert_array_equal(np.vstack(list(chosen.blocks())), np.vstack([X[:, [2, 0]]] * 2))
