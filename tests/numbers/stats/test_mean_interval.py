"""Intervals of means over few questions: exact if possible, and never without a width."""

import math

import numpy as np
import pytest
from scipy import stats

from unlearnbench.stats.bootstrap_mean import bootstrap_mean
from unlearnbench.stats.mean_interval import (
    interval_of_summary,
    mean_interval,
    proportion_interval,
)

UNIT = (0.0, 1.0)


def test_a_proportion_has_the_exact_interval() -> None:
    for n in (1, 2, 3, 7, 30, 400):
        for count in {0, 1, n // 2, n - 1, n}:
            exact = stats.binomtest(count, n).proportion_ci(method="exact")
            found = proportion_interval(count, n)
            assert found == pytest.approx((exact.low, exact.high), abs=1e-9)
            values = np.repeat([1.0, 0.0], [count, n - count])
            assert mean_interval(values, UNIT) == found
    assert proportion_interval(2, 2) == pytest.approx((0.025**0.5, 1.0))


def test_a_scaled_proportion_is_scaled_back() -> None:
    low, high = proportion_interval(3, 4)
    found = mean_interval(np.array([1.0, -1.0, 1.0, 1.0]), (-1.0, 1.0))
    assert found == pytest.approx((2 * low - 1, 2 * high - 1))


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_equal_values_have_a_width(n: int) -> None:
    # A share of 1 - 0.025^(1/n) of the questions may be at a bound, although none of n was.
    unseen = 1 - 0.025 ** (1 / n)
    found = mean_interval(np.full(n, 0.7), UNIT)
    assert found == pytest.approx((0.7 * (1 - unseen), 0.7 + 0.3 * unseen))
    # In the limit it is the exact interval of a proportion of 1.
    near = mean_interval(np.full(n, 1 - 1e-12), UNIT)
    assert near == pytest.approx(proportion_interval(n, n), abs=1e-9)
    assert mean_interval(np.full(n, 0.7), (0.0, math.inf)) is None


def test_few_values_have_students_interval_within_the_bounds() -> None:
    values = np.array([0.2, 0.5, 0.6, 0.9])
    exact = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert mean_interval(values, (-math.inf, math.inf)) == pytest.approx(exact)
    assert mean_interval(np.array([0.4, 0.6]), UNIT) == UNIT
    many = np.random.default_rng(0).uniform(0, 1, 30)
    assert mean_interval(many, UNIT) == bootstrap_mean(many)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [1.0, float("inf")]])
def test_undefined_values_have_none(values: list[float]) -> None:
    assert mean_interval(np.array(values), UNIT) is None


@pytest.mark.parametrize("n", [2, 5, 12])
@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_the_interval_contains_the_mean_about_as_often_as_it_says(n: int, mean: float) -> None:
    rng = np.random.default_rng(n)
    draws = 2000
    binary = rng.random((draws, n)) < mean
    spread = rng.beta(8 * mean, 8 * (1 - mean), (draws, n))
    # The exact interval is never too narrow. Student's is a little, if the values are skewed.
    skewed = 0.88 if mean == 0.9 else 0.94
    for values, least in ((binary.astype(float), 0.95), (spread, skewed)):
        ends = np.array([mean_interval(row, UNIT) for row in values])
        covered = (ends[:, 0] <= mean) & (mean <= ends[:, 1])
        assert covered.mean() >= least - 3 * math.sqrt(0.95 * 0.05 / draws)


def test_a_mean_of_zeros_and_ones_is_recognised_by_its_standard_error() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(2, 60))
        binary = (rng.random(n) < rng.random()).astype(float)
        found = interval_of_summary(binary.mean(), float(stats.sem(binary)), n)
        assert found == proportion_interval(int(binary.sum()), n)
        other = rng.uniform(0.1, 0.9, n)
        exact = stats.t.interval(0.95, n - 1, other.mean(), stats.sem(other))
        assert interval_of_summary(other.mean(), float(stats.sem(other)), n) == pytest.approx(exact)
    assert interval_of_summary(1.0, None, 1) == pytest.approx((0.025, 1.0))
    assert interval_of_summary(1.0, 0.0, 2) == proportion_interval(2, 2)
    assert interval_of_summary(12.5, 0.0, 3) is None, "equal values without bounds"
    assert interval_of_summary(12.5, None, 3) is None
    assert interval_of_summary(0.4, None, 7) is None
