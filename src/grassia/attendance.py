"""Who is out since when, who is out of reach since when, and what is too long by the user's policy.

No clock: time is handed in. Every question is answered from a few arrays, and only when something can have
come due, so that a thousand workers cost a turn of the loop nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from grassia.losses import LossPolicy


class Attendance:
    """The components of a run, by number.

    >>> attendance = Attendance(2, LossPolicy(timeout=5.0, hasten=None))
    >>> attendance.sent(0, task=7, now=1.0)
    >>> attendance.silent(4.0), attendance.silent(6.0), attendance.alarm
    ([], [0], 6.0)
    """

    def __init__(self, n: int, policy: LossPolicy) -> None:
        self._policy = policy
        self._task = np.zeros(n, dtype=np.int64)
        self._since = np.full(n, math.inf)  # when its question went out; infinite where none is
        self._slowest = np.zeros(n)  # the longest that an answer took
        self._patience = np.full(n, math.inf)  # the age at which its question is put to another
        self._absent = np.full(n, math.inf)  # since when it is out of reach
        self._next_gone = math.inf  # when the first of them has been so for too long
        steps = [policy.timeout or math.inf]
        if policy.hastens:
            steps.append(policy.hasten_after)
        self._soonest = min(steps)
        #: The moment at which something may be due, none before it.
        self.alarm = math.inf

    # -- what happens -----------------------------------------------------------------------------

    def sent(self, component: int, task: int, now: float) -> None:
        """A question goes out."""
        self._task[component], self._since[component] = task, now
        self._patience[component] = math.nan  # depends on how long answers take: seen when it is due
        self.alarm = min(self.alarm, now + self._soonest)

    def back(self, component: int, now: float, answered: bool) -> None:
        """It is no longer out."""
        if answered and math.isfinite(self._since[component]):
            if self._policy.hastens and not self._slowest.any():
                self.alarm = min(self.alarm, now)  # from now on somebody can be slow
            self._slowest[component] = max(self._slowest[component], now - self._since[component])
        self._since[component] = math.inf

    def lost(self, components: Iterable[int], now: float) -> None:
        """They are out of reach."""
        for component in components:
            self._since[component] = math.inf
            self._absent[component] = min(self._absent[component], now)
        self._count_absent()
        self.alarm = min(self.alarm, self._next_gone)

    def restored(self, components: Iterable[int]) -> None:
        """They can be reached again."""
        self._absent[list(components)] = math.inf
        self._count_absent()

    def forget(self, components: Iterable[int]) -> None:
        """They are no longer part of the problem; nor is anybody waited for who is out."""
        self._absent[list(components)] = math.inf
        self._since[:] = math.inf
        self._count_absent()

    def _count_absent(self) -> None:
        self._next_gone = float(self._absent.min(initial=math.inf)) + self._policy.bound

    def since(self, component: int) -> float:
        """When its question went out; infinite where none is out."""
        return float(self._since[component])

    # -- what is too long -------------------------------------------------------------------------

    def gone(self, now: float) -> list[int]:
        """Components that have been out of reach for longer than the policy's patience."""
        if now < self._next_gone:
            return []
        return [int(i) for i in np.flatnonzero(now - self._absent >= self._policy.bound)]

    def silent(self, now: float) -> list[int]:
        """Components whose question has been out for longer than the policy's timeout."""
        if self._policy.timeout is None or now < self.alarm:
            return []
        return [int(i) for i in np.flatnonzero(now - self._since >= self._policy.timeout)]

    def slow(self, now: float) -> list[tuple[int, int]]:
        """(task, component) of the questions to be put to another; each again after twice as long."""
        if not self._policy.hastens or now < self.alarm:
            return []
        self._measure()
        late = np.flatnonzero(now - self._since >= self._patience)
        self._patience[late] = 2.0 * (now - self._since[late])
        return [(int(self._task[i]), int(i)) for i in late]

    def _measure(self) -> None:
        """How long each question that is out may take."""
        factor = self._policy.hasten or math.inf
        usual = np.where(self._slowest > 0.0, self._slowest, self._slowest.max(initial=0.0))
        new = np.isnan(self._patience)
        if usual.max(initial=0.0) > 0.0:  # before anybody has answered nobody is slow
            self._patience[new] = np.maximum(self._policy.hasten_after, factor * usual[new])

    def look_again(self, now: float) -> None:
        """All that was due has been seen to: set the alarm for what comes next."""
        if now < self.alarm:
            return
        due = [self._next_gone]
        due.append(self._since.min(initial=math.inf) + (self._policy.timeout or math.inf))
        if self._policy.hastens:
            # Before anybody has answered nobody is slow, and afterwards there is an alarm at once.
            unknown = self._policy.hasten_after if self._slowest.any() else math.inf
            patience = np.where(np.isnan(self._patience), unknown, self._patience)
            due.append(float((self._since + patience).min(initial=math.inf)))
        # What is overdue and could not be helped is looked at again a little later.
        least = 0.1 * min(self._soonest, max(self._policy.bound, 1.0))
        self.alarm = max(min(due), now + max(least, 1e-3)) if min(due) < math.inf else math.inf
