"""Mistakes on the command line: one line that says what is wrong, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grassia.cli import main
from grassia.cli._outcome import code_of, spoken
from grassia.result import Status


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.standard_normal((50, 4)) * [4.0, 3.0, 1.0, 1.0])
    Path("text.csv").write_text("name,a,b\nx,1,2\ny,3,4\nz,6,6\n")
    Path("late.csv").write_text("a,b\n1,2\n3,4\n5,6\nseven,8\n")
    Path("ragged.csv").write_text("a,b\n1,2\n3,4,5\n6,7\n")
    Path("gap.csv").write_text("a,b\n1,2\n3,\n6,7\n")
    Path("ok.csv").write_text("a,b\n1,2\n3,4\n6,9\n")
    Path("other.csv").write_text("a,c\n1,2\n3,4\n")
    Path("wide.csv").write_text("a,b,c\n1,2,3\n4,5,7\n")
    Path("empty.csv").write_text("")
    Path("empty.npy").write_text("")
    Path("bare.csv").write_text("a,b\n")
    Path("file").write_text("in the way")
    Path("full").mkdir()
    Path("full/precious").write_text("data")
    np.save("nan.npy", np.array([[1.0, 2.0], [np.nan, 3.0], [4.0, 4.0]]))
    return tmp_path


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("grassia: ")
    return lines[0]


MISTAKES = [
    ("a path that is not there", ["nothing.csv"], ["nothing.csv", "exist", "check the path"]),
    ("a path with a slip", ["gpa.csv"], ["gpa.csv", "did you mean gap.csv?"]),
    ("a folder that is not there", ["rows/gap.csv"], ["rows/gap.csv", "no folder rows"]),
    ("a suffix that nothing reads", ["file"], ["suffix", "file"]),
    ("k too large", ["x.npy", "-k", "5"], ["-k", "5", "50 rows x 4 columns"]),
    ("k zero", ["x.npy", "-k", "0"], ["-k", "0"]),
    ("k no number", ["x.npy", "-k", "three"], ["-k", "integer", "'three'"]),
    ("k no number, written close", ["x.npy", "-kthree"], ["-k", "integer", "'three'"]),
    ("a tolerance that is a word", ["x.npy", "--tol=small"], ["--tol", "number", "'small'"]),
    ("a column of text", ["text.csv", "-k", "1"], ["text.csv", "'name'", "--drop 'name'"]),
    ("text far down", ["late.csv", "-k", "1"], ["late.csv", "'seven'", "line 5"]),
    ("ragged rows", ["ragged.csv", "-k", "1"], ["ragged.csv", "line 3"]),
    ("ragged rows, in a worker", ["ragged.csv", "-k", "1", "-w", "2"], ["ragged.csv", "line 3"]),
    ("a value that is missing", ["gap.csv", "-k", "1"], ["gap.csv", "row 1", "'b'"]),
    ("NaN", ["nan.npy", "-k", "1"], ["nan.npy", "row 1", "NaN"]),
    ("an empty file", ["empty.csv", "-k", "1"], ["empty.csv", "empty"]),
    ("an empty array file", ["empty.npy", "-k", "1"], ["empty.npy", "empty"]),
    ("a header without rows", ["bare.csv", "-k", "1"], ["bare.csv", "no rows"]),
    ("files of other columns", ["ok.csv", "other.csv", "-k", "1"], ["other.csv", "'c'", "ok.csv"]),
    ("files of more columns", ["ok.csv", "wide.csv", "-k", "1"], ["wide.csv has 'c'", "with ok.csv"]),
    ("a column that is not there", ["ok.csv", "-k", "1", "--drop", "z"], ["ok.csv", "'z'", "'a', 'b'"]),
    ("a label of what has no columns", ["x.npy", "--label", "z"], ["--label", "x.npy"]),
    ("an option without a value", ["ok.csv", "--option", "header"], ["--option", "NAME=VALUE"]),
    ("an unknown option of the format", ["ok.csv", "--option", "colour=1"], ["colour", "delimiter"]),
    ("an unknown solver", ["x.npy", "--solver", "nystrm"], ["nystrm", "Did you mean nystrom?"]),
    ("an unknown back-end", ["x.npy", "--backend", "process"], ["Did you mean processes?"]),
    ("an unknown format", ["x.npy", "--format", "xls"], ["xls", "npz"]),
    ("an unknown precision", ["x.npy", "--precision", "half"], ["half", "float32"]),
    ("no worker", ["x.npy", "--workers", "0"], ["--workers", "0"]),
    ("no shard", ["x.npy", "-k", "2", "--shards", "0"], ["--shards", "0"]),
    ("several serial workers", ["x.npy", "--backend", "serial", "-w", "4"], ["serial", "--workers 4"]),
    ("an address without a cluster", ["x.npy", "--address", "here:1"], ["--address", "ray"]),
    ("a tolerance that is no sine", ["x.npy", "--tol", "2"], ["--tol", "2"]),
    ("a time that is over", ["x.npy", "--time-limit", "0"], ["--time-limit"]),
    ("a negative seed", ["x.npy", "--seed", "-1"], ["--seed"]),
    ("no input", [], ["INPUT"]),
    ("an unknown option", ["x.npy", "--colour"], ["--colour"]),
    ("an output that exists", ["x.npy", "-k", "2", "-o", "full"], ["full", "--overwrite"]),
    ("an output that is no model", ["x.npy", "-k", "2", "-o", "full", "--overwrite"], ["model.json"]),
    ("an output that is a file", ["x.npy", "-k", "2", "-o", "file"], ["file", "folder"]),
    ("an output that cannot be", ["x.npy", "-k", "2", "-o", "/proc/model"], ["/proc", "cannot use"]),
    ("an output below a file", ["x.npy", "-k", "2", "-o", "file/model"], ["file is a file"]),
]


@pytest.mark.parametrize(("arguments", "named"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_and_code_2_and_leaves_nothing(arguments, named, folder, capsys):
    before = sorted(folder.rglob("*"))
    assert main(["pca", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = one_line(err)
    assert not [text for text in named if text not in line], line
    assert sorted(folder.rglob("*")) == before
    assert Path("full/precious").read_text() == "data"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grassia", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["rows.parquet"], ["x.npy", "-k", "2", "--format", "parquet"]])
def test_without_pyarrow_the_extra_is_named_before_any_work(arguments, folder):
    Path("rows.parquet").write_bytes(b"PAR1")
    block = folder / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    done = run("pca", *arguments, PYTHONPATH=str(block))
    assert done.returncode == 2
    assert "pip install 'grassia[parquet]'" in one_line(done.stderr)
    assert not Path("model").exists()


def test_a_mistake_in_a_process_of_its_own_is_the_same_line_without_a_traceback(folder):
    done = run("pca", "text.csv", "-k", "1", "--workers", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--drop 'name'" in one_line(done.stderr)


def test_debug_shows_the_traceback(folder):
    done = run("pca", "text.csv", "-k", "1", "--debug")
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr
    assert "InvalidComponent" in done.stderr


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.CONVERGED, 0),
        (Status.GAP_TOO_SMALL, 1),
        (Status.MAX_PASSES, 1),
        (Status.TIME_LIMIT, 1),
        (Status.WORKER_LOST, 3),
        (Status.COMPONENT_FAILED, 3),
        (Status.INTERRUPTED, 130),
    ],
)
def test_every_outcome_has_its_exit_code(status, code):
    assert code_of(status) == code


def test_a_file_that_is_cut_short_while_it_is_read_is_a_mistake_of_the_input(folder, capsys):
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-100])
    assert main(["pca", "cut.npy", "-k", "1"]) == 2
    line = one_line(capsys.readouterr().err)
    assert "cut.npy" in line
    assert "cut short" in line


def test_errors_of_the_library_name_options_of_the_command_line():
    said = spoken(
        "give from_rows(path, options={'missing': 'mean'}) instead of the path for the variant's mean"
    )
    assert said == "give --option missing=mean for the variant's mean"
    assert "--option zero_based=True" in spoken("give options={'zero_based': True} if they count from 0")


@pytest.mark.parametrize("command", ["pca", "project", "check", "plan", "bench", "simulate"])
def test_help_has_examples_and_exit_codes(command, capsys):
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"grassia {command} " in said
    assert "Exit codes" in said


def test_the_shell_completes_commands_options_and_solvers(folder):
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        done = run(_GRASSIA_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
        return done.stdout.split()

    script = Path(sys.executable).with_name("grassia")
    assert script.exists()
    assert completed("grassia p") == ["pca", "project", "plan"]
    assert completed("grassia pca --solver ny") == ["nystrom"]
    assert completed("grassia check --bac") == ["--backend"]


def test_a_component_that_fails_again_and_again_is_one_line_and_code_3(folder, capsys):
    assert main(["pca", "x.npy", "-k", "2", "-w", "2", "--backend", "threads", "--fault", "error:1"]) == 3
    assert "component 1" in one_line(capsys.readouterr().err)
    assert not Path("model").exists()


def test_a_worker_that_is_lost_for_good_has_code_3_and_the_best_so_far_is_kept(folder, capsys):
    late = ",".join(str(i) for i in range(5, 200))
    arguments = ["--backend", "threads", "--solver", "grassia", "--fault", f"crash:1@{late}"]
    assert main(["pca", "x.npy", "-k", "2", "-w", "2", *arguments, "-o", "m"]) == 3
    out, err = capsys.readouterr()
    assert "WORKER_LOST" in out
    assert err == ""
    assert np.load("m/components.npy").shape == (2, 4)


def test_faults_that_can_be_borne_do_not_change_the_exit_code(folder):
    faults = ["--fault", "crash:1@3", "--fault", "corrupt:0@2"]
    arguments = ["-w", "2", "--backend", "threads", "--solver", "nystrom", "-q"]
    assert main(["pca", "x.npy", "-k", "2", *arguments, *faults]) == 0


@pytest.mark.parametrize("arguments", [["pca", "x.npy", "-k", "2"], ["project", "model", "x.npy"]])
def test_whoever_stops_reading_gets_a_code_of_its_own(arguments, folder):
    assert main(["pca", "x.npy", "-k", "2", "-q", "-o", "model"]) == 0
    np.save("x.npy", np.tile(np.load("x.npy"), (2000, 1)))  # more than a pipe holds
    if arguments[0] == "pca":
        arguments = [*arguments, "-o", "other"]
    process = subprocess.Popen([sys.executable, "-m", "grassia", *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 141  # 1 would be an answer that is not certified
