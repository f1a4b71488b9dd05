"""Forgetting curves, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from unlearnbench.analysis.best_settings import panels
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.results.finalize import table_of
from unlearnbench.training.step_result import StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unlearnbench.results.records import Record

    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.figures.curve_plot")
columns: Any = importlib.import_module("unlearnbench_dashboards.metric_columns")
marks: Any = importlib.import_module("unlearnbench_dashboards.figures.marks")
palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")


def curves(rows: Any, metric: str) -> Any:
    """Draw curves, checked by Plotly."""
    (panel,) = panels(rows)
    return go.Figure(module.curves(panel, metric, palette.Style.of(rows)))


def steps_of(records: Sequence[Record]) -> Any:
    """Draw losses by step, checked by Plotly."""
    rows = table_of(records).rows
    figures = module.steps(records, rows, palette.Style.of(rows))
    return {name: go.Figure(figure) for name, figure in figures.items()}


def test_a_curve_runs_from_the_fine_tuned_model_to_the_last_epoch(fabric: Fabric) -> None:
    rows = table_of([fabric.reference("fine-tuned"), fabric.reference("retain"), fabric.run()]).rows
    figure = curves(rows, "model_utility")
    (line,) = figure.data
    assert line.x == (0, 1, 2)
    assert line.y == (0.883, 0.8, 0.7)
    (level,) = figure.layout.shapes
    assert level.y0 == 0.87  # the retain model's


def test_bars_are_the_settings_intervals(fabric: Fabric) -> None:
    runs = [fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.6, 0.7, 0.8))]
    rows = table_of([fabric.reference("fine-tuned"), *runs]).rows
    (line,) = curves(rows, "model_utility").data
    (setting,) = average_seeds(rows)
    interval = setting.interval("model_utility")
    assert interval is not None
    assert line.error_y.array == pytest.approx((0.0, interval.high - interval.mean), rel=0.01)
    assert line.error_y.arrayminus == pytest.approx((0.0, interval.mean - interval.low), rel=0.01)
    assert line.customdata == ("", ", mean of 3 seeds")


def test_metrics_of_any_origin_have_curves(fabric: Fabric) -> None:
    run = fabric.run()
    more = {"extraction_strength_retain": 0.5, "mia_loss": 0.4, "private": 0.9}
    first = replace(run.epochs[0], metrics={**run.epochs[0].metrics, **more})
    rows = table_of([replace(run, epochs=(first, *run.epochs[1:]))]).rows
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


def test_losses_by_step_with_their_terms(fabric: Fabric) -> None:
    runs = [fabric.run(hyperparameters={"beta": b}, points=((0.8, -9.0),)) for b in (0.1, 0.5)]
    figures = steps_of(runs)
    assert [one.y for one in figures["Loss"].data] == [(2.0, 1.9, 1.8)] * 2
    assert figures["Loss"].data[0].name == "npo (beta=0.1), rate 1e-4, seed 0"
    assert figures["Loss term: retain"].data[0].y == (1.0, 0.9, 0.8)


def test_a_single_term_has_no_figure_nan_is_a_gap_and_long_runs_are_thinned(fabric: Fabric) -> None:
    run, nan = fabric.run(points=((0.8, -9.0),)), float("nan")
    steps = (StepResult(i, 1, 1e-5, nan, {"forget": nan}, 1.0) for i in range(1001))
    figures = steps_of([replace(run, steps=tuple(steps))])
    assert list(figures) == ["Loss", "Gradient norm"]
    assert set(figures["Loss"].data[0].y) == {None}
    assert len(figures["Loss"].data[0].x) <= module.MAX_STEPS


def test_the_best_settings_are_strong_and_on_top_of_pale_others(fabric: Fabric) -> None:
    far = fabric.run("npo", 1e-4, points=((0.8, -2.0), (0.1, -1.0)))
    near = fabric.run("npo", 1e-5, points=((0.8, -9.0), (0.8, -8.0)))
    broken = fabric.run("dpo", 1e-5, points=((0.1, -9.0),))
    runs = [far, near, broken]
    rows = table_of([fabric.reference("fine-tuned"), *runs]).rows
    lines = curves(rows, "model_utility").data
    assert [(one.meta["family"], one.meta["best"]) for one in lines] == [
        *(("dpo", False), ("npo", False), ("npo", True))
    ]
    assert lines[-1].meta["rate"] == "1e-4"
    assert lines[-1].line.width > lines[0].line.width
    assert (lines[0].marker.opacity, lines[-1].marker.opacity) == (marks.PALE, None)
    style = palette.Style.of(rows)
    losses: Any = go.Figure(module.steps(runs, rows, style, {far.id})["Loss"]).data
    assert [one.name for one in losses if one.meta["best"]] == ["npo, rate 1e-4, seed 0"]
    assert losses[-1].meta["best"]


def test_without_a_best_setting_all_lines_are_alike(fabric: Fabric) -> None:
    runs = [fabric.run("npo", points=((0.1, -9.0),)), fabric.run("dpo", points=((0.1, -9.0),))]
    rows = table_of([fabric.reference("fine-tuned"), *runs]).rows
    lines = curves(rows, "model_utility").data
    assert all("best" not in one.meta for one in lines)
    assert len({(one.line.width, one.meta["alpha"], one.marker.opacity) for one in lines}) == 1


@pytest.mark.parametrize(
    ("values", "log", "kind", "ends"),
    [
        ([0.0, 1.0, 2.0, 3.0, 300.0], False, "linear", (-0.15, 3.15)),
        ([0.0, -1.0, -2.0, -3.0, -300.0, None], True, "linear", (-3.15, 0.15)),
        ([1.0, 500.0, 1000.0], True, "log", (-0.15, 3.15)),
        ([1.0, 50.0], True, "linear", (-1.45, 52.45)),
        ([2.0, 2.0, 2.0, 2.0, 7.0], False, "linear", (1.75, 7.25)),
    ],
)
def test_an_axis_leaves_outliers_out_and_is_logarithmic_where_it_helps(
    values: Any, log: bool, kind: str, ends: Any
) -> None:
    found = marks.value_axis(values, log=log)
    assert found["type"] == kind
    assert found["range"] == pytest.approx(ends)
    assert marks.value_axis([None, float("nan")]) == {}
    low, high = marks.value_axis(values, levels=[-9.0, 9.0])["range"]
    assert low <= -9
    assert high >= 9
