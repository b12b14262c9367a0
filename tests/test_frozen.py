"""Values as JSON and arrays: thawed as they were frozen, or refused."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grassia import Status
from grassia.frozen import NotPlain, freeze, thaw

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
