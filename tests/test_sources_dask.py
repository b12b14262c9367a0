"""Rows in dask arrays, and delayed: chunks, failures, AnnData."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from grassia.data import from_rows
from grassia.errors import InvalidComponent
from scientific_files import D, K, gone_through, oracle, plain, projection, some_genotypes

anndata = pytest.importorskip("anndata")
da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")
bag = pytest.importorskip("dask.bag")


@pytest.fixture
def genotypes():
    return some_genotypes()


def test_the_row_chunks_of_a_dask_array_are_its_components(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=((20, 1, 40), (4, 5))) * 2.0 + 1.0
    components = from_rows(x)
    assert [block.shape[0] for block in components.blocks()] == [20, 1, 40]
    for n in (1, 2, 3, 8):
        result = grassia.eigenspace(from_rows(x, n), K, backend="serial", tol=1e-10, rng=0)
        np.testing.assert_allclose(projection(result.vectors), oracle(genotypes), atol=1e-9)


def test_a_component_of_a_dask_array_carries_its_own_numbers_alone():
    x = da.from_array(np.random.default_rng(0).random((4000, 50)), chunks=(1000, 50))
    whole = x.nbytes
    for loader in from_rows(x, 4):
        assert len(cloudpickle.dumps(loader)) < whole / 4 + 20_000
    lazy = da.random.default_rng(0).random((4000, 50), chunks=(1000, 50))
    assert all(len(cloudpickle.dumps(loader)) < 20_000 for loader in from_rows(lazy, 4))


def test_sparse_chunks_of_a_dask_array_stay_sparse(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=(17, D)).map_blocks(sp.csr_matrix)
    components = from_rows(x)
    assert all(sp.issparse(block) for block in components.blocks())
    np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), genotypes)


def failing(block):
    if block.shape[0] == 1:
        raise RuntimeError("no more pears")
    return block


def test_what_dask_cannot_compute_is_named(genotypes):
    x = da.from_array(genotypes.astype(float), chunks=((20, 1, 40), D))
    with pytest.raises(InvalidComponent, match=r"chunk 1 of the dask array.*RuntimeError: no more pears"):
        gone_through(x.map_blocks(failing, meta=np.empty((0, 0))))
    with pytest.raises(InvalidComponent, match="compute_chunk_sizes"):
        from_rows(x[x[:, 0] > 0])
    with pytest.raises(InvalidComponent, match="two-dimensional"):
        from_rows(x[:, 0])
    with pytest.raises(InvalidComponent, match="meta"):
        gone_through(x.map_blocks(sp.csr_matrix, meta=np.empty((0, 0))))
    with pytest.raises(InvalidComponent, match="masked"):
        gone_through(da.ma.masked_equal(x, 1.0))
    with pytest.raises(InvalidComponent, match="real"):
        from_rows(x + 1j)
    with pytest.raises(InvalidComponent, match="must be an array"):
        from_rows(bag.from_sequence([1, 2]))


def test_a_delayed_object_is_a_shard_of_its_own(genotypes):
    parts = [dask.delayed(kind)(genotypes[a:b]) for kind, a, b in [(np.array, 0, 20), (sp.csr_array, 20, 61)]]
    components = from_rows(parts)
    assert components.describe().count("rows from delayed") == 2
    np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), genotypes)
    result = grassia.eigenspace(components, K, backend="processes", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(genotypes), atol=1e-9)


def test_the_rows_of_an_anndata_object_may_be_a_dask_array(genotypes):
    cells = anndata.AnnData(da.from_array(genotypes.astype(np.float32), chunks=(30, D)))
    assert [block.shape[0] for block in from_rows(cells).blocks()] == [30, 30, 1]
