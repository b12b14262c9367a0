"""`grassia project` and `grassia check`: scores of new rows, and models judged by data alone."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA

from grassia.cli import main

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(1)
    mixing = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    return (rng.standard_normal((200, 5)) * [5.0, 3.0, 1.0, 0.7, 0.5]) @ mixing + 3.0


@pytest.fixture
def folder(tmp_path, monkeypatch, X):
    """A folder with rows and their model of two components."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(X, columns=NAMES).to_csv("t.csv", index=False)
    np.save("x.npy", X)
    assert main(["pca", "t.csv", "-k", "2", "-o", "m", "-q", "--seed", "0"]) == 0
    return tmp_path


@pytest.fixture
def expected(folder, X):
    components, mean = np.load("m/components.npy"), X.mean(axis=0)
    return lambda rows: (rows - mean) @ components.T


def printed(capsys) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


# -- project --------------------------------------------------------------------------------------------


def test_scores_of_the_rows_are_those_of_scikit_learn_up_to_signs(X, folder, capsys):
    assert main(["project", "m", "t.csv"]) == 0
    found = printed(capsys)[["PC1", "PC2"]].to_numpy()
    oracle = PCA(2, svd_solver="full").fit_transform(X)
    np.testing.assert_allclose(np.abs(found), np.abs(oracle), atol=1e-5)
    np.testing.assert_allclose(found, np.load("m/scores.npy"), atol=1e-12)


def test_one_sample_on_the_command_line_is_projected(X, folder, expected, capsys):
    assert main(["project", "m", ",".join(map(repr, X[7].tolist()))]) == 0
    np.testing.assert_allclose(printed(capsys).to_numpy(), expected(X[7:8]), atol=1e-12)


def test_a_sample_may_begin_with_a_minus_sign(X, folder, expected, capsys):
    negative = -np.abs(X[7])
    assert main(["project", "m", ",".join(map(repr, negative.tolist()))]) == 0
    np.testing.assert_allclose(printed(capsys).to_numpy(), expected(negative[None, :]), atol=1e-12)


@pytest.mark.parametrize("header", [True, False])
def test_rows_on_stdin_are_projected(header, X, folder, expected, capsys, monkeypatch):
    lines = pd.DataFrame(X[:9], columns=NAMES).to_csv(index=False, header=header)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert main(["project", "m", "-", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(said["scores"], expected(X[:9]), atol=1e-12)
    assert said["components"] == ["PC1", "PC2"]


def test_columns_of_rows_on_stdin_are_found_by_name(X, folder, expected, capsys, monkeypatch):
    frame = pd.DataFrame(X[:9], columns=NAMES)[["e", "c", "a", "d", "b"]]
    frame.insert(2, "who", [f"w, {i}" for i in range(9)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(frame.to_csv(index=False)))
    assert main(["project", "m", "-", "--json"]) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["scores"], expected(X[:9]), atol=1e-12)
    monkeypatch.setattr(sys, "stdin", io.StringIO(frame.drop(columns="d").to_csv(index=False)))
    assert main(["project", "m", "-"]) == 2
    assert "'d' is not among e, c, who, a, b" in capsys.readouterr().err


def test_columns_of_a_table_are_found_by_name_whatever_their_order(X, folder, expected, capsys):
    frame = pd.DataFrame(X[:20], columns=NAMES)[["e", "c", "a", "d", "b"]]
    frame.insert(0, "who", [f"w{i}" for i in range(20)])
    frame.to_csv("new.csv", index=False)
    frame.to_parquet("new.parquet")
    for name in ("new.csv", "new.parquet"):
        assert main(["project", "m", name, "--id", "who"]) == 0
        found = printed(capsys)
        np.testing.assert_allclose(found[["PC1", "PC2"]], expected(X[:20]), atol=1e-9)
        assert list(found["id"]) == list(frame["who"])
        assert main(["project", "m", name]) == 0
        np.testing.assert_allclose(printed(capsys)[["PC1", "PC2"]], expected(X[:20]), atol=1e-9)


def test_a_table_with_names_of_rows_fits_a_model_of_nameless_columns(X, folder, expected, capsys):
    assert main(["pca", "x.npy", "-k", "2", "-o", "n", "-q"]) == 0
    frame = pd.DataFrame(X[:5], columns=NAMES)
    frame.insert(0, "who", list("vwxyz"))
    frame.to_csv("new.csv", index=False)
    capsys.readouterr()
    assert main(["project", "n", "new.csv", "--id", "who"]) == 0
    found = printed(capsys)
    assert list(found["id"]) == list("vwxyz")
    np.testing.assert_allclose(found[["PC1", "PC2"]], expected(X[:5]), atol=1e-9)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "npy", "parquet"])
def test_scores_are_written_in_the_format_that_the_name_tells(suffix, X, folder, expected):
    assert main(["project", "m", "x.npy", "-o", f"s.{suffix}"]) == 0
    if suffix == "npy":
        found = np.load("s.npy")
    elif suffix == "parquet":
        found = pd.read_parquet("s.parquet")[["PC1", "PC2"]].to_numpy()
    else:
        found = pd.read_csv(f"s.{suffix}", sep="," if suffix == "csv" else "\t")[["PC1", "PC2"]].to_numpy()
    np.testing.assert_allclose(found, expected(X), atol=1e-9)
    assert main(["project", "m", "x.npy", "-o", f"s.{suffix}"]) == 2
    assert main(["project", "m", "1,2,3,4,5", "-o", f"s.{suffix}", "--overwrite"]) == 0


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_models_of_every_format_are_read(form, X, folder, expected, capsys):
    assert main(["pca", "t.csv", "-k", "2", "-o", form, "--format", form, "--seed", "0", "-q"]) == 0
    capsys.readouterr()
    assert main(["project", form, "x.npy"]) == 0
    np.testing.assert_allclose(printed(capsys)[["PC1", "PC2"]], expected(X), atol=1e-9)
    assert main(["check", form, "t.csv", "-q"]) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere", "x.npy"], "model.json"),
        (["m", "1,2,3"], "5 features"),
        (["m", "1,2,nan,4,5"], "finite"),
        (["m", "1", "2", "3", "4", "5"], "one argument, with commas: 1,2,3,4,5"),
        (["m", "-1", "2"], "with commas: -1,2"),
        (["m", "1,2,x,4,5"], "'x' in 1,2,x,4,5 is none"),
        (["m", "1,2,3,4,5", "-o", "away/s.csv"], "away does not exist"),
        (["m", "x.npy", "-o", "x.npy/s.csv"], "x.npy is a file"),
        (["m", "thin.csv"], "'e'"),
        (["m", "thin.npy"], "4"),
        (["m", "nothing.csv"], "nothing.csv"),
        (["m", "x.npy", "-o", "s.xls"], ".parquet"),
        (["m", "x.npy", "-o", "m"], ".npy"),
        (["m", "x.npy", "-o", "s.csv", "--json"], "--json"),
        (["m", "hole.csv"], "row 1 of hole.csv holds NaN or inf in column 'b'"),
        (["m", "hole.csv", "--json"], "row 1 of hole.csv holds NaN or inf in column 'b'"),
        (["m", "hole.csv", "-o", "s.npy"], "row 1 of hole.csv holds NaN or inf in column 'b'"),
        (["broken", "x.npy"], "damaged"),
        (["strange", "x.npy"], "damaged"),
    ],
)
def test_what_cannot_be_projected_is_one_line_and_code_2(arguments, named, X, folder, capsys):
    pd.DataFrame(X[:, :4], columns=NAMES[:4]).to_csv("thin.csv", index=False)
    np.save("thin.npy", X[:, :4])
    Path("hole.csv").write_text("a,b,c,d,e\n1,2,3,4,5\n1,,3,4,5\n")
    for name, text in (("broken", "{"), ("strange", '{"format": "grassia-model"}')):
        Path(name).mkdir()
        Path(name, "model.json").write_text(text)
    assert main(["project", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert named in lines[0]
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_columns_of_the_same_name_are_taken_as_they_are(X, folder, capsys):
    pd.DataFrame(X, columns=["a", "b", "a", "c", "c"]).to_csv("twice.csv", index=False)
    assert main(["pca", "twice.csv", "-k", "2", "-o", "twice", "-q"]) == 0
    capsys.readouterr()
    assert main(["check", "twice", "twice.csv"]) == 0
    capsys.readouterr()
    assert main(["project", "twice", "twice.csv"]) == 0
    np.testing.assert_allclose(
        printed(capsys)[["PC1", "PC2"]].to_numpy(), np.load("twice/scores.npy"), atol=1e-12
    )


# -- check ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_true_model_holds_however_the_rows_are_dealt(workers, folder, capsys):
    assert main(["check", "m", "t.csv", "--workers", workers, "--backend", "threads"]) == 0
    assert "HOLDS" in capsys.readouterr().out


def test_check_does_not_trust_what_the_model_says_of_itself(X, folder, capsys):
    """Another subspace, with a manifest that claims it to be certified."""
    wrong = np.linalg.qr(np.load("m/components.npy").T + 0.01 * np.eye(5)[:, :2])[0].T
    np.save("m/components.npy", wrong)
    assert main(["check", "m", "x.npy", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    truth = PCA(2, svd_solver="full").fit(X).components_
    cosines = np.linalg.svd(wrong @ truth.T, compute_uv=False)
    sine = np.sqrt(1.0 - cosines[-1] ** 2)
    assert said["sine"] >= sine > 1e-6
    assert not said["holds"]


def test_the_second_best_space_is_told_from_the_best(X, folder, capsys):
    exact = PCA(5, svd_solver="full").fit(X)
    np.save("m/components.npy", exact.components_[[0, 2]])
    np.save("m/eigenvalues.npy", exact.explained_variance_[[0, 2]] * 199 / 200)
    assert main(["check", "m", "x.npy"]) == 1
    assert "not the leading subspace" in capsys.readouterr().out


@pytest.mark.parametrize("broken", ["eigenvalues", "mean", "order", "length"])
def test_stored_numbers_that_do_not_agree_with_the_data_are_found(broken, folder, capsys):
    name = "components" if broken in ("order", "length") else broken
    stored = np.load(f"m/{name}.npy")
    if broken == "order":
        stored = stored[::-1]
    elif broken == "length":
        stored = stored * [[1.0], [1.001]]
    else:
        stored[1] *= 1.0 + 1e-5
    np.save(f"m/{name}.npy", stored)
    assert main(["check", "m", "x.npy", "-q"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("DOES NOT HOLD")
    word = {"order": "eigenvalue 1", "length": "orthonormal", "eigenvalues": "eigenvalue 2", "mean": "mean"}
    assert word[broken] in said


def test_other_rows_do_not_bear_a_model_out(X, folder):
    rng = np.random.default_rng(5)
    np.save("other.npy", X[:, [4, 3, 2, 1, 0]] + rng.standard_normal(X.shape))
    assert main(["check", "m", "other.npy", "-q"]) == 1


def test_a_model_holds_to_the_tolerance_asked_and_not_to_one_beyond_rounding(folder, capsys):
    assert main(["check", "m", "x.npy", "--tol", "1e-10", "-q"]) == 0
    assert main(["check", "m", "x.npy", "--tol", "1e-17", "-q"]) == 1
    assert "times the 1e-17 asked" in capsys.readouterr().out


def test_a_model_about_zero_is_checked_about_zero(folder, capsys):
    assert main(["pca", "x.npy", "-k", "2", "--no-center", "-o", "zero", "-q"]) == 0
    assert main(["check", "zero", "x.npy", "-q"]) == 0
    assert main(["project", "zero", "0,0,0,0,0"]) == 0
    assert "0.0,0.0" in capsys.readouterr().out


def test_a_model_is_checked_with_the_columns_it_was_made_of(X, folder):
    frame = pd.DataFrame(X, columns=NAMES)
    frame["label"] = "x"
    frame.to_csv("labelled.csv", index=False)
    assert main(["pca", "labelled.csv", "-k", "2", "--label", "label", "-o", "n", "-q"]) == 0
    assert main(["check", "n", "labelled.csv", "-q"]) == 0


def test_columns_in_another_order_are_checked_by_name(X, folder):
    frame = pd.DataFrame(X, columns=NAMES)[NAMES[::-1]]
    frame.insert(2, "remark", "none")
    frame.to_csv("turned.csv", index=False)
    assert main(["check", "m", "turned.csv", "-q"]) == 0
    frame.rename(columns={"a": "b", "b": "a"}).to_csv("swapped.csv", index=False)
    assert main(["check", "m", "swapped.csv", "-q"]) == 1


def test_files_of_the_same_format_are_read_as_those_of_the_model(X, folder, expected, capsys):
    np.savez("x.npz", rows=X, other=X[:3])
    assert main(["pca", "x.npz", "-k", "2", "--dataset", "rows", "-o", "n", "-q"]) == 0
    assert main(["check", "n", "x.npz", "-q"]) == 0
    capsys.readouterr()
    assert main(["project", "n", "x.npz"]) == 0
    np.testing.assert_allclose(printed(capsys)[["PC1", "PC2"]], expected(X), atol=1e-9)
    assert main(["project", "n", "x.npy", "-o", "s.npy"]) == 0  # another format has other options


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere", "x.npy"], "model.json"),
        (["m", "thin.npy"], "5 features"),
        (["m", "nothing.npy"], "nothing.npy"),
        (["m", "thin.csv"], "'e'"),
        (["m", "turned.csv", "--columns", "e,d,c,b,a"], "order"),
        (["m", "x.npy", "--tol", "0"], "--tol"),
        (["m", "x.npy", "--sweeps", "0"], "--sweeps"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_code_2(arguments, named, X, folder, capsys):
    np.save("thin.npy", X[:, :4])
    pd.DataFrame(X[:, :4], columns=NAMES[:4]).to_csv("thin.csv", index=False)
    pd.DataFrame(X, columns=NAMES)[NAMES[::-1]].to_csv("turned.csv", index=False)
    assert main(["check", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert named in lines[0]
