"""What is shipped: the wheel, the metadata, and files that must agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_its_types_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = ROOT / "src"
    wanted = {str(path.relative_to(sources)) for path in sources.glob("grassia/**/*.py")}
    assert wanted | {"grassia/py.typed"} == {n for n in names if ".dist-info/" not in n}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_alone_can_be_imported_and_run(wheel, tmp_path):
    command = [sys.executable, "-m", "grassia", "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == f"grassia {PROJECT['project']['version']}\n"


def test_the_extras_named_in_errors_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    named = re.findall(r"""require\("[\w.]+", "(\w+)"\)""", sources)
    assert set(named) <= set(extras)
    assert "plot" in named


def test_the_versions_agree():
    version = PROJECT["project"]["version"]
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert version in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_make_targets_that_the_pages_name_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)`", text, re.M))
        assert {a or b for a, b in named} <= targets, page
        assert named, page
