"""What several formats share: errors that name the file, checked CSR rows, blocks decoded once."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grassia._checks import require_real
from grassia._scipy import issparse
from grassia.data import room
from grassia.errors import GrassiaError, InvalidComponent
from grassia.passes.sparse import canonical_csr, csr_rows, stacked

__all__ = [
    "DecodedBlocks",
    "checked_csr",
    "local_path",
    "missing",
    "naming",
    "require_shape",
]

_NAMES = 10_000  # of a folder at most, to find one that was meant


@contextlib.contextmanager
def naming(path: str, rule: str, remedy: str = "") -> Iterator[None]:
    """Turn what is raised inside into an `InvalidComponent` that names the file and what it must be.

    >>> with naming("x.npz", "a sparse .npz file", "write it with scipy.sparse.save_npz"):
    ...     raise EOFError("ended early")
    Traceback (most recent call last):
        ...
    grassia.errors.InvalidComponent: x.npz must be a sparse .npz file; it cannot be read as one \
(EOFError: ended early); write it with scipy.sparse.save_npz
    """
    try:
        yield
    except (GrassiaError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise InvalidComponent(
            f"the rows file must exist where the worker runs; there is none at {path}"
        ) from error
    except PermissionError as error:
        raise InvalidComponent(f"the rows file {path} must be readable; permission is denied") from error
    except IsADirectoryError as error:
        raise InvalidComponent(f"{path} must be {rule}; it is a folder") from error
    except Exception as error:  # each library has its own for a file that is damaged or of another kind
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidComponent(
            f"{path} must be {rule}; it cannot be read as one ({reason}){'; ' + remedy if remedy else ''}"
        ) from error


def missing(path: str) -> InvalidComponent:
    """The error about a file that is not there: with names that are like its own, or where it was looked for.

    >>> str(missing("no such folder/rows.npy"))
    'the rows file must exist; there is none at no such folder/rows.npy: there is no folder no such folder'
    """
    rule = f"the rows file must exist; there is none at {path}"
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or os.curdir):
        return InvalidComponent(f"{rule}: there is no folder {folder}")
    with contextlib.suppress(OSError):  # a folder that may not be listed
        names = [entry.name for entry in islice(os.scandir(folder or os.curdir), _NAMES)]
        stems = get_close_matches(_stem(name), {_stem(one) for one in names}, 3)
        near = [one for stem in stems for one in sorted(names) if _stem(one) == stem]
        if near:
            meant = " or ".join(os.path.join(folder, one) for one in near[:3])
            return InvalidComponent(f"{rule}; did you mean {meant}?")
    where = "" if os.path.isabs(path) else f" in {os.path.abspath(folder or os.curdir)}"
    return InvalidComponent(f"{rule}{where}; check the path")


def _stem(name: str) -> str:
    """A file's name without its suffixes, which most files of a folder may have in common."""
    return name.lstrip(".").partition(".")[0]


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a file that exists: workers may run in another folder."""
    found = os.path.abspath(os.fspath(path))
    if not os.path.exists(found):
        raise missing(os.fspath(path))
    if not os.path.isfile(found):
        raise InvalidComponent(f"the rows must be in a file; {os.fspath(path)} is a folder")
    return found


def require_shape(name: str, shape: Any, dtype: Any) -> tuple[int, int]:
    """The shape, if it is that of two-dimensional, non-empty, real rows."""
    sizes = tuple(int(size) for size in shape)
    if len(sizes) != 2:
        raise InvalidComponent(
            f"{name} must hold a two-dimensional array (rows x features); it holds one of shape {sizes}"
        )
    if min(sizes) <= 0:
        raise InvalidComponent(
            f"{name} must not be empty; it holds {sizes[0]} rows x {sizes[1]} features; leave it out"
        )
    require_real(np.dtype(dtype), f"the rows of {name}")
    return sizes[0], sizes[1]


def checked_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], n_features: int, name: str
) -> Any:
    """CSR rows from arrays that a file holds: pointers from any start, indices in range, no repeats.

    scipy does not look at the indices, and one out of range would be written outside the result.

    >>> X = checked_csr(np.ones(2), np.array([0, 2]), np.array([5, 6, 7]), 3, "x.npz")
    >>> X.toarray()
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    import scipy.sparse as sp

    steps = np.diff(indptr)
    fits = indptr[-1] - indptr[0] == data.shape[0] == indices.shape[0]
    if indptr[0] < 0 or (steps < 0).any() or not fits:
        raise InvalidComponent(
            f"the row pointers of {name} must rise to the number of entries; they do not: it is damaged"
        )
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < n_features):
        raise InvalidComponent(
            f"the column indices of {name} must be from 0 to {n_features - 1}; found {indices.min()} to "
            f"{indices.max()}: it is damaged"
        )
    pointers = (indptr - indptr[0]).astype(np.promote_types(indices.dtype, np.int32), copy=False)
    rows = sp.csr_array((data, indices, pointers), shape=(len(steps), n_features))
    return canonical_csr(rows)


class DecodedBlocks:
    """Rows that can be had only in blocks; read by any range.

    A block is held until its last row has been read, so that reading on from its middle does not decode it
    again. What may be kept from pass to pass is the component's business, see `grassia.data.stored`.

    Parameters
    ----------
    bounds : sequence of int
        Rows ``bounds[i]:bounds[i + 1]`` are block i; it begins with 0 and ends with the number of rows.
    decode : callable
        The rows of block i, dense or CSR.
    keep : bool
        Whether to keep blocks here, as far as `grassia.data.room.ROOM` has room: for those that take less of
        it than the rows made of them. The first ones stay; passes go from first to last, so that dropping
        the one used longest ago would drop each just before it is wanted.

    Examples
    --------
    >>> blocks = DecodedBlocks([0, 2, 5], lambda i: np.full((2 + i, 1), i))
    >>> blocks.read(1, 4).ravel().tolist()
    [0, 1, 1]
    """

    def __init__(self, bounds: Sequence[int], decode: Callable[[int], Any], keep: bool = False) -> None:
        self._bounds = np.asarray(bounds, dtype=np.int64)
        self._decode = decode
        self._keep = keep
        self._kept: dict[int, Any] = {}
        self._held: tuple[int, Any] = (-1, None)
        self._room, self._taken = room.ROOM, list[int]()
        weakref.finalize(self, self._room.give_back, self._taken)

    def read(self, start: int, stop: int) -> Any:
        """Rows ``start:stop``; the result may be a view of what is held, so do not write into it."""
        first = int(np.searchsorted(self._bounds, start, side="right")) - 1
        last = int(np.searchsorted(self._bounds, stop, side="left"))
        parts = []
        for i in range(first, max(last, first + 1)):
            offset = int(self._bounds[i])
            block = self._block(i)
            parts.append(_part(block, max(start - offset, 0), min(stop - offset, block.shape[0])))
            if stop >= self._bounds[i + 1]:
                self.release()
        if len(parts) == 1:
            return parts[0]
        return stacked(parts) if issparse(parts[0]) else np.concatenate(parts)

    def release(self) -> None:
        """Let go of the block that is held but not kept."""
        self._held = (-1, None)

    def _block(self, i: int) -> Any:
        if i in self._kept:
            return self._kept[i]
        if self._held[0] == i:
            return self._held[1]
        block = self._decode(i)
        if self._keep and self._room.take(int(block.nbytes)):
            self._taken.append(int(block.nbytes))
            self._kept[i] = block
        else:
            self._held = (i, block)
        return block


def _part(block: Any, start: int, stop: int) -> Any:
    if start == 0 and stop == block.shape[0]:
        return block
    return csr_rows(block, start, stop) if issparse(block) else block[start:stop]
