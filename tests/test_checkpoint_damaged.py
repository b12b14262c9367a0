"""Damaged checkpoints: named, never believed, and the one before is used."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grassia
from grassia import resume
from grassia.checkpoint import latest
from grassia.geometry import projection_distance
from interrupted_runs import begun, five_components, stopped_after
from problems import heterogeneous


@pytest.fixture
def problem():
    return five_components()


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
