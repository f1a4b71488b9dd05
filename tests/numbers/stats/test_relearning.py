"""Numbers of an attack by hand, and where they are undefined."""

import math

import pytest

from unlearnbench.stats.relearning import (
    area_between,
    relearning_robustness,
    steps_to_half,
    symmetric_quantization_robustness,
    symmetric_relearning_robustness,
)

STEPS = (0, 1, 3)


def test_the_area_is_weighted_by_steps() -> None:
    # Heights .1, .3, .5 above the retain model: (.4 / 2 · 1 + .8 / 2 · 2) / 3 = 1 / 3; span .8.
    found = area_between(STEPS, (0.2, 0.4, 0.6), (0.1, 0.1, 0.1), 0.9)
    assert found == pytest.approx(1 / 3 / 0.8, rel=1e-14)
    assert area_between(STEPS, (0.1, 0.3, 0.2), (0.1, 0.3, 0.2), 0.9) == 0
    assert area_between(STEPS, (0.9,) * 3, (0.1,) * 3, 0.9) == pytest.approx(1, rel=1e-14)
    assert (area_between(STEPS, (0.0,) * 3, (0.1,) * 3, 0.9) or 0) < 0


def test_an_area_without_some_points() -> None:
    whole = area_between((0, 3), (0.2, 0.6), (0.1, 0.1), 0.9)
    assert area_between(STEPS, (0.2, None, 0.6), (0.1,) * 3, 0.9) == whole
    assert area_between(STEPS, (0.2, 0.3, 0.6), (0.1, math.nan, 0.1), 0.9) == whole
    assert area_between(STEPS, (0.2, None, math.inf), (0.1,) * 3, 0.9) is None
    assert area_between(STEPS, (0.2, 0.3, 0.6), (None, 0.1, 0.1), 0.9) is None
    assert area_between(STEPS, (0.2, 0.3, 0.6), (0.1,) * 3, None) is None
    assert area_between(STEPS, (0.2, 0.3, 0.6), (0.1,) * 3, 0.1) is None
    assert area_between((), (), (), 0.9) is None


def test_half_of_the_start_model_lies_between_two_steps() -> None:
    assert steps_to_half(STEPS, (0.1, 0.3, 0.5), 0.8) == pytest.approx(2, rel=1e-14)
    assert steps_to_half(STEPS, (0.1, None, 0.7), 0.8) == pytest.approx(1.5, rel=1e-14)
    assert steps_to_half(STEPS, (0.4, 0.1, 0.5), 0.8) == 0
    assert steps_to_half(STEPS, (0.1, 0.4, 0.2), 0.8) == 1
    assert steps_to_half(STEPS, (0.1, 0.2, 0.3), 0.8) == math.inf
    assert steps_to_half(STEPS, (None, math.nan, None), 0.8) is None
    for start in (None, 0.0, -0.1, math.nan):
        assert steps_to_half(STEPS, (0.1, 0.2, 0.3), start) is None


def test_robustness_against_relearning() -> None:
    # Δu = .4, Δr = .1.
    values = (0.1, 0.5, 0.2, 0.3)
    assert relearning_robustness(*values) == pytest.approx(0.25, rel=1e-14)
    assert symmetric_relearning_robustness(*values) == pytest.approx(1 - 0.3 / 0.5, rel=1e-14)
    # Δu = .1, Δr = .4.
    values = (0.2, 0.3, 0.1, 0.5)
    assert relearning_robustness(*values) == 1
    assert symmetric_relearning_robustness(*values) == pytest.approx(1 - 0.3 / 0.5, rel=1e-14)


@pytest.mark.parametrize(
    ("values", "ratio", "symmetric"),
    [
        ((0.1, 0.1, 0.2, 0.2), 1, 1),  # 0 / 0
        ((0.1, 0.1, 0.2, 0.4), 1, 0),
        ((0.1, 0.2, 0.2, 0.2), 0, 0),
        ((0.3, 0.2, 0.1, 0.2), 1, 0),
        ((0.2, 0.3, 0.3, 0.2), 0, 0),
        ((None, 0.3, 0.3, 0.2), None, None),
        ((0.1, 0.3, math.nan, 0.2), None, None),
        ((0.1, 0.3, 0.1, math.inf), None, None),
    ],
)
def test_robustness_at_its_limits(
    values: tuple[float, float, float, float], ratio: float | None, symmetric: float | None
) -> None:
    assert relearning_robustness(*values) == ratio
    found = symmetric_relearning_robustness(*values)
    assert found == (symmetric if symmetric is None else pytest.approx(symmetric, abs=1e-14))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.2, 0.6, 0.5),
        (0.6, 0.2, 0.5),
        (0.3, 0.3, 1),
        (0.0, 0.0, 1),
        (0.0, 0.2, 0),
        (0.2, 0.0, 0),
        (-0.1, 0.2, 0),
        (0.1, None, None),
        (math.nan, 0.1, None),
    ],
)
def test_robustness_against_quantization(
    before: float, after: float | None, expected: float | None
) -> None:
    found = symmetric_quantization_robustness(before, after)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-14))
