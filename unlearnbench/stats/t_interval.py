"""Student's t interval of a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
ENOUGH_SEEDS = 3
"""With fewer seeds an order of methods is in doubt, and only the range of values is given."""


@dataclass(frozen=True)
class Interval:
    """A mean with its interval, or with the range of its values."""

    mean: float
    low: float
    high: float
    spread: float
    """Sample standard deviation."""
    n: int
    """Number of values."""
    level: float = LEVEL

    @property
    def is_range(self) -> bool:
        """True if `low` and `high` are the smallest and largest of too few values."""
        return self.n < ENOUGH_SEEDS

    @property
    def name(self) -> str:
        """Description of `low` and `high`."""
        if self.is_range:
            return f"min-max of {self.n} seeds, which is not an interval of the mean"
        return f"{100 * self.level:g} % t interval of the mean over {self.n} seeds"


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Student's t interval of the mean; None below two values, or if one is not finite.

    mean ± t · s / √n

    s  sample standard deviation;  t  quantile (1 + level) / 2 of Student's t with n - 1 degrees

    It contains the mean of normal values in `level` of all cases for any n, which no resampling of
    so few values does: three values have the true mean within their range in 3 of 4 cases. For two
    values t is 12.7, so their range is given instead.
    """
    found = np.asarray(values, dtype=np.float64)
    n = int(found.size)
    if n < 2 or not np.isfinite(found).all():
        return None
    mean, spread = float(found.mean()), float(found.std(ddof=1))
    if n < ENOUGH_SEEDS:
        return Interval(mean, float(found.min()), float(found.max()), spread, n, level)
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, spread, n, level)
