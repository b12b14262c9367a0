"""Checkpoints: what is written, what is refused, and that a resumed run is the run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse.linalg import aslinearoperator

import grassia
from conftest import ENGINES, dask_client, eventually, ray_cluster
from grassia import Certifier, Checkpoint, Status, eigenspace, resume
from grassia.backends import Serial, Simulated, Threads
from grassia.backends.service import LogNormal
from grassia.checkpoint import latest
from grassia.frozen import NotPlain, freeze, thaw
from grassia.geometry import projection_distance
from grassia.solvers import Grassia, Krylov, Nystrom, Power
from problems import gaussian_rows, heterogeneous, leading_of_rows

SOLVERS = ["grassia", "nystrom", "power", "krylov", "lobpcg", "orthogonal", "covariance", "rgd", "vrpca"]
SOLVERS += ["fedpower", "dsag", "iarg"]
#: Those whose workers remember nothing, so that new ones change nothing.
FORGETFUL = ["nystrom", "krylov", "lobpcg", "orthogonal", "covariance"]


@pytest.fixture
def problem():
    return heterogeneous(n=5, d=30, k=3, seed=6)


def stopped_after(passes):
    return lambda progress: progress.passes >= passes


def begun(problem, folder, *, stop, every=1, **options):
    """A run that is interrupted, with a checkpoint after every update."""
    options = {"rng": 0, "tol": 1e-9, "max_passes": 100_000, "weights": problem.weights, **options}
    plan = Checkpoint(folder, updates=every)
    return eigenspace(problem.components, 3, checkpoint=plan, callbacks=stop, **options)


# -- the run goes on ------------------------------------------------------------------------------


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
    [("krylov", 1), ("krylov", 3), ("nystrom", 1), ("nystrom", 3)]
    + [(solver, answers) for solver in ("orthogonal", "grassia", "power") for answers in (1, 5, 8, 12)],
)
def test_a_certificate_under_way_is_taken_up_in_the_middle_of_its_sweep(problem, tmp_path, solver, answers):
    seen = []

    def stop(progress):
        if progress.phase == "certifying":
            seen.append(sum(progress.answers))
        return bool(seen) and seen[-1] - seen[0] >= answers

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


def test_two_runs_do_not_write_into_one_folder(problem, tmp_path):
    refused = []

    def another(progress):
        if not refused and progress.passes > 1:
            with pytest.raises(grassia.InvalidInput, match="another run is writing") as error:
                eigenspace(problem.components, 2, checkpoint=tmp_path)
            refused.append(error)

    result = begun(problem, tmp_path, stop=another, every=10**6, solver="power")
    assert refused
    assert result.converged
    assert resume(tmp_path, problem.components).converged  # it is free again


def test_a_resumed_run_is_not_recorded(problem, tmp_path):
    begun(problem, tmp_path / "run", stop=stopped_after(2))
    plan = Checkpoint(tmp_path / "run", resume=True)
    with pytest.raises(grassia.InvalidInput, match="`record` must be None"):
        eigenspace(
            problem.components, 3, weights=problem.weights, checkpoint=plan, record=tmp_path / "log.jsonl"
        )


# -- killed ---------------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np, grassia
rows, folder, engine, address = sys.argv[1:]
faults = "delay:*:0.01"
if engine == "processes":
    backend = grassia.backends.Processes(faults=faults)
elif engine == "ray":
    import ray
    from grassia.backends.ray import Ray
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    backend = Ray(num_cpus=0.5, faults=faults)
else:
    from grassia.backends.dask import Dask
    backend = Dask(client=address, faults=faults)
shards = grassia.from_rows(np.load(rows), n_components=4)
plan = grassia.Checkpoint(folder, every=0.1)
grassia.eigenspace(shards, 3, solver="power", backend=backend, checkpoint=plan, tol=1e-12, rng=0)
"""


def killed(rows: Path, folder: Path, engine: str, address: str, after: float) -> None:
    """Run the script, and kill it some time after its first checkpoint."""
    server = subprocess.Popen([sys.executable, "-c", SCRIPT, str(rows), str(folder), engine, address])
    assert eventually(lambda: Checkpoint(folder).there, 60.0)
    time.sleep(after)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.parametrize("after", [0.0, 0.35, 0.8])
def test_a_server_killed_at_any_moment_is_resumed_elsewhere(tmp_path, after):
    X = gaussian_rows(400, 30, 3, seed=5)
    np.save(tmp_path / "X.npy", X)
    killed(tmp_path / "X.npy", tmp_path / "run", "processes", "", after)
    found = latest(tmp_path / "run")
    result = resume(tmp_path / "run", grassia.from_rows(X, n_components=4), backend="threads", tol=1e-8)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    assert result.stats["seconds"] > found.header["seconds"] > 0.0


@pytest.mark.engines
@pytest.mark.parametrize("after", [0.0, 0.4])
@pytest.mark.parametrize(("first", "second"), [("ray", "dask"), ("dask", "ray")])
def test_a_server_killed_on_one_engine_is_resumed_on_the_other(tmp_path, first, second, after):
    X = gaussian_rows(400, 30, 3, seed=5)
    np.save(tmp_path / "X.npy", X)
    where = {
        "ray": lambda: ray_cluster().get_runtime_context().gcs_address,
        "dask": lambda: dask_client().scheduler.address,
    }
    killed(tmp_path / "X.npy", tmp_path / "run", first, where[first](), after)
    found = latest(tmp_path / "run")
    backend = ENGINES[second]()
    result = resume(tmp_path / "run", grassia.from_rows(X, n_components=4), backend=backend, tol=1e-8)
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(X, 3)) <= 1e-8
    assert result.stats["seconds"] > found.header["seconds"] > 0.0


def test_an_interrupt_leaves_a_checkpoint_though_none_was_due(problem, tmp_path):
    def ctrl_c(progress):
        if progress.passes > 3:
            raise KeyboardInterrupt

    part = eigenspace(
        problem.components, 3, solver="power", checkpoint=tmp_path, callbacks=ctrl_c, weights=problem.weights
    )
    assert part.status is Status.INTERRUPTED
    assert part.stats["checkpoint"]["written"] == 1
    assert resume(tmp_path, problem.components).converged


# -- damage ---------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "altered":
        content[len(content) // 2] ^= 0x10
    elif how == "emptied":
        content = bytearray()
    else:
        path.unlink()
        return
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "altered", "emptied", "removed"])
@pytest.mark.parametrize("kind", ["json", "npz"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(problem, tmp_path, how, kind):
    begun(problem, tmp_path, stop=stopped_after(4), solver="power")
    older, newest = sorted(tmp_path.glob(f"*.{kind}"))
    damage(newest, how)
    if (how, kind) == ("removed", "json"):
        result = resume(tmp_path, problem.components)  # as if it had never been finished
    else:
        with pytest.warns(grassia.CheckpointWarning, match=re.escape(str(newest)) + " is damaged"):
            result = resume(tmp_path, problem.components)
    assert older.stem in result.stats["solver_reason"]
    assert result.converged
    assert projection_distance(result.vectors, problem.leading(3)) <= 1e-9


def test_where_every_checkpoint_is_damaged_all_are_named(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(4), solver="power")
    files = sorted(tmp_path.glob("*.npz"))
    for file in files:
        damage(file, "altered")
    with pytest.raises(grassia.InvalidInput) as error:
        resume(tmp_path, problem.components)
    assert all(str(file) in str(error.value) for file in files)


@settings(deadline=None)  # the first example makes the files
@given(place=st.floats(0.0, 1.0, exclude_max=True), bit=st.integers(0, 7))
def test_no_altered_byte_goes_unnoticed(tmp_path_factory, place, bit):
    folder = tmp_path_factory.getbasetemp() / "bytes"
    if not folder.exists():
        problem = heterogeneous(n=3, d=8, k=3, seed=0)
        begun(problem, folder, stop=stopped_after(3), solver="power")
    newest = max(folder.glob("*.json"))
    for file in (newest, newest.with_suffix(".npz")):
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[int(place * len(whole))] ^= 1 << bit
        file.write_bytes(changed)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = latest(folder)
            same = found.manifest != newest or json.loads(bytes(changed)) == json.loads(whole)
            assert same, told
        except grassia.InvalidInput as error:
            assert file.name in str(error)  # noqa: PT017  (another outcome is allowed, too)
        finally:
            file.write_bytes(whole)


def test_a_full_or_vanished_disk_costs_the_checkpoints_and_not_the_run(problem, tmp_path):
    folder = tmp_path / "gone"

    def remove(progress):
        if progress.version == 3:
            shutil.rmtree(folder)
            folder.write_text("a file in its place")

    with pytest.warns(grassia.CheckpointWarning, match="cannot write a checkpoint"):
        result = begun(problem, folder, stop=remove, solver="power")
    assert result.converged


def test_only_as_many_as_asked_for_are_kept(problem, tmp_path):
    eigenspace(problem.components, 3, solver="power", checkpoint=Checkpoint(tmp_path, updates=1, keep=3))
    assert len(list(tmp_path.glob("*.json"))) == len(list(tmp_path.glob("*.npz"))) == 3
    assert not list(tmp_path.glob("*.part"))


def test_checkpoints_come_as_often_as_asked_for(problem, tmp_path):
    options = {"solver": "power", "backend": Simulated(), "tol": 1e-8, "rng": 0}
    by_time = eigenspace(problem.components, 3, checkpoint=Checkpoint(tmp_path / "t", every=10.0), **options)
    kept = by_time.stats["checkpoint"]["written"]
    assert 0.7 * by_time.stats["seconds"] / 10.0 - 1 <= kept <= by_time.stats["seconds"] / 10.0 + 1
    plan = Checkpoint(tmp_path / "u", every=None, updates=20)
    by_updates = eigenspace(problem.components, 3, checkpoint=plan, **options)
    assert by_updates.stats["checkpoint"]["written"] == by_updates.stats["updates"] // 20 + 1


# -- what is refused ------------------------------------------------------------------------------


def test_other_data_than_those_of_the_run_are_refused(tmp_path):
    X = gaussian_rows(300, 15, 3, seed=3)
    plan = Checkpoint(tmp_path, updates=1)
    shards = grassia.from_rows(X, n_components=4)
    eigenspace(shards, 3, solver="power", checkpoint=plan, callbacks=stopped_after(4), rng=0)
    for other, words in (
        (grassia.from_rows(X[::-1], n_components=4), "component 0 is not that of the checkpoint"),
        (grassia.from_rows(X[:-1], n_components=4), "rows was"),
        (grassia.from_rows(X[:, :-1], n_components=4), "is not that of the checkpoint|features"),
        (grassia.from_rows(X, n_components=3), "4 components; got 3"),
        (grassia.from_rows(X, n_components=5), "4 components; got 5"),
    ):
        with pytest.raises(grassia.InvalidInput, match=words):
            resume(tmp_path, other)
    assert resume(tmp_path, shards).converged


@pytest.mark.parametrize("solver", ["covariance", "nystrom", "power"])
def test_other_data_with_the_same_sizes_and_traces_are_refused_too(tmp_path, solver):
    X = gaussian_rows(300, 15, 3, seed=3)
    A = [X[i::3].T @ X[i::3] for i in range(3)]
    hidden = [aslinearoperator(M) for M in A]  # of which no trace is known
    turned = [aslinearoperator(M[::-1, ::-1].copy()) for M in A]
    cases = {
        "columns": (grassia.from_rows(X, n_components=3), grassia.from_rows(X[:, ::-1], n_components=3)),
        "mean": (grassia.from_rows(X, n_components=3), grassia.from_rows(X + 1.0, n_components=3)),
        "operators": (hidden, turned),
    }
    for name, (mine, other) in cases.items():
        plan = Checkpoint(tmp_path / name, updates=1)
        eigenspace(mine, 3, solver=solver, checkpoint=plan, callbacks=stopped_after(1.4), rng=0)
        with pytest.raises(grassia.InvalidInput, match="is not that of the checkpoint"):
            resume(tmp_path / name, other)
        assert resume(tmp_path / name, mine).converged


def test_without_a_sketch_the_means_are_told_apart_and_no_read_is_added(tmp_path):
    X = gaussian_rows(300, 15, 3, seed=3)
    reads = []

    class Counted(grassia.data.RowsLoader):
        def open(self):
            component = super().open()
            multiply = component.apply
            component.apply = lambda *given, **named: (reads.append(1), multiply(*given, **named))[1]
            return component

    shards = [Counted(X[i::3]) for i in range(3)]
    counts = {}
    for sketch in (True, False):
        reads.clear()
        plan = Checkpoint(tmp_path / str(sketch), sketch=sketch)
        eigenspace(shards, 3, solver="covariance", checkpoint=plan, rng=0)
        counts[sketch] = len(reads)
    assert counts[True] == counts[False] + 3
    with pytest.raises(grassia.InvalidInput, match="its mean's direction was"):
        resume(tmp_path / "False", grassia.from_rows([X[i::3, ::-1] for i in range(3)]))
    for first, then in ((False, True), (True, False)):
        assert resume(Checkpoint(tmp_path / str(first), sketch=then), shards).converged


def test_a_folder_with_a_run_in_it_is_not_written_over(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(2))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(grassia.InvalidInput, match=r"grassia\.resume"):
        eigenspace(problem.components, 3, checkpoint=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda folder, parts: resume(folder / "none", parts), "no checkpoint in"),
        (lambda folder, parts: eigenspace(parts, 3, checkpoint=3), "path"),
        (lambda folder, parts: eigenspace(parts, 3, checkpoint=Checkpoint(folder, every=0.0)), "`every`"),
        (lambda folder, parts: eigenspace(parts, 3, checkpoint=Checkpoint(folder, keep=0)), "`keep`"),
        (lambda folder, parts: eigenspace(parts, 3, checkpoint=folder / "file" / "x"), "cannot make"),
    ],
)
def test_what_cannot_be_meant_is_refused(problem, tmp_path, call, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(grassia.InvalidInput, match=words):
        call(tmp_path, problem.components)


def test_another_k_is_refused(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(2))
    with pytest.raises(grassia.InvalidInput, match="has k=3; got k=2"):
        eigenspace(
            problem.components, 2, weights=problem.weights, checkpoint=Checkpoint(tmp_path, resume=True)
        )


def test_a_checkpoint_of_a_later_format_is_refused(problem, tmp_path):
    begun(problem, tmp_path, stop=stopped_after(2))
    for manifest in tmp_path.glob("*.json"):
        content = json.loads(manifest.read_text())
        content["grassia-checkpoint"] = 99
        del content["sha256"]
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        manifest.write_text(json.dumps(content))
    with pytest.raises(grassia.InvalidInput, match="format 99"):
        resume(tmp_path, problem.components)


# -- values as JSON and arrays --------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
arrays = hnp.arrays(st.sampled_from([np.float64, np.int64, np.bool_, np.float32]), hnp.array_shapes())
keys = st.integers() | st.text()
trees = st.recursive(
    scalars | arrays | st.sets(st.integers()),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=15,
)


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return bool(a == b or (a != a and b != b))


@given(trees)
def test_what_is_frozen_is_thawed_as_it_was(value):
    tree, held = freeze(value)
    assert same(thaw(json.loads(json.dumps(tree, allow_nan=False)), held), value)


def test_what_is_one_object_stays_one():
    shared = np.zeros(3)
    first, (second, third) = thaw(*freeze([shared, (shared, shared.copy())]))
    assert first is second
    assert first is not third


def test_only_classes_that_are_trusted_are_made():
    with pytest.raises(NotPlain, match="'subprocess'"):
        thaw({"object": {"class": "subprocess:Popen", "number": 1, "attributes": {}}}, [])
    with pytest.raises(NotPlain, match="no class"):
        thaw({"object": {"class": "grassia.api:eigenspace", "number": 1, "attributes": {}}}, [])


@pytest.mark.parametrize(
    "value",
    [
        len,
        (x for x in ()),
        np.array(["a"]),
        object(),
        b"bytes",
        namedtuple("Pair", "a b")(1, 2),
        OrderedDict(a=1),
        Status.CONVERGED,
        {1, "a"},
    ],
)
def test_what_cannot_be_written_is_refused(value):
    with pytest.raises(NotPlain, match="cannot be written"):
        freeze({"a": value})
