"""Power of Forget Quality's test against values worked by hand and a plain simulation."""

from __future__ import annotations

import numpy as np
import pytest

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import forget_quality
from unlearnbench.power import critical_count, ks_power


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


def test_as_small_as_asked_for_is_small_enough() -> None:
    assert (critical_count(3, 0.1), critical_count(3, 0.0999)) == (3, None)


@pytest.mark.parametrize("n", [20, 80, 300])
def test_the_least_distance_is_the_first_that_forget_quality_calls_significant(n: int) -> None:
    count = critical_count(n)
    assert count is not None
    base = np.arange(float(n))

    def p_value(off: int) -> float:
        found = forget_quality(base, np.where(base >= n - off, -1.0, base))
        assert found is not None
        assert found.statistic == off / n
        return found.p_value

    assert p_value(count) <= 0.05 < p_value(count - 1)


@pytest.mark.parametrize(("n", "wanted"), [(20, 0.8), (80, 0.8), (80, 0.5)])
def test_the_shift_is_seen_as_often_as_said(n: int, wanted: float) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(0.1, 0.3, n)
    found = ks_power(10**values, power=wanted)
    assert found.shift is not None
    seen = {1: 0, -1: 0}
    for sign in seen:
        for _ in range(600):
            x, y = np.interp(rng.random((2, n)), np.linspace(0, 1, n), np.sort(values))
            one = forget_quality(x + sign * found.shift, y)
            assert one is not None
            seen[sign] += one.p_value <= 0.05
    assert [count / 600 for count in seen.values()] == pytest.approx([wanted] * 2, abs=0.045)


def test_the_shift_scales_with_the_ratios_and_falls_with_their_number() -> None:
    values = np.random.default_rng(0).normal(size=300)
    narrow, wide, few = (ks_power(10**v).shift for v in (values, 2 * values, values[:80]))
    assert narrow is not None
    assert few is not None
    assert wide == pytest.approx(2 * narrow)
    assert few > 1.5 * narrow


def test_two_values_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # n = 4 needs complete separation, so a pair's least shift is its largest y less its least x.
    class Draws:
        def random(self, _: object) -> np.ndarray:
            return np.array([[[0.0, 0.5, 0.5, 1.0]], [[0.0, 1 / 3, 2 / 3, 2 / 3]]])

    def draws(_: int) -> Draws:
        return Draws()

    monkeypatch.setattr("numpy.random.default_rng", draws)
    found = ks_power(np.array([1.0, 10.0, 100.0, 1000.0]))
    assert found.shift == pytest.approx(2.0)


def test_few_questions_see_nothing() -> None:
    found = ks_power(np.array([1.0, 2.0, 3.0]))
    assert (found.distance, found.shift) == (None, None)
    assert (
        found.told == "3 forget questions are too few: no distance gives Forget Quality p ≤ 0.05."
    )


@pytest.mark.parametrize("odd", [0.0, float("inf"), float("nan")])
def test_a_ratio_without_a_logarithm_leaves_the_distance_only(odd: float) -> None:
    found = ks_power(np.array([1.0, 2.0, 3.0, 4.0, 5.0, odd]))
    assert (found.distance, found.shift) == (5 / 6, None)


def test_from_the_number_of_questions_alone() -> None:
    found = ks_power(80)
    assert (found.n, found.distance, found.shift) == (80, 0.225, None)
    assert found.told.endswith("only where D is at least 0.225.")


def test_what_is_told() -> None:
    told = ks_power(10 ** np.random.default_rng(0).normal(size=80)).told
    assert told.startswith("With 80 forget questions, Forget Quality tells a model from the retain")
    assert "in 80 % of cases" in told


def test_no_question_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no truth ratio"):
        ks_power(np.array([]))
