"""The trade-off panels and their figures, by value."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from unlearnbench.results.finalize import table_of
from unlearnbench.stats.ks_test import lowest_log10_p
from unlearnbench.stats.t_interval import t_interval

if TYPE_CHECKING:
    from ..conftest import Fabric

data: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_data")
plot: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_plot")
palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")


def references(fabric: Fabric) -> list[Any]:
    return [fabric.reference("fine-tuned"), fabric.reference("retain")]


def pareto(rows: Any) -> tuple[Any, ...]:
    """Draw the panels of a table, checked by Plotly."""
    style = palette.Style.of(rows)
    return tuple(go.Figure(plot.draw(panel, style)) for panel in data.panels(rows))


def traces(figure: Any, role: str) -> list[Any]:
    return [trace for trace in figure.data if trace.meta["role"] == role]


def below(panel: Any) -> list[Any]:
    """Settings below the first view."""
    return [s for s in panel.drawn if s.forgotten < plot.extent(panel)[1][0]]


class TestPanels:
    def test_front_collapse_and_floor(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0), (0.2, -30.0)))
        (panel,) = data.panels(table_of([*references(fabric), run]).rows)
        assert [s.epoch for s in panel.front] == [3, 1]  # epoch 2 is beaten by 1, epoch 4 by all
        assert panel.collapse_below == pytest.approx(0.883 / 2)
        assert panel.questions == 80
        assert [s.epoch for s in below(panel)] == [4]

    def test_collapsed_models_do_not_squeeze_the_others(self, fabric: Fabric) -> None:
        run = fabric.run("gradient-ascent", points=((0.8, -15.0), (0.0, -300.0)))
        (panel,) = data.panels(table_of([*references(fabric), run]).rows)
        assert panel.low == pytest.approx(-16.3 * 1.5)
        assert len(below(panel)) == 1

    def test_a_working_model_is_inside_however_low_it_is(self, fabric: Fabric) -> None:
        (panel,) = data.panels(
            table_of([*references(fabric), fabric.run(points=((0.8, -300.0),))]).rows
        )
        assert panel.low <= -300
        assert below(panel) == []

    def test_settings_without_a_number_are_counted_not_drawn(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (math.nan, -3.0), (None, None)))
        (panel,) = data.panels(table_of([*references(fabric), run]).rows)
        assert len(panel.settings) - len(panel.drawn) == 2
        assert [s.epoch for s in panel.trajectories[0].points] == [1]


class TestFigure:
    def test_a_trajectory_starts_at_the_fine_tuned_model(self, fabric: Fabric) -> None:
        rows = table_of([*references(fabric), fabric.run(points=((0.8, -10.0), (0.7, -5.0)))]).rows
        (figure,) = pareto(rows)
        (line,) = traces(figure, "trajectory")
        assert line.x == (0.883, 0.8, 0.7)
        assert line.y == (-16.3, -10.0, -5.0)
        assert line.marker.symbol in palette.SYMBOLS
        assert line.marker.size == (1.0, 6.5, 10.5)  # the last epoch is the large one
        assert [c[0] for c in line.customdata] == [0, 1, 2]

    def test_settings_of_two_tables_have_lines_of_their_own(self, fabric: Fabric) -> None:
        """Each table labels its only setting `npo`, though they differ in beta."""
        rows = [
            row
            for beta in (0.1, 0.5)
            for row in table_of([fabric.run(hyperparameters={"beta": beta})]).rows
        ]
        assert {row.method for row in rows} == {"npo"}
        (panel,) = data.panels(rows)
        assert [[s.epoch for s in line.points] for line in panel.trajectories] == [[1, 2]] * 2
        curves = importlib.import_module("unlearnbench_dashboards.figures.curve_plot").curves
        drawn = curves(panel, "model_utility", palette.Style.of(rows))["data"]
        assert [line["x"] for line in drawn] == [[1, 2]] * 2

    def test_beaten_points_are_pale_and_the_front_is_full(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0)))
        (figure,) = pareto(table_of([*references(fabric), run]).rows)
        (line,) = traces(figure, "trajectory")
        assert line.marker.opacity == (0.0, 1.0, 0.4, 1.0)
        (front,) = traces(figure, "front")
        assert front.x == (0.6, 0.8)

    def test_the_best_of_each_method_is_ringed(self, fabric: Fabric) -> None:
        records = [
            *references(fabric),
            fabric.run("npo", points=((0.8, -10.0), (0.3, -2.0))),
            fabric.run("ce-u", points=((0.75, -8.0),)),
            fabric.run("gradient-ascent", points=((0.1, -3.0),)),
        ]
        (figure,) = pareto(table_of(records).rows)
        rings = {t.meta["family"]: (t.x[0], t.y[0], t.mode) for t in traces(figure, "best")}
        assert rings == {"npo": (0.8, -10.0, "markers"), "ce-u": (0.75, -8.0, "markers+text")}

    def test_bars_are_the_t_interval_not_the_range(self, fabric: Fabric) -> None:
        qualities = (-9.0, -7.0, -6.0, -5.0, -3.0)
        runs = [fabric.run(points=((0.7, q),), seed=s) for s, q in enumerate(qualities)]
        (figure,) = pareto(table_of([*references(fabric), *runs]).rows)
        (line,) = traces(figure, "trajectory")
        interval = t_interval(qualities)
        assert interval is not None
        assert line.error_y.array[1] == pytest.approx(interval.high + 6.0, rel=1e-3)
        assert line.error_y.arrayminus[1] == pytest.approx(-6.0 - interval.low, rel=1e-3)
        text = line.hovertext[1]
        assert f"[−{-interval.low:.2f}, −{-interval.high:.2f}]" in text
        assert "mean of 5 seeds; in brackets: 95 % t interval of the mean" in text

    def test_bars_and_axes_end_where_no_value_can_be(self, fabric: Fabric) -> None:
        points = ((0.46, -0.1), (0.47, -0.2), (0.8, -6.0))
        runs = [fabric.run(points=(xy,), seed=s) for s, xy in enumerate(points)]
        (figure,) = pareto(table_of([*references(fabric), *runs]).rows)
        (line,) = traces(figure, "trajectory")
        assert line.error_y.array[1] == pytest.approx(-line.y[1]), "log10 p is at most 0"
        across, upwards = t_interval([x for x, _ in points]), t_interval([y for _, y in points])
        assert across is not None
        assert upwards is not None
        assert across.high > 1
        assert line.error_x.array[1] == pytest.approx(1 - across.mean, rel=1e-3), "at most 1"
        assert line.error_y.arrayminus[1] == pytest.approx(upwards.mean - upwards.low, rel=1e-3)
        assert figure.layout.xaxis.range[0] > -0.1
        assert figure.layout.yaxis.range[1] < 2

    def test_levels_and_the_collapse_region_are_where_they_belong(self, fabric: Fabric) -> None:
        (figure,) = pareto(table_of([*references(fabric), fabric.run()]).rows)
        shapes = {shape.name: shape for shape in figure.layout.shapes}
        assert shapes["significance"].y0 == pytest.approx(math.log10(0.05))
        assert shapes["floor"].y0 == pytest.approx(lowest_log10_p(80))
        assert shapes["collapse"].x1 == pytest.approx(0.4415)

    def test_names_cannot_carry_markup(self, fabric: Fabric) -> None:
        run = replace(fabric.run(), method="<img src=x>")
        (figure,) = pareto(table_of([*references(fabric), run]).rows)
        (line,) = traces(figure, "trajectory")
        assert "<img" not in "".join(line.hovertext)
        assert all("<img" not in t.text[0] for t in traces(figure, "best"))

    def test_empty_and_numberless_tables_draw(self, fabric: Fabric) -> None:
        assert pareto([]) == ()
        (figure,) = pareto(table_of([fabric.run(points=((None, None),))]).rows)
        assert not figure.data
