"""The model folder that `grassia pca` writes, and `project` and `check` read.

`model.json` says what was asked, what came out and how it is certified. Beside it are `components`,
`eigenvalues` and `mean`, and the `scores` of the rows, in the format that was chosen. A folder is complete or
not there: it is written beside its place and moved there in the end.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from grassia._optional import require
from grassia.cli._writing import CsvRows, NpyRows, ParquetRows, RowWriter, component_names
from grassia.errors import InvalidInput

__all__ = ["Model", "ModelFolder", "complete_file", "plain"]

KIND, VERSION = "grassia-model", 1
MANIFEST = "model.json"

Float = NDArray[np.float64]
Add = Callable[[NDArray[Any], Sequence[tuple[str, ...]]], None]


@dataclass(frozen=True)
class Model:
    """Principal components, as they were stored.

    Attributes
    ----------
    components : ndarray (k, d)
    eigenvalues : ndarray (k,)
        Of the covariance (with 1/n), or of the second moment.
    mean : ndarray (d,) or None
        None where the mean was not removed.
    feature_names : list of str or None
    manifest : dict
        What `model.json` holds.
    """

    components: Float
    eigenvalues: Float
    mean: Float | None
    feature_names: list[str] | None = None
    manifest: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def center(self) -> bool:
        return self.mean is not None

    @property
    def k(self) -> int:
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.components.shape[1])

    def project(self, rows: Any) -> Float:
        """Scores of rows (an array or sparse rows): their coordinates along the components."""
        V = self.components.T
        if hasattr(rows, "toarray"):
            Z = np.asarray(rows @ V)
            return Z if self.mean is None else Z - self.mean @ V
        centred = np.asarray(rows, dtype=np.float64)
        return np.asarray((centred if self.mean is None else centred - self.mean) @ V)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model folder (or its `model.json`)."""
        folder = Path(path)
        folder = folder.parent if folder.name == MANIFEST else folder
        if not (folder / MANIFEST).is_file():
            raise InvalidInput(
                f"a model must be a folder that `grassia pca -o` wrote; there is no {folder / MANIFEST}."
            )
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if manifest["format"] != KIND or int(manifest["format_version"]) > VERSION:
                raise InvalidInput(
                    f"{folder / MANIFEST} must be of {KIND}, version {VERSION} at most; "
                    f"it is of {manifest['format']}, version {manifest['format_version']}."
                )
            arrays = _Stored(folder, manifest["arrays"])
            values = np.asarray(arrays.read("eigenvalues"), np.float64).reshape(-1)
            components = np.asarray(arrays.read("components"), np.float64)
            mean = np.asarray(arrays.read("mean"), np.float64).reshape(-1) if manifest["center"] else None
            names = manifest.get("feature_names")
            float(manifest["tol"]), manifest["asked"]["options"].items()  # `check` needs them
        except InvalidInput:
            raise
        except (KeyError, TypeError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"the model in {folder} is damaged: {_said(error)}") from error
        found = cls(components, values, mean, names, manifest)
        found._check(folder)
        return found

    def _check(self, folder: Path) -> None:
        shape = self.components.shape
        fits = len(shape) == 2 and self.eigenvalues.shape == (shape[0],)
        fits &= self.mean is None or self.mean.shape == (shape[1],)
        fits &= self.feature_names is None or len(self.feature_names) == shape[1]
        if not fits or not np.isfinite(self.components).all():
            raise InvalidInput(f"the model in {folder} is damaged: its arrays do not belong together.")


class ModelFolder:
    """A model folder while it is written; it takes its place when all went well.

    Parameters
    ----------
    path : path
        Where it shall be.
    form : {"npy", "npz", "csv", "parquet"}
    overwrite : bool
        Whether a model that is there is replaced. Anything else that is there stays.
    """

    def __init__(self, path: str | Path, form: str, overwrite: bool = False) -> None:
        self._target = Path(os.path.abspath(path))
        self._shown = str(path)
        self.form = form
        if form == "parquet":
            require("pyarrow.parquet", "parquet")  # before the work, not after
        _refuse_existing(self._target, self._shown, overwrite)
        _make_parents(self._target)
        self._part = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}.part")
        self._part.mkdir()
        self._files: dict[str, str] = {}

    @property
    def path(self) -> Path:
        """Where files are written for now."""
        return self._part

    @property
    def files(self) -> list[str]:
        """What was written."""
        return sorted(file.name for file in self._target.iterdir())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        shutil.rmtree(self._part, ignore_errors=True)  # gone already where it took its place

    def arrays(
        self, components: Float, eigenvalues: Float, mean: Float | None, names: Sequence[str] | None
    ) -> None:
        """Write what is small: components (k, d), eigenvalues and, if there is one, the mean."""
        k, d = components.shape
        if self.form in ("npy", "npz"):
            small = {"components": components, "eigenvalues": eigenvalues}
            small |= {} if mean is None else {"mean": mean}
            for name, array in small.items():
                self._write_array(name, array)
            return
        features = [(name,) for name in names or map(str, range(d))]
        with self._table("components", ["feature"], component_names(k)) as table:
            table.add(components.T, features)
        with self._table("eigenvalues", ["component"], ["eigenvalue"]) as table:
            table.add(eigenvalues[:, None], [(name,) for name in component_names(k)])
        if mean is not None:
            with self._table("mean", ["feature"], ["mean"]) as table:
                table.add(mean[:, None], features)

    @contextmanager
    def scores(self, n_rows: int, k: int, dtype: np.dtype[Any], header: Sequence[str]) -> Iterator[Add]:
        """What takes the scores, a block at a time with the names of its rows."""
        with ExitStack() as stack:
            if self.form == "npy":
                self._files["scores"] = "scores.npy"
                stream = stack.enter_context(open(self._part / "scores.npy", "wb"))
                writer: RowWriter = NpyRows(stream, (n_rows, k), dtype)
            elif self.form == "npz":
                self._files["scores"] = "model.npz"
                archive = stack.enter_context(zipfile.ZipFile(self._part / "model.npz", "a", allowZip64=True))
                member = stack.enter_context(archive.open("scores.npy", "w", force_zip64=True))
                writer = NpyRows(member, (n_rows, k), dtype)
            else:
                writer = stack.enter_context(self._table("scores", header, component_names(k), dtype))
            yield writer.add

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write `model.json`, put the folder in its place and return what the file holds."""
        whole = {
            "format": KIND,
            "format_version": VERSION,
            **manifest,
            "arrays": {"format": self.form, "files": self._files},
        }
        said = plain(whole)
        text = json.dumps(said, indent=1, allow_nan=False, ensure_ascii=False)
        (self._part / MANIFEST).write_text(text + "\n", encoding="utf-8")
        self._take_place()
        return dict(said)

    def _take_place(self) -> None:
        before = self._target.with_name(f"{self._part.name}.before")
        with suppress(FileNotFoundError):
            os.rename(self._target, before)
        try:
            os.rename(self._part, self._target)
        except OSError:
            if before.exists():
                os.rename(before, self._target)
            raise
        shutil.rmtree(before, ignore_errors=True)

    def _write_array(self, name: str, array: Float) -> None:
        if self.form == "npy":
            self._files[name] = f"{name}.npy"
            np.save(self._part / f"{name}.npy", array, allow_pickle=False)
            return
        self._files[name] = "model.npz"
        with (
            zipfile.ZipFile(self._part / "model.npz", "a", allowZip64=True) as archive,
            archive.open(f"{name}.npy", "w", force_zip64=True) as member,
        ):
            np.lib.format.write_array(member, array, allow_pickle=False)

    @contextmanager
    def _table(
        self, name: str, header: Sequence[str], columns: Sequence[str], dtype: Any = np.float64
    ) -> Iterator[RowWriter]:
        self._files[name] = f"{name}.{self.form}"
        path = self._part / self._files[name]
        if self.form == "parquet":
            with ParquetRows(path, header, columns, np.dtype(dtype)) as table:
                yield table
            return
        with open(path, "w", encoding="utf-8", newline="") as stream:
            yield CsvRows(stream, [*header, *columns])


@dataclass(frozen=True)
class _Stored:
    """The arrays of a model folder."""

    folder: Path
    arrays: Mapping[str, Any]

    def read(self, name: str) -> NDArray[Any]:
        form, file = self.arrays["format"], self.arrays["files"][name]
        if Path(file).name != file:
            raise ValueError(f"{file!r} is not the name of a file in the folder")
        path = self.folder / file
        if form == "npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if form == "npz":
            with np.load(path, allow_pickle=False) as archive:
                return np.asarray(archive[name])
        numbers = _parquet_numbers(path) if form == "parquet" else _csv_numbers(path)
        return np.ascontiguousarray(numbers.T) if name == "components" else numbers


def _csv_numbers(path: Path) -> Float:
    with open(path, encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        next(rows)
        return np.array([[float(field) for field in row[1:]] for row in rows])


def _parquet_numbers(path: Path) -> Float:
    table = require("pyarrow.parquet", "parquet").read_table(path)
    return np.column_stack([table.column(j).to_numpy() for j in range(1, table.num_columns)])


def free_target(path: str | Path, overwrite: bool) -> Path:
    """Where a file may be written."""
    target = Path(os.path.abspath(path))
    if target.is_dir():
        raise InvalidInput(f"the output must be a file; {path} is a folder.")
    if target.exists() and not overwrite:
        raise InvalidInput(f"{path} exists; give another name, or --overwrite.")
    if not target.parent.is_dir():
        parent = Path(path).parent
        why = "is a file" if target.parent.exists() else "does not exist"
        raise InvalidInput(f"the output must go to a folder that exists; {parent} {why}.")
    return target


@contextmanager
def complete_file(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A path to write to, whose file takes its place when all went well."""
    target = free_target(path, overwrite)
    part = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.part{target.suffix}")
    try:
        part.touch(exist_ok=False)
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings, as JSON has them; what is not finite is None.

    >>> plain({"values": np.array([1.0, np.nan]), "n": np.int64(3)})
    {'values': [1.0, None], 'n': 3}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    return value


def _make_parents(target: Path) -> None:
    file = next((one for one in target.parents if one.exists() and not one.is_dir()), None)
    if file is not None:
        raise InvalidInput(f"the output must be a folder in a folder; {file} is a file.")
    target.parent.mkdir(parents=True, exist_ok=True)


def _refuse_existing(target: Path, shown: str, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise InvalidInput(f"the output must be a folder; {shown} is a file.")
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise InvalidInput(f"{shown} exists; give another folder with -o, or --overwrite.")
    if not (target / MANIFEST).is_file():
        raise InvalidInput(f"--overwrite replaces models only; {shown} is a folder without {MANIFEST}.")


def _said(error: Exception) -> str:
    return f"it lacks {error}." if isinstance(error, KeyError) else f"{error}"
