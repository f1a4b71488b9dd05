"""The largest gap between two distributions of truth ratios."""

import importlib
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

module: Any = importlib.import_module("unlearnbench_dashboards.figures.truth_ratio_plot")


def test_d_worked_by_hand() -> None:
    # Below 10 lie 1 of 4 ratios of the one and 3 of 4 of the other, up to the next ratio, 100.
    gap = module.largest_gap(np.array([1.0, 100, 200, 300]), np.array([2.0, 3, 10, 1000]))
    assert gap == pytest.approx((1.5, 0.25, 0.75))  # halfway from 10 to 100, in decades


@pytest.mark.parametrize("seed", range(5))
def test_d_is_where_scipy_finds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.lognormal(0.0, 1.0, 40), np.round(rng.lognormal(0.4, 1.0, 40), 1)
    at, *shares = module.largest_gap(one, other)
    found = ks_2samp(one, other, method="exact")
    assert abs(shares[0] - shares[1]) == pytest.approx(found.statistic, abs=1e-12)
    assert shares == [(one <= 10**at).mean(), (other <= 10**at).mean()]
    assert len({*module.largest_gap(one, one)[1:]}) == 1


def test_underflow_and_overflow_stand_at_the_last_float() -> None:
    logs = module.logarithms(np.array([math.inf, 1.0, 0.0]))
    assert logs.tolist() == pytest.approx([-307.65, 0.0, 308.25], abs=0.01)
