"""The formats rows are read from, one file each, found by a path's suffix or an object's library.

A format's file has ``open_path(path, **options)``, which returns a `grassia.data.stored.StoreOpener`, or
``open_object(obj, **options)``, which returns one, or an array, a sparse array or `NamedRows` where the
object holds its numbers in memory anyway; or both. It is imported when it is first needed, and imports its
library then.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from grassia.data.stored import StoreOpener, guarded
from grassia.errors import InvalidComponent, InvalidInput

__all__ = ["BY_LIBRARY", "BY_SUFFIX", "format_of_object", "format_of_path", "open_object", "open_path"]

#: Which file of this package reads files of a suffix; the longest suffix that fits counts.
BY_SUFFIX: dict[str, str] = {
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".hdf": "hdf5",
    ".zarr": "zarr",
    ".zarr.zip": "zarr",
    ".npz": "npz",
    ".h5ad": "anndata",
    ".svm": "libsvm",
    ".svm.gz": "libsvm",
    ".svm.bz2": "libsvm",
    ".svm.xz": "libsvm",
    ".libsvm": "libsvm",
    ".libsvm.gz": "libsvm",
    ".libsvm.bz2": "libsvm",
    ".libsvm.xz": "libsvm",
    ".svmlight": "libsvm",
    ".svmlight.gz": "libsvm",
    ".svmlight.bz2": "libsvm",
    ".svmlight.xz": "libsvm",
    ".txt": "libsvm",
    ".txt.gz": "libsvm",
    ".txt.bz2": "libsvm",
    ".txt.xz": "libsvm",
    ".bed": "plink",
}

#: Which file of this package reads the objects of a library, named by the first part of its modules.
BY_LIBRARY: dict[str, str] = {
    "pandas": "tables",
    "polars": "tables",
    "pyarrow": "tables",
    "h5py": "hdf5",
    "zarr": "zarr",
    "anndata": "anndata",
    "dask": "dask",
    "ray": "ray",
    "distributed": "dask",
    "torch": "torch",
}


def format_of_path(path: str) -> str | None:
    """The name of the format that reads `path`, or None.

    >>> format_of_path("s3://bucket/rows.parquet"), format_of_path("a.CSV.gz"), format_of_path("a.doc")
    ('remote', 'csv', None)
    """
    if "://" in path:
        return "remote"
    name = path.lower()
    fitting = [suffix for suffix in BY_SUFFIX if name.endswith(suffix)]
    return BY_SUFFIX[max(fitting, key=len)] if fitting else None


def format_of_object(obj: Any) -> str | None:
    """The name of the format that reads `obj`, by its class or one that is derived from; or None."""
    roots = (cls.__module__.partition(".")[0] for cls in type(obj).__mro__)
    return next((BY_LIBRARY[root] for root in roots if root in BY_LIBRARY), None)


def open_path(path: str, options: Mapping[str, Any], format: str | None = None) -> StoreOpener:
    """The opener of a file, folder or address.

    Raises
    ------
    InvalidComponent
        If there is no such file or it is not what its name says; `InvalidInput` for options that the
        format does not have; `MissingExtra` where its library is not installed.
    """
    name = format or format_of_path(path)
    if name is None:
        raise InvalidComponent(
            f"a file of rows must have a suffix that tells its format ({', '.join(['.npy', *BY_SUFFIX])}); "
            f"got {path}; rename or convert it, or read it in a callable"
        )
    function = getattr(_module(name), "open_path", None)
    if function is None:
        raise InvalidComponent(f"{path}: the format {name} has no files")
    with guarded(path, name):
        opener: StoreOpener = _called(function, path, options, name)
    return opener


def open_object(obj: Any, options: Mapping[str, Any]) -> Any:
    """What the library's format makes of the object: an opener, an array, a sparse array or `NamedRows`."""
    name = format_of_object(obj)
    function = None if name is None else getattr(_module(name), "open_object", None)
    if function is None:
        raise InvalidComponent(f"rows cannot be read from an object of type {type(obj).__qualname__}")
    with guarded(f"an object of type {type(obj).__qualname__}", "rows"):
        return _called(function, obj, options, str(name))


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def _called(function: Any, source: Any, options: Mapping[str, Any], name: str) -> Any:
    parameters = list(inspect.signature(function).parameters.values())
    known = [p.name for p in parameters[1:] if p.kind is not p.VAR_KEYWORD]
    free = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = sorted(set(options) - set(known))
    if unknown and not free:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InvalidInput(f"`options` must be options of the format {name}: {has}; got {', '.join(unknown)}")
    return function(source, **options)
