"""Ray datasets and objects in Ray's store: rows stay where they are, and are opened beside the worker.

A reference is looked at by a small Ray task where its object is, and travels to an actor as a reference, so
that Ray knows who holds it. Rows in a NumPy array are used in place, in the node's shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from grassia._checks import rows_shape
from grassia._optional import require
from grassia._scipy import issparse
from grassia.data import formats
from grassia.data.formats.columns import Columns, chosen_columns, frozen_columns
from grassia.data.stored import NamedRows
from grassia.errors import GrassiaError, InvalidComponent
from grassia.passes.sparse import canonical_csr, csr_rows

__all__ = ["RefOpener", "RefStore", "in_short", "open_object", "receiving", "sending"]

Taken = tuple[str | int, ...] | None


def open_object(obj: Any, *, columns: Columns = None, drop: Columns = None) -> RefOpener | list[RefOpener]:
    """An opener for an object in Ray's store, or for each block of a Ray dataset.

    An object is a two-dimensional array, a scipy sparse matrix or a table, of one shard's rows. A dataset is
    computed if it was not yet; its blocks stay in the store. It has numeric columns, or one of tensors.

    Parameters
    ----------
    columns, drop : names or positions, optional
        Of tables: the columns to take, in this order, and those to leave out.

    Raises
    ------
    InvalidComponent
        If Ray is not initialised, or an object holds something else than rows of numbers.
    """
    ray = require("ray", "ray")
    if not ray.is_initialized():
        raise InvalidComponent(
            "rows in Ray's store must be given where Ray is initialised; it is not; call ray.init first"
        )
    options = frozen_columns(columns, "columns"), frozen_columns(drop, "drop")
    if isinstance(obj, ray.ObjectRef):
        name = f"the Ray object {obj.hex()[:12]}"
        found = _looked_at(ray, [obj], [name], *options)
        if not found:
            raise InvalidComponent(f"{name} must not be empty; it has no rows; leave it out")
        return found[0]
    if type(obj).__module__.startswith("ray.data") and hasattr(obj, "get_internal_block_refs"):
        blocks = obj.materialize().get_internal_block_refs()
        names = [f"block {i} of the Ray dataset" for i in range(len(blocks))]
        found = _looked_at(ray, blocks, names, *options)
        if not found:
            raise InvalidComponent("a Ray dataset must not be empty; it has no rows")
        return found
    raise InvalidComponent(
        "rows from the library ray must be an ObjectRef, a list of them, or a ray.data.Dataset; "
        f"got {type(obj).__qualname__}"
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a worker that has seen the rows says of them."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    sparse: bool
    stored: int
    feature_names: tuple[str, ...] | None

    @classmethod
    def of(cls, rows: Any, names: tuple[str, ...] | None) -> _Facts:
        m, d = rows_shape(rows)
        sparse = issparse(rows)
        return cls((m, d), np.dtype(rows.dtype), sparse, int(rows.nnz) if sparse else m * d, names)


def _looked_at(ray: Any, references: Sequence[Any], names: list[str], *options: Taken) -> list[RefOpener]:
    """Openers of those objects that have rows. Each is looked at where it is; none comes here."""
    # No CPU is asked for: it must not wait for those that a program keeps for its actors.
    look = ray.remote(num_cpus=0)(_look)
    answers = [
        look.remote(reference, name, *options) for reference, name in zip(references, names, strict=True)
    ]
    openers = []
    for reference, name, answer in zip(references, names, answers, strict=True):
        facts = _had(ray, answer, name)
        if isinstance(facts, str):
            raise InvalidComponent(facts)
        if facts is not None:
            openers.append(RefOpener(reference, name, facts, *options))
    return openers


def _look(value: Any, name: str, columns: Taken, drop: Taken) -> _Facts | str | None:
    """The facts; what is wrong, for errors of this package do not survive Ray's wrapping; None: no rows."""
    shape = getattr(value, "shape", None)
    if shape and shape[0] == 0:
        return None  # a block of a dataset may then have no columns either
    try:
        return _Facts.of(*_rows_of(value, name, columns, drop))
    except GrassiaError as error:
        rule = getattr(error, "rule", str(error))
        return rule if name in rule else f"{name}: {rule}"


def _had(ray: Any, reference: Any, name: str) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise InvalidComponent(f"{name} must be there to be read; Ray says: {in_short(error)}") from error


def in_short(error: Exception) -> str:
    """What Ray says went wrong; of an error with a traceback in it the line that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return (lines[-1] if "ray::" in lines[0] else " ".join(lines))[:300]


def _rows_of(value: Any, name: str, columns: Taken, drop: Taken) -> tuple[Any, tuple[str, ...] | None]:
    """The rows as an array or a CSR array, and the names of their columns."""
    options = {key: given for key, given in (("columns", columns), ("drop", drop)) if given is not None}
    tensors = _tensor_rows(value, columns, drop)
    if tensors is not None:
        return tensors, None
    if formats.format_of_object(value) in ("tables", "torch"):
        value = formats.open_object(value, options)
        if isinstance(value, NamedRows):
            return value.rows, value.feature_names
    elif options:
        raise InvalidComponent(f"{name} must be a table to have columns; it is a {type(value).__name__}")
    if issparse(value):
        return canonical_csr(value), None
    if isinstance(value, np.ndarray):
        rows_shape(value)
        return value, None
    raise InvalidComponent(
        f"{name} must be a 2-D array, a scipy sparse matrix or a table; it is a {type(value).__qualname__}"
    )


def _tensor_rows(value: Any, columns: Taken, drop: Taken) -> Any:
    """The rows in a table whose one chosen column holds them whole, as Ray keeps arrays; else None."""
    if formats.format_of_object(value) != "tables" or not hasattr(value, "columns"):
        return None
    arrow = hasattr(value, "schema")
    names = [str(one) for one in (value.schema.names if arrow else value.columns)]
    taken = chosen_columns(names, "the table", columns, drop)
    if len(taken) != 1:
        return None
    kind = value.schema.types[taken[0]] if arrow else value.dtypes.iloc[taken[0]]
    if not type(kind).__module__.startswith("ray."):
        return None
    block = require("ray.data.block", "ray").BlockAccessor.for_block(value)
    found = block.to_numpy(names[taken[0]])
    if found.dtype == object:
        raise InvalidComponent("the tensors of a Ray dataset must all be of one shape; these differ")
    return found


@dataclass(frozen=True, eq=False)
class RefOpener:
    """Rows in Ray's store. It travels with a reference that Ray keeps count of, or not at all."""

    reference: Any
    name: str
    facts: _Facts
    columns: Taken = None
    drop: Taken = None
    kind = "Ray"

    def open(self) -> RefStore:
        return RefStore(self)

    def __copy__(self) -> RefOpener:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RefOpener:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        travelling = _SENT.get()
        if travelling is None:
            raise InvalidComponent(
                "rows in Ray's store travel with Ray only; use backend='ray', or 'serial' or 'threads', "
                "which stay in this process"
            )
        travelling.append(self.reference)
        return _arrived, (len(travelling) - 1, self.name, self.facts, self.columns, self.drop)


class RefStore:
    """Rows in Ray's store, fetched when first read."""

    chunk_rows = 1

    def __init__(self, opener: RefOpener) -> None:
        facts = opener.facts
        self.shape, self.dtype, self.sparse, self.stored = (
            facts.shape,
            facts.dtype,
            facts.sparse,
            facts.stored,
        )
        self.feature_names = None if facts.feature_names is None else list(facts.feature_names)
        self._opener = opener
        self._rows: Any = None

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``; of an array a view of the store."""
        if self._rows is None:
            self._rows = self._fetch()
        return csr_rows(self._rows, start, stop) if self.sparse else self._rows[start:stop]

    def _fetch(self) -> Any:
        opener = self._opener
        ray = require("ray", "ray")
        if not ray.is_initialized():
            raise InvalidComponent(f"{opener.name} must be read where Ray is initialised; it was shut down")
        value = _had(ray, opener.reference, opener.name)
        rows, _ = _rows_of(value, opener.name, opener.columns, opener.drop)
        return rows


_SENT: ContextVar[list[Any] | None] = ContextVar("sent", default=None)
_RECEIVED: ContextVar[Sequence[Any]] = ContextVar("received", default=())


@contextmanager
def sending() -> Iterator[list[Any]]:
    """Inside `with`, openers can be pickled; their references are put in the list, to travel beside."""
    token = _SENT.set([])
    try:
        found = _SENT.get()
        assert found is not None
        yield found
    finally:
        _SENT.reset(token)


@contextmanager
def receiving(references: Sequence[Any]) -> Iterator[None]:
    """Inside `with`, pickled openers find the references that came with them."""
    token = _RECEIVED.set(references)
    try:
        yield
    finally:
        _RECEIVED.reset(token)


def _arrived(number: int, name: str, facts: _Facts, columns: Taken, drop: Taken) -> RefOpener:
    return RefOpener(_RECEIVED.get()[number], name, facts, columns, drop)
