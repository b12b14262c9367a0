"""Rows in LIBSVM text: what it may hold, the fast parser, indices, faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from grassia.data import from_rows
from grassia.data.formats import libsvm
from grassia.errors import InvalidInput
from scientific_files import D, M, gone_through, opened, plain, some_genotypes, write_libsvm

ODD = b"""# a comment before all
1,2 1:0.5\t3:-2e-3   # two labels, a tab

-1
3 qid:7 2:1 4:1
+1 2:4\r
"""
ODD_ROWS = np.array([[0.5, 0, -2e-3, 0], [0, 0, 0, 0], [0, 1, 0, 1], [0, 4, 0, 0]])


@pytest.fixture
def genotypes():
    return some_genotypes()


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
