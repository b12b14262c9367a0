"""A resumed run is the run: its answer, its bits, its certificates, its losses, its solvers."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from grassia import Certifier, Checkpoint, Status, eigenspace, resume
from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import LogNormal
from grassia.checkpoint import latest
from grassia.geometry import projection_distance
from grassia.solvers import Grassia, Krylov, Nystrom, Power
from interrupted_runs import begun, five_components, stopped_after, stopped_while_certifying
from problems import gaussian_rows, heterogeneous, leading_of_rows

SOLVERS = ["grassia", "nystrom", "power", "krylov", "lobpcg", "orthogonal", "covariance", "rgd", "vrpca"]
SOLVERS += ["fedpower", "dsag", "iarg"]
#: Those whose workers remember nothing, so that new ones change nothing.
FORGETFUL = ["nystrom", "krylov", "lobpcg", "orthogonal", "covariance"]


@pytest.fixture
def problem():
    return five_components()


@pytest.mark.parametrize("backend", ["serial", "threads", "simulated"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_run_is_resumed_on_another_back_end_to_the_same_answer(problem, tmp_path, solver, backend):
    stop = stopped_after(1.6 if solver == "covariance" else 2.5)  # it is done after the second
    part = begun(problem, tmp_path, stop=stop, solver=solver, backend=Simulated(LogNormal(), seed=1))
    assert part.status is Status.INTERRUPTED
    result = resume(tmp_path, problem.components, backend=backend)
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-9
    assert result.stats["passes"] > part.stats["passes"]
    assert result.stats["updates"] >= part.stats["updates"]


@pytest.mark.parametrize("part", [0.25, 0.45, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("solver", FORGETFUL)
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_never_interrupted(problem, tmp_path, solver, part):
    options = {"solver": solver, "backend": Serial()}
    whole = begun(problem, tmp_path / "whole", stop=(), **options)
    last = whole.stats["passes"] - 1.0 / len(problem.components)
    stop = stopped_after(1.0 + part * (last - 1.0))  # the first pass opens the components
    begun_only = begun(problem, tmp_path / "part", stop=stop, **options)
    assert begun_only.status is Status.INTERRUPTED
    result = resume(tmp_path / "part", problem.components, backend=Serial())
    assert np.array_equal(result.vectors, whole.vectors)
    assert result.stats["updates"] == whole.stats["updates"]
    assert result.stats["products"] == whole.stats["products"]  # none was computed twice


@pytest.mark.parametrize(
    ("solver", "answers"),
    [("krylov", 1), ("krylov", 3), ("nystrom", 1), ("nystrom", 3), ("orthogonal", 12), ("grassia", 12)]
    + [(solver, answers) for solver in ("orthogonal", "grassia", "power") for answers in (1, 5, 8)],
)
def test_a_certificate_under_way_is_taken_up_in_the_middle_of_its_sweep(problem, tmp_path, solver, answers):
    stop = stopped_while_certifying(answers)
    careful = Certifier(rigorous=True)  # so that it takes several sweeps
    options = {"solver": solver, "backend": Serial(), "tol": 1e-7, "certifier": careful}
    whole = begun(problem, tmp_path / "whole", stop=(), **options)
    part = begun(problem, tmp_path / "part", stop=stop, **options)
    assert part.status is Status.INTERRUPTED
    result = resume(tmp_path / "part", problem.components, certifier=careful)
    assert result.converged
    if solver in FORGETFUL:
        assert result.stats["products"] == whole.stats["products"]
        assert np.array_equal(result.vectors, whole.vectors)


@pytest.mark.parametrize(
    "solver", [Grassia(step="theory"), Grassia(table="server"), Krylov(memory=9), Power()]
)
def test_solvers_with_parameters_are_resumed_with_them(problem, tmp_path, solver):
    begun(problem, tmp_path, stop=stopped_after(6.5), solver=solver, backend=Simulated(), tol=1e-4)
    result = resume(tmp_path, problem.components, backend=Simulated())
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-4


def test_preparations_under_way_are_taken_up(problem, tmp_path):
    def preparing(progress):
        return progress.phase == "preparing" and progress.passes >= 2.4

    part = begun(problem, tmp_path, stop=preparing, solver=Grassia(step="theory"), tol=1e-3)
    assert part.status is Status.INTERRUPTED
    result = resume(tmp_path, problem.components)
    assert result.converged


def test_the_workers_may_be_more_or_fewer_than_before(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(3), backend=Simulated(workers=5), solver="power")
    result = resume(tmp_path, problem.components, backend=Threads(workers=2))
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-9


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_resumed_with_their_mean(tmp_path, sparse):
    X = gaussian_rows(300, 15, 3, seed=3)
    shards = grassia.from_rows(X, n_components=4)
    plan = Checkpoint(tmp_path, updates=1)
    eigenspace(shards, 3, solver="power", checkpoint=plan, callbacks=stopped_after(4), rng=0, tol=1e-8)
    result = resume(tmp_path, grassia.from_rows(X, n_components=4), backend="threads")
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    np.testing.assert_allclose(result.stats["mean"], X.mean(axis=0), rtol=1e-12)


def test_what_was_left_out_stays_left_out(problem, tmp_path):
    backend = Simulated(max_restarts=0, faults="crash:2@3")
    with pytest.warns(grassia.ExclusionWarning):
        begun(problem, tmp_path, stop=stopped_after(12), backend=backend, solver="power", on_loss="exclude")
    with pytest.warns(grassia.ExclusionWarning):
        result = resume(tmp_path, problem.components)
    assert result.stats["excluded"] == [2]
    assert result.stats["weights"][2] == 0.0
    A = sum(w * A for w, A in zip(result.stats["weights"], problem.components, strict=True))
    assert projection_distance(result.vectors, np.linalg.eigh(A)[1][:, -3:]) <= 1e-9


@pytest.mark.parametrize("n", [2, 5])
def test_a_component_lost_while_a_resumed_run_opens_is_left_out_like_any(tmp_path, n):
    problem = heterogeneous(n=n, d=12, k=3, seed=1)
    begun(problem, tmp_path, stop=stopped_after(5), solver="power", on_loss="exclude")
    backend = Simulated(max_restarts=0, faults="crash:1@0")
    with pytest.warns(grassia.ExclusionWarning):
        result = resume(tmp_path, problem.components, backend=backend)
    A = sum(w * A for w, A in zip(result.stats["weights"], problem.components, strict=True))
    assert result.stats["excluded"] == [1]
    assert result.converged
    assert projection_distance(result.vectors, np.linalg.eigh(A)[1][:, -3:]) <= 1e-9


def test_what_was_asked_of_a_resumed_run_holds_for_the_next(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(2), solver="power")
    stop = stopped_after(6)
    resume(tmp_path, problem.components, on_loss="exclude", max_passes=77, callbacks=stop)
    header = latest(tmp_path).header
    assert header["on_loss"]["action"] == "exclude"
    assert header["limits"]["max_passes"] == 77


def test_a_run_that_met_its_limit_can_go_on_with_another(problem, tmp_path):
    with pytest.warns(UserWarning, match="MAX_PASSES"):
        part = begun(problem, tmp_path, stop=(), solver="orthogonal", max_passes=6)
    assert not part.converged
    result = resume(tmp_path, problem.components, max_passes=10_000)
    assert result.converged
    assert len(result.history) >= len(part.history)
    assert result.stats["seconds"] >= part.stats["seconds"]


def test_a_finished_run_may_be_resumed_to_a_smaller_tolerance(problem, tmp_path):
    first = begun(problem, tmp_path, stop=(), tol=1e-4)
    result = resume(tmp_path, problem.components, tol=1e-11)
    assert first.converged
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-11


@pytest.mark.parametrize("answers", [1, 3, 5, 8])
@pytest.mark.parametrize(("before", "after"), [(1e-11, 1e-7), (1e-6, 1e-11), (1e-3, 1e-9)])
def test_a_certificate_under_way_is_judged_by_the_tolerance_of_the_resumed_run(
    problem, tmp_path, before, after, answers
):
    stop = stopped_while_certifying(answers)
    careful = Certifier(rigorous=True)  # so that it takes several sweeps
    part = begun(problem, tmp_path, stop=stop, solver="power", tol=before, certifier=careful)
    assert part.status is Status.INTERRUPTED
    result = resume(tmp_path, problem.components, tol=after, certifier=careful)
    assert result.status is Status.CONVERGED
    assert result.certificate.tol == after
    assert result.certificate.sin_theta.value <= after
    assert projection_distance(result.vectors, problem.leading(3)) <= after


def test_a_job_that_says_resume_begins_or_goes_on(problem, tmp_path):
    plan = Checkpoint(tmp_path / "new", updates=1, resume=True)
    job = {"weights": problem.weights, "solver": "power", "checkpoint": plan, "rng": 0}
    part = eigenspace(problem.components, 3, callbacks=stopped_after(4), **job)
    result = eigenspace(problem.components, 3, backend="threads", **job)
    assert part.status is Status.INTERRUPTED
    assert result.converged
    assert "resumed" in result.stats["solver_reason"]


@pytest.mark.parametrize("other", ["krylov", Nystrom(width=5)], ids=["another", "other parameters"])
def test_a_job_that_says_resume_does_not_go_on_with_another_solver(problem, tmp_path, other):
    plan = Checkpoint(tmp_path, updates=1, resume=True)
    job = {"weights": problem.weights, "checkpoint": plan, "rng": 0}
    eigenspace(problem.components, 3, solver="nystrom", callbacks=stopped_after(2), **job)
    with pytest.raises(grassia.InvalidInput, match="had another solver") as refused:
        eigenspace(problem.components, 3, solver=other, **job)
    assert ("width=None, not 5" if isinstance(other, Nystrom) else "name='nystrom', not 'krylov'") in str(
        refused.value
    )
    assert eigenspace(problem.components, 3, **job).converged  # "auto" leaves it to the checkpoint


def test_a_solver_from_elsewhere_is_resumed_when_it_is_passed(problem, tmp_path):
    class Mine(Nystrom):
        name = "mine"

    begun(problem, tmp_path, stop=stopped_after(2), solver=Mine())
    with pytest.raises(grassia.InvalidInput, match="'mine', which is not one of grassia's"):
        resume(tmp_path, problem.components)
    assert resume(tmp_path, problem.components, solver=Mine()).converged


def test_such_a_solver_is_also_resumed_by_a_job_that_says_resume(problem, tmp_path):
    class Mine(Nystrom):
        name = "mine"

    job = {"weights": problem.weights, "solver": Mine(), "rng": 0}
    plan = Checkpoint(tmp_path, updates=1, resume=True)
    eigenspace(problem.components, 3, checkpoint=plan, callbacks=stopped_after(2), **job)
    assert eigenspace(problem.components, 3, checkpoint=plan, **job).converged
