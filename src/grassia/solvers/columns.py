"""A matrix that grows by columns without being copied each time."""

from __future__ import annotations

import numpy as np

from grassia.messages import Array


class _Store:
    """Room for more columns than there are, and how many of them are taken."""

    def __init__(self, d: int, room: int) -> None:
        self.array = np.zeros((d, room), order="F")  # no rest of other data may come into a checkpoint
        self.taken = 0


class Columns:
    """A d x p matrix as a value: `with_block` gives a new one and leaves the old one as it is.

    The new one lies in the same memory where nothing else follows the old one there, so that a basis that
    grows block by block is copied as often as it doubles, not with each block.

    >>> old = Columns.of(np.eye(3)[:, :1])
    >>> new = old.with_block(np.eye(3)[:, 1:])
    >>> old.matrix.shape, new.matrix.shape, bool(np.all(new.matrix == np.eye(3)))
    ((3, 1), (3, 3), True)
    """

    def __init__(self, store: _Store, size: int) -> None:
        self._store, self._size = store, size

    @classmethod
    def of(cls, matrix: Array) -> Columns:
        """A copy of a matrix."""
        d, p = matrix.shape
        return cls(_Store(d, p), 0).with_block(matrix)

    @property
    def matrix(self) -> Array:
        """The columns; not to be changed."""
        return self._store.array[:, : self._size]

    def with_block(self, block: Array) -> Columns:
        """These columns and those of `block`."""
        store, size = self._store, self._size
        grown = size + block.shape[1]
        if store.taken != size or grown > store.array.shape[1]:
            store = _Store(store.array.shape[0], max(2 * size, grown))
            store.array[:, :size] = self.matrix
        store.array[:, size:grown] = block
        store.taken = grown
        return Columns(store, grown)
