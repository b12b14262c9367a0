"""Rows that are on a Dask cluster already: chunks of arrays, delayed objects, futures."""

from __future__ import annotations

import os
import signal
from typing import Any

import cloudpickle
import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from backend_tasks import Post, sine
from conftest import eventually
from dask_runs import WHERE, full_client
from grassia.backends.dask import Dask
from grassia.errors import InvalidComponent

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
pd = pytest.importorskip("pandas")

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def client() -> Any:
    return full_client()


def rows(m=120, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((m, d)) * np.r_[5.0, 4.0, np.ones(d - 2)]


def leading(X, k=2):
    return np.linalg.eigh(np.cov(X.T))[1][:, -k:]


def made(i):
    return rows(30, seed=i)


def test_the_chunks_of_a_persisted_array_are_opened_where_they_are(client):
    X = rows()
    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = [client.scatter(X[i : i + 30], workers=[addresses[3 - i // 30]]) for i in range(0, 120, 30)]
    array = da.concatenate([da.from_delayed(dask.delayed(p), (30, 6), float) for p in parts])
    persisted = client.persist(array, workers={}, allow_other_workers=False)
    distributed.wait(persisted)
    components = grassia.from_rows(persisted)
    assert all(len(cloudpickle.dumps(loader)) < 5_000 for loader in components)
    holders = client.who_has(distributed.futures_of(persisted))
    expected = [set(holders[(persisted.name, i, 0)]) for i in range(4)]
    with Dask(client=client) as backend:
        post = Post(backend, components)
        assert all(post.ask(i, WHERE).scalars["address"] in expected[i] for i in range(4))
    result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
    assert sine(result, leading(X)) <= 1e-6


def test_a_chunk_that_dies_with_its_worker_is_computed_again(client):
    array = da.concatenate([da.from_delayed(dask.delayed(made)(i), (30, 6), float) for i in range(4)])
    persisted = array.persist()
    distributed.wait(persisted)
    X = np.concatenate([made(i) for i in range(4)])
    components = grassia.from_rows(persisted)
    victim = client.who_has(distributed.futures_of(persisted))[(persisted.name, 0, 0)][0]
    pid = client.run(os.getpid, workers=[victim])[victim]
    killed = []

    def kill(progress):
        if progress.passes >= 2.0 and not killed:
            killed.append(os.kill(pid, signal.SIGKILL))

    result = grassia.eigenspace(
        components, 2, solver="grassia", backend=Dask(client=client), tol=1e-8, rng=0, callbacks=kill
    )
    assert killed
    assert sine(result, leading(X)) <= 1e-8
    assert "worker restored" in {event.kind for event in result.history.events}


def test_what_is_made_of_a_persisted_array_is_computed_on_the_cluster(client):
    X = rows()
    persisted = da.from_array(X, chunks=(40, 3)).persist()
    for n in (None, 2):
        components = grassia.from_rows(persisted * 2.0 + 1.0, n)
        result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
        assert sine(result, leading(X)) <= 1e-6


def test_a_lazy_array_whose_chunks_the_client_knows_is_not_computed_twice(client):
    lazy = da.from_array(rows(), chunks=(30, 6)) + 0.0
    kept = lazy.persist()
    distributed.wait(kept)
    for loader in grassia.from_rows(lazy):
        assert {future.key for future in loader.opener.futures} <= set(client.futures)
        assert len(loader.opener.futures) == 1


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array, pd.DataFrame])
@pytest.mark.parametrize("source", ["delayed", "persisted", "futures"])
def test_delayed_objects_and_futures_are_shards(client, kind, source):
    X = rows()
    shards = [dask.delayed(kind)(X[i : i + 40]) for i in range(0, 120, 40)]
    if source == "persisted":
        shards = list(dask.persist(*shards))
    elif source == "futures":
        shards = client.compute(shards)
    components = grassia.from_rows(shards)
    assert len(components) == 3
    assert ("future" if source == "futures" else "delayed") in components.describe()
    result = grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)
    assert sine(result, leading(X)) <= 1e-6


def test_rows_on_a_cluster_can_be_had_by_the_program_but_not_by_its_processes(client):
    X = rows()
    persisted = da.from_array(X, chunks=(60, 6)).persist()
    for components in (grassia.from_rows(persisted), grassia.from_rows(client.compute([dask.delayed(X)]))):
        result = grassia.eigenspace(components, 2, backend="threads", rng=0)
        assert sine(result, leading(X)) <= 1e-6
    with pytest.raises(InvalidComponent, match="use backend='dask'"):
        grassia.eigenspace(components, 2, backend="processes", rng=0)


def test_rows_that_were_cancelled_are_named(client):
    future = client.submit(made, 1)
    distributed.wait(future)
    components = grassia.from_rows([future])
    future.cancel()
    assert eventually(lambda: not client.who_has().get(future.key))
    with pytest.raises(InvalidComponent, match="persist it again"):
        grassia.eigenspace(components, 2, backend=Dask(client=client), rng=0)


def test_a_delayed_object_that_raises_is_named(client):
    shard = dask.delayed(int)("pears")
    for source in (shard, client.compute(shard)):
        with pytest.raises(InvalidComponent, match=r"cannot be computed: ValueError.*pears"):
            grassia.eigenspace(grassia.from_rows([source]), 2, backend=Dask(client=client), rng=0)
