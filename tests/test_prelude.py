"""While a straggler opens its data the others begin, with provisional weights and a provisional mean."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from grassia import messages
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal, straggler
from grassia.geometry import projection_distance
from grassia.messages import Reply
from grassia.server import OPENING, Server
from grassia.solvers import Krylov, Nystrom
from grassia.worker import Worker
from problems import gaussian_rows, leading_of_rows

K = 3


@pytest.fixture(scope="module")
def shards():
    """Unequal shards, each with a mean of its own: weights and mean change when the last one is open."""
    X = gaussian_rows(900, 40, K, seed=1)
    rng = np.random.default_rng(2)
    cuts = np.split(X, [150, 350, 700])
    return [cut + 2.0 * rng.standard_normal(40) for cut in cuts]


def solved(shards, backend, **options):
    components = grassia.from_rows(shards, center=options.pop("center", True))
    solver = options.pop("solver", Nystrom())
    return grassia.eigenspace(components, K, solver=solver, backend=backend, rng=0, **options)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("slow", range(4))
def test_the_answer_is_that_of_all_the_rows_whoever_is_late(shards, slow, center):
    result = solved(shards, Simulated(straggler(4, 10.0, slow)), center=center)
    assert result.stats["early_answers"] > 0
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), K, center)) < 1e-6


def test_given_weights_are_those_of_the_answer(shards):
    weights = np.array([0.1, 0.6, 0.2, 0.1])
    result = solved(shards, Simulated(straggler(4, 10.0)), weights=weights)
    means = np.array([shard.mean(axis=0) for shard in shards])
    mean = weights @ means
    A = sum(
        w * (shard - mean).T @ (shard - mean) / len(shard) for w, shard in zip(weights, shards, strict=True)
    )
    assert result.stats["early_answers"] > 0
    assert projection_distance(result.vectors, np.linalg.eigh(A)[1][:, ::-1][:, :K]) < 1e-6


@pytest.mark.parametrize("center", [True, False])
def test_what_was_learnt_early_is_what_the_components_say_about_the_mean_of_all(shards, center):
    """The law of the change: each model holds `A_i Q_i` for the real mean, its sum the real weights."""
    rows = np.vstack(shards)
    mean = rows.mean(axis=0) if center else np.zeros(40)
    matrices = [(shard - mean).T @ (shard - mean) / len(shard) for shard in shards]
    weights = np.array([len(shard) / len(rows) for shard in shards])
    seen = []

    def look(progress):
        if progress.state is not None and not seen:
            surrogate = progress.state.surrogate
            bases = [surrogate.basis(i).copy() for i in range(4)]
            seen.extend((Q, surrogate.products(i) - surrogate.shift[i] * Q) for i, Q in enumerate(bases))
            X = np.random.default_rng(0).standard_normal((40, 5))
            minorant = np.zeros((40, 40))
            for w, A, Q in zip(weights, matrices, bases, strict=True):
                minorant += w * A @ Q @ np.linalg.pinv(Q.T @ A @ Q) @ Q.T @ A
            assert surrogate.apply(X) == pytest.approx(minorant @ X, rel=1e-9, abs=1e-9 * np.abs(rows).max())

    solved(shards, Simulated(straggler(4, 10.0)), center=center, callbacks=look)
    assert [Q.shape[1] > 0 for Q, _ in seen] == [False, True, True, True]
    for A, (Q, Y) in zip(matrices, seen, strict=True):
        assert pytest.approx(A @ Q, abs=1e-11 * np.linalg.norm(A, 2)) == Y


def test_the_lower_bound_never_exceeds_the_optimum_nor_falls(shards):
    rows = np.vstack(shards)
    optimum = float(np.linalg.eigvalsh(np.cov(rows, rowvar=False, bias=True))[::-1][:K].sum())
    for backend in (Simulated(straggler(4, 10.0)), Simulated(LogNormal())):
        bounds = solved(shards, backend).history["bound"]
        bounds = bounds[np.isfinite(bounds)]
        assert bounds.max() <= optimum * (1.0 + 1e-12)
        assert np.diff(bounds).min(initial=0.0) >= -1e-12 * optimum


def test_a_late_component_that_is_all_that_matters_is_found():
    """The others know nothing of its features, and it has nothing where they have something."""
    rng = np.random.default_rng(0)
    shards = [np.zeros((60, 30)) for _ in range(4)]
    for i, shard in enumerate(shards):
        where = slice(0, 10) if i == 0 else slice(10, 30)
        shard[:, where] = (20.0 if i == 0 else 1.0) * rng.standard_normal(shard[:, where].shape)
    result = solved(shards, Simulated(straggler(4, 10.0)))
    assert result.stats["early_answers"] > 0
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), K)) < 1e-6


FAULTS = ["crash:1@1", "crash:2@2", "error:1@2", "error:3@1", "corrupt:2@1", "duplicate:3@2", "crash:0@0"]


@pytest.mark.parametrize("backend", ["simulated", "threads", "processes"])
@pytest.mark.parametrize("seed", range(2))
def test_what_fails_before_the_start_is_mended_and_a_replay_gives_the_same_bits(
    shards, backend, seed, tmp_path
):
    rng = np.random.default_rng(seed)
    faults = [*rng.permutation(FAULTS)[:4], "delay:0:300ms@0"]
    kinds = {
        "simulated": lambda: Simulated(straggler(4, 10.0), faults=faults),
        "threads": lambda: Threads(faults=faults),
        "processes": lambda: Processes(faults=faults),
    }
    components = grassia.from_rows(shards)
    recorded = grassia.eigenspace(
        components, K, solver="nystrom", backend=kinds[backend](), rng=0, record=tmp_path / "run.jsonl"
    )
    assert recorded.stats["early_answers"] > 0
    assert recorded.converged
    assert projection_distance(recorded.vectors, leading_of_rows(np.vstack(shards), K)) < 1e-6
    again = grassia.replay(tmp_path / "run.jsonl", components)
    assert again.vectors.tobytes() == recorded.vectors.tobytes()


def test_a_component_that_is_opened_a_second_time_is_not_taken_for_an_answer(shards):
    """A worker dies with an early question; when it has opened its data again, the run has long begun."""
    server, workers = by_hand(shards)
    tasks = {task.component: task for task in server.due()}
    server.tell([workers.handle(tasks[i]) for i in (1, 2)], 1.0)
    early = {task.component: task for task in server.due()}
    assert early[1].query.procedure == early[2].query.procedure == "apply"
    server.tell([messages.Lost((1,), "it died"), messages.Restored((1,))], 2.0)
    (opened_again,) = server.due()
    assert (opened_again.component, opened_again.query.procedure) == (1, "open")
    server.tell([workers.handle(tasks[i]) for i in (0, 3)], 3.0)
    assert server.phase != OPENING
    server.tell([workers.handle(opened_again)], 4.0)
    drive(server, workers)
    assert server.status is grassia.Status.CONVERGED


def test_an_early_answer_that_is_late_is_not_taken_for_one_about_the_mean_of_all(shards):
    server, workers = by_hand(shards)
    tasks = {task.component: task for task in server.due()}
    server.tell([workers.handle(tasks[i]) for i in (1, 2)], 1.0)
    early = [workers.handle(task) for task in server.due()]
    server.tell([workers.handle(tasks[i]) for i in (0, 3)], 2.0)
    before = server.state.surrogate.size.copy()
    fresh = server.due()  # asked instead of what is still out
    assert {task.component for task in fresh} == {0, 1, 2, 3}
    assert all(task.query.arrays["mean"] is server.mean for task in fresh)
    server.tell(early, 3.0)
    assert np.array_equal(server.state.surrogate.size, before)
    drive(server, workers, fresh)
    assert server.status is grassia.Status.CONVERGED
    result = server.result({})
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), K)) < 1e-6


def by_hand(shards):
    components = grassia.from_rows(shards)
    server = Server(Nystrom(), K, [[0], [1], [2], [3]], rng=np.random.default_rng(0))
    return server, Worker(dict(enumerate(components)))


def drive(server, workers, tasks=()):
    for moment in range(200):
        tasks = [*tasks, *server.due()]
        if server.status is not None:
            return
        replies: list[Reply] = [workers.handle(task) for task in tasks]
        tasks = []
        server.tell(replies, 10.0 + moment)


def test_nothing_is_asked_early_where_nobody_waits_or_the_method_cannot(shards):
    assert solved(shards, Serial()).stats["early_answers"] == 0
    assert solved(shards, Simulated(Fixed([1, 1, 1, 1]))).stats["early_answers"] == 0
    assert solved(shards, Simulated(straggler(4, 10.0)), solver=Krylov()).stats["early_answers"] == 0


def test_a_straggler_is_waited_for_only_when_it_answers():
    """Its opening costs one service time; not one more for a question about a random block."""
    shards = np.array_split(gaussian_rows(2000, 40, K, seed=3), 4)
    first = []

    def look(progress):
        if progress.answers[0] == 2 and not first:  # the opening and one answer
            first.append((progress.time, projection_distance(progress.vectors, truth)))

    truth = leading_of_rows(np.vstack(shards), K)
    solved(shards, Simulated(straggler(4, 10.0)), callbacks=look)
    when, distance = first[0]
    assert when == pytest.approx(20.0)
    assert distance < 1e-2


def test_single_precision_and_a_start_of_ones_own_begin_early_too(shards):
    shards = [shard.astype(np.float32) for shard in shards]
    truth = leading_of_rows(np.vstack(shards).astype(np.float64), K)
    start = np.random.default_rng(5).standard_normal((40, K))
    result = solved(shards, Simulated(straggler(4, 10.0)), precision="float32", v0=start)
    assert result.stats["early_answers"] > 0
    assert result.converged
    assert projection_distance(result.vectors, truth) < 1e-6


def test_too_few_features_are_said_when_all_are_open(shards):
    narrow = [shard[:, :2] for shard in shards]
    with pytest.raises(grassia.InvalidInput, match="k=3, n_features=2"):
        solved(narrow, Simulated(straggler(4, 10.0)))


@pytest.mark.parametrize("late", ["float32", "float64"])
def test_what_was_learnt_early_in_single_precision_does_not_spoil_a_run_in_double(late):
    """One that opens late may forbid single precision, for all."""
    rng = np.random.default_rng(0)
    shards = [(rng.standard_normal((200, 20)) * np.linspace(3, 1, 20)).astype("f4") for _ in range(6)]
    shards[0] = shards[0].astype(late)
    result = grassia.eigenspace(
        grassia.from_rows(shards),
        K,
        solver="nystrom",
        tol=1e-10,
        precision="float32",
        rng=0,
        backend=Simulated(straggler(6, 20.0)),
    )
    assert result.converged
    rows = np.vstack([shard.astype("f8") for shard in shards])
    assert projection_distance(result.vectors, leading_of_rows(rows, K)) < 1e-10


def test_a_resumed_run_knows_of_the_answers_before_all_were_open(shards, tmp_path):
    slow = Simulated(straggler(4, 10.0))
    first = solved(
        shards, slow, checkpoint=tmp_path, tol=1e-9, callbacks=lambda progress: progress.version >= 1
    )
    assert first.stats["early_answers"] > 0
    assert not first.converged
    again = grassia.resume(tmp_path, grassia.from_rows(shards))
    assert again.converged
    assert again.stats["early_answers"] == first.stats["early_answers"]
