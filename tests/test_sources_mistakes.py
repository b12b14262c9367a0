"""What people get wrong about files of tables, in Python and on the command line; errors say what to do."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from grassia.cli import main
from grassia.data import from_rows
from grassia.errors import InvalidComponent, InvalidInput

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def columns_of(names, text=()):
    rng = np.random.default_rng(len(names))
    return {name: ["x", "y", "z"] if name in text else rng.standard_normal(3) for name in names}


def write(path, names, text=()):
    """Three rows: columns of numbers, and of text."""
    table, path = pa.table(columns_of(names, text)), Path(path)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path) if path.suffix == ".parquet" else table.to_pandas().to_csv(path, index=False)
    return path


def refused(source, **options) -> str:
    with pytest.raises(InvalidInput) as e:
        from_rows(source, options=options)
    return str(e.value)


@pytest.fixture
def told(capsys):
    """The line that a command ends with, whose exit code is 2."""

    def told(*arguments: str) -> str:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        return line

    return told


# -- what is no text ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("without", [b"", b"\0", b"\0\r", b"\0\r\n", b'\0"'])
def test_random_bytes_are_refused_as_no_text_with_the_byte(seed, without, told):
    found = np.random.default_rng(seed).bytes(500).translate(None, without)
    Path("x.csv").write_bytes(found)
    line = told("pca", "x.csv", "-k", "1")
    assert line.startswith("grassia: x.csv must be text, in UTF-8; it holds binary data: byte ")
    place, value = line.split("byte ")[1].split(" is ")
    assert found[int(place)] == int(value, 16) < 32


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.eye(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (lambda: write("a.parquet", "ab").read_bytes(), "a Parquet file; name it .parquet"),
        (npy, "numpy.save; name it .npy"),
        (lambda: gzip.compress(b"a,b\n1,2\n"), "compressed by gzip; add .gz"),
        (lambda: b"PK\x03\x04\x14\x00 a spreadsheet", "export it as CSV"),
        (lambda: "a,b\n1,2\n".encode("utf-16"), "UTF-16; save it as UTF-8"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_its_kind(content, kind):
    Path("x.csv").write_bytes(content())
    said = refused("x.csv")
    assert str(Path("x.csv").absolute()) in said
    assert kind in said


def test_binary_data_far_into_a_text_file_is_told_with_its_line():
    good = b"a,b\n" + b"1,2\n" * 40_000
    for damage in (b"\xff\x01\x02,3\n", b'"\xff\x01\x02,3\n', b"\xff\x01\r4,3\n", b"\xff\x01\n"):
        Path("x.csv").write_bytes(good + damage + b"5,6\n")
        with pytest.raises(InvalidComponent, match=r"x\.csv must be text.*line 40002 holds binary .*0x01"):
            from_rows("x.csv")[0].open().moments()


@pytest.mark.parametrize("text", ["t\x01,a\nb\x02,1\nc,2\n", "t,a\n\x1b[1mx,1\ny\x1a,2\n"])
def test_odd_characters_in_what_is_text_otherwise_do_no_harm(text):
    Path("x.csv").write_text(text)
    assert from_rows("x.csv", options={"drop": [0]}).n_rows == 2


def test_fields_may_be_separated_by_a_byte_that_text_does_not_hold():
    Path("x.csv").write_bytes("größe\x01b\n1\x012\n".encode("latin-1"))
    (block,) = from_rows("x.csv", options={"delimiter": "\x01"}).blocks()
    np.testing.assert_array_equal(block, [[1, 2]])


# -- columns that not all files have --------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_that_lacks_a_column_is_named_with_it_and_so_is_one_of_more(suffix, told):
    for i, names in enumerate(["abcde", "abde", "abcdez"]):
        write(f"parts/{i}.{suffix}", names)
    said = refused("parts")
    assert "component 1: " in said
    assert f"{Path.cwd()}/parts/1.{suffix} lacks 'c', compared with {Path.cwd()}/parts/0.{suffix}; " in said
    assert "{'drop': ['c']}" in said
    whole = str(Path("parts").absolute())
    for source, typed in {
        "parts": "parts",
        "parts/": "parts",
        f"parts/*.{suffix}": "parts",
        f"./parts/?.{suffix}": "./parts",
        whole: whole,
    }.items():
        line = told("pca", source, "-k", "1")
        assert f" {typed}/1.{suffix} lacks 'c', compared with {typed}/0.{suffix}; leave it out " in line
        assert "--drop 'c'" in line
    assert f"2.{suffix} has 'z' in addition" in refused([f"parts/0.{suffix}", f"parts/2.{suffix}"])
    both = refused([f"parts/1.{suffix}", f"parts/2.{suffix}"])
    assert "2." in both
    assert "has 'c' and 'z' in addition" in both
    assert from_rows("parts", options={"drop": ["c", "z"]}).feature_names == tuple("abde")


def test_of_many_columns_that_differ_three_are_named_and_the_others_counted(told):
    write("a.parquet", "abcdefgh")
    write("b.parquet", "aBDxh")
    line = told("pca", "a.parquet", "b.parquet", "-k", "1")
    assert "b.parquet lacks 'b', 'c', 'd' and 3 more and has 'B', 'D' and 'x' in addition" in line
    assert line.endswith("compared with a.parquet; choose and order them with --columns")


def test_arrays_of_another_width_are_named_too(told):
    np.save("a.npy", np.eye(3))
    np.save("b.npy", np.ones((3, 4)))
    assert f"{Path('b.npy').absolute()} has 4, {Path('a.npy').absolute()} has 3" in refused(
        ["a.npy", "b.npy"]
    )
    assert told("pca", "a.npy", "b.npy", "-k", "1").endswith("features; b.npy has 4, a.npy has 3")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_to_drop_may_be_absent_from_some_files_but_not_from_all(suffix, told):
    write(f"parts/0.{suffix}", "ab")
    write(f"parts/1.{suffix}", ["a", "name", "b"], text=["name"])
    write(f"parts/2.{suffix}", "ab")
    files = [f"parts/{i}.{suffix}" for i in range(3)]
    for source in ("parts", f"parts/*.{suffix}", files):
        components = from_rows(source, options={"drop": ["name"]})
        assert (components.n_rows, components.feature_names) == (9, ("a", "b"))
        assert pickle.loads(pickle.dumps(components[0])).open().moments().count == 3
    assert main(["pca", "parts", "-k", "1", "--drop", "name", "-q", "-o", "m1"]) == 0
    assert main(["pca", *files, "-k", "1", "--drop", "name", "-q", "-o", "m2"]) == 0
    np.testing.assert_array_equal(np.load("m1/mean.npy"), np.load("m2/mean.npy"))
    nowhere = refused([files[0], files[2]], drop=["zip"])
    assert f"0.{suffix} and 1 more have no column 'zip'; their columns are 'a', 'b'" in nowhere


@pytest.mark.parametrize("inputs", [["parts"], ["parts/0.csv", "parts/1.csv"]])
def test_a_column_to_drop_that_no_file_has_is_refused_with_what_was_meant(inputs, told):
    write("parts/0.csv", "ab")
    write("parts/1.csv", ["a", "b", "weight"])
    line = told("pca", *inputs, "-k", "1", "--drop", "wieght")
    assert line.startswith(
        "grassia: parts/0.csv and 1 more have no column 'wieght'; their columns are 'a', 'b'"
    )
    assert line.endswith("did you mean 'weight'?")


def test_a_misspelt_column_of_text_is_told_as_such_and_not_as_text(told):
    write("a.csv", ["a", "name"], text=["name"])
    assert told("pca", "a.csv", "-k", "1", "--drop", "nmae").endswith("did you mean 'name'?")


def test_a_column_that_names_rows_must_be_in_every_file_and_that_is_told_before_the_run(told, capsys):
    write("a.csv", ["id", "a", "b"], text=["id"])
    write("b.csv", ["a", "b"])
    write("c.parquet", ["a", "b"])
    line = told("pca", "a.csv", "b.csv", "-k", "1", "--id", "id")
    assert "every file must have the column that --id or --label names" in line
    assert "b.csv has no 'id'" in line
    assert not Path("model").exists()
    assert main(["pca", "a.csv", "-k", "1", "--id", "id", "-q"]) == 0
    capsys.readouterr()
    assert "c.parquet has no 'id'" in told("project", "model", "c.parquet", "--id", "id")


# -- columns by name ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [(), ("a", "b")])
def test_columns_to_drop_given_with_commas_are_told_to_be_given_one_by_one(text, told):
    write("a.csv", "abcd", text)
    write("a.parquet", "abcd", text)
    for file in ("a.csv", "a.parquet"):
        line = told("pca", file, "-k", "1", "--drop", "a,b")
        assert line.endswith("give --drop once for each column: --drop 'a' --drop 'b'")
        assert refused(file, drop="a,b").endswith("give several as a list: drop=['a', 'b']")


def test_a_column_whose_name_has_a_comma_can_be_dropped():
    write("a.parquet", ["a,b", "c", "d"])
    assert from_rows("a.parquet", options={"drop": "a,b"}).feature_names == ("c", "d")


def test_blanks_between_the_columns_to_take_do_no_harm():
    write("a.csv", "abc")
    assert main(["pca", "a.csv", "-k", "1", "--columns", "c, a", "-q"]) == 0
    expected = columns_of("abc")
    np.testing.assert_allclose(np.load("model/mean.npy"), [expected["c"].mean(), expected["a"].mean()])


# -- columns of text ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("command", [["pca"], ["plan"]])
def test_all_columns_of_text_are_told_at_once_with_what_to_type(suffix, command, told):
    file = str(write(f"a.{suffix}", ["id", "x", "city", "y", "w"], text=["id", "city", "w"]))
    line = told(*command, file, "-k", "1")
    assert "column 'id' " in line
    assert "and 'city' and 'w' are no numbers either" in line
    assert "leave them out with --drop 'id' --drop 'city' --drop 'w', or" in line
    assert "--id or --label" in line
    assert "{'drop': ['id', 'city', 'w']}" in refused(file)
    assert from_rows(file, options={"drop": ["id", "city", "w"]}).feature_names == ("x", "y")


def test_all_columns_of_text_of_tables_in_memory_are_told_at_once():
    pl = pytest.importorskip("polars")
    columns = columns_of(["id", "x", "city"], text=["id", "city"])
    for table in (pa.table(columns), pa.table(columns).to_pandas(), pl.DataFrame(columns)):
        assert "{'drop': ['id', 'city']}" in refused(table)


def test_text_below_a_gap_is_told_with_the_text_of_the_first_row():
    Path("a.csv").write_text("a,b,c\n1,x,\n2,y,NA\n3,z,word\n")
    assert "{'drop': ['b', 'c']}" in refused("a.csv")


def test_many_columns_of_text_are_counted(told):
    names = [f"t{i}" for i in range(40)]
    write("a.csv", [*names, "x"], text=names)
    line = told("pca", "a.csv", "-k", "1")
    assert "and 't1', 't2', 't3' and 36 more are no numbers either; choose the others with --columns" in line


# -- shards and paths -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["pca"], ["plan"], ["check", "model"]])
def test_more_shards_than_rows_are_refused_and_workers_without_rows_do_no_harm(command, told, capsys):
    np.save("x.npy", np.random.default_rng(0).standard_normal((5, 3)))
    assert main(["pca", "x.npy", "-k", "1", "-q"]) == 0
    capsys.readouterr()
    k = [] if command[0] == "check" else ["-k", "1"]
    more = ["--overwrite"] if command[0] == "pca" else []
    line = told(*command, "x.npy", *k, "--shards", "8", *more)
    assert line == "grassia: --shards must be at most the number of rows, 5 in x.npy; got 8."
    for option in (["--shards", "5"], ["--workers", "8", "--backend", "threads"]):
        assert main([*command, "x.npy", *k, *option, *more]) == 0
        assert capsys.readouterr().err == ""


def bad_files():
    h5py = pytest.importorskip("h5py")
    rows = np.eye(3)
    rows[1, 1] = np.nan
    np.save("d/bad.npy", rows)
    np.savez("d/bad.npz", X=rows)
    np.savetxt("d/bad.csv", rows, delimiter=",")
    pq.write_table(pa.table({name: rows[:, j] for j, name in enumerate("abc")}), "d/bad.parquet")
    with h5py.File("d/bad.h5", "w") as file:
        file["X"] = rows
    Path("d/bad.svm").write_text("1 1:1 2:2\n1 1:nan 2:1\n1 2:3\n")
    return ["bad.npy", "bad.npz", "bad.csv", "bad.parquet", "bad.h5", "bad.svm"]


def test_every_format_names_the_whole_path_in_python_and_what_was_typed_on_the_command_line(told):
    Path("d").mkdir()
    for name in bad_files():
        with pytest.raises(InvalidComponent) as e:
            from_rows(f"d/{name}")[0].open().moments()
        assert str(Path("d", name).absolute()) in str(e.value)
        assert str(Path.cwd()) not in from_rows(f"d/{name}").describe()
        for typed in (f"d/{name}", f"./d/{name}", f"d/../d/{name}", str(Path("d", name).absolute())):
            assert f" {typed}" in told("pca", typed, "-k", "1")
        assert f" d/{name}" in told("pca", f"d/*{Path(name).suffix}", "-k", "1")
        assert f" d/{name}" in told("pca", f"d/{name}", "-k", "1", "-w", "2", "--backend", "threads")
