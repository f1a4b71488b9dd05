"""The bootstrap interval of a mean."""

import numpy as np
import pytest

from unlearnbench.stats.bootstrap_mean import bootstrap_mean


def test_is_near_the_normal_interval_for_many_values() -> None:
    values = np.random.default_rng(1).normal(2.0, 3.0, 400)
    half = 1.96 * values.std() / 20
    low, high = bootstrap_mean(values) or (0.0, 0.0)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05)
    wider = bootstrap_mean(values, level=0.99) or (0.0, 0.0)
    assert wider[0] < low < high < wider[1]


@pytest.mark.parametrize("values", [[], [1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_too_few_or_undefined_values_have_none(values: list[float]) -> None:
    assert bootstrap_mean(np.array(values)) is None
