"""Bootstrap interval of a mean over questions."""

import numpy as np

from unlearnbench.stats import FloatArray
from unlearnbench.stats.t_interval import LEVEL

DRAWS = 2000


def bootstrap_mean(
    values: FloatArray, *, level: float = LEVEL, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of the mean of values [n], from `DRAWS` resamples of all n.

    None for fewer than two values, or where one is not finite. Efron 1979, Ann. Statist. 7, 1-26.
    """
    n = values.size
    if n < 2 or not np.isfinite(values).all():
        return None
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    low, high = np.quantile(counts @ values / n, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
