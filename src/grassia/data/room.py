"""How much of the rows it has read from files this process may keep."""

from __future__ import annotations

import threading

__all__ = ["KEEP_BYTES", "ROOM", "Room"]

#: Rows that are dear to decode (compressed, or text), or few, are kept: so many bytes in each process.
KEEP_BYTES = 512 << 20


class Room:
    """Bytes that are taken and given back, by any thread.

    >>> room = Room(100)
    >>> room.take(60), room.take(60)
    (True, False)
    >>> room.give_back([60])
    >>> room.take(60)
    True
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there is so much room; then it is taken."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, taken: list[int]) -> None:
        """Give back what was taken, and forget it."""
        with self._lock:
            self._left += sum(taken)
            taken.clear()


#: The room of this process, shared by all its components.
ROOM = Room(KEEP_BYTES)
