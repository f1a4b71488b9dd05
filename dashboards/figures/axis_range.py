"""Axis range that leaves outliers outside, so that they do not squeeze the other lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FENCE = 3.0
"""Distance from the quartiles, in interquartile ranges, beyond which a line is an outlier (Tukey
1977)."""
GAIN = 4.0
"""Factor by which the range must shrink for a line to be left outside."""
MOST = 0.25
"""Largest share of the lines that may be left outside."""
DECADES = 2.0
"""Span of positive values above which the axis is logarithmic."""
_PAD = 0.05


@dataclass(frozen=True)
class AxisRange:
    """The range of an axis that shows all lines but the outliers."""

    log: bool
    low: float
    """In the axis's own units: log10 of the value on a logarithmic axis."""
    high: float
    outside: tuple[int, ...] = ()
    """Indices of the lines that leave the range."""


def axis_range(
    lines: Sequence[Sequence[float | None]], log: bool | None = None
) -> AxisRange | None:
    """Compute the range for `lines`; None if they contain no number.

    `log` None: a logarithmic axis where every value is positive and they span `DECADES`; `log`
    True: wherever every value is positive. Outliers are found among the lines' lowest and highest
    points, so that a long line has no more weight than a short one.
    """
    finite = [[v for v in line if v is not None and math.isfinite(v)] for line in lines]
    values = [v for line in finite for v in line]
    if not values:
        return None
    positive = log is not False and min(values) > 0
    logarithmic = positive and (
        log is True or math.log10(max(values)) - math.log10(min(values)) > DECADES
    )
    scaled = [[math.log10(v) for v in line] if logarithmic else line for line in finite]
    lows, highs = ([end(line) for line in scaled if line] for end in (min, max))
    low, high = min(lows), max(highs)
    for _ in range(2):  # an outlier above may hide one below
        low, high = _trim_end(low, _fence(lows, -1), high), _trim_end(high, _fence(highs, 1), low)
    outside = _outside(scaled, low, high)
    if len(outside) > MOST * len(lows):
        low, high, outside = min(lows), max(highs), ()
    pad = _PAD * (high - low) or _PAD * (abs(high) or 1.0)
    return AxisRange(logarithmic, low - pad, high + pad, outside)


def _outside(lines: Sequence[Sequence[float]], low: float, high: float) -> tuple[int, ...]:
    """Find the lines that leave the range, by index."""
    return tuple(i for i, one in enumerate(lines) if one and (min(one) < low or max(one) > high))


def _trim_end(end: float, fenced: float, other: float) -> float:
    """Return `fenced` if leaving the outliers outside makes the range much smaller, else `end`."""
    return fenced if abs(end - other) >= GAIN * abs(fenced - other) > 0 else end


def _fence(ends: Sequence[float], sign: int) -> float:
    """Find the outermost end inside the Tukey fence; with two lines, of both."""
    if len(ends) < 3:
        return sign * max(sign * end for end in ends)
    towards = sign * np.asarray(ends, dtype=np.float64)
    first, third = np.quantile(towards, [0.25, 0.75], method="lower")
    return sign * float(towards[towards <= third + FENCE * (third - first)].max())
