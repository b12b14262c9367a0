"""What back-ends are made with: their names, numbers of workers, threads of BLAS; and copies of them."""

from __future__ import annotations

import copy
import pickle

import pytest

from backend_tasks import COUNT, Post, loaders
from grassia.backends import Processes, Serial, Simulated, Threads, get
from grassia.backends.base import cores, threads_for
from grassia.errors import InvalidInput

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"])
@pytest.mark.parametrize("name", ["threads", "processes", "simulated"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(name, workers):
    backend = get(name, workers=workers)
    with pytest.raises(InvalidInput, match=f"got {workers!r}"):
        backend.start(loaders(2))


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", [Serial, Threads, Processes, Simulated])
def test_a_copy_of_a_back_end_is_a_new_one_with_the_same_parameters(kind, how):
    options = {} if kind is Serial else {"workers": 2}
    with kind(faults="duplicate:0@1", **options) as backend:
        Post(backend, loaders(3)).ask(0, COUNT)
        other = how(backend)
        assert other is not backend
        assert other.groups == []
        with other:
            other_post = Post(other, loaders(3))
            assert other.groups == backend.groups
            assert other_post.ask(0, COUNT).scalars["seen"] == 1
            other_post.send(0, COUNT)
            assert len(other_post.gather(2)) == 2  # the injected fault is its own, too


@pytest.mark.parametrize(("said", "least", "most"), [("1", 1, 1), ("1000", 1, 1000), ("many", 1, 1000)])
def test_what_the_environment_allows_blas_is_a_limit_for_workers(said, least, most, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert least <= threads_for(1, None) <= min(most, cores())
    assert threads_for(1, 3) == 3


def test_an_unknown_engine_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'processes'.*got 'abacus'"):
        get("abacus")


def test_options_beside_a_back_end_object_are_refused(engine):
    with pytest.raises(InvalidInput, match="workers"):
        get(engine(), workers=2)
