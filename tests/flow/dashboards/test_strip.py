"""Axes of strips: places and round numbers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

strip: Any = importlib.import_module("unlearnbench_dashboards.strip")


def test_places_are_per_cent_of_the_width_and_never_outside() -> None:
    scale = strip.Scale(-4.0, 0.0)
    assert [scale.percent(value) for value in (-4.0, -3.0, 0.0, 1.0, -9.0)] == [0, 25, 100, 100, 0]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (-12.5, 0.6, ["\N{MINUS SIGN}10", "\N{MINUS SIGN}5", "0"]),
        (0.693, 0.905, ["0.7", "0.8", "0.9"]),
        (0.78, 0.81, ["0.78", "0.79", "0.80", "0.81"]),
        (10.0, 95.0, ["25", "50", "75"]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[str]) -> None:
    scale = strip.Scale(low, high)
    assert [text for _, text in scale.ticks] == expected
    for value, text in scale.ticks:
        assert low - 1e-9 <= value <= high + 1e-9
        assert float(text.replace("\N{MINUS SIGN}", "-")) == pytest.approx(value)


@pytest.mark.parametrize("values", [[], [None], [0.5], [0.0, 0.0], [float("inf"), 0.2]])
def test_an_axis_has_a_width_whatever_there_is(values: list[float | None]) -> None:
    scale = strip.Scale.around(values)
    assert scale.low < scale.high
    assert scale.ticks
    known = [value for value in values if value is not None and abs(value) < 9]
    assert all(0 < scale.percent(value) < 100 for value in known)
