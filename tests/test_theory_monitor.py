"""Monitors along runs of GRASSIA: what they measure, and that they notice what they should."""

import csv
import dataclasses
import importlib

import numpy as np
import pytest

import grassia
from grassia import theory
from grassia.backends import Simulated, Threads
from grassia.backends.service import Fixed
from grassia.errors import InvalidInput
from grassia.solvers import Grassia
from problems import heterogeneous
from theory_instances import near

K = 2


@pytest.fixture(scope="module")
def problem():
    return heterogeneous(4, 12, K, seed=0)


@pytest.fixture(scope="module")
def oracle(problem):
    return theory.Oracle.of(problem.components, K, problem.weights)


def run(problem, monitor, step="theory", backend="serial", distance=0.5, tol=1e-3, **options):
    return grassia.eigenspace(
        problem.components,
        K,
        weights=problem.weights,
        solver=Grassia(step=step, **options),
        backend=backend,
        v0=near(problem, K, distance),
        tol=tol,
        rng=0,
        callbacks=[monitor],
    )


@pytest.mark.parametrize(
    "backend",
    [lambda: "serial", lambda: Simulated(Fixed([1, 1, 2, 4]))],
    ids=["serial", "stale"],
)
def test_every_statement_holds_along_a_run_with_the_step_of_the_theorems(problem, oracle, backend):
    monitor = theory.Monitor(oracle)
    result = run(problem, monitor, backend=backend(), distance=0.7)
    report = monitor.report(result)
    assert report.holds
    names = [one.name for one in report.findings]
    assert names[:3] == ["one-step descent", "Lyapunov function", "basin membership"]
    for name in ("one-step descent", "envelope of Theorem 2"):
        assert report[name].verdict == "holds"
    assert report.updates == result.stats["updates"]
    assert len(report["one-step descent"].sides) == report.updates


def test_no_claimed_statement_fails_whatever_staleness_threads_make(problem, oracle):
    monitor = theory.Monitor(oracle)
    run(problem, monitor, backend=Threads(), distance=0.7, tol=1e-2)
    assert monitor.report().holds


def test_the_monitor_measures_what_a_dense_transcription_measures(problem, oracle):
    """Both sides of the descent inequality and the envelope, against `theory.follow` on the same updates."""
    eta, updates = 0.004, 40
    monitor = theory.Monitor(oracle)
    W0 = near(problem, K, 0.5)
    grassia.eigenspace(
        problem.components,
        K,
        weights=problem.weights,
        solver=Grassia(step=eta),
        v0=W0,
        tol=1e-12,
        rng=0,
        callbacks=[monitor, lambda progress: progress.version >= updates],
    )
    # In turn: component (t - 1) mod n has been asked at W^t, and answers before update t.
    reference = theory.follow(
        problem.components, W0, eta, lambda t: [((t - 1) % 4, t)], updates, problem.weights
    )
    report = monitor.report()
    assert report.tau == reference.tau
    np.testing.assert_allclose(monitor.distances, reference.distances, atol=1e-10)
    for found, expected in zip(
        report["one-step descent"].sides, theory.one_step_descent(reference), strict=True
    ):
        assert found.left == pytest.approx(expected.left, abs=1e-10)
        assert found.right == pytest.approx(expected.right, abs=1e-10)
    for found, expected in zip(
        report["envelope of Theorem 1"].sides, theory.broad_convergence(reference), strict=True
    ):
        assert found.right == pytest.approx(expected.right, rel=1e-9)
    for found, expected in zip(report["Lyapunov function"].sides, theory.lyapunov(reference), strict=True):
        assert found.left == pytest.approx(expected.left, rel=1e-7)
    broad, local = monitor.envelopes()
    first = theory.broad_envelope(0, reference.gaps[0], oracle.constants.delta, eta)
    assert broad[0] ** 2 == pytest.approx(first)
    assert np.isfinite(local).any()


def test_a_step_beyond_the_theorems_is_excused_and_one_that_breaks_descent_is_seen(problem, oracle):
    monitor = theory.Monitor(oracle)
    stop = 200
    grassia.eigenspace(
        problem.components,
        K,
        weights=problem.weights,
        solver=Grassia(step=0.9),
        backend=Simulated(Fixed([1, 1, 2, 9])),
        v0=near(problem, K, 0.5),
        rng=0,
        callbacks=[monitor, lambda progress: progress.version >= stop],
    )
    report = monitor.report()
    descent = report["one-step descent"]
    assert not descent.holds
    assert descent.verdict == "fails, and is not claimed"
    assert "above eta_0" in descent.excuse
    assert report.holds  # nothing that the paper claims was refuted
    assert "not claimed" in str(report)


@pytest.mark.parametrize("wrong", ["optimum", "target"])
def test_an_oracle_that_is_wrong_is_found_out(problem, oracle, wrong):
    """What cannot happen with the true constants does with false ones: the monitor can fail."""
    if wrong == "optimum":
        other = dataclasses.replace(oracle, optimum=oracle.optimum - 1.0)
    else:
        other = dataclasses.replace(oracle, target=np.ascontiguousarray(np.roll(oracle.target, 3, axis=0)))
    monitor = theory.Monitor(other)
    run(problem, monitor, step=0.001, tol=0.2)
    report = monitor.report()
    assert not all(one.holds for one in report.findings if one.name.startswith("envelope"))


def test_without_an_oracle_the_certificate_speaks_for_basin_and_envelope(problem):
    monitor = theory.Monitor()
    result = run(problem, monitor, backend=Simulated(Fixed([1, 1, 2, 4])))
    report = monitor.report(result)
    assert report.holds
    assert report["basin, by the certificate"].verdict == "holds"
    assert report["Theorem 2, by the certificate"].verdict == "holds"
    angle = np.arcsin(result.certificate.sin_theta.value)
    assert report["basin, by the certificate"].sides[0].left == pytest.approx(np.sqrt(K) * angle)


def test_bounds_that_are_too_wide_decide_nothing(problem):
    """An upper bound above the envelope does not refute it."""
    finding = theory.Finding("made up", (theory.Sides("", 2.0, 1.0),), bounded=True)
    assert not finding.holds
    assert finding.verdict == "not decided by the bounds there are"
    assert theory.Report((finding,), 1, 0, 0.1).holds
    refuted = theory.Finding("made up", (theory.Sides("", 2.0, 1.0),))
    assert refuted.verdict == "FAILS"
    assert not theory.Report((refuted,), 1, 0, 0.1).holds


def test_constants_can_be_given_instead(problem, oracle):
    monitor = theory.Monitor(constants=oracle.constants)
    result = run(problem, monitor, step=0.001, tol=0.2)
    assert monitor.report(result)["basin, by the certificate"].verdict == "holds"


def test_a_monitor_without_constants_asks_for_them(problem):
    monitor = theory.Monitor()
    run(problem, monitor, step=0.05, tol=1e-2)
    with pytest.raises(InvalidInput, match="certified_constants"):
        monitor.report()


def test_a_monitor_that_saw_nothing_or_only_a_part_says_so(problem, oracle):
    monitor = theory.Monitor(oracle)
    with pytest.raises(InvalidInput, match="no update"):
        monitor.report()
    run(problem, monitor, step=0.05, tol=1e-2)
    run(problem, monitor, step=0.05, tol=1e-2)
    with pytest.raises(InvalidInput, match="fresh monitor"):
        monitor.report()


def test_a_monitor_of_another_solver_is_refused(problem, oracle):
    with pytest.raises(InvalidInput, match='solver="grassia"'):
        grassia.eigenspace(problem.components, K, solver="nystrom", rng=0, callbacks=[theory.Monitor(oracle)])


def test_a_run_that_starts_at_the_average_of_local_eigenspaces_can_be_watched(problem, oracle):
    monitor = theory.Monitor(oracle)
    grassia.eigenspace(
        problem.components,
        K,
        weights=problem.weights,
        solver=Grassia(step="theory"),
        v0="local",
        tol=1e-3,
        rng=0,
        callbacks=[monitor],
    )
    assert monitor.report().holds


def test_the_figures_show_distances_under_envelopes_and_points_over_the_tight_curve(tmp_path):
    pytest.importorskip("matplotlib")
    theorems = importlib.import_module("grassia.experiments.theorems")
    summary = theorems.reproduce(tmp_path, quick=True)
    text = summary.read_text(encoding="utf-8")
    assert "FAILS" not in text
    for name in ("envelopes", "dominance"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert f"({name}.png)" in text
    with (tmp_path / "envelopes.csv").open(encoding="utf-8") as file:
        rows = [{name: float(cell or "nan") for name, cell in row.items()} for row in csv.DictReader(file)]
    columns = list(rows[0])[1:]
    for distance, envelope in zip(columns[::2], columns[1::2], strict=True):
        seen = [(row[distance], row[envelope]) for row in rows if np.isfinite(row[envelope])]
        assert seen
        assert all(below <= above for below, above in seen)
    with (tmp_path / "dominance.csv").open(encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    for point in points:
        ratio, tight = float(point["ratio"]), np.cos(float(point["largest angle"])) ** 2
        assert ratio >= tight * (1 - 1e-9)
        if point["kind"] != "random":
            assert ratio == pytest.approx(tight, rel=1e-9)


def test_a_restart_from_a_better_subspace_begins_the_report_anew():
    """From a saddle: the certificate notices, and the run goes on from what it found."""
    components = [np.diag([4.0, 2.0, 1.0, 0.0]), np.diag([4.0, 1.0, 2.0, 0.0])]
    monitor = theory.Monitor(theory.Oracle.of(components, 1))
    result = grassia.eigenspace(
        components,
        1,
        v0=np.eye(4)[:, 3:],
        solver=Grassia(step="theory"),
        tol=1e-3,
        rng=0,
        callbacks=[monitor],
    )
    assert result.converged
    assert result.history.count("restarted") > 0
    report = monitor.report(result)
    assert report.restarts == result.history.count("restarted")
    assert report.holds
    assert "restarts" in str(report)


@pytest.mark.filterwarnings("ignore:GAP_TOO_SMALL")
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_rounding_at_the_target_is_not_taken_for_a_failure(problem, shift):
    moved = [A + shift * np.eye(len(A)) for A in problem.components]
    oracle = theory.Oracle.of(moved, K, problem.weights)
    monitor = theory.Monitor(oracle)
    grassia.eigenspace(
        moved,
        K,
        weights=problem.weights,
        solver=Grassia(step=1e-3),
        v0=oracle.target,
        tol=1e-12,
        rng=0,
        callbacks=[monitor, lambda progress: progress.version >= 30],
    )
    assert monitor.report().holds


def test_the_step_is_held_against_the_radii_of_the_monitor(problem, oracle):
    monitor = theory.Monitor(oracle, zeta=0.31, alpha=0.3101)
    run(problem, monitor, step=0.001, tol=0.2, distance=0.3)
    assert "above that of Theorem 1" in monitor.report()["basin membership"].excuse
    with pytest.raises(InvalidInput, match="radii"):
        theory.Monitor(oracle, zeta=1.2, alpha=1.0)


def test_without_a_gap_only_the_descent_is_spoken_of():
    components = [np.diag([1.0, 1.0, 0.0])]
    monitor = theory.Monitor(theory.Oracle.of(components, 1))
    grassia.eigenspace(
        components,
        1,
        solver=Grassia(step=0.01),
        rng=0,
        tol=0.5,
        callbacks=[monitor, lambda progress: progress.version >= 20],
    )
    assert [one.name for one in monitor.report().findings] == ["one-step descent"]


def test_an_oracle_of_another_problem_is_refused(problem):
    other = theory.Oracle.of([np.diag([1.0, 0.0, 0.0])], 1)
    with pytest.raises(InvalidInput, match="the run's own problem"):
        run(problem, theory.Monitor(other), step=0.01)
    with pytest.raises(InvalidInput, match="`constants`"):
        theory.Monitor(constants={"delta": 1.0})
