"""Forgetting curves and training curves, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.ranking import average_seeds
from unlearnbench.table import table

if TYPE_CHECKING:
    from .conftest import Fabric

trajectories: Any = importlib.import_module("unlearnbench_dashboards.trajectories")
drawing: Any = importlib.import_module("unlearnbench_dashboards.drawing")


def test_a_curve_runs_from_the_fine_tuned_model_to_the_last_epoch(fabric: Fabric) -> None:
    rows = table([fabric.anchor("fine-tuned"), fabric.anchor("retain"), fabric.run()])
    figure = trajectories.curves(rows, "model_utility", drawing.Look.of(rows), "Model Utility")
    (line,) = figure.data
    assert line.x == (0, 1, 2)
    assert line.y == (0.883, 0.8, 0.7)
    (level,) = figure.layout.shapes
    assert level.y0 == 0.87  # the retain model's


def test_a_missing_value_is_a_gap_and_a_missing_anchor_no_level(fabric: Fabric) -> None:
    rows = table([fabric.run(points=((0.8, -9.0), (None, None), (0.7, -7.0)))])
    figure = trajectories.curves(rows, "model_utility", drawing.Look.of(rows))
    assert figure.data[0].y == (0.8, None, 0.7)
    assert not figure.layout.shapes


def test_seeds_are_one_curve(fabric: Fabric) -> None:
    rows = table([fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.6, 0.8))])
    figure = trajectories.curves(rows, "model_utility", drawing.Look.of(rows))
    assert [tuple(t.y) for t in figure.data] == [pytest.approx((0.7,))]


def test_bars_are_the_settings_intervals(fabric: Fabric) -> None:
    runs = [fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.6, 0.7, 0.8))]
    rows = table([fabric.anchor("fine-tuned"), *runs])
    (line,) = trajectories.curves(rows, "model_utility", drawing.Look.of(rows)).data
    (setting,) = average_seeds(rows)
    interval = setting.interval("model_utility")
    assert interval is not None
    assert line.error_y.array == pytest.approx((0.0, interval.high - interval.mean), rel=0.01)
    assert line.error_y.arrayminus == pytest.approx((0.0, interval.mean - interval.low), rel=0.01)
    assert "mean of 3 seeds" in line.hovertemplate


def test_one_seed_has_no_bars(fabric: Fabric) -> None:
    rows = table([fabric.run()])
    (line,) = trajectories.curves(rows, "model_utility", drawing.Look.of(rows)).data
    assert line.error_y.array is None


def test_shares_have_one_scale_and_the_retain_models_level_its_name(fabric: Fabric) -> None:
    rows = table([fabric.anchor("retain"), fabric.run()])
    figure = trajectories.curves(rows, "rouge_forget", drawing.Look.of(rows))
    assert figure.layout.yaxis.range == (-0.02, 1.04)
    (note,) = figure.layout.annotations
    assert note.text == "retain model 0.20"


def test_a_collapsed_run_leaves_the_frame_and_is_named(fabric: Fabric) -> None:
    working = [
        fabric.run(rate=r, points=((0.8, q),)) for r, q in ((1e-5, -9), (2e-5, -6), (3e-5, -7))
    ]
    lost = fabric.run("dpo", points=((0.0, -300.0),))
    rows = table([fabric.anchor("fine-tuned"), *working, lost])
    figure = trajectories.curves(rows, "log10_forget_quality", drawing.Look.of(rows))
    assert figure.layout.meta == {"outside": ["dpo, rate 1e-4 (\u2212300)"]}
    low, high = figure.layout.yaxis.range
    assert -18 < low < -16.3
    assert high > -6


def test_names_cannot_carry_markup(fabric: Fabric) -> None:
    rows = table([replace(fabric.run(), method="<img src=x>")])
    (line,) = trajectories.curves(rows, "model_utility", drawing.Look.of(rows)).data
    assert "<" not in line.name


def test_every_group_of_metrics_is_in_the_table(fabric: Fabric) -> None:
    (row, *_) = table([fabric.run()])
    assert set(trajectories.CURVES) <= set(row.metrics)
    by_set = trajectories.GROUPS["by set"]["Forget set"]
    assert list(by_set) == ["probability_forget", "rouge_forget", "truth_ratio_forget"]
