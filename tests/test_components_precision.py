"""The memory components take, their accuracy, and single precision."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from component_oracles import EPS32, close, covariance, dense, norm, rows, second_moment
from grassia.components import Component, MatrixComponent, Moments, RowsComponent, SumComponent
from grassia.errors import InvalidComponent
from grassia.passes.dense import dense_gram
from grassia.rows import BlockedRows


@pytest.fixture
def rng():
    return np.random.default_rng(7)


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


# ----------------------------------------------------------------------------- single precision


SINGLE_DTYPES = ["f2", "f4", ">f4", "i1", "u1", "i2", "u2", "?"]


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
    if (center and dtype != "?") or dtype in ("f4", ">f4"):  # Squares of small integers are exact in float32.
        assert off(found, exact, np.eye(40)) > 1e-4
    close(component.dense(), exact)


class Blocks(BlockedRows):
    """Rows in that many blocks."""

    def __init__(self, X, blocks):
        super().__init__(X.shape, X.dtype, sparse=False, center=True)
        self._parts = np.array_split(X, blocks)

    def _blocks(self):
        yield from self._parts


@pytest.mark.parametrize("offset", [0.0, 0.2, 0.3, 0.33, 1.0, 30.0])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_matrix_is_as_good_as_that_of_centred_tiles(rng, offset, single, blocks):
    """Where the mean is small beside the spread, it is taken off the sum of tiles that were not centred."""
    X = (rng.standard_normal((900, 40)) + offset).astype("f4")
    exact = covariance(X)
    found = Blocks(X, blocks).dense(single=single)
    np.testing.assert_array_equal(found, found.T)
    mean = X.mean(axis=0, dtype="f8")
    centred = dense_gram(X, mean, single=single) / 900
    assert norm(found - exact) < 2.0 * norm(centred - exact) + 1e-14


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
