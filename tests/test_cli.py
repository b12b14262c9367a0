"""The command line, through its real entry point."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import grassia
from terminal import Terminal

SMALL = ["--rows", "600", "--features", "20", "-k", "2"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grassia", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def demo(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("demo", *SMALL, *arguments, cwd=cwd, **environment)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("grassia: ")
    return lines[0]


@pytest.mark.parametrize("backend", ["processes", "threads", "serial", "simulated"])
def test_the_demo_converges_and_writes_what_it_found(backend, tmp_path):
    done = demo("--backend", backend, "--output", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = np.load(tmp_path / "out" / "result.npz")
    assert found["status"] == "CONVERGED"
    # The answer is the eigenspace of the data that the seed makes, and the bounds hold of it.
    from grassia.cli.demo import dense_oracle, generate

    oracle, values = dense_oracle(generate(600, 20, 2, 0), 2)
    sine = grassia.geometry.projection_distance(found["vectors"], oracle)
    assert sine <= found["sin_theta"] <= found["tol"]
    np.testing.assert_allclose(found["values"], values[:2], rtol=1e-9)
    np.testing.assert_allclose(found["oracle_sine"], sine, atol=1e-9)
    assert found["distances"][-1] < 1e-5 < found["distances"][0]
    assert np.all(np.diff(found["times"]) >= 0.0)
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for text in (done.stdout, report):
        assert f"{found['values'][0]:.10f}" in text
        assert "CONVERGED" in text
        assert f"{found['sin_theta']:.3g}" in text
        assert "10x slow" in text


def test_the_demo_shows_a_crash_in_its_events_and_still_converges(tmp_path):
    done = demo("--backend", "threads", "--fault", "crash:2@5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "grassia-demo" / "report.html").read_text(encoding="utf-8")
    events = report[report.index('<section id="events"') :]
    assert "worker lost" in events
    assert "worker restored" in events


def test_a_slow_worker_answers_less_often_than_the_others(tmp_path):
    done = demo("--backend", "simulated", "--slow", "20", "-q", cwd=tmp_path)
    assert done.returncode == 0
    answers = np.load(tmp_path / "grassia-demo" / "result.npz")["answers"]
    assert 5 * answers[0] < min(answers[1:])


def test_quiet_is_one_line(tmp_path):
    done = demo("--backend", "serial", "--quiet", cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith("CONVERGED")


def test_the_same_seed_gives_the_same_run_on_the_virtual_clock(tmp_path):
    for name in ("a", "b"):
        assert demo("--backend", "simulated", "--output", name, "-q", cwd=tmp_path).returncode == 0
    a, b = (np.load(tmp_path / name / "result.npz") for name in ("a", "b"))
    assert all(np.array_equal(a[key], b[key]) for key in a.files)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-k", "0"], "k"),
        (["-k", "20"], "k"),
        (["--rows", "three"], "--rows"),
        (["--rows", "1"], "--rows"),
        (["--features", "1"], "--features"),
        (["--workers", "0"], "--workers"),
        (["--slow", "0.5"], "--slow"),
        (["--tol", "2"], "--tol"),
        (["--seed", "-1"], "--seed"),
        (["--fault", "nonsense"], "KIND:COMPONENTS"),
        (["--fault", "crash:7@1"], "7"),
        (["--backend", "abacus"], "abacus"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments, named, tmp_path):
    done = demo(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert named in one_line(done)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "grassia-demo").exists()


def test_an_output_that_cannot_be_a_folder_is_one_line_and_code_2(tmp_path):
    (tmp_path / "taken").write_text("a file")
    done = demo("--output", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken" in one_line(done)


def test_debug_shows_where_the_mistake_was_found(tmp_path):
    done = demo("-k", "0", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert "InvalidInput" in done.stderr


def test_a_run_that_cannot_converge_has_code_1_and_says_why(tmp_path):
    done = demo("--backend", "simulated", "--tol", "1e-15", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    report = (tmp_path / "grassia-demo" / "report.html").read_text(encoding="utf-8")
    assert "Not certified" in report
    assert "CONVERGED" not in report


def test_a_component_that_always_fails_has_code_3_and_one_line(tmp_path):
    done = demo("--backend", "threads", "--fault", "error:1", cwd=tmp_path)
    assert done.returncode == 3
    assert "component 1" in one_line(done)


def test_without_matplotlib_the_demo_names_the_extra_and_does_the_rest(tmp_path):
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    done = demo("--backend", "serial", cwd=tmp_path, PYTHONPATH=str(block))
    assert done.returncode == 0, done.stderr
    assert "grassia[plot]" in done.stdout
    folder = tmp_path / "grassia-demo"
    assert not (folder / "distance.png").exists()
    assert (folder / "report.html").is_file()
    assert (folder / "result.npz").is_file()


def test_plotting_without_matplotlib_raises_the_error_that_names_the_extra():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import grassia, grassia.plotting\n"
        "try: grassia.plotting.distance_plot([0, 1], [1, 0.1], 'x.png')\n"
        "except grassia.MissingExtra as error: print(error.extra, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("plot ")
    assert "pip install 'grassia[plot]'" in done.stdout


def test_without_unicode_the_output_is_plain(tmp_path):
    done = demo("--backend", "serial", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize("command", [[sys.executable, "-m", "grassia"], ["grassia"]])
def test_the_version_is_that_of_the_package(command, tmp_path):
    if command == ["grassia"]:
        script = Path(sys.executable).with_name("grassia")
        assert script.exists(), "the package must be installed, with its script"
        command = [str(script)]
    done = subprocess.run([*command, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"grassia {grassia.__version__}\n")


def test_no_command_shows_the_help_and_a_wrong_one_is_a_mistake(tmp_path):
    helped = run(cwd=tmp_path)
    assert helped.returncode == 0
    assert "demo" in helped.stdout
    wrong = run("demmo", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "demmo" in one_line(wrong)


def test_the_library_does_not_import_the_command_line():
    code = "import grassia, sys; print(sorted(m for m in sys.modules if m.startswith('grassia.cli')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_on_a_terminal_nothing_is_wider_than_80_columns_and_the_progress_is_wiped(tmp_path):
    terminal = Terminal("demo", *SMALL, "--rows", "20000", "--fault", "crash:2@9", cwd=tmp_path)
    text = terminal.read()
    assert terminal.close() == 0
    lines = re.split(r"[\r\n]+", ESCAPE.sub("", text))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("solving") for line in lines)
    assert any(re.match(r"worker 0 [█·]+ +\d+ +[\d.]+/s stale \d+ .*10x slow", line) for line in lines)
    # As many lines are wiped as were drawn: every picture of seven lines is taken back.
    assert text.count("\x1b[1A\x1b[2K") >= 7
    after = ESCAPE.sub("", text[text.rindex("\x1b[1A\x1b[2K") :])
    assert "solving " not in after
    assert "CONVERGED" in after


def test_an_interrupt_ends_the_run_with_code_130_and_leaves_a_report(tmp_path):
    size = ["--rows", "4000", "--features", "60", "--tol", "1e-12"]
    terminal = Terminal("demo", *size, "--slow", "1", "--fault", "delay:*:300ms", cwd=tmp_path)
    terminal.read(until="solving")
    os.kill(terminal.process.pid, signal.SIGINT)
    text = terminal.read()
    assert terminal.close() == 130
    assert "Traceback" not in text
    assert "interrupted" in text
    report = (tmp_path / "grassia-demo" / "report.html").read_text(encoding="utf-8")
    assert "INTERRUPTED" in report
