"""Components against dense oracles: products of every kind of data, and kinds of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

from component_oracles import close, covariance, dense, rows, second_moment
from grassia.components import (
    Component,
    MatrixComponent,
    Moments,
    OperatorComponent,
    RowsComponent,
    SumComponent,
)

DTYPES = ["f2", "f4", "f8", ">f8", "g", "i1", "i4", "i8", "u1", "u8", "?"]


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
