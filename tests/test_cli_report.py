"""`grassia report`, and the options of `grassia pca` that write reports and logs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grassia.cli import main
from report_pages import parsed


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no log"),
        ("hello\n", "not JSON"),
        ('{"grassia-log": 1}\n', "replay"),
        ('{"grassia-run": 1}\n', "damaged"),
        ('{"grassia-run": 99}\n', "no log"),
        ('[1]\n{"grassia-run": 1}\n', "no log"),
    ],
)
def test_what_is_no_log_is_one_line_and_code_2(content, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").write_text(content)
    assert main(["report", "x.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not Path("report.html").exists()


@pytest.mark.parametrize("form", ["npy", "npz", "csv", "parquet"])
def test_the_command_makes_a_page_of_a_model_and_of_its_log(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((150, 5)) * [5.0, 3.0, 1.0, 0.7, 0.5]
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["kind"] = ["long" if row[0] > 0 else "short" for row in X]
    frame.to_csv("t.csv", index=False)
    arguments = ["pca", "t.csv", "-k", "2", "--label", "kind", "--format", form, "-o", "m", "-q"]
    assert main([*arguments, "--log", "run.jsonl", "--report", "run.html"]) == 0
    assert main(["report", "m", "-o", "model.html"]) == 0
    assert main(["report", "m", "run.jsonl", "-o", "both.html"]) == 0
    values = json.loads(Path("m/model.json").read_text())["eigenvalues"]
    for name in ("run.html", "model.html", "both.html"):
        found = parsed(Path(name))
        np.testing.assert_allclose([float(r[1]) for r in found.rows("chart-spectrum")[:2]], values, rtol=1e-9)
        groups = {row[0]: int(row[1]) for row in found.rows("chart-rows")}
        assert groups == frame["kind"].value_counts().to_dict()
        assert "CONVERGED" in next(found.root.all("header")).text
    assert main(["report", "m", "m"]) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--report", "x.npy"], "one of the inputs"),
        (["--report", "r.txt"], ".html"),
        (["--report", "mine.html"], "mine.html"),
        (["--report", "nowhere/r.html"], "nowhere"),
        (["--log", "mine.html"], "mine.html"),
        (["--log", "nowhere/run.jsonl"], "nowhere"),
        (["--log", "."], "folder"),
    ],
)
def test_nothing_of_the_user_is_written_over(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    Path("mine.html").write_text("<p>my own page</p>")
    before = Path("x.npy").read_bytes()
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert Path("mine.html").read_text() == "<p>my own page</p>"
    assert Path("x.npy").read_bytes() == before
    assert not Path("m").exists()


def test_a_run_that_cannot_begin_leaves_no_report_and_no_log_and_an_older_log_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    Path("old.jsonl").write_text('{"grassia-run": 1}\n')
    Path("mine").mkdir()
    Path("mine", "thesis.txt").touch()
    for log in ("new.jsonl", "old.jsonl"):
        assert main(["pca", "x.npy", "-k", "9", "--report", "r.html", "--log", log]) == 2
        assert main(["pca", "x.npy", "-k", "2", "-o", "mine", "--report", "r.html", "--log", log]) == 2
        assert main(["pca", "x.npy", "-k", "2", "--report", "nowhere/r.html", "--log", log]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "old.jsonl", "x.npy"]
    assert Path("old.jsonl").read_text() == '{"grassia-run": 1}\n'


def test_a_report_replaces_an_older_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).standard_normal((50, 4)) * [4.0, 3.0, 1.0, 1.0])
    for name in ("m", "n"):
        assert (
            main(["pca", "x.npy", "-k", "2", "-o", name, "--report", "r.html", "--log", "l.jsonl", "-q"]) == 0
        )
    assert "CONVERGED" in Path("r.html").read_text(encoding="utf-8")
