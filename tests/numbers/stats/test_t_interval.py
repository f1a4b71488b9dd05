"""Intervals of means over seeds against values from tables and by scipy.stats."""

import numpy as np
import pytest
from scipy import stats

from unlearnbench.stats.t_interval import t_interval


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
