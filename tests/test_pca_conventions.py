"""The estimators keep scikit-learn's contract, take every source of rows, weights, gaps and interruptions."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import PCA as Reference
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import grassia
from estimator_data import TABLES, entry_by_entry, relative, term_counts
from grassia import backends

FITTED = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_")


@parametrize_with_checks(
    [grassia.PCA(), grassia.TruncatedSVD(), grassia.PCA(n_components=1, solver="krylov")]
)
def test_scikit_learn_is_content(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


# -- scikit-learn's tools ---------------------------------------------------------------------------------


def test_it_works_in_a_pipeline_and_a_grid_search():
    X, y = TABLES["iris"], np.repeat([0, 1, 2], 50)
    pipeline = make_pipeline(StandardScaler(), grassia.PCA(random_state=0), LogisticRegression())
    search = GridSearchCV(pipeline, {"pca__n_components": [1, 2, 0.99], "pca__whiten": [False, True]}, cv=3)
    assert search.fit(X, y).best_score_ > 0.9


def test_a_grid_search_by_likelihood_chooses_as_with_scikit_learn():
    X = TABLES["digits"][:300, 10:40]
    grid = {"n_components": [2, 5, 10]}
    ours = GridSearchCV(grassia.PCA(), grid, cv=3).fit(X)
    theirs = GridSearchCV(Reference(svd_solver="full"), grid, cv=3).fit(X)
    assert ours.best_params_ == theirs.best_params_
    assert relative(theirs.cv_results_["mean_test_score"], ours.cv_results_["mean_test_score"]) < 1e-8


def test_a_clone_has_the_parameters_and_none_of_the_fit():
    pca = grassia.PCA(3, tol=1e-4, solver=grassia.solvers.Krylov(), callbacks=[print]).fit(TABLES["iris"])
    copy = clone(pca)
    assert copy.get_params() == pca.get_params()
    assert not hasattr(copy, "components_")


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_pickle_transforms_alike(kind, streamed):
    X = TABLES["iris"]
    estimator = kind(2)
    fitted = estimator.partial_fit(X) if streamed else estimator.fit(X)
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.transform(X), fitted.transform(X))
    assert np.array_equal(copy.partial_fit(X).components_, fitted.partial_fit(X).components_)


def test_tables_keep_their_names():
    names = ["sepal length", "sepal width", "petal length", "petal width"]
    table = pd.DataFrame(TABLES["iris"], columns=names, index=np.arange(150) + 7)
    pca = grassia.PCA(2).set_output(transform="pandas").fit(table)
    assert list(pca.feature_names_in_) == names
    out = pca.transform(table)
    assert list(out.columns) == list(pca.get_feature_names_out()) == ["pca0", "pca1"]
    assert list(out.index) == list(table.index)
    with pytest.raises(ValueError, match="feature names"):
        pca.transform(table[names[::-1]])
    frame = pl.DataFrame(TABLES["iris"], schema=names)
    assert grassia.PCA(2).set_output(transform="polars").fit_transform(frame).columns == ["pca0", "pca1"]


def test_the_data_are_not_written_to():
    X = TABLES["iris"].copy()
    X.setflags(write=False)
    gaps = np.where(X > 6.0, np.nan, X)
    before = gaps.copy()
    grassia.PCA(2).fit_transform(X, sample_weight=np.ones(len(X)))
    grassia.PCA(2, missing="mean").fit_transform(gaps)
    assert np.array_equal(gaps, before, equal_nan=True)


def test_the_same_seed_gives_the_same_bits():
    X = term_counts()
    one, two = (grassia.PCA(4, random_state=3).fit(X) for _ in range(2))
    assert np.array_equal(one.components_, two.components_)
    for state in (np.random.RandomState(3), np.random.default_rng(3)):
        assert grassia.PCA(4, random_state=state).fit(X).converged_


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "float16", "longdouble"])
def test_numbers_of_any_kind_are_taken(dtype):
    X = TABLES["digits"][:200].astype(dtype)
    expected = Reference(4, svd_solver="full").fit(X.astype(np.float64))
    found = grassia.PCA(4).fit(X)
    assert found.components_.dtype == np.float64
    assert relative(expected.components_, found.components_) < 1e-8
    assert relative(expected.transform(X.astype(np.float64)), found.transform(X)) < 1e-8


# -- sources ----------------------------------------------------------------------------------------------


def shards(folder):
    X = TABLES["digits"]
    for i, part in enumerate(np.array_split(X, 3)):
        np.save(folder / f"part{i}.npy", part)
    np.save(folder / "all.npy", X)
    return {
        "path": folder / "all.npy",
        "pattern": str(folder / "part*.npy"),
        "paths": [str(folder / f"part{i}.npy") for i in range(3)],
        "memory map": np.load(folder / "all.npy", mmap_mode="r"),
        "shards": np.array_split(X, 4),
        "sparse shards": [sp.csr_array(part) for part in np.array_split(X, 4)],
        "callables": [functools.partial(np.load, folder / f"part{i}.npy") for i in range(3)],
        "components": grassia.from_rows(X, 5),
        "components that are not centred": grassia.from_rows(X, 5, center=False),
    }


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
def test_every_source_gives_what_the_array_gives(tmp_path, kind):
    X = TABLES["digits"]
    expected = kind(5).fit(X)
    for name, source in shards(tmp_path).items():
        found = kind(5).fit(source)
        assert found.converged_, name
        assert (found.n_samples_, found.n_features_in_) == X.shape, name
        assert relative(expected.components_, found.components_) < 1e-8, name
        assert relative(expected.transform(X), found.transform(source)) < 1e-8, name
        assert relative(expected.transform(X), kind(5).fit_transform(source)) < 1e-8, name
        if kind is grassia.PCA:
            assert found.score(source) == pytest.approx(expected.score(X), rel=1e-8), name
        streamed = kind(5).partial_fit(source)
        assert streamed.n_samples_seen_ == len(X), name
        assert relative(expected.components_, streamed.components_) < 1e-8, name


def test_a_file_of_single_precision_gives_single_precision(tmp_path):
    X = TABLES["digits"].astype(np.float32)
    np.save(tmp_path / "rows.npy", X)
    pca = grassia.PCA(3).fit(tmp_path / "rows.npy")
    assert pca.components_.dtype == pca.transform(tmp_path / "rows.npy").dtype == np.float32


def test_the_names_of_a_file_are_kept_and_compared(tmp_path):
    table = pd.DataFrame(TABLES["iris"], columns=["a", "b", "c", "d"])
    table.to_csv(tmp_path / "iris.csv", index=False)
    table[["b", "a", "c", "d"]].to_csv(tmp_path / "other.csv", index=False)
    pca = grassia.PCA(2).fit(tmp_path / "iris.csv")
    assert list(pca.feature_names_in_) == ["a", "b", "c", "d"]
    assert relative(pca.transform(table), pca.transform(tmp_path / "iris.csv")) < 1e-12
    with pytest.raises(grassia.InvalidInput, match="feature names should match"):
        pca.transform(tmp_path / "other.csv")


def test_a_source_of_another_width_is_refused(tmp_path):
    np.save(tmp_path / "rows.npy", TABLES["iris"][:, :3])
    pca = grassia.PCA(2).fit(TABLES["iris"])
    for use in (pca.transform, pca.score_samples, pca.partial_fit):
        with pytest.raises(grassia.InvalidInput, match="X has 3 features, but PCA is expecting 4"):
            use(tmp_path / "rows.npy")


def test_components_that_are_no_rows_are_refused():
    components = grassia.data.as_components([np.eye(3), np.ones((3, 3))])
    with pytest.raises(grassia.InvalidInput, match=r"grassia\.eigenspace"):
        grassia.PCA(2).fit(components)


@pytest.mark.parametrize("backend", ["threads", "processes", "simulated"])
def test_every_back_end_gives_the_same(backend):
    X = TABLES["digits"]
    expected = grassia.PCA(4).fit(X)
    found = grassia.PCA(4, backend=backend, n_workers=2, solver="nystrom", random_state=0).fit(X)
    assert found.result_.stats["components"] == 2
    assert found.converged_
    assert relative(expected.components_, found.components_) < 1e-6


def test_a_back_end_may_be_made_by_a_function_and_cloned():
    pca = grassia.PCA(2, backend=functools.partial(backends.Threads, 2), n_shards=2)
    copy = clone(pca).fit(TABLES["iris"])
    assert copy.converged_
    assert copy.result_.stats["backend"] == "threads"


# -- weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("solver", ["auto", "krylov", "covariance"])
def test_whole_weights_are_repeated_rows(kind, form, solver):
    X = TABLES["digits"][:300]
    w = np.random.default_rng(0).integers(0, 4, len(X))
    expected = kind(4).fit(np.repeat(X, w, axis=0))
    found = kind(4, solver=solver, n_shards=3, random_state=0).fit(form(X), sample_weight=w)
    assert found.n_samples_ == expected.n_samples_ == w.sum()
    for name in FITTED:
        if hasattr(expected, name):
            assert relative(getattr(expected, name), getattr(found, name)) < 1e-8, name
    if kind is grassia.PCA:
        assert entry_by_entry(expected.noise_variance_, found.noise_variance_) < 1e-8


def test_whole_weights_are_repeated_rows_where_rows_are_few():
    X = np.random.default_rng(1).standard_normal((5, 12))
    w = np.array([1, 3, 0, 2, 4])
    expected, found = grassia.PCA().fit(np.repeat(X, w, axis=0)), grassia.PCA().fit(X, sample_weight=w)
    assert found.components_.shape == expected.components_.shape
    assert relative(expected.components_, found.components_) < 1e-8
    assert relative(expected.explained_variance_, found.explained_variance_) < 1e-8


def test_a_shard_whose_rows_have_no_weight_is_left_out():
    X = TABLES["iris"]
    w = np.repeat([0.0, 1.0, 1.0], 50)
    expected, found = grassia.PCA(2).fit(X[50:]), grassia.PCA(2, n_shards=3).fit(X, sample_weight=w)
    assert found.result_.stats["components"] == 2
    assert relative(expected.components_, found.components_) < 1e-8


def test_any_weights_give_the_weighted_covariance():
    X = TABLES["iris"]
    w = np.random.default_rng(2).uniform(0.1, 3.0, len(X))
    pca = grassia.PCA(2).fit(X, sample_weight=w)
    mean = np.average(X, axis=0, weights=w)
    cov = (X - mean).T @ (w[:, None] * (X - mean)) / (w.sum() - 1.0)
    values, vectors = np.linalg.eigh(cov)
    assert relative(mean, pca.mean_) < 1e-12
    assert entry_by_entry(values[::-1][:2], pca.explained_variance_) < 1e-10
    assert np.allclose(abs(pca.components_ @ vectors[:, ::-1][:, :2]), np.eye(2), atol=1e-10)
    assert pca.explained_variance_ratio_ == pytest.approx(values[::-1][:2] / values.sum(), rel=1e-10)


@pytest.mark.parametrize(
    "weights", [np.ones(3), -np.ones(150), np.full(150, np.nan), np.zeros(150), ["a"] * 150]
)
def test_wrong_weights_are_refused(weights):
    with pytest.raises(grassia.InvalidInput, match="`sample_weight` must"):
        grassia.PCA(2).fit(TABLES["iris"], sample_weight=weights)


def test_weights_that_sum_to_one_leave_no_degree_of_freedom():
    with pytest.raises(grassia.InvalidInput, match="Scale it to the number of rows"):
        grassia.PCA(2).fit(TABLES["iris"], sample_weight=np.full(150, 1 / 150))


# -- missing values ---------------------------------------------------------------------------------------


def gaps(share: float = 0.05) -> np.ndarray:
    X = TABLES["breast cancer"].copy()
    X[np.random.default_rng(3).random(X.shape) < share] = np.nan
    return X


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, pd.DataFrame, np.ma.masked_invalid])
def test_missing_values_take_the_mean_of_their_column(kind, form):
    X = gaps()
    full = SimpleImputer().fit_transform(X)
    expected, found = kind(3).fit(full), kind(3, missing="mean", n_shards=2).fit(form(X))
    for name in FITTED:
        if hasattr(expected, name):
            assert relative(getattr(expected, name), getattr(found, name)) < 1e-8, name
    assert relative(expected.transform(full), found.transform(form(X))) < 1e-8


def test_missing_values_of_shards_take_the_mean_over_all_of_them(tmp_path):
    X = gaps()
    expected = grassia.PCA(3).fit(SimpleImputer().fit_transform(X))
    np.save(tmp_path / "rows.npy", X)
    for source in (np.array_split(X, 3), tmp_path / "rows.npy"):
        found = grassia.PCA(3, missing="mean").fit(source)
        assert relative(expected.components_, found.components_) < 1e-8
        assert relative(expected.transform(SimpleImputer().fit_transform(X)), found.transform(source)) < 1e-8


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, np.ma.masked_invalid])
def test_missing_values_are_an_error_by_default_and_the_remedy_is_named(form):
    with pytest.raises(grassia.InvalidInput, match="missing='mean'"):
        grassia.PCA(3).fit(form(gaps()))


def test_a_column_with_nothing_in_it_is_named():
    X = gaps()
    X[:, 4] = np.nan
    with pytest.raises(grassia.InvalidInput, match="column 4 has none"):
        grassia.PCA(3, missing="mean").fit(X)


# -- runs -------------------------------------------------------------------------------------------------


def slow_problem() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((600, 400))


def assert_best_so_far(pca, X):
    """The variances are those of the directions it gives, whatever these are."""
    assert not pca.converged_
    assert pca.result_.status is grassia.Status.INTERRUPTED
    D = X - X.mean(axis=0)
    assert np.allclose(pca.components_ @ pca.components_.T, np.eye(pca.n_components_), atol=1e-10)
    variances = np.sum((D @ pca.components_.T) ** 2, axis=0) / (len(X) - 1)
    assert entry_by_entry(variances, pca.explained_variance_) < 1e-8
    assert pca.explained_variance_ratio_ == pytest.approx(variances / (np.sum(D**2) / (len(X) - 1)), rel=1e-8)


@pytest.mark.parametrize(
    ("solver", "passes", "what"),
    [
        ("auto", 1.2, "random start"),
        ("krylov", 1.8, "random start"),
        ("covariance", 1.8, "random start"),
        ("krylov", 6.0, "best so far"),
        ("nystrom", 5.0, "best so far"),
    ],
)
def test_a_callback_that_returns_true_ends_the_fit_with_what_there_is(solver, passes, what):
    """The first pass checks the data; before the end of the second a synchronous method knows nothing yet."""
    X = slow_problem()
    with pytest.warns(ConvergenceWarning, match=what):
        pca = grassia.PCA(
            8, solver=solver, callbacks=lambda progress: progress.passes >= passes, n_shards=5, random_state=0
        ).fit(X)
    assert_best_so_far(pca, X)


def test_ctrl_c_gives_the_best_so_far():
    X = slow_problem()
    begun = threading.Event()

    def press():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    solver = grassia.solvers.Oja()  # it would go on for minutes
    with pytest.warns(ConvergenceWarning, match="best so far"):
        pca = grassia.PCA(
            8, solver=solver, callbacks=lambda progress: progress.version > 5 and begun.set()
        ).fit(X)
    assert_best_so_far(pca, X)


def test_too_few_passes_are_said_and_a_warm_start_goes_on():
    X = slow_problem()
    pca = grassia.PCA(4, solver="krylov", max_iter=4, warm_start=True, random_state=0)
    with pytest.warns(ConvergenceWarning, match="MAX_PASSES.*`max_iter`"):
        pca.fit(X)
    assert not pca.converged_
    first = pca.explained_variance_.sum()
    pca.set_params(max_iter=1000).fit(X)
    assert pca.converged_
    assert pca.explained_variance_.sum() > first


def test_a_warm_start_takes_fewer_passes():
    X = term_counts(500, 600)
    pca = grassia.PCA(4, solver="nystrom", warm_start=True, random_state=0).fit(X)
    cold = pca.n_iter_
    assert pca.fit(X[:480]).n_iter_ < cold
    assert pca.converged_


def test_a_warm_start_at_the_answer_is_certified_in_a_few_sweeps():
    X = term_counts(800, 600)
    pca = grassia.PCA(30, solver="krylov", warm_start=True, random_state=0).fit(X)
    cold = pca.n_iter_
    assert pca.fit(X).converged_
    assert pca.n_iter_ < cold
    assert pca.certificate_.sweeps <= 5


def test_a_warm_start_may_change_the_number_of_components():
    X = term_counts(300, 350)
    pca = grassia.PCA(4, solver="krylov", warm_start=True, random_state=0).fit(X)
    for k in (7, 2):
        pca.set_params(n_components=k).fit(X)
        assert pca.converged_
        assert relative(grassia.PCA(k, solver="covariance").fit(X).components_, pca.components_) < 1e-7


def test_few_features_are_certified_rigorously():
    for table, k in (("iris", 2), ("digits", 10), ("breast cancer", 10)):
        assert grassia.PCA(k).fit(TABLES[table]).certificate_.sin_theta.rigorous


def test_what_the_run_did_is_there_to_see():
    pca = grassia.PCA(3, solver="krylov", random_state=0).fit(term_counts())
    assert pca.certificate_.sin_theta.value <= 1e-8
    assert pca.certificate_.total == pytest.approx(pca.result_.certificate.total)
    assert len(pca.history_) > 0
    assert pca.n_iter_ == np.ceil(pca.result_.stats["passes"])
    assert "solver_reason" in pca.result_.stats


def test_a_fit_that_is_stopped_before_anything_was_computed_says_so():
    X = np.random.default_rng(0).standard_normal((400, 20))
    with pytest.warns(ConvergenceWarning, match="random start, and of no use"):
        grassia.PCA(3, callbacks=lambda progress: True, random_state=0).fit(X)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (["bob"] * 30, "object|str"),
        (pd.Categorical(["a", "b"] * 15), "category"),
        (pd.date_range("2020-01-01", periods=30), "datetime64"),
    ],
)
def test_a_column_of_a_table_that_is_not_of_numbers_is_named(column, kind):
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((30, 3)), columns=list("abc"))
    with pytest.raises(grassia.InvalidInput, match=rf"column 'odd' is .*({kind})"):
        grassia.PCA(2).fit(table.assign(odd=column))


def test_one_file_is_cut_for_the_workers_there_are(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 6)) * np.arange(1.0, 7.0)
    np.save(tmp_path / "x.npy", X)
    pca = grassia.PCA(2, backend="threads", n_workers=3).fit(tmp_path / "x.npy")
    assert pca.result_.stats["components"] == 3
    whole = grassia.PCA(2, backend="threads", n_workers=3, n_shards=1).fit(tmp_path / "x.npy")
    assert whole.result_.stats["components"] == 1
    np.testing.assert_allclose(pca.explained_variance_, whole.explained_variance_, rtol=1e-10)


@pytest.mark.parametrize("kind", [grassia.PCA, grassia.TruncatedSVD])
@pytest.mark.parametrize("fit", ["fit", "partial_fit"])
@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e-62, 1e86, 1e160])
@pytest.mark.parametrize("shape", [(100, 6), (10, 60)], ids=str)
def test_rows_whose_squares_leave_double_precision_are_refused(kind, fit, scale, shape):
    X = np.random.default_rng(0).standard_normal(shape) * scale
    for rows in (X, sp.csr_array(X)):
        with pytest.raises(grassia.GrassiaError, match="cale the data"):
            getattr(kind(3), fit)(rows)


@pytest.mark.parametrize("fit", ["fit", "partial_fit"])
@pytest.mark.parametrize("scale", [1e-55, 1e55])
def test_rows_of_a_size_within_those_limits_are_not(fit, scale):
    X = TABLES["iris"]
    found = getattr(grassia.PCA(2), fit)(X * scale)
    expected = getattr(grassia.PCA(2), fit)(X)
    assert relative(expected.components_, found.components_) < 1e-10
    assert relative(expected.explained_variance_ratio_, found.explained_variance_ratio_) < 1e-10


@pytest.mark.parametrize("solver", ["auto", "krylov", "covariance", "stream"])
@pytest.mark.parametrize("shape", [(400, 310), (1001, 7), (7, 310)], ids=str)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_rows_that_are_all_equal_have_no_variance_whatever_the_solver(solver, shape, form, value):
    X = form(np.full(shape, value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if solver == "stream":
            pca = grassia.PCA(2).partial_fit(X[:3]).partial_fit(X[3:])
        else:
            pca = grassia.PCA(2, solver=solver).fit(X)
        assert pca.converged_
    assert np.array_equal(pca.explained_variance_, [0.0, 0.0])
    assert np.isnan(pca.explained_variance_ratio_).all()
    assert np.allclose(pca.components_ @ pca.components_.T, np.eye(2))
    assert pca.noise_variance_ == 0.0


def test_rows_that_differ_by_next_to_nothing_still_differ():
    X = np.full((500, 350), 1.0)
    X[:, 3] += 1e-13 * np.random.default_rng(0).standard_normal(500)
    with pytest.warns(ConvergenceWarning, match="PRECISION"):
        found = grassia.PCA(1, solver="krylov").fit(X)
    assert abs(found.components_[0, 3]) > 1.0 - 1e-6
    assert found.explained_variance_[0] == pytest.approx(X[:, 3].var(ddof=1), rel=1e-2)
