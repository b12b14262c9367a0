"""What a lost, silent or slow worker means: reload, wait, exclude; time-outs; second copies."""

from __future__ import annotations

import os
import signal
import warnings

import numpy as np
import pytest

import grassia
from grassia import LossPolicy, Status, eigenspace
from grassia.attendance import Attendance
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, Pareto, Uniform
from grassia.geometry import projection_distance
from problems import Dense, gaussian_rows, heterogeneous, leading_of_rows

CERTIFIED = ["grassia", "nystrom", "power", "krylov", "lobpcg", "orthogonal", "covariance", "rgd", "vrpca"]
CERTIFIED += ["fedpower", "dsag", "iarg"]
EARLY = {"covariance": 1, "krylov": 2, "nystrom": 2}  # tasks before the end; the others ask for many more


@pytest.fixture
def problem() -> Dense:
    return heterogeneous(n=5, d=20, k=2, seed=4)


def without(problem: Dense, *left_out: int) -> Dense:
    left = [i for i in range(len(problem.components)) if i not in left_out]
    weights = problem.weights[left]
    return Dense([problem.components[i] for i in left], weights / weights.sum())


def solve(problem, backend, **options):
    options.setdefault("rng", 0)
    return eigenspace(problem.components, 2, weights=problem.weights, backend=backend, **options)


def events(result, kind):
    return [event for event in result.history.events if event.kind == kind]


# -- exclude --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", CERTIFIED)
def test_what_is_excluded_is_out_of_the_sum_and_the_others_weigh_as_before(problem, solver):
    backend = Simulated(max_restarts=0, faults=f"crash:3@{EARLY.get(solver, 4)}")
    with pytest.warns(grassia.ExclusionWarning, match=r"1 of 5 components were left out \(3\)"):
        result = solve(problem, backend, solver=solver, on_loss="exclude", tol=1e-8, max_passes=50_000)
    rest = without(problem, 3)
    assert result.converged
    assert projection_distance(result.vectors, rest.leading(2)) <= 1e-8
    assert projection_distance(result.vectors, problem.leading(2)) > 1e-3  # it is another problem
    np.testing.assert_allclose(result.values, rest.spectrum()[0][:2], atol=1e-8)
    np.testing.assert_allclose(np.delete(result.stats["weights"], 3), rest.weights, rtol=1e-14)
    assert result.stats["weights"][3] == 0.0
    assert result.stats["excluded"] == [3]
    assert [event.component for event in events(result, "left out")] == [3]


def test_the_event_says_why_a_component_was_left_out(problem):
    with pytest.warns(grassia.ExclusionWarning):
        result = solve(problem, Simulated(max_restarts=0, faults="crash:3@2"), on_loss="exclude")
    (lost,), (left_out,) = events(result, "worker lost"), events(result, "left out")
    assert left_out.text == lost.text


def test_rows_that_are_excluded_count_neither_for_the_mean_nor_for_the_total():
    X = gaussian_rows(400, 12, 3, seed=1)
    shards = [X[:50], X[50:250] + 5.0, X[250:]]
    with pytest.warns(grassia.ExclusionWarning):
        result = eigenspace(
            grassia.from_rows(shards),
            2,
            backend=Simulated(max_restarts=0, faults="crash:1@1"),
            on_loss="exclude",
            rng=0,
        )
    left = np.vstack([shards[0], shards[2]])
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(left, 2)) <= 1e-6
    np.testing.assert_allclose(result.stats["mean"], left.mean(axis=0), rtol=1e-12)
    assert result.certificate.total == pytest.approx(left.var(axis=0).sum(), rel=1e-12)


def test_with_exclude_a_worker_that_died_is_not_waited_for_even_if_it_comes_back(problem):
    with pytest.warns(grassia.ExclusionWarning):
        result = solve(problem, Simulated(restart_time=1.0, faults="crash:0@3"), on_loss="exclude")
    assert result.stats["excluded"] == [0]


@pytest.mark.parametrize(("away", "excluded"), [(20.0, []), (40.0, [2])])
def test_exclude_with_patience_gives_a_worker_that_long(problem, away, excluded):
    policy = LossPolicy("exclude", patience=30.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", grassia.ExclusionWarning)
        result = solve(problem, Simulated(restart_time=away, faults="crash:2@3"), on_loss=policy)
    assert result.converged
    assert result.stats["excluded"] == excluded
    assert projection_distance(result.vectors, without(problem, *excluded).leading(2)) <= 1e-6


@pytest.mark.parametrize("how", [grassia.GrassiaError, KeyboardInterrupt])
def test_a_run_that_is_ended_while_it_opens_what_is_left_has_no_answer(problem, how):
    """A callback that ends it must not look like Ctrl-C, which ends the program as well."""

    def end(progress):
        left_out = any(event.kind == "left out" for event in progress.history.events)
        if left_out and how is KeyboardInterrupt:
            raise KeyboardInterrupt
        return left_out

    backend = Simulated(max_restarts=0, faults="crash:3@0")
    with pytest.raises(how, match=None if how is KeyboardInterrupt else "ended .INTERRUPTED. before every"):
        solve(problem, backend, on_loss="exclude", callbacks=end)


def test_a_component_that_fails_again_and_again_is_excluded_too(problem):
    faults = "error:1@" + ",".join(map(str, range(4, 40)))
    with pytest.warns(grassia.ExclusionWarning):
        result = solve(problem, Simulated(faults=faults), on_loss="exclude")
    assert result.stats["excluded"] == [1]
    assert projection_distance(result.vectors, without(problem, 1).leading(2)) <= 1e-6


def test_several_can_be_excluded_one_after_the_other(problem):
    backend = Simulated(max_restarts=0, faults=["crash:1@2", "crash:4@4", "crash:0@6"])
    with pytest.warns(grassia.ExclusionWarning, match="3 of 5"):
        result = solve(problem, backend, on_loss="exclude", tol=1e-9)
    assert result.converged
    assert projection_distance(result.vectors, without(problem, 0, 1, 4).leading(2)) <= 1e-9
    versions = [point["version"] for point in result.history]
    assert versions == sorted(versions)


def test_a_worker_takes_all_its_components_with_it(problem):
    backend = Simulated(workers=2, max_restarts=0, faults="crash:3@3")  # components 1 and 3
    with pytest.warns(grassia.ExclusionWarning):
        result = solve(problem, backend, on_loss="exclude")
    assert result.stats["excluded"] == [1, 3]
    assert projection_distance(result.vectors, without(problem, 1, 3).leading(2)) <= 1e-6


def test_where_every_component_is_lost_there_is_nothing_to_exclude(problem):
    with pytest.warns(UserWarning, match="WORKER_LOST"):
        result = solve(problem, Simulated(workers=1, max_restarts=0, faults="crash:0@2"), on_loss="exclude")
    assert result.status is Status.WORKER_LOST
    assert result.stats["excluded"] == []


def test_data_that_break_a_rule_are_an_error_and_not_excluded(problem):
    broken = [*problem.components[:4], np.full((20, 20), np.nan)]
    with pytest.raises(grassia.InvalidComponent, match="component 4"):
        eigenspace(broken, 2, backend=Simulated(), on_loss="exclude")


def test_nothing_is_excluded_unasked(problem):
    with pytest.warns(UserWarning, match="WORKER_LOST"):
        result = solve(problem, Simulated(max_restarts=0, faults="crash:3@2"))
    assert result.status is Status.WORKER_LOST


def test_a_limit_on_passes_holds_for_what_is_left_too(problem):
    """The last certificate of a run was under way when a component had to be left out."""
    backend = Simulated(max_restarts=0, faults="crash:1@6")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = solve(
            problem,
            backend,
            solver="power",
            tol=1e-12,
            max_passes=6,
            on_loss="exclude",
            callbacks=lambda progress: progress.passes > 200,
        )
    assert result.status is Status.MAX_PASSES
    assert result.stats["excluded"] == [1]


@pytest.mark.parametrize("end", ["callback", "time limit"])
def test_what_was_found_is_not_lost_where_a_run_ends_just_after_an_exclusion(problem, end):
    options = {
        "callback": {"callbacks": lambda progress: progress.phase == "opening" and progress.passes > 3},
        "time limit": {"time_limit": 9.5},
    }[end]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = Simulated(max_restarts=0, faults="crash:1@8")
        result = solve(problem, backend, solver="power", tol=1e-13, on_loss="exclude", **options)
    assert result.status in (Status.INTERRUPTED, Status.TIME_LIMIT)
    assert result.stats["excluded"] == [1]
    assert projection_distance(result.vectors, problem.leading(2)) < 0.5  # that of a random start is near one


@pytest.mark.parametrize("seed", range(8))
def test_nobody_is_given_up_for_a_question_that_an_exclusion_has_ended(problem, seed):
    service, faults = Uniform(3.0, 13.0), f"crash:1@{2 + seed % 4}"
    backend = Simulated(service, workers=2, seed=seed, max_restarts=0, faults=faults)
    policy = LossPolicy("exclude", timeout=15.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = solve(problem, backend, solver="power", on_loss=policy)
    assert not [event for event in result.history.events if "no answer" in event.text]
    assert result.converged


# -- wait, and patience ---------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["grassia", "nystrom", "power", "krylov"])
def test_who_is_waited_for_and_comes_back_counts_like_everybody(problem, solver):
    backend = Simulated(restart_time=100.0, faults=f"crash:2@{EARLY.get(solver, 6)}")
    result = solve(problem, backend, solver=solver, on_loss="wait", max_passes=50_000)
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6
    assert result.stats["seconds"] > 100.0


@pytest.mark.parametrize("action", ["wait", "reload"])
def test_waiting_ends_when_patience_does(problem, action):
    backend = Simulated(restart_time=1e9, faults="crash:2@2")
    with pytest.warns(UserWarning, match="WORKER_LOST"):
        result = solve(problem, backend, on_loss=LossPolicy(action, patience=50.0))
    lost = events(result, "worker lost")[0]
    assert result.status is Status.WORKER_LOST
    assert result.stats["seconds"] == pytest.approx(lost.time + 50.0, abs=1.0)
    assert np.isfinite(result.vectors).all()


def test_wait_and_exclude_ask_a_back_end_to_open_components_nowhere_else():
    assert [LossPolicy(action).stays for action in ("reload", "wait", "exclude")] == [False, True, True]
    for action, stays in (("wait", True), ("reload", False)):
        backend = Simulated()
        eigenspace([np.diag([2.0, 1.0])], 1, backend=backend, on_loss=action)
        assert backend.stays is stays


# -- time-outs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["grassia", "nystrom", "krylov"])
def test_a_worker_that_falls_silent_is_given_up_and_started_anew(problem, solver):
    backend = Simulated(faults=f"delay:1:1e7@{EARLY.get(solver, 5)}")
    result = solve(problem, backend, solver=solver, on_loss=LossPolicy(timeout=20.0), max_passes=50_000)
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6
    assert result.stats["seconds"] < 1e6
    assert any("no answer for 20 s" in event.text for event in events(result, "worker lost"))


def test_without_a_time_out_a_silent_worker_is_waited_for(problem):
    result = solve(problem, Simulated(faults="delay:1:1e7@2"))
    assert result.converged
    assert result.stats["seconds"] > 1e7


def test_where_no_other_can_be_started_a_silent_worker_is_lost(problem):
    policy = LossPolicy("exclude", timeout=0.5)
    with pytest.warns(grassia.ExclusionWarning):
        result = solve(problem, Threads(faults="delay:3:60@4"), on_loss=policy)
    assert result.stats["excluded"] == [3]
    assert projection_distance(result.vectors, without(problem, 3).leading(2)) <= 1e-6


def test_a_process_that_was_stopped_is_replaced(problem):
    backend = Processes()
    stopped = []

    def stop(progress):
        if not stopped and progress.version > 3:
            stopped.append(backend.pids[2])
            os.kill(backend.pids[2], signal.SIGSTOP)

    result = solve(problem, backend, on_loss=LossPolicy(timeout=6.0), callbacks=stop, tol=1e-9)
    assert stopped
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-9


# -- second copies --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", CERTIFIED)
@pytest.mark.parametrize("rows", [False, True], ids=["matrices", "rows"])
def test_a_question_that_takes_too_long_is_put_to_a_copy_elsewhere(problem, solver, rows):
    components, oracle = problem.components, problem.leading(2)
    if rows:
        X = gaussian_rows(200, 10, 3, seed=2)
        components, oracle = grassia.from_rows(X, n_components=5), leading_of_rows(X, 2)
    result = eigenspace(
        components,
        2,
        weights=None if rows else problem.weights,
        solver=solver,
        backend=Simulated(faults="delay:1:1e7@1,2"),
        on_loss=LossPolicy(hasten=4.0, hasten_after=5.0),
        max_passes=50_000,
        rng=0,
    )
    assert result.converged
    assert projection_distance(result.vectors, oracle) <= 1e-6
    assert result.stats["seconds"] < 1e6
    assert result.stats["tasks_hastened"] >= 1
    assert {event.component for event in events(result, "worker replaced")} == {1}


def test_a_copy_that_opened_its_component_faster_is_told_the_mean_afterwards():
    """The mean is known only after everybody has opened; that question had none to tell."""
    rng = np.random.default_rng(0)
    scales = np.r_[5.0, 4.0, np.ones(10)]
    shards = [rng.standard_normal((60, 12)) * scales + 10.0 * rng.standard_normal(12) for _ in range(3)]
    result = eigenspace(
        grassia.from_rows(shards),
        3,
        solver="nystrom",
        backend=Simulated(faults="delay:0:1000s@0"),
        on_loss=LossPolicy(hasten=2.0, hasten_after=1.0),
        rng=0,
    )
    assert events(result, "worker replaced")
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), 3)) <= 1e-6


def test_a_copy_may_be_asked_for_at_once_but_nobody_is_slow_before_the_first_answer(problem):
    turns = []
    result = solve(
        problem,
        Simulated(Fixed([500.0, 500.0, 500.0, 500.0, 900.0])),
        on_loss=LossPolicy(hasten=1.5, hasten_after=0.0),
        callbacks=lambda progress: turns.append(progress.time),
    )
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6
    assert result.stats["tasks_hastened"] >= 1
    assert len(turns) < 20 * sum(result.stats["answers"])  # the clock goes from event to event


def test_a_worker_that_is_faster_than_its_copy_stays(problem):
    # The copy runs where the next worker does, which takes a hundred times as long.
    backend = Simulated(Fixed([1.0, 1.0, 100.0, 1.0, 1.0]), faults="delay:1:30@3")
    result = solve(problem, backend, on_loss=LossPolicy(hasten=2.0, hasten_after=5.0))
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6
    assert result.stats["tasks_hastened"] >= 1
    assert 1 not in [event.component for event in events(result, "worker replaced")]


def test_a_worker_that_dies_while_its_copy_is_at_work_is_not_missed(problem):
    backend = Simulated(Fixed([1.0, 1.0, 40.0, 1.0, 1.0]), faults=["delay:1:30@3", "crash:1@3"])
    result = solve(problem, backend, on_loss=LossPolicy(hasten=2.0, hasten_after=5.0))
    assert result.converged
    assert events(result, "worker lost") == []
    assert 1 in [event.component for event in events(result, "worker replaced")]


class OpensOnce:
    """A shard whose second opening fails."""

    def __init__(self, rows):
        self.rows, self.opened = rows, 0

    def open(self):
        self.opened += 1
        if self.opened == 2:
            raise OSError("the file is not there")
        return grassia.RowsComponent(self.rows)


@pytest.mark.parametrize("solver", ["power", "krylov", "grassia"])
@pytest.mark.parametrize("crash", [False, True], ids=["slow", "slow, and dies"])
def test_a_copy_that_fails_leaves_everything_as_it_was(solver, crash):
    rng = np.random.default_rng(1)
    scales = np.r_[5.0, 4.0, np.ones(8)]
    shards = [rng.standard_normal((50, 10)) * scales + 8.0 * rng.standard_normal(10) for _ in range(4)]
    first = OpensOnce(shards[0])
    late = EARLY.get(solver, 3)
    faults = [f"delay:0:400@{late}"] + ([f"crash:0@{late}"] if crash else [])
    result = eigenspace(
        [first, *grassia.from_rows(shards[1:])],
        2,
        solver=solver,
        backend=Simulated(workers=2, faults=faults),
        on_loss=LossPolicy(hasten=2.0, hasten_after=3.0),
        max_passes=50_000,
        rng=0,
    )
    assert first.opened >= 2
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), 2)) <= 1e-6


def test_nobody_is_hastened_who_takes_as_long_as_ever(problem):
    backend = Simulated(Fixed([1.0, 1.0, 25.0, 1.0, 1.0]))
    result = solve(problem, backend, on_loss=LossPolicy(hasten=4.0, hasten_after=30.0), solver="power")
    assert result.stats["tasks_hastened"] == 0


def test_copies_help_against_a_heavy_tail(problem):
    def seconds(policy):
        found = [
            solve(problem, Simulated(Pareto(1.1, 1.0), seed=seed), solver="krylov", on_loss=policy)
            for seed in range(5)
        ]
        assert all(result.converged for result in found)
        return np.median([result.stats["seconds"] for result in found])

    hasty = seconds(LossPolicy(hasten=3.0, hasten_after=5.0))
    assert hasty < 0.8 * seconds("reload")


# -- all of it, replayed --------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["grassia", "nystrom", "krylov"])
@pytest.mark.parametrize(
    ("policy", "faults"),
    [
        (LossPolicy("exclude"), ["crash:3@2"]),
        (LossPolicy("exclude", patience=10.0), ["crash:3@2"]),
        (LossPolicy(timeout=10.0), ["delay:1:1e7@2"]),
        (LossPolicy(hasten=4.0, hasten_after=5.0), ["delay:1:1e7@2"]),
    ],
    ids=["exclude", "exclude after a while", "timeout", "hasten"],
)
def test_a_run_with_losses_is_replayed_bit_for_bit(problem, tmp_path, solver, policy, faults):
    log = tmp_path / "run.jsonl"
    restart = 40.0 if policy.patience else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", grassia.ExclusionWarning)
        result = eigenspace(
            grassia.from_rows(gaussian_rows(200, 10, 3, seed=2), n_components=5),
            2,
            solver=solver,
            backend=Simulated(restart_time=restart, faults=faults),
            on_loss=policy,
            record=log,
            max_passes=50_000,
            rng=0,
        )
    again = grassia.replay(log, grassia.from_rows(gaussian_rows(200, 10, 3, seed=2), n_components=5))
    assert np.array_equal(again.vectors, result.vectors)
    assert again.stats["excluded"] == result.stats["excluded"]
    assert {"left out", "worker lost", "worker replaced"} & {event.kind for event in result.history.events}


# -- the policy itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ignore", "'reload', 'wait' or 'exclude'; got 'ignore'"),
        (3, "grassia.LossPolicy; got 3"),
    ],
)
def test_an_unknown_policy_is_refused(problem, given, words):
    with pytest.raises(grassia.InvalidInput, match=words):
        solve(problem, Serial(), on_loss=given)


@pytest.mark.parametrize(
    "options", [{"patience": -1.0}, {"timeout": 0.0}, {"hasten": 0.0}, {"hasten_after": float("nan")}]
)
def test_times_that_cannot_be_meant_are_refused(options):
    with pytest.raises(grassia.InvalidInput, match=next(iter(options))):
        LossPolicy("reload", **options)


def test_the_alarm_never_comes_after_what_is_due():
    rng = np.random.default_rng(0)
    policy = LossPolicy("reload", patience=7.0, timeout=20.0, hasten=3.0, hasten_after=2.0)
    attendance = Attendance(6, policy)
    out: dict[int, float] = {}
    absent: dict[int, float] = {}
    slowest = np.zeros(6)
    now = 0.0
    for number in range(2000):
        now += float(rng.exponential(0.5))
        i = int(rng.integers(6))
        if i in absent:
            attendance.restored([i])
            del absent[i]
        elif i in out and rng.random() < 0.8:
            slowest[i] = max(slowest[i], now - out.pop(i))
            attendance.back(i, now, answered=True)
        elif i in out:
            del out[i]
            attendance.lost([i], now)
            absent[i] = now
        else:
            attendance.sent(i, number, now)
            out[i] = now
        overdue = [j for j, since in out.items() if now - since >= 20.0]
        gone = [j for j, since in absent.items() if now - since >= 7.0]
        assert attendance.gone(now) == sorted(gone)
        if overdue:
            assert attendance.alarm <= now + 1.0  # looked at again soon, if it was seen to already
        if now >= attendance.alarm:
            assert attendance.silent(now) == sorted(overdue)
            for _, j in attendance.slow(now):
                assert now - out[j] >= 2.0
                assert now - out[j] >= 3.0 * slowest[j]
            attendance.look_again(now)
