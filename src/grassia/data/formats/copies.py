"""Copies of remote files on this machine, for formats whose libraries want a file; limited in size."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grassia._optional import require
from grassia.data.formats.npy import NpyStore
from grassia.data.formats.remote import Address, reaching, suffixed_name
from grassia.errors import InvalidComponent

__all__ = ["CACHE_LIMIT", "CACHE_VARIABLE", "CopiedOpener", "cache_folder", "copied"]

#: The most bytes that copies of remote files may take on one machine, unless told.
CACHE_LIMIT = 20 * 10**9
CACHE_VARIABLE = "GRASSIA_CACHE"

# A copy used less long ago than this may be in use: it is not removed to make room for another.
_IN_USE_SECONDS = 3600.0


@dataclass(frozen=True)
class CopiedOpener:
    """A file, or folder, at an address that is copied to the machine where it is opened."""

    url: Address
    cache_limit: int
    options: tuple[tuple[str, Any], ...] = field(default=(), hash=False)

    @property
    def name(self) -> str:
        return self.url

    @property
    def kind(self) -> str:
        from grassia.data import formats

        return formats.format_of_path(suffixed_name(self.url)) or ".npy"

    @property
    def note(self) -> str:
        return "copied to this machine"

    def open(self) -> Any:
        from grassia.data import formats

        with reaching(self.url):
            path = copied(self.url, self.cache_limit)
        if path.lower().endswith(".npy"):
            return NpyStore(path)
        return formats.open_path(path, dict(self.options)).open()


def copied(url: Address, limit: int) -> str:
    """The path of this machine's copy, made unless it is there already; workers of one machine share it.

    Raises
    ------
    InvalidComponent
        If there is no such file, or no room for it.
    """
    fs, path = require("fsspec", "data").url_to_fs(str(url), **url.storage_options)
    path = path.rstrip("/")
    if not fs.exists(path):
        raise FileNotFoundError(url)
    wanted = [path]
    if path.lower().endswith(".bed"):  # PLINK's three files
        wanted += [path[:-4] + suffix for suffix in (".bim", ".fam") if fs.exists(path[:-4] + suffix)]
    size = sum(int(fs.du(file)) for file in wanted)
    if size > limit:
        raise InvalidComponent(
            f"{url} must be at most {limit / 1e9:g} GB to be copied to this machine; it has {size / 1e9:.3g} "
            "GB; give options={'cache_limit': bytes} to allow more, or store it as .npy, read where it lies"
        )
    version = "\0".join([url, *(str(fs.ukey(file)) for file in wanted)])
    folder = cache_folder()
    place = folder / hashlib.sha256(version.encode()).hexdigest()[:24]
    found = place / Path(path).name
    if found.exists():
        os.utime(place)
        return str(found)
    folder.mkdir(parents=True, exist_ok=True)
    _make_room(folder, limit - size, url)
    making = tempfile.mkdtemp(prefix="making-", dir=folder)
    try:
        for file in wanted:
            fs.get(file, str(Path(making) / Path(file).name), recursive=bool(fs.isdir(file)))
        # Another worker may have been quicker; then its copy is as good.
        with contextlib.suppress(OSError):
            os.rename(making, place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return str(found)


def cache_folder() -> Path:
    """Where copies of remote files are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grassia" / "remote"


def _make_room(folder: Path, room: int, url: str) -> None:
    """Remove copies, those used longest ago first, until the others take at most `room` bytes."""
    places = sorted((place for place in folder.iterdir() if place.is_dir()), key=_used)
    sizes = {place: sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) for place in places}
    total = sum(sizes.values())
    for place in places:
        if total <= room:
            return
        if time.time() - _used(place) > _IN_USE_SECONDS:
            shutil.rmtree(place, ignore_errors=True)
            total -= sizes[place]
    if total > room:
        raise InvalidComponent(
            f"there must be room for a copy of {url}; {folder} has {total / 1e9:.3g} GB of copies used "
            "within the hour; give options={'cache_limit': bytes} to allow more, or remove that folder"
        )


def _used(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:  # another worker has just removed it
        return 0.0
