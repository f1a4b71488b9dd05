"""Frames: what they show, and what they leave outside."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

extremes: Any = importlib.import_module("unlearnbench_dashboards.extremes")


def test_one_far_line_is_left_outside() -> None:
    lines = [[1.0, 2.0], [0.0, 3.0], [1.5, 2.5], [0.5, 2.0], [300.0, 200.0]]
    frame = extremes.frame(lines, log=False)
    assert frame.outside == (4,)
    assert (frame.low, frame.high) == pytest.approx((-0.15, 3.15))


def test_far_down_counts_as_well() -> None:
    lines = [[-1.0, -2.0], [0.0, -3.0], [-1.0, -2.0], [-1.0, -300.0]]
    assert extremes.frame(lines).outside == (3,)


def test_nothing_is_left_outside_for_little() -> None:
    frame = extremes.frame([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.4]])
    assert frame.outside == ()
    assert frame.high > 1.4


def test_two_of_six_are_no_exception() -> None:
    lines = [[1.0, 0.99 - 0.001 * i] for i in range(4)] + [[1.0, 0.7], [1.0, 0.6]]
    assert extremes.frame(lines).outside == ()


def test_half_and_half_are_all_shown() -> None:
    assert extremes.frame([[0.0, 1.0], [0.0, 2.0], [400.0], [500.0]], log=False).outside == ()
    assert extremes.frame([[0.0, 1.0], [500.0]], log=False).outside == ()


@pytest.mark.parametrize(
    ("lines", "asked", "log"),
    [
        ([[1.0, 500.0]], None, True),
        ([[1.0, 50.0]], None, False),
        ([[1.0, 50.0]], True, True),
        ([[0.0, 500.0]], True, False),  # there is no place for 0
        ([[1.0, 500.0]], False, False),
    ],
)
def test_a_logarithmic_axis_where_it_helps(lines: Any, asked: Any, log: bool) -> None:
    assert extremes.frame(lines, asked).log is log


def test_levels_and_gaps_make_a_frame_and_no_number_makes_none() -> None:
    frame = extremes.frame([[None, 2.0], [float("nan"), 2.0], []])
    assert frame.low < 2 < frame.high
    assert extremes.frame([[None], []]) is None
