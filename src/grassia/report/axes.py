"""Axes of a chart: from numbers to places in the picture, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Axis", "linear", "logarithmic"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis; `at` is where a number lies, from 0 to 1."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False
    label: str = ""

    def at(self, value: float) -> float:
        """Where a number lies; what is beyond the ends lies at them."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(
    values: Iterable[float], label: str = "", *, ticks: int = 5, zero: bool = False, whole: bool = False
) -> Axis:
    """An axis for finite numbers, its ends at ticks; those are integers where `whole` is asked for.

    >>> linear([0.0, 9.3], ticks=4).ticks
    ((0.0, '0'), (5.0, '5'), (10.0, '10'))
    """
    seen = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(seen), max(seen)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        room = abs(high) or 1.0
        low, high = (low, high + room) if zero and low == 0.0 else (low - room, high + room)
    step = _step((high - low) / max(1, ticks))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = tuple((i * step, _text(i * step, step)) for i in range(first, last + 1))
    return Axis(first * step, last * step, marks, label=label)


def logarithmic(values: Iterable[float], label: str = "", *, ticks: int = 6) -> Axis:
    """The same for positive numbers; the ends are powers of ten.

    >>> [text for _, text in logarithmic([0.02, 30.0]).ticks]
    ['10⁻²', '10⁻¹', '1', '10', '10²']
    """
    seen = [value for value in values if math.isfinite(value) and value > 0.0] or [0.1, 1.0]
    first, last = math.floor(math.log10(min(seen)) + 1e-9), math.ceil(math.log10(max(seen)) - 1e-9)
    last = max(last, first + 1)
    stride = max(1, math.ceil((last - first) / ticks))
    first = last - stride * math.ceil((last - first) / stride)
    marks = tuple((10.0**p, _power(p)) for p in range(first, last + 1, stride))
    return Axis(10.0**first, 10.0**last, marks, log=True, label=label)


def _step(rough: float) -> float:
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1.0, 2.0, 5.0, 10.0) if unit * factor >= rough * (1.0 - 1e-9))


def _text(value: float, step: float) -> str:
    if value == 0.0:
        return "0"
    if abs(value) >= 1e5 or step < 1e-4:
        return f"{value:.3g}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _power(exponent: int) -> str:
    if exponent in (0, 1):
        return "1" if exponent == 0 else "10"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
