"""What a user of `grassia.eigenspace` sees."""

from __future__ import annotations

import functools
import logging
import signal

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator
from sklearn.exceptions import ConvergenceWarning

import grassia
from grassia.backends import Serial
from grassia.geometry import projection_distance
from grassia.result import FIELDS, Event, History
from grassia.solvers import Grassia
from problems import gaussian_rows, heterogeneous, leading_of_rows

#: These tests are about GRASSIA and the machinery under it, whichever solver "auto" takes.
eigenspace = functools.partial(grassia.eigenspace, solver="grassia")


@pytest.fixture(scope="module")
def problem():
    return heterogeneous(n=4, d=18, k=3, seed=0)


def test_every_kind_of_component_gives_the_same_space(problem):
    A = problem.components
    kinds = {
        "dense": A,
        "three-dimensional array": np.stack(A),
        "sparse": [sp.csr_array(a) for a in A],
        "operators": [aslinearoperator(a) for a in A],
        "components": [grassia.MatrixComponent(a) for a in A],
        "sums": [
            grassia.SumComponent([grassia.MatrixComponent(a / 2), grassia.MatrixComponent(1.5 * a)])
            for a in A
        ],
        "mixed": [A[0], sp.csc_array(A[1]), aslinearoperator(A[2]), grassia.MatrixComponent(A[3])],
    }
    for name, components in kinds.items():
        result = eigenspace(components, 3, weights=problem.weights, rng=0)
        assert result.converged, name
        assert projection_distance(result.vectors, problem.leading(3)) <= 1e-6, name


def test_the_result_has_its_one_shape(problem):
    result = eigenspace(problem.components, 3, weights=problem.weights, rng=0)
    assert result.vectors.shape == (18, 3)
    assert result.values.shape == (3,)
    assert (np.diff(result.values) < 0).all()
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(3), atol=1e-14)
    largest = np.argmax(np.abs(result.vectors), axis=0)
    assert (result.vectors[largest, range(3)] > 0).all()
    np.testing.assert_allclose(result.values, problem.spectrum()[0][:3], rtol=1e-9)
    A = problem.A
    columns = A @ result.vectors - result.vectors * result.values
    assert np.linalg.norm(columns, axis=0).max() <= result.certificate.residual_norm + 1e-13
    assert result.stats["solver"] == "grassia"
    assert result.stats["components"] == 4
    assert "CONVERGED" in repr(result)
    assert "eigenvalues" in result.summary()


def test_the_same_seed_gives_the_same_bits_and_another_seed_another_start(problem):
    def run(rng):
        return eigenspace(problem.components, 3, weights=problem.weights, rng=rng)

    assert run(5).vectors.tobytes() == run(5).vectors.tobytes()
    assert run(np.random.default_rng(5)).vectors.tobytes() == run(5).vectors.tobytes()
    assert run(5).vectors.tobytes() != run(6).vectors.tobytes()
    fresh = run(None)
    assert run(fresh.stats["seed"]).vectors.tobytes() == fresh.vectors.tobytes()


def test_a_warm_start_saves_work(problem):
    cold = eigenspace(problem.components, 3, weights=problem.weights, rng=0)
    rng = np.random.default_rng(0)
    near = cold.vectors @ rng.standard_normal((3, 3)) + 1e-5 * rng.standard_normal((18, 3))
    warm = eigenspace(problem.components, 3, weights=problem.weights, rng=0, v0=near)
    assert warm.converged
    assert warm.stats["updates"] < 0.7 * cold.stats["updates"]


def test_callbacks_see_the_run_and_may_end_it(problem):
    seen = []

    def watch(progress):
        seen.append((progress.phase, progress.version, progress.residual))
        return progress.version >= 20

    result = eigenspace(
        problem.components, 3, weights=problem.weights, rng=0, callbacks=[watch, lambda p: None]
    )
    assert result.status is grassia.Status.INTERRUPTED
    assert result.stats["updates"] == 20
    assert seen[0][0] == "opening"
    assert seen[-1][0] == "solving"
    residuals = [residual for _, version, residual in seen if version > 0]
    assert residuals[-1] < residuals[0]


def test_a_callback_that_raises_stops_the_run_and_frees_its_workers(problem):
    backend = Serial()

    def break_down(progress):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        eigenspace(problem.components, 3, backend=backend, callbacks=break_down)
    assert backend._worker is None


def test_ctrl_c_gives_the_best_so_far(problem):
    def interrupt(progress):
        if progress.version == 30:
            raise KeyboardInterrupt

    result = eigenspace(problem.components, 3, weights=problem.weights, rng=0, callbacks=interrupt)
    assert result.status is grassia.Status.INTERRUPTED
    assert result.vectors.shape == (18, 3)


def test_ctrl_c_before_anything_was_opened_is_passed_on(problem):
    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eigenspace(problem.components, 3, rng=0, callbacks=interrupt)


def test_a_callback_that_stops_before_anything_was_opened_says_that_there_is_no_answer(problem):
    with pytest.raises(grassia.GrassiaError, match=r"\(INTERRUPTED\) before every component was opened"):
        eigenspace(problem.components, 3, rng=0, callbacks=lambda progress: True)


def test_one_component_alone_is_a_sum_of_one():
    X = gaussian_rows(100, 9, 2, seed=0)
    A = np.cov(X.T, bias=True)
    result = eigenspace(A, 2, rng=0)
    assert projection_distance(result.vectors, leading_of_rows(X, 2)) <= 1e-6
    result = eigenspace(grassia.from_rows(X), 2, rng=0)
    assert projection_distance(result.vectors, leading_of_rows(X, 2)) <= 1e-6


def test_duplicate_components_and_k_equal_1(problem):
    result = eigenspace([problem.A] * 5, 1, rng=0)
    assert projection_distance(result.vectors, problem.leading(1)) <= 1e-6


@pytest.mark.parametrize("d", [1, 2])
def test_the_smallest_problems_there_are(d):
    result = eigenspace([np.diag(np.arange(1.0, d + 1.0))], 1, rng=0)
    assert result.converged
    assert result.values[0] == pytest.approx(float(d))


def test_the_history_is_bounded_and_even():
    history = History(limit=50)
    for t in range(10_007):
        history.add(**dict.fromkeys(FIELDS, float(t)))
    times = history["time"]
    assert len(history) <= 50
    assert times[0] == 0.0
    assert times[-1] >= 9_500.0
    assert len(set(np.diff(times))) == 1
    assert next(iter(history))["time"] == 0.0


def test_events_beyond_the_limit_are_counted():
    history = History()
    for _ in range(10_003):
        history.note(Event(0.0, 0, "worker lost", 1, ""))
    assert len(history.events) == 10_000
    assert history.dropped_events == 3


def test_the_run_is_told_to_the_standard_logger(problem, caplog):
    with caplog.at_level(logging.INFO, logger="grassia"):
        eigenspace(
            problem.components,
            3,
            weights=problem.weights,
            rng=0,
            backend=Serial(faults="corrupt:1@5"),
            solver=Grassia(),
        )
    assert any("corrupt reply rejected (component 1)" in text for text in caplog.messages)


def test_a_missing_extra_is_named():
    from grassia._optional import require

    with pytest.raises(grassia.MissingExtra, match=r"pip install 'grassia\[plot\]'"):
        require("a_package_that_does_not_exist", "plot")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"time_limit": "5"}, "time_limit"),
        ({"time_limit": 0}, "time_limit"),
        ({"max_passes": True}, "max_passes"),
        ({"callbacks": 3}, "callbacks"),
        ({"callbacks": ["x"]}, "callbacks"),
        ({"history_limit": "x"}, "history_limit"),
        ({"certifier": 3}, "certifier"),
        ({"v0": np.ones((18, 3)) * 1j}, "v0"),
        ({"weights": np.ones(4) * 1j}, "weights"),
        ({"rng": -1}, "rng"),
        ({"rng": "x"}, "rng"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(problem, options, name):
    with pytest.raises(grassia.InvalidInput, match=name):
        eigenspace(problem.components, 3, **options)


FLOORS = ("delayed-oja", "oja", "one-shot")  # these give estimates: a fixed step, or a bias, leaves a floor


@pytest.mark.parametrize("name", sorted(set(grassia.solvers.names()) - set(FLOORS)))
def test_every_solver_by_name_finds_the_space(problem, name):
    result = grassia.eigenspace(problem.components, 3, weights=problem.weights, solver=name, rng=0)
    assert result.converged
    assert result.stats["solver"] == name
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-6


@pytest.mark.parametrize("name", FLOORS)
def test_a_solver_with_a_floor_says_that_it_did_not_converge(problem, name):
    with pytest.warns(ConvergenceWarning):
        result = grassia.eigenspace(
            problem.components, 3, weights=problem.weights, solver=name, rng=0, max_passes=200
        )
    assert not result.converged
    assert result.status in (grassia.Status.STALLED, grassia.Status.MAX_PASSES)
    assert projection_distance(result.vectors, problem.leading(3)) <= result.certificate.sin_theta.value


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # that is the point
def test_a_ctrl_c_whose_exception_was_swallowed_is_not_lost(problem):
    """Python drops what is raised in a finaliser; the run must end all the same."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    class Finaliser:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def drop(progress):
        if progress.version == 3:
            Finaliser()
        return progress.version > 300

    result = eigenspace(problem.components, 3, solver="power", tol=1e-15, callbacks=drop, rng=0)
    assert result.status is grassia.Status.INTERRUPTED
    assert result.stats["updates"] < 10
