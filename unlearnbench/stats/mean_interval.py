"""Interval of a mean over questions, which is also valid for few questions and for equal values.

A bootstrap or normal interval of 2 equal values has no width. For example, an accuracy of 1 on 2
rows would be "1 ± 0". Therefore `mean_interval` distinguishes four cases.
"""

import math

import numpy as np

from unlearnbench.stats import FloatArray
from unlearnbench.stats.bootstrap_mean import bootstrap_mean
from unlearnbench.stats.t_interval import LEVEL

FEW = 30
"""Below this number of values a bootstrap of them is too narrow."""
_ROUNDING = 1e-9
"""Largest difference between values that count as equal: subtractions leave rounding errors."""
Ends = tuple[float, float]
"""Lower and upper end."""


def proportion_interval(count: int, n: int, *, level: float = LEVEL) -> Ends:
    """Compute the exact interval of a proportion, `count` of `n`.

    It contains the true proportion in at least `level` of all cases, for any n. Clopper and Pearson
    1934, Biometrika 26, 404-413. For 2 of 2 it is 0.16 to 1.
    """
    from scipy.special import betaincinv  # scipy.stats takes a second to import

    alpha = 1 - level
    low = float(betaincinv(count, n - count + 1, alpha / 2)) if count else 0.0
    high = float(betaincinv(count + 1, n - count, 1 - alpha / 2)) if count < n else 1.0
    return low, high


def mean_interval(values: FloatArray, bounds: Ends, *, level: float = LEVEL) -> Ends | None:
    """Compute an interval of the mean of values [n] that lie within `bounds`.

    - If each value is one of the two bounds, it is the exact interval of a proportion.
    - If all values are equal, a fraction q of all questions may differ although none of n did, as
      long as (1 - q)^n ≥ (1 - level) / 2. The interval is that of a mean to which this fraction
      contributes the lower or the upper bound.
    - If there are fewer than `FEW` values, it is Student's t interval, cut at the bounds.
    - Otherwise it is the bootstrap interval.

    Returns:
        None if there is no value, if a value is not finite, or if all values are equal and the
        bounds are not finite.
    """
    n = values.size
    low, high = bounds
    if not n or not np.isfinite(values).all():
        return None
    is_bounded = math.isfinite(low) and math.isfinite(high)
    mean = float(values.mean())
    if is_bounded and np.isin(values, bounds).all():
        count = int((values == high).sum())
        ends = proportion_interval(count, n, level=level)
        return low + ends[0] * (high - low), low + ends[1] * (high - low)
    if np.ptp(values) < _ROUNDING:
        if not is_bounded:
            return None
        unseen = 1 - ((1 - level) / 2) ** (1 / n)
        return mean - unseen * (mean - low), mean + unseen * (high - mean)
    if n < FEW:
        half = t_half_width(float(values.std(ddof=1)) / math.sqrt(n), n, level=level)
        return max(mean - half, low), min(mean + half, high)
    return bootstrap_mean(values, level=level)


def difference_bounds(bounds: Ends) -> Ends:
    """Return the bounds of the difference of two values that lie within `bounds`."""
    low, high = bounds
    return low - high, high - low


def t_half_width(standard_error: float, n: int, *, level: float = LEVEL) -> float:
    """Compute half the width of Student's t interval of a mean of n values."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, (1 + level) / 2)) * standard_error


def interval_of_summary(
    mean: float, standard_error: float | None, n: int, *, level: float = LEVEL
) -> Ends | None:
    """Compute an interval of a mean from its standard error and the number of values.

    A mean p between 0 and 1 is a proportion if its standard error is √(p(1 - p) / (n - 1)). Values
    that are all 0 or 1 have this standard error, and other values between 0 and 1 a smaller one.

    Args:
        mean: The mean.
        standard_error: Its standard error, or None if it is not known.
        n: Number of values.
        level: Probability that the interval contains the true mean.

    Returns:
        None if the mean is no proportion and n is 1 or the standard error is 0 or None.
    """
    if 0 <= mean <= 1 and n >= 1:
        count = round(mean * n)
        largest = math.sqrt(mean * (1 - mean) / (n - 1)) if n > 1 else 0.0
        is_whole = math.isclose(mean * n, count, abs_tol=1e-6 * n)
        # The harness has no standard error of one row.
        known = standard_error if standard_error is not None or n > 1 else 0.0
        if is_whole and known is not None and math.isclose(known, largest, abs_tol=1e-6):
            return proportion_interval(count, n, level=level)
    if not standard_error or n < 2:
        return None
    half = t_half_width(standard_error, n, level=level)
    return mean - half, mean + half
