"""How far a mean over few values can be trusted: bootstrap intervals, exact where they can be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
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


def bootstrap(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Percentile bootstrap interval of the mean (Efron 1979, Ann. Statist. 7); None below two.

    Of up to `EXACT` values every resample counts, of more `RESAMPLES` drawn with a fixed seed:
    equal values give equal intervals. Over two or three seeds it is no wider than their range, and
    covers less than its level says: it shows disagreement, and cannot prove agreement.
    """
    known = np.asarray(values, dtype=np.float64)
    if known.size < 2 or not np.isfinite(known).all():
        return None
    tail = (1 - level) / 2
    low, high = np.quantile(_resampled_means(known), [tail, 1 - tail], method="inverted_cdf")
    mean, spread = float(known.mean()), float(known.std(ddof=1))
    return Interval(mean, float(low), float(high), spread, int(known.size), level)


def _resampled_means(values: np.ndarray) -> np.ndarray:
    """Of every resample of few values, of some resamples of many."""
    n = values.size
    if n <= EXACT:
        picks = np.array(list(itertools.product(range(n), repeat=n)))
    else:
        picks = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    means: np.ndarray = values[picks].mean(axis=1)
    return means
