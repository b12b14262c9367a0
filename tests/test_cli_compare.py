"""`grassia plan`, `grassia bench` and `grassia simulate`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import grassia
from grassia.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.standard_normal((400, 12)) * np.r_[5.0, 4.0, 3.0, np.ones(9)])
    return tmp_path


def printed(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_the_plan_is_that_of_the_library(folder, capsys):
    assert main(["plan", "x.npy", "-k", "3", "--workers", "2", "--json"]) == 0
    said = printed(capsys)
    same = grassia.plan("x.npy", 3, backend="processes", workers=2).to_dict()
    for name in (
        "solver",
        "reason",
        "n_components",
        "n_rows",
        "n_features",
        "workers",
        "backend",
        "message_bytes",
    ):
        assert said[name] == same[name]
    assert main(["plan", "x.npy", "-k", "3"]) == 0
    assert "passes" in capsys.readouterr().out


def test_bench_certifies_every_solver_it_compares(folder, capsys):
    names = ["covariance", "krylov", "nystrom"]
    assert main(["bench", "x.npy", "-k", "3", "--solver", ",".join(names), "--json"]) == 0
    runs = printed(capsys)["runs"]
    assert [run["solver"] for run in runs] == names
    for run in runs:
        assert run["converged"]
        assert run["sine"] <= 1e-6
        assert run["seconds"] > 0.0
    assert main(["bench", "x.npy", "-k", "3", "--solver", "krylov", "--solver", "power"]) == 0
    table = capsys.readouterr().out
    assert "krylov" in table
    assert "power" in table


def test_bench_without_a_certified_solver_has_code_1(folder, capsys):
    assert (
        main(["bench", "x.npy", "-k", "3", "--solver", "oja", "--tol", "1e-14", "--time-limit", "0.2"]) == 1
    )
    assert "oja" in capsys.readouterr().out


def test_a_simulation_is_the_same_every_time_and_shows_who_waits_for_a_straggler(capsys):
    arguments = ["simulate", "--rows", "600", "--features", "20", "-k", "2", "--workers", "4", "--json"]
    slow = [*arguments, "--straggler", "30", "--solver", "grassia,krylov"]
    assert main(slow) == 0
    first = printed(capsys)["runs"]
    assert main(slow) == 0
    assert printed(capsys)["runs"] == first
    asynchronous, synchronous = first
    assert all(run["converged"] for run in first)
    # Who works in rounds hears everybody equally often; who does not hears the slow one less.
    assert synchronous["answers"][0] == synchronous["answers"][1]
    assert asynchronous["answers"][0] < asynchronous["answers"][1]


def test_virtual_time_is_what_the_delay_says(capsys):
    base = ["simulate", "--rows", "400", "--features", "10", "-k", "1", "--solver", "krylov", "--json"]
    times = {}
    for delay in ("fixed:1", "fixed:3"):
        assert main([*base, "--delay", delay]) == 0
        times[delay] = printed(capsys)["runs"][0]["seconds"]
    assert times["fixed:3"] == pytest.approx(3.0 * times["fixed:1"])


@pytest.mark.parametrize("delay", ["uniform:0.5:1.5", "lognormal:0:1", "pareto:1.5:1", "bursty:10:100:20"])
def test_every_delay_faults_and_several_numbers_of_workers_can_be_simulated(delay, folder, capsys):
    arguments = [
        "--workers",
        "2,5",
        "--solver",
        "nystrom",
        "--delay",
        delay,
        "--fault",
        "crash:1@2",
        "--json",
    ]
    assert main(["simulate", "x.npy", "-k", "3", *arguments]) == 0
    runs = printed(capsys)["runs"]
    assert [run["workers"] for run in runs] == [2, 5]
    assert all(run["converged"] for run in runs)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "x.npy", "-k", "13"], "-k"),
        (["plan", "nothing.npy"], "nothing.npy"),
        (["bench", "x.npy", "-k", "3", "--solver", "krylow"], "Did you mean krylov?"),
        (["bench", "x.npy", "-k", "3", "--time-limit", "0"], "--time-limit"),
        (["simulate", "--workers", "two"], "--workers"),
        (["simulate", "--delay", "sometimes"], "uniform:LOW:HIGH"),
        (["simulate", "--delay", "uniform:2:1"], "Uniform"),
        (["simulate", "--delay", "fixed:a"], "fixed:SECONDS"),
        (["simulate", "--fault", "nonsense"], "KIND:COMPONENTS"),
        (["simulate", "--fault", "crash:9@1", "--workers", "4"], "9"),
        (["simulate", "--straggler", "0.5"], "--straggler"),
        (["simulate", "--rows", "1"], "--rows"),
        (["simulate", "x.npy", "-k", "3", "--workers", "401"], "--workers"),
        (["simulate", "-k", "60"], "-k"),
        (["simulate", "--latency", "-1"], "latency"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, named, folder, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1
    assert named in lines[0]
