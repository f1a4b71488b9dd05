"""Forgetting curves and training curves, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.step import StepResult
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


def test_every_group_of_metrics_is_in_the_table(fabric: Fabric) -> None:
    (row, *_) = table([fabric.run()])
    for metrics in trajectories.GROUPS.values():
        assert set(metrics) <= set(row.metrics)


def test_losses_by_step_with_their_terms(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    figures = trajectories.steps([run], drawing.Look.of(table([run])))
    assert figures["Loss"].data[0].y == (2.0, 1.9, 1.8)
    assert figures["Loss term: retain"].data[0].y == (1.0, 0.9, 0.8)
    assert figures["Gradient norm"].layout.yaxis.type == "log"


def test_one_term_is_no_figure_of_its_own_and_nan_is_a_gap(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = (StepResult(0, 1, 1e-5, float("nan"), {"forget": float("nan")}, 1.0),)
    figures = trajectories.steps([replace(run, steps=steps)], drawing.Look.of(table([run])))
    assert list(figures) == ["Loss", "Gradient norm"]
    assert figures["Loss"].data[0].y == (None,)


def test_long_runs_are_thinned(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = tuple(StepResult(i, 1, 1e-5, 1.0, {}, 1.0) for i in range(1001))
    figures = trajectories.steps([replace(run, steps=steps)], drawing.Look.of(table([run])))
    assert len(figures["Loss"].data[0].x) <= trajectories.MAX_STEPS
