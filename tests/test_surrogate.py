"""The server's model against dense linear algebra, after many changes of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from grassia.geometry import projection_distance
from grassia.solvers.surrogate import (
    DENSE,
    DenseSum,
    SmallGram,
    Surrogate,
    outside,
    rotation,
    solve_root,
    warm_eigenvectors,
)


def decaying(n: int, d: int, seed: int, rank: int | None = None) -> list[np.ndarray]:
    """Positive matrices whose eigenvalues fall to 1e-3 of the largest, or to nothing beyond `rank`."""
    rng = np.random.default_rng(seed)
    values = np.logspace(0.0, -3.0, d)
    values[d if rank is None else rank :] = 0.0
    bases = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(n)]
    return [(U * values) @ U.T for U in bases]


class Twin:
    """A surrogate, and beside it all `Q_i` and `Y_i` as plain matrices."""

    def __init__(self, matrices, slot, seed=0):
        self.matrices, self.d = matrices, len(matrices[0])
        self.n, self.slot = len(matrices), slot
        self.rng = np.random.default_rng(seed)
        weights = self.rng.uniform(0.5, 1.5, self.n)
        self.weights = weights / weights.sum()
        self.surrogate = Surrogate(self.n, self.d, slot, self.weights)
        self.Q = [np.zeros((self.d, 0)) for _ in matrices]
        self.Y = [np.zeros((self.d, 0)) for _ in matrices]

    def add(self, i, width):
        V = outside(self.rng.standard_normal((self.d, width)), self.Q[i])
        unknown = (self.matrices[i] - self.model(i)) @ V
        lifted = self.surrogate.shift[i]
        found = self.surrogate.add(i, V, (self.matrices[i] - lifted * np.eye(self.d)) @ V)
        more = self.surrogate.shift[i] - lifted
        if more == 0.0:
            np.testing.assert_allclose(found, unknown, atol=1e-12 if lifted == 0.0 else 1e-9)
        else:  # it was close to singular
            assert more <= 1e-7 * np.linalg.norm(self.matrices[i], 2)
            self.matrices[i] = self.matrices[i] + more * np.eye(self.d)
            self.Y[i] = self.Y[i] + more * self.Q[i]
        self.Q[i], self.Y[i] = np.hstack([self.Q[i], V]), np.hstack([self.Y[i], self.matrices[i] @ V])

    def compress(self, i, size):
        q = self.Q[i].shape[1]
        R = np.linalg.qr(self.rng.standard_normal((q, q)))[0]
        self.surrogate.compress(i, R, size)
        self.Q[i], self.Y[i] = self.Q[i] @ R[:, :size], self.Y[i] @ R[:, :size]

    def raise_shift(self, i, more):
        self.surrogate._raise_shift(i, more)
        self.matrices[i] = self.matrices[i] + more * np.eye(self.d)
        self.Y[i] = self.Y[i] + more * self.Q[i]

    def model(self, i):
        H = self.Q[i].T @ self.Y[i]
        return self.Y[i] @ np.linalg.pinv((H + H.T) / 2.0, rcond=1e-13, hermitian=True) @ self.Y[i].T

    def total(self):
        return sum(w * self.model(i) for i, w in enumerate(self.weights))

    def step(self, width=2):
        """Any change that is possible."""
        i = int(self.rng.integers(self.n))
        q = self.Q[i].shape[1]
        kind = self.rng.integers(10)
        if kind == 0 and q:
            self.raise_shift(i, float(self.rng.uniform(0.0, 0.05)))
        elif q + width > self.slot or (kind <= 3 and q > width):
            self.compress(i, int(self.rng.integers(1, q)))
        else:
            self.add(i, width)


def held(surrogate):
    """The sum of the models, as the surrogate holds their columns."""
    Z = np.hstack([surrogate._sum.columns(i) for i in range(surrogate.n)])
    return Z @ Z.T


SHAPES = {"fewer columns than features": (4, 60, 9), "more columns than features": (9, 40, 9)}


@pytest.fixture(params=SHAPES)
def shape(request):
    n, d, slot = SHAPES[request.param]
    kind = SmallGram if n * slot < d else DenseSum
    assert isinstance(Surrogate(n, d, slot, np.ones(n))._sum, kind)
    return n, d, slot


@pytest.mark.parametrize("seed", range(5))
def test_after_any_changes_the_models_are_the_dense_ones(shape, seed):
    n, d, slot = shape
    twin = Twin(decaying(n, d, seed), slot, seed)
    for _ in range(200):
        twin.step()
    for i in range(n):
        np.testing.assert_allclose(twin.surrogate.basis(i), twin.Q[i], atol=1e-12)
        np.testing.assert_allclose(twin.surrogate.products(i), twin.Y[i], atol=1e-12)
        model = twin.surrogate.products(i) @ twin.surrogate.fit(i, np.eye(d))
        np.testing.assert_allclose(model, twin.model(i), atol=1e-12)
        gap = np.linalg.eigvalsh(twin.matrices[i] - model)
        assert gap[0] >= -1e-12
    np.testing.assert_allclose(held(twin.surrogate), twin.total(), atol=1e-12)
    np.testing.assert_allclose(twin.surrogate.apply(np.eye(d)), twin.total(), atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_after_any_changes_the_small_matrix_is_that_of_its_columns(shape, seed):
    n, d, slot = shape
    twin = Twin(decaying(n, d, seed), slot, seed)
    for count in range(200):
        twin.step()
        if count % 7 == 0 and twin.surrogate.rank >= 4:
            twin.surrogate.leading(4, None, 1e-14)
    kept = twin.surrogate._sum
    kept._renew()
    if isinstance(kept, DenseSum):
        np.testing.assert_allclose(kept._S, twin.total(), atol=1e-12)
        return
    used = slice(kept._count)
    Z = kept._Z[:, used]
    np.testing.assert_allclose(kept._K[used, used], Z.T @ Z, atol=1e-12)
    np.testing.assert_allclose(kept._seen[used], Z.T @ kept._last, atol=1e-12)
    assert sorted(np.concatenate(kept._places)) == list(range(kept._count))
    for i, places in enumerate(kept._places):
        assert (kept._owner[places] == i).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_leading_pairs_are_those_of_a_dense_eigensolver(shape, seed):
    n, d, slot = shape
    twin = Twin(decaying(n, d, seed), slot, seed)
    guess = None
    for count in range(120):
        twin.step()
        if count < 30 or count % 5:
            continue
        found, E = twin.surrogate.leading(5, guess, 1e-14)
        values, vectors = np.linalg.eigh(twin.total())
        np.testing.assert_allclose(found, values[::-1][:5], atol=1e-13)
        np.testing.assert_allclose(E.T @ E, np.eye(5), atol=1e-14)
        gap = values[-3] - values[-4]
        assert projection_distance(E[:, :3], vectors[:, ::-1][:, :3]) <= 1e-13 / gap
        guess = E


@pytest.mark.parametrize(("n", "d"), [(30, 400), (30, 200)])
def test_a_warm_started_answer_is_as_good_as_a_dense_one(n, d):
    shared = np.zeros((d, d))
    shared[:4, :4] = np.diag([4.0, 3.0, 2.0, 1.0])
    twin = Twin([A + shared for A in decaying(n, d, 0)], slot=8)
    for _ in range(4):
        for i in range(n):
            twin.add(i, 2)
    assert min(twin.surrogate.rank, d) > DENSE
    _, E = twin.surrogate.leading(4, None, 1e-14)
    for i in (3, 17, 4, 28):
        twin.compress(i, 6)
        twin.add(i, 2)
        found, E = twin.surrogate.leading(4, E, 1e-14)
        values, vectors = np.linalg.eigh(twin.total())
        np.testing.assert_allclose(found, values[::-1][:4], rtol=1e-12)
        gap = (values[-2] - values[-3]) / values[-1]
        assert projection_distance(E[:, :2], vectors[:, ::-1][:, :2]) <= 1e-12 / gap


def test_arrivals_in_a_batch_are_the_same_as_one_by_one(shape):
    n, d, slot = shape
    single, batch = Twin(decaying(n, d, 1), slot), Twin(decaying(n, d, 1), slot)
    for i in range(n):
        single.add(i, 4)
        single.surrogate.leading(3, None, 1e-14)
        batch.add(i, 4)
    for i in range(n):
        for twin in (single, batch):
            twin.compress(i, 2)
            twin.add(i, 3)
        single.surrogate.leading(3, None, 1e-14)
    values, E = single.surrogate.leading(3, None, 1e-14)
    at_once, F = batch.surrogate.leading(3, None, 1e-14)
    np.testing.assert_allclose(at_once, values, rtol=1e-13)
    assert projection_distance(E, F) <= 1e-12


def test_a_component_of_low_rank_is_lifted_a_little_and_loses_no_digits(shape):
    n, d, slot = shape
    twin = Twin(decaying(n, d, 2, rank=3), slot)
    for _ in range(2):
        for i in range(n):
            twin.add(i, 4)
    for i in range(n):
        assert 0.0 < twin.surrogate.shift[i] <= 1e-7
        for size in (8, 5):
            twin.compress(i, size)
            Q = twin.Q[i]
            np.testing.assert_allclose(twin.surrogate.products(i), twin.Y[i], atol=1e-13)
            model = twin.surrogate.products(i) @ twin.surrogate.fit(i, np.eye(d))
            np.testing.assert_allclose(model @ Q, twin.matrices[i] @ Q, atol=1e-13)
            assert np.linalg.eigvalsh(twin.matrices[i] - model)[0] >= -1e-13


def test_fewer_columns_than_are_asked_for_still_give_an_orthonormal_answer(shape):
    n, d, slot = shape
    twin = Twin(decaying(n, d, 3, rank=1), slot)
    twin.add(0, 4)
    values, E = twin.surrogate.leading(4, None, 1e-14)
    lift = twin.surrogate.shift[0] * twin.weights[0]
    np.testing.assert_allclose(values, [twin.weights[0] + lift, lift, lift, lift], atol=1e-12)
    np.testing.assert_allclose(E.T @ E, np.eye(4), atol=1e-14)


def test_an_indefinite_component_is_lifted_and_its_model_is_right(shape):
    n, d, slot = shape
    rng = np.random.default_rng(4)
    U = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = (U * np.linspace(-1.0, 1.0, d)) @ U.T
    surrogate = Surrogate(n, d, slot, np.full(n, 1.0 / n))
    for _ in range(3):
        V = outside(rng.standard_normal((d, 3)), surrogate.basis(1))
        surrogate.add(1, V, A @ V)
    Q = surrogate.basis(1)
    lifted = A + surrogate.shift[1] * np.eye(d)
    assert surrogate.shift[1] > 0.0
    np.testing.assert_allclose(surrogate.products(1), lifted @ Q, atol=1e-12)
    model = surrogate.products(1) @ surrogate.fit(1, np.eye(d))
    np.testing.assert_allclose(model @ Q, lifted @ Q, atol=1e-11)
    values, _ = surrogate.leading(3, None, 1e-14)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(model)[::-1][:3] / n, atol=1e-13)


def test_the_memory_said_is_the_memory_taken(shape):
    n, d, slot = shape
    surrogate = Surrogate(n, d, slot, np.full(n, 1.0 / n))
    kept = surrogate._sum
    arrays = [surrogate.Q, kept._Z, kept._S if isinstance(kept, DenseSum) else kept._K]
    said = Surrogate.nbytes(n, d, slot)
    assert sum(array.nbytes for array in arrays) + 8 * n * slot**2 == said


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_a_rotation_factors_a_matrix_of_any_rank(rank):
    rng = np.random.default_rng(rank)
    M = rng.standard_normal((7, rank)) @ rng.standard_normal((rank, 5))
    U, T, found = rotation(M)
    assert found == rank
    np.testing.assert_allclose(U.T @ U, np.eye(7), atol=1e-14)
    np.testing.assert_allclose(U[:, :rank] @ T, M, atol=1e-13)


def test_the_small_helpers_agree_with_the_textbook():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    M, B = rng.standard_normal((3, 5)), rng.standard_normal((3, 2))
    np.testing.assert_allclose(solve_root(M, B), np.linalg.pinv(M) @ B, atol=1e-13)
    basis = np.linalg.qr(rng.standard_normal((50, 6)))[0]
    near = basis[:, :4] + 1e-5 * X
    fresh = outside(near, basis)
    np.testing.assert_allclose(np.hstack([basis, fresh]).T @ fresh, np.eye(10)[:, 6:], atol=1e-14)
    assert outside(basis @ rng.standard_normal((6, 3)), basis).shape[1] == 0


def test_an_eigenspace_to_start_from_needs_one_product():
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((200, 200)))[0]
    M = (U * np.linspace(1.0, 0.0, 200) ** 2) @ U.T
    C, MC = warm_eigenvectors(M, U[:, :4], 4, 1e-13, 4)
    np.testing.assert_allclose(MC, M @ C, atol=1e-14)
    assert projection_distance(C, U[:, :4]) <= 1e-14


def test_answers_that_hardly_differ_do_not_enlarge_rounding():
    """A component of few rows, asked about directions that differ by next to nothing in its row space."""
    d, rounds, small = 40, 8, 1e-3
    U = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    seen, unseen = U[:, : rounds + 1], U[:, rounds + 1 :]
    A = seen @ seen.T
    surrogate = Surrogate(1, d, rounds, np.ones(1))
    for t in range(rounds):
        V = seen[:, :1] + small * seen[:, t + 1 : t + 2] + unseen[:, t : t + 1]
        V = outside(V, surrogate.basis(0))
        surrogate.add(0, V, A @ V)
        Q, model = surrogate.basis(0), surrogate.apply(np.eye(d))
        assert np.linalg.eigvalsh(A - model)[0] >= -1e-8
        np.testing.assert_allclose(model @ Q, A @ Q, atol=1e-8)
