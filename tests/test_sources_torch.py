"""torch tensors as rows: the same memory, the same answer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.data import from_rows
from grassia.errors import InvalidComponent, InvalidInput

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

M, D, K = 40, 6, 2


@pytest.fixture
def X():
    rng = np.random.default_rng(4)
    return rng.standard_normal((M, K)) * [6.0, 3.0] @ rng.standard_normal((K, D)) + rng.standard_normal(
        (M, D)
    )


def rows_of(source):
    return np.concatenate([b.toarray() if sp.issparse(b) else b for b in from_rows(source, 2).blocks()])


def projection(vectors):
    return vectors @ vectors.T


def oracle(X):
    return projection(np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:K].T)


def test_the_eigenspace_of_a_tensor_is_that_of_the_array(X):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        components = from_rows(torch.from_numpy(X), 3)
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(X), atol=1e-9)


def test_a_tensor_on_the_cpu_is_not_copied(X):
    for tensor in (torch.from_numpy(X), torch.from_numpy(X)[::2, 1:], torch.from_numpy(X).T):
        assert np.shares_memory(from_rows(tensor)[0].rows, X)
    follows = torch.from_numpy(X).clone().requires_grad_()
    assert np.shares_memory(from_rows(follows)[0].rows, follows.detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"])
def test_types_that_numpy_has_are_kept(X, dtype):
    tensor = torch.from_numpy(X).to(getattr(torch, dtype))
    components = from_rows(tensor)
    assert components.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(rows_of(tensor), tensor.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_types_that_numpy_does_not_have_become_float32(X, dtype):
    tensor = torch.from_numpy(X).to(getattr(torch, dtype))
    components = from_rows(tensor, 2)
    assert components.dtype == np.float32
    np.testing.assert_array_equal(rows_of(tensor), tensor.to(torch.float32).numpy())


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_stay_sparse(X, layout):
    X = np.where(np.abs(X) > 3, X, 0)
    tensor = getattr(torch.from_numpy(X), layout)()
    components = from_rows(tensor, 2)
    assert components.sparse
    np.testing.assert_array_equal(rows_of(tensor), X)
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(X), atol=1e-9)


def test_repeated_entries_of_a_sparse_tensor_add_up():
    tensor = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 5.0], (2, 2))
    np.testing.assert_array_equal(rows_of(tensor), [[0, 3], [5, 0]])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_what_cannot_be_rows_is_refused(X):
    tensor = torch.from_numpy(X)
    for wrong, complaint in [
        (tensor + 1j, "complex128"),
        (tensor.to("meta"), "meta"),
        (tensor[0], "2-D"),
        (tensor[:0], "empty"),
        (torch.nn.Linear(2, 3), "must be a tensor"),
        (tensor.to_sparse_bsr((2, 2)), "layout"),
    ]:
        with pytest.raises(InvalidComponent, match=complaint):
            from_rows(wrong)
    with pytest.raises(InvalidInput, match="device"):
        from_rows(tensor, options={"device": "cpu"})


def test_a_lazy_view_is_resolved(X):
    tensor = torch.from_numpy(X + 1j * X).conj().imag
    np.testing.assert_array_equal(rows_of(tensor), -X)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_gpu_is_copied_and_that_is_said(X):
    with pytest.warns(UserWarning, match="cuda:0 is copied to the CPU"):
        components = from_rows(torch.from_numpy(X).cuda(), 2)
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
