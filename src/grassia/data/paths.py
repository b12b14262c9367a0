"""What a path stands for: one file, the files a pattern matches, the files of a folder, or an address."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path

from grassia.data import formats
from grassia.data.formats.decoding import missing
from grassia.data.formats.remote import without_file_protocol
from grassia.errors import InvalidComponent

__all__ = ["Found", "find_files"]

# What marks a folder as a Zarr store, of format 3 and 2.
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a source, in order.

    Attributes
    ----------
    files : tuple of str
        Absolute, because workers may run in another folder; addresses as they were given.
    format : str
        "npy" or the name of a file in `grassia.data.formats`.
    several : bool
        Whether the path may stand for more than one file: a pattern or a folder.
    fragment : str or None
        What followed ``::``, the part of a file that is meant.
    """

    files: tuple[str, ...]
    format: str
    several: bool = False
    fragment: str | None = None


def find_files(source: str | os.PathLike[str]) -> Found:
    """The files that a path, pattern, folder or address stands for; none is opened.

    Raises
    ------
    InvalidComponent
        If there is none, or of several kinds, or of a kind that is not known.
    """
    text = without_file_protocol(os.fspath(source))
    if "://" in text:
        return Found((text,), "remote")
    text = os.path.expanduser(text)
    path, _, fragment = (text, "", "") if os.path.exists(text) else text.partition("::")
    part = fragment or None
    if os.path.isdir(path):
        return _in_folder(path, part)
    if os.path.exists(path):
        return Found((os.path.abspath(path),), _format(path), fragment=part)
    if glob.has_magic(path):
        return _matching(path, part)
    if Path(path).suffix:
        _format(path)  # a suffix that nothing reads is the better complaint
    raise missing(path)


def _suffixes() -> str:
    """The suffixes that are known, for errors; those of compressed files are left out."""
    packed = (".gz", ".bz2", ".xz", ".zip")
    return ", ".join([".npy", *(suffix for suffix in formats.BY_SUFFIX if not suffix.endswith(packed))])


def _format(path: str) -> str:
    if path.lower().endswith(".npy"):
        return "npy"
    found = formats.format_of_path(path)
    if found is None:
        raise InvalidComponent(
            f"a file of rows must have a suffix that tells its format ({_suffixes()}); got {path}; "
            "rename or convert it, or load it in a callable"
        )
    return found


def _in_folder(path: str, fragment: str | None) -> Found:
    if path.lower().rstrip("/").endswith(".zarr") or any(
        os.path.exists(os.path.join(path, mark)) for mark in _ZARR_MARKS
    ):
        return Found((os.path.abspath(path),), "zarr", fragment=fragment)
    folder = Path(path)
    # Names that begin with a dot or an underscore are notes of whoever wrote the folder.
    inside = [
        file
        for file in sorted(folder.rglob("*"))
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
        and not any(parent.suffix == ".zarr" for parent in file.relative_to(folder).parents)
    ]
    known = [str(file) for file in inside if _is_data(file)]
    if not known:
        other = sorted({file.suffix for file in inside if file.is_file()})
        holds = f"files of suffix {', '.join(map(repr, other))}" if other else "no files"
        raise InvalidComponent(
            f"a folder of rows must hold files of a known format ({_suffixes()}); {path} holds {holds}"
        )
    return _alike(known, path, fragment)


def _matching(pattern: str, fragment: str | None) -> Found:
    matched = sorted(glob.glob(_as_it_exists(pattern), recursive=True))
    if not matched:
        raise InvalidComponent(
            f"a pattern must match at least one file; {pattern} matches none from {os.getcwd()}"
        )
    folders = [path for path in matched if os.path.isdir(path) and not path.lower().endswith(".zarr")]
    if folders:
        raise InvalidComponent(
            f"a pattern must match files; {pattern} matches the folder {folders[0]}; "
            "end it with a suffix, such as *.parquet"
        )
    return _alike(matched, pattern, fragment)


def _as_it_exists(pattern: str) -> str:
    """The pattern with those of its first folders that exist escaped: brackets may be part of a name."""
    parts = Path(pattern).parts
    for n in range(len(parts) - 1, 0, -1):
        folder = os.path.join(*parts[:n])
        if os.path.isdir(folder):
            return os.path.join(glob.escape(folder), *parts[n:])
    return pattern


def _is_data(file: Path) -> bool:
    if file.suffix.lower() == ".zarr":
        return file.is_dir()
    name = file.name.lower()
    if ".txt" in file.suffixes:
        return (
            False  # in a folder more likely a note than LIBSVM text; a path or pattern that names it counts
        )
    return file.is_file() and (name.endswith(".npy") or formats.format_of_path(name) is not None)


def _alike(files: list[str], source: str, fragment: str | None) -> Found:
    kinds = {_format(path): path for path in reversed(files)}
    if len(kinds) > 1:
        first, second = sorted(kinds.values())[:2]
        raise InvalidComponent(
            f"the files of {source} must be of one format; there are {first} and {second}; "
            "give a pattern that matches one, such as *.parquet, or a list of paths"
        )
    return Found(tuple(map(os.path.abspath, files)), next(iter(kinds)), True, fragment)
