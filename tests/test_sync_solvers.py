"""The synchronous solvers against literal dense transcriptions, the dense oracle, and hard cases."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
import problems
from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import Fixed, LogNormal
from grassia.components import MatrixComponent, OperatorComponent, RowsComponent, SumComponent
from grassia.errors import InvalidInput
from grassia.geometry import geodesic_distance, projection_distance
from grassia.solvers.base import Arrival, Problem
from grassia.solvers.covariance import Covariance
from grassia.solvers.krylov import Krylov
from grassia.solvers.lobpcg import Lobpcg
from grassia.solvers.orthogonal import Orthogonal
from problems import gaussian_rows, heterogeneous, images, leading_of_rows, low_rank

UPDATES = 100

BACKENDS = {
    "serial": Serial,
    "simulated": lambda: Simulated(LogNormal(), seed=3),
    "threads": Threads,
}


def orth(X):
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    return U[:, s > 1e-12 * s[0]]


def leading(A, basis, k):
    """The k leading Ritz vectors of A in the span of an orthonormal basis, and all the Ritz vectors."""
    H = basis.T @ A @ basis
    ritz = basis @ np.linalg.eigh((H + H.T) / 2)[1][:, ::-1]
    return ritz[:, :k], ritz


def true_residual(A, W):
    return np.linalg.norm(A @ W - W @ (W.T @ A @ W), 2)


trajectory = functools.partial(problems.trajectory, updates=UPDATES)


@pytest.fixture(scope="module")
def slow():
    """A gap so small that a hundred updates do not exhaust it."""
    return heterogeneous(n=5, d=60, k=3, seed=1, gap=0.02)


@pytest.fixture(scope="module")
def W0():
    return np.linalg.qr(np.random.default_rng(5).standard_normal((60, 3)))[0]


# -- literal transcriptions ---------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_orthogonal_iteration_is_its_transcription(slow, W0, backend):
    W = W0
    found = trajectory(slow, Orthogonal(shift=0.7), backend(), W0)
    for t in range(1, UPDATES + 1):
        before = W
        W = np.linalg.qr(slow.A @ W + 0.7 * W)[0]
        U, _, Vt = np.linalg.svd(W.T @ before)
        W = W @ U @ Vt
        assert np.abs(found[t][0] - W).max() <= 1e-10
        assert found[t][1] == pytest.approx(true_residual(slow.A, before), rel=1e-8)


def lobpcg_step(A, X, P):
    """The best k-space in the span of the iterate, its residual and the last step."""
    R = A @ X - X @ (X.T @ A @ X)
    trial = np.hstack([X, *(B / np.linalg.norm(B, axis=0) for B in (R, P))])
    return leading(A, orth(trial), X.shape[1])[0]


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_lobpcg_is_its_transcription(slow, backend):
    """Step by step from the recorded iterates: the recurrence doubles a rounding error every few rounds."""
    A = slow.A
    w0 = np.linalg.qr(np.random.default_rng(5).standard_normal((60, 1)))[0]
    found = trajectory(slow, Lobpcg(), backend(), w0)
    P = np.zeros((60, 0))
    for t in range(1, UPDATES):
        X, new = found[t][0], found[t + 1][0]
        assert found[t][1] == pytest.approx(true_residual(A, X), rel=1e-3, abs=1e-13)
        assert projection_distance(new, lobpcg_step(A, X, P)) <= 1e-10
        P = new - X @ (X.T @ new)
        if true_residual(A, new) <= 1e-13:
            break
    assert t > 20


def test_block_lobpcg_is_its_transcription_until_a_column_has_converged(slow, W0):
    """After that a residual normalised is mostly rounding, in both, and none is the right one."""
    A = slow.A
    found = trajectory(slow, Lobpcg(), Serial(), W0)
    X, P = found[1][0], np.zeros((60, 0))
    for t in range(2, 9):
        new = lobpcg_step(A, X, P)
        X, P = new, new - X @ (X.T @ new)
        assert projection_distance(found[t][0], X) <= 1e-10
    for t in range(1, UPDATES):
        assert found[t][1] == pytest.approx(true_residual(A, found[t][0]), rel=1e-3, abs=1e-13)
        captured = [np.trace(W.T @ A @ W) for W in (found[t][0], found[t + 1][0])]
        assert captured[1] >= captured[0] - 1e-13
    assert true_residual(A, found[UPDATES][0]) <= 1e-12


@pytest.mark.parametrize("solver", [Lobpcg(), Krylov(oversample=0, memory=8)], ids=["lobpcg", "krylov"])
def test_bases_stay_orthonormal_and_their_products_exact(solver):
    problem = heterogeneous(n=1, d=100, k=3, seed=1, gap=0.0005)
    A = problem.A
    state = solver.init(Problem(1, 100, 3, np.ones(1), None, False), np.eye(100)[:, :3], 0)
    for _ in range(300):
        block = solver.ask(state, 0).arrays["block"]
        state = solver.tell(state, [Arrival(0, 0, 0, {"product": A @ block}, {})])
    kept = state.method
    basis = np.hstack([state.W, kept.P]) if solver.name == "lobpcg" else kept.Q
    products = np.hstack([kept.AX, kept.AP]) if solver.name == "lobpcg" else kept.Y
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-14)
    np.testing.assert_allclose(products, A @ basis, atol=1e-13)


@pytest.mark.parametrize("memory", [9, 12, 24, "unlimited"])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_krylov_is_its_transcription(slow, W0, backend, memory):
    """Products are taken from A at every step here: none of those carried along has gone bad."""
    A, d, k = slow.A, 60, 3
    limit = d if memory == "unlimited" else memory
    found = trajectory(slow, Krylov(oversample=0, memory=memory), backend(), W0)
    Q, block, rounds = np.zeros((d, 0)), W0, 0
    for t in range(1, UPDATES + 1):
        Q = np.hstack([Q, block])
        W, ritz = leading(A, Q, k)
        stated, true = found[t][1], true_residual(A, found[t][0])
        assert stated == pytest.approx(true, rel=1e-4, abs=1e-14)
        if true < 1e-11 or Q.shape[1] == d:
            break
        rounds += 1
        assert projection_distance(found[t][0], W) <= 1e-10
        block = A @ block
        for _ in range(3):
            block = np.linalg.qr(block - Q @ (Q.T @ block))[0]
        if Q.shape[1] + 3 > limit:
            room = limit - 3
            Q = ritz[:, : min(room, 3 + room // 2)]
    assert rounds >= (15 if limit >= 24 else 90)


def test_unlimited_krylov_is_the_krylov_space():
    """No more than the definition: Ritz vectors of span(W0, A W0, A^2 W0, ...)."""
    problem = heterogeneous(n=3, d=40, k=2, seed=0, gap=0.1)
    W0 = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 2)))[0]
    found = trajectory(problem, Krylov(oversample=0, memory="unlimited"), Serial(), W0, updates=6)
    powers = [W0]
    for t in range(1, 7):
        W = leading(problem.A, orth(np.hstack(powers)), 2)[0]
        assert projection_distance(found[t][0], W) <= 1e-10
        powers.append(orth(problem.A @ powers[-1]))


# -- the oracle ---------------------------------------------------------------------------------


# -- hard cases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [Krylov(), Krylov(memory="unlimited"), Lobpcg(), Orthogonal()])
@pytest.mark.parametrize("components", [[np.diag([3.0, 2.0, 1.0])], [np.zeros((6, 6))], low_rank(1, 7, 1)])
def test_there_is_always_something_to_ask(solver, components):
    """A server that is never content can go on for ever, and the iterate stays orthonormal."""
    d = len(components[0])
    k = 2
    problem = Problem(1, d, k, np.ones(1), None, False)
    state = solver.init(problem, np.eye(d)[:, :k], None)
    component = MatrixComponent(components[0])
    for version in range(30):
        query = solver.ask(state, 0)
        name = query.procedure
        block = query.arrays["iterate" if name == "product" else "block"]
        assert 1 <= block.shape[1] <= d
        arrays = {"whole" if name == "product" else "product": component.apply(block)}
        scalars = {"lowest": 0.0} if name == "product" else {}
        state = solver.tell(state, [Arrival(0, version, 0, arrays, scalars)])
        W = solver.subspace(state)
        assert np.linalg.norm(W.T @ W - np.eye(k)) <= 1e-13
    assert solver.round(state) == 30
    assert true_residual(components[0], W) <= 1e-3


@pytest.mark.parametrize("tol", [1e-14, 1e-15, 1e-16])
def test_covariance_asks_for_one_pass_however_much_is_wanted_of_it(tol):
    components = grassia.from_rows(gaussian_rows(300, 20, 2, seed=0), n_components=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = grassia.eigenspace(components, 2, solver="covariance", tol=tol, rng=0)
    assert result.status in (grassia.Status.PRECISION, grassia.Status.CONVERGED)
    assert result.stats["passes"] == 2.0  # with that of the opening


def test_a_time_limit_in_the_middle_of_a_round_gives_the_last_iterate():
    problem = heterogeneous(n=4, d=15, k=2, seed=0, gap=0.01)
    for solver in (Krylov(oversample=0, memory=4), Lobpcg(), Orthogonal()):
        backend = Simulated(Fixed([1, 2, 1, 3]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = grassia.eigenspace(
                problem.components, 2, solver=solver, backend=backend, tol=1e-14, rng=0, time_limit=8.0
            )
        assert result.vectors.shape == (15, 2)
        assert result.status in (grassia.Status.TIME_LIMIT, grassia.Status.CONVERGED)


# -- parameters ---------------------------------------------------------------------------------


def test_bad_parameters_are_refused_with_their_rule():
    problem = Problem(1, 20, 3, np.ones(1), None, False)
    W = np.eye(20)[:, :3]
    for make, rule in [
        (lambda: Krylov(width=4, oversample=1), "not both"),
        (lambda: Krylov(width=0), "`width` must be at least 1"),
        (lambda: Krylov(oversample=-1), "`oversample` must be at least 0"),
        (lambda: Krylov(memory="all"), "'unlimited'"),
        (lambda: Krylov(memory=1), "`memory`"),
        (lambda: Krylov(memory=9.5), "`memory` must be an integer"),
        (lambda: Krylov(width=4, memory=6).init(problem, W, None), r"k \+ width = 7 columns; got 6"),
        (lambda: Orthogonal(shift="much"), "`shift`"),
        (lambda: Orthogonal(shift=np.nan), "`shift`"),
        (lambda: Orthogonal(spread_steps=0), "`spread_steps`"),
    ]:
        with pytest.raises(InvalidInput, match=rule):
            make()


@pytest.mark.parametrize("memory", [7, 13, None, "unlimited"])
def test_krylov_keeps_to_its_memory(memory):
    solver = Krylov(width=4, memory=memory)
    rng = np.random.default_rng(0)
    M = rng.standard_normal((200, 200))
    A = M + M.T
    problem = Problem(1, 200, 3, np.ones(1), None, False)
    state = solver.init(problem, np.linalg.qr(rng.standard_normal((200, 3)))[0], 1)
    most = 0
    for _ in range(60):
        block = solver.ask(state, 0).arrays["block"]
        most = max(most, state.method.Q.shape[1] + (0 if state.method.again else block.shape[1]))
        Q = state.method.Q
        np.testing.assert_allclose(state.method.Y, A @ Q, atol=1e-11)
        np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-12)
        state = solver.tell(state, [Arrival(0, 0, 0, {"product": A @ block}, {})])
    assert most <= {7: 7, 13: 13, None: 40, "unlimited": 200}[memory]
    assert most > {7: 6, 13: 10, None: 30, "unlimited": 190}[memory]


def test_memory_buys_rounds():
    problem = heterogeneous(n=1, d=300, k=3, seed=0, gap=0.01)
    rounds = [
        grassia.eigenspace(problem.components, 3, solver=Krylov(memory=m), rng=0, tol=1e-6).stats["updates"]
        for m in (10, 20, 40, "unlimited")
    ]
    assert rounds == sorted(rounds, reverse=True)
    assert rounds[0] > 2 * rounds[-1]


# -- the covariance and dense components --------------------------------------------------------


def test_covariance_takes_one_pass_and_certifies_at_once():
    problem = heterogeneous(n=6, d=30, k=4, seed=3)
    result = grassia.eigenspace(
        problem.components, 4, weights=problem.weights, solver=Covariance(), tol=1e-10, rng=0
    )
    assert result.converged
    assert result.stats["updates"] == 1
    assert result.stats["passes"] == 2  # opening and one pass: the server holds all a certificate needs
    assert geodesic_distance(result.vectors, problem.leading(4)) <= 1e-13


def dense_cases():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 11)) + 50.0
    S = sp.random_array((90, 11), density=0.2, rng=rng, format="csr")
    M = (X.T @ X + X.T @ X) / 2
    return {
        "rows": RowsComponent(X),
        "rows, uncentred": RowsComponent(X, center=False),
        "rows, tiles": RowsComponent(X, tile_rows=7),
        "rows, float32": RowsComponent(X.astype(np.float32)),
        "rows, fortran": RowsComponent(np.asfortranarray(X)),
        "rows, integers": RowsComponent((10 * X).astype(np.int16)),
        "sparse": RowsComponent(S),
        "sparse, uncentred": RowsComponent(S, center=False),
        "sparse, empty tiles": RowsComponent(sp.csr_array((90, 11)), tile_rows=20),
        "matrix": MatrixComponent(M),
        "matrix, float32": MatrixComponent(M.astype(np.float32)),
        "sparse matrix": MatrixComponent(sp.csr_array(M)),
        "operator": OperatorComponent(lambda V: M @ V, n_features=11),
        "sum": SumComponent([RowsComponent(X[:40]), RowsComponent(X[40:])]),
    }


@pytest.mark.parametrize("name", dense_cases())
@pytest.mark.parametrize("recentred", [False, True])
def test_the_dense_component_is_its_product_with_the_identity(name, recentred):
    component = dense_cases()[name]
    component.moments()
    if recentred:
        component.recenter(np.full(11, 49.0))
    expected = component.apply(np.eye(11))
    found = component.dense()
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * abs(expected).max())
    np.testing.assert_array_equal(found, found.T) if "float32" not in name else None
    found[:] = 0.0  # a new array: the component is not harmed
    np.testing.assert_allclose(component.apply(np.eye(11)), expected)


def test_a_dense_operator_wider_than_a_block_is_whole():
    values = np.arange(600.0)
    component = OperatorComponent(lambda V: values[:, None] * V, n_features=600)
    np.testing.assert_array_equal(component.dense(), np.diag(values))


# -- the figures of the algorithm notes ---------------------------------------------------------


@pytest.fixture(scope="module")
def pictures():
    X, real = images()
    X = X - X.mean(axis=0)
    A = X.T @ X / len(X)
    return A, leading_of_rows(X, 3, center=False), real


@pytest.mark.parametrize(
    ("solver", "figures"),
    [
        (
            Krylov(oversample=0, memory="unlimited"),
            {2: 7e-1, 4: 1e-2, 6: 1e-4, 8: 4e-7, 10: 7e-10, 15: 6e-15},
        ),
        (Lobpcg(), {2: 7e-1, 4: 1e-2, 6: 4e-4, 8: 5e-6, 10: 3e-7, 15: 7e-11}),
        (Orthogonal(), {2: 1.0, 4: 5e-1, 6: 2e-1, 8: 5e-2, 10: 1e-2, 15: 7e-4, 20: 4e-5}),
    ],
    ids=["krylov", "lobpcg", "orthogonal"],
)
def test_the_images_are_solved_in_as_few_rounds_as_known(pictures, solver, figures):
    """A round takes five ticks of the paper's clock; the first product is free there."""
    A, oracle, real = pictures
    d = len(A)
    problem = Problem(1, d, 3, np.ones(1), None, True)
    distances = []
    for seed in range(3):
        W0 = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 3)))[0]
        state = solver.init(problem, W0, seed)
        found = {}
        for t in range(max(figures) + 1):
            block = solver.ask(state, 0).arrays["block"]
            state = solver.tell(state, [Arrival(0, t, 0, {"product": A @ block}, {})])
            found[t] = geodesic_distance(solver.subspace(state), oracle)
        distances.append(found)
    for t, figure in figures.items():
        median = float(np.median([found[t] for found in distances]))
        assert median <= (3.0 if real else 30.0) * max(figure, 1e-14)


@pytest.mark.parametrize(
    "solver", [Krylov(), Krylov(memory=9, oversample=1), Lobpcg(), Orthogonal(), Covariance()]
)
def test_the_bound_they_state_is_below_the_best_captured_variance_and_gets_there(solver):
    problem = heterogeneous(n=5, d=30, k=3, seed=4)
    result = grassia.eigenspace(
        problem.components, 3, weights=problem.weights, solver=solver, tol=1e-8, rng=0
    )
    best = problem.spectrum()[0][:3].sum()
    bounds = result.history["bound"]
    assert (bounds <= best + 1e-12).all()
    assert bounds[-1] == pytest.approx(best, abs=1e-12)
