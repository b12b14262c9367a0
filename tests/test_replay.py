"""A recorded run can be run again bit for bit, on data alone."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

import grassia
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.errors import InvalidInput, ReplayMismatch
from grassia.solvers import Grassia
from problems import gaussian_rows, heterogeneous

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")

K = 3


@pytest.fixture(scope="module")
def rows():
    return gaussian_rows(600, 25, K, seed=2)


STORM = ["crash:1@6", "corrupt:2@9", "duplicate:0@5", "error:3@4"]

BACKENDS = {
    "serial": lambda: Serial(),
    "serial, faults": lambda: Serial(faults=STORM),
    "threads": lambda: Threads(),
    "threads, faults": lambda: Threads(faults=STORM),
    "processes": lambda: Processes(),
    "processes, faults": lambda: Processes(faults=STORM),
    "simulated": lambda: Simulated(LogNormal()),
    "simulated, faults": lambda: Simulated(LogNormal(), faults=STORM),
    "simulated at return": lambda: Simulated(Fixed([1, 2, 3, 2]), evaluate="return"),
    "simulated at return, far away": lambda: Simulated(Fixed([1, 2, 3, 2]), evaluate="return", latency=0.7),
}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("table", ["worker", "server"])
def test_a_replay_gives_the_very_same_bits(rows, name, table, tmp_path):
    log = tmp_path / "run.jsonl"
    components = grassia.from_rows(rows, n_components=4)
    seen = []
    recorded = eigenspace(
        components,
        K,
        backend=BACKENDS[name](),
        record=log,
        rng=np.random.default_rng(3),
        solver=Grassia(table=table, order="random", resum_passes=5),
        callbacks=lambda p: seen.append(p.version) and None,
    )
    again = grassia.replay(log, components)
    assert recorded.converged
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.values.tobytes() == recorded.values.tobytes()
    assert again.status is recorded.status
    assert again.certificate.sin_theta == recorded.certificate.sin_theta
    for name in ("residual", "step", "version", "time"):
        assert again.history[name].tobytes() == recorded.history[name].tobytes()
    kinds = [(event.kind, event.component) for event in recorded.history.events]
    assert kinds == [(event.kind, event.component) for event in again.history.events]


def test_a_run_ended_by_a_callback_replays_to_the_same_iterate(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    components = grassia.from_rows(rows, n_components=4)
    recorded = eigenspace(components, K, backend="threads", record=log, callbacks=lambda p: p.version >= 7)
    again = grassia.replay(log, components)
    assert recorded.status is again.status is grassia.Status.INTERRUPTED
    assert again.vectors.tobytes() == recorded.vectors.tobytes()


def test_a_run_ended_by_the_clock_replays_to_the_same_certificate(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    components = grassia.from_rows(rows, n_components=4)
    with pytest.warns(UserWarning, match="TIME_LIMIT"):
        recorded = eigenspace(
            components, K, backend=Simulated(LogNormal()), record=log, tol=1e-12, time_limit=20.0
        )
    again = grassia.replay(log, components)
    assert recorded.status is again.status is grassia.Status.TIME_LIMIT
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.certificate.residual_norm == recorded.certificate.residual_norm


@pytest.mark.filterwarnings("ignore:1 of 4 components:grassia.ExclusionWarning")
def test_a_component_that_failed_for_good_does_so_again(rows, tmp_path):
    class Vanishing(grassia.data.MatrixLoader):
        """The file it is read from is there no more after a while."""

        def open(self):
            component = super().open()
            multiply, calls = component.apply, iter(range(20))

            def apply(block):
                if next(calls, None) is None:
                    raise FileNotFoundError("gone.npy")
                return multiply(block)

            component.apply = apply
            return component

    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    loaders = [grassia.data.MatrixLoader(A) for A in problem.components]
    vanishing = [Vanishing(problem.components[0]), *loaders[1:]]
    log = tmp_path / "run.jsonl"
    recorded = eigenspace(vanishing, 2, record=log, rng=0, on_loss="exclude")
    again = grassia.replay(log, loaders)
    assert recorded.stats["excluded"] == again.stats["excluded"] == [0]
    assert again.status is recorded.status
    assert again.vectors.tobytes() == recorded.vectors.tobytes()


def test_other_data_is_noticed(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    eigenspace(grassia.from_rows(rows, 4), K, record=log, rng=0)
    changed = rows.copy()
    changed[10, 3] += 1e-9
    with pytest.raises(ReplayMismatch, match="differs from the recorded one"):
        grassia.replay(log, grassia.from_rows(changed, 4))


def test_a_wrong_number_of_components_is_refused(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    eigenspace(grassia.from_rows(rows, 4), K, record=log, rng=0)
    with pytest.raises(InvalidInput, match="4 components; got 3"):
        grassia.replay(log, grassia.from_rows(rows, 3))


def test_a_log_cut_short_replays_as_far_as_it_goes(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    iterates = {}

    def keep(progress):
        if progress.vectors is not None:
            iterates[progress.version] = progress.vectors

    eigenspace(grassia.from_rows(rows, 4), K, record=log, rng=0, callbacks=keep)
    text = log.read_text()
    log.write_text(text[: len(text) // 2])
    again = grassia.replay(log, grassia.from_rows(rows, 4))
    assert again.status is grassia.Status.INTERRUPTED
    assert 0 < again.stats["updates"] < max(iterates)
    assert any(
        grassia.geometry.projection_distance(again.vectors, W) == 0.0
        or np.allclose(np.abs(W.T @ again.vectors), np.eye(K), atol=1e-12)
        for W in iterates.values()
    )


def test_a_file_that_is_no_log_is_refused_by_name(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(json.dumps({"hello": 1}))
    with pytest.raises(InvalidInput, match=r"notes\.txt is not a grassia log"):
        grassia.replay(path, [np.eye(3)])
    with pytest.raises(InvalidInput, match=r"missing\.jsonl"):
        grassia.replay(tmp_path / "missing.jsonl", [np.eye(3)])


def test_weights_and_start_survive_in_the_log(tmp_path):
    problem = heterogeneous(n=5, d=12, k=2, seed=0)
    log = tmp_path / "run.jsonl"
    v0 = np.random.default_rng(1).standard_normal((12, 2))
    recorded = eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        v0=v0,
        record=log,
        rng=5,
        solver=Grassia(order="shuffled"),
    )
    again = grassia.replay(log, problem.components)
    assert again.vectors.tobytes() == recorded.vectors.tobytes()


@pytest.mark.parametrize("line", ["3", "{}", '{"t": 1, "w": 0, "m": [["reply", 1]]}'])
def test_a_damaged_log_is_refused_with_its_name(rows, tmp_path, line):
    log = tmp_path / "run.jsonl"
    eigenspace(grassia.from_rows(rows, 4), K, record=log, rng=0)
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:4], line, *lines[4:]]))
    with pytest.raises(InvalidInput, match=r"run\.jsonl"):
        grassia.replay(log, grassia.from_rows(rows, 4))


def test_a_log_that_says_another_end_is_noticed(rows, tmp_path):
    log = tmp_path / "run.jsonl"
    eigenspace(grassia.from_rows(rows, 4), K, record=log, rng=0)
    log.write_text(log.read_text().replace('"end": "CONVERGED"', '"end": "STALLED"'))
    with pytest.raises(ReplayMismatch, match="ended as STALLED"):
        grassia.replay(log, grassia.from_rows(rows, 4))


def test_a_disk_that_is_full_does_not_cost_the_run(rows):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.warns(UserWarning, match="recording to /dev/full stopped"):
        result = eigenspace(grassia.from_rows(rows, 4), K, record="/dev/full", rng=0)
    assert result.converged
