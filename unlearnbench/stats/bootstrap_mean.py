"""Bootstrap interval of a mean over questions."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unlearnbench.stats import FloatArray
from unlearnbench.stats.t_interval import LEVEL

DRAWS = 2000
"""Bootstrap draws of an interval."""
_MOST_KEPT = 5000
"""Largest number of values whose resamples are kept for the next interval.

They take 40 MB. The resamples of more values are drawn again for each interval.
"""


def bootstrap_mean(
    values: FloatArray, *, level: float = LEVEL, seed: int = 0
) -> tuple[float, float] | None:
    """Compute a percentile interval of the mean of values [n] from `DRAWS` resamples of all n.

    Efron 1979, Ann. Statist. 7, 1-26.

    Args:
        values: One value for each question [n].
        level: Probability that the interval contains the mean over all questions.
        seed: Seed of the draws.

    Returns:
        Lower and upper end. None if there are fewer than two values, or if one is not finite.
    """
    n = values.size
    if n < 2 or not np.isfinite(values).all():
        return None
    counts = _kept_resamples(n, seed) if n <= _MOST_KEPT else _resamples(n, seed)
    low, high = np.quantile(counts @ values / n, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resamples(n: int, seed: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return how often each of n values is in each resample [DRAWS, n]."""
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    return counts.astype(np.uint32)


# The metrics of a set have equally many values, and an evaluation has about four sets.
_kept_resamples = lru_cache(maxsize=4)(_resamples)
