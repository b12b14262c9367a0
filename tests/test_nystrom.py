"""The laws of the flagship solver: minorant, monotone bound, exactness, fixed points, losses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import grassia
from certificate_oracles import check, random_problem
from grassia import datasets
from grassia.backends import Processes, Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal, Pareto, speeds, straggler
from grassia.data import MatrixLoader
from grassia.errors import InvalidInput
from grassia.geometry import projection_distance
from grassia.result import Status
from grassia.server import Server
from grassia.solvers import Nystrom
from grassia.solvers.nystrom import HEADSTART
from grassia.solvers.surrogate import Surrogate, ordered_basis
from grassia.worker import Worker
from problems import Dense, gaussian_rows, heterogeneous, leading_of_rows
from worlds import PROBLEMS, WORLDS


def positive_matrices(n: int, d: int, rank: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [M @ M.T / rank for M in rng.standard_normal((n, d, rank))]


def told(matrices, weights, slot, seed, blocks=3, width=3):
    """A surrogate that has been told random blocks of every matrix."""
    rng = np.random.default_rng(seed)
    d = len(matrices[0])
    surrogate = Surrogate(len(matrices), d, slot, weights)
    for _ in range(blocks):
        for i, A in enumerate(matrices):
            V = rng.standard_normal((d, width))
            Q = surrogate.basis(i)
            V = np.linalg.qr(V - Q @ (Q.T @ V))[0]
            V = np.linalg.qr(V - Q @ (Q.T @ V))[0]
            surrogate.add(i, V, A @ V)
    return surrogate


def model(surrogate, i):
    """The model of a component, densely."""
    Y = surrogate.products(i)
    return Y @ surrogate.fit(i, np.eye(surrogate.d))


@pytest.mark.parametrize("rank", [4, 12, 30])
def test_the_model_is_a_minorant_and_exact_on_what_was_asked(rank):
    matrices = positive_matrices(4, 25, rank, seed=rank)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    surrogate = told(matrices, weights, slot=12, seed=0)
    for i, unlifted in enumerate(matrices):
        assert surrogate.shift[i] <= (1e-7 * np.linalg.norm(unlifted, 2) if rank < 9 else 0.0)
        A = unlifted + surrogate.shift[i] * np.eye(25)
        gap = np.linalg.eigvalsh(A - model(surrogate, i))
        assert gap[0] >= -1e-12 * np.linalg.norm(A, 2)
        Q = surrogate.basis(i)
        np.testing.assert_allclose(model(surrogate, i) @ Q, A @ Q, atol=1e-11)


def test_the_leading_pairs_are_those_of_the_summed_models():
    matrices = positive_matrices(5, 30, 20, seed=1)
    weights = np.full(5, 0.2)
    surrogate = told(matrices, weights, slot=12, seed=1)
    total = sum(w * model(surrogate, i) for i, w in enumerate(weights))
    values, vectors = np.linalg.eigh(total)
    for guess, tol in ((None, 1e-14), (vectors[:, ::-1][:, :6] + 0.1, 1e-14)):
        found, E = surrogate.leading(6, guess, tol)
        np.testing.assert_allclose(found, values[::-1][:6], rtol=1e-10)
        assert projection_distance(E[:, :4], vectors[:, ::-1][:, :4]) <= 1e-8
        np.testing.assert_allclose(E.T @ E, np.eye(6), atol=1e-14)


def test_a_warm_started_small_problem_agrees_with_a_dense_one():
    matrices = positive_matrices(30, 60, 40, seed=1)
    surrogate = told(matrices, np.full(30, 1 / 30), slot=12, seed=1)
    dense, E = surrogate.leading(4, None, 1e-14)
    warm, _ = surrogate.leading(4, np.linalg.qr(E + 0.05)[0], 1e-14)
    np.testing.assert_allclose(warm, dense, rtol=1e-12)


@pytest.mark.parametrize("size", [3, 6, 8])
def test_a_compression_leaves_what_the_model_says_of_the_iterate(size):
    matrices = positive_matrices(3, 20, 15, seed=2)
    weights = np.full(3, 1 / 3)
    surrogate = told(matrices, weights, slot=9, seed=2)
    E = np.linalg.qr(np.random.default_rng(3).standard_normal((20, 3)))[0]
    before = E.T @ model(surrogate, 1) @ E
    whole = model(surrogate, 1)
    surrogate.compress(1, np.hstack([surrogate.fit(1, E), np.eye(9)]), size)
    np.testing.assert_allclose(E.T @ model(surrogate, 1) @ E, before, atol=1e-12)
    assert surrogate.size[1] == size
    lost = np.linalg.eigvalsh(whole - model(surrogate, 1))
    assert lost[0] >= -1e-12  # a compressed model says less, never more
    np.testing.assert_allclose(matrices[1] @ surrogate.basis(1), surrogate.products(1), atol=1e-12)
    total = sum(w * model(surrogate, i) for i, w in enumerate(weights))
    values = np.linalg.eigvalsh(total)[::-1]
    np.testing.assert_allclose(surrogate.leading(3, None, 1e-14)[0], values[:3], rtol=1e-10)


def test_a_component_found_to_be_indefinite_is_lifted():
    A = np.diag([3.0, 1.0, -2.0, -5.0, 0.5, 0.1])
    surrogate = Surrogate(1, 6, 6, np.ones(1))
    surrogate.add(0, np.eye(6)[:, 2:4], A[:, 2:4])
    assert surrogate.shift[0] >= 5.0
    surrogate.add(0, np.eye(6)[:, :2], A[:, :2])
    lifted = A + surrogate.shift[0] * np.eye(6)
    np.testing.assert_allclose(model(surrogate, 0)[:4, :4], lifted[:4, :4], atol=1e-12)


def test_an_ordered_basis_spans_the_first_columns_first():
    M = np.random.default_rng(0).standard_normal((8, 5))
    M[:, 2] = M[:, 0] - M[:, 1]
    Q = ordered_basis(M)
    assert Q.shape[1] == 4
    for j in (1, 2):
        assert np.linalg.norm(M[:, :j] - Q[:, :j] @ (Q[:, :j].T @ M[:, :j])) <= 1e-12
    assert np.linalg.norm(M - Q @ (Q.T @ M)) <= 1e-11


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_converges_everywhere_to_near_rounding(name, world):
    problem = PROBLEMS[name]
    backend, _ = WORLDS[world](len(problem.components))
    result = grassia.eigenspace(
        problem.components,
        3,
        weights=problem.weights,
        backend=backend,
        rng=0,
        tol=1e-9,
        solver="nystrom",
        max_passes=200,
    )
    assert result.converged, result.summary()
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-9


ROWS = {
    "small memory": Nystrom(memory=6, width=3, extra=3),
    "narrow": Nystrom(width=3),
    "default": Nystrom(),
    "no extra": Nystrom(extra=0),
}


@pytest.mark.parametrize("solver", ROWS)
@pytest.mark.parametrize("service", [LogNormal(), Pareto(1.5), straggler(9, 20.0), Fixed(1.0)])
def test_the_lower_bound_never_decreases_and_never_exceeds_the_optimum(solver, service):
    X = gaussian_rows(1800, 80, 3, seed=3)
    best = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1][:3].sum()
    result = grassia.eigenspace(
        grassia.from_rows(X, 9),
        3,
        rng=0,
        tol=1e-9,
        solver=ROWS[solver],
        backend=Simulated(service, seed=4, faults="crash:2@3"),
    )
    assert result.converged
    bound = result.history["bound"]
    assert len(bound) > 5
    assert np.diff(bound).min() >= -1e-12 * best
    assert bound.max() <= best * (1.0 + 1e-12)
    assert bound[-1] >= best * (1.0 - 1e-9)
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-9


def sparse_rows() -> tuple[np.ndarray, bool]:
    """(rows of w1a, True), or made rows of a like kind."""
    if datasets.local("w1a") is not None:
        return datasets.load("w1a").X.toarray(), True
    rng = np.random.default_rng(0)
    return (rng.random((1000, 200)) < 0.5 / np.arange(1, 201) ** 0.7).astype(float), False


@pytest.mark.parametrize("prior", [True, False])
def test_shards_of_fewer_rows_than_are_remembered_lose_no_digits(prior):
    """Most of what is asked of them meets next to nothing there: rounding must not grow from it."""
    X, real = sparse_rows()
    k = 10 if real else 6
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    best, leading, closest = values[-k:].sum(), vectors[:, -k:], [1.0]

    def watch(progress):
        if progress.version:
            closest.append(projection_distance(progress.vectors, leading))
        return closest[-1] <= 1e-12

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = grassia.eigenspace(
            grassia.from_rows(X, 20, center=False),
            k,
            rng=1,
            tol=1e-13,
            solver=Nystrom(width=k, prior=prior),
            backend=Simulated(speeds(20, 1, 5, np.random.default_rng(1)), free_tasks=1, seed=1),
            callbacks=watch,
            max_passes=40,
        )
    bound = result.history["bound"]
    assert np.diff(bound).min() >= -1e-12 * best
    assert bound.max() <= best * (1.0 + 1e-12)
    assert min(closest) <= 1e-12


def test_it_reaches_the_rounding_level():
    X = gaussian_rows(2000, 60, 3, seed=5)
    leading = leading_of_rows(X, 3)
    closest = [1.0]

    def watch(progress):
        if progress.version:
            closest.append(projection_distance(progress.vectors, leading))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        grassia.eigenspace(
            grassia.from_rows(X, 8),
            3,
            rng=0,
            tol=1e-15,
            callbacks=watch,
            solver="nystrom",
            backend=Simulated(LogNormal(), seed=1),
        )
    assert min(closest) <= 1e-13


def test_an_iterate_inside_every_model_is_an_eigenspace():
    """The fixed points: nothing left to ask of anybody means an invariant subspace of the sum."""
    X = gaussian_rows(600, 30, 2, seed=6)
    states = []
    grassia.eigenspace(
        grassia.from_rows(X, 4),
        2,
        rng=0,
        tol=1e-12,
        solver="nystrom",
        callbacks=lambda progress: states.append(progress._server.state) and None,
    )
    state = states[-1]
    state = Nystrom().refine(state)
    A = np.cov(X.T, bias=True)
    residual = A @ state.W - state.W @ (state.W.T @ A @ state.W)
    assert state.outside.max() <= 1e-11
    assert np.linalg.norm(residual, 2) <= 1e-10 * np.linalg.norm(A, 2)


def test_a_lost_worker_leaves_its_model_behind():
    """Its data stays in the objective while it is away for good: the answer is that of the model."""
    X = gaussian_rows(900, 40, 3, seed=7)
    backend = Simulated(Fixed(1.0), faults="crash:1@4", restart_time=30.0)
    worst = []

    def watch(progress):
        if 4.5 < progress.time < 35.0 and progress.version:
            worst.append(projection_distance(progress.vectors, leading_of_rows(X, 3)))

    result = grassia.eigenspace(
        grassia.from_rows(X, 6), 3, rng=0, backend=backend, callbacks=watch, solver="nystrom", tol=1e-10
    )
    assert result.converged
    assert result.history.count("worker lost") == 1
    assert worst
    others = leading_of_rows(np.delete(X, slice(150, 300), axis=0), 3)
    assert max(worst) < 0.01 * projection_distance(others, leading_of_rows(X, 3))


STORM = ["crash:1@3", "corrupt:2@4", "duplicate:0@2", "error:3@2"]


@pytest.mark.parametrize(
    "backend",
    [
        lambda: Serial(faults=STORM),
        lambda: Threads(faults=STORM),
        lambda: Processes(faults=STORM),
        lambda: Simulated(LogNormal(), faults=STORM),
        lambda: Simulated(LogNormal(), evaluate="return"),
    ],
    ids=["serial", "threads", "processes", "simulated", "at return"],
)
def test_faults_do_not_change_the_answer_and_a_replay_gives_the_same_bits(backend, tmp_path):
    X = gaussian_rows(900, 40, 3, seed=8)
    components = grassia.from_rows(X, 4)
    log = tmp_path / "run.jsonl"
    result = grassia.eigenspace(
        components, 3, rng=0, backend=backend(), record=log, solver="nystrom", tol=1e-8
    )
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    again = grassia.replay(log, components)
    assert again.vectors.tobytes() == result.vectors.tobytes()


@pytest.mark.parametrize("block", range(4))
def test_converged_is_never_claimed_falsely(block):
    for seed in range(50 * block, 50 * block + 50):
        kind, components, k, service = random_problem(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = grassia.eigenspace(
                components,
                k,
                rng=seed,
                tol=1e-8,
                max_passes=200,
                solver="nystrom",
                backend=Simulated(service, seed=seed),
            )
        values, vectors = np.linalg.eigh(sum(components) / len(components))
        values, vectors = values[::-1], vectors[:, ::-1]
        rigorous, given = check(result.certificate, result.vectors, values, vectors, k)
        assert rigorous, (seed, kind)
        assert given, (seed, kind)
        if result.converged:
            assert projection_distance(result.vectors, vectors[:, :k]) <= 1e-8, (seed, kind)
        if kind in ("clear", "clustered", "heterogeneous", "spike"):
            assert result.status is Status.CONVERGED, (seed, kind, result.status)
        if kind == "gapless":
            assert result.status is Status.GAP_TOO_SMALL, (seed, kind)


@pytest.mark.parametrize(
    "solver", ["nystrom", "krylov", "covariance", "power", "lobpcg", "orthogonal", "auto"]
)
@pytest.mark.parametrize(
    ("matrices", "k", "status"),
    [
        ([np.zeros((5, 5))] * 2, 2, Status.GAP_TOO_SMALL),
        ([np.diag([3.0, 0, 0, 0, 0, 0])] * 3, 2, Status.GAP_TOO_SMALL),
        ([np.diag([3.0, 2.0, 0, 0, 0, 0])] * 3, 2, Status.CONVERGED),
        ([np.diag([3.0, 2.0, 1.0])] * 2, 3, Status.CONVERGED),
        ([np.eye(1)], 1, Status.CONVERGED),
        ([np.diag([2.0, 2.0, 1.0, 1.0, 1.0, 0.5])] * 3, 2, Status.CONVERGED),
        ([np.diag([5.0, 4.0, 2.0, 2.0, 0.5, 0.1])], 3, Status.GAP_TOO_SMALL),
        ([-np.diag(np.r_[1.0, 2.0, np.linspace(5.0, 9.0, 30)])] * 3, 2, Status.CONVERGED),
    ],
)
def test_the_edges_are_right_or_clearly_refused(matrices, k, status, solver):
    problem = Dense(matrices, np.full(len(matrices), 1.0 / len(matrices)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = grassia.eigenspace(matrices, k, solver=solver, rng=0, tol=1e-8)
    assert result.status is status
    np.testing.assert_allclose(result.values, problem.spectrum()[0][:k], atol=1e-8)


def test_a_budget_too_small_is_refused_before_any_product():
    seen = []
    with pytest.raises(InvalidInput, match=r"need .* bytes on the server .* 'power' or 'grassia'"):
        grassia.eigenspace(
            positive_matrices(4, 30, 5, 0),
            3,
            solver=Nystrom(budget=1000.0),
            callbacks=lambda progress: seen.append(progress.version) and None,
        )
    assert not any(seen)


def test_a_budget_that_forbids_the_default_memory_still_converges():
    problem = heterogeneous(10, 50, 3, seed=0)
    thin = Surrogate.nbytes(10, 50, 6 + 3)
    solver = Nystrom(width=3, extra=3, budget=1.05 * thin)
    assert solver.sizes(10, 50, 3)[2] < 36
    result = grassia.eigenspace(problem.components, 3, weights=problem.weights, solver=solver, rng=0)
    assert result.converged


@pytest.mark.parametrize(
    "options", [{"width": 0}, {"extra": -1}, {"memory": 1.5}, {"budget": 0}, {"spread_steps": 0}]
)
def test_bad_parameters_are_refused(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Nystrom(**options)


# -- questions that are taken back --------------------------------------------------------------------


def asked_of(component, problem, service, **options):
    """The tasks a component was sent, and the result."""
    sent = []

    class Watched(Simulated):
        def send(self, task):
            if task.component == component:
                sent.append((self.now(), task))
            super().send(task)

    result = grassia.eigenspace(
        problem.components, 2, backend=Watched(service, free_tasks=1), rng=0, **options
    )
    return sent, result


def test_a_straggler_busy_with_the_random_start_is_asked_anew():
    problem = heterogeneous(n=5, d=30, k=2, seed=0)
    sent, result = asked_of(0, problem, straggler(5, 10.0), solver="nystrom")
    taken_back = [(now, task) for now, task in sent if task.instead is not None]
    assert result.converged
    assert len(taken_back) == result.stats["tasks_withdrawn"] == 1
    now, task = taken_back[0]
    assert now == HEADSTART
    assert task.instead == sent[1][1].id  # the first is the opening
    assert result.stats["answers"][0] == len(sent) - 1


def test_workers_of_like_speed_or_with_a_start_of_the_users_are_left_to_finish():
    problem = heterogeneous(n=5, d=30, k=2, seed=0)
    _, alike = asked_of(0, problem, Fixed((2.9, 1.0, 1.0, 1.0, 1.0)), solver="nystrom")
    assert alike.stats["tasks_withdrawn"] == 0
    start = np.linalg.qr(np.random.default_rng(1).standard_normal((30, 2)))[0]
    sent, given = asked_of(0, problem, straggler(5, 10.0), solver="nystrom", v0=start)
    assert alike.converged
    assert given.converged
    assert sent[1][1].version == 0  # asked about the start
    assert all(task.instead != sent[1][1].id for _, task in sent)


def test_a_certificate_does_not_wait_for_questions_it_has_made_pointless():
    """One worker is out with the solver's question when the run is told to end."""
    problem = heterogeneous(n=3, d=30, k=2, seed=1)
    worker = Worker({i: MatrixLoader(A) for i, A in enumerate(problem.components)})
    server = Server(Nystrom(), 2, [[0], [1], [2]], rng=np.random.default_rng(0))
    held = None
    tasks = server.ask()
    for _ in range(6):
        replies = []
        for task in tasks:
            if task.component == 0 and task.ordinal == 2:
                held = task
            else:
                replies.append(worker.handle(task))
        server.tell(replies)
        tasks = server.ask()
    assert held is not None
    server.end(Status.TIME_LIMIT)
    sweep = {task.component: task for task in [*tasks, *server.ask()]}
    assert sweep[0].instead == held.id
    blocks = [sweep[i].query.arrays["block"] for i in range(3)]
    assert all(np.array_equal(block, blocks[0]) for block in blocks)
    server.tell([worker.handle(sweep[i]) for i in range(3)])
    before = server.ignored
    server.tell([worker.handle(held)])  # too late, and no harm
    assert server.ignored == before + 1


def test_the_answer_is_the_same_whether_a_back_end_drops_or_finishes_what_is_taken_back():
    problem = heterogeneous(n=5, d=30, k=2, seed=3)

    class Stubborn(Simulated):
        def _drop(self, site, number):
            pass  # it goes on, and its answer comes in late

    dropped, finished = (
        grassia.eigenspace(
            problem.components,
            2,
            weights=problem.weights,
            solver="nystrom",
            backend=kind(straggler(5, 10.0)),
            rng=0,
            tol=1e-9,
        )
        for kind in (Simulated, Stubborn)
    )
    assert dropped.converged
    assert finished.converged
    assert finished.stats["replies_ignored"] == 1
    assert dropped.stats["replies_ignored"] == 0
    assert dropped.stats["seconds"] < finished.stats["seconds"]
    assert projection_distance(dropped.vectors, finished.vectors) <= 2e-9
    assert projection_distance(dropped.vectors, problem.leading(2)) <= 1e-9


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n", [1, 3])
def test_a_covariance_that_is_nothing_but_rounding_ends(n):
    """Constant sparse rows: centring by algebra leaves a matrix of rounding errors, of either sign."""
    rows = sp.csr_array(np.full((1001, 7), 0.1))
    result = grassia.eigenspace(grassia.from_rows(rows, n), 2, solver="nystrom", rng=0)
    assert np.all(np.abs(result.values) <= 1e-15)
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(2), atol=1e-12)
