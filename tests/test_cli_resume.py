"""Interrupting and resuming from the command line, with real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import grassia
from grassia.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def X(folder):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((600, 12)) * np.r_[4.0, 3.0, np.linspace(1.5, 0.5, 10)] + 1.0
    np.save("x.npy", X)
    return X


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "grassia", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, text: str, process: subprocess.Popen[str], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and text in path.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise AssertionError(f"no {text!r} in {path}: {process.communicate()}")


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all processes of a command
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


#: Slow workers, so that there is time to interrupt; a resumed run has none of that.
SLOW = ["-k", "2", "--solver", "grassia", "--workers", "3", "--fault", "delay:*:40ms"]


def begun(process: subprocess.Popen[str]) -> None:
    wait_for(Path("run.jsonl"), '"solving"', process)


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_ctrl_c_keeps_a_checkpoint_and_the_line_it_prints_resumes_the_run(backend, X):
    process = start(
        "pca", "x.npy", *SLOW, "--backend", backend, "--checkpoint", "kept", "--log", "run.jsonl", "-o", "m"
    )
    begun(process)
    code, out, err = interrupt(process)
    assert code == 130
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("grassia: interrupted; ")
    command = line.partition("go on with: ")[2].split()
    assert command[:2] == ["grassia", "resume"]
    assert not Path("m").exists()
    before = grassia.checkpoint.latest("kept").header["seconds"]
    # What slowed it down is part of what was asked; take that out to finish quickly.
    asked = json.loads(Path("kept/pca.json").read_text())
    asked["asked"]["faults"] = []
    Path("kept/pca.json").write_text(json.dumps(asked))
    assert main([*command[1:], "-q"]) == 0
    found = json.loads(Path("m/model.json").read_text())
    assert "resumed from" in found["solver_reason"]
    assert found["run"]["seconds"] > before > 0.0
    oracle = PCA(2, svd_solver="full").fit(X)
    components = np.load("m/components.npy")
    assert grassia.geometry.projection_distance(components.T, oracle.components_.T) < 1e-6
    np.testing.assert_allclose(found["explained_variance"], oracle.explained_variance_, rtol=1e-8)


def test_ctrl_c_without_a_checkpoint_says_how_to_have_one(X):
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    code, _, err = interrupt(process)
    assert code == 130
    (line,) = err.splitlines()
    assert "interrupted" in line
    assert "--checkpoint FOLDER" in line
    assert sorted(os.listdir()) == ["run.jsonl", "x.npy"]


def test_a_resumed_run_can_be_interrupted_and_resumed_again(X):
    process = start("pca", "x.npy", *SLOW, "--checkpoint", "kept", "--log", "run.jsonl", "-o", "m")
    begun(process)
    assert interrupt(process)[0] == 130
    first = grassia.checkpoint.latest("kept").header["seconds"]
    Path("run.jsonl").unlink()
    process = start("resume", "kept", "--log", "run.jsonl")
    begun(process)
    code, _, err = interrupt(process)
    assert code == 130
    assert "grassia resume kept" in err
    assert grassia.checkpoint.latest("kept").header["seconds"] > first


def part_of_a_run(k: int = 2) -> None:
    shards = grassia.from_rows("x.npy", n_components=3)

    def stop(progress):
        return progress.passes > 3

    grassia.eigenspace(shards, k, solver="power", checkpoint="kept", callbacks=stop, rng=0)


def test_a_checkpoint_of_the_library_is_resumed_when_the_rows_are_named(X, capsys):
    part_of_a_run()
    assert main(["resume", "kept", "-o", "m"]) == 2
    assert "grassia resume kept INPUT" in capsys.readouterr().err
    assert main(["resume", "kept", "x.npy", "--workers", "2", "--backend", "threads", "-o", "m", "-q"]) == 0
    assert json.loads(Path("m/model.json").read_text())["solver"] == "power"


def test_resume_of_pca_goes_on_if_there_is_something_and_begins_otherwise(X, capsys):
    part_of_a_run()
    common = ["pca", "x.npy", "-k", "2", "-q"]
    assert main([*common, "--checkpoint", "kept", "-o", "m"]) == 2
    assert "grassia resume kept" in capsys.readouterr().err
    assert main([*common, "--checkpoint", "kept", "--resume", "-o", "m"]) == 0
    assert "resumed from" in json.loads(Path("m/model.json").read_text())["solver_reason"]
    assert main([*common, "--checkpoint", "fresh", "--resume", "-o", "n"]) == 0
    assert "resumed from" not in json.loads(Path("n/model.json").read_text())["solver_reason"]
    assert Path("fresh/pca.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["resume", "nowhere"], "nowhere"),
        (["resume", "kept", "other.npy"], "other.npy"),
        (["pca", "x.npy", "--resume"], "--checkpoint"),
        (["pca", "x.npy", "-k", "3", "--checkpoint", "kept", "--resume"], "-k"),
        (["resume", "kept", "x.npy", "--tol", "3"], "--tol"),
        (["resume", "kept", "thin.npy"], "thin.npy"),
    ],
)
def test_what_cannot_be_resumed_is_one_line_and_code_2(arguments, named, X, capsys):
    part_of_a_run()
    np.save("thin.npy", X[:1])
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not Path("model").exists()
