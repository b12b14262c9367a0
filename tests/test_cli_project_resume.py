"""`grassia project -o` that is interrupted keeps the rows that are done, and goes on with the others."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grassia.cli import main
from grassia.cli._outcome import explain
from grassia.cli._partial import partial_table

#: Few rows are done at a time, and Ctrl-C comes after so many blocks.
INTERRUPTED = """
import os, signal, sys
import grassia.cli._scores
from grassia.cli import main
from grassia.cli._partial import PartialTable

grassia.cli._scores.BLOCK_BYTES = 10 * 5 * 8
left, add = int(sys.argv[1]), PartialTable.add

def counted(self, rows, names):
    global left
    add(self, rows, names)
    left -= 1
    if not left:
        os.kill(os.getpid(), getattr(signal, os.environ["BY"]))

PartialTable.add = counted
sys.exit(main(sys.argv[2:]))
"""
FORMATS = ["npy", "csv", "tsv", "parquet"]


@pytest.fixture
def X(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(7).standard_normal((100, 5))
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "--no-scores"]) == 0
    return X


def interrupted(blocks: int, *arguments: str, signal_name: str = "SIGINT") -> tuple[int, str]:
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(blocks), "project", "m", "x.npy", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "BY": signal_name},
    )
    assert found.stdout == ""
    return found.returncode, found.stderr


def scores_in(path: str) -> np.ndarray:
    if path.endswith(".npy"):
        return np.load(path)
    if path.endswith(".parquet"):
        table = pytest.importorskip("pyarrow.parquet").read_table(path)
        assert table["row"].to_pylist() == list(range(100))
        return np.column_stack([table[name].to_numpy() for name in ("PC1", "PC2")])
    rows = np.loadtxt(path, delimiter="\t" if path.endswith(".tsv") else ",", skiprows=1)
    np.testing.assert_array_equal(rows[:, 0], np.arange(100))
    return rows[:, 1:]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_line_that_ctrl_c_prints_goes_on_where_it_was(kind, X, capsys):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    output = f"s.{kind}"
    code, said = interrupted(3, "-o", output)
    assert code == 130
    assert said == (
        f"grassia: interrupted; 30 of 100 rows are kept in {output}.part; go on with the same command and "
        "--resume\n"
    )
    assert not Path(output).exists()
    code, said = interrupted(4, "-o", output, "--resume")  # it may be needed twice
    assert (code, "70 of 100 rows" in said) == (130, True)
    assert main(["project", "m", "x.npy", "-o", output, "--resume"]) == 0
    expected = (X - X.mean(axis=0)) @ np.load("m/components.npy").T
    np.testing.assert_allclose(scores_in(output), expected, atol=1e-13)
    assert sorted(Path().glob("s.*")) == [Path(output)]


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_what_is_kept_is_not_computed_again(kind, X):
    """What the part says of the first rows is what is there in the end."""
    output, part = f"s.{kind}", Path(f"s.{kind}.part")
    interrupted(3, "-o", output)
    before = part.read_bytes()
    part.write_bytes(before[:-8] + (b"\0" * 8 if kind == "npy" else b"0000000\n"))
    assert main(["project", "m", "x.npy", "-o", output, "--resume"]) == 0
    expected = (X - X.mean(axis=0)) @ np.load("m/components.npy").T
    found = scores_in(output)
    assert found[29, 1] != expected[29, 1]
    found[29, 1] = expected[29, 1]
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_half_a_row_that_was_written_is_cut_off(X):
    interrupted(3, "-o", "s.csv")
    with open("s.csv.part", "a", encoding="utf-8") as file:
        file.write("30,0.12")
    assert main(["project", "m", "x.npy", "-o", "s.csv", "--resume"]) == 0
    assert scores_in("s.csv").shape == (100, 2)


def test_without_resume_it_begins_anew(X):
    interrupted(3, "-o", "s.npy")
    assert main(["project", "m", "x.npy", "-o", "s.npy"]) == 0
    assert scores_in("s.npy").shape == (100, 2)
    assert sorted(Path().glob("s.*")) == [Path("s.npy")]


def test_resume_with_nothing_kept_begins(X):
    assert main(["project", "m", "x.npy", "-o", "s.npy", "--resume"]) == 0
    assert scores_in("s.npy").shape == (100, 2)


def of_another_model() -> list[str]:
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "--no-scores", "--no-center", "--overwrite"]) == 0
    return []


def of_other_rows() -> list[str]:
    np.save("x.npy", np.zeros((50, 5)))
    return []


def of_changed_rows() -> list[str]:
    np.save("x.npy", -np.load("x.npy"))
    return []


def without_names() -> list[str]:
    return ["--no-header"]


def damaged() -> list[str]:
    Path("s.csv.part.json").write_text("{", encoding="utf-8")
    return []


def shortened() -> list[str]:
    os.truncate("s.csv.part", 20)
    return []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_another_model, "of another projection (the model)"),
        (of_other_rows, "of another projection (the input, shape)"),
        (of_changed_rows, "of another projection (the input)"),
        (without_names, "of another projection (header)"),
        (damaged, "s.csv.part.json is damaged"),
        (shortened, "s.csv.part is shorter than it was"),
    ],
)
def test_what_does_not_fit_is_refused_and_kept(change, words, X, capsys):
    interrupted(3, "-o", "s.csv")
    more = change()
    capsys.readouterr()
    assert main(["project", "m", "x.npy", "-o", "s.csv", "--resume", *more]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert Path("s.csv.part").exists()
    assert Path("s.csv.part.json").exists()


def test_resume_needs_a_file_to_go_on_with(X, capsys):
    assert main(["project", "m", "x.npy", "--resume"]) == 2
    assert "--output" in capsys.readouterr().err


def test_two_commands_do_not_write_to_one_file(X, capsys):
    with partial_table(
        Path("s.csv"), {}, (1, 2), np.dtype(float), ["row"], header=True, overwrite=False, resume=False
    ) as table:
        assert main(["project", "m", "x.npy", "-o", "s.csv"]) == 2
        assert "another command is writing s.csv" in capsys.readouterr().err
        table.add(np.zeros((1, 2)), [("0",)])
    assert Path("s.csv").read_text() == "row,PC1,PC2\n0,0.0,0.0\n"
    assert sorted(path.name for path in Path().glob("*s.csv*")) == ["s.csv"]


@pytest.mark.parametrize("output", ["x.npy", "../x.npy", "m/components.npy"])
def test_nothing_is_written_over_the_rows_or_the_model(output, X, capsys):
    Path("sub").mkdir()
    before = {path: path.read_bytes() for path in Path().rglob("*.npy")}
    inside = str(Path("sub", output)) if output.startswith("..") else output
    assert main(["project", "m", "x.npy", "-o", inside, "--overwrite"]) == 2
    assert "--output must not be" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().rglob("*.npy")} == before


def test_what_ends_a_job_is_as_good_as_ctrl_c(X):
    code, said = interrupted(3, "-o", "s.npy", signal_name="SIGTERM")
    assert (code, "30 of 100 rows are kept in s.npy.part" in said) == (130, True)
    assert main(["project", "m", "x.npy", "-o", "s.npy", "--resume"]) == 0
    assert scores_in("s.npy").shape == (100, 2)


def test_a_full_disk_is_said_with_a_remedy():
    code, text = explain(OSError(errno.ENOSPC, "No space left on device")) or (0, "")
    assert code == 2
    assert "free some" in text


def test_the_note_is_plain_json(X):
    interrupted(3, "-o", "s.csv")
    kept = json.loads(Path("s.csv.part.json").read_text(encoding="utf-8"))
    assert kept["rows"] == 30
    assert kept["size"] == Path("s.csv.part").stat().st_size
