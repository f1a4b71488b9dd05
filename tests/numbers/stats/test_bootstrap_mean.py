"""The bootstrap interval of a mean."""

import numpy as np
import pytest

from unlearnbench.stats.bootstrap_mean import DRAWS, bootstrap_mean


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


def test_kept_resamples_give_the_interval_of_resamples_that_are_drawn_anew() -> None:
    generator = np.random.default_rng(2)
    for n in (2, 30, 400, 30, 2, 400):
        values = generator.normal(size=n)
        for seed in (0, 3):
            drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
            expected = np.quantile(drawn @ values / n, [(1 - 0.95) / 2, (1 + 0.95) / 2])
            assert bootstrap_mean(values, seed=seed) == tuple(expected.tolist())


def test_many_values_have_an_interval_though_their_resamples_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(2).normal(size=60)
    kept = bootstrap_mean(values)
    monkeypatch.setattr("unlearnbench.stats.bootstrap_mean._MOST_KEPT", 59)
    assert bootstrap_mean(values) == kept
