"""Rows in PLINK files: missing genotypes, layouts, the files beside them."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from grassia.data import from_rows
from grassia.errors import InvalidComponent, InvalidInput
from scientific_files import D, K, M, gone_through, opened, oracle, projection, some_genotypes, write_bed

bed_reader = pytest.importorskip("bed_reader")


@pytest.fixture
def genotypes():
    return some_genotypes()


def with_missing(genotypes):
    X = genotypes.astype(float)
    X[3, 1] = X[7, 1] = X[60, 8] = np.nan
    return X


def test_missing_genotypes_are_refused_by_name_unless_the_mean_is_asked_for(tmp_path, genotypes):
    X = with_missing(genotypes)
    names = {"iid": [f"person{i}" for i in range(M)], "sid": [f"rs{j}" for j in range(D)]}
    bed_reader.to_bed(tmp_path / "x.bed", X, properties=names, num_threads=1)
    with pytest.raises(InvalidComponent, match=r"sample 3 \(person3\) at variant 1 \(rs1\) in .*x\.bed"):
        gone_through(tmp_path / "x.bed")
    # The remedy must be one that an estimator, which takes no options of a file, can be given.
    with pytest.raises(InvalidComponent, match=r"from_rows\(path, options=\{'missing': 'mean'\}\)"):
        grassia.PCA(K).fit(tmp_path / "x.bed")
    grassia.PCA(K).fit(from_rows(tmp_path / "x.bed", options={"missing": "mean"}))
    components = from_rows(tmp_path / "x.bed", 3, options={"missing": "mean"})
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    np.testing.assert_allclose(np.concatenate(list(components.blocks())), filled, rtol=1e-15)
    assert components.feature_names == tuple(names["sid"])
    result = grassia.eigenspace(components, K, backend="serial", tol=1e-10, rng=0)
    np.testing.assert_allclose(projection(result.vectors), oracle(filled), atol=1e-9)
    with pytest.raises(InvalidInput, match="median"):
        from_rows(tmp_path / "x.bed", options={"missing": "median"})


def test_a_variant_without_any_genotype_is_no_obstacle(tmp_path, genotypes):
    X = genotypes.astype(float)
    X[:, 4] = np.nan
    bed_reader.to_bed(tmp_path / "x.bed", X, num_threads=1)
    rows = next(from_rows(tmp_path / "x.bed", options={"missing": "mean"}).blocks())
    np.testing.assert_array_equal(rows, np.where(np.isnan(X), 0.0, X))


@pytest.mark.parametrize("major", ["SNP", "individual"])
@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (5, 3), (7, 9)])
def test_files_by_variant_and_by_sample_of_any_size_are_read(tmp_path, major, shape, monkeypatch):
    from grassia.data.formats import plink

    monkeypatch.setattr(plink, "_BLOCK_BYTES", 10)
    X = np.random.default_rng(0).integers(0, 3, shape).astype(np.int8)
    bed_reader.to_bed(tmp_path / "x.bed", X, major=major, num_threads=1)
    np.testing.assert_array_equal(opened(tmp_path / "x.bed").read(0, shape[0]), X)
    np.testing.assert_array_equal(opened(tmp_path / "x.bed", count_A1=False).read(0, shape[0]), 2 - X)
    np.testing.assert_allclose(opened(tmp_path / "x.bed").means(), X.mean(axis=0))


def test_files_that_do_not_belong_to_the_bed_file_are_named(tmp_path, genotypes):
    path = write_bed(tmp_path, genotypes)
    fam = path.with_suffix(".fam")
    lines = fam.read_text().splitlines(keepends=True)
    fam.write_text("".join(lines[:-9]))
    with pytest.raises(InvalidComponent, match=r"x\.bed must have \d+ bytes for the 52 samples"):
        from_rows(path)
    fam.unlink()
    with pytest.raises(InvalidComponent, match=r"there is no .*x\.fam"):
        from_rows(path)


def test_a_bed_file_of_genomic_intervals_is_told_apart(tmp_path):
    (tmp_path / "genes.bed").write_text("chr1\t100\t200\tgene1\n")
    with pytest.raises(InvalidComponent, match=r"genes\.bed.*genomic intervals"):
        from_rows(tmp_path / "genes.bed")
