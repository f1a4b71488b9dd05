"""Bootstrap interval of a mean over questions."""

import numpy as np

from unlearnbench.stats import FloatArray
from unlearnbench.stats.t_interval import LEVEL

DRAWS = 2000
"""Bootstrap draws of an interval."""


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
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    low, high = np.quantile(counts @ values / n, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
