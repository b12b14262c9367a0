"""Local eigenspaces, their averages, one-shot estimation, and the warm start they give to every solver."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import grassia
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, projection_distance
from grassia.local import leading_eigenspace, procrustes_average, projector_average
from grassia.solvers import Krylov, OneShot, Orthogonal, Power, Rgd, Solver, VrPca
from grassia.solvers.warm import LocalStart
from problems import gaussian_rows, heterogeneous, iterates, leading_of_rows

BACKENDS = {
    "serial": Serial,
    "simulated": lambda: Simulated(LogNormal(), seed=3),
    "threads": Threads,
}


def leading(A, k):
    return np.linalg.eigh(A)[1][:, ::-1][:, :k]


def quietly(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return grassia.eigenspace(*arguments, rng=options.pop("rng", 0), **options)


# -- one component ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "k"),
    [
        (np.r_[9.0, 8.0, 7.0, np.linspace(3.0, 0.0, 57)], 3),
        (np.r_[2.0, 1.0, np.linspace(0.0, -40.0, 28)], 2),
        (-np.arange(1.0, 26.0), 2),
        (np.array([3.0, 2.0, 1.0]), 3),
        (np.array([5.0]), 1),
        (np.r_[3.0, 2.0, np.zeros(30)], 2),
    ],
    ids=["gap", "a far negative end", "negative", "k = d", "d = 1", "rank k"],
)
def test_a_local_eigenspace_is_that_of_dense_eigh(values, k):
    d = len(values)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0]
    A = (turn * values) @ turn.T
    found, W = leading_eigenspace(lambda V: A @ V, d, k, np.random.default_rng(0), tol=1e-12, products=60)
    np.testing.assert_allclose(found, np.sort(values)[::-1][:k], atol=1e-10)
    assert geodesic_distance(W, leading(A, k)) <= 1e-9
    assert np.linalg.norm(W.T @ W - np.eye(k)) <= 1e-13


def test_a_local_eigenspace_with_a_small_gap_is_found_across_restarts():
    values = np.r_[1.02, 1.01, np.linspace(1.0, 0.0, 398)]
    blocks = []

    def apply(V):
        blocks.append(V.shape[1])
        return values[:, None] * V

    _, W = leading_eigenspace(apply, 400, 2, np.random.default_rng(0), extra=1, products=300, tol=1e-9)
    assert sum(blocks) > 3 * 40  # three times as many columns as are kept
    assert geodesic_distance(W, np.eye(400)[:, :2]) <= 1e-6


def test_a_local_search_keeps_to_its_products_and_more_of_them_never_do_worse():
    """Larger spaces hold larger Ritz values."""
    values = np.r_[1.02, np.linspace(1.0, 0.0, 399)]
    found = []
    for products in (1, 2, 4, 8, 16, 32):
        blocks = []

        def apply(V, blocks=blocks):
            blocks.append(V)
            return values[:, None] * V

        rng = np.random.default_rng(0)
        ritz, W = leading_eigenspace(apply, 400, 1, rng, extra=0, products=products, tol=1e-14)
        assert len(blocks) == products
        assert float(ritz[0]) == pytest.approx(float(W[:, 0] @ (values * W[:, 0])), abs=1e-13)
        found.append(float(ritz[0]))
    assert found == sorted(set(found))
    assert found[-1] <= 1.02


# -- averages -----------------------------------------------------------------------------------


def neighbours(n, d, k, size, seed=0):
    """Bases of spaces near the first k axes, each turned at random."""
    rng = np.random.default_rng(seed)
    bases = []
    for _ in range(n):
        near = np.linalg.qr(np.eye(d)[:, :k] + size * rng.standard_normal((d, k)))[0]
        bases.append(near @ np.linalg.qr(rng.standard_normal((k, k)))[0])
    return bases, rng.uniform(0.5, 1.5, n)


@pytest.mark.parametrize("average", [procrustes_average, projector_average])
def test_an_average_does_not_depend_on_the_bases_of_its_spaces(average):
    bases, weights = neighbours(5, 12, 3, 0.1)
    rng = np.random.default_rng(4)
    turned = [V @ np.linalg.qr(rng.standard_normal((3, 3)))[0] for V in bases]
    assert projection_distance(average(bases, weights), average(turned, weights)) <= 1e-13


@pytest.mark.parametrize("average", [procrustes_average, projector_average])
def test_the_average_of_equal_spaces_is_that_space(average):
    bases, weights = neighbours(5, 12, 3, 0.0)
    assert projection_distance(average(bases, weights), np.eye(12)[:, :3]) <= 1e-13


@pytest.mark.parametrize("average", [procrustes_average, projector_average])
def test_an_average_counts_each_space_by_its_weight(average):
    bases, _ = neighbours(2, 12, 3, 0.2)
    first, second = (
        geodesic_distance(average(bases, np.array(weights)), bases[0]) for weights in ([0.9, 0.1], [0.5, 0.5])
    )
    assert 0 < first < 0.5 * second


def test_the_average_of_projectors_is_that_of_the_dense_mean():
    bases, weights = neighbours(6, 15, 3, 0.3)
    mean = sum(w * V @ V.T for w, V in zip(weights, bases, strict=True))
    assert projection_distance(projector_average(bases, weights), leading(mean, 3)) <= 1e-12


def test_refining_the_reference_settles_quickly():
    """A better reference changes the alignments, and so the average, by ever less."""
    bases, weights = neighbours(6, 15, 3, 0.05)
    averages = [procrustes_average(bases, weights, refinements) for refinements in range(4)]
    moves = [geodesic_distance(*pair) for pair in itertools.pairwise(averages)]
    assert moves[0] > 0
    assert moves[1] < 0.1 * moves[0]
    assert moves[2] < 0.1 * moves[1]


# -- one-shot -----------------------------------------------------------------------------------


def one_shot(problem, k, average, refinements):
    """Dense: the leading eigenspace of every component, aligned and averaged."""
    bases = [leading(A, k) for A in problem.components]
    if average == "projectors":
        return leading(sum(w * V @ V.T for w, V in zip(problem.weights, bases, strict=True)), k)
    reference = bases[int(np.argmax(problem.weights))]
    for _ in range(1 + refinements):
        total = np.zeros_like(reference)
        for w, V in zip(problem.weights, bases, strict=True):
            U, _, Zt = np.linalg.svd(V.T @ reference)
            total += w * V @ (U @ Zt)
        U, _, Zt = np.linalg.svd(total, full_matrices=False)
        reference = U @ Zt
    return reference


@pytest.mark.parametrize(
    ("average", "refinements"), [("procrustes", 0), ("procrustes", 2), ("projectors", 1)]
)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_one_shot_is_its_transcription(backend, average, refinements):
    problem = heterogeneous(n=6, d=20, k=3, seed=2)
    solver = OneShot(average, refinements, local_tol=1e-13)
    found = iterates(problem, solver, backend(), np.eye(20)[:, :3], 1)
    expected = one_shot(problem, 3, average, refinements)
    assert projection_distance(found[1], expected) <= 1e-10


@pytest.mark.parametrize("average", ["procrustes", "projectors"])
def test_the_bias_of_one_shot_is_of_second_order_in_the_unlikeness(average):
    distances = []
    for noise in (0.02, 0.04, 0.08):
        problem = heterogeneous(n=6, d=20, k=3, seed=2, noise=noise)
        result = quietly(problem.components, 3, weights=problem.weights, solver=OneShot(average))
        assert result.status is grassia.Status.STALLED
        distances.append(geodesic_distance(result.vectors, problem.leading(3)))
        assert np.sin(distances[-1]) <= result.certificate.sin_theta.value
    for small, large in ((distances[0], distances[1]), (distances[1], distances[2])):
        assert large / small == pytest.approx(4.0, rel=0.2)


def test_one_shot_of_samples_is_nearly_as_near_to_their_population_as_all_the_data():
    """The theory of Fan et al.: while shards are large, averaging loses nothing in the leading order."""
    rng = np.random.default_rng(0)
    scales = np.r_[3.0, 2.5, np.ones(18)]
    whole, averaged = [], []
    for _ in range(5):
        X = rng.standard_normal((8000, 20)) * scales
        result = quietly(grassia.from_rows(X, n_components=8, center=False), 2, solver=OneShot())
        averaged.append(geodesic_distance(result.vectors, np.eye(20)[:, :2]))
        whole.append(geodesic_distance(leading_of_rows(X, 2, center=False), np.eye(20)[:, :2]))
    assert np.mean(averaged) <= 1.1 * np.mean(whole)


def test_one_shot_takes_one_round_and_says_honestly_what_it_is_worth():
    problem = heterogeneous(n=6, d=20, k=3, seed=2)
    with pytest.warns(match="STALLED"):
        result = grassia.eigenspace(
            problem.components, 3, weights=problem.weights, solver="one-shot", rng=0, tol=1e-6
        )
    assert not result.converged
    assert result.stats["passes"] <= 6  # opening, the local solves, the residual, two certificates
    W, A = result.vectors, problem.A
    assert result.history["residual"][-1] == pytest.approx(np.linalg.norm(A @ W - W @ (W.T @ A @ W), 2))
    np.testing.assert_allclose(result.values, np.sort(np.linalg.eigvalsh(W.T @ A @ W))[::-1], atol=1e-12)


def test_one_shot_converges_where_all_components_share_the_space():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((15, 15)))[0]
    parts = [(turn * np.r_[rng.uniform(3, 5, 2), rng.uniform(0, 2, 13)]) @ turn.T for _ in range(4)]
    parts = [(A + A.T) / 2 for A in parts]
    result = grassia.eigenspace(parts, 2, solver=OneShot(local_tol=1e-12), tol=1e-8, rng=0)
    assert result.converged
    assert geodesic_distance(result.vectors, turn[:, :2]) <= 1e-8


@pytest.mark.parametrize("backend", ["serial", "simulated", "threads"])
def test_lost_workers_do_not_change_the_estimate(backend):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    make = {"serial": Serial, "simulated": Simulated, "threads": Threads}[backend]
    faults = ["crash:1@1", "corrupt:0@1", "error:3@2", "duplicate:2@1", "crash:2@2"]
    plain = quietly(problem.components, 2, weights=problem.weights, solver=OneShot())
    harmed = quietly(
        problem.components, 2, weights=problem.weights, solver=OneShot(), backend=make(faults=faults)
    )
    assert harmed.history.count("worker lost") >= 2
    assert geodesic_distance(plain.vectors, harmed.vectors) <= 1e-12


# -- the warm start -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards():
    """Shards of one population, where local eigenspaces are near the common one."""
    X = gaussian_rows(4000, 60, 3, seed=1)
    return grassia.from_rows(X, n_components=8), leading_of_rows(X, 3)


@pytest.mark.parametrize(
    "solver", ["grassia", "power", "orthogonal", "rgd", "vrpca", "dsag", "lobpcg", "iarg"]
)
def test_a_local_start_saves_passes_on_like_shards(shards, solver):
    components, oracle = shards
    cold, warm = (
        grassia.eigenspace(components, 3, solver=solver, v0=v0, backend="simulated", tol=1e-6, rng=0)
        for v0 in (None, "local")
    )
    assert cold.converged
    assert warm.converged
    assert warm.stats["passes"] < cold.stats["passes"]
    assert geodesic_distance(warm.vectors, oracle) <= 2e-6


@pytest.mark.parametrize("name", grassia.solvers.names())
def test_every_solver_starts_at_the_average(name):
    problem = heterogeneous(n=5, d=20, k=2, seed=3)
    starts = []

    def watch(progress):
        if progress.phase == "solving" and progress.vectors is not None:
            starts.append((progress.version, progress.vectors.copy()))
        return progress.version >= 1

    result = quietly(
        problem.components, 2, weights=problem.weights, solver=name, v0="local", callbacks=watch, tol=1e-6
    )
    assert result.stats["solver"] == name
    begun = [W for version, W in starts if version == (1 if name == "one-shot" else 0)]
    average = one_shot(problem, 2, "procrustes", 1)
    assert projection_distance(begun[-1], average) <= 1e-5


def test_a_local_start_is_the_average_given_as_v0():
    problem = heterogeneous(n=5, d=20, k=2, seed=3)
    W0 = one_shot(problem, 2, "procrustes", 1)
    expected = iterates(problem, Orthogonal(shift=0.5), Serial(), W0, 20)
    solver = LocalStart(Orthogonal(shift=0.5), OneShot(local_tol=1e-13))
    found = iterates(problem, solver, Serial(), np.eye(20)[:, :2], 20)
    assert max(projection_distance(found[t], expected[t]) for t in range(1, 21)) <= 1e-10


@pytest.mark.parametrize("solver", [Power(), Krylov(), VrPca(), Rgd()], ids=lambda solver: solver.name)
@pytest.mark.parametrize(
    "backend", [*BACKENDS.values(), lambda: Simulated(Fixed([1, 2, 1, 3]), evaluate="return")]
)
def test_a_replay_of_a_local_start_gives_the_very_same_bits(solver, backend, tmp_path):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    log = tmp_path / "run.jsonl"
    recorded = quietly(
        problem.components,
        2,
        weights=problem.weights,
        solver=solver,
        backend=backend(),
        v0="local",
        rng=7,
        record=log,
    )
    again = grassia.replay(log, problem.components)
    assert recorded.converged
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.stats["solver"] == solver.name


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_replay_of_one_shot_gives_the_very_same_bits(backend, tmp_path):
    """The certificates it ends with are asked for when nothing moves, which no log has a line for."""
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    log = tmp_path / "run.jsonl"
    recorded = quietly(problem.components, 2, solver=OneShot(), backend=backend(), rng=7, record=log)
    again = grassia.replay(log, problem.components)
    assert again.status is recorded.status is grassia.Status.STALLED
    assert again.vectors.tobytes() == recorded.vectors.tobytes()
    assert again.certificate.sin_theta == recorded.certificate.sin_theta


def test_an_interrupted_one_shot_is_replayed_to_where_it_was(tmp_path):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    log = tmp_path / "run.jsonl"
    recorded = quietly(
        problem.components, 2, solver=OneShot(), record=log, callbacks=lambda progress: progress.version == 2
    )
    again = grassia.replay(log, problem.components)
    assert again.status is recorded.status is grassia.Status.INTERRUPTED
    assert again.vectors.tobytes() == recorded.vectors.tobytes()


@pytest.mark.parametrize("backend", ["serial", "simulated", "threads"])
def test_workers_lost_while_the_start_is_gathered_do_no_harm(backend):
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    make = {"serial": Serial, "simulated": Simulated, "threads": Threads}[backend]
    faults = ["crash:1@1", "corrupt:0@1", "duplicate:2@1", "error:3@1"]
    result = grassia.eigenspace(
        problem.components,
        2,
        weights=problem.weights,
        solver="power",
        v0="local",
        backend=make(faults=faults),
        tol=1e-8,
        rng=0,
    )
    assert result.converged
    assert result.history.count("worker lost") >= 1
    assert geodesic_distance(result.vectors, problem.leading(2)) <= 3e-8


def test_processes_find_a_local_start():
    X = gaussian_rows(400, 12, 2, seed=1)
    result = grassia.eigenspace(
        grassia.from_rows(X, n_components=4),
        2,
        solver="power",
        v0="local",
        backend=Processes(workers=2),
        rng=0,
    )
    assert result.converged
    assert geodesic_distance(result.vectors, leading_of_rows(X, 2)) <= 2e-6


def test_a_time_limit_while_the_start_is_gathered_ends_the_run():
    problem = heterogeneous(n=4, d=15, k=2, seed=0)
    backend = Simulated(Fixed([1, 1, 1, 50]))
    result = quietly(problem.components, 2, v0="local", solver="power", backend=backend, time_limit=60.0)
    assert result.status is grassia.Status.TIME_LIMIT
    assert result.vectors.shape == (15, 2)


def test_the_warm_start_hands_on_every_method_of_a_solver():
    """A method added to `Solver` and forgotten here would be asked of the wrong object."""
    public = {name for name in vars(Solver) if not name.startswith("_") and callable(getattr(Solver, name))}
    assert public <= set(vars(LocalStart))


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: OneShot(average="mean"), "`average` must be 'procrustes' or 'projectors'; got 'mean'"),
        (lambda: OneShot(refinements=-1), "`refinements` must be at least 0"),
        (lambda: OneShot(extra=0.5), "`extra` must be an integer"),
        (lambda: OneShot(local_products=0), "`local_products` must be at least 1"),
        (lambda: OneShot(local_tol=0.0), "`local_tol` must be a positive finite number"),
        (
            lambda: grassia.eigenspace([np.eye(3)], 1, v0="global"),
            "`v0` must be .*'local' or None; got 'global'",
        ),
    ],
)
def test_bad_parameters_are_refused_with_their_rule(make, rule):
    with pytest.raises(InvalidInput, match=rule):
        make()
