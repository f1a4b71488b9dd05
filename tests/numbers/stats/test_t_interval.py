"""Intervals of means over seeds against values from tables and by scipy.stats."""

import numpy as np
import pytest
from scipy import stats

from unlearnbench.stats.t_interval import interval_of_all, t_interval


def test_two_values_give_their_range() -> None:
    found = t_interval([0.0, 1.0])
    assert found is not None
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)
    assert found.spread == pytest.approx(0.5**0.5)
    assert found.is_range
    assert found.name == "min-max of 2 seeds, which is not an interval of the mean"


def test_three_values_by_hand() -> None:
    # Mean 3, s = 3; t of 2 degrees is 4.303: 4.303 · 3 / √3 = 7.453.
    found = t_interval([0.0, 3.0, 6.0])
    assert found is not None
    assert (found.mean, found.spread) == (3.0, 3.0)
    assert (found.low, found.high) == pytest.approx((-4.453, 10.453), abs=1e-3)
    assert found.name == "95 % t interval of the mean over 3 seeds"
    assert not found.is_range


@pytest.mark.parametrize(("n", "level"), [(3, 0.5), (5, 0.95), (10, 0.9)])
def test_equal_to_scipy(n: int, level: float) -> None:
    values = np.random.default_rng(n).normal(size=n)
    found = t_interval(values.tolist(), level)
    assert found is not None
    expected = stats.t.interval(level, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, float("nan")], [0.5, float("-inf")]])
def test_no_interval(values: list[float]) -> None:
    assert t_interval(values) is None


def test_an_interval_of_probabilities_ends_at_1() -> None:
    # Mean 0.952, s = 0.02946: 4.303 · 0.02946 / √3 = 0.0732, so that the upper end was 1.025.
    found = interval_of_all([0.918, 0.969, 0.969], (0.0, 1.0))
    assert found is not None
    assert (found.mean, found.low) == pytest.approx((0.952, 0.8788), abs=1e-3)
    assert found.high == 1.0
    unbounded = interval_of_all([0.918, 0.969, 0.969])
    assert unbounded is not None
    assert unbounded.high == pytest.approx(1.0252, abs=1e-3)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_end_is_not_cut_at_a_bound_that_the_mean_lies_beyond(sign: int) -> None:
    """The interval of Lasting ended at its mean, as if no larger mean were possible."""
    bounds = (0.0, 1.0) if sign == 1 else (-1.0, 0.0)
    found = interval_of_all([sign * value for value in (1.02, 1.03, 1.04)], bounds)
    assert found is not None
    half = 4.302653 * 0.01 / 3**0.5
    assert found.mean == pytest.approx(sign * 1.03)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_the_other_end_is_cut_all_the_same() -> None:
    found = interval_of_all([0.2, 1.2, 1.9], (0.0, 1.0))
    assert found is not None
    assert found.low == 0.0
    half = 4.302653 * 0.854400 / 3**0.5
    assert found.high == pytest.approx(1.1 + half, abs=1e-3)


def test_rounding_lifts_no_mean_beyond_its_bound() -> None:
    found = interval_of_all([0.9, 1.05, 1.05 + 3e-16], (0.0, 1.0))
    assert found is not None
    assert found.high == max(found.mean, 1.0)


def test_a_mean_within_bounds_lies_in_the_cut_interval_as_often() -> None:
    """Of means of three shares, the cut interval contains the true one whenever the whole does."""
    rng = np.random.default_rng(7)
    for share in (0.9, 0.97):
        for values in rng.binomial(40, share, (200, 3)) / 40:
            whole, cut = (interval_of_all(values.tolist(), b) for b in ((-9.0, 9.0), (0.0, 1.0)))
            assert whole is not None
            assert cut is not None
            assert (whole.low <= share <= whole.high) is (cut.low <= share <= cut.high)
            assert 0.0 <= cut.low <= cut.mean <= cut.high <= 1.0
