"""Components against dense oracles: products, moments, centring, errors."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from threadpoolctl import threadpool_limits

from grassia import gram
from grassia.components import (
    Component,
    MatrixComponent,
    Moments,
    OperatorComponent,
    RowsComponent,
    SumComponent,
)
from grassia.errors import InvalidComponent, InvalidInput

DTYPES = ["f2", "f4", "f8", ">f8", "g", "i1", "i4", "i8", "u1", "u8", "?"]


def covariance(X, mean=None):
    X = np.asarray(X, dtype=np.float64)
    D = X - (X.mean(axis=0) if mean is None else mean)
    return D.T @ D / len(X)


def second_moment(X):
    X = np.asarray(X, dtype=np.float64)
    return X.T @ X / len(X)


def dense(component):
    return component.apply(np.eye(component.n_features))


def close(found, expected, rtol=1e-12):
    scale = max(float(np.abs(expected).max()), 1e-300)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * scale)


def rows(rng, m=37, d=6):
    return rng.standard_normal((m, d)) * np.arange(1, d + 1) + np.arange(d)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ------------------------------------------------------------------ products against the oracle


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("center", [True, False])
def test_rows_of_every_real_dtype_give_the_dense_covariance(rng, dtype, center):
    X = (np.abs(rows(rng)) * 3).astype(dtype)
    component = RowsComponent(X, center=center)
    close(dense(component), covariance(X) if center else second_moment(X))


@pytest.mark.parametrize("dtype", ["f4", "f8", "g", "i1", "i8", "?"])
@pytest.mark.parametrize("center", [True, False])
def test_sparse_rows_of_every_real_dtype_give_the_dense_covariance(rng, dtype, center):
    X = (np.abs(rows(rng)) * 3).astype(dtype)
    X[rng.random(X.shape) < 0.6] = 0
    component = RowsComponent(sp.csr_array(X), center=center, tile_rows=5)
    close(dense(component), covariance(X) if center else second_moment(X))


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 40),
    d=st.integers(1, 9),
    b=st.integers(0, 4),
    tile=st.integers(1, 45),
    center=st.booleans(),
    kind=st.sampled_from(["f8", "f4", "csr", "csc", "coo", "offset"]),
    seed=st.integers(0, 99),
)
def test_any_tile_size_gives_the_same_product_trace_and_mean(m, d, b, tile, center, kind, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    data = X
    if kind == "offset":
        X += 1000.0
    elif kind == "f4":
        data = X.astype("f4")
        X = data.astype("f8")
    elif kind != "f8":
        X[rng.random(X.shape) < 0.7] = 0.0
        data = sp.coo_array(X).asformat(kind)
    V = rng.standard_normal((d, b))
    component = RowsComponent(data, center=center, tile_rows=tile)
    A = covariance(X) if center else second_moment(X)
    out = component.apply(V)
    np.testing.assert_allclose(out, A @ V, atol=1e-11 * max(1.0, np.abs(A).max()))
    assert out.dtype == np.float64
    assert out.flags.c_contiguous
    moments = component.moments()
    assert moments.trace == pytest.approx(np.trace(A), rel=1e-11, abs=1e-20)
    assert moments.count == m
    assert moments.positive
    if center:
        np.testing.assert_allclose(moments.mean, X.mean(axis=0), rtol=1e-12, atol=1e-13)
    else:
        assert moments.mean is None


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_one_row_and_one_column_are_ordinary_shapes(rng, shape):
    X = rng.standard_normal(shape)
    np.testing.assert_allclose(dense(RowsComponent(X)), covariance(X), atol=1e-15)
    close(dense(RowsComponent(X, center=False)), second_moment(X))


def test_empty_sparse_rows_and_columns_count_as_zeros(rng):
    X = np.zeros((30, 7))
    X[4, 2], X[17, 5] = 3.0, -1.0
    close(dense(RowsComponent(sp.csr_array(X), tile_rows=4)), covariance(X))
    empty = RowsComponent(sp.csr_array((30, 7)))
    assert not dense(empty).any()
    assert empty.moments().trace == 0.0


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
@pytest.mark.parametrize("make", [sp.csr_array, sp.csr_matrix])
def test_every_sparse_format_is_accepted(rng, fmt, make):
    X = rng.standard_normal((9, 4)) * (rng.random((9, 4)) < 0.5)
    close(dense(RowsComponent(make(X).asformat(fmt))), covariance(X))


def test_repeated_sparse_entries_are_summed_and_the_input_is_left_alone():
    X = sp.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(3, 2))
    close(dense(RowsComponent(X)), covariance(X.toarray()))
    R = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([1, 1, 0]), np.array([0, 2, 3, 3])))
    component = RowsComponent(R)
    assert component.moments().trace == pytest.approx(np.trace(covariance(R.toarray())))
    assert R.nnz == 3


@pytest.mark.parametrize("view", ["fortran", "strided columns", "strided rows", "reversed", "T"])
def test_arrays_of_any_layout_give_the_same_product(rng, view):
    base = rng.standard_normal((40, 12))
    X = {
        "fortran": np.asfortranarray(base),
        "strided columns": base[:, ::2],
        "strided rows": base[::3],
        "reversed": base[::-1, ::-1],
        "T": base.T,
    }[view]
    close(dense(RowsComponent(X, tile_rows=7)), covariance(X))
    close(dense(RowsComponent(X, center=False, tile_rows=7)), second_moment(X))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_memmap_gives_the_dense_covariance(rng, tmp_path, dtype, order):
    X = (10 * rows(rng, 50)).astype(dtype)
    file = np.memmap(tmp_path / "x", dtype, "w+", shape=X.shape, order=order)
    file[:] = X
    close(dense(RowsComponent(file, tile_rows=8)), covariance(X))


def test_misaligned_rows_are_copied_tile_by_tile(rng):
    X = rng.standard_normal((20, 3))
    raw = np.empty(X.nbytes + 1, np.uint8)
    view = raw[1:].view("f8").reshape(X.shape)
    view[:] = X
    assert not view.flags.aligned
    close(dense(RowsComponent(view)), covariance(X))


def test_the_default_tile_gives_the_same_product_when_it_does_not_divide_the_rows(rng):
    X = rng.standard_normal((1000, 300))
    V = rng.standard_normal((300, 3))
    tile = gram.dense_tile_rows(300)
    assert tile < 1000
    assert 1000 % tile
    close(RowsComponent(X).apply(V), covariance(X) @ V)


def test_tiles_shrink_to_one_row_rather_than_exceed_their_memory():
    assert gram.dense_tile_rows(10_000_000) == 1
    assert gram.dense_tile_rows(100) * 100 * 8 <= 32 << 20


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "?"])
@pytest.mark.parametrize("kind", ["dense", "fortran", "sparse"])
def test_a_symmetric_matrix_applies_as_itself(rng, dtype, kind):
    B = rng.standard_normal((300, 300)) * 3
    A = (B + B.T).astype(dtype)
    data = {"dense": A, "fortran": np.asfortranarray(A), "sparse": sp.csc_array(A)}[kind]
    V = rng.standard_normal((300, 4))
    component = MatrixComponent(data)
    close(component.apply(V), A.astype("f8") @ V)
    moments = component.moments()
    single = dtype == "f4" and kind != "sparse"
    assert moments == Moments(300, None, None, moments.trace, False, moments.noise, single)
    assert moments.trace == pytest.approx(np.trace(A.astype("f8")))


@pytest.mark.parametrize("wrap", ["LinearOperator", "callable"])
def test_an_operator_applies_as_its_matrix(rng, wrap):
    A = covariance(rows(rng))
    operator = aslinearoperator(A) if wrap == "LinearOperator" else (lambda V: A @ V)
    component = OperatorComponent(operator, n_features=6, trace=np.trace(A), positive=True)
    V = rng.standard_normal((6, 2))
    close(component.apply(V), A @ V)
    assert component.moments() == Moments(6, None, None, float(np.trace(A)), True)


def test_an_operator_that_works_in_place_does_not_change_the_block(rng):
    def double(V):
        V *= 2.0
        return V

    V = rng.standard_normal((3, 2))
    kept = V.copy()
    out = OperatorComponent(double, 3).apply(V)
    np.testing.assert_array_equal(V, kept)
    np.testing.assert_array_equal(out, 2 * kept)


def test_a_float32_operator_is_held_to_float32_symmetry(rng):
    A = covariance(rng.standard_normal((80, 40))).astype("f4")
    OperatorComponent(lambda V: A @ V.astype("f4"), 40).moments()


@pytest.mark.parametrize("kind", ["rows", "sparse", "matrix", "operator", "sum"])
def test_every_product_is_a_new_float64_c_contiguous_array_for_any_real_block(rng, kind):
    X = rows(rng)
    A = covariance(X)
    component = {
        "rows": lambda: RowsComponent(X),
        "sparse": lambda: RowsComponent(sp.csr_array(X)),
        "matrix": lambda: MatrixComponent(A),
        "operator": lambda: OperatorComponent(lambda V: V, 6),
        "sum": lambda: SumComponent([RowsComponent(X[:9]), RowsComponent(X[9:])]),
    }[kind]()
    for V in (
        np.asfortranarray(rng.standard_normal((6, 3))),
        rng.standard_normal((12, 6))[::2, ::2],
        np.eye(6, 2, dtype="f4"),
        np.eye(6, 2, dtype=bool),
        np.ones((6, 0)),
        np.ones((6, 1)).tolist(),
    ):
        out = component.apply(V)
        assert out.shape == np.shape(V)
        assert out.dtype == np.float64
        assert out.flags.c_contiguous
        assert out.flags.owndata
        assert not np.shares_memory(out, np.asarray(V))
        again = component.apply(V)
        assert not np.shares_memory(out, again)
        np.testing.assert_array_equal(out, again)


# ----------------------------------------------------------------------------- memory, accuracy


def test_very_sparse_centred_rows_are_never_filled_in(rng):
    m, d, nnz, b = 200_000, 20_000, 400_000, 3
    X = sp.csr_array(
        (rng.standard_normal(nnz), (rng.integers(0, m, nnz), rng.integers(0, d, nnz))), shape=(m, d)
    )
    V = rng.standard_normal((d, b))
    mean = np.asarray(X.sum(axis=0)).ravel() / m
    expected = X.T @ (X @ V) / m - np.outer(mean, mean @ V)
    component = RowsComponent(X)
    tracemalloc.start()
    try:
        out = component.apply(V)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    close(out, expected, rtol=1e-10)
    assert peak < 16e6  # Filled in, the rows would take 32 GB; one copy of them, 6 MB.


def test_float32_rows_are_upcast_a_tile_at_a_time(rng):
    X = rng.standard_normal((20_000, 100)).astype("f4")
    component = RowsComponent(X)
    tracemalloc.start()
    try:
        component.apply(np.ones((100, 3)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4e6  # The whole as float64 would take 16 MB.


@pytest.mark.parametrize("dtype", ["f8", "i8"])
def test_a_large_offset_does_not_cost_the_variances(rng, dtype):
    centred = rng.standard_normal((5000, 40))
    if dtype == "i8":
        centred = np.round(centred * 100)
    X = (centred + 1e6).astype(dtype)
    exact = X.astype(np.longdouble)
    D = exact - exact.mean(axis=0)
    expected = (D.T @ D / len(X)).astype("f8")
    component = RowsComponent(X)
    close(dense(component), expected, rtol=1e-10)
    assert component.moments().trace == pytest.approx(np.trace(expected), rel=1e-11)
    np.testing.assert_allclose(component.moments().mean, exact.mean(axis=0).astype("f8"), rtol=1e-15)


def test_a_large_offset_in_sparse_columns_does_not_cost_the_variances(rng):
    X = np.zeros((3000, 5))
    X[:, 0] = 1e6 + rng.standard_normal(3000)
    X[::7, 3] = 2.0
    component = RowsComponent(sp.csr_array(X))
    close(dense(component), covariance(X), rtol=1e-8)
    assert component.moments().trace == pytest.approx(np.trace(covariance(X)), rel=1e-9)


def test_an_outlying_first_row_does_not_cost_the_trace(rng):
    X = rng.standard_normal((500, 3))
    X[0] = 1e8
    expected = np.trace(covariance(X.astype(np.longdouble)))
    assert RowsComponent(X).moments().trace == pytest.approx(expected, rel=1e-12)


# ----------------------------------------------------------------------------- single precision

EPS32 = float(np.finfo(np.float32).eps)
SINGLE_DTYPES = ["f2", "f4", ">f4", "i1", "u1", "i2", "u2", "?"]


def norm(A):
    return float(np.linalg.norm(A, 2))


def off(found, exact, V):
    """Error of a product, in units of what float32 arithmetic may cost."""
    return norm(found - exact @ V) / (EPS32 * norm(exact) * norm(V))


@pytest.mark.parametrize("dtype", SINGLE_DTYPES)
@pytest.mark.parametrize("center", [True, False])
def test_single_precision_errs_by_float32_rounding_and_no_more(rng, dtype, center):
    X = (np.abs(rows(rng, 700, 40)) * 2 % 100).astype(dtype) if dtype != "?" else rng.random((700, 40)) < 0.3
    V = rng.standard_normal((40, 5))
    component = RowsComponent(X, center=center, tile_rows=50)
    exact = covariance(X) if center else second_moment(X)
    assert component.moments().single
    out = component.apply(V, single=True)
    assert out.dtype == np.float64
    assert out.flags.c_contiguous
    assert 1e-4 < off(out, exact, V) < 2.0  # In double precision it would be about 1e-9.
    assert off(component.apply(V), exact, V) < 1e-6
    found = component.dense(single=True)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, found.T)
    assert off(found, exact, np.eye(40)) < 8.0  # Centred bools are two values, whose rounding adds up.
    if center or dtype in ("f4", ">f4"):  # The squares of small integers are exact in float32.
        assert off(found, exact, np.eye(40)) > 1e-4
    close(component.dense(), exact)


@pytest.mark.parametrize("dtype", ["f8", "g", "i4", "u4", "i8", "csr"])
def test_rows_that_float32_cannot_hold_are_computed_in_double(rng, dtype):
    X = np.abs(rows(rng)) * 3
    data = sp.csr_array(X.astype("f4")) if dtype == "csr" else X.astype(dtype)
    component = RowsComponent(data)
    V = rng.standard_normal((6, 2))
    assert not component.moments().single
    np.testing.assert_array_equal(component.apply(V, single=True), component.apply(V))
    np.testing.assert_array_equal(component.dense(single=True), component.dense())


def test_the_sum_over_tiles_is_in_double_when_tiles_are_in_single():
    # In float32, 2**24 + 1 is 2**24: a sum of the tiles in it would lose all but the first.
    X = np.ones((257, 1), "f4")
    X[0] = 4096.0
    component = RowsComponent(X, center=False, tile_rows=1)
    assert component.moments().single
    assert component.apply([[1.0]], single=True)[0, 0] * 257 == 2**24 + 256
    assert component.dense(single=True)[0, 0] * 257 == 2**24 + 256


@pytest.mark.parametrize("offset", [3.0, 50.0])
@pytest.mark.parametrize("recentred", [False, True])
def test_a_moderate_offset_does_not_cost_single_precision_its_digits(rng, offset, recentred):
    X = (rng.standard_normal((2000, 30)) + offset).astype("f4")
    component = RowsComponent(X)
    mean = np.full(30, offset + 1.0) if recentred else None
    if recentred:
        component.recenter(mean)
    V = rng.standard_normal((30, 4))
    assert component.moments().single
    # Sums over the up to 1024 rows of a tile err by some roundings.
    assert 1e-4 < off(component.apply(V, single=True), covariance(X, mean), V) < 8.0
    assert 1e-4 < off(component.dense(single=True), covariance(X, mean), np.eye(30)) < 8.0


@pytest.mark.parametrize(
    "change",
    [
        lambda X: X + 1000.0,  # The mean dwarfs the spread.
        lambda X: X * 1e18,  # Squares overflow float32,
        lambda X: X * 1e-18,  # or vanish in it.
        lambda X: X * 0.0 + 7.0,
    ],
)
def test_where_float32_would_lose_too_much_double_is_used(rng, change):
    X = change(rng.standard_normal((400, 5))).astype("f4")
    component = RowsComponent(X)
    V = rng.standard_normal((5, 3))
    assert not component.moments().single
    np.testing.assert_array_equal(component.apply(V, single=True), component.apply(V))
    close(component.apply(V, single=True), covariance(X) @ V, rtol=1e-9)
    np.testing.assert_array_equal(component.dense(single=True), component.dense())


@pytest.mark.parametrize("kind", ["rows", "matrix"])
def test_a_block_of_any_scale_is_multiplied_in_single_precision(rng, kind):
    X = rng.standard_normal((90, 7)).astype("f4")
    A = covariance(X)
    component = RowsComponent(X) if kind == "rows" else MatrixComponent(A.astype("f4"))
    scales = np.array([1.0, 1e60, 1e-60, 0.0])
    V = rng.standard_normal((7, 4))
    found = component.apply(V * scales, single=True)
    assert not found[:, 3].any()
    np.testing.assert_allclose(found[:, :3] / scales[:3], component.apply(V)[:, :3], atol=4 * EPS32 * norm(A))


def test_single_precision_finds_bad_rows_before_it_multiplies(rng):
    X = rng.standard_normal((50, 3)).astype("f4")
    X[20, 1] = np.nan
    for center in (True, False):
        with pytest.raises(InvalidComponent, match="row 20 holds NaN"):
            RowsComponent(X, center=center).apply(np.eye(3), single=True)


def test_a_float32_matrix_multiplies_in_single_precision(rng):
    A = covariance(rng.standard_normal((300, 80))).astype("f4")
    V = rng.standard_normal((80, 6))
    component = MatrixComponent(A)
    out = component.apply(V, single=True)
    assert out.dtype == np.float64
    assert out.flags.c_contiguous
    assert 1e-4 < off(out, A.astype("f8"), V) < 2.0
    np.testing.assert_array_equal(component.dense(single=True), A)
    for other in (A.astype("f8"), sp.csr_array(A), A * np.float32(1e36)):
        assert not MatrixComponent(other).moments().single


def test_a_sum_passes_single_precision_on_to_its_parts(rng):
    X = rng.standard_normal((200, 9)) + 1.0
    V = rng.standard_normal((9, 3))
    parts = [X[:50].astype("f4"), X[50:]]
    merged = SumComponent([RowsComponent(P) for P in parts])
    A = covariance(np.concatenate(parts))
    assert merged.moments().single
    assert 1e-4 < off(merged.apply(V, single=True), A, V) < 2.0
    assert 1e-4 < off(merged.dense(single=True), A, np.eye(9)) < 2.0
    close(merged.apply(V), A @ V)
    assert not SumComponent([RowsComponent(X)]).moments().single


@pytest.mark.parametrize("single", [False, True])
def test_a_new_kind_may_write_a_product_in_single_precision(single):
    class Scaled(Component):
        def _measure(self):
            return Moments(self.n_features, None, None, None, True, single=single)

        def _product(self, V):
            return 2.0 * V

    class Faster(Scaled):
        def _product_single(self, V):
            return 3.0 * V

    V = np.ones((2, 1))
    np.testing.assert_array_equal(Scaled(2).apply(V, single=True), 2.0 * V)
    np.testing.assert_array_equal(Scaled(2).dense(single=True), 2.0 * np.eye(2))
    np.testing.assert_array_equal(Faster(2).apply(V, single=True), (3.0 if single else 2.0) * V)
    np.testing.assert_array_equal(Faster(2).apply(V), 2.0 * V)


# ------------------------------------------------------------------- threads, kinds of BLAS, sizes


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("m", "d", "b"), [(301, 40, 3), (130, 6000, 30), (20, 260_000, 2), (300, 1100, 70)])
def test_any_number_of_threads_and_any_blas_give_the_same_product(
    rng, monkeypatch, threads, small, dtype, m, d, b
):
    monkeypatch.setattr(gram, "_threads", lambda work, each: threads)
    monkeypatch.setattr(gram, "_small_products", lambda: small)
    X = (rng.standard_normal((m, d)) + 0.5).astype(dtype)
    V = rng.standard_normal((d, b))
    D = X - X.mean(axis=0, dtype="f8")
    expected = D.T @ (D @ V) / m
    component = RowsComponent(X)
    close(component.apply(V), expected)
    assert component.moments().trace == pytest.approx(np.vdot(D, D) / m, rel=1e-13)
    if dtype == "f4":
        error = np.linalg.norm(component.apply(V, single=True) - expected)
        assert 0.0 < error < 4 * EPS32 * norm(D @ D.T) / m * np.linalg.norm(V)


def test_small_work_is_not_spread_over_threads_and_large_work_over_no_more_than_blas_has():
    assert gram._threads(1.0, each=10.0) == 1
    with threadpool_limits(1):
        assert gram._threads(1e12, each=1.0) == 1


def test_an_error_in_another_thread_is_raised():
    def work(start, stop):
        if start:
            raise InvalidInput("here")

    with pytest.raises(InvalidInput, match="here"):
        gram._over_rows(work, 10, threads=3)


@pytest.mark.parametrize("offset", [0.0, 1.0, 4.0, 7.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_moments_are_exact_near_and_far_from_the_origin(rng, offset, dtype):
    X = (rng.standard_normal((3000, 50)) + offset).astype(dtype)
    exact = X.astype(np.longdouble)
    mean = exact.mean(axis=0)
    moments = RowsComponent(X, tile_rows=64).moments()
    scale = max(1.0, offset)
    np.testing.assert_allclose(moments.mean, mean.astype("f8"), rtol=0, atol=1e-15 * scale)
    assert moments.trace == pytest.approx(float(((exact - mean) ** 2).sum() / 3000), rel=1e-13)


# ------------------------------------------------------------------------------------- centring


def shards(rng, sparse=False):
    X = rng.standard_normal((60, 5)) + np.linspace(0, 9, 60)[:, None]
    cuts = [0, 7, 8, 31, 60]
    parts = [X[a:b] for a, b in pairwise(cuts)]
    return X, parts, [RowsComponent(sp.csr_array(P) if sparse else P) for P in parts]


@pytest.mark.parametrize("sparse", [False, True])
def test_recentred_shards_sum_to_the_covariance_of_all_rows(rng, sparse):
    X, parts, components = shards(rng, sparse)
    weights = np.array([len(P) for P in parts]) / len(X)
    mean = sum(w * c.moments().mean for w, c in zip(weights, components, strict=True))
    for component in components:
        component.recenter(mean)
    total = sum(w * dense(c) for w, c in zip(weights, components, strict=True))
    close(total, covariance(X))
    traces = [c.trace_about(mean) for c in components]
    assert weights @ traces == pytest.approx(np.trace(covariance(X)))


def test_recentring_twice_replaces_and_does_not_accumulate(rng):
    X = rows(rng)
    component = RowsComponent(X)
    mu = np.arange(6.0)
    component.recenter(np.full(6, 99.0))
    component.recenter(mu)
    component.recenter(mu)
    close(dense(component), covariance(X, mu))
    assert component.trace_about(mu) == pytest.approx(np.trace(covariance(X, mu)))
    component.recenter(component.moments().mean)
    close(dense(component), covariance(X))


def test_moments_do_not_change_when_recentred(rng):
    component = RowsComponent(rows(rng))
    before = component.moments()
    component.recenter(np.zeros(6))
    assert component.moments() is before


def test_recentring_has_no_effect_on_what_is_not_centred(rng):
    X = rows(rng)
    for component in (
        RowsComponent(X, center=False),
        MatrixComponent(second_moment(X)),
        OperatorComponent(lambda V: second_moment(X) @ V, 6, trace=np.trace(second_moment(X))),
    ):
        component.recenter(np.ones(6))
        close(dense(component), second_moment(X))
        assert component.trace_about(np.ones(6)) == pytest.approx(np.trace(second_moment(X)))
    assert OperatorComponent(lambda V: V, 6).trace_about(np.ones(6)) is None


# ----------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_sum_of_centred_shards_is_their_concatenation(rng, sparse, nested):
    X, _, components = shards(rng, sparse)
    if nested:
        components = [SumComponent(components[:2]), SumComponent(components[2:])]
    merged, whole = SumComponent(components), RowsComponent(X)
    close(dense(merged), dense(whole))
    found, expected = merged.moments(), whole.moments()
    assert found.count == expected.count
    assert found.positive
    assert found.trace == pytest.approx(expected.trace)
    np.testing.assert_allclose(found.mean, expected.mean)
    mu = np.arange(5.0)
    for component in (merged, whole):
        component.recenter(mu)
    close(dense(merged), dense(whole))
    assert merged.trace_about(mu) == pytest.approx(whole.trace_about(mu))
    merged.recenter(found.mean)
    close(dense(merged), covariance(X))


def test_a_sum_of_uncentred_shards_is_their_concatenation(rng):
    X, parts, _ = shards(rng)
    merged = SumComponent([RowsComponent(P, center=False) for P in parts])
    close(dense(merged), second_moment(X))
    assert merged.moments().mean is None
    assert merged.moments().trace == pytest.approx(np.trace(second_moment(X)))
    merged.recenter(np.ones(5))
    close(dense(merged), second_moment(X))


def test_a_sum_of_matrices_is_their_weighted_mean(rng):
    A, B = covariance(rows(rng)), covariance(rows(rng))
    close(dense(SumComponent([MatrixComponent(A), MatrixComponent(B)])), (A + B) / 2)
    weighted = SumComponent([MatrixComponent(A), MatrixComponent(B)], weights=[3, 1])
    close(dense(weighted), 0.75 * A + 0.25 * B)
    assert weighted.moments().trace == pytest.approx(0.75 * np.trace(A) + 0.25 * np.trace(B))
    assert weighted.moments().count is None
    assert not weighted.moments().positive


def test_a_sum_with_an_unknown_trace_has_no_trace():
    parts = [MatrixComponent(np.eye(3)), OperatorComponent(lambda V: V, 3)]
    assert SumComponent(parts).moments().trace is None


def test_given_weights_mix_centred_shards_about_their_weighted_mean(rng):
    _, parts, components = shards(rng)
    weights = np.array([1.0, 2.0, 3.0, 4.0]) / 10
    mu = sum(w * P.mean(axis=0) for w, P in zip(weights, parts, strict=True))
    expected = sum(w * covariance(P, mu) for w, P in zip(weights, parts, strict=True))
    merged = SumComponent(components, weights=weights)
    close(dense(merged), expected)
    assert merged.moments().trace == pytest.approx(np.trace(expected))


def test_a_large_common_offset_does_not_cost_a_sum_its_variances(rng):
    X = rng.standard_normal((400, 4)) + 1e6
    merged = SumComponent([RowsComponent(X[:100]), RowsComponent(X[100:])])
    exact = X.astype(np.longdouble)
    D = exact - exact.mean(axis=0)
    close(dense(merged), (D.T @ D / 400).astype("f8"), rtol=1e-9)


# ------------------------------------------------------------------------------------ extension


def test_a_new_kind_needs_only_a_measure_and_a_product():
    class Shift(Component):
        def __init__(self, rows):
            super().__init__(rows.shape[1])
            self.rows = rows
            self.reads = 0

        def _measure(self):
            self.reads += 1
            mean = self.rows.mean(axis=0)
            trace = float(np.trace(covariance(self.rows)))
            return Moments(self.n_features, float(len(self.rows)), mean, trace, True)

        def _product(self, V):
            return covariance(self.rows) @ V

    X = np.arange(12.0).reshape(4, 3) ** 1.5
    component = Shift(X)
    component.recenter(np.ones(3))
    close(dense(component), covariance(X, np.ones(3)))
    component.moments()
    assert component.reads == 1


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros((0, 3)), "rows must not be empty; got 0 rows x 3 features"),
        (np.zeros((3, 0)), "rows must not be empty; got 3 rows x 0 features"),
        (sp.csr_array((0, 3)), "rows must not be empty; got 0 rows x 3 features"),
        (np.zeros(3), r"2-D array \(rows x features\); got 1-D of shape \(3,\); reshape"),
        (np.zeros((2, 2, 2)), "got 3-D of shape"),
        (np.zeros((2, 2), object), "must be real numbers .* got dtype object; convert"),
        (np.zeros((2, 2), complex), "got dtype complex128"),
        (np.array([["a", "b"]]), "got dtype <U1"),
        (sp.csr_array(np.eye(2) * 1j), "got dtype complex128"),
        (np.ma.masked_array(np.eye(2)), "must not be a masked array; fill"),
    ],
)
def test_rows_that_break_a_rule_are_refused_before_being_read(data, text):
    with pytest.raises(InvalidComponent, match=text):
        RowsComponent(data)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", ["f8", "f4", "csr", "first"])
def test_rows_with_nan_or_inf_are_refused_by_the_index_of_the_first(rng, value, center, kind):
    X = rng.standard_normal((50, 3))
    row = 0 if kind == "first" else 31
    X[row, 1] = X[44, 0] = value
    data = {"f4": X.astype("f4"), "csr": sp.csr_array(X)}.get(kind, X)
    component = RowsComponent(data, center=center, tile_rows=8)
    with pytest.raises(InvalidComponent, match=f"rows must be finite; row {row} holds NaN or inf"):
        component.moments()


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_whose_squares_overflow_are_refused(sparse):
    X = np.array([[1e200, 0.0], [0.0, 1.0]])
    with pytest.raises(InvalidComponent, match="must not overflow float64; rescale"):
        RowsComponent(sp.csr_array(X) if sparse else X).moments()


def test_a_tile_must_hold_a_row():
    with pytest.raises(InvalidInput, match="tile_rows must be at least 1; got 0"):
        RowsComponent(np.eye(2), tile_rows=0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros((2, 3)), r"must be square; got shape \(2, 3\); for rows of data use from_rows"),
        (np.zeros(3), r"must be square; got shape \(3,\)"),
        (np.zeros((0, 0)), "must not be empty"),
        (np.eye(2) * 1j, "the matrix must be real numbers .* got dtype complex128"),
        (np.eye(2).astype(object), "got dtype object"),
        (np.ma.masked_array(np.eye(2)), "must not be a masked array"),
    ],
)
def test_matrices_that_break_a_rule_are_refused_before_being_read(data, text):
    with pytest.raises(InvalidComponent, match=text):
        MatrixComponent(data)


@pytest.mark.parametrize("make", [np.array, sp.csr_array, sp.csc_matrix])
def test_an_asymmetric_matrix_is_refused_by_its_worst_entry(make):
    A = np.eye(400)
    A[3, 250] += 0.5
    A[390, 2] += 0.25
    text = r"must be symmetric; the largest \|A - A.T\| is 0.5 at \((3, 250|250, 3)\)"
    with pytest.raises(InvalidComponent, match=text):
        MatrixComponent(make(A)).moments()


@pytest.mark.parametrize(("dtype", "noise"), [("f8", 1e-13), ("f4", 1e-6), ("f2", 1e-3)])
def test_asymmetry_of_the_size_of_rounding_is_let_pass(dtype, noise):
    A = np.eye(5)
    A[0, 1], A[1, 0] = 0.5, 0.5 + noise
    MatrixComponent(A.astype(dtype)).moments()
    A[1, 0] += 1e5 * noise
    with pytest.raises(InvalidComponent, match="must be symmetric"):
        MatrixComponent(A.astype(dtype)).moments()


@pytest.mark.parametrize("make", [np.array, sp.csr_array])
def test_a_matrix_with_nan_is_refused_by_its_entry(make):
    A = np.eye(300)
    A[200, 7] = np.nan
    with pytest.raises(InvalidComponent, match=r"must be finite; the entry at \(200, 7\) is nan"):
        MatrixComponent(make(A)).moments()


def test_an_empty_sparse_matrix_is_the_zero_operator():
    component = MatrixComponent(sp.csr_array((4, 4)))
    assert component.moments().trace == 0.0
    assert not dense(component).any()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OperatorComponent(lambda V: V), "n_features must be given, at least 1"),
        (lambda: OperatorComponent(np.eye(2), 2), "got ndarray; for a matrix use MatrixComponent"),
        (
            lambda: OperatorComponent(aslinearoperator(np.ones((2, 3)))),
            r"must be square, at least 1 x 1; got \(2, 3\)",
        ),
        (
            lambda: OperatorComponent(aslinearoperator(np.eye(2)), 3),
            "n_features must be the operator's size, 2; got 3",
        ),
        (lambda: OperatorComponent(aslinearoperator(np.eye(2) * 1j)), "got dtype complex128"),
        (lambda: OperatorComponent(lambda V: V, 2, trace=np.nan), "trace must be finite; got nan"),
        (
            lambda: OperatorComponent(lambda V: V[:1], 3).moments(),
            r"must return the shape it is given, \(3, 4\); got \(1, 4\)",
        ),
        (lambda: OperatorComponent(lambda V: V * np.nan, 3).moments(), "must return finite"),
        (lambda: OperatorComponent(lambda V: V * 1j, 3).moments(), "result must be real numbers"),
        (
            lambda: OperatorComponent(lambda V: np.triu(np.ones((3, 3))) @ V, 3).moments(),
            r"operator must be symmetric; \|u.T A v - v.T A u\| reached",
        ),
    ],
)
def test_operators_that_break_a_rule_are_refused(make, text):
    with pytest.raises(InvalidComponent, match=text):
        make()


def test_a_linear_operator_is_applied_by_its_matmat():
    calls = []

    class Twice(LinearOperator):
        def _matmat(self, V):
            calls.append(V.shape)
            return 2 * V

    OperatorComponent(Twice(np.dtype("f8"), (5, 5))).apply(np.ones((5, 3)))
    assert calls == [(5, 3)]


def test_sums_that_break_a_rule_are_refused():
    two, three = MatrixComponent(np.eye(2)), MatrixComponent(np.eye(3))
    with pytest.raises(InvalidComponent, match="at least one part; got none"):
        SumComponent([])
    with pytest.raises(InvalidComponent, match="part 0 has 2, part 1 has 3"):
        SumComponent([two, three])
    for weights in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(InvalidInput, match="weights must be 2 positive finite numbers; got"):
            SumComponent([two, two], weights)
    with pytest.raises(InvalidComponent, match="all centred or all not; 1 of 2 are centred"):
        SumComponent([two, RowsComponent(np.eye(2))]).moments()
    bad = RowsComponent(np.array([[1.0, np.nan]]))
    with pytest.raises(InvalidComponent, match="part 1: rows must be finite; row 0"):
        SumComponent([RowsComponent(np.eye(2)), bad]).moments()


@pytest.mark.parametrize("V", [np.ones(3), np.ones((2, 1)), np.ones((3, 1)) * 1j])
def test_a_block_of_the_wrong_shape_or_kind_is_refused(V):
    with pytest.raises(InvalidInput, match=r"V must be a real array of shape \(3, b\); got shape"):
        MatrixComponent(np.eye(3)).apply(V)


def test_a_mean_of_the_wrong_shape_is_refused():
    with pytest.raises(InvalidInput, match=r"mean must have shape \(3,\); got \(2,\)"):
        RowsComponent(np.eye(3)).recenter(np.zeros(2))


def test_integers_that_float64_cannot_hold_are_refused():
    rows = np.array([[2**62, 1], [2**62 + 1, 5], [2**62 + 2, 2]])
    with pytest.raises(InvalidComponent, match=r"2\*\*53"):
        RowsComponent(rows).moments()
    RowsComponent(rows - np.array([2**62, 0])).moments()
