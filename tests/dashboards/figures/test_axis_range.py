"""Axis ranges, and the outliers that they leave outside."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

module: Any = importlib.import_module("unlearnbench_dashboards.figures.axis_range")


def test_one_outlier_is_left_outside() -> None:
    lines = [[1.0, 2.0], [0.0, 3.0], [1.5, 2.5], [0.5, 2.0], [300.0, 200.0]]
    frame = module.axis_range(lines, log=False)
    assert frame.outside == (4,)
    assert (frame.low, frame.high) == pytest.approx((-0.15, 3.15))


def test_an_outlier_below_is_left_outside() -> None:
    lines = [[-1.0, -2.0], [0.0, -3.0], [-1.0, -2.0], [-1.0, -300.0]]
    assert module.axis_range(lines).outside == (3,)


def test_a_small_gain_leaves_nothing_outside() -> None:
    frame = module.axis_range([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.4]])
    assert frame.outside == ()
    assert frame.high > 1.4


def test_two_of_six_are_not_outliers() -> None:
    lines = [[1.0, 0.99 - 0.001 * i] for i in range(4)] + [[1.0, 0.7], [1.0, 0.6]]
    assert module.axis_range(lines).outside == ()


def test_half_and_half_are_all_shown() -> None:
    assert module.axis_range([[0.0, 1.0], [0.0, 2.0], [400.0], [500.0]], log=False).outside == ()
    assert module.axis_range([[0.0, 1.0], [500.0]], log=False).outside == ()


@pytest.mark.parametrize(
    ("lines", "log_option", "log"),
    [
        ([[1.0, 500.0]], None, True),
        ([[1.0, 50.0]], None, False),
        ([[1.0, 50.0]], True, True),
        ([[0.0, 500.0]], True, False),  # 0 has no logarithm
        ([[1.0, 500.0]], False, False),
    ],
)
def test_a_logarithmic_axis_where_it_helps(lines: Any, log_option: Any, log: bool) -> None:
    assert module.axis_range(lines, log_option).log is log


def test_constant_lines_and_gaps_have_a_range_and_no_number_has_none() -> None:
    frame = module.axis_range([[None, 2.0], [float("nan"), 2.0], []])
    assert frame.low < 2 < frame.high
    assert module.axis_range([[None], []]) is None
