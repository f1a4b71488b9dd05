"""What Forget Quality could have seen: power of the KS test for a number of questions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import exact_p_value
from unlearnbench.evaluation.result import FloatArray

SIGNIFICANCE = 0.05
POWER = 0.8
SIMULATIONS = 2_000


@dataclass(frozen=True)
class Sensitivity:
    """What a two-sample KS test of n against n questions can tell from chance."""

    n: int
    distance: float | None
    """Least D with p ≤ `significance`; None where so few questions never reach it."""
    shift: float | None
    """Shift of log10 truth ratio that `power` of all samples would show; None likewise, and
    where the retain model's ratios are not all positive numbers."""
    significance: float = SIGNIFICANCE
    power: float = POWER

    @property
    def told(self) -> str:
        """What it comes to, for people."""
        if self.distance is None:
            return (
                f"{self.n} forget questions are too few: no distance gives Forget Quality "
                f"p ≤ {self.significance:g}."
            )
        told = (
            f"With {self.n} forget questions, Forget Quality tells a model from the retain model "
            f"(p ≤ {self.significance:g}) only where D is at least {self.distance:.3g}."
        )
        if self.shift is None:
            return told
        return (
            f"{told} Truth ratios that are all off by a factor of {10**self.shift:.3g} get that "
            f"far in {100 * self.power:.0f} % of cases; smaller shifts often go unseen."
        )


def critical_count(n: int, significance: float = SIGNIFICANCE) -> int | None:
    """Least h with P(n·D ≥ h) ≤ `significance` for two samples of n; None where there is none.

    Exact, and free of the distribution: Gnedenko and Korolyuk 1951, as in `metrics`.
    """
    for count in range(1, n + 1):
        numerator, denominator = exact_p_value(n, count)
        if numerator / denominator <= significance:
            return count
    return None


def ks_power(
    retain: FloatArray | int, *, significance: float = SIGNIFICANCE, power: float = POWER
) -> Sensitivity:
    """What Forget Quality's test can see, for a retain model with these truth ratios [n].

    Where only the number of questions n is known, there is no shift.

    Assumes that the ratios of an unlearned model are distributed as the retain model's but for a
    shift in log10, up or down, and that both samples are drawn anew, independently, as the test
    itself assumes. They are drawn from the retain model's own empirical quantiles, joined by
    straight lines so that none are equal. Fixed seed; the Monte Carlo error of the shift is about
    one percent.
    Raises: EvaluationError without any ratio.
    """
    n = retain if isinstance(retain, int) else len(retain)
    if n == 0:
        raise EvaluationError("power of Forget Quality: the retain model has no truth ratio")
    count = critical_count(n, significance)
    if count is None or isinstance(retain, int):
        distance = None if count is None else count / n
        return Sensitivity(n, distance, None, significance, power)
    known = bool((np.isfinite(retain) & (retain > 0)).all())
    shift = _detectable_shift(np.log10(retain), count, power) if known else None
    return Sensitivity(n, count / n, shift, significance, power)


def _detectable_shift(values: FloatArray, count: int, power: float) -> float:
    """Least shift with which `power` of the simulated pairs of samples have n·D ≥ `count`.

    One distribution function is `count` above the other, somewhere at or after the j-th smallest
    value y_j of its sample, where fewer than j - count + 1 of the shifted others are at most y_j:
    y_j < x_(j-count+1) + shift. So each pair has a least shift, min_j y_j - x_(j-count+1), and the
    answer is a quantile of those.
    """
    n = len(values)
    rng = np.random.default_rng(0)
    places = np.linspace(0, 1, n)
    samples = np.interp(rng.random((2, SIMULATIONS, n)), places, np.sort(values))
    x, y = np.sort(samples, axis=-1)
    least = (y[:, count - 1 :] - x[:, : n - count + 1]).min(axis=1)
    return max(0.0, float(np.quantile(least, power, method="inverted_cdf")))
