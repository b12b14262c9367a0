"""Rows of AnnData: layers, objects in memory and backed by files, the first format."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

from grassia.data import from_rows
from grassia.errors import InvalidComponent, InvalidInput
from scientific_files import D, plain, some_genotypes

anndata = pytest.importorskip("anndata")


@pytest.fixture
def genotypes():
    return some_genotypes()


@pytest.fixture
def cells(genotypes):
    X = genotypes.astype(np.float32)
    cells = anndata.AnnData(sp.csr_matrix(X))
    cells.var_names = [f"gene{j}" for j in range(D)]
    cells.layers["twice"] = 2 * X
    cells.layers["columns"] = sp.csc_matrix(X)
    cells.obsm["X_first"] = X[:, :2]
    cells.raw = cells.copy()
    return cells


def test_layers_and_other_matrices_are_named_by_a_fragment_or_an_option(cells, tmp_path, genotypes):
    path = tmp_path / "cells.h5ad"
    cells.write_h5ad(path)
    for source, options, expected in [
        (f"{path}::layers/twice", None, 2 * genotypes),
        (path, {"layer": "twice"}, 2 * genotypes),
        (path, {"dataset": "raw/X"}, genotypes),
        (f"{path}::obsm/X_first", None, genotypes[:, :2]),
        (path, None, genotypes),
    ]:
        components = from_rows(source, 2, options=options)
        np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), expected)
        names = None if expected.shape[1] == 2 else tuple(cells.var_names)
        assert components.feature_names == names


def test_matrices_that_cannot_be_read_by_rows_are_refused_with_what_there_is(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    path = f"{tmp_path}/cells.h5ad"
    with pytest.raises(InvalidComponent, match="CSC"):
        from_rows(path + "::layers/columns")
    with pytest.raises(InvalidComponent, match=r"cells\.h5ad must have layers/counts.*layers/twice"):
        from_rows(path, options={"layer": "counts"})
    with pytest.raises(InvalidComponent, match=r"must be a matrix.*layers/twice"):
        from_rows(path + "::obs")
    with pytest.raises(InvalidInput, match="not both"):
        from_rows(path, options={"layer": "twice", "dataset": "X"})


def test_an_anndata_object_stands_for_its_rows_in_memory_or_in_its_file(cells, tmp_path, genotypes):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    try:
        for source, options, expected in [
            (cells, None, genotypes),
            (cells, {"layer": "twice"}, 2 * genotypes),
            (cells[10:30, :4], None, genotypes[10:30, :4]),
            (backed, None, genotypes),
        ]:
            components = from_rows(source, 2, options=options)
            np.testing.assert_array_equal(np.concatenate([plain(b) for b in components.blocks()]), expected)
            assert components.feature_names == tuple(cells.var_names[: expected.shape[1]])
        # It travels as a path, not as its numbers.
        assert b"cells.h5ad" in cloudpickle.dumps(from_rows(backed)[0])
        with pytest.raises(InvalidComponent, match="to_memory"):
            from_rows(backed[:5])
    finally:
        backed.file.close()
    with pytest.raises(InvalidInput, match="twice"):
        from_rows(cells, options={"layer": "counts"})
    with pytest.raises(InvalidComponent, match="must have X"):
        from_rows(anndata.AnnData(shape=(3, 2)))


def test_a_file_of_the_first_anndata_format_is_read(tmp_path, genotypes):
    import h5py

    X = sp.csr_matrix(genotypes.astype(np.float32))
    with h5py.File(tmp_path / "old.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["h5sparse_format"] = b"csr"
        group.attrs["h5sparse_shape"] = X.shape
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(X, part)
        file["var"] = np.array([(f"g{j}".encode(),) for j in range(D)], dtype=[("index", "S8")])
    components = from_rows(tmp_path / "old.h5ad")
    np.testing.assert_array_equal(plain(next(components.blocks())), genotypes)
    assert components.feature_names == tuple(f"g{j}" for j in range(D))
