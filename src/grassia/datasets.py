"""The public data sets of the experiments. Nothing is bundled: files are found locally or downloaded.

`load` looks into the folder that the environment variable `GRASSIA_DATA` names, then into the cache, then
downloads from the data set's public site (extra `data`: pooch). Every file is checked against its SHA-256,
wherever it came from.

The LIBSVM text files exist with either kind of line end, with and without a blank last line. So their
checksum is that of the *plain* text: lines ended by one newline each, no blank line at the end. Downloads are
written in that form.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._checks import require_count
from grassia._optional import require
from grassia.errors import InvalidInput, MissingExtra

__all__ = ["Dataset", "DatasetUnavailable", "fetch", "load", "local", "names"]

FOLDER_VARIABLE = "GRASSIA_DATA"


class DatasetUnavailable(InvalidInput):
    """A data set can neither be found nor downloaded, or a file of it is not what it should be."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows and labels.

    Attributes
    ----------
    name : str
    X : sparse matrix or ndarray (m, d)
        CSR in float64 for the LIBSVM sets, raw bytes (0 to 255) for images; never centred.
    y : ndarray (m,)
        Labels, as the files have them.
    """

    name: str
    X: Any
    y: NDArray[Any]


@dataclass(frozen=True, slots=True)
class File:
    """One public file: where it is, its checksum, and whether it is text whose line ends may vary."""

    name: str
    url: str
    sha256: str
    text: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A data set: its files, shape (at most so many rows, features), the rows loaded unless told."""

    files: tuple[File, ...]
    read: Callable[[str, Path, int], Dataset]
    most_rows: int
    features: int
    rows: int


# -- what users call ----------------------------------------------------------------------------


def names() -> list[str]:
    """The data sets there are.

    >>> names()
    ['a1a', 'cifar10', 'mnist', 'w1a', 'w8a']
    """
    return sorted(_SOURCES)


def load(name: str, *, rows: int | None = None, progress: bool = False) -> Dataset:
    """Rows and labels of a public data set, downloaded and checked if need be.

    Parameters
    ----------
    name : {"a1a", "w1a", "w8a", "cifar10", "mnist"}
        The training sets. LIBSVM's a1a (1605 x 123), w1a (2477 x 300) and w8a (49749 x 300) are sparse;
        CIFAR-10 (3072 features: the red, then the green, then the blue 32 x 32 image) and MNIST (784) are
        bytes.
    rows : int, optional
        So many first rows. Default: all; for "cifar10" 5000, those of the paper, of 50000.
    progress : bool
        Show the progress of a download.

    Raises
    ------
    DatasetUnavailable
        If it cannot be had, with what to do about it; or if a file has the wrong checksum.
    """
    source = _source(name)
    if rows is not None:
        require_count(rows, "`rows`")
        if rows > source.most_rows:
            raise InvalidInput(f"`rows` of {name} must be at most {source.most_rows}; got {rows}.")
    wanted = source.rows if rows is None else rows
    return source.read(name, _path(name, wanted, progress), wanted)


def fetch(name: str, *, progress: bool = False) -> Path:
    """The path of a data set's (first) file, downloaded if need be; more files lie beside it."""
    return _path(name, _source(name).rows, progress)


def local(name: str) -> Path | None:
    """The path of a data set's (first) file in the folder `GRASSIA_DATA` names; None if it is not there."""
    return _local(name, _source(name).rows)


# -- finding files ------------------------------------------------------------------------------


def _source(name: str) -> Source:
    if not isinstance(name, str) or name not in _SOURCES:
        known = ", ".join(map(repr, names()))
        raise InvalidInput(f"`name` must be one of {known}; got {name!r}.")
    return _SOURCES[name]


def _path(name: str, rows: int, progress: bool) -> Path:
    found = _local(name, rows)
    return _download(name, _source(name).files, progress) if found is None else found


def _local(name: str, rows: int) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise DatasetUnavailable(
            f"the environment variable {FOLDER_VARIABLE} must name a folder; got {folder!r}. Correct it, or "
            "unset it to have data sets downloaded."
        )
    if name == "cifar10" and rows <= _EXTRACT_ROWS and (Path(folder) / _EXTRACT).is_file():
        return Path(folder) / _EXTRACT
    files = _source(name).files
    if not all((Path(folder) / file.name).is_file() for file in files):
        return None
    for file in files:
        _check(Path(folder) / file.name, file)
    return Path(folder) / files[0].name


def _check(path: Path, file: File) -> None:
    data = path.read_bytes()
    found = hashlib.sha256(plain_text(data) if file.text else data).hexdigest()
    if found != file.sha256:
        raise _mismatch(path, file.sha256, found)


def _mismatch(path: Path | str, wanted: str, found: str) -> DatasetUnavailable:
    return DatasetUnavailable(
        f"{path} must have the SHA-256 {wanted}; it has {found}. It is damaged or another version: "
        "remove it, so that it is fetched anew."
    )


def plain_text(data: bytes) -> bytes:
    """Text with one newline after each line and no blank line at the end.

    >>> plain_text(b"1 2:1 \\r\\n-1 3:1\\r\\n\\r\\n")
    b'1 2:1 \\n-1 3:1\\n'
    """
    return data.replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"


def _download(name: str, files: tuple[File, ...], progress: bool) -> Path:
    """Fetch files into the cache, unless they are there; the path of the first."""
    here = (
        f"put {', '.join(file.name for file in files)} into a folder and name that folder in the environment "
    )
    here += f"variable {FOLDER_VARIABLE}"
    try:
        pooch = require("pooch", "data")
    except MissingExtra as error:
        raise DatasetUnavailable(
            f"the data set {name} is not here, and to download it {error}. Or {here}."
        ) from error
    folder = Path(pooch.os_cache("grassia"))
    paths = []
    for file in files:
        try:
            with _quiet(pooch), _bar(file.name, progress) as bar:
                found = pooch.retrieve(
                    file.url,
                    known_hash=f"sha256:{file.sha256}",
                    fname=file.name,
                    path=folder,
                    downloader=_Downloader(pooch.HTTPDownloader(progressbar=bar, timeout=30), file.text),
                )
        except ValueError as error:  # what pooch raises for a wrong checksum
            raise DatasetUnavailable(
                f"{file.url} must have the SHA-256 {file.sha256}, and has not: the download is damaged, or "
                f"the file was changed. Try again, or {here}."
            ) from error
        except OSError as error:  # no network, a server's refusal, a disk that is full
            raise DatasetUnavailable(
                f"the data set {name} is not here and {file.url} cannot be downloaded to {folder} "
                f"({type(error).__name__}). Either mend the connection and try again, or {here}."
            ) from error
        paths.append(Path(found))
    return paths[0]


class _Downloader:
    """Pooch's own downloader; a text is written in its plain form, of which the checksum is taken."""

    def __init__(self, http: Any, text: bool) -> None:
        self._http, self._text = http, text

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        if not self._text:
            self._http(url, output_file, pooch)
            return
        held = io.BytesIO()
        self._http(url, held, pooch)
        Path(output_file).write_bytes(plain_text(held.getvalue()))


@contextlib.contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    """Pooch's log says what we say already."""
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bar:
    """What pooch wants of a progress bar, drawn by rich."""

    def __init__(self, display: Any, name: str) -> None:
        self._display, self._task = display, display.add_task(name, total=None)
        self.total = 0

    def update(self, count: int) -> None:
        self._display.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._display.reset(self._task)

    def close(self) -> None:
        self._display.refresh()


@contextlib.contextmanager
def _bar(name: str, wanted: bool) -> Iterator[_Bar | bool]:
    if not wanted:
        yield False
        return
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, transient=True) as display:
        yield _Bar(display, name)


# -- reading files ------------------------------------------------------------------------------


def _read_libsvm(name: str, path: Path, rows: int) -> Dataset:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(path), n_features=_SOURCES[name].features)
    return Dataset(name, X.tocsr()[:rows], y[:rows])


def _read_cifar(name: str, path: Path, rows: int) -> Dataset:
    images, labels = _read_extract(path) if path.name == _EXTRACT else _read_batches(path, rows)
    wanted = {"images": _EXTRACT_SHA256, "labels": _EXTRACT_LABELS_SHA256}
    for what, data in {"images": images, "labels": np.asarray(labels).astype(np.uint8)}.items():
        found = hashlib.sha256(np.ascontiguousarray(data[:_EXTRACT_ROWS]).tobytes()).hexdigest()
        if len(images) >= _EXTRACT_ROWS and found != wanted[what]:
            raise DatasetUnavailable(
                f"the first {_EXTRACT_ROWS} {what} in {path} must have the SHA-256 {wanted[what]}; they "
                f"have {found}. Remove the file, so that it is fetched anew."
            )
    return Dataset(name, images[:rows], labels[:rows])


def _read_extract(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(path) as file:
            return np.ascontiguousarray(file["images"]), file["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetUnavailable(
            f"{path} must be an .npz file of `images` and `labels`; it cannot be read ({error})."
        ) from error


def _read_batches(path: Path, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = [], []
    with tarfile.open(path) as archive:
        for batch in range(1, 1 + -(-max(rows, _EXTRACT_ROWS) // 10_000)):
            member = archive.extractfile(f"cifar-10-batches-py/data_batch_{batch}")
            assert member is not None
            # The archive's checksum is known, so its pickles are those of CIFAR-10 and nothing else.
            content = pickle.load(member, encoding="bytes")
            images.append(content[b"data"])
            labels.append(np.asarray(content[b"labels"], dtype=np.uint8))
    return np.concatenate(images), np.concatenate(labels)


def _read_mnist(name: str, path: Path, rows: int) -> Dataset:
    images, labels = (path.with_name(file.name) for file in _SOURCES[name].files)
    return Dataset(name, _read_idx(images)[:rows].reshape(rows, -1), _read_idx(labels)[:rows])


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in the IDX format: 0, 0, type 8, dimensions, sizes (big endian), data."""
    with gzip.open(path) as file:
        data = file.read()
    if data[:3] != b"\x00\x00\x08":
        raise DatasetUnavailable(f"{path} must begin as an IDX file of bytes does; it begins {data[:4]!r}.")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4).astype(int)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"

# The first images as arrays: what a folder may have instead of the archive of all of them.
_EXTRACT = "cifar10_train_5000.npz"
_EXTRACT_ROWS = 5000
_EXTRACT_LABELS_SHA256 = "0cbafd4dfb25472c7c0d137ea8e7920f0afa3475882651ef6f8825cb39e748fb"
_EXTRACT_SHA256 = "8affcd79538b5c728450f75f56bc5d6ee93327f8dac9a9ff6c05ae204479598e"


def _libsvm(name: str, sha256: str, rows: int, features: int) -> Source:
    return Source((File(name, f"{_LIBSVM}/{name}", sha256, text=True),), _read_libsvm, rows, features, rows)


_SOURCES = {
    "a1a": _libsvm("a1a", "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e", 1605, 123),
    "w1a": _libsvm("w1a", "0ae2b1c40f6a99061d1c6f4a1f3b50eea58a2f3b8bf851a337c25c2a65a49d32", 2477, 300),
    "w8a": _libsvm("w8a", "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2", 49749, 300),
    "cifar10": Source(
        (
            File(
                "cifar-10-python.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        _read_cifar,
        50_000,
        3072,
        5000,
    ),
    "mnist": Source(
        (
            File(
                "train-images-idx3-ubyte.gz",
                f"{_MNIST}/train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                f"{_MNIST}/train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        _read_mnist,
        60_000,
        784,
        60_000,
    ),
}
