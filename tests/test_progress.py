"""Looking on: what the terminal shows, what a callback is told, and what is said of the time left."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
from rich.console import Console

import grassia
from grassia import backends
from grassia.cli._progress import MOST_BARS, Bars
from grassia.errors import InvalidInput
from grassia.report import Announce, Log, Sample, Watch
from grassia.report.forecast import slowness, time_left
from grassia.report.sample import forecast

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def data(rows=600, d=12):
    rng = np.random.default_rng(3)
    return rng.standard_normal((rows, d)) * np.r_[4.0, 3.0, np.linspace(1.5, 0.5, d - 2)]


# -- the terminal -------------------------------------------------------------------------------------


def on_a_terminal(columns: int, *arguments: str, cwd) -> tuple[int, str]:
    """A command whose stderr is a terminal of that width: its exit code, and what was drawn."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "grassia", *arguments],
        cwd=cwd,
        env={**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 90.0
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        return process.wait(timeout=30), seen.decode("utf-8", "replace")
    finally:
        process.kill()
        os.close(ours)


SLOW = ["--solver", "grassia", "--workers", "4", "--backend", "threads", "--fault", "delay:*:10ms"]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_display_fills_the_terminal_and_never_goes_beyond_it(columns, tmp_path):
    np.save(tmp_path / "x.npy", data())
    slow = [*SLOW, "--fault", "slow:1:8x", "--fault", "delay:1:100ms"]
    code, text = on_a_terminal(columns, "pca", "x.npy", "-k", "2", *slow, "-o", "m", cwd=tmp_path)
    assert code == 0, text
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", ESCAPE.sub("", text))]
    assert max(map(len, lines)) <= columns
    assert max(map(len, lines)) >= columns - 30
    solving = [line for line in lines if line.startswith("solving")]
    assert solving
    for word in ("updates", "passes", "losses", "events"):
        assert word in solving[-1]
    facts = [line for line in lines if line.startswith("estimate")]
    assert any(
        re.match(r"estimate \d\.\de-\d+ +certified .* asked 1e-06 +time left \S", line) for line in facts
    )
    workers = [line for line in lines if re.match(r"worker \d [█·]+ +\d+ +[\d.]+/s stale \d+", line)]
    assert {line.split()[1] for line in workers} == {"0", "1", "2", "3"}
    marked = {line.split()[1] for line in workers if "STRAGGLER" in line}
    assert "1" in marked
    assert text.count("\x1b[2K") >= 7  # it is wiped in the end


def test_without_a_terminal_nothing_is_shown(tmp_path):
    np.save(tmp_path / "x.npy", data())
    command = [sys.executable, "-m", "grassia", "pca", "x.npy", "-k", "2", *SLOW, "-o", "m", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def sample(**changed) -> Sample:
    n = len(changed.get("answers", [1]))
    plain = {
        "time": 10.0, "phase": "solving", "version": 5, "passes": 2.0, "residual": 1e-3, "target": 1e-6,
        "estimate": 1e-3, "bound": math.nan, "answers": [1], "busy": [1.0] * n, "states": "b" * n,
        "waited": [0.0] * n, "staleness": [0] * n, "sent": 0, "received": 0, "events": 0,
    }  # fmt: skip
    return Sample(**{**plain, **changed})


def drawn(shown: Sample, groups, width=100, losses=0) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=True)
    with console.capture() as captured:
        console.print(Bars(console, [], []).picture(shown, groups, 1e-6, losses))
    return ESCAPE.sub("", captured.get()).splitlines()


def test_lost_and_slow_workers_are_shown_even_where_there_is_no_room_for_all():
    n = 100
    busy = [1.0] * n
    busy[77] = 30.0
    states = "".join("l" if i == 90 else "b" for i in range(n))
    lines = drawn(sample(answers=[10] * n, busy=busy, states=states), [[i] for i in range(n)])
    rows = [line for line in lines if line.startswith("worker")]
    assert len(rows) == MOST_BARS
    assert any(line.startswith("worker 90") and "LOST" in line for line in rows)
    assert any(line.startswith("worker 77") and "STRAGGLER 30x" in line for line in rows)
    assert f"{n - MOST_BARS} more" in lines[-1]


def test_a_time_that_cannot_be_foreseen_is_said_to_be_unknown():
    lines = drawn(sample(), [[0]])
    assert "time left unknown" in lines[1]


# -- callbacks ----------------------------------------------------------------------------------------


def test_a_watch_agrees_with_the_result_on_every_count():
    watch, told = Watch(), []
    louder = Watch(told.append)
    components = grassia.from_rows(data(), n_components=4)
    engine = backends.Threads(workers=2, faults=["crash:2@5"])
    result = grassia.eigenspace(
        components, 2, solver="grassia", backend=engine, rng=0, callbacks=[watch, louder]
    )
    last, stats = watch.samples[-1], result.stats
    assert last.version == stats["updates"]
    assert last.passes == stats["passes"]
    assert (last.sent, last.received) == (stats["bytes_sent"], stats["bytes_received"])
    assert watch.groups == [[0, 2], [1, 3]]
    by_worker = [sum(stats["answers"][i] for i in group) for group in watch.groups]
    assert last.answers == by_worker
    assert last.events == len(result.history.events) == len(watch.events)
    assert last.bound == result.certificate.sin_theta.value
    assert watch.result is result
    assert told == louder.samples
    assert "certified" in str(watch)
    assert watch._repr_html_().count("<tr>") == 3


def test_staleness_and_states_are_those_of_the_moment():
    """On the virtual clock: worker 0 takes 10 s, the others 1 s, and each answer is an update."""
    seen = []

    def look(progress):
        if progress.phase == "solving" and progress.time > 25.0:
            seen.append((progress.version, progress.workers, progress.time))
            return len(seen) > 3
        return False

    engine = backends.Simulated(backends.service.Fixed([10.0, 1.0, 1.0]))
    grassia.eigenspace(
        grassia.from_rows(data(), n_components=3), 2, solver="grassia", backend=engine, rng=0,
        tol=1e-12, callbacks=look,
    )  # fmt: skip
    for version, workers, now in seen:
        slow, *quick = workers
        assert slow.state == "busy"
        assert slow.since <= now
        assert slow.since == pytest.approx(20.0)
        for one in quick:  # whoever has just answered has no new question yet: callbacks come before it
            assert one.state in ("busy", "idle")
            assert one.staleness <= 1
        assert 0 < slow.staleness <= version
    assert seen[-1][1][0].staleness > seen[0][1][0].staleness


def test_a_lost_worker_is_seen_to_be_lost():
    states = []
    engine = backends.Simulated(faults=["crash:1@3"], restart_time=5.0)
    grassia.eigenspace(
        grassia.from_rows(data(), n_components=3), 2, solver="grassia", backend=engine, rng=0,
        callbacks=lambda progress: states.append([one.state for one in progress.workers]) and None,
    )  # fmt: skip
    assert any(state[1] == "lost" for state in states)
    assert not any(state[0] == "lost" or state[2] == "lost" for state in states)
    assert states[-1][1] != "lost"


def test_the_log_is_json_whose_lines_add_up(tmp_path):
    path = tmp_path / "run.jsonl"
    with Log(path, every=0.01) as log:
        result = grassia.eigenspace(
            grassia.from_rows(data(), n_components=3), 2, solver="grassia", rng=0, callbacks=log,
            backend=backends.Threads(faults=["crash:1@4", "corrupt:0@3"]),
        )  # fmt: skip
    head, *lines, end = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (head["k"], head["tol"], head["solver"]) == (2, 1e-6, "grassia")
    events = [event["kind"] for line in lines for event in line["happened"]]
    assert events == [event.kind for event in result.history.events]
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert lines[-1]["answers"] == result.stats["answers"]
    assert end["end"] == "CONVERGED"
    np.testing.assert_array_equal(end["values"], result.values)
    assert end["certificate"]["sin_theta"]["value"] == result.certificate.sin_theta.value
    assert sum(count for _, count in end["staleness"]) == len(result.history)


def test_a_sample_survives_json():
    before = sample(answers=[3, 4], bound=math.nan, residual=0.125)
    after = Sample.from_dict(json.loads(json.dumps(before.to_dict())))
    assert math.isnan(after.bound)
    assert after.to_dict() == before.to_dict()


def test_logging_has_a_line_now_and_then_and_one_at_the_end(caplog):
    with caplog.at_level(logging.INFO, logger="grassia.progress"):
        grassia.eigenspace(
            grassia.from_rows(data(), n_components=3), 2, solver="grassia", rng=0, callbacks=Announce(1e-3)
        )
    said = [record.getMessage() for record in caplog.records if record.name == "grassia.progress"]
    assert len(said) >= 2
    assert "time left" in said[0]
    assert said[-1].startswith("CONVERGED")


@pytest.mark.parametrize("wrong", [{"each": 3}, {"every": -1.0}, {"most": 0}])
def test_a_watch_refuses_what_cannot_be(wrong):
    with pytest.raises(InvalidInput):
        Watch(**wrong)


# -- what is foreseen ---------------------------------------------------------------------------------


def test_a_geometric_fall_is_foreseen_unless_its_end_is_too_far_off():
    for rate in (0.8, 0.99, 0.9999):
        times = np.arange(50.0)
        left = time_left(times, rate**times, 1e-8)
        wanted = math.log(1e-8) / math.log(rate) - 49.0
        if wanted > 100 * 49.0:
            assert left is None
        else:
            assert left == pytest.approx(wanted, rel=1e-6)


def test_noise_on_a_fall_does_not_move_the_forecast_far():
    rng = np.random.default_rng(0)
    times = np.arange(100.0)
    residuals = 0.8**times * np.exp(0.3 * rng.standard_normal(100))
    assert time_left(times, residuals, 1e-15) == pytest.approx(math.log(1e-15) / math.log(0.8) - 99, rel=0.15)


@pytest.mark.parametrize(
    "residuals",
    [
        np.ones(40),
        np.geomspace(1e-3, 1.0, 40),
        np.exp(np.random.default_rng(1).standard_normal(40)),
        [1.0, 0.1],
    ],
)
def test_nothing_is_foreseen_where_nothing_falls(residuals):
    assert time_left(np.arange(float(len(residuals))), residuals, 1e-9) is None


def test_at_the_target_no_time_is_left_and_before_the_start_it_is_unknown():
    assert time_left(np.arange(6.0), [1, 0.1, 0.01, 1e-3, 1e-4, 1e-5], 1e-4) == 0.0
    assert forecast([]) is None
    assert forecast([sample(phase="opening")]) is None


def test_one_that_never_answers_is_slow_and_one_alone_is_not():
    assert slowness([10, 10, 0], [1.0, 1.0, 0.0], [0.0, 0.0, 5.0])[2] == pytest.approx(50.0)
    assert slowness([3], [9.0], [0.0]) == [1.0]
    assert slowness([5, 5], [1.0, 8.0], [0.0, 0.0]) == [1.0, 8.0]
