"""Forget Quality's test against scipy and counting; its power against a plain simulation."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unlearnbench.stats import FloatArray
from unlearnbench.stats.ks_test import (
    critical_count,
    ks_power,
    ks_test,
    largest_gap,
    lowest_log10_p,
    sorted_log10,
)


@pytest.mark.parametrize(
    ("n", "count"),
    [
        (3, None),  # complete separation: 2 / C(6, 3) = 0.1
        (4, 4),  # 2 / C(8, 4) = 0.029; one less: 2 · 8 / 70 = 0.23
        (5, 5),  # 2 / C(10, 5) = 0.0079; one less: 2 · 10 / 252 = 0.079
        (6, 5),  # 2 · 12 / C(12, 6) = 0.026; one less: 2 · 66 / 924 = 0.14
    ],
)
def test_the_least_distance_by_hand(n: int, count: int | None) -> None:
    assert critical_count(n) == count


@pytest.mark.parametrize("n", [20, 80, 300])
def test_the_least_distance_is_the_first_that_forget_quality_calls_significant(n: int) -> None:
    count = critical_count(n)
    assert count is not None
    base = np.arange(float(n))

    def p_value(off: int) -> float:
        found = ks_test(base, np.where(base >= n - off, -1.0, base))
        assert found is not None
        assert found.statistic == off / n
        return found.p_value

    assert p_value(count) <= 0.05 < p_value(count - 1)


@pytest.mark.parametrize(("n", "expected_power"), [(20, 0.8), (80, 0.8), (80, 0.5)])
def test_the_shift_is_detected_with_the_stated_power(n: int, expected_power: float) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(0.1, 0.3, n)
    found = ks_power(10**values, power=expected_power)
    assert found.shift is not None
    seen = {1: 0, -1: 0}
    for sign in seen:
        for _ in range(600):
            x, y = np.interp(rng.random((2, n)), np.linspace(0, 1, n), np.sort(values))
            one = ks_test(x + sign * found.shift, y)
            assert one is not None
            seen[sign] += one.p_value <= 0.05
    assert [count / 600 for count in seen.values()] == pytest.approx(
        [expected_power] * 2, abs=0.045
    )


def separated(n: int, shared: int = 0) -> tuple[FloatArray, FloatArray]:
    """Two samples of n whose statistic is (n - shared) / n."""
    low = np.arange(n, dtype=np.float64)
    return low, low + n - shared


@pytest.mark.parametrize(
    ("n", "floor"), [(40, "1.9e-23"), (200, "1.9e-119"), (300, "1.5e-179"), (400, "1.1e-239")]
)
def test_floor_of_forget_quality(n: int, floor: str) -> None:
    quality = ks_test(*separated(n))
    assert quality is not None
    assert f"{quality.p_value:.1e}" == floor
    assert quality.p_value == pytest.approx(ks_2samp(*separated(n)).pvalue, rel=1e-12)
    assert quality.log10_p == pytest.approx(math.log10(quality.p_value), rel=1e-15, abs=1e-13)
    assert (quality.statistic, quality.n) == (1.0, n)


def test_log10_stays_finite_where_the_p_value_is_zero() -> None:
    quality = ks_test(*separated(1000))
    assert quality is not None
    assert quality.p_value == 0.0
    # Complete separation: 2 of C(2n, n) arrangements, with Stirling's series for the factorials.
    ln = 2 * math.lgamma(1001) - math.lgamma(2001) + math.log(2)
    assert quality.log10_p == pytest.approx(ln / math.log(10), rel=1e-13)
    assert quality.log10_p == pytest.approx(-600.01, abs=0.01)


@pytest.mark.parametrize("n", [1, 7, 40, 200, 300, 400, 1000])
def test_agrees_with_scipy_over_the_whole_range(n: int) -> None:
    for shared in sorted({*range(0, n + 1, max(1, n // 13)), n - 1, n}):
        ours = ks_test(*separated(n, shared))
        assert ours is not None
        assert -700 < ours.log10_p <= 0
        try:
            theirs = ks_2samp(*separated(n, shared))
        except RuntimeWarning:
            # Its rounding came out above 1, so that it would fall back to the asymptotic formula.
            assert 1 - 1e-12 < ours.p_value <= 1
            continue
        assert ours.statistic == theirs.statistic
        if theirs.pvalue > 1e-300:
            assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-12)


def test_agrees_with_scipy_on_samples_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 60))
        one, two = rng.integers(0, 12, n) / 4, rng.integers(0, 15, n) / 4
        ours, theirs = ks_test(one, two), ks_2samp(one, two, method="exact")
        assert ours is not None
        assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-15)
        assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-12)
        assert ours == ks_test(two, one)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_p_value_counts_arrangements(n: int) -> None:
    distances: list[int] = []
    for chosen in combinations(range(2 * n), n):
        steps = np.full(2 * n, -1)
        steps[list(chosen)] = 1
        distances.append(int(np.abs(np.cumsum(steps)).max()))
    for distance in range(1, n + 1):
        quality = ks_test(*separated(n, n - distance))
        assert quality is not None
        share = sum(d >= distance for d in distances) / len(distances)
        assert quality.p_value == pytest.approx(share, rel=1e-15)


def test_forget_quality_takes_infinite_ratios_and_leaves_nan_undefined() -> None:
    finite = np.array([1.0, 2.0, 3.0])
    quality = ks_test(np.array([np.inf, np.inf, 0.0]), finite)
    assert quality is not None
    assert quality.statistic == 2 / 3
    assert ks_test(np.array([np.nan, 1.0, 1.0]), finite) is None
    assert ks_test(finite, np.array([np.nan, 1.0, 1.0])) is None
    assert ks_test(finite[:0], finite[:0]) is None


@pytest.mark.parametrize("n", [5, 40, 300])
def test_the_lowest_p_is_the_exact_tests_at_complete_separation(n: int) -> None:
    p = ks_2samp(range(n), range(1000, 1000 + n), method="exact").pvalue
    assert lowest_log10_p(n) == pytest.approx(math.log10(p), rel=1e-9)


def test_the_largest_gap_worked_by_hand() -> None:
    # Below 10 lie 1 of 4 ratios of the one and 3 of 4 of the other, up to the next ratio, 100.
    gap = largest_gap(np.array([1.0, 100, 200, 300]), np.array([2.0, 3, 10, 1000]))
    assert gap == pytest.approx((1.5, 0.25, 0.75))  # halfway from 10 to 100, in decades


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_gap_is_where_scipy_finds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.lognormal(0.0, 1.0, 40), np.round(rng.lognormal(0.4, 1.0, 40), 1)
    gap = largest_gap(one, other)
    found = ks_2samp(one, other, method="exact")
    assert gap.statistic == pytest.approx(found.statistic, abs=1e-12)
    tested = ks_test(one, other)
    assert tested is not None
    assert gap.statistic == pytest.approx(tested.statistic, abs=1e-12)
    place = 10**gap.log10_place
    assert gap[1:] == ((one <= place).mean(), (other <= place).mean())
    assert largest_gap(one, one).statistic == 0


def test_underflow_and_overflow_stand_at_the_last_float() -> None:
    logs = sorted_log10(np.array([math.inf, 1.0, 0.0]))
    assert logs.tolist() == pytest.approx([-307.65, 0.0, 308.25], abs=0.01)
