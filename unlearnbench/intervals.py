"""How far a mean over few values can be trusted: bootstrap intervals, exact where they can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
ENOUGH_SEEDS = 3
"""With fewer, an order of methods is told to be in doubt, and no interval is called one."""
COVERED = {
    2: (0.50, 0.47),
    3: (0.75, 0.70),
    4: (0.88, 0.82),
    5: (0.92, 0.88),
    6: (0.93, 0.88),
    7: (0.95, 0.88),
    10: (0.95, 0.91),
}
"""Share of `bootstrap`'s intervals of level 0.95 that hold the mean, by values behind them: of
normal values, and of exponential ones."""
EXACT = 6
"""Most values of which every resample is looked at: 6⁶ = 46 656."""
RESAMPLES = 20_000


@dataclass(frozen=True)
class Interval:
    """A mean, and where it could as well have been."""

    mean: float
    low: float
    high: float
    spread: float
    """Sample standard deviation."""
    n: int
    """Values behind it."""
    level: float = LEVEL

    @property
    def is_range(self) -> bool:
        """Whether so few values stand behind it that it is their smallest and largest."""
        return self.n < ENOUGH_SEEDS

    @property
    def name(self) -> str:
        """What its two ends are to be called, with what they cover, for people."""
        if self.is_range:
            return f"min-max of {self.n} seeds, which is no interval of the mean"
        told = f"nominal {100 * self.level:g} % bootstrap interval of the mean over {self.n} seeds"
        normal, skewed = COVERED[max(n for n in COVERED if n <= self.n)]
        if self.level != LEVEL or skewed > 0.9:
            return told
        return (
            f"{told}; measured, it holds the mean in {100 * normal:.0f} % of cases, of skewed "
            f"values in {100 * skewed:.0f} %"
        )


def bootstrap(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Expanded percentile bootstrap interval of the mean; None below two values.

    The bootstrap (Efron 1979, Ann. Statist. 7, 1-26), with tails so thin that for a normal
    mean the interval would be as wide as Student's (Hesterberg 2015, Am. Stat. 69, 371-386): the
    plain one is too narrow over few values. Of up to `EXACT` values every resample counts, of
    more `RESAMPLES` drawn with a fixed seed: equal values give equal intervals.

    Share of intervals that hold the mean, measured at level 0.95 on 4,000 normal samples (plain
    percentiles), and on 3,000 normal and exponential ones (7 and 10 values: 1,100):

        n                        2      3      4      5      6      7     10
        plain percentiles        -   0.75      -   0.84      -      -   0.90
        normal values         0.50   0.75   0.88   0.92   0.93   0.95   0.95
        exponential values    0.47   0.70   0.82   0.88   0.88   0.88   0.91

    No resample leaves the range of the values, and three values have the true mean within their
    range three times in four: over two or three seeds an interval shows disagreement, and cannot
    prove agreement. Two values have it in half of all cases; theirs is called a range
    (`Interval.is_range`), and nothing prints it as an interval.
    """
    return _bootstrap(tuple(values), level)


@lru_cache(maxsize=1 << 16)  # a page asks several times for the interval of each of its points
def _bootstrap(values: tuple[float, ...], level: float) -> Interval | None:
    known = np.asarray(values, dtype=np.float64)
    if known.size < 2 or not np.isfinite(known).all():
        return None
    tail = _tail(known.size, level)
    low, high = np.quantile(_resampled_means(known), [tail, 1 - tail], method="inverted_cdf")
    mean, spread = float(known.mean()), float(known.std(ddof=1))
    return Interval(mean, float(low), float(high), spread, int(known.size), level)


def _tail(n: int, level: float) -> float:
    """Share of resamples below the interval: Φ(-√(n / (n-1)) · t), t Student's of n - 1."""
    from scipy.special import stdtrit

    student = float(stdtrit(n - 1, (1 + level) / 2))
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * student)


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """Of every resample of few values, of some resamples of many."""
    means: np.ndarray = values[_picks(values.size)].mean(axis=1)
    return means


@lru_cache(maxsize=16)
def _picks(n: int) -> np.ndarray:
    """Which values make up a resample: all ways for few values, some for many."""
    if n <= EXACT:
        return np.array(list(itertools.product(range(n), repeat=n)))
    return np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
