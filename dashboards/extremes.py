"""How much of a figure its frame shows: no run that leaves may squeeze all the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FENCE = 3.0
"""Interquartile ranges beyond the quartiles at which a line is far out (Tukey 1977)."""
GAIN = 4.0
"""Times as tall the others must become for anything to be left outside."""
MOST = 0.25
"""Share of the lines that may be left outside: more are no exception."""
DECADES = 2.0
"""Span of positive values from which a logarithmic axis helps."""
_PAD = 0.05


@dataclass(frozen=True)
class Frame:
    """The range of an axis that shows all but the far-out lines."""

    log: bool
    low: float
    """In the axis's own units: log10 of the value on a logarithmic axis."""
    high: float
    outside: tuple[int, ...] = ()
    """Lines, by number, that leave it."""


def frame(lines: Sequence[Sequence[float | None]], log: bool | None = None) -> Frame | None:
    """The frame of some lines; None where there is no number.

    `log` None: a logarithmic axis where every value is positive and they span `DECADES`; `log`
    True: wherever every value is positive. What is far out is told from the lines' lowest and
    highest points, so that one long line counts no more than another.
    """
    known = [[v for v in line if v is not None and math.isfinite(v)] for line in lines]
    values = [v for line in known for v in line]
    if not values:
        return None
    positive = log is not False and min(values) > 0
    logarithmic = positive and (
        log is True or math.log10(max(values)) - math.log10(min(values)) > DECADES
    )
    scaled = [[math.log10(v) for v in line] if logarithmic else line for line in known]
    lows, highs = ([end(line) for line in scaled if line] for end in (min, max))
    low, high = min(lows), max(highs)
    for _ in range(2):  # what is far above may hide how far below something is
        low, high = _nearer(low, _fenced(lows, -1), high), _nearer(high, _fenced(highs, 1), low)
    outside = _outside(scaled, low, high)
    if len(outside) > MOST * len(lows):
        low, high, outside = min(lows), max(highs), ()
    pad = _PAD * (high - low) or _PAD * (abs(high) or 1.0)
    return Frame(logarithmic, low - pad, high + pad, outside)


def _outside(lines: Sequence[Sequence[float]], low: float, high: float) -> tuple[int, ...]:
    """Lines, by number, that leave the range."""
    return tuple(i for i, one in enumerate(lines) if one and (min(one) < low or max(one) > high))


def _nearer(end: float, fenced: float, other: float) -> float:
    """The fenced end, if what is then left out gives the rest much more room."""
    return fenced if abs(end - other) >= GAIN * abs(fenced - other) > 0 else end


def _fenced(ends: Sequence[float], sign: int) -> float:
    """The outermost end inside the fence; of two lines neither is the rule."""
    if len(ends) < 3:
        return sign * max(sign * end for end in ends)
    towards = sign * np.asarray(ends, dtype=np.float64)
    first, third = np.quantile(towards, [0.25, 0.75], method="lower")
    return sign * float(towards[towards <= third + FENCE * (third - first)].max())
