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
from grassia.cli._compare import Outcome
from grassia.cli._kept import Journal, Stopped


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
    return started([sys.executable, "-m", "grassia", *arguments])


def started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
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


#: Slow workers, so that there is time to interrupt (a log has a line a second). A resumed run has not.
SLOW = ["-k", "2", "--solver", "grassia", "--workers", "3", "--fault", "delay:*:200ms"]


def begun(process: subprocess.Popen[str]) -> None:
    wait_for(Path("run.jsonl"), '"solving"', process)


EARLY = """
import os, signal, sys
from grassia.cli import main
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.exit(main(["--version"]))
"""


def test_ctrl_c_while_packages_are_imported_is_one_line(folder):
    process = started([sys.executable, "-c", EARLY])
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "grassia: interrupted; give the same command again\n"


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
    without_faults("kept")
    assert main([*command[1:], "-q"]) == 0
    found = json.loads(Path("m/model.json").read_text())
    assert "resumed from" in found["solver_reason"]
    assert found["run"]["seconds"] > before > 0.0
    oracle = PCA(2, svd_solver="full").fit(X)
    components = np.load("m/components.npy")
    assert grassia.geometry.projection_distance(components.T, oracle.components_.T) < 1e-6
    np.testing.assert_allclose(found["explained_variance"], oracle.explained_variance_, rtol=1e-8)


def oracle_of(X) -> np.ndarray:
    return PCA(2, svd_solver="full").fit(X).components_.T


def without_faults(folder: str) -> None:
    """Take what slowed a run down out of what was asked, to finish quickly."""
    path = Path(folder) / "pca.json"
    asked = json.loads(path.read_text())
    asked["asked"]["faults"] = []
    path.write_text(json.dumps(asked))


def test_ctrl_c_is_harmless_though_no_checkpoint_was_asked_for(X):
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    code, _, err = interrupt(process)
    assert code == 130
    (line,) = err.splitlines()
    assert line == "grassia: interrupted; go on with: grassia resume m.checkpoint"
    assert sorted(os.listdir()) == ["m.checkpoint", "run.jsonl", "x.npy"]
    without_faults("m.checkpoint")
    assert main(["resume", "m.checkpoint", "-q"]) == 0
    assert sorted(os.listdir()) == ["m", "run.jsonl", "x.npy"]  # it is of no use any more
    found = np.load("m/components.npy")
    assert grassia.geometry.projection_distance(found.T, oracle_of(X)) < 1e-6


def test_what_was_interrupted_is_not_begun_anew_by_mistake(X, capsys):
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    assert interrupt(process)[0] == 130
    again = ["pca", "x.npy", "-k", "2", "--workers", "3", "--backend", "threads", "-o", "m", "-q"]
    assert main(again) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "grassia resume m.checkpoint" in line
    assert "--overwrite" in line
    assert main([*again, "--resume", "--solver", "power"]) == 2
    assert "--solver must be that of the checkpoint in m.checkpoint, grassia" in capsys.readouterr().err
    assert main([*again, "--overwrite"]) == 0
    assert "resumed" not in json.loads(Path("m/model.json").read_text())["solver_reason"]
    assert not Path("m.checkpoint").exists()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_whatever_ends_a_job_leaves_what_ctrl_c_leaves(name, background, X):
    if background:  # whose jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    if background:
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "grassia: interrupted; go on with: grassia resume m.checkpoint\n"
    assert sorted(os.listdir()) == ["m.checkpoint", "run.jsonl", "x.npy"]


def test_a_refusal_leaves_the_checkpoint_as_it_was(X, capsys):
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    assert interrupt(process)[0] == 130
    without_faults("m.checkpoint")
    asked = Path("m.checkpoint/pca.json").read_bytes()
    np.save("y.npy", X[:300])
    same = ["pca", "x.npy", "--workers", "3", "-o", "m", "--resume"]
    for refused in ([*same, "-k", "3"], ["resume", "m.checkpoint", "y.npy"]):
        assert main(refused) == 2
        assert Path("m.checkpoint/pca.json").read_bytes() == asked
    assert main(["resume", "m.checkpoint", "-q"]) == 0
    found = np.load("m/components.npy")
    assert grassia.geometry.projection_distance(found.T, oracle_of(X)) < 1e-6


def test_ctrl_c_while_a_resumed_run_opens_its_rows_says_how_to_go_on(X):
    process = start("pca", "x.npy", *SLOW, "--log", "run.jsonl", "-o", "m")
    begun(process)
    assert interrupt(process)[0] == 130
    path = Path("m.checkpoint/pca.json")
    path.write_text(path.read_text().replace("200ms", "60s"))
    process = start("resume", "m.checkpoint", "--log", "again.jsonl")
    wait_for(Path("again.jsonl"), "opening", process)
    code, out, err = interrupt(process)
    assert (code, out) == (130, "")
    assert err == "grassia: interrupted; go on with: grassia resume m.checkpoint\n"
    assert grassia.checkpoint.latest("m.checkpoint").header["seconds"] > 0.0


@pytest.mark.parametrize("option", ["--log", "--report"])
def test_nothing_is_written_over_the_rows(option, X, capsys):
    name = {"--log": "x.npy", "--report": "x.html"}[option]
    os.link("x.npy", "x.html")
    before = Path("x.npy").read_bytes()
    assert main(["pca", "x.npy", "-k", "2", option, name, "--overwrite", "-o", "m"]) == 2
    assert f"{option} must not be one of the inputs; got {name}." in capsys.readouterr().err
    assert Path("x.npy").read_bytes() == before


def test_the_folder_of_a_checkpoint_is_removed_but_nothing_of_others_in_it(X):
    Path("m.checkpoint").mkdir()
    Path("m.checkpoint/thesis.txt").write_text("mine")
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "-q"]) == 0
    assert os.listdir("m.checkpoint") == ["thesis.txt"]


def test_a_run_out_of_time_can_be_given_more(X, capsys):
    # Two seconds are some ten of the thirty passes that the answer needs: enough to begin, far from the end.
    limited = ["pca", "x.npy", *SLOW, "--backend", "threads", "--time-limit", "2", "--seed", "1", "-o", "m"]
    assert main(limited) == 1
    line = next(one for one in capsys.readouterr().out.splitlines() if "go on with" in one)
    command = line.partition("go on with: ")[2].split()
    without_faults("m.checkpoint")
    assert main([*command[1:], "-q"]) == 0
    assert grassia.geometry.projection_distance(np.load("m/components.npy").T, oracle_of(X)) < 1e-6
    assert not Path("m.checkpoint").exists()


def test_an_error_leaves_no_folder_behind(X, capsys):
    X[5, 3] = np.nan
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-o", "m"]) == 2
    assert sorted(os.listdir()) == ["x.npy"]


def test_a_demo_that_is_interrupted_goes_on(folder):
    demo = ["demo", "--rows", "2000", "--features", "40", "--backend", "threads", "--fault", "delay:*:100ms"]
    process = start(*demo, "-q")
    wait_for(Path("grassia-demo/report.html"), "solving", process)
    code, _, err = interrupt(process)
    assert code == 130
    assert "go on with the same command and --resume" in err
    before = grassia.checkpoint.latest("grassia-demo/checkpoint").header["seconds"]
    assert main([*demo[:-2], "--slow", "1", "--solver", "grassia", "--resume", "-q"]) == 0
    assert not Path("grassia-demo/checkpoint").exists()
    with np.load("grassia-demo/result.npz") as result:
        assert result["vectors"].shape == (40, 5)
    assert before > 0.0


SLOWLY = """
import sys, time
from grassia import cli, worker
multiply = worker.finite_product
def slowly(*given):
    time.sleep(2.0)
    return multiply(*given)
worker.finite_product = slowly
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_check_that_is_interrupted_goes_on(X, capsys):
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "-q"]) == 0
    capsys.readouterr()
    check = ["check", "m", "x.npy", "--seed", "1", "--json"]
    process = started([sys.executable, "-c", SLOWLY, *check])
    while not Path("m.check").exists():
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(1.0)
    code, out, err = interrupt(process)
    kept = Path("m.check").exists()
    assert (code, out) == (130, "")
    assert ("go on with the same command and --resume" in err) == kept  # or it was too early
    assert main([*check, "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert main(check) == 0
    fresh = json.loads(capsys.readouterr().out)
    assert again["holds"]
    np.testing.assert_allclose(again["certificate"]["values"], fresh["certificate"]["values"], rtol=1e-12)
    assert not Path("m.check").exists()


def test_a_comparison_that_is_interrupted_keeps_the_runs_that_are_done(folder, capsys):
    # oja has no end of its own but that of its passes
    command = ["simulate", "--solver", "nystrom,oja", "--workers", "4", "--max-passes", "1e9", "--json"]
    process = start(*command)
    wait_for(Path("grassia-simulate.json"), "nystrom", process)
    code, out, err = interrupt(process)
    assert code == 130
    assert out == ""
    assert "1 done runs are kept in grassia-simulate.json; go on with the same command and --resume" in err
    kept = json.loads(Path("grassia-simulate.json").read_text())["done"]
    assert [one["solver"] for one in kept] == ["nystrom"]
    assert main([*command, "--resume", "-k", "4"]) == 2
    assert "of another comparison (k)" in capsys.readouterr().err
    command[2] = "nystrom,krylov"  # the solvers are not part of the question
    assert main([*command, "--resume"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs[0] == kept[0]
    assert [one["solver"] for one in runs] == ["nystrom", "krylov"]
    assert not Path("grassia-simulate.json").exists()


def test_ctrl_c_between_two_runs_of_a_comparison_keeps_them(folder):
    journal = Journal("kept.json", {"k": 2}, resume=False)
    outcome = Outcome("krylov", 2, "CONVERGED", True, seconds=0.5, answers=(3, 4), asked="auto")
    journal.add(outcome)
    with pytest.raises(Stopped, match=r"1 done runs are kept in kept\.json; go on with"), journal:
        raise KeyboardInterrupt
    assert Journal("kept.json", {"k": 2}, resume=True).done == [outcome]


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
