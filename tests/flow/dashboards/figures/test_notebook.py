"""Figures for a notebook: all panels in one, with title and legend, from any part of a table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.report.figures import pareto, trajectories
from unlearnbench.results.finalize import table_of

if TYPE_CHECKING:
    from ..conftest import Fabric

export: Any = importlib.import_module("unlearnbench_dashboards.figures.export")
pareto_data: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_data")


def shown(figure: Any, role: str) -> list[Any]:
    return [trace for trace in figure.data if trace.meta["role"] == role]


def entries(figure: Any) -> list[str]:
    """Lines of the legend."""
    return [trace.name for trace in figure.data if trace.showlegend]


def titles(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations if note.name is None]


class TestPareto:
    def test_a_row_per_model_and_a_column_per_fraction(self, fabric: Fabric) -> None:
        figure = pareto(table_of(fabric.sweep(models=("a", "b"), epochs=2)).rows)
        assert titles(figure) == [
            *("a, forget 5 %", "a, forget 10 %", "b, forget 5 %", "b, forget 10 %"),
        ]
        axes = {(t.xaxis, t.yaxis) for t in shown(figure, "trajectory")}
        assert axes == {("x", "y"), ("x2", "y2"), ("x3", "y3"), ("x4", "y4")}

    def test_its_points_are_the_tables(self, fabric: Fabric) -> None:
        rows = table_of(fabric.sweep(epochs=2)).rows
        figure = pareto(rows)
        points = {
            (x, y) for t in shown(figure, "trajectory") for x, y in zip(t.x, t.y, strict=True)
        }
        expected = {pareto_data.position(row) for row in rows if row.kind != "retain"}
        assert points == expected

    def test_records_have_no_mean_where_a_seed_collapsed(self, fabric: Fabric) -> None:
        whole = fabric.run(points=((0.8, -10.0), (0.7, -5.0)), seed=0)
        lost = fabric.run(points=((0.8, -12.0),), seed=1, status="collapsed")
        records = [fabric.reference("fine-tuned"), fabric.reference("retain"), whole, lost]
        (line,) = shown(pareto(records), "trajectory")
        assert list(line.y) == [-16.3, -11.0]
        (line, *_) = shown(trajectories(records, ["model_utility"]), "curve")
        assert list(line.y) == [0.883, pytest.approx(0.8), None]

    def test_the_legend_names_each_method_once_and_hides_it_everywhere(
        self, fabric: Fabric
    ) -> None:
        figure = pareto(table_of(fabric.sweep(epochs=1)).rows)
        *methods, first, second = entries(figure)
        assert len(methods) == len(set(methods)) == 9
        groups = {t.legendgroup for t in shown(figure, "trajectory")}
        assert groups == set(methods)
        assert (first, second) == ("learning rate 3e-5", "learning rate 1e-4")


class TestTrajectories:
    def test_a_column_per_metric(self, fabric: Fabric) -> None:
        figure = trajectories(table_of(fabric.sweep(fractions=(0.1,), epochs=2)).rows)
        assert titles(figure) == [
            *("Model Utility", "log₁₀ Forget Quality"),
            *("ROUGE-L, forget", "Probability, forget"),
        ]
        assert len(shown(figure, "curve")) == 4 * 18


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("text", 6.75), (4.0, 4.0)])
def test_a_file_is_as_wide_in_print_as_asked_for(width: Any, inches: float, fabric: Fabric) -> None:
    figure = pareto(table_of(fabric.sweep(epochs=1)).rows, width=width)
    pixels = {kind: export._scale(figure, kind) * figure.layout.width for kind in ("svg", "png")}
    assert pixels == pytest.approx({"svg": 96 * inches, "png": 300 * inches}, rel=0.01)
    points = figure.layout.template.layout.font.size * export._scale(figure, "svg") * 72 / 96
    assert points == pytest.approx(8 if inches < 5 else 9)
    assert not figure.layout.title.text, "a caption has it"
    assert (figure.layout.xaxis.domain == figure.layout.xaxis2.domain) == (inches < 5)
