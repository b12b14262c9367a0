"""`eigsh` and `svds` beside scipy's and numpy's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spl
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia.errors import InvalidInput
from grassia.geometry import projection_distance
from problems import gaussian_rows, heterogeneous


def symmetric(values, seed=0):
    d = len(values)
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    A = (basis * np.asarray(values, dtype=float)) @ basis.T
    return (A + A.T) / 2.0


def rectangular(m, n, values, seed=0):
    rng = np.random.default_rng(seed)
    r = len(values)
    U = np.linalg.qr(rng.standard_normal((m, r)))[0]
    V = np.linalg.qr(rng.standard_normal((n, r)))[0]
    return (U * np.asarray(values, dtype=float)) @ V.T


@pytest.fixture(scope="module")
def A():
    return symmetric(np.r_[-3.0, -2.5, -1.9, np.linspace(-1.0, 1.0, 94), 1.5, 2.0, 2.7])


# -- eigsh --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "k"), [("LM", 1), ("LM", 3), ("LA", 1), ("LA", 3), ("SA", 1), ("SA", 3), ("BE", 2), ("BE", 3)]
)
def test_eigsh_gives_what_scipys_does(A, which, k):
    w, v = grassia.eigsh(A, k, which=which, rng=0)
    expected, vectors = spl.eigsh(A, k, which=which)
    assert w.shape == (k,)
    assert v.shape == (100, k)
    assert w.dtype == v.dtype == np.float64
    assert (np.diff(w) > 0).all()
    np.testing.assert_allclose(w, np.sort(expected), rtol=0, atol=1e-13)
    np.testing.assert_allclose(v.T @ v, np.eye(k), atol=1e-13)
    assert projection_distance(v, vectors) <= 1e-12
    np.testing.assert_allclose(A @ v, v * w, atol=1e-12)


def test_every_kind_of_matrix_gives_the_same_pairs(A):
    class HasProducts:
        shape, dtype = A.shape, A.dtype

        def matvec(self, x):
            return A @ x

    expected = np.linalg.eigvalsh(A)[-3:]
    kinds = [A, sp.csr_array(A), sp.csc_matrix(A), aslinearoperator(A), HasProducts(), [A]]
    kinds += [grassia.MatrixComponent(A), [0.5 * A, 1.5 * A]]
    for kind in kinds:
        w, v = grassia.eigsh(kind, 3, which="LA", rng=0)
        np.testing.assert_allclose(w, expected, atol=1e-12, err_msg=str(type(kind)))
        np.testing.assert_allclose(A @ v, v * w, atol=1e-12)


def test_a_list_is_the_weighted_mean_of_its_members_at_either_end():
    problem = heterogeneous(n=4, d=18, k=3, seed=0)
    values, vectors = problem.spectrum()
    w, v = grassia.eigsh(problem.components, 3, which="LA", weights=problem.weights, rng=0)
    np.testing.assert_allclose(w, values[:3][::-1], atol=1e-12)
    assert projection_distance(v, vectors[:, :3]) <= 1e-11
    w, v = grassia.eigsh(problem.components, 2, which="SA", weights=problem.weights, rng=0, backend="threads")
    np.testing.assert_allclose(w, values[::-1][:2], atol=1e-12)
    assert projection_distance(v, vectors[:, -2:]) <= 1e-11


def test_rows_stand_for_their_covariance_at_either_end():
    X = gaussian_rows(300, 12, 3, seed=1)
    cov = np.cov(X.T, bias=True)
    values, vectors = np.linalg.eigh(cov)
    parts = grassia.from_rows(X, 3)
    for which in ("LA", "LM"):
        w, v = grassia.eigsh(parts, 3, which=which, rng=0)
        np.testing.assert_allclose(w, values[-3:], rtol=1e-12)
        assert projection_distance(v, vectors[:, -3:]) <= 1e-12
    for solver in ("auto", "krylov"):
        w, v = grassia.eigsh(parts, 1, which="SA", rng=0, solver=solver)
        np.testing.assert_allclose(w, values[:1], rtol=1e-10)
        assert projection_distance(v, vectors[:, :1]) <= 1e-10


def test_without_vectors_only_the_values_come(A):
    w = grassia.eigsh(A, 2, which="SA", return_eigenvectors=False, rng=0)
    np.testing.assert_allclose(w, [-3.0, -2.5], atol=1e-13)


def test_float32_stays_float32(A):
    w, v = grassia.eigsh(A.astype(np.float32), 3, which="LA", rng=0)
    assert w.dtype == v.dtype == np.float32
    np.testing.assert_allclose(w, [1.5, 2.0, 2.7], rtol=1e-6)
    assert grassia.eigsh(np.diag(np.arange(9)), 2, rng=0)[0].dtype == np.float64


def test_tol_zero_reaches_rounding_also_where_the_gap_is_small():
    for gap in (1e-2, 1e-4, 1e-6):
        A = symmetric(np.r_[np.linspace(-1.0, 0.5, 80), 0.9, 0.9 + gap, 1.0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w, v = grassia.eigsh(A, 2, which="LA", rng=0)
        np.testing.assert_allclose(w, [0.9 + gap, 1.0], atol=1e-14)
        assert np.linalg.norm(A @ v - v * w) <= 1000 * np.finfo(float).eps
        true = np.linalg.eigh(A)[1][:, -2:]
        assert projection_distance(v, true) <= 1e-13 / gap


def test_a_given_tolerance_bounds_the_angle(A):
    true = np.linalg.eigh(A)[1][:, -3:]
    _, v = grassia.eigsh(A, 3, which="LA", tol=1e-3, rng=0)
    assert projection_distance(v, true) <= np.sqrt(2) * 1e-3


def test_a_tie_at_the_cut_is_said():
    A = symmetric(np.r_[np.zeros(30), 1.0, 1.0, 2.0])
    with pytest.warns(ConvergenceWarning, match="GAP_TOO_SMALL"):
        w, _ = grassia.eigsh(A, 2, which="LA", rng=0)
    np.testing.assert_allclose(w, [1.0, 2.0], atol=1e-12)
    with pytest.warns(ConvergenceWarning, match="GAP_TOO_SMALL"):
        grassia.eigsh(symmetric([-2.0, 2.0, 1.0, 0.0, 0.0]), 1, which="LM", rng=0)


def test_equal_eigenvalues_inside_the_cut_are_all_found():
    w, v = grassia.eigsh(symmetric(np.r_[np.zeros(60), 1.0, 1.0, 1.0, 2.0]), 4, rng=0)
    np.testing.assert_allclose(w, [1.0, 1.0, 1.0, 2.0], atol=1e-12)
    np.testing.assert_allclose(v.T @ v, np.eye(4), atol=1e-13)


def test_opposite_signs_of_the_same_size_are_told_apart():
    A = symmetric(np.r_[np.linspace(-0.5, 0.5, 40), -2.0, 2.0])
    w, v = grassia.eigsh(A, 2, rng=0)
    np.testing.assert_allclose(w, [-2.0, 2.0], atol=1e-12)
    np.testing.assert_allclose(A @ v, v * w, atol=1e-11)


@pytest.mark.parametrize("size", [1e-170, 1e-80, 1e80, 1e160])
def test_largest_in_size_is_found_where_squares_leave_the_range(A, size):
    np.testing.assert_allclose(
        grassia.eigsh(size * A, 2, return_eigenvectors=False, rng=0), [-3.0 * size, 2.7 * size], rtol=1e-12
    )


def test_all_eigenvalues_may_be_asked_for():
    A = symmetric([-1.0, 0.5, 3.0, 4.0])
    for which in ("LA", "SA", "BE", "LM"):
        np.testing.assert_allclose(
            grassia.eigsh(A, 4, which=which, rng=0)[0], [-1.0, 0.5, 3.0, 4.0], atol=1e-12
        )


def test_the_best_iterate_comes_with_a_warning_when_passes_run_out():
    A = symmetric(np.linspace(0.0, 1.0, 300))
    with pytest.warns(ConvergenceWarning, match="MAX_PASSES.*maxiter"):
        w, v = grassia.eigsh(A, 3, which="LA", maxiter=6, rng=0)
    assert v.shape == (300, 3)
    np.testing.assert_allclose(w, [1 - 2 / 299, 1 - 1 / 299, 1.0], atol=0.1)


def test_the_warning_points_at_the_callers_line(A):
    for solve in (grassia.eigsh, grassia.svds):
        with pytest.warns(ConvergenceWarning) as caught:
            solve(A, 3, maxiter=2, rng=0, solver="krylov")
        assert caught[0].filename == __file__


def test_a_vector_or_a_block_may_be_the_start(A):
    near = np.linalg.eigh(A)[1][:, -3:]
    seen = []

    def count(progress):
        seen.append(progress.passes)

    cold = grassia.eigsh(A, 3, which="LA", tol=1e-8, rng=0, callbacks=count)[0]
    without = max(seen)
    seen.clear()
    warm = grassia.eigsh(A, 3, which="LA", tol=1e-8, v0=near, rng=0, callbacks=count)[0]
    assert max(seen) < without
    one = grassia.eigsh(A, 3, which="LA", v0=near.sum(axis=1), rng=0)[0]
    np.testing.assert_allclose(warm, cold, atol=1e-12)
    np.testing.assert_allclose(one, cold, atol=1e-12)


def test_the_same_seed_gives_the_same_bits(A):
    assert grassia.eigsh(A, 3, rng=5)[1].tobytes() == grassia.eigsh(A, 3, rng=5)[1].tobytes()
    assert grassia.svds(A, 3, rng=5)[0].tobytes() == grassia.svds(A, 3, rng=5)[0].tobytes()


def test_fewer_columns_may_be_kept(A):
    w = grassia.eigsh(A, 3, which="LA", ncv=12, return_eigenvectors=False, rng=0)
    np.testing.assert_allclose(w, [1.5, 2.0, 2.7], atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"which": "SM"}, "sigma"),
        ({"sigma": 0.5}, "sigma"),
        ({"M": np.eye(100)}, "`M`"),
        ({"mode": "buckling"}, "mode"),
        ({"k": 0}, "`k`"),
        ({"k": 101}, "n_features=100"),
        ({"k": 2.0}, "`k`"),
        ({"tol": -1}, "`tol`"),
        ({"tol": 2}, "`tol`"),
        ({"maxiter": 0}, "`maxiter`"),
        ({"rng": "seed"}, "`rng`"),
        ({"v0": np.ones(7)}, "v0"),
        ({"v0": 1j * np.ones(100)}, "v0"),
        ({"ncv": 2, "k": 4}, "ncv"),
        ({"ncv": 20, "solver": "power"}, "ncv"),
        ({"solver": "arpack"}, "solver"),
    ],
)
def test_eigsh_refuses_what_it_cannot_do_and_names_it(A, arguments, words):
    with pytest.raises(InvalidInput, match=words):
        grassia.eigsh(A, **arguments)


def test_matrices_that_are_no_real_symmetric_ones_are_refused(A):
    with pytest.raises(InvalidInput, match=r"complex128.*scipy"):
        grassia.eigsh(A.astype(complex))
    with pytest.raises(InvalidInput, match=r"complex128.*scipy"):
        grassia.eigsh(aslinearoperator(1j * A))
    with pytest.raises(InvalidInput, match="symmetric"):
        grassia.eigsh(np.triu(A), 2)
    with pytest.raises(InvalidInput, match="square"):
        grassia.eigsh(A[:, :5], 2)
    with pytest.raises(InvalidInput, match="LA"):
        grassia.eigsh([A, A], 2)


# -- svds ---------------------------------------------------------------------------------------


def check_triplets(A, k, u, s, vh, accuracy):
    """Shapes, order, orthonormality, and values against numpy's, in units of the largest."""
    A = A.toarray() if sp.issparse(A) else np.asarray(A, dtype=np.float64)
    true = np.linalg.svd(A, compute_uv=False)
    m, n = A.shape
    assert u.shape == (m, k)
    assert s.shape == (k,)
    assert vh.shape == (k, n)
    assert (np.diff(s) >= 0).all()
    scale = max(true[0], 1e-300)
    np.testing.assert_allclose(s, true[:k][::-1], rtol=0, atol=accuracy * scale)
    np.testing.assert_allclose(u.T @ u, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(vh @ vh.T, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(A @ vh.T, u * s, rtol=0, atol=10 * accuracy * scale)
    np.testing.assert_allclose(A.T @ u, vh.T * s, rtol=0, atol=10 * accuracy * scale)


SHAPES = [(120, 30), (30, 120), (60, 60)]


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, sp.csc_matrix, aslinearoperator])
def test_svds_gives_what_scipys_does(m, n, make):
    A = np.random.default_rng(0).standard_normal((m, n))
    given = make(A)
    u, s, vh = grassia.svds(given, 4, rng=0)
    check_triplets(A, 4, u, s, vh, 1e-13)
    U, S, VH = spl.svds(A, 4)
    np.testing.assert_allclose(s, S, rtol=1e-12)
    assert projection_distance(u, U) <= 1e-11
    assert projection_distance(vh.T, VH.T) <= 1e-11


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("operator", [False, True])
def test_small_singular_values_are_as_accurate_as_large_ones(m, n, operator):
    # The squares of the smallest of these lie far below the rounding of the Gram matrix.
    A = rectangular(m, n, [3.0, 1.0, 1e-3, 1e-5, 3e-6, 1e-9, 1e-11])
    for k in (3, 4, 5, 6):
        u, s, vh = grassia.svds(aslinearoperator(A) if operator else A, k, rng=0)
        check_triplets(A, k, u, s, vh, 1e-14)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_beyond_the_rank_come_zeros_and_orthonormal_vectors_and_no_warning(m, n):
    A = rectangular(m, n, [2.0, 1.0, 0.5])
    for given in (A, sp.csr_array(np.where(abs(A) > 0, A, 0.0))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            u, s, vh = grassia.svds(given, 5, rng=0)
        check_triplets(given, 5, u, s, vh, 1e-14)
    u, s, vh = grassia.svds(np.zeros((m, n)), 2, rng=0)
    check_triplets(np.zeros((m, n)), 2, u, s, vh, 0.0)


def test_all_singular_values_may_be_asked_for():
    A = np.random.default_rng(1).standard_normal((9, 5))
    for given in (A, A.T):
        check_triplets(given, 5, *grassia.svds(given, 5, rng=0), 1e-13)


def test_a_singular_value_that_is_multiple_at_the_cut_is_said():
    A = rectangular(50, 20, [2.0, 1.0, 1.0, 0.1])
    with pytest.warns(ConvergenceWarning, match="GAP_TOO_SMALL"):
        u, s, vh = grassia.svds(A, 2, rng=0)
    check_triplets(A, 2, u, s, vh, 1e-13)


def test_vectors_that_are_not_asked_for_are_none():
    A = np.random.default_rng(2).standard_normal((30, 8))
    u, s, vh = grassia.svds(A, 2, rng=0)
    assert np.array_equal(grassia.svds(A, 2, return_singular_vectors=False, rng=0), s)
    left = grassia.svds(A, 2, return_singular_vectors="u", rng=0)
    assert np.array_equal(left[0], u)
    assert left[2] is None
    right = grassia.svds(A, 2, return_singular_vectors="vh", rng=0)
    assert right[0] is None
    assert np.array_equal(right[2], vh)


def test_single_precision_and_integers_are_taken():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((80, 20)).astype(np.float32)
    u, s, vh = grassia.svds(A, 3, rng=0)
    assert u.dtype == s.dtype == vh.dtype == np.float32
    np.testing.assert_allclose(s, np.linalg.svd(A.astype(float), compute_uv=False)[:3][::-1], rtol=1e-6)
    counts = rng.integers(0, 9, (40, 12))
    check_triplets(counts, 3, *grassia.svds(counts, 3, rng=0), 1e-13)
    check_triplets(counts, 3, *grassia.svds(sp.csr_array(counts), 3, rng=0), 1e-13)


def test_sources_of_rows_are_read_by_blocks(tmp_path):
    A = np.random.default_rng(4).standard_normal((90, 10)) + 1.0
    np.save(tmp_path / "a.npy", A)
    sources = [tmp_path / "a.npy", [A[:40], A[40:]], grassia.from_rows(A, 3, center=False)]
    sources += [lambda: A, np.load(tmp_path / "a.npy", mmap_mode="r")]
    for source in sources:
        check_triplets(A, 3, *grassia.svds(source, 3, rng=0), 1e-13)
    check_triplets(A, 3, *grassia.svds(sources[2], 3, rng=0, backend="threads"), 1e-13)


def test_centred_rows_give_the_singular_values_of_the_centred_matrix():
    A = np.random.default_rng(5).standard_normal((90, 10)) + 4.0
    for given in (A, sp.csr_array(A)):
        triplets = grassia.svds(grassia.from_rows(given, 3), 3, rng=0)
        check_triplets(A - A.mean(axis=0), 3, *triplets, 1e-13)


def test_fewer_rows_than_features_may_come_in_shards():
    A = np.random.default_rng(6).standard_normal((12, 40))
    check_triplets(A, 4, *grassia.svds(grassia.from_rows(A, 2, center=False), 4, rng=0), 1e-13)
    with pytest.raises(InvalidInput, match="min"):
        grassia.svds(grassia.from_rows(A, 2, center=False), 13)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"which": "SM"}, "LM"),
        ({"k": 21}, r"min\(m, n\)=20"),
        ({"return_singular_vectors": "both"}, "return_singular_vectors"),
        ({"solver": "propack"}, "solver"),
        ({"options": {}}, "options"),
        ({"v0": np.ones(50)}, "v0"),
    ],
)
def test_svds_refuses_what_it_cannot_do_and_names_it(arguments, words):
    with pytest.raises(InvalidInput, match=words):
        grassia.svds(np.random.default_rng(0).standard_normal((50, 20)), **arguments)


def test_svds_refuses_matrices_it_cannot_take():
    A = np.random.default_rng(0).standard_normal((9, 5))
    with pytest.raises(InvalidInput, match=r"complex128.*scipy"):
        grassia.svds(A + 1j, 2)
    with pytest.raises(InvalidInput, match="rmatvec"):
        grassia.svds(LinearOperator((9, 5), matvec=lambda x: A @ x, dtype=float), 2)
    with pytest.raises(InvalidInput, match="eigsh"):
        grassia.svds(grassia.data.as_components([A.T @ A]), 2)
    with pytest.raises(InvalidInput, match="NaN"):
        grassia.svds(np.where(A > 1, np.nan, A), 2)
    for size in (1e-170, 1e170):
        with pytest.raises(InvalidInput, match="rescale"):
            grassia.svds(size * A, 2)


@pytest.mark.parametrize("which", ["LA", "SA"])
def test_pairs_of_a_run_that_was_stopped_are_ritz_pairs(which):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 30))
    A, turns = X.T @ X, []
    with pytest.warns(ConvergenceWarning):
        w, v = grassia.eigsh(
            A, 3, which=which, solver="power", rng=0, callbacks=lambda p: turns.append(1) or len(turns) > 20
        )
    assert np.all(np.diff(w) >= 0.0)
    np.testing.assert_allclose(v.T @ A @ v, np.diag(w), atol=1e-9 * w.max())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("values", "which"), [([1.0, 1.0, 0.0, 0.0, 0.0], "SA"), ([0.0, 0.0, -1.0], "LA")], ids=["SA", "LA"]
)
def test_wanted_eigenvalues_may_be_zero(values, which, seed):
    """Of the smallest three are equal and two are asked for, which is said, and right all the same."""
    w, v = grassia.eigsh(np.diag(values), 2, which=which, rng=seed)
    np.testing.assert_allclose(w, 0.0, atol=1e-14)
    np.testing.assert_allclose(np.diag(values) @ v, 0.0, atol=1e-14)
