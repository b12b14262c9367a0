"""The virtual clock: when things arrive, how long they take, and that all of it is repeatable."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import grassia
from grassia import geometry
from grassia.backends import Simulated
from grassia.backends.service import (
    Bursty,
    Fixed,
    LogNormal,
    Pareto,
    Trace,
    Uniform,
    speeds,
    straggler,
)
from grassia.data import MatrixLoader
from grassia.errors import InvalidInput
from grassia.messages import Failure, Lost, Query, Reply, Restored, Task

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")

pytestmark = pytest.mark.timeout(120)


class Post:
    """A started cluster whose components are told to work by number."""

    def __init__(self, backend, n, d=4):
        self.backend = backend
        self._ids = itertools.count(1)
        self._ordinals = [0] * n
        backend.start([MatrixLoader(np.eye(d)) for _ in range(n)])

    def send(self, component, width=1):
        ordinal = self._ordinals[component]
        self._ordinals[component] += 1
        block = np.ones((4, width))
        self.backend.send(Task(next(self._ids), component, 0, ordinal, Query("apply", {"block": block})))

    def arrivals(self, rounds):
        """[(time, components that arrived together)], each sent off again at once."""
        found = []
        for _ in range(rounds):
            together = self.backend.receive()
            found.append((self.backend.now(), [message.component for message in together]))
            for message in together:
                self.send(message.component)
        return found


def times(model, n, worker=0, seed=0):
    """n service times drawn back to back."""
    clockwork = model.clockwork(worker, np.random.default_rng(seed))
    found, now = [], 0.0
    for _ in range(n):
        found.append(clockwork.next(now))
        now += found[-1]
    return np.array(found)


# --------------------------------------------------------------------------------- arrival times


def test_fixed_times_arrive_at_their_multiples_and_equal_instants_arrive_together():
    post = Post(Simulated(Fixed((1.0, 2.0, 3.0))), 3)
    for i in range(3):
        post.send(i)
    assert post.arrivals(5) == [
        (1.0, [0]),
        (2.0, [1, 0]),
        (3.0, [2, 0]),
        (4.0, [1, 0]),
        (5.0, [0]),
    ]
    assert sorted(message.component for message in post.backend.receive()) == [0, 1, 2]
    assert post.backend.now() == 6.0


def test_instants_that_differ_by_rounding_alone_are_one_instant():
    post = Post(Simulated(Fixed((0.1, 0.3))), 2)
    for i in range(2):
        post.send(i)
    found = post.arrivals(300)
    together = [time for time, who in found if len(who) == 2]
    np.testing.assert_allclose(together, 0.3 * np.arange(1, len(together) + 1), rtol=1e-9)
    assert len(together) == 100


def test_where_nothing_is_under_way_only_what_one_waits_for_takes_time():
    backend = Simulated()
    post = Post(backend, 1)
    assert backend.receive() == []
    assert backend.now() == 0.0
    assert backend.receive(60.0) == []
    assert backend.now() == 60.0
    post.send(0)
    backend.receive()
    assert backend.now() == 61.0


def test_a_worker_does_one_task_after_the_other():
    backend = Simulated(Fixed(2.0), workers=1)
    post = Post(backend, 3)
    for i in (2, 0, 1):
        post.send(i)
    found = [([m.component for m in backend.receive()], backend.now()) for _ in range(3)]
    assert found == [([2], 2.0), ([0], 4.0), ([1], 6.0)]


def test_latency_and_bandwidth_add_up_each_way():
    # 4 x 3 float64 there and back: 96 bytes each way.
    backend = Simulated(Fixed(1.0), latency=0.25, bandwidth=192.0)
    post = Post(backend, 1)
    post.send(0, width=3)
    (reply,) = backend.receive()
    assert isinstance(reply, Reply)
    assert backend.now() == pytest.approx((0.25 + 0.5) + 1.0 + (0.25 + 0.5))


def test_answers_share_their_workers_link_and_do_not_overtake_each_other():
    backend = Simulated(Fixed(0.0), bandwidth=32.0, workers=1)
    post = Post(backend, 2)
    post.send(0, width=4)  # 128 bytes: 4 s there, 4 s back
    post.send(1, width=1)  # 32 bytes: 1 s there, while the first is on its way back
    found = [([m.component for m in backend.receive()], backend.now()) for _ in range(2)]
    assert found == [([0], 8.0), ([1], 9.0)]


def test_a_failure_takes_the_time_of_its_task_and_of_the_way_back():
    backend = Simulated(Fixed(1.0), latency=0.5, faults="error:0")
    post = Post(backend, 1)
    post.send(0)
    (failure,) = backend.receive()
    assert isinstance(failure, Failure)
    assert backend.now() == 2.0


def test_slow_multiplies_and_delay_adds_virtual_time():
    backend = Simulated(Fixed(2.0), faults=["slow:0:10x", "delay:0:3s", "delay:1:1ms"])
    post = Post(backend, 3)
    for i in range(3):
        post.send(i)
    found = [(backend.receive()[0].component, backend.now()) for _ in range(3)]
    assert found == [(2, 2.0), (1, pytest.approx(2.001)), (0, 23.0)]


def test_free_tasks_take_no_time_but_faults_strike_them():
    backend = Simulated(Fixed(2.0), latency=1.0, free_tasks=2, faults="error:1@1")
    post = Post(backend, 2)
    for i in (0, 1, 0, 1):
        post.send(i)
    kinds = [type(message) for _ in range(2) for message in backend.receive()]
    assert backend.now() == 0.0
    assert sorted(kind.__name__ for kind in kinds) == ["Failure", "Reply", "Reply", "Reply"]
    post.send(0)
    backend.receive()
    assert backend.now() == 4.0


def test_a_crash_comes_when_the_task_would_have_ended_and_takes_its_restart_time():
    backend = Simulated(Fixed((2.0, 100.0)), restart_time=5.0, faults="crash:0@1")
    post = Post(backend, 2)
    post.send(1)
    post.send(0)
    backend.receive()
    post.send(0)
    (lost,) = backend.receive()
    assert isinstance(lost, Lost)
    assert backend.now() == 4.0
    post.send(0)  # while it is down: it waits until the worker is back
    (restored,) = backend.receive()
    assert isinstance(restored, Restored)
    assert backend.now() == 9.0
    (reply,) = backend.receive()
    assert isinstance(reply, Reply)
    assert backend.now() == 11.0
    assert backend.receive()[0].component == 1
    assert backend.now() == 100.0


def test_a_worker_that_crashes_too_often_is_lost_for_good():
    backend = Simulated(restart_time=1.0, max_restarts=2, faults="crash:0")
    post = Post(backend, 1)
    found = []
    for _ in range(3):
        post.send(0)
        found += backend.receive()
        found += backend.receive()
    assert [type(message) for message in found] == [Lost, Restored, Lost, Restored, Lost]
    assert [m.permanent for m in found if isinstance(m, Lost)] == [False, False, True]
    post.send(0)
    assert backend.receive() == []


# --------------------------------------------------------------------------------- service times


def test_uniform_times_are_uniform():
    found = np.sort(times(Uniform(2.0, 6.0), 20_000))
    assert 2.0 <= found[0] < found[-1] <= 6.0
    # Kolmogorov-Smirnov: beyond 1.95 / sqrt(n) with probability 0.001.
    gap = np.abs((found - 2.0) / 4.0 - np.arange(1, 20_001) / 20_000).max()
    assert gap < 1.95 / math.sqrt(20_000)


def test_lognormal_times_have_their_median_and_spread():
    found = np.log(times(LogNormal(0.5, 0.8), 20_000))
    assert found.mean() == pytest.approx(0.5, abs=4 * 0.8 / math.sqrt(20_000))
    assert found.std() == pytest.approx(0.8, rel=0.03)


@pytest.mark.parametrize("alpha", [0.8, 1.5, 3.0])
def test_pareto_times_have_a_heavy_tail(alpha):
    found = times(Pareto(alpha, 2.0), 20_000)
    assert found.min() >= 2.0
    for t in (3.0, 6.0, 20.0):
        p = (2.0 / t) ** alpha
        assert (found > t).mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20_000))


def test_bursty_times_come_in_stretches_of_their_lengths():
    found = times(Bursty(Fixed(0.1), factor=10.0, calm=50.0, burst=10.0), 300_000)
    assert set(np.round(found, 12)) == {0.1, 1.0}
    slow = found > 0.5
    changes = np.flatnonzero(np.diff(slow)) + 1
    stretches = [part.sum() for part in np.split(found, changes)]
    kinds = [bool(part[0]) for part in np.split(slow, changes)]
    calm = [s for s, is_slow in zip(stretches, kinds, strict=True) if not is_slow]
    burst = [s for s, is_slow in zip(stretches, kinds, strict=True) if is_slow]
    assert len(calm) > 400
    # Exponential stretches, rounded up to whole tasks: a task takes the pace at which it started.
    # A burst too short for one task is not seen, which lengthens what is seen by at most a tenth.
    assert np.mean(calm) == pytest.approx(50.0, rel=0.2)
    assert np.mean(burst) == pytest.approx(10.0, rel=0.2)
    assert found[slow].sum() / found.sum() == pytest.approx(1 / 6, rel=0.15)


def test_a_burst_multiplies_what_its_base_draws():
    model = Bursty(Uniform(1.0, 2.0), factor=100.0, calm=20.0, burst=500.0)
    found = times(model, 2000)
    assert ((found >= 1.0) & (found <= 2.0)).sum() + (found >= 100.0).sum() == 2000
    assert (found >= 100.0).any()
    assert (found <= 2.0).any()


def test_a_trace_goes_round_in_a_circle_for_each_worker():
    model = Trace([[1.0, 2.0, 3.0], [5.0]])
    assert times(model, 7).tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
    assert times(model, 3, worker=1).tolist() == [5.0, 5.0, 5.0]
    assert times(model, 4, worker=2).tolist() == [1.0, 2.0, 3.0, 1.0]


def test_the_papers_workers_have_whole_times_and_a_straggler_is_slow():
    drawn = speeds(4000, 1, 10, np.random.default_rng(0))
    counts = np.bincount(np.array(drawn.seconds, dtype=int), minlength=11)
    assert counts[0] == 0
    assert np.abs(counts[1:] - 400).max() < 4 * math.sqrt(4000 * 0.1 * 0.9)
    assert straggler(4, 7.0, slow=2).seconds == (1.0, 1.0, 7.0, 1.0)


@pytest.mark.parametrize("model", [Uniform(), LogNormal(), Pareto(), Bursty(Uniform())])
def test_times_repeat_by_their_seed_and_differ_between_workers(model):
    def arrivals(seed):
        post = Post(Simulated(model, seed=seed), 3)
        for i in range(3):
            post.send(i)
        return post.arrivals(50)

    assert arrivals(4) == arrivals(4)
    assert arrivals(4) != arrivals(5)
    first = times(model, 20, worker=0, seed=[1, 0])
    assert (first != times(model, 20, worker=1, seed=[1, 1])).any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(-1.0),
        lambda: Fixed((1.0, math.nan)),
        lambda: Fixed(()),
        lambda: Fixed(math.inf),
        lambda: Uniform(2.0, 1.0),
        lambda: Uniform(-1.0, 1.0),
        lambda: LogNormal(0.0, -1.0),
        lambda: LogNormal(math.nan),
        lambda: Pareto(0.0),
        lambda: Pareto(1.0, -1.0),
        lambda: Bursty(factor=0.0),
        lambda: Bursty(calm=0.0, burst=0.0),
        lambda: Trace([]),
        lambda: Trace([[]]),
        lambda: Trace([[1.0, -1.0]]),
        lambda: Simulated(3.0),
        lambda: Simulated(evaluate="sometimes"),
        lambda: Simulated(latency=-1.0),
        lambda: Simulated(latency=math.inf),
        lambda: Simulated(bandwidth=0.0),
        lambda: Simulated(bandwidth=math.nan),
        lambda: Simulated(restart_time=-1.0),
        lambda: Simulated(free_tasks=-1),
        lambda: Simulated(max_restarts=-1),
    ],
)
def test_models_that_make_no_sense_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


# ------------------------------------------------------------------------------------- whole runs


def problem(n, d=10, k=2, seed=0, noise=0.2):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = (turn * np.r_[np.full(k, 4.0), np.linspace(1.0, 0.0, d - k)]) @ turn.T
    parts = rng.standard_normal((n, d, d)) * noise
    parts += parts.transpose(0, 2, 1)
    parts -= parts.mean(axis=0)
    return list(A + parts), turn[:, :k]


def sine(result, W):
    return float(np.sin(geometry.principal_angles(result.vectors, W).max()))


def solve(components, k=2, backend=None, **options):
    return eigenspace(components, k, backend=backend, rng=0, **options)


@pytest.mark.parametrize("evaluate", ["dispatch", "return"])
def test_a_gradient_is_as_stale_as_where_it_was_evaluated_says(evaluate):
    components, W = problem(5)
    backend = Simulated(Fixed((1.0, 2.0, 3.0, 5.0, 7.0)), evaluate=evaluate)
    result = solve(components, backend=backend)
    assert result.converged
    assert sine(result, W) <= 1e-6
    staleness = result.history["staleness"]
    if evaluate == "return":
        assert staleness.max() == 0.0
    else:
        assert staleness.max() >= 6.0  # the slowest misses the updates of six seconds


def test_an_answer_on_its_way_back_grows_stale_even_when_evaluated_at_return():
    components, _ = problem(5)
    backend = Simulated(Fixed((1.0, 2.0, 3.0, 5.0, 7.0)), evaluate="return", latency=3.0)
    assert solve(components, backend=backend).history["staleness"].max() > 0.0


def test_equal_workers_make_every_update_a_synchronous_one():
    components, _ = problem(6)
    result = solve(components, backend=Simulated(Fixed(1.0)))
    assert set(result.history["arrivals"]) == {6.0}
    assert set(result.history["staleness"]) == {0.0}


def test_a_run_repeats_itself_bit_for_bit_by_its_seeds():
    components, _ = problem(8)

    def run(seed):
        backend = Simulated(
            LogNormal(0.0, 1.0), seed=seed, faults=["crash:*@2%", "corrupt:*@2%"], latency=0.1
        )
        return solve(components, backend=backend)

    first, second, other = run(1), run(1), run(2)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    np.testing.assert_array_equal(first.history["time"], second.history["time"])
    np.testing.assert_array_equal(first.history["residual"], second.history["residual"])
    assert [e.kind for e in first.history.events] == [e.kind for e in second.history.events]
    assert first.history.count("worker lost") > 0
    assert not np.array_equal(first.history["time"][:20], other.history["time"][:20])


def test_a_straggler_delays_rounds_but_not_arrivals():
    components, _ = problem(6)
    seconds = {}
    for mode in ("synchronous", "asynchronous"):
        solver = grassia.solvers.Grassia(mode=mode)
        backend = Simulated(straggler(6, 50.0), free_tasks=2)
        result = solve(components, backend=backend, solver=solver, tol=1e-3)
        seconds[mode] = np.diff(result.history["time"]).mean()
    assert seconds["synchronous"] == pytest.approx(50.0)
    assert seconds["asynchronous"] < 5.0


@pytest.mark.parametrize("seed", range(8))
def test_faults_as_a_certificate_sweep_begins_do_not_enter_the_certificate(seed):
    # The solver's own tasks are still out when the sweep begins, and some of them are lost.
    components, _ = problem(4, noise=1.0)
    rules = grassia.Injector.parse("crash:*@30%", seed=seed)
    backend = Simulated(LogNormal(0.0, 1.0), seed=seed, faults=rules)
    with pytest.warns(UserWarning, match="MAX_PASSES"):
        result = solve(components, backend=backend, max_passes=5, tol=1e-12)
    A = np.mean(components, axis=0)
    ritz = np.linalg.eigvalsh(result.vectors.T @ A @ result.vectors)[::-1]
    np.testing.assert_allclose(result.certificate.values, ritz, rtol=1e-12)


@pytest.mark.parametrize(
    "table",
    [
        "server",
        "worker",
    ],
)
def test_two_hundred_heavy_tailed_workers_that_crash_converge(table):
    components, W = problem(200, noise=0.1)
    backend = Simulated(Pareto(2.0), seed=3, restart_time=5.0, faults="crash:*@1%")
    solver = grassia.solvers.Grassia(table=table)
    result = solve(components, backend=backend, solver=solver, max_passes=400, tol=1e-4)
    assert result.converged
    assert sine(result, W) <= 1e-4
    assert result.history.count("worker lost") > 10
    assert result.history["staleness"].max() > 1000


def test_time_limits_are_in_virtual_seconds():
    components, _ = problem(4)
    backend = Simulated(Fixed(1e6))
    with pytest.warns(UserWarning, match="TIME_LIMIT"):
        result = solve(components, backend=backend, time_limit=1e7, tol=1e-12)
    assert 1e7 <= result.stats["seconds"] <= 1.3e7
