"""Forgetting curves, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from unlearnbench.analysis.best_settings import average_seeds
from unlearnbench.results.table import table

if TYPE_CHECKING:
    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.figures.curve_plot")
columns: Any = importlib.import_module("unlearnbench_dashboards.metric_columns")
plot: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_plot")


def curves(rows: Any, metric: str, title: str = "") -> Any:
    """Draw curves, checked by Plotly."""
    return go.Figure(module.curves(rows, metric, plot.Style.of(rows), title))


def test_a_curve_runs_from_the_fine_tuned_model_to_the_last_epoch(fabric: Fabric) -> None:
    rows = table([fabric.reference("fine-tuned"), fabric.reference("retain"), fabric.run()])
    figure = curves(rows, "model_utility", "Model Utility")
    (line,) = figure.data
    assert line.x == (0, 1, 2)
    assert line.y == (0.883, 0.8, 0.7)
    (level,) = figure.layout.shapes
    assert level.y0 == 0.87  # the retain model's


def test_a_missing_value_is_a_gap_and_a_missing_retain_model_no_level(
    fabric: Fabric,
) -> None:
    rows = table([fabric.run(points=((0.8, -9.0), (None, None), (0.7, -7.0)))])
    figure = curves(rows, "model_utility")
    assert figure.data[0].y == (0.8, None, 0.7)
    assert not figure.layout.shapes


def test_seeds_are_one_curve(fabric: Fabric) -> None:
    rows = table([fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.6, 0.8))])
    figure = curves(rows, "model_utility")
    assert [tuple(t.y) for t in figure.data] == [pytest.approx((0.7,))]


def test_bars_are_the_settings_intervals(fabric: Fabric) -> None:
    runs = [fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.6, 0.7, 0.8))]
    rows = table([fabric.reference("fine-tuned"), *runs])
    (line,) = curves(rows, "model_utility").data
    (setting,) = average_seeds(rows)
    interval = setting.interval("model_utility")
    assert interval is not None
    assert line.error_y.array == pytest.approx((0.0, interval.high - interval.mean), rel=0.01)
    assert line.error_y.arrayminus == pytest.approx((0.0, interval.mean - interval.low), rel=0.01)
    assert "mean of 3 seeds" in line.hovertemplate


def test_one_seed_has_no_bars(fabric: Fabric) -> None:
    rows = table([fabric.run()])
    (line,) = curves(rows, "model_utility").data
    assert line.error_y.array is None


def test_shares_have_one_scale_and_the_retain_models_level_its_name(fabric: Fabric) -> None:
    rows = table([fabric.reference("retain"), fabric.run()])
    figure = curves(rows, "rouge_forget")
    assert figure.layout.yaxis.range == (-0.02, 1.04)
    (note,) = figure.layout.annotations
    assert note.text == "retain 0.20"


def test_a_collapsed_run_is_outside_the_range_and_named(fabric: Fabric) -> None:
    working = [
        fabric.run(rate=r, points=((0.8, q),)) for r, q in ((1e-5, -9), (2e-5, -6), (3e-5, -7))
    ]
    lost = fabric.run("dpo", points=((0.0, -300.0),))
    rows = table([fabric.reference("fine-tuned"), *working, lost])
    figure = curves(rows, "log10_forget_quality")
    assert figure.layout.meta == {"outside": ["dpo, learning rate 1e-4 (\u2212300)"]}
    low, high = figure.layout.yaxis.range
    assert -18 < low < -16.3
    assert high > -6


def test_names_cannot_carry_markup(fabric: Fabric) -> None:
    rows = table([replace(fabric.run(), method="<img src=x>")])
    (line,) = curves(rows, "model_utility").data
    assert "<" not in line.name


def test_every_group_of_metrics_is_in_the_table(fabric: Fabric) -> None:
    rows = table([fabric.run()])
    groups = module.groups(columns.PageColumns.of(rows, rows[0].schema))
    named = {c for kind in groups.values() for group in kind.values() for c in group}
    assert named <= set(rows[0].metrics)
    assert list(groups[""]) == ["Summary"], "the others have no number here"
    assert list(groups[""]["Summary"]) == ["model_utility", "log10_forget_quality", "ks_statistic"]
    assert list(groups["by set"]) == ["Forget set", "Retain set", "Real authors", "World facts"]
    by_set = groups["by set"]["Forget set"]
    assert list(by_set) == ["rouge_forget", "probability_forget", "truth_ratio_forget"]


def test_metrics_of_any_origin_have_curves(fabric: Fabric) -> None:
    run = fabric.run()
    more = {"extraction_strength_retain": 0.5, "mia_loss": 0.4, "private": 0.9}
    first = replace(run.epochs[0], metrics={**run.epochs[0].metrics, **more})
    rows = table([replace(run, epochs=(first, *run.epochs[1:]))])
    groups = module.groups(columns.PageColumns.of(rows, rows[0].schema))
    assert groups["by metric"]["Extraction strength"] == {
        "extraction_strength_retain": "Retain set"
    }
    assert groups["by set"]["Retain set"]["extraction_strength_retain"] == "Extraction strength"
    assert (groups[""]["Scores"], groups[""]["Attacks"]) == (
        {"private": "Private"},
        {"mia_loss": "LOSS attack, AUC"},
    )
    figure = curves(rows, "extraction_strength_retain")
    assert figure.data[0].y == (0.5, None)
    assert figure.layout.yaxis.range == (-0.02, 1.04)
