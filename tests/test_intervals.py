"""Bootstrap intervals against values worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unlearnbench.intervals import COVERED, EXACT, bootstrap


def test_two_values() -> None:
    # Resamples of (0, 1): 00, 01, 10, 11, so means 0 (1/4), 0.5 (1/2), 1 (1/4).
    found = bootstrap([0.0, 1.0])
    assert found is not None
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)
    assert found.spread == pytest.approx(0.5**0.5)


def test_three_values_at_half() -> None:
    # 27 resamples of (0, 3, 6); sums of three digits 0, 1, 2: 1, 3, 6, 7, 6, 3, 1 ways for 0 … 6.
    # Student's t of 2 degrees leaves a quarter above 0.816 (t² = 2/3), and √(3/2) · 0.816 = 1:
    # the tails are Φ(-1) = 0.159, of 27 resamples 4.3. The 5th smallest is sum 2, mean 2; from
    # above, sum 4, mean 4.
    found = bootstrap([0.0, 3.0, 6.0], level=0.5)
    assert found is not None
    assert (found.mean, found.low, found.high) == (3.0, 2.0, 4.0)


def test_equal_values_have_no_width() -> None:
    found = bootstrap([0.25] * 4)
    assert found is not None
    assert (found.low, found.high, found.spread) == (0.25, 0.25, 0.0)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, float("nan")], [0.5, float("-inf")]])
def test_no_interval(values: list[float]) -> None:
    assert bootstrap(values) is None


def test_drawn_resamples_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(4).normal(size=EXACT).tolist()
    exact = bootstrap(values)
    monkeypatch.setattr("unlearnbench.intervals.EXACT", 0)
    drawn = bootstrap(values)
    assert exact is not None
    assert drawn is not None
    assert (drawn.low, drawn.high) == pytest.approx((exact.low, exact.high), abs=0.1)
    assert drawn == bootstrap(values), "a fixed seed"


def test_three_values_at_a_level_where_the_plain_percentiles_are_narrower() -> None:
    # Student's t of 2 degrees: (1 + 0.9) / 2 above -2.920; tails Φ(-√1.5 · 2.920) = Φ(-3.576), so
    # the smallest and the largest; the plain tails of 0.05 · 27 = 1.35 leave out sum 0 and sum 6.
    found = bootstrap([0.0, 3.0, 6.0], level=0.9)
    assert found is not None
    assert (found.low, found.high) == (0.0, 6.0)


@pytest.mark.parametrize(("n", "covered"), [(3, 0.75), (5, 0.92), (10, 0.945), (30, 0.95)])
def test_coverage_is_what_the_docstring_says(n: int, covered: float) -> None:
    rng = np.random.default_rng(n)
    hits = 0
    for _ in range(200):
        found = bootstrap(rng.normal(size=n).tolist())
        assert found is not None
        hits += found.low <= 0 <= found.high
    assert hits / 200 == pytest.approx(covered, abs=0.05)  # two standard errors are 0.03 to 0.06


@pytest.mark.parametrize("n", [n for n in COVERED if n <= EXACT])
def test_coverage_of_normal_and_of_skewed_values_is_what_is_printed(n: int) -> None:
    rng = np.random.default_rng(n)
    for skewed, mean, covered in zip((False, True), (0.0, 1.0), COVERED[n], strict=True):
        hits = 0
        for _ in range(300):
            values = rng.exponential(size=n) if skewed else rng.normal(size=n)
            found = bootstrap(values.tolist())
            assert found is not None
            hits += found.low <= mean <= found.high
        # The least and the greatest in 300 draws with 99.9 %: 3.3 standard errors.
        assert abs(hits / 300 - covered) <= 3.3 * (covered * (1 - covered) / 300) ** 0.5 + 0.005


def test_what_two_seeds_give_is_never_called_an_interval() -> None:
    two, three, five, ten = (bootstrap([float(i) for i in range(n)]) for n in (2, 3, 5, 10))
    assert two is not None
    assert three is not None
    assert five is not None
    assert ten is not None
    assert [one.is_range for one in (two, three, five, ten)] == [True, False, False, False]
    assert two.name == "min-max of 2 seeds, which is no interval of the mean"
    assert three.name == (
        "nominal 95 % bootstrap interval of the mean over 3 seeds; measured, it holds the mean in "
        "75 % of cases, of skewed values in 70 %"
    )
    assert five.name.endswith("in 92 % of cases, of skewed values in 88 %")
    assert ten.name == "nominal 95 % bootstrap interval of the mean over 10 seeds"
