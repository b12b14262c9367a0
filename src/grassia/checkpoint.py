"""Checkpoints on disk: arrays and a JSON manifest with checksums; atomic, numbered, nothing pickled.

A checkpoint is two files, `checkpoint-N.npz` and `checkpoint-N.json`. Each is written under another name,
flushed to the disk and renamed, the manifest last, so that a manifest says that all of it is there. The last
few are kept: whoever is killed while writing, or finds the newest damaged, has the one before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from grassia._checks import require_count, require_positive
from grassia._lock import locked
from grassia.errors import CheckpointWarning, GrassiaError, InvalidInput
from grassia.frozen import freeze, thaw
from grassia.server import Server
from grassia.snapshot import Snapshot

log = logging.getLogger("grassia")

FORMAT = 1  # raised when an older reader would misread what is written
LOCK = "lock"
SHARE = 10.0  # a checkpoint that took t seconds is followed by at least so many t without one


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and how often a run is written down.

    Parameters
    ----------
    path : path
        A folder, made if it is not there. One run, one folder.
    every : float, optional
        Seconds from one checkpoint to the next (of the back-end's clock); None: not by time. Longer where
        writing would take more than a tenth of the time.
    updates : int, optional
        Also after so many updates of the iterate.
    keep : int
        How many of them to keep.
    resume : bool
        Go on from the checkpoint in the folder if there is one. Without it, a folder that has one is refused:
        nothing is overwritten unasked.
    sketch : bool
        Keep how each component sees a random vector, by which a resumed run notices other data that have the
        same counts, variances and means. Takes one more read of the data at the start.

    Examples
    --------
    >>> Checkpoint("run", every=30.0).keep
    2
    """

    path: str | Path
    every: float | None = 60.0
    updates: int | None = None
    keep: int = 2
    resume: bool = False
    sketch: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise InvalidInput(f"a checkpoint's `path` must be that of a folder; got {self.path!r}.")
        if self.every is not None:
            require_positive(self.every, "`every` (in seconds)")
        if self.updates is not None:
            require_count(self.updates, "`updates`")
        require_count(self.keep, "`keep`")

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def there(self) -> bool:
        """Whether the folder has one, damaged or not."""
        return bool(_manifests(self.folder))

    def remove(self, *more: str) -> None:
        """Remove the checkpoints in the folder, files of these names, and the folder if it is empty then.

        Nothing is done while a run is writing there.
        """
        if not self.folder.is_dir():
            return
        try:
            lock = _locked(self.folder)
        except InvalidInput:
            return
        for _, manifest in _manifests(self.folder):
            manifest.unlink(missing_ok=True)
            manifest.with_suffix(".npz").unlink(missing_ok=True)
        for name in (LOCK, *more):
            (self.folder / name).unlink(missing_ok=True)
        if lock is not None:
            lock.close()
        with suppress(OSError):  # there is something else in it
            self.folder.rmdir()


class Keeper:
    """Writes the checkpoints of one run.

    Parameters
    ----------
    plan : Checkpoint
        Where and how often.
    header : mapping
        What a resumed run must be told beside the server's state; plain values.
    """

    def __init__(self, plan: Checkpoint, header: Mapping[str, Any]) -> None:
        self.plan, self.header = plan, dict(header)
        self.written = 0
        self.seconds = 0.0
        self._pause = 0.0
        self._last_time: float | None = None
        self._last_updates = 0
        self._broken = False
        try:
            plan.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot make the folder {plan.folder}: {error.strerror}.") from error
        if not os.access(plan.folder, os.W_OK):
            raise InvalidInput(f"cannot write checkpoints into {plan.folder}: permission denied.")
        self._lock = _locked(plan.folder)
        self._number = max((number for number, _ in _manifests(plan.folder)), default=0)

    def close(self) -> None:
        """From now on others may write into the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def turn(self, server: Server) -> None:
        """Write one if it is time."""
        if self._last_time is None:
            self._last_time = server.now
        waited = server.now - self._last_time
        by_time = self.plan.every is not None and waited >= max(self.plan.every, self._pause)
        fresh = server.updates - self._last_updates
        if by_time or (self.plan.updates is not None and fresh >= self.plan.updates):
            self.write(server)

    def write(self, server: Server) -> Path | None:
        """Write one now; None where there is nothing yet, or it failed (then with a warning)."""
        snapshot = Snapshot.of(server)
        if snapshot is None:
            return None
        began = time.perf_counter()
        try:
            manifest = self._write(snapshot)
        except OSError as error:  # a full disk must not cost the run
            if not self._broken:
                warnings.warn(
                    f"cannot write a checkpoint to {self.plan.folder} ({error.strerror}); the run goes on.",
                    CheckpointWarning,
                    stacklevel=2,
                )
            self._broken = True
            return None
        finally:
            took = time.perf_counter() - began
            self._pause, self.seconds = SHARE * took, self.seconds + took
            self._last_time, self._last_updates = server.now, server.updates
        self._broken = False
        self.written += 1
        log.info("checkpoint %s after %d updates", manifest.name, server.updates)
        return manifest

    def _write(self, snapshot: Snapshot) -> Path:
        self._number += 1
        name = f"checkpoint-{self._number:08d}"
        arrays_at = self.plan.folder / f"{name}.npz"
        tree, arrays = freeze(snapshot)
        named: dict[str, Any] = {f"a{i}": array for i, array in enumerate(arrays)}
        _replace(arrays_at, lambda file: np.savez(file, **named))
        content = {
            "grassia-checkpoint": FORMAT,
            **self.header,
            "seconds": snapshot.seconds,
            "arrays": {"file": arrays_at.name, "sha256": _digest_of(arrays_at), "count": len(arrays)},
            "tree": tree,
        }
        content["sha256"] = _digest(content)
        manifest = self.plan.folder / f"{name}.json"
        _replace(manifest, lambda file: file.write(json.dumps(content).encode()))
        _flush(self.plan.folder)
        for number, old in _manifests(self.plan.folder)[: -self.plan.keep]:
            old.unlink(missing_ok=True)
            (self.plan.folder / f"checkpoint-{number:08d}.npz").unlink(missing_ok=True)
        return manifest


@dataclass(frozen=True)
class Found:
    """A checkpoint read back: the manifest's header, and how to make the snapshot."""

    manifest: Path
    header: dict[str, Any]
    arrays: Sequence[Any]

    def snapshot(self, modules: Sequence[str] = ()) -> Snapshot:
        """The moment it holds; `modules` beside this package's may have the classes of a solver's state."""
        try:
            made = thaw(self.header["tree"], self.arrays, modules)
        except GrassiaError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"{self.manifest} was written by another version and cannot be read: {error!r}."
            ) from error
        if not isinstance(made, Snapshot):
            raise InvalidInput(f"{self.manifest} holds no run.")
        return made


def latest(folder: str | Path) -> Found:
    """The newest checkpoint that is whole; one that is damaged is named in a `CheckpointWarning`.

    Raises
    ------
    InvalidInput
        Where there is none.
    """
    folder = Path(folder)
    manifests = _manifests(folder)
    if not manifests:
        raise InvalidInput(
            f"there is no checkpoint in {folder}; name the folder that a run was given as `checkpoint`."
        )
    refused = []
    for _, manifest in reversed(manifests):
        try:
            found = _read(manifest)
        except _Damaged as damage:
            refused.append(str(damage))
            continue
        for reason in refused:
            warnings.warn(f"{reason}; the one before is used.", CheckpointWarning, stacklevel=3)
        return found
    raise InvalidInput(f"no checkpoint in {folder} is whole: {'; '.join(refused)}.")


class _Damaged(Exception):
    pass


def _read(manifest: Path) -> Found:
    try:
        header = json.loads(manifest.read_bytes())
    except (OSError, ValueError) as error:
        raise _Damaged(f"{manifest} is damaged: it is no JSON ({error})") from error
    if not isinstance(header, dict) or "grassia-checkpoint" not in header:
        raise _Damaged(f"{manifest} is damaged: it is no manifest of a checkpoint")
    if header.pop("sha256", None) != _digest(header):
        raise _Damaged(f"{manifest} is damaged: its checksum does not match")
    if header["grassia-checkpoint"] != FORMAT:
        raise InvalidInput(
            f"{manifest} is of format {header['grassia-checkpoint']}; this version of grassia reads {FORMAT}."
        )
    arrays_at = manifest.parent / str(header["arrays"]["file"])
    try:
        if _digest_of(arrays_at) != header["arrays"]["sha256"]:
            raise _Damaged(f"{arrays_at} is damaged: its checksum does not match")
        with np.load(arrays_at, allow_pickle=False) as stored:
            arrays = [stored[f"a{i}"] for i in range(int(header["arrays"]["count"]))]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _Damaged(f"{arrays_at} is damaged: {error}") from error
    return Found(manifest, header, arrays)


def _manifests(folder: Path) -> list[tuple[int, Path]]:
    """The manifests in a folder with their numbers, the oldest first."""
    return sorted(_numbered(folder))


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("checkpoint-*.json"):
        number = path.stem.partition("-")[2]
        if number.isdecimal():
            yield int(number), path


def _locked(folder: Path) -> IO[bytes] | None:
    """Keep other runs from writing into a folder as long as this is open; None where a system cannot."""
    return locked(
        folder / LOCK,
        f"another run is writing checkpoints into {folder}; wait for its end, or take another folder.",
    )


def _replace(path: Path, write: Any) -> None:
    """Write a file under another name, see it on the disk, and give it its name."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _flush(folder: Path) -> None:
    """See the names on the disk, where a system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
