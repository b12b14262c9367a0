"""A few runs in which everything goes wrong, on each engine; `benchmarks/chaos.py` has many more."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import chaos
import grassia
from grassia import LossPolicy, Status
from grassia.backends import Serial, Simulated, Threads
from problems import gaussian_rows, leading_of_rows

pytestmark = pytest.mark.timeout(280)

#: Some that do not take long: workers that are killed, paused and stopped, nodes that go, a server that ends.
RUNS = {"ray": (14, 22), "dask": (11, 14), "processes": (7, 8)}
PACKAGES = {"ray": "ray", "dask": "distributed"}


@pytest.mark.engines
@pytest.mark.parametrize("engine", RUNS)
def test_whatever_happens_a_run_is_right_or_says_why_it_ended(engine):
    if engine in PACKAGES:
        pytest.importorskip(PACKAGES[engine])
    outcomes = chaos.campaign(engine, RUNS[engine])
    assert [outcome.line for outcome in outcomes if outcome.verdict] == []
    assert [outcome.seed for outcome in outcomes] == list(RUNS[engine])
    assert any(outcome.status == "CONVERGED" for outcome in outcomes)
    assert any(outcome.done for outcome in outcomes)


def test_a_number_decides_a_scene_and_another_one_decides_another():
    assert chaos.scene("ray", 3) == chaos.scene("ray", 3)
    assert len({chaos.scene(engine, seed) for engine in ("ray", "dask") for seed in range(20)}) == 40


def test_a_run_that_takes_too_long_is_ended_and_its_stacks_are_told():
    outcomes = chaos.campaign("processes", [0, 1], limit=0.05)
    assert [(outcome.seed, outcome.verdict) for outcome in outcomes] == [(0, "HANG"), (1, "HANG")]
    assert all("chaos.py" in outcome.why for outcome in outcomes)


def judged(seed=0, **changes):
    """The verdict on a calm run of a scene, whose result is changed."""
    scene = chaos.scene("processes", seed)
    posed = chaos.problem(scene)
    result = grassia.eigenspace(
        posed.components, scene.k, weights=posed.weights, backend=Serial(), tol=chaos.TOL, rng=0
    )
    result = dataclasses.replace(result, **{name: change(result) for name, change in changes.items()})
    outcome = chaos.Outcome(seed, "processes", scene.name, scene.policy_name)
    chaos._judge(dataclasses.replace(scene, policy=LossPolicy()), posed, result, outcome)
    return outcome.verdict


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_that_is_wrong_is_found_out(seed):
    rng = np.random.default_rng(0)
    assert judged(seed) == ""
    assert judged(seed, vectors=lambda it: np.linalg.qr(rng.standard_normal(it.vectors.shape))[0]) == "WRONG"
    assert judged(seed, vectors=lambda it: np.linalg.qr(it.vectors + 1e-5)[0]) == "WRONG"
    assert judged(seed, stats=lambda it: {**it.stats, "excluded": [0]}) == "WRONG"
    assert judged(seed, stats=lambda it: {**it.stats, "weights": it.stats["weights"][::-1]}) == "WRONG"
    assert judged(seed, status=lambda it: Status.WORKER_LOST) == "UNDUE"


def test_what_a_run_took_before_it_was_resumed_is_no_silence_of_its_workers(tmp_path):
    X = gaussian_rows(200, 10, 3, seed=2)
    shards = grassia.from_rows(X, n_components=4)
    part = grassia.eigenspace(
        shards,
        2,
        solver="power",
        backend=Simulated(),
        on_loss=LossPolicy(timeout=5.0),
        checkpoint=tmp_path,
        callbacks=lambda progress: progress.time > 8.0,
        rng=0,
    )
    assert part.status is Status.INTERRUPTED
    # The first task of the last component is the only one that the server has not heard of at its first turn.
    result = grassia.resume(tmp_path, shards, backend=Threads(faults="delay:3:200ms@0"))
    assert result.converged
    assert grassia.geometry.projection_distance(result.vectors, leading_of_rows(X, 2)) <= 1e-6
    assert "worker lost" not in {event.kind for event in result.history.events}
