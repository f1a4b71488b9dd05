"""Axes of strips, and signs of comparisons.

A strip is a small drawing in the line of a table. All strips of a column share one axis.
"""

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
"""Fraction of the range of values that stays free at either end."""
_MOST_STEPS = 4
"""Most steps between the numbers of an axis. A phone has room for these."""
_STEPS = (1, 2, 2.5, 5, 10)
"""Distances of the numbers of an axis, times a power of ten."""


Unmarked = Mapping[str, list[tuple[str, str, str]]]
"""Methods without a line in a picture, by the reason: name, family and the reason in full."""


def by_reason(methods: Iterable[tuple[str, str, str, str]]) -> Unmarked:
    """Group methods without a line by the reason.

    Args:
        methods: Name, family, reason, and the reason in full, of each.
    """
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
        """Return an axis that contains all finite values; from 0 to 1 if there are none."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if not finite:
            return cls(0.0, 1.0)
        low, high = min(finite), max(finite)
        # Equal values have no range, and the axis needs one.
        pad = _PAD * (high - low) or 0.05 * abs(high) or 0.5
        return cls(low - pad, high + pad)

    @classmethod
    def within(cls, bounds: tuple[float, float], values: Iterable[float | None]) -> "Scale":
        """Return an axis between the bounds of a number, or around its values.

        Args:
            bounds: Lowest and highest possible value. If one is infinite, the values decide.
            values: Values to draw.
        """
        low, high = bounds
        is_bounded = math.isfinite(low) and math.isfinite(high)
        return cls(low, high) if is_bounded else cls.around(values)

    def percent(self, value: float) -> float:
        """Return the place of a value in per cent of the width, from the left.

        A value beyond an end of the axis has its place at this end.
        """
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Round numbers on the axis, each with its text."""
        span = self.high - self.low
        # Rounding errors must neither add a step nor lose an end of the axis.
        tolerance = 1e-9
        unit = 10.0 ** math.floor(math.log10(span / _MOST_STEPS))
        multiple = next(
            multiple for multiple in _STEPS if span / (unit * multiple) <= _MOST_STEPS + tolerance
        )
        step = unit * multiple
        # 2.5 times a power of ten needs one decimal more than the power itself.
        digits = max(0, -math.floor(math.log10(step) + tolerance) + (multiple == 2.5))
        first = math.ceil(self.low / step - tolerance)
        last = math.floor(self.high / step + tolerance)
        ticks: list[tuple[float, str]] = []
        for number in range(first, last + 1):
            value = number * step
            # Adding 0.0 turns a negative zero into zero, whose text has no minus sign.
            ticks.append((value, signed(value + 0.0, digits)))
        return tuple(ticks)
