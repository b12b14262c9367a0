"""`grassia pca`: what it writes is the decomposition of the rows, in every format, and whole or not there."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

import grassia
from grassia.cli import main
from terminal import Terminal

K = 3
NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(7)
    mixing = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    return (rng.standard_normal((240, 6)) * [5.0, 4.0, 3.0, 1.0, 0.9, 0.8]) @ mixing + np.arange(6.0)


@pytest.fixture(scope="module")
def oracle(X):
    return PCA(K, svd_solver="full").fit(X)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(X):
    frame = pd.DataFrame(X, columns=NAMES)
    frame.insert(0, "sample", [f"s{i}" for i in range(len(X))])
    frame["group"] = ["even" if i % 2 == 0 else "odd" for i in range(len(X))]
    return frame


def arrays(folder, form):
    """What a model folder holds, read without grassia."""
    if form == "npy":
        return {
            name: np.load(folder / f"{name}.npy") for name in ("components", "eigenvalues", "mean", "scores")
        }
    if form == "npz":
        with np.load(folder / "model.npz") as archive:
            return dict(archive)
    read = pd.read_csv if form == "csv" else pd.read_parquet
    found = {n: read(folder / f"{n}.{form}") for n in ("components", "eigenvalues", "mean", "scores")}
    names = ["feature", "component", "row", "id", "label"]
    plain = {name: frame.drop(columns=names, errors="ignore").to_numpy() for name, frame in found.items()}
    return {**plain, "components": plain["components"].T, "mean": plain["mean"][:, 0]}


def assert_is(found, oracle, X):
    assert grassia.geometry.projection_distance(found["components"].T, oracle.components_.T) < 1e-6
    turn = np.sign(np.sum(found["components"] * oracle.components_, axis=1))
    np.testing.assert_allclose(found["components"] * turn[:, None], oracle.components_, atol=1e-6)
    np.testing.assert_allclose(found["mean"], X.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found["scores"] * turn, oracle.transform(X), atol=1e-4)
    values = np.ravel(found["eigenvalues"]) * len(X) / (len(X) - 1)
    np.testing.assert_allclose(values, oracle.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("form", ["npy", "npz", "csv", "parquet"])
def test_every_format_holds_the_decomposition_that_scikit_learn_finds(form, X, oracle, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "3", "--format", form, "-o", "out/model", "-q"]) == 0
    assert_is(arrays(folder / "out" / "model", form), oracle, X)


def test_the_manifest_says_what_was_asked_and_what_came_out(X, oracle, folder):
    table(X).to_csv("t.csv", index=False)
    arguments = ["--drop", "sample", "--label", "group", "--seed", "5", "--solver", "krylov", "--tol", "1e-5"]
    assert main(["pca", "t.csv", "-k", "3", *arguments, "-o", "m", "-q"]) == 0
    said = json.loads((folder / "m" / "model.json").read_text())
    assert said["format"] == "grassia-model"
    assert said["asked"]["inputs"] == ["t.csv"]
    assert (said["k"], said["tol"], said["seed"], said["solver"]) == (3, 1e-5, 5, "krylov")
    assert (said["n_rows"], said["n_features"], said["feature_names"]) == (240, 6, NAMES)
    assert said["status"] == "CONVERGED"
    assert said["certificate"]["sin_theta"]["value"] <= 1e-5
    np.testing.assert_allclose(said["explained_variance"], oracle.explained_variance_, rtol=1e-8)
    np.testing.assert_allclose(said["explained_variance_ratio"], oracle.explained_variance_ratio_, rtol=1e-8)
    np.testing.assert_allclose(said["singular_values"], oracle.singular_values_, rtol=1e-8)
    np.testing.assert_allclose(said["total_variance"], X.var(axis=0, ddof=1).sum(), rtol=1e-10)
    assert str(folder) not in (folder / "m" / "model.json").read_text()


def test_the_same_seed_gives_the_same_model(X, folder):
    np.save("x.npy", X)
    for name in ("one", "two"):
        assert main(["pca", "x.npy", "-k", "2", "--seed", "3", "--solver", "power", "-o", name, "-q"]) == 0
    assert (folder / "one/components.npy").read_bytes() == (folder / "two/components.npy").read_bytes()


ENGINES = [pytest.param(name, marks=pytest.mark.engines) for name in ("ray", "dask")]


@pytest.mark.parametrize("backend", ["serial", "threads", "processes", *ENGINES])
def test_the_answer_does_not_depend_on_the_back_end(backend, X, oracle, folder):
    np.save("x.npy", X)
    two = "--shards" if backend == "serial" else "--workers"
    arguments = ["--backend", backend, two, "2", "--solver", "nystrom"]
    assert main(["pca", "x.npy", "-k", "3", *arguments, "-o", "m", "-q"]) == 0
    assert_is(arrays(folder / "m", "npy"), oracle, X)
    assert json.loads((folder / "m" / "model.json").read_text())["backend"] == backend


def test_several_workers_are_processes_unless_said_otherwise(X, folder, capsys):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-w", "2", "-o", "m", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["backend"], said["run"]["workers"]) == ("processes", 2)


def test_a_folder_a_pattern_and_a_list_of_parquet_files_are_the_same_rows_in_order(X, oracle, folder):
    Path("parts").mkdir()
    for i in range(5):
        pd.DataFrame(X[i * 48 : (i + 1) * 48], columns=NAMES).to_parquet(f"parts/p{i}.parquet")
    given = [["parts"], ["parts/*.parquet"], [f"parts/p{i}.parquet" for i in range(5)]]
    for number, inputs in enumerate(given):
        for shards in ("1", "3", "8"):  # merged, merged unevenly, and cut
            name = f"m{number}-{shards}"
            assert main(["pca", *inputs, "-k", "3", "--shards", shards, "-o", name, "-q"]) == 0
            assert_is(arrays(folder / name, "npy"), oracle, X)


@pytest.mark.parametrize("kind", ["h5", "zarr", "npz", "svm"])
def test_other_formats_are_read_with_their_options(kind, X, oracle, folder):
    more = []
    if kind == "h5":
        import h5py

        with h5py.File("x.h5", "w") as file:
            file["other"], file["rows"] = X[:5], X
        more = ["--dataset", "rows"]
    elif kind == "zarr":
        import zarr

        zarr.save_array("x.zarr", X)
    elif kind == "npz":
        np.savez("x.npz", rows=X, other=X[:3])
        more = ["--dataset", "rows"]
    else:
        from sklearn.datasets import dump_svmlight_file

        dump_svmlight_file(X, np.zeros(len(X)), "x.svm", zero_based=False)
        more = ["--option", "n_features=6", "--option", "zero_based=false"]
    assert main(["pca", f"x.{kind}", "-k", "3", *more, "-o", "m", "-q"]) == 0
    assert_is(arrays(folder / "m", "npy"), oracle, X)


def test_sparse_rows_are_centred_without_being_filled_in(folder):
    rng = np.random.default_rng(3)
    rows = sp.random_array((300, 30), density=0.2, format="csr", rng=rng) * (np.arange(30) == 4) * 9.0
    rows = sp.csr_array(rows + sp.random_array((300, 30), density=0.2, format="csr", rng=rng))
    sp.save_npz("x.npz", rows)
    dense = rows.toarray()
    assert main(["pca", "x.npz", "-k", "1", "-o", "m", "-q"]) == 0
    found = arrays(folder / "m", "npy")
    assert_is(found, PCA(1, svd_solver="full").fit(dense), dense)
    assert json.loads((folder / "m" / "model.json").read_text())["sparse"]


def test_without_centring_it_is_the_singular_value_decomposition(X, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "--no-center", "-o", "m", "-q"]) == 0
    assert not (folder / "m" / "mean.npy").exists()
    _, singular, vt = np.linalg.svd(X)
    found = np.load(folder / "m" / "components.npy")
    assert grassia.geometry.projection_distance(found.T, vt[:2].T) < 1e-6
    said = json.loads((folder / "m" / "model.json").read_text())
    np.testing.assert_allclose(said["singular_values"], singular[:2], rtol=1e-9)
    np.testing.assert_allclose(
        np.linalg.norm(np.load(folder / "m" / "scores.npy"), axis=0), singular[:2], rtol=1e-9
    )


def test_single_precision_rows_have_single_precision_scores(X, oracle, folder):
    np.save("x.npy", X.astype(np.float32))
    assert main(["pca", "x.npy", "-k", "3", "--precision", "float32", "--tol", "1e-4", "-o", "m", "-q"]) == 0
    scores = np.load(folder / "m" / "scores.npy")
    assert scores.dtype == np.float32
    turn = np.sign(np.sum(scores * oracle.transform(X), axis=0))
    np.testing.assert_allclose(scores * turn, oracle.transform(X), atol=1e-2)


def test_no_scores_writes_none(X, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "--no-scores", "-o", "m", "-q"]) == 0
    assert sorted(os.listdir("m")) == ["components.npy", "eigenvalues.npy", "mean.npy", "model.json"]


# -- names of rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet", "csv.gz"])
def test_names_and_labels_of_rows_stand_beside_their_scores(kind, X, oracle, folder):
    frame = table(X)
    for part, rows in (("p0", frame[:100]), ("p1", frame[100:])):
        if kind == "parquet":
            rows.to_parquet(f"{part}.parquet")
        else:
            rows.to_csv(f"{part}.{kind}", index=False)
    inputs = [f"p0.{kind}", f"p1.{kind}"]
    named = ["--id", "sample", "--label", "group"]
    assert main(["pca", *inputs, "-k", "3", "--format", "csv", *named, "-o", "m", "-q"]) == 0
    scores = pd.read_csv("m/scores.csv")
    assert list(scores.columns) == ["id", "label", "PC1", "PC2", "PC3"]
    assert list(scores["id"]) == list(frame["sample"])
    assert list(scores["label"]) == list(frame["group"])
    assert_is(arrays(folder / "m", "csv"), oracle, X)
    assert main(["pca", *inputs, "-k", "3", "--shards", "5", *named, "-o", "n", "-q"]) == 0  # files are cut
    assert list(pd.read_csv("n/rows.csv")["id"]) == list(frame["sample"])


def test_labels_with_quotes_commas_and_line_breaks_survive(X, folder):
    frame = pd.DataFrame(X[:40], columns=NAMES)
    frame["who"] = [f'row "{i}", first\nsecond' for i in range(40)]
    frame.to_csv("t.csv", index=False)
    assert main(["pca", "t.csv", "-k", "2", "--id", "who", "--format", "csv", "-o", "m", "-q"]) == 0
    assert list(pd.read_csv("m/scores.csv")["id"]) == list(frame["who"])


def test_the_unnamed_index_of_a_csv_file_names_the_rows(X, folder):
    pd.DataFrame(X, columns=NAMES, index=[f"r{i}" for i in range(len(X))]).to_csv("t.csv")
    assert main(["pca", "t.csv", "-k", "2", "--format", "csv", "-o", "m", "-q"]) == 0
    assert list(pd.read_csv("m/scores.csv")["id"][:2]) == ["r0", "r1"]


def read_eigenvec(path):
    lines = [line.split("\t") for line in Path(path).read_text().splitlines()]
    first = next(i for i, name in enumerate(lines[0]) if name == "PC1")
    return (
        lines[0],
        [line[:first] for line in lines[1:]],
        np.array([line[first:] for line in lines[1:]], float),
    )


def test_the_eigenvec_table_has_the_unit_eigenvectors_of_the_sample_matrix(X, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "3", "--eigenvec", "--no-scores", "-o", "m", "-q"]) == 0
    head, names, found = read_eigenvec("m/model.eigenvec")
    assert head == ["#IID", "PC1", "PC2", "PC3"]
    assert names[:2] == [["0"], ["1"]]
    centred = X - X.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T / len(X))
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1.0, rtol=1e-8)
    assert grassia.geometry.projection_distance(np.linalg.qr(found)[0], vectors[:, -3:]) < 1e-5
    written = [float(line) for line in Path("m/model.eigenval").read_text().splitlines()]
    np.testing.assert_allclose(written, values[: -3 - 1 : -1], rtol=1e-8)


def test_samples_of_genotype_files_are_called_by_family_and_name(folder):
    from bed_reader import to_bed

    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 20)
    chance = np.where(groups[:, None] == 0, 0.1, 0.8)
    genotypes = rng.binomial(2, np.broadcast_to(chance, (40, 30))).astype(np.int8)
    people = {"fid": [f"F{i // 2}" for i in range(40)], "iid": [f"I{i}" for i in range(40)]}
    to_bed("g.bed", genotypes, properties=people)
    assert main(["pca", "g.bed", "-k", "1", "--eigenvec", "--format", "csv", "-o", "m", "-q"]) == 0
    head, names, found = read_eigenvec("m/model.eigenvec")
    assert head == ["#FID", "IID", "PC1"]
    assert names[3] == ["F1", "I3"]
    assert abs(np.sum(np.sign(found[:20]))) == 20  # the two groups lie on the two sides
    assert list(pd.read_csv("m/scores.csv")["id"]) == people["iid"]


def test_observations_of_annotated_matrices_keep_their_names(X, folder):
    import anndata

    cells = anndata.AnnData(X, obs=pd.DataFrame(index=[f"cell{i}" for i in range(len(X))]))
    cells.write_h5ad("cells.h5ad")
    assert main(["pca", "cells.h5ad", "-k", "2", "--format", "csv", "-o", "m", "-q"]) == 0
    assert list(pd.read_csv("m/scores.csv")["id"][:2]) == ["cell0", "cell1"]


# -- the folder -----------------------------------------------------------------------------------------


def test_a_model_is_replaced_only_when_asked(X, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "-q"]) == 0
    before = (folder / "m" / "model.json").read_bytes()
    assert main(["pca", "x.npy", "-k", "3", "-o", "m", "-q"]) == 2
    assert (folder / "m" / "model.json").read_bytes() == before
    assert main(["pca", "x.npy", "-k", "3", "-o", "m", "-q", "--overwrite", "--format", "npz"]) == 0
    assert sorted(os.listdir("m")) == ["model.json", "model.npz"]
    with zipfile.ZipFile("m/model.npz") as archive:
        assert archive.testzip() is None
    assert sorted(os.listdir()) == ["m", "x.npy"]


def test_a_run_that_fails_leaves_nothing_and_a_model_that_was_there_as_it_was(X, folder):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "-q"]) == 0
    bad = X.copy()
    bad[200, 3] = np.nan
    np.save("bad.npy", bad)
    before = (folder / "m" / "model.json").read_bytes()
    assert main(["pca", "bad.npy", "-k", "2", "-o", "m", "--overwrite", "-q"]) == 2
    assert main(["pca", "bad.npy", "-k", "2", "-o", "other", "-q"]) == 2
    assert (folder / "m" / "model.json").read_bytes() == before
    assert sorted(os.listdir()) == ["bad.npy", "m", "x.npy"]


def test_a_run_without_a_certificate_writes_its_best_and_ends_with_code_1(folder, capsys):
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.standard_normal((200, 40)) * np.r_[3.0, np.ones(39)])
    # The cut goes through variances that are all but equal.
    assert main(["pca", "x.npy", "-k", "2", "--tol", "1e-14", "-o", "m"]) == 1
    said = json.loads((folder / "m" / "model.json").read_text())
    assert not said["converged"]
    assert said["status"] in capsys.readouterr().out
    assert np.load(folder / "m" / "components.npy").shape == (2, 40)


# -- what is printed ------------------------------------------------------------------------------------


def test_json_is_all_that_is_on_stdout_and_equals_the_file(X, folder, capsys):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "2", "-o", "m", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((folder / "m" / "model.json").read_text())
    assert err == ""


def test_quiet_is_one_line_and_otherwise_variances_and_files_are_told(X, oracle, folder, capsys):
    np.save("x.npy", X)
    assert main(["pca", "x.npy", "-k", "3", "-o", "m", "-q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["pca", "x.npy", "-k", "3", "-o", "n"]) == 0
    out, err = capsys.readouterr()
    assert f"{oracle.explained_variance_[1]:.6g}" in out
    assert "scores.npy" in out
    assert "Certified" in out
    assert err == ""


def test_progress_is_shown_on_a_terminal_and_an_interrupt_leaves_no_half_of_a_model(folder):
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.standard_normal((20_000, 300)))  # no gap: it would go on for long
    slow = ["--solver", "oja", "--tol", "1e-12", "--workers", "2", "--backend", "threads"]
    terminal = Terminal("pca", "x.npy", "-k", "5", *slow, "-o", "m", stdout_too=False)
    assert "solving" in terminal.read(until="solving")
    os.kill(terminal.process.pid, signal.SIGINT)
    text = terminal.read()
    assert terminal.close() == 130
    assert "interrupted" in text
    assert "Traceback" not in text
    assert sorted(os.listdir()) == ["m.checkpoint", "x.npy"]
