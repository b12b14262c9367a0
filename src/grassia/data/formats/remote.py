"""Rows at an address that fsspec opens: "s3://bucket/rows.npy", "memory://rows.parquet", "file:///rows.csv".

`.npy`, sparse `.npz`, Parquet, CSV and LIBSVM files are read where they lie. Files of other formats are
copied to a folder of this machine first, whose size is limited.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grassia._checks import require_count
from grassia._optional import require
from grassia.errors import InvalidComponent, InvalidInput

__all__ = [
    "Address",
    "expand",
    "is_folder",
    "is_url",
    "open_binary",
    "open_decompressed",
    "open_path",
    "reaching",
    "split_fragment",
    "suffixed_name",
    "without_file_protocol",
]

# Formats that are read through a file wherever it lies.
_READ_IN_PLACE = ("npz", "libsvm", "csv", "parquet")
# By name: some builds of Python lack the last two.
_DECOMPRESS = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*(::[A-Za-z][A-Za-z0-9+.\-]*)*://")


def is_url(path: str) -> bool:
    """Whether it is an address rather than a path.

    >>> is_url("s3://bucket/x.npy"), is_url("simplecache::https://host/x.npy"), is_url("x.h5::data")
    (True, True, False)
    """
    return _ADDRESS.match(path) is not None


class Address(str):
    """An address with what fsspec must be told to open it; it travels as openers do.

    >>> Address("s3://bucket/x.npy", {"anon": True}).storage_options
    {'anon': True}
    """

    storage_options: Mapping[str, Any]

    def __new__(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Address:
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidInput(
                f"`storage_options` must be a mapping of names to values; got {storage_options!r}"
            )
        made = super().__new__(cls, url)
        made.storage_options = dict(storage_options or {})
        return made

    def __reduce__(self) -> tuple[type[Address], tuple[str, Mapping[str, Any]]]:
        return Address, (str(self), self.storage_options)


def open_binary(path: str) -> Any:
    """A file for reading bytes, of a path or an address."""
    if not is_url(path):
        return open(path, "rb")
    with reaching(path):
        fs, name = require("fsspec", "data").url_to_fs(str(path), **getattr(path, "storage_options", {}))
        file = fs.open(name, "rb")
    # A file system that is an archive closes its file, and with it this one, when nobody holds it.
    file.held_by_grassia = fs
    return file


def open_decompressed(path: str) -> Any:
    """The same, of what is in a file whose suffix is that of a compression."""
    name = (suffixed_name(path) if is_url(path) else path).lower()
    library = next((library for suffix, library in _DECOMPRESS.items() if name.endswith(suffix)), None)
    if library is None:
        return open_binary(path)
    return importlib.import_module(library).open(open_binary(path) if is_url(path) else path, "rb")


def expand(url: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """The addresses that a pattern with ``*``, or a folder, stands for, sorted; another stands for itself.

    Of a folder these are the files whose suffix tells a format, unless their name begins with a dot or an
    underscore, or is that of a note; a Zarr store is one source.
    """
    address = Address(split_fragment(url)[0], storage_options)
    if any(sign in url for sign in "*?["):
        with reaching(url):
            files = require("fsspec", "data").open_files(url, "rb", **address.storage_options)
        if not files:
            raise InvalidComponent(f"a pattern must match at least one file; {url} matches none")
        return sorted(file.full_name for file in files)
    if ".zarr" in suffixed_name(address).lower() or "::" in url or not is_folder(address):
        return [url]
    with reaching(url):
        fs, path = require("fsspec", "data").url_to_fs(str(address), **address.storage_options)
        inside = [str(fs.unstrip_protocol(file)) for file in sorted(fs.find(path))]
    return _of_one_format([file for file in inside if _is_data(suffixed_name(file))], url)


def _is_data(name: str) -> bool:
    from grassia.data import formats

    known = name.lower().endswith(".npy") or formats.format_of_path(name) is not None
    return known and not name.startswith((".", "_")) and ".txt" not in name.lower()


def _of_one_format(files: list[str], url: str) -> list[str]:
    from grassia.data import formats

    if not files:
        raise InvalidComponent(f"a folder of rows must hold files of a known format; {url} holds none")
    kinds = {formats.format_of_path(suffixed_name(file)): file for file in reversed(files)}
    if len(kinds) > 1:
        first, second = sorted(kinds.values())[:2]
        raise InvalidComponent(
            f"the files of {url} must be of one format; there are {first} and {second}; "
            "give a pattern that matches one, such as *.parquet"
        )
    return files


def open_path(
    path: str,
    storage_options: Mapping[str, Any] | None = None,
    cache_limit: int | None = None,
    **options: Any,
) -> Any:
    """The opener of a file at an address.

    Parameters
    ----------
    path : str
        An address, fsspec's chains such as "simplecache::s3://..." included.
    storage_options : dict, optional
        What fsspec is told: credentials, endpoints, ...
    cache_limit : int
        The most bytes that copies on this machine may take together; 20 GB by default. They are in the folder
        that the environment variable `GRASSIA_CACHE` names, else in the user's cache folder. Those used
        longest ago are removed to make room; a file that is larger than the limit is refused.
    **options
        Those of the file's format.

    Examples
    --------
    >>> import fsspec, numpy as np
    >>> with fsspec.open("memory://doc/rows.npy", "wb") as file:
    ...     np.save(file, np.arange(6.0).reshape(3, 2))
    >>> open_path("memory://doc/rows.npy").open().read(1, 3)
    array([[2., 3.],
           [4., 5.]])
    """
    from grassia.data import formats
    from grassia.data.formats.copies import CACHE_LIMIT, CopiedOpener
    from grassia.data.formats.npy import NpyOpener

    limit = CACHE_LIMIT if cache_limit is None else cache_limit
    require_count(limit, "cache_limit")
    bare, fragment = split_fragment(path)
    address = Address(bare, storage_options)
    if fragment is not None:
        options = {**options, "dataset": fragment}
    name = suffixed_name(address)
    if name.lower().endswith(".npy"):
        if options:
            raise InvalidInput(f".npy files have no options; got {', '.join(sorted(options))} for {address}")
        opener = NpyOpener(address)
        return opener if not opener.by_columns() else CopiedOpener(address, limit)
    format = formats.format_of_path(name)
    if format is None:
        raise InvalidComponent(
            f"the file at an address must have a suffix that tells its format; got {address}; copy it to "
            "this machine under another name, or read it in a callable"
        )
    if format in _READ_IN_PLACE:
        return formats.open_path(address, options, format)
    return CopiedOpener(address, limit, tuple(sorted(options.items())))


def is_folder(url: Address) -> bool:
    """Whether there is a folder at the address; one that cannot be reached is none."""
    with contextlib.suppress(Exception):
        fs, path = require("fsspec", "data").url_to_fs(str(url), **url.storage_options)
        return bool(fs.isdir(path))
    return False


def split_fragment(url: str) -> tuple[str, str | None]:
    """The address, and what followed ``::`` if that is a part of the file and no link of a chain.

    >>> split_fragment("s3://bucket/x.h5::data/X"), split_fragment("zip://x.npy::file:///y.zip")
    (('s3://bucket/x.h5', 'data/X'), ('zip://x.npy::file:///y.zip', None))
    """
    before, mark, after = url.rpartition("::")
    archive = url.partition("://")[0].rpartition("::")[2] in ("zip", "tar", "libarchive")
    if not mark or archive or "://" in after or "://" not in before:
        return url, None
    return before, after


def without_file_protocol(text: str) -> str:
    """The path, for an address of this machine's own file system; other texts as they are.

    >>> without_file_protocol("file:///data/x.npy"), without_file_protocol("s3://bucket/x.npy")
    ('/data/x.npy', 's3://bucket/x.npy')
    """
    for begin in ("file://localhost/", "file:///", "local:///"):
        if text.startswith(begin):
            return "/" + text.removeprefix(begin)
    return text


def suffixed_name(url: str) -> str:
    """The last part of an address, of which the suffix tells the format.

    >>> suffixed_name("https://host/a/rows.csv.gz?version=2"), suffixed_name("zip://b/x.npy::/tmp/y.zip")
    ('rows.csv.gz', 'x.npy')
    """
    inner = next((part for part in url.split("::") if "://" in part), url)
    return inner.partition("://")[2].partition("?")[0].rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Errors of fsspec and of the libraries behind it, with the address and what to do."""
    try:
        yield
    except ImportError as error:
        if type(error).__module__.startswith("grassia."):
            raise
        raise InvalidInput(f"{url} cannot be opened: {error}; that is a package to install") from error
    except FileNotFoundError as error:
        raise InvalidComponent(
            f"the rows file must exist where the worker runs; there is none at {url}"
        ) from error
    except (InvalidInput, MemoryError):
        raise
    except Exception as error:  # each protocol's library has its own
        raise InvalidComponent(
            f"{url} cannot be reached ({type(error).__name__}: {error}); check the address, and give what "
            "its protocol needs as options={'storage_options': {...}}"
        ) from error
