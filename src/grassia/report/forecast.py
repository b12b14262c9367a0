"""What can be said of a run that goes on: when it may be done, and who holds back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["SLOW", "slowness", "time_left"]

#: Who takes so many times as long as the median is a straggler.
SLOW = 3.0

_FEWEST = 5
_MOST = 60
_LONGEST = 100.0  # no forecast beyond so many times of what was seen


def time_left(times: Sequence[float], residuals: Sequence[float], target: float) -> float | None:
    """Seconds until a residual is at its target if it goes on falling as it did of late; None: unknown.

    A line is fitted to the logarithm of the later half. Nothing is said where there are fewer than five
    points, where the fall cannot be told from noise, or where it would take a hundred times as long as what
    was seen.

    >>> time_left([0, 1, 2, 3, 4], [1.0, 0.1, 0.01, 1e-3, 1e-4], 1e-6)
    2.0
    >>> time_left([0, 1, 2, 3, 4], [1.0, 1.0, 1.0, 1.0, 1.0], 1e-6) is None
    True
    """
    t, r = np.asarray(times, dtype=np.float64), np.asarray(residuals, dtype=np.float64)
    usable = np.isfinite(r) & (r > 0.0) & np.isfinite(t)
    t, r = t[usable], r[usable]
    if len(t) < _FEWEST or not target > 0.0:
        return None
    if r[-1] <= target:
        return 0.0
    count = min(_MOST, max(_FEWEST, len(t) // 2))
    x, y = t[-count:] - t[-1], np.log(r[-count:])
    spread = x - x.mean()
    weight = float(spread @ spread)
    if weight <= 0.0:
        return None
    slope = float(spread @ y) / weight
    off = y - y.mean() - slope * spread
    uncertain = math.sqrt(float(off @ off) / (count - 2) / weight)
    if slope >= 0.0 or -slope < 3.0 * uncertain:
        return None
    left = (math.log(target) - float(y[-1])) / slope
    return round(left, 9) if left <= _LONGEST * float(t[-1] - t[0]) else None


def slowness(answers: Sequence[int], busy: Sequence[float], waited: Sequence[float]) -> list[float]:
    """How many times longer each worker takes for an answer than the median; 1 where unknown.

    `waited` is for how long its question has been out now: one that never answers is slow, too.

    >>> slowness([10, 10, 1], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    [1.0, 1.0, 10.0]
    """
    count = np.asarray(answers, dtype=np.float64)
    pace = np.divide(busy, count, out=np.zeros(len(count)), where=count > 0.0)
    still = np.nan_to_num(np.asarray(waited, dtype=np.float64), nan=0.0, posinf=0.0)
    pace = np.maximum(pace, still)
    if len(pace) < 2:
        return [1.0] * len(pace)
    order = np.sort(pace)
    median = order[(len(order) - 1) // 2]  # the lower one: of two workers, one may be the slow one
    if not median > 0.0:
        return [1.0] * len(pace)
    return [float(one) for one in np.maximum(pace / median, 1.0)]
