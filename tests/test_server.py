"""The sans-IO server, driven by hand with real workers."""

from __future__ import annotations

import functools
import gc
import warnings
from dataclasses import replace

import numpy as np
import pytest

import grassia
from grassia.backends import Simulated
from grassia.backends.service import Fixed, straggler
from grassia.certificate import Certifier
from grassia.data import as_components
from grassia.faults import corrupted
from grassia.geometry import geodesic_distance, projection_distance
from grassia.messages import Failure, Lost, Restored
from grassia.result import Status
from grassia.server import SOLVING, ComponentFailed, Limits, Server
from grassia.solvers import Grassia
from grassia.worker import Worker
from problems import gaussian_rows, heterogeneous, leading_of_rows

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")


class Bench:
    """A server and its workers, with the messages between them in the test's hands."""

    def __init__(self, components, k, *, groups=None, solver=None, **options):
        loaders = as_components(components)
        groups = groups or [[i] for i in range(len(loaders))]
        self.workers = {i: Worker({j: loaders[j] for j in group}) for group in groups for i in group}
        self.workers = {i: self.workers[group[0]] for group in groups for i in group}
        self.server = Server(solver or Grassia(step=0.05), k, groups, rng=np.random.default_rng(0), **options)
        self.out = []
        self.ask()

    def ask(self):
        self.out.extend(self.server.ask())

    def answer(self, task):
        self.out.remove(task)
        return self.workers[task.component].handle(task)

    def tell(self, *messages):
        self.server.tell(list(messages))
        self.ask()

    def until_solving(self):
        while self.server.phase != SOLVING or not self.server.solver.version(self.server.state):
            self.tell(self.answer(self.out[0]))
        return self

    def finish(self, limit=100_000):
        for _ in range(limit):
            if self.server.status is not None:
                return self.server.status
            self.tell(self.answer(self.out[0]))
        raise AssertionError("it never ended")


@pytest.fixture
def problem():
    return heterogeneous(n=4, d=15, k=2, seed=0)


def test_each_worker_has_one_task_at_a_time(problem):
    bench = Bench(problem.components, 2, groups=[[0, 2], [1, 3]])
    assert [task.component for task in bench.out] == [0, 1]
    bench.tell(bench.answer(bench.out[0]))
    assert sorted(task.component for task in bench.out) == [1, 2]


def test_a_reply_told_twice_counts_once(problem):
    once = Bench(problem.components, 2).until_solving()
    twice = Bench(problem.components, 2).until_solving()
    for _ in range(10):
        once.tell(once.answer(once.out[0]))
        reply = twice.answer(twice.out[0])
        twice.tell(reply)
        twice.tell(reply)
        twice.tell(reply, reply)
    np.testing.assert_array_equal(once.server.state.W, twice.server.state.W)
    np.testing.assert_array_equal(once.server.state.G, twice.server.state.G)
    assert twice.server.ignored == 30


def test_a_task_run_twice_by_its_engine_gives_the_same_answer_twice(problem):
    bench = Bench(problem.components, 2).until_solving()
    for _ in range(12):
        task = bench.out[0]
        first = bench.workers[task.component].handle(task)
        second = bench.workers[task.component].handle(task)
        np.testing.assert_array_equal(first.arrays["correction"], second.arrays["correction"])
        bench.tell(bench.answer(task))
    n, state = 4, bench.server.state
    held = [bench.workers[i]._caches[i]["gradients"][int(state.entry[i])] for i in range(n)]
    np.testing.assert_allclose(state.G, sum(held) / n, atol=1e-14)


def test_a_corrupt_reply_is_rejected_and_asked_again(problem):
    bench = Bench(problem.components, 2).until_solving()
    before = bench.server.state
    task = bench.out[0]
    bench.tell(corrupted(bench.answer(task)))
    assert bench.server.state is before
    assert bench.server.rejected == 1
    assert task.component in [other.component for other in bench.out]
    assert bench.finish() is Status.CONVERGED
    assert bench.server.history.count("corrupt reply rejected") == 1


def test_a_component_that_only_sends_damage_ends_the_run_with_its_name(problem):
    bench = Bench(problem.components, 2, limits=Limits(retries=3)).until_solving()

    def damage_everything_of_component_2():
        for _ in range(100):
            if bench.server.status is not None:
                return
            task = bench.out[0]
            reply = bench.answer(task)
            bench.tell(corrupted(reply) if task.component == 2 else reply)

    damage_everything_of_component_2()
    assert bench.server.status is Status.COMPONENT_FAILED
    assert "component 2 failed 4 times in a row" in bench.server.history.events[-1].text
    assert bench.server.result({}).vectors.shape == (15, 2)


def test_a_failing_task_is_tried_again_and_then_reported(problem):
    bench = Bench(problem.components, 2)
    task = bench.out[0]
    bench.out.remove(task)
    bench.tell(Failure(task.id, task.component, OSError("disk on fire")))
    assert bench.finish() is Status.CONVERGED
    bench = Bench(problem.components, 2)

    def fail_all_of_component_0():
        for _ in range(9):
            task = next(task for task in bench.out if task.component == 0)
            bench.out.remove(task)
            bench.tell(Failure(task.id, task.component, OSError("disk on fire")))

    with pytest.raises(ComponentFailed, match="disk on fire"):
        fail_all_of_component_0()


def test_versions_and_staleness_are_counted_in_updates(problem):
    bench = Bench(problem.components, 2).until_solving()
    slow = next(task for task in bench.out if task.component == 3)
    for _ in range(6):
        quick = next(task for task in bench.out if task.component != 3)
        bench.tell(bench.answer(quick))
    assert bench.server.solver.version(bench.server.state) - slow.version == 6
    bench.tell(bench.answer(slow))
    assert bench.server.history["staleness"][-1] == 6.0


def test_what_arrives_together_makes_one_update(problem):
    bench = Bench(problem.components, 2).until_solving()
    before = bench.server.solver.version(bench.server.state)
    bench.tell(*[bench.answer(task) for task in list(bench.out)])
    assert bench.server.solver.version(bench.server.state) == before + 1
    assert bench.server.history["arrivals"][-1] == 4.0


@pytest.mark.parametrize("when", ["opening", "start", "solving", "certifying"])
@pytest.mark.parametrize("table", ["worker", "server"])
def test_a_worker_lost_in_any_phase_does_not_change_the_answer(problem, when, table):
    bench = Bench(problem.components, 2, solver=Grassia(table=table), weights=problem.weights)
    loaders = as_components(problem.components)

    def reached():
        server = bench.server
        if when == "start":
            return server.phase == SOLVING and server.replies >= 6
        if when == "solving":
            return server.phase == SOLVING and server.replies >= 30
        return server.phase == when and (when == "opening" or server._sweep.awaiting == 2)

    for _ in range(100_000):
        if reached():
            break
        bench.tell(bench.answer(bench.out[0]))
    assert reached()
    for victim in (1, 2):  # one that has answered in this phase, or one that has not
        bench.out = [task for task in bench.out if task.component != victim]
        bench.workers[victim] = Worker({victim: loaders[victim]})
        bench.tell(Lost((victim,), "killed"))
        assert victim not in [task.component for task in bench.out]
        bench.tell(Restored((victim,)))
    assert bench.finish() is Status.CONVERGED
    result = bench.server.result({})
    assert projection_distance(result.vectors, problem.leading(2)) <= 1e-6
    assert result.history.count("worker lost") == 2


def test_a_restarted_worker_is_told_the_global_mean_again():
    X = gaussian_rows(300, 10, 2, seed=1, offset=50.0)
    loaders = grassia.from_rows([X[:50], X[50:180], X[180:]])
    bench = Bench(loaders, 2).until_solving()
    bench.workers[0] = Worker({0: loaders[0]})
    bench.out = [task for task in bench.out if task.component != 0]
    bench.tell(Lost((0,), "killed"))
    bench.tell(Restored((0,)))
    task = next(task for task in bench.out if task.component == 0)
    np.testing.assert_allclose(task.query.arrays["mean"], X.mean(axis=0), rtol=1e-12)
    others = [task for task in bench.out if task.component != 0]
    assert all("mean" not in task.query.arrays for task in others)


def test_shards_of_any_size_far_from_the_origin_give_the_pooled_covariance():
    X = gaussian_rows(400, 12, 3, seed=5, offset=1e4)
    parts = [X[:7], X[7:100], X[100:101], X[101:]]
    result = eigenspace(grassia.from_rows(parts), 3, rng=0)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-6
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    np.testing.assert_allclose(result.values, values[:3], rtol=1e-8)
    assert result.certificate.total == pytest.approx(values.sum(), rel=1e-9)
    np.testing.assert_allclose(result.stats["mean"], X.mean(axis=0), rtol=1e-12)


def test_given_weights_replace_the_row_counts():
    X = gaussian_rows(300, 8, 2, seed=2)
    parts, weights = [X[:100], X[100:]], np.array([3.0, 1.0]) / 4.0
    means = np.stack([part.mean(axis=0) for part in parts])
    mu = weights @ means
    A = sum(w * (p - mu).T @ (p - mu) / len(p) for w, p in zip(weights, parts, strict=True))
    result = eigenspace(grassia.from_rows(parts), 2, weights=[3, 1], rng=0)
    values, vectors = np.linalg.eigh(A)
    assert projection_distance(result.vectors, vectors[:, ::-1][:, :2]) <= 1e-6
    assert result.certificate.total == pytest.approx(values.sum(), rel=1e-10)


def reachable_bytes(root):
    """Bytes of the distinct arrays that an object keeps alive."""
    seen, arrays, stack = set(), {}, [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            base = item if item.base is None else item.base
            arrays[id(base)] = getattr(base, "nbytes", item.nbytes)
            continue
        module = getattr(item, "__name__", None) if type(item).__name__ == "module" else None
        if module is None and not callable(item):
            stack.extend(gc.get_referents(item))
    return sum(arrays.values())


def test_the_memory_of_the_server_does_not_grow_with_the_number_of_components():
    """With every worker out at an iterate of its own, and some old ones still expected back."""
    d, k = 400, 4
    sizes = {}
    for n in (5, 60):
        rng = np.random.default_rng(0)
        bench = Bench(
            grassia.from_rows([rng.standard_normal((2, d)) for _ in range(n)], center=False), k
        ).until_solving()
        while len({task.version for task in bench.out}) < n:
            bench.tell(bench.answer(bench.out[0]))
        sizes[n] = reachable_bytes(bench.server)
    block = 8 * d * k
    assert sizes[60] - sizes[5] < block  # 55 more components cost less than one block


def test_a_stationary_start_that_is_not_leading_is_left():
    """The residual of an eigenvector is zero: only a probe from outside can see that it is wrong."""
    A = np.diag([5.0, 4.0, 3.0, 1.0, 0.5, 0.1])
    v0 = np.eye(6)[:, [1, 2]]
    result = eigenspace([A, A], 2, v0=v0, rng=0)
    assert result.converged
    assert projection_distance(result.vectors, np.eye(6)[:, :2]) <= 1e-6
    assert result.history.count("restarted") == 1


def test_an_absent_gap_is_reported_with_the_identified_block():
    A = np.diag([5.0, 4.0, 2.0, 2.0, 0.5, 0.1, 0.05])
    with pytest.warns(UserWarning, match="GAP_TOO_SMALL"):
        result = eigenspace([A, A], 3, rng=0)
    assert result.status is Status.GAP_TOO_SMALL
    assert not result.converged
    assert result.certificate.identified == 2
    assert projection_distance(result.vectors[:, :2], np.eye(7)[:, :2]) <= 1e-6


def test_the_zero_matrix_has_no_leading_space():
    with pytest.warns(UserWarning, match="GAP_TOO_SMALL"):
        result = eigenspace([np.zeros((5, 5))] * 2, 2, rng=0)
    assert result.status is Status.GAP_TOO_SMALL
    np.testing.assert_array_equal(result.values, 0.0)


def test_the_whole_space_is_certified():
    result = eigenspace([np.diag([3.0, 2.0, 1.0])], 3, rng=0)
    assert result.converged
    np.testing.assert_allclose(result.values, [3.0, 2.0, 1.0], atol=1e-12)


def test_a_tolerance_below_rounding_is_called_so():
    problem = heterogeneous(n=3, d=30, k=3, seed=3)
    with pytest.warns(UserWarning, match="PRECISION"):
        result = eigenspace(problem.components, 3, weights=problem.weights, tol=1e-15, rng=0)
    assert result.status is Status.PRECISION
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-13


def test_too_large_a_step_ends_as_stalled_with_the_best_iterate():
    problem = heterogeneous(n=3, d=20, k=2, seed=3)
    with pytest.warns(UserWarning, match="STALLED"):
        result = eigenspace(problem.components, 2, weights=problem.weights, solver=Grassia(step=30.0), rng=0)
    assert result.status is Status.STALLED
    assert result.certificate is not None
    assert not result.converged


def test_a_limit_on_passes_gives_the_best_iterate_and_its_certificate():
    problem = heterogeneous(n=3, d=20, k=2, seed=3)
    with pytest.warns(UserWarning, match="MAX_PASSES"):
        result = eigenspace(problem.components, 2, weights=problem.weights, max_passes=12, tol=1e-9, rng=0)
    assert result.status is Status.MAX_PASSES
    sine = projection_distance(result.vectors, problem.leading(2))
    assert sine <= result.certificate.sin_theta.value
    A = problem.A
    residual = A @ result.vectors - result.vectors @ (result.vectors.T @ A @ result.vectors)
    assert np.linalg.norm(residual, 2) <= result.certificate.residual_norm + 1e-14
    assert np.linalg.norm(residual, 2) >= 0.99 * result.certificate.residual_norm - 1e-12


def test_the_best_iterate_is_returned_when_the_last_one_is_worse():
    """A run that is thrown off at its end still returns what it had."""
    problem = heterogeneous(n=2, d=12, k=2, seed=1)
    bench = Bench(problem.components, 2, weights=problem.weights, tol=1e-12).until_solving()
    for _ in range(300):
        bench.tell(bench.answer(bench.out[0]))
    good = bench.server.state.W
    bad = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 2)))[0]
    bench.server.state = replace(bench.server.state, W=bad)
    bench.server.end(Status.MAX_PASSES)
    bench.ask()
    assert bench.finish() is Status.MAX_PASSES
    result = bench.server.result({})
    assert projection_distance(result.vectors, problem.leading(2)) <= 1.1 * projection_distance(
        good, problem.leading(2)
    )


def test_a_time_limit_is_kept_and_certified():
    problem = heterogeneous(n=4, d=20, k=2, seed=3)
    backend = Simulated(straggler(4, 3.0))
    with pytest.warns(UserWarning, match="TIME_LIMIT"):
        result = eigenspace(
            problem.components,
            2,
            weights=problem.weights,
            backend=backend,
            tol=1e-12,
            time_limit=40.0,
            rng=0,
        )
    assert result.status is Status.TIME_LIMIT
    assert 40.0 <= result.stats["seconds"] <= 50.0
    assert result.certificate.sweeps == 1


def test_a_time_limit_that_no_last_sweep_can_meet_gives_the_iterate_alone():
    problem = heterogeneous(n=4, d=20, k=2, seed=3)
    backend = Simulated(Fixed([1.0, 1.0, 1.0, 500.0]), free_tasks=2)
    with pytest.warns(UserWarning, match="TIME_LIMIT"):
        result = eigenspace(
            problem.components, 2, weights=problem.weights, backend=backend, time_limit=40.0, rng=0
        )
    assert result.certificate is None
    assert np.isnan(result.values).all()
    assert geodesic_distance(result.vectors, problem.leading(2)) < 1.5


def test_the_certifier_can_be_told_how_hard_to_try():
    problem = heterogeneous(n=2, d=60, k=2, seed=0, gap=0.05)
    with pytest.warns(UserWarning, match="GAP_TOO_SMALL"):
        lazy = eigenspace(
            problem.components,
            2,
            weights=problem.weights,
            rng=0,
            tol=1e-4,
            certifier=Certifier(probes=1, max_sweeps=2),
            solver=Grassia(mode="synchronous"),
        )
    assert not lazy.converged
    keen = eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        rng=0,
        tol=1e-4,
        solver=Grassia(mode="synchronous"),
    )
    assert keen.converged


@pytest.mark.parametrize("backend", ["serial", "threads", "simulated"])
def test_a_component_that_kills_its_worker_every_time_ends_the_run(backend):
    """Also where the worker answers for its other components in between."""
    problem = heterogeneous(n=4, d=12, k=2, seed=0)
    engine = grassia.backends.get(
        backend,
        faults=grassia.Fault("crash", (0,), at=tuple(range(6, 99))),
        **({} if backend == "serial" else {"workers": 2}),
    )
    with pytest.warns(UserWarning, match="WORKER_LOST"):
        result = eigenspace(problem.components, 2, weights=problem.weights, backend=engine, tol=1e-12, rng=0)
    assert result.status is Status.WORKER_LOST
    assert result.vectors.shape == (12, 2)


def test_a_step_far_too_small_is_called_stalled_and_not_a_small_gap():
    X = np.random.default_rng(0).standard_normal((2000, 20)) * np.r_[6.0, 5.0, np.ones(18)]
    with pytest.warns(UserWarning, match="STALLED"):
        result = eigenspace(grassia.from_rows(X, 3), 2, rng=0, solver=Grassia(step=1e-9, resum_passes=0))
    assert result.status is Status.STALLED


def test_data_that_is_gone_after_a_restart_does_not_cost_the_work_done(tmp_path):
    X = gaussian_rows(300, 10, 2, seed=1)
    path = tmp_path / "rows.npy"
    np.save(path, X)

    def remove(progress):
        if progress.version == 20:
            path.unlink()

    with pytest.warns(UserWarning, match="COMPONENT_FAILED"):
        result = eigenspace(
            grassia.from_rows(path, 3),
            2,
            rng=0,
            tol=1e-12,
            callbacks=remove,
            solver=Grassia(),
            backend=Simulated(Fixed(1.0), faults="crash:1@80"),
        )
    assert result.status is Status.COMPONENT_FAILED
    assert projection_distance(result.vectors, leading_of_rows(X, 2)) < 0.5


def test_a_file_that_changes_under_a_run_is_noticed(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, gaussian_rows(300, 10, 2, seed=1))
    components = grassia.from_rows(path, 3)
    np.save(path, gaussian_rows(250, 10, 2, seed=1))
    with pytest.raises(grassia.InvalidComponent, match="must not change"):
        eigenspace(components, 2)


def test_steady_crashes_cost_a_few_passes_and_not_hundreds():
    X = np.random.default_rng(0).standard_normal((400, 12)) * np.r_[5, 4, np.linspace(1, 0.1, 10)]
    calm = eigenspace(grassia.from_rows(X, 4), 2, backend=Simulated(), rng=0, solver=Grassia())
    backend = Simulated(faults=grassia.Injector.parse(["crash:*@5%"], seed=0))
    result = eigenspace(grassia.from_rows(X, 4), 2, backend=backend, rng=0, solver=Grassia())
    assert result.converged
    assert result.history.count("worker lost") >= 3
    assert result.stats["passes"] < 10 * calm.stats["passes"]


def test_one_backend_object_serves_one_run_at_a_time():
    backend = Simulated()
    problem = heterogeneous(n=2, d=8, k=1, seed=0)
    refused = []

    def again(progress):
        if not refused:
            with pytest.raises(grassia.InvalidInput, match="in use by another run"):
                eigenspace(problem.components, 1, backend=backend)
            refused.append(True)

    assert eigenspace(problem.components, 1, backend=backend, callbacks=again, rng=0).converged
    assert eigenspace(problem.components, 1, backend=backend, rng=0).converged
    assert refused


def test_numbers_beyond_double_precision_are_called_so():
    huge = [1e200 * np.diag([3.0, 2.0, 1.0])] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own word on the overflow
        with pytest.raises(grassia.GrassiaError, match="double precision"):
            eigenspace(huge, 1, rng=0, solver=Grassia())
