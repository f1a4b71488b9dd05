"""Student's t interval of a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

LEVEL = 0.95
"""Probability that an interval contains the mean."""
ENOUGH_SEEDS = 3
"""With fewer seeds an order of methods is in doubt, and only the range of values is given."""
_ROUNDING = 1e-9
"""Most that rounding may lift a mean above its bound."""


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
    over: Literal["seeds", "questions"] = "seeds"
    """What the mean is taken over. Over questions, the interval is computed by `mean_interval`."""

    @property
    def is_range(self) -> bool:
        """Whether `low` and `high` are the smallest and largest of too few values."""
        return self.over == "seeds" and self.n < ENOUGH_SEEDS

    def within(self, bounds: tuple[float, float]) -> Interval:
        """Return the interval without the part in which no mean can lie.

        Student's t knows nothing of bounds: of three probabilities near 1, its upper end is above
        1. The true mean lies within the bounds, so the rest contains it just as often.

        Args:
            bounds: Least and largest value. A mean beyond one of them shows that it does not hold,
                and this end is not cut: an interval that ended at its mean would be too short.
        """
        least, largest = bounds
        low, high = self.low, self.high
        if self.mean >= least - _ROUNDING:
            low = min(self.mean, max(low, least))
        if self.mean <= largest + _ROUNDING:
            high = max(self.mean, min(high, largest))
        return replace(self, low=low, high=high)

    @property
    def name(self) -> str:
        """Description of `low` and `high`."""
        if self.is_range:
            return f"min-max of {self.n} seeds, which is not an interval of the mean"
        if self.over == "questions":
            return f"{100 * self.level:.3g} % interval over {self.n} questions, of one seed"
        return f"{100 * self.level:g} % t interval of the mean over {self.n} seeds"


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Compute Student's t interval of the mean of n values.

    mean ± t · s / √n

    s is the sample standard deviation, and t the quantile (1 + level) / 2 of Student's t
    distribution with n - 1 degrees of freedom.

    For normal values the interval contains the true mean in `level` of all cases, for any n. No
    resampling of so few values does: the range of three values contains the true mean in 3 of 4
    cases. For two values t is 12.7, so their range is given instead of an interval.

    Returns:
        None if there are fewer than two values, or if one is not finite.
    """
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return None
    # Not by numpy, which takes ten times as long for a few seeds.
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if n < ENOUGH_SEEDS:
        return Interval(mean, float(min(values)), float(max(values)), spread, n, level)
    half = _quantile(n - 1, level) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, spread, n, level)


def interval_of_all(
    values: Sequence[float | None], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Interval | None:
    """Compute `t_interval` within bounds.

    Args:
        values: One for each seed.
        bounds: Least and largest possible value, see `Interval.within`.

    Returns:
        None if there is no `t_interval`, and also if one value is missing, because a missing value
        must not disappear from a mean.
    """
    numbers = [value for value in values if value is not None]
    interval = t_interval(numbers) if len(numbers) == len(values) else None
    return None if interval is None else interval.within(bounds)


def is_above(higher: Mapping[int, float], lower: Mapping[int, float]) -> bool:
    """Whether one side's values by seed are above the other side's beyond chance.

    They are if the t interval of the differences over common seeds lies above 0. At least
    `ENOUGH_SEEDS` common seeds are needed.
    """
    seeds = higher.keys() & lower.keys()
    interval = t_interval([higher[seed] - lower[seed] for seed in sorted(seeds)])
    return interval is not None and not interval.is_range and interval.low > 0


@lru_cache(maxsize=64)
def _quantile(degrees: int, level: float) -> float:
    """Return the quantile (1 + level) / 2 of Student's t distribution."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(degrees, (1 + level) / 2))
