"""Tiles, threads and kinds of BLAS: however rows are cut, the product is the same."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from component_oracles import EPS32, close, covariance, norm, second_moment
from grassia._blas import numpy_threads
from grassia.components import RowsComponent
from grassia.errors import InvalidInput
from grassia.passes import tiling


@pytest.fixture
def rng():
    return np.random.default_rng(7)


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


def test_the_default_tile_gives_the_same_product_when_it_does_not_divide_the_rows(rng):
    X = rng.standard_normal((1000, 300))
    V = rng.standard_normal((300, 3))
    tile = tiling.dense_tile_rows(300)
    assert tile < 1000
    assert 1000 % tile
    close(RowsComponent(X).apply(V), covariance(X) @ V)


def test_tiles_shrink_to_one_row_rather_than_exceed_their_memory():
    assert tiling.dense_tile_rows(10_000_000) == 1
    assert tiling.dense_tile_rows(100) * 100 * 8 <= 32 << 20


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("m", "d", "b"), [(301, 40, 3), (130, 6000, 30), (20, 260_000, 2), (300, 1100, 70)])
def test_any_number_of_threads_and_any_blas_give_the_same_product(
    rng, monkeypatch, threads, small, dtype, m, d, b
):
    monkeypatch.setattr(tiling, "threads_for", lambda work, each: threads)
    monkeypatch.setattr(tiling, "small_products", lambda: small)
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


@pytest.mark.parametrize("threads", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("d", [10, 784, 3072, 100_000])
def test_copies_of_taller_tiles_stay_within_their_memory_together(threads, d):
    usual = tiling.dense_tile_rows(d)
    rows = tiling.product_tile_rows(d, 8, threads)
    assert rows >= usual
    assert rows == usual or threads * rows * d * 8 <= 32 << 20
    assert tiling.product_tile_rows(d, 8, threads, copied=False) >= rows


def test_small_work_is_not_spread_over_threads_and_large_work_over_no_more_than_blas_has():
    assert tiling.threads_for(1.0, each=10.0) == 1
    with threadpool_limits(1):
        assert tiling.threads_for(1e12, each=1.0) == 1


def on_another_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_where_products_would_be_shared_by_blas_only_the_main_thread_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(tiling, "small_products", lambda: False)
    with threadpool_limits(2):
        assert tiling.threads_for(1e12, each=1.0) == numpy_threads()
        assert on_another_thread(lambda: tiling.threads_for(1e12, each=1.0)) == 1


@pytest.mark.parametrize("small", [True, False])
def test_products_on_threads_of_ours_are_not_spread_over_those_of_blas(monkeypatch, small):
    monkeypatch.setattr(tiling, "small_products", lambda: small)
    with threadpool_limits(2):
        before = numpy_threads()
        with tiling.apart(1):
            assert numpy_threads() == before
        with tiling.apart(2):
            assert numpy_threads() == (before if small else 1)
        assert numpy_threads() == before


def test_products_left_to_the_threads_of_blas_have_taller_tiles(monkeypatch):
    monkeypatch.setattr(tiling, "small_products", lambda: False)
    usual = tiling.dense_tile_rows(1000)
    with threadpool_limits(1):
        assert tiling.product_tile_rows(1000, 8, 1) == usual
    monkeypatch.setattr(tiling, "numpy_threads", lambda: 2)
    assert tiling.product_tile_rows(1000, 8, 1) == 4 * usual


def test_an_error_in_another_thread_is_raised():
    def work(start, stop):
        if start:
            raise InvalidInput("here")

    with pytest.raises(InvalidInput, match="here"):
        tiling.over_rows(work, 10, threads=3)


def test_an_error_in_this_thread_waits_for_the_others():
    done = []

    def work(start, stop):
        if start == 0:
            raise InvalidInput("here")
        time.sleep(0.1)
        done.append(start)

    with pytest.raises(InvalidInput, match="here"):
        tiling.over_rows(work, 9, threads=3)
    assert sorted(done) == [3, 6]
