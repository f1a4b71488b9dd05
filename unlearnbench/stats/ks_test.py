"""Exact p-value and power of the two-sample KS test, which Forget Quality is computed with.

The code is our own, because `scipy.stats.ks_2samp` underflows to 0 for the small p-values that are
ranked here.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unlearnbench.base.errors import EvaluationError
from unlearnbench.stats import FloatArray

SIGNIFICANCE = 0.05
POWER = 0.8
SIMULATIONS = 2_000


@dataclass(frozen=True)
class Sensitivity:
    """Differences that a two-sample KS test of n against n questions can detect."""

    n: int
    distance: float | None
    """Least D with p ≤ `significance`; None if n is too small to reach it."""
    shift: float | None
    """Shift of log10 truth ratio that is detected in `power` of all samples. None if n is too
    small, and if the retain model's ratios are not all positive numbers."""
    significance: float = SIGNIFICANCE
    power: float = POWER

    @property
    def summary(self) -> str:
        """Sentences on the detectable difference."""
        if self.distance is None:
            return (
                f"{self.n} forget questions are too few: no distance gives Forget Quality "
                f"p ≤ {self.significance:g}."
            )
        text = (
            f"With {self.n} forget questions, Forget Quality distinguishes a model from the retain "
            f"model (p ≤ {self.significance:g}) only if D is at least {self.distance:.3g}."
        )
        if self.shift is None:
            return text
        return (
            f"{text} It finds a shift of all truth ratios by a factor of {10**self.shift:.3g} in "
            f"{100 * self.power:.0f} % of cases; smaller ones it usually misses."
        )


def critical_count(n: int, significance: float = SIGNIFICANCE) -> int | None:
    """Least h with P(n·D ≥ h) ≤ `significance` for two samples of n; None if n is too small.

    Exact for any continuous distribution: Gnedenko and Korolyuk 1951, as in `exact_p_value`.
    """
    for count in range(1, n + 1):
        numerator, denominator = exact_p_value(n, count)
        if numerator / denominator <= significance:
            return count
    return None


def ks_power(
    retain: FloatArray | int, *, significance: float = SIGNIFICANCE, power: float = POWER
) -> Sensitivity:
    """Compute the sensitivity for a retain model with these truth ratios [n].

    Assumes that the ratios of an unlearned model are distributed as the retain model's, shifted in
    log10, and that both samples are drawn independently, as the test itself assumes. Samples are
    drawn from the retain model's empirical quantiles with linear interpolation, so that none are
    equal. The seed is fixed, and the Monte Carlo error of the shift is about one percent.

    Args:
        retain: Truth ratios [n] of the retain model, or only their number n. A number gives no
            shift.
        significance: Largest p-value at which a difference counts as detected.
        power: Fraction of all samples in which the shift is detected.

    Raises:
        EvaluationError: If there is no ratio.
    """
    n = retain if isinstance(retain, int) else len(retain)
    if n == 0:
        raise EvaluationError("power of Forget Quality: the retain model has no truth ratio")
    count = critical_count(n, significance)
    if count is None or isinstance(retain, int):
        distance = None if count is None else count / n
        return Sensitivity(n, distance, None, significance, power)
    positive = bool((np.isfinite(retain) & (retain > 0)).all())
    shift = _detectable_shift(np.log10(retain), count, power) if positive else None
    return Sensitivity(n, count / n, shift, significance, power)


def _detectable_shift(values: FloatArray, count: int, power: float) -> float:
    """Least shift with which `power` of the simulated pairs of samples have n·D ≥ `count`.

    One distribution function is `count` above the other at the j-th smallest value y_j of its
    sample if fewer than j - count + 1 of the shifted others are at most y_j, that is, if
    y_j < x_(j-count+1) + shift. So each pair has a least shift, min_j y_j - x_(j-count+1), and the
    result is a quantile of those.
    """
    n = len(values)
    rng = np.random.default_rng(0)
    places = np.linspace(0, 1, n)
    samples = np.interp(rng.random((2, SIMULATIONS, n)), places, np.sort(values))
    x, y = np.sort(samples, axis=-1)
    least = (y[:, count - 1 :] - x[:, : n - count + 1]).min(axis=1)
    return max(0.0, float(np.quantile(least, power, method="inverted_cdf")))


@dataclass(frozen=True)
class KSTest:
    """Two-sample Kolmogorov-Smirnov test of n values against n, two-sided and exact."""

    p_value: float
    """Chance of a statistic at least as large if both came from one distribution; may be 0.0."""
    log10_p: float
    """log10 of the p-value, which is finite even if `p_value` underflows to 0."""
    statistic: float
    """D, the largest distance of the two empirical distribution functions."""
    n: int
    """Values of each sample; p-values of different n do not compare."""


def ks_test(array: FloatArray, other: FloatArray) -> KSTest | None:
    """Test whether two samples of n values come from one distribution.

    Returns:
        None if a sample contains a NaN, or if both are empty.

    Raises:
        EvaluationError: If the samples have different sizes.
    """
    n = len(array)
    if n != len(other):
        raise EvaluationError(
            f"Forget Quality: the model has {n} forget questions and the retain model "
            f"{len(other)}; the p-value needs the same questions on both sides: evaluate both "
            "on the same forget split with the same number of rows"
        )
    if n == 0 or np.isnan(array).any() or np.isnan(other).any():
        return None
    points = np.concatenate([array, other])
    below, below_other = (
        np.searchsorted(np.sort(values), points, side="right") for values in (array, other)
    )
    # Counts, not frequencies: n·D is a whole number and must not come from a rounded quotient.
    distance = int(np.abs(below - below_other).max())
    numerator, denominator = exact_p_value(n, distance)
    return KSTest(
        p_value=numerator / denominator,
        log10_p=log10_of_quotient(numerator, denominator),
        statistic=distance / n,
        n=n,
    )


class LargestGap(NamedTuple):
    """Where the distribution functions of two samples are furthest apart."""

    log10_place: float
    """log10 of the middle of the first interval on which the distance is D."""
    share: float
    """Share of the first sample's values up to there."""
    other_share: float
    """Share of the second sample's values up to there."""

    @property
    def statistic(self) -> float:
        """D, as of `ks_test`."""
        return abs(self.share - self.other_share)


def largest_gap(array: FloatArray, other: FloatArray) -> LargestGap:
    """Find the largest distance D of two samples' distribution functions, which the test uses.

    Args:
        array: Positive values [n].
        other: Values of the other sample [m].
    """
    points = np.unique(np.concatenate([array, other]))
    share, other_share = (
        np.searchsorted(np.sort(values), points, side="right") / len(values)
        for values in (array, other)
    )
    at = int(np.abs(share - other_share).argmax())
    # Both functions are constant up to the next point. The distance at the last point is 0.
    middle = sorted_log10(points[at : at + 2]).mean()
    return LargestGap(float(middle), float(share[at]), float(other_share[at]))


def sorted_log10(values: FloatArray) -> FloatArray:
    """Sort log10 of values [n]. Values that underflowed or overflowed become the last float."""
    smallest, largest = np.finfo(np.float64).tiny, np.finfo(np.float64).max
    ascending: FloatArray = np.log10(np.sort(np.clip(values, smallest, largest)))
    return ascending


def lowest_log10_p(n: int) -> float:
    """Compute log10 of the p-value of two samples of n that do not overlap.

    2 of the C(2n, n) orderings are as extreme. For 40 questions the p-value is 1.9e-23.
    """
    return log10_of_quotient(*exact_p_value(n, n))


@lru_cache(maxsize=4096)  # a sweep has few different n and distances
def exact_p_value(n: int, distance: int) -> tuple[int, int]:
    """Compute P(n·D ≥ h) for two samples of n from one distribution.

    p = 2 · Σ_{k≥1} (-1)^{k-1} · C(2n, n - k·h) / C(2n, n)

    Gnedenko and Korolyuk 1951 count the lattice paths that leave a strip.

    Args:
        n: Size of each sample.
        distance: h, the distance in questions.

    Returns:
        Numerator and denominator.
    """
    paths = math.comb(2 * n, n)
    if distance == 0:
        return paths, paths
    outside = 0
    sign = 1
    for reach in range(distance, n + 1, distance):
        term = math.comb(2 * n, n - reach)
        outside += sign * term
        sign = -sign
        # Terms alternate and decrease, so the rest is below this one: 2^-80 is far below rounding.
        if term << 80 < outside:
            break
    return 2 * outside, paths


def log10_of_quotient(numerator: int, denominator: int) -> float:
    """Compute log10(numerator / denominator) of numbers too large or too far apart for floats."""
    shift = denominator.bit_length() - numerator.bit_length()
    near_one = (numerator << shift) / denominator
    return math.log10(near_one) - shift * math.log10(2)
