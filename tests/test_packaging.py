"""What is shipped: the wheel, the sdist, the metadata, and files that must agree with each other.

`.ci/run` installs the wheel with its dependencies from the package index; here, where there may be none,
an environment is made of the dependencies that are installed already, and of nothing else.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.message import Message
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a "wheel" or an "sdist" of a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"grassia-{PROJECT['project']['version']}"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_string(archive.read(name).decode("utf-8"))


# -- the wheel ----------------------------------------------------------------------------------------


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


def test_the_metadata_say_what_the_project_says(metadata):
    project = PROJECT["project"]
    assert metadata["Name"] == "grassia"
    assert metadata["Version"] == project["version"]
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == project["requires-python"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert not [name for name in ("Home-page", "Download-URL", "Project-URL") if name in metadata]
    classified = {c.rpartition(" ")[2] for c in metadata.get_all("Classifier") if "Python :: 3." in c}
    assert min(classified, key=lambda version: int(version[2:])) in metadata["Requires-Python"]


def test_whoever_installs_all_gets_every_extra_that_users_have(metadata):
    extras = PROJECT["project"]["optional-dependencies"]
    wanted: dict[str, set[str]] = {name: set() for name in extras}
    for line in metadata.get_all("Requires-Dist"):
        requirement = Requirement(line)
        for name in extras:
            marker = requirement.marker
            if marker is not None and marker.evaluate({"extra": name}) and not marker.evaluate({"extra": ""}):
                wanted[name].add(requirement.name)
    for_developers = {"test", "lint", "docs", "browser", "dev"}
    assert for_developers <= set(extras)
    for name in set(extras) - for_developers:
        assert wanted[name], name
        assert wanted[name] <= wanted["all"], name
    assert wanted["test"] | wanted["lint"] <= wanted["dev"]


# -- the sdist ----------------------------------------------------------------------------------------


def contents(wheel: Path) -> dict[str, str]:
    """A hash of every file in a wheel."""
    archive = zipfile.ZipFile(wheel)
    return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_the_same_wheel_can_be_built_from_the_sdist(wheel, unpacked_sdist, tmp_path):
    assert contents(build("wheel", unpacked_sdist, tmp_path)) == contents(wheel)


def test_the_sdist_holds_what_users_read_run_and_test_and_no_leftovers(unpacked_sdist):
    held = {str(path.relative_to(unpacked_sdist)) for path in unpacked_sdist.rglob("*") if path.is_file()}
    shipped = ["src/*.py", "tests/*.py", "benchmarks/*.py", "examples/*.py", "examples/*.ipynb", "docs/*.md"]
    for folder, pattern in (one.split("/") for one in shipped):
        files = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob(pattern)}
        assert files, folder
        assert files <= held, sorted(files - held)
    at_the_root = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "Makefile"}
    assert at_the_root <= held
    odd = [name for name in held if re.search(r"__pycache__|\.venv|\.pytest_cache|\.hypothesis|^site/", name)]
    assert not odd


def test_tests_of_the_sdist_find_all_that_they_need(unpacked_sdist):
    """Collecting them imports every test module and all that those import."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked_sdist / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command, cwd=unpacked_sdist, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "test_the_sdist_holds" in done.stdout


# -- an environment with core dependencies only -------------------------------------------------------


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distribution of that name and all that it needs, without extras."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name.lower().replace("_", "-"), found)
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it declares to need: its interpreter."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    found: dict[str, Distribution] = {}
    for line in metadata.get_all("Requires-Dist"):
        requirement = Requirement(line)
        if requirement.marker is None:
            needed(requirement.name, found)
    for one in found.values():
        assert one.files is not None
        for top in {file.parts[0] for file in one.files} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(one.locate_file(top))).resolve())
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--quiet", str(wheel)], check=True, capture_output=True, timeout=120)
    return interpreter


def test_the_installed_package_works_with_its_core_dependencies_alone(clean, tmp_path):
    for absent in ("matplotlib", "pandas", "pyarrow", "pytest"):
        probe = f"import importlib.util; assert importlib.util.find_spec({absent!r}) is None"
        subprocess.run([clean, "-I", "-c", probe], check=True, timeout=60)
    smoke = [clean, "-I", ROOT / "tests" / "smoke_installed.py"]
    done = subprocess.run(smoke, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"grassia {PROJECT['project']['version']} works")


def test_a_type_checker_sees_the_types_of_the_installed_package(clean, tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "good.py").write_text(
        "import numpy as np\n"
        "import grassia\n"
        "result = grassia.eigenspace(grassia.from_rows(np.eye(4), n_components=2), k=1, rng=0)\n"
        "status: grassia.Status = result.status\n"
        "pca: grassia.PCA = grassia.PCA(n_components=2).fit(np.eye(4))\n"
    )
    (tmp_path / "bad.py").write_text("import grassia\ngrassia.eigenspace([], k='three').stattus\n")

    def checked(name: str) -> str:
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(clean), name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        return done.stdout + done.stderr

    assert checked("good.py").startswith("Success")
    told = checked("bad.py")
    assert "[arg-type]" in told
    assert "[attr-defined]" in told


# -- files that must agree ----------------------------------------------------------------------------


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
