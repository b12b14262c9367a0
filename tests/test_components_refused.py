"""Rows, matrices, operators, sums and blocks that break a rule, and those that just keep it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from component_oracles import dense
from grassia.components import MatrixComponent, OperatorComponent, RowsComponent, SumComponent
from grassia.errors import InvalidComponent, InvalidInput


@pytest.fixture
def rng():
    return np.random.default_rng(7)


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
