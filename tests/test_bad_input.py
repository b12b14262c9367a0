"""Bad input is refused at once, by its rule, value and component, on every engine."""

from __future__ import annotations

import math
import re
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import grassia
from grassia import GrassiaError, InvalidComponent, InvalidInput, MissingExtra
from grassia.data import NpyRowsLoader, OperatorLoader
from grassia.geometry import projection_distance

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]

I3 = np.eye(3)
ROWS = np.random.default_rng(0).standard_normal((8, 3))


def with_entry(array, value, at=(1, 2)):
    changed = np.array(array, dtype=float)
    changed[at] = value
    return changed


def symmetric_with(value):
    changed = with_entry(I3, value, (1, 2))
    changed[2, 1] = value
    return changed


class Watch:
    """A callback that remembers how far the run came."""

    def __init__(self):
        self.version, self.phases = 0, set()

    def __call__(self, progress):
        self.version = max(self.version, progress.version)
        self.phases.add(progress.phase)


def refused(engine, make, k=1, error=InvalidInput, **options):
    """The text with which a run is refused, before any update of the iterate."""
    watch = Watch()
    options.setdefault("rng", 0)
    with pytest.raises(error) as caught:
        grassia.eigenspace(make(), k, backend=engine(1), callbacks=watch, **options)
    assert isinstance(caught.value, ValueError)
    assert watch.version == 0
    assert watch.phases <= {"opening"}
    return str(caught.value)


# ------------------------------------------------------ seen at once, before a worker is started

CHEAP = {
    "a matrix that is not square": (
        lambda: [I3, np.ones((3, 4))],
        r"^component 1: .*square.*\(3, 4\)",
    ),
    "a vector": (lambda: [I3, np.ones(3)], r"^component 1: .*square.*\(3,\)"),
    "a number": (lambda: [I3, np.float64(3.0)], r"^component 1: .*square.*\(\)"),
    "matrices of two sizes": (
        lambda: [I3, I3, np.eye(4)],
        r"^component 2: .*same number of features.*4.*component 0 has 3",
    ),
    "rows of two sizes": (
        lambda: grassia.from_rows([ROWS, ROWS[:, :2]]),
        r"^component 1: .*same number of features.*2.*component 0 has 3",
    ),
    "an operator that is not square": (
        lambda: [I3, aslinearoperator(np.ones((3, 4)))],
        r"^component 1: .*square.*\(3, 4\)",
    ),
    "an empty matrix": (lambda: [I3, np.zeros((0, 0))], r"^component 1: .*empty.*\(0, 0\)"),
    "an empty shard": (
        lambda: grassia.from_rows([ROWS, ROWS[:0]]),
        r"^component 1: .*empty.*0 rows x 3 features",
    ),
    "no components": (list, r"at least one component; got none"),
    "no shards": (lambda: grassia.from_rows([]), r"at least one shard.*empty list"),
    "an object array": (
        lambda: [I3, np.array([[1, None], [None, 1]], dtype=object)],
        r"^component 1: .*real numbers.*dtype object",
    ),
    "complex numbers": (lambda: [I3, I3 * 1j], r"^component 1: .*real numbers.*complex128"),
    "complex sparse numbers": (
        lambda: [sp.csr_array(I3 * 1j)],
        r"^component 0: .*real numbers.*complex128",
    ),
    "a complex operator": (
        lambda: [I3, aslinearoperator(I3 * 1j)],
        r"^component 1: .*real numbers.*complex128",
    ),
    "text": (lambda: [np.full((3, 3), "a")], r"^component 0: .*real numbers.*dtype <U1"),
    "dates": (
        lambda: grassia.from_rows([np.zeros((3, 3), "M8[s]")]),
        r"^component 0: .*real numbers.*datetime64",
    ),
    "a masked array": (
        lambda: [np.ma.masked_equal(I3, 0.0)],
        r"^component 0: .*masked.*filled",
    ),
    "a path": (lambda: ["rows.npy"], r"^component 0: .*path 'rows.npy'.*from_rows"),
    "a function": (lambda: [I3, lambda V: V], r"^component 1: .*callable.*OperatorLoader"),
    "nothing": (lambda: None, r"^component 0: .*NoneType"),
    "a list of lists": (lambda: [[[1.0, 0.0], [0.0, 1.0]]], r"^component 0: .*got list"),
    "a missing file": (lambda: grassia.from_rows("absent.npy"), r"must exist.*absent\.npy"),
}


@pytest.mark.parametrize("case", CHEAP)
def test_a_shape_or_kind_that_breaks_a_rule_is_refused_before_a_worker_is_started(engine, case):
    make, text = CHEAP[case]
    assert re.search(text, refused(engine, make)), refused(engine, make)


@pytest.mark.parametrize(
    ("k", "text"),
    [
        (0, "1 <= k.*k=0"),
        (-2, "k=-2"),
        (1.0, "integer.*k=1.0"),
        (1.5, "integer.*k=1.5"),
        (True, "integer.*k=True"),
        ("2", "integer.*k='2'"),
        (None, "integer.*k=None"),
        (math.nan, "integer.*k=nan"),
    ],
)
def test_a_dimension_that_is_no_positive_integer_is_refused(engine, k, text):
    assert re.search(text, refused(engine, lambda: [I3], k))


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0, -1.0], "positive.*component 1 has -1.0"),
        ([0.0, 1.0], "positive.*component 0 has 0.0"),
        ([1.0, math.nan], "positive and finite.*component 1 has nan"),
        ([math.inf, 1.0], "finite.*component 0 has inf"),
        ([1.0], r"each of the 2 components.*\(1,\)"),
        ([1.0, 1.0, 1.0], r"each of the 2 components.*\(3,\)"),
        ([[1.0, 1.0]], r"each of the 2 components.*\(1, 2\)"),
        (2.0, r"each of the 2 components.*\(\)"),
        (["a", "b"], "positive numbers.*'a'"),
        ([1.0, None], "positive"),
    ],
)
def test_weights_that_break_a_rule_are_refused_by_their_component(engine, weights, text):
    assert re.search(text, refused(engine, lambda: [I3, I3], weights=weights))


@pytest.mark.parametrize(
    ("v0", "text"),
    [
        (np.ones((3, 2)), "rank 2"),
        (np.ones((3, 0)), r"shape.*k = 1.*\(3, 0\)"),
        (np.ones((2, 1)), r"shape.*n_features = 3.*\(2, 1\)"),
        (np.eye(4)[:, :2], r"shape.*n_features = 3.*\(4, 2\)"),
        (np.ones((3, 1, 1)), r"shape.*\(3, 1, 1\)"),
        (np.array([[1.0], [np.nan], [0.0]]), "finite"),
        (np.zeros((3, 1)), "rank"),
        (np.full((3, 1), "x"), "real"),
        (np.full((3, 1), None), "v0"),
    ],
)
def test_a_start_that_breaks_a_rule_is_refused(engine, v0, text):
    assert re.search(text, refused(engine, lambda: [I3], v0=v0))


@pytest.mark.parametrize("tol", [0.0, 1.0, -1e-3, 2, math.nan, math.inf, "1e-6", None])
def test_a_tolerance_that_is_no_sine_is_refused(engine, tol):
    text = refused(engine, lambda: [I3], tol=tol)
    assert re.search(rf"tol.*got {re.escape(repr(tol))}", text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"solver": "abacus"}, "'auto'.*'grassia'.*got 'abacus'"),
        ({"solver": 3}, "got 3"),
        ({"max_passes": 0}, "max_passes.*0"),
        ({"max_passes": math.nan}, "max_passes.*nan"),
        ({"time_limit": -1.0}, "time_limit.*-1.0"),
        ({"rng": -1}, "rng.*-1"),
        ({"rng": "seed"}, "rng.*'seed'"),
    ],
)
def test_an_option_that_breaks_a_rule_is_refused(engine, options, text):
    assert re.search(text, refused(engine, lambda: [I3], **options))


@pytest.mark.parametrize("name", ["abacus", "", None, 3])
def test_an_unknown_back_end_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidInput, match=f"'serial'.*got {name!r}"):
        grassia.eigenspace([I3], 1, backend=name)


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "2"])
def test_a_number_of_components_that_is_no_positive_integer_is_refused(n):
    with pytest.raises(InvalidInput, match=f"n_components must be .*got {n!r}"):
        grassia.from_rows(ROWS, n)


@pytest.mark.parametrize("n", [None, 0, 2.5, True])
def test_a_callable_operator_needs_its_size_as_an_integer(n):
    with pytest.raises(InvalidInput, match=f"n_features.*integer.*got {n!r}"):
        grassia.OperatorComponent(lambda V: V, n_features=n)


# -------------------------------------------------------------------- seen by the worker that opens


def asymmetric_operator():
    A = I3 + np.triu(np.ones((3, 3)), 1)
    return LinearOperator((3, 3), matvec=lambda v: A @ v, matmat=lambda V: A @ V, dtype=float)


def in_worker(rows):
    """Rows that are first seen by the worker."""
    return lambda: rows


READ = {
    "nan in a matrix": (lambda: [I3, symmetric_with(np.nan)], r"finite.*\(1, 2\) is nan"),
    "inf in a matrix": (lambda: [I3, symmetric_with(np.inf)], r"finite.*\(1, 2\) is inf"),
    "nan in a sparse matrix": (
        lambda: [I3, sp.csr_array(symmetric_with(np.nan))],
        r"finite.*\(1, 2\) is nan",
    ),
    "nan in rows": (lambda: grassia.from_rows([ROWS, with_entry(ROWS, np.nan)]), "finite; row 1"),
    "inf in rows": (
        lambda: grassia.from_rows([ROWS, with_entry(ROWS, -np.inf)], center=False),
        "finite; row 1",
    ),
    "rows that overflow": (lambda: grassia.from_rows([ROWS, 1e200 * ROWS]), "overflow"),
    "an asymmetric matrix": (
        lambda: [I3, with_entry(I3, 0.5)],
        r"symmetric.*0\.5 at \(1, 2\)",
    ),
    "an asymmetric operator": (lambda: [I3, asymmetric_operator()], "symmetric"),
    "an operator that gives nan": (
        lambda: [I3, OperatorLoader(lambda V: V * np.nan, n_features=3)],
        "finite",
    ),
    "an operator that gives another shape": (
        lambda: [I3, OperatorLoader(lambda V: V[:2], n_features=3)],
        r"shape.*\(3, 4\).*\(2, 4\)",
    ),
    "an operator that gives text": (
        lambda: [I3, OperatorLoader(lambda V: V.astype(str), n_features=3)],
        "real numbers",
    ),
    "an empty shard made in the worker": (
        lambda: grassia.from_rows([in_worker(ROWS), in_worker(ROWS[:0])]),
        "empty.*0 rows x 3",
    ),
    "one row as a vector, made in the worker": (
        lambda: grassia.from_rows([in_worker(ROWS), in_worker(ROWS[0])]),
        "2-D",
    ),
    "nothing made in the worker": (
        lambda: grassia.from_rows([in_worker(ROWS), in_worker(None)]),
        "2-D|real numbers",
    ),
    "text made in the worker": (
        lambda: grassia.from_rows([in_worker(ROWS), in_worker(ROWS.astype(str))]),
        "real numbers",
    ),
}


@pytest.mark.parametrize("case", READ)
def test_data_that_break_a_rule_are_refused_by_their_component_when_they_are_read(engine, case):
    make, text = READ[case]
    message = refused(engine, make, error=InvalidComponent)
    assert re.search(rf"^component 1: .*({text})", message), message


def test_feature_counts_that_differ_are_found_by_the_server_if_not_before(engine):
    message = refused(engine, lambda: grassia.from_rows([in_worker(ROWS), in_worker(ROWS[:, :2])]))
    assert re.search(r"^component [01]: .*same number of features.*(2.*3|3.*2)", message)


def test_centred_and_uncentred_components_do_not_mix(engine):
    message = refused(engine, lambda: grassia.from_rows([ROWS]) + grassia.from_rows([ROWS], center=False))
    assert re.search(r"^component [01]: centred and uncentred.*`center`", message)


@pytest.mark.parametrize("known", [True, False], ids=["known", "known to the worker"])
def test_a_dimension_beyond_the_features_is_refused(engine, known):
    rows = ROWS if known else in_worker(ROWS)
    message = refused(engine, lambda: grassia.from_rows([rows]), k=4)
    assert re.search("1 <= k <= n_features.*k=4.*n_features=3", message)


@pytest.mark.parametrize("how", ["missing", "truncated", "no array", "pickled", "a folder"])
def test_a_file_that_cannot_be_read_is_named_with_its_component(engine, tmp_path, how):
    path = tmp_path / "rows.npy"
    if how == "truncated":
        np.save(path, ROWS)
        path.write_bytes(path.read_bytes()[:-8])
    elif how == "no array":
        path.write_text("these are no rows\n")
    elif how == "pickled":
        np.save(path, np.array([[None]]), allow_pickle=True)
    elif how == "a folder":
        path.mkdir()
    message = refused(engine, lambda: [I3, NpyRowsLoader(str(path), center=False)], error=InvalidComponent)
    assert message.startswith("component 1: ")
    assert str(path) in message


def test_an_operator_that_goes_wrong_later_stops_the_run_by_its_component(engine):
    class Rotting:
        def __init__(self):
            self.calls = 0

        def __call__(self, V):
            self.calls += 1
            out = np.diag([3.0, 2.0, 1.0]) @ V
            if self.calls > 12:
                out[0, 0] = np.nan
            return out

    components = [np.diag([3.0, 2.0, 1.0]), OperatorLoader(Rotting(), n_features=3)]
    watch = Watch()
    with pytest.warns(UserWarning, match="COMPONENT_FAILED"):
        result = grassia.eigenspace(
            components, 1, backend=engine(1), rng=0, tol=1e-15, callbacks=watch, solver="grassia"
        )
    assert watch.version > 0
    assert result.vectors.shape == (3, 1)  # the work done is not lost
    assert re.search(r"^component 1: .*finite block.*NaN", result.history.events[-1].text)


def test_a_component_that_always_fails_is_an_error_that_names_it_and_the_cause(engine):
    def rows():
        raise ConnectionError("the store is down")

    components = grassia.from_rows([in_worker(ROWS), rows])
    with pytest.raises(GrassiaError, match=r"component 1 failed 4 times.*the store is down") as caught:
        grassia.eigenspace(components, 1, backend=engine(1), rng=0)
    assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_an_engine_that_is_not_installed_names_its_extra(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not
    with pytest.raises(MissingExtra, match=rf"grassia\[{name}\]"):
        grassia.eigenspace(np.eye(3), 1, backend=name)


@pytest.mark.parametrize("solver", ["grassia", "power", "nystrom", "orthogonal", "krylov", "covariance"])
@pytest.mark.parametrize("size", [1e-160, 1e-90, 1e-61, 1e61, 1e77])
def test_data_whose_squares_leave_double_precision_are_refused(size, solver):
    """Residuals of them would underflow, and anything would be certified."""
    X = np.random.default_rng(0).standard_normal((60, 8)) * np.arange(8.0, 0.0, -1.0)
    with pytest.raises(grassia.GrassiaError, match=r"[Ss]cale the data"):
        grassia.eigenspace(grassia.from_rows(X * size, n_components=3), 2, solver=solver, rng=0)


@pytest.mark.parametrize("size", [1e-55, 1e-20, 1e20, 1e55])
def test_data_of_any_moderate_size_have_the_same_eigenspace(size):
    X = np.random.default_rng(0).standard_normal((60, 8)) * np.arange(8.0, 0.0, -1.0)
    plain, scaled = (
        grassia.eigenspace(grassia.from_rows(X * s, n_components=3), 2, solver="nystrom", rng=0)
        for s in (1.0, size)
    )
    assert scaled.converged
    assert projection_distance(plain.vectors, scaled.vectors) <= 2e-6
