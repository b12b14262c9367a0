"""Checkpoints: what is written and when, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest
from scipy.sparse.linalg import aslinearoperator

import grassia
from grassia import Checkpoint, eigenspace, resume
from grassia.backends import Serial, Simulated
from interrupted_runs import begun, five_components, stopped_after
from problems import gaussian_rows


@pytest.fixture
def problem():
    return five_components()


# -- what is written ------------------------------------------------------------------------------


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


def test_a_run_that_starts_slowly_does_not_overwrite_one_that_is_over_by_then(problem, tmp_path):
    class SlowToStart(Serial):
        def start(self, loaders):
            super().start(loaders)
            begun(problem, tmp_path, stop=stopped_after(2))

    with pytest.raises(grassia.InvalidInput, match="holds the checkpoint of a run"):
        eigenspace(problem.components, 2, checkpoint=tmp_path, backend=SlowToStart())
    assert resume(tmp_path, problem.components).converged


def test_a_resumed_run_is_not_recorded(problem, tmp_path):
    begun(problem, tmp_path / "run", stop=stopped_after(2))
    plan = Checkpoint(tmp_path / "run", resume=True)
    with pytest.raises(grassia.InvalidInput, match="`record` must be None"):
        eigenspace(
            problem.components, 3, weights=problem.weights, checkpoint=plan, record=tmp_path / "log.jsonl"
        )


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
