"""Axes of strips, small drawings in the lines of a table that share one axis, and signs."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from unlearnbench.analysis.pairs import Verdict

from .formatting import signed

SYMBOLS: Mapping[Verdict, str] = {
    Verdict.BETTER: "▲",
    Verdict.WORSE: "▼",
    Verdict.UNDECIDED: "?",
    Verdict.INCOMPARABLE: "–",
}
"""Signs of verdicts, which also differ without colours."""
_PAD = 0.06
"""Part of the range that is left free at either end."""
_MOST_TICKS = 4
"""Most steps between the numbers of an axis, which stand beside each other on a phone, too."""
_STEPS = (1, 2, 2.5, 5, 10)


Unmarked = Mapping[str, list[tuple[str, str, str]]]
"""Methods that have no line in a picture: by the reason their names, families, reasons in full."""


def by_reason(methods: Iterable[tuple[str, str, str, str]]) -> Unmarked:
    """Group methods that have no line, given as name, family, reason and reason in full."""
    grouped: dict[str, list[tuple[str, str, str]]] = {}
    for name, family, reason, in_full in methods:
        grouped.setdefault(reason, []).append((name, family, in_full))
    return grouped


@dataclass(frozen=True)
class Scale:
    """An axis from `low`, at the left end of a strip, to `high`."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float | None]) -> "Scale":
        """Return an axis on which all values are inside; from 0 to 1 without a value."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return cls(0.0, 1.0)
        low, high = min(known), max(known)
        pad = _PAD * (high - low) or 0.05 * abs(high) or 0.5
        return cls(low - pad, high + pad)

    @classmethod
    def within(cls, bounds: tuple[float, float], values: Iterable[float | None]) -> "Scale":
        """Return an axis over the bounds of a number; around the values if one is infinite."""
        low, high = bounds
        return cls(low, high) if math.isfinite(low) and math.isfinite(high) else cls.around(values)

    def percent(self, value: float) -> float:
        """Return the place of a value in per cent of the width; at an end if it lies beyond."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Round values on the axis with their texts."""
        span = self.high - self.low
        unit = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
        times = next(times for times in _STEPS if span / (unit * times) <= _MOST_TICKS + 1e-9)
        step = unit * times
        digits = max(0, -math.floor(math.log10(step) + 1e-9) + (times == 2.5))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        places = (number * step for number in range(first, last + 1))
        return tuple((value, signed(value + 0.0, digits)) for value in places)
