"""The components of one worker, as a Dask back-end's server sees them: where they are, what is under way."""

from __future__ import annotations

from collections import deque

from grassia.backends.dask_link import Seat
from grassia.backends.setbacks import Setbacks
from grassia.messages import Task

__all__ = ["Place"]


class Place:
    """Components that are worked on one after the other.

    Parameters
    ----------
    components : tuple of int
    luggage : bytes
        What they are opened from, wherever that is.
    rooted : bool
        Whether their data is on the cluster already, so that they had better stay with it.

    Attributes
    ----------
    home : Seat or None
        Where they are open; None while they have no worker, or only a copy has one.
    current : Task or None
        What is under way there.
    copy, copied : Seat and Task, or None
        Where a task is computed a second time, and which one.
    """

    def __init__(self, components: tuple[int, ...], luggage: bytes, rooted: bool) -> None:
        self.components, self.luggage, self.rooted = components, luggage, rooted
        self.home: Seat | None = None
        self.current: Task | None = None
        self.queue: deque[Task] = deque()
        self.copy: Seat | None = None
        self.copied: Task | None = None
        self.orphaned = ""  # how the worker was lost of which only the copy is left
        self.losses = 0
        self.setbacks = Setbacks()
        self.gone = False  # for good
        self.name = self.host = ""  # of the worker it was on last
        self.left: str | None = None
        self._taken_back: int | None = None

    @property
    def seats(self) -> list[Seat]:
        """Where it is open: nowhere, on one worker, or on two."""
        return [seat for seat in (self.home, self.copy) if seat is not None]

    @property
    def idle(self) -> bool:
        return self.current is None and not self.queue and self.copy is None

    def drop(self, number: int) -> list[Seat]:
        """A task is taken back; these work on it and should hear of it."""
        self.queue = deque(task for task in self.queue if task.id != number)
        ears = []
        if self.current is not None and self.current.id == number and self.home is not None:
            self._taken_back = number
            ears.append(self.home)
        if self.copied is not None and self.copied.id == number and self.copy is not None:
            ears.append(self.copy)
        return ears

    def out_with(self, number: int) -> Task | None:
        """The task of this number, if it is under way, or next after one that was taken back."""
        if self.current is not None and self.current.id == number:
            return self.current
        deaf = self.current is not None and self.current.id == self._taken_back
        return self.queue[0] if deaf and self.queue and self.queue[0].id == number else None

    def promote_copy(self) -> None:
        """The copy takes the place of the first."""
        assert self.copied is not None
        number = self.copied.id
        self.queue = deque(task for task in self.queue if task.id != number)
        self.home, self.copy, self.current, self.copied = self.copy, None, None, None
        self.losses = 0

    def lose(self) -> None:
        """It is open nowhere, and what was under way or queued is lost."""
        if self.home is not None:
            self.left = self.home.address
        self.home = self.copy = self.current = self.copied = None
        self.queue.clear()
