"""Rows that are in Ray's object store already, and Ray datasets."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import grassia
from backend_tasks import Post, sine
from conftest import ray_cluster
from grassia.backends import Processes, get
from grassia.errors import InvalidComponent
from grassia.messages import Lost, Restored
from ray_runs import engines, kinds, leading, rows

pytestmark = [pytest.mark.engines, pytest.mark.timeout(120)]


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    with engines() as make:
        yield make


def as_frame(X):
    return importlib.import_module("pandas").DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])


def as_arrow(X):
    return importlib.import_module("pyarrow").Table.from_pandas(as_frame(X))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, as_frame, as_arrow])
def test_objects_in_the_store_are_shards_that_can_be_read_here(form):
    ray = ray_cluster()
    X = rows()
    references = [ray.put(form(X[i : i + 30])) for i in (0, 30, 60)]
    components = grassia.from_rows(references)
    assert [loader.extent().n_rows for loader in components] == [30, 30, 30]
    assert components.n_features == 6
    assert components.sparse == (form is sp.csr_array)
    assert (components.feature_names is None) == (form in (np.asarray, sp.csr_array))
    result = grassia.eigenspace(components, 2, backend="threads", tol=1e-8, rng=0)
    assert result.converged
    assert sine(result, leading(X)) <= 1e-8


def test_objects_in_the_store_are_shards_that_actors_open():
    ray = ray_cluster()
    X = rows()
    forms = (np.asarray, sp.csr_array, as_frame, as_arrow)
    references = [
        ray.put(form(X[a:b])) for form, a, b in zip(forms, (0, 20, 40, 60), (20, 40, 60, 90), strict=True)
    ]
    result = grassia.eigenspace(
        grassia.from_rows(references), 2, backend=get("ray", workers=2), tol=1e-8, rng=0
    )
    assert result.converged
    assert sine(result, leading(X)) <= 1e-8


def test_one_object_can_be_cut_into_several_components():
    X = rows()
    components = grassia.from_rows(ray_cluster().put(X), 4)
    assert len(components) == 4
    np.testing.assert_array_equal(np.concatenate(list(components.blocks())), X)
    assert sine(grassia.eigenspace(components, 2, rng=0), leading(X)) <= 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["numpy", "columns", "filtered"])
def test_a_ray_dataset_is_read_block_by_block_where_it_is(kind):
    ray_cluster()
    data = importlib.import_module("ray.data")
    data.DataContext.get_current().enable_progress_bars = False
    X = rows()
    if kind == "numpy":
        dataset = data.from_numpy([X[:40], X[40:]])
        found = grassia.from_rows(dataset)
    else:
        dataset = data.from_pandas([as_frame(X[:40]).assign(key="a"), as_frame(X[40:]).assign(key="b")])
        if kind == "filtered":
            dataset, X = dataset.map_batches(lambda t: t[t["key"] == "b"], batch_format="pandas"), X[40:]
        found = grassia.from_rows(dataset, options={"drop": "key"})
        assert found.feature_names == tuple(f"c{j}" for j in range(6))
    assert found.n_rows == len(X)
    backend = get("ray" if kind == "numpy" else "threads", workers=1)
    result = grassia.eigenspace(found, 2, backend=backend, tol=1e-8, rng=0)
    assert sine(result, leading(X)) <= 1e-8


def test_an_array_in_the_store_is_used_in_place(engine):
    ray = ray_cluster()
    loader = grassia.from_rows(ray.put(rows(m=20_000)))[0]
    view = next(loader.blocks())
    assert not view.flags.owndata
    assert not view.flags.writeable  # the store's own memory
    post = Post(engine(1), [loader])
    assert post.ask(0, "open").scalars["count"] == 20_000.0


def test_the_store_keeps_an_object_as_long_as_an_actor_may_need_it(engine):
    """The program forgets its reference while the run goes on; the worker dies and reads again."""
    ray = ray_cluster()

    def started() -> Post:
        return Post(engine(1, faults="crash:0@1"), list(grassia.from_rows([ray.put(rows(m=50_000))])))

    post = started()
    assert post.ask(0, "open").scalars["count"] == 50_000.0
    post.send(0, "open")
    assert kinds(post.gather(2)) == [Lost, Restored]
    assert post.ask(0, "open").scalars["count"] == 50_000.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ones(3), "2-D"),
        ({"a": 1}, "dict"),
        (np.array([["a"]]), "real numbers"),
        (np.ones((0, 3)), "empty"),
    ],
)
def test_objects_that_are_no_rows_are_refused_with_their_number(value, words):
    ray = ray_cluster()
    with pytest.raises(InvalidComponent, match=words) as caught:
        grassia.from_rows([ray.put(np.eye(3)), ray.put(value)])
    assert caught.value.component == 1


def test_an_object_whose_task_failed_is_refused_with_the_cause():
    ray = ray_cluster()

    @ray.remote
    def broken():
        raise RuntimeError("no such telescope")

    with pytest.raises(InvalidComponent, match="no such telescope"):
        grassia.from_rows(broken.remote())


def test_references_do_not_travel_without_ray():
    components = grassia.from_rows(ray_cluster().put(rows()))
    with pytest.raises(InvalidComponent, match="backend='ray'"):
        Processes(1).start(list(components))
    with pytest.raises(InvalidComponent, match="backend='ray'"):
        pickle.dumps(components[0])


def test_bad_rows_in_the_store_are_reported_with_their_place():
    X = rows()
    X[7, 2] = np.nan
    with pytest.raises(InvalidComponent, match=r"row 7 of the Ray object"):
        grassia.eigenspace(grassia.from_rows([ray_cluster().put(X)]), 2, backend="ray")
