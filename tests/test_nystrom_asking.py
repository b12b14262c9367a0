"""Whom `nystrom` asks, and when: quick ones do not work in vain, and a straggler is asked well."""

from __future__ import annotations

import numpy as np
import pytest

import grassia
from grassia.backends import Serial, Simulated
from grassia.backends.service import straggler
from grassia.geometry import projection_distance
from grassia.messages import Lost, Restored
from grassia.probing import OPTION
from grassia.server import SOLVING, Server
from grassia.solvers import Nystrom
from grassia.worker import Worker
from problems import gaussian_rows, leading_of_rows

K = 3


@pytest.fixture(scope="module")
def shards():
    return np.array_split(gaussian_rows(2000, 60, K, seed=4), 4)


def test_while_a_straggler_has_yet_to_answer_the_others_fall_idle(shards):
    counts = {}

    def look(progress):
        if progress.answers[0] == 1:  # its data is open, its first answer is under way
            counts.setdefault("first", progress.answers)
            counts["last"] = progress.answers

    result = grassia.eigenspace(
        grassia.from_rows(shards),
        K,
        solver="nystrom",
        backend=Simulated(straggler(4, 40.0)),
        callbacks=look,
        rng=0,
    )
    more = np.subtract(counts["last"], counts["first"])[1:]
    assert result.converged
    assert more.max() <= 10  # of the forty that they had time for


class ByHand:
    """A run whose answers come in as a test says."""

    def __init__(self, shards):
        self.server = Server(Nystrom(), K, [[0], [1], [2], [3]], rng=np.random.default_rng(0))
        self.worker = Worker(dict(enumerate(grassia.from_rows(shards))))
        self.out = {}
        self.now = 0.0
        self.send()

    def send(self):
        sent = self.server.due()
        self.out.update({task.component: task for task in sent})
        return {task.component for task in sent}

    def answer(self, *components):
        """These answer, together; who is asked then."""
        self.now += 1.0
        self.server.tell([self.worker.handle(self.out.pop(i)) for i in components], self.now)
        return self.send()

    def to_the_straggler(self, turns=12):
        """Everybody is open, all but component 0 have answered until they had nothing to say."""
        self.answer(0, 1, 2, 3)
        for _ in range(turns):
            quick = sorted(set(self.out) - {0})
            if not quick:
                return
            self.answer(*quick)

    def finish(self):
        for _ in range(100):
            if self.server.status is not None:
                return
            self.answer(*sorted(self.out))


def test_a_straggler_that_has_answered_is_asked_again_after_the_others(shards):
    run = ByHand(shards)
    run.to_the_straggler()
    assert set(run.out) == {0}
    assert run.answer(0) == {1, 2, 3}  # what it said is news to them
    assert 0 not in run.answer(1)
    assert 0 not in run.answer(2)
    assert 0 in run.answer(3)
    run.finish()
    assert run.server.status is grassia.Status.CONVERGED


def test_who_is_lost_is_not_waited_for_before_a_straggler_is_asked(shards):
    run = ByHand(shards)
    run.to_the_straggler()
    run.server.tell([Lost((3,), "it died")], run.now)
    assert run.answer(0) == {1, 2}
    assert 0 not in run.answer(1)
    assert 0 in run.answer(2)
    run.server.tell([Restored((3,))], run.now)
    assert run.send() == {3}
    run.finish()
    assert run.server.status is grassia.Status.CONVERGED


def test_who_is_lost_later_does_not_keep_a_straggler_waiting_either(shards):
    run = ByHand(shards)
    run.to_the_straggler()
    assert run.answer(0) == {1, 2, 3}
    run.answer(1)
    assert 0 not in run.answer(2)
    run.server.tell([Lost((3,), "it died")], run.now)
    del run.out[3]
    assert 0 in run.send() | set(run.out)
    assert run.server.phase == SOLVING


def columns_asked(task):
    """(of the solver's own, of the probe)"""
    probe = int(task.query.options.get(OPTION) or 0)
    return task.query.arrays["block"].shape[1] - probe, probe


@pytest.mark.parametrize(("turns", "own"), [(1, False), (2, False), (6, True)])
def test_who_opens_late_multiplies_the_probe_until_there_is_something_to_ask(shards, turns, own):
    """After few answers of the others; later they know what its first question had better be."""
    run = ByHand(shards)
    run.answer(1, 2, 3)
    for _ in range(turns):
        run.answer(*sorted(set(run.out) - {0}))
    assert run.server.early_answers > 0
    assert 0 in run.answer(0)
    solver, probe = columns_asked(run.out[0])
    assert probe > 0
    assert (solver > 0) == own
    for _ in range(6):  # the others go on meanwhile
        run.answer(*sorted(set(run.out) - {0}))
    run.answer(0)
    if not own:
        assert columns_asked(run.out[0]) == (8, 0)
    run.finish()
    assert run.server.status is grassia.Status.CONVERGED
    assert projection_distance(run.server.result({}).vectors, leading_of_rows(np.vstack(shards), K)) < 1e-6


def test_one_worker_with_all_components_goes_on_as_ever(shards):
    """There each answer comes in while nobody else is out."""
    result = grassia.eigenspace(
        grassia.from_rows(shards), K, solver="nystrom", backend=Serial(), rng=0, tol=1e-9
    )
    assert result.converged
    assert projection_distance(result.vectors, leading_of_rows(np.vstack(shards), K)) < 1e-9
