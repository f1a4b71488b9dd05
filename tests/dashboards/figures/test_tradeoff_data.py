"""The trade-off panels and their figures, by value."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import ks_2samp

from unlearnbench.results.table import table
from unlearnbench.stats.t_interval import t_interval

if TYPE_CHECKING:
    from ..conftest import Fabric

data: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_data")
plot: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_plot")
palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")


def references(fabric: Fabric) -> list[Any]:
    return [fabric.reference("fine-tuned"), fabric.reference("retain")]


def pareto(rows: Any, *, published: bool = False) -> tuple[Any, ...]:
    """Draw the panels of a table."""
    style = plot.Style.of(rows)
    return tuple(plot.draw(panel, style) for panel in data.panels(rows, published=published))


def traces(figure: Any, role: str) -> list[Any]:
    return [trace for trace in figure.data if trace.meta["role"] == role]


class TestPanels:
    def test_one_per_model_and_fraction_in_the_tables_order(self, fabric: Fabric) -> None:
        rows = table(fabric.sweep(models=("b", "a"), fractions=(0.1, 0.05), epochs=1))
        places = [(p.model, p.forget_fraction) for p in data.panels(rows)]
        assert places == [("a", 0.05), ("a", 0.1), ("b", 0.05), ("b", 0.1)]

    def test_front_collapse_and_floor(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0), (0.2, -30.0)))
        (panel,) = data.panels(table([*references(fabric), run]))
        assert [s.epoch for s in panel.front] == [3, 1]  # epoch 2 is beaten by 1, epoch 4 by all
        assert panel.collapse_below == pytest.approx(0.883 / 2)
        assert panel.questions == 80
        assert [s.epoch for s in panel.below] == [4]

    @pytest.mark.parametrize("n", [5, 40, 300])
    def test_the_floor_is_the_exact_tests_p_at_complete_separation(self, n: int) -> None:
        p = ks_2samp(range(n), range(1000, 1000 + n), method="exact").pvalue
        assert data.ks_floor(n) == pytest.approx(math.log10(p), rel=1e-9)

    def test_collapsed_models_do_not_squeeze_the_others(self, fabric: Fabric) -> None:
        run = fabric.run("gradient-ascent", points=((0.8, -15.0), (0.0, -300.0)))
        (panel,) = data.panels(table([*references(fabric), run]))
        assert panel.low == pytest.approx(-16.3 * 1.5)
        assert len(panel.below) == 1

    def test_a_working_model_is_inside_however_low_it_is(self, fabric: Fabric) -> None:
        (panel,) = data.panels(table([*references(fabric), fabric.run(points=((0.8, -300.0),))]))
        assert panel.low <= -300
        assert panel.below == ()

    def test_settings_without_a_number_are_counted_not_drawn(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (math.nan, -3.0), (None, None)))
        (panel,) = data.panels(table([*references(fabric), run]))
        assert panel.undrawn == 2
        assert [s.epoch for s in panel.trajectories[0].points] == [1]

    def test_published_points_by_model_and_fraction(self) -> None:
        series = {s.name: s for s in data.published_series("Llama2-7B-chat", 0.01)}
        first = series["CE-U (LR=2e-06)"].points[0]
        assert first == (0.624, -3.298)
        assert data.published_series("phi-1.5", 0.1)
        assert not data.published_series("tiny", 0.1)
        assert not data.published_series("phi-1.5", 0.2)


class TestFigure:
    def test_a_trajectory_starts_at_the_fine_tuned_model(self, fabric: Fabric) -> None:
        rows = table([*references(fabric), fabric.run(points=((0.8, -10.0), (0.7, -5.0)))])
        (figure,) = pareto(rows)
        (line,) = traces(figure, "trajectory")
        assert line.x == (0.883, 0.8, 0.7)
        assert line.y == (-16.3, -10.0, -5.0)
        assert line.marker.symbol in palette.SYMBOLS
        assert line.marker.size == (1.0, 6.5, 10.5)  # the last epoch is the large one
        assert [c[0] for c in line.customdata] == [0, 1, 2]

    def test_without_a_start_model_it_starts_at_its_first_epoch(self, fabric: Fabric) -> None:
        (figure,) = pareto(table([fabric.run(points=((0.8, -10.0),))]))
        (line,) = traces(figure, "trajectory")
        assert line.x == (0.8,)
        assert not traces(figure, "reference")

    @pytest.mark.parametrize("kind", ["fine-tuned", "retain"])
    def test_start_and_retain_model_are_optional(self, fabric: Fabric, kind: Any) -> None:
        (figure,) = pareto(table([fabric.reference(kind), fabric.run()]))
        assert len(traces(figure, "reference")) == 1

    def test_beaten_points_are_pale_and_the_front_is_full(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0)))
        (figure,) = pareto(table([*references(fabric), run]))
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
        (figure,) = pareto(table(records))
        rings = {t.meta["family"]: (t.x[0], t.y[0], t.mode) for t in traces(figure, "best")}
        assert rings == {"npo": (0.8, -10.0, "markers"), "ce-u": (0.75, -8.0, "markers+text")}

    def test_bars_are_the_t_interval_not_the_range(self, fabric: Fabric) -> None:
        qualities = (-9.0, -7.0, -6.0, -5.0, -3.0)
        runs = [fabric.run(points=((0.7, q),), seed=s) for s, q in enumerate(qualities)]
        (figure,) = pareto(table([*references(fabric), *runs]))
        (line,) = traces(figure, "trajectory")
        interval = t_interval(qualities)
        assert interval is not None
        assert line.error_y.array[1] == pytest.approx(interval.high + 6.0)
        assert line.error_y.arrayminus[1] == pytest.approx(-6.0 - interval.low)
        text = line.hovertext[1]
        assert f"[−{-interval.low:.2f}, −{-interval.high:.2f}]" in text
        assert "mean of 5 seeds; brackets: 95% interval of the mean" in text
        assert "range over seeds: 0.700 to 0.700, −9.00 to −3.00" in text

    def test_bars_and_axes_end_where_no_value_can_be(self, fabric: Fabric) -> None:
        points = ((0.46, -0.1), (0.47, -0.2), (0.8, -6.0))
        runs = [fabric.run(points=(xy,), seed=s) for s, xy in enumerate(points)]
        (figure,) = pareto(table([*references(fabric), *runs]))
        (line,) = traces(figure, "trajectory")
        assert line.error_y.array[1] == pytest.approx(-line.y[1]), "log10 p is at most 0"
        across, upwards = t_interval([x for x, _ in points]), t_interval([y for _, y in points])
        assert across is not None
        assert upwards is not None
        assert line.error_x.array[1] == pytest.approx(across.high - across.mean)
        assert line.error_y.arrayminus[1] == pytest.approx(upwards.mean - upwards.low)
        assert figure.layout.xaxis.range[0] > -0.1
        assert figure.layout.yaxis.range[1] < 2

    def test_a_collapsed_setting_has_no_bars_and_another_method_is_dots(
        self, fabric: Fabric
    ) -> None:
        runs = [
            fabric.run(points=points, seed=s, rate=rate)
            for s in range(3)
            for rate, points in (
                (1e-4, ((0.8, -6.0 - s), (0.1 * s, -3.0))),
                (1e-5, ((0.7, -8.0 - s),)),
            )
        ]
        (figure,) = pareto(table([*references(fabric), *runs]))
        lines = {t.meta["leading"]: t for t in traces(figure, "trajectory")}
        assert lines[True].error_y.array[1] > 0
        assert lines[True].error_y.array[2] == 0
        assert (lines[True].mode, lines[False].mode) == ("lines+markers", "markers")
        assert lines[False].error_y.array is None

    def test_two_seeds_have_a_range_and_three_an_interval(self, fabric: Fabric) -> None:
        runs = [fabric.run(points=((0.7, -9.0 + s),), seed=s) for s in range(3)]
        for count, expected, unexpected in (
            (2, "mean of 2 seeds; min-max: their smallest and largest value", "95%"),
            (3, "mean of 3 seeds; brackets: 95% interval of the mean", "min-"),
        ):
            (figure,) = pareto(table([*references(fabric), *runs[:count]]))
            (line,) = traces(figure, "trajectory")
            assert expected in line.hovertext[1]
            assert unexpected not in line.hovertext[1]
        (figure,) = pareto(table([*references(fabric), *runs[:2]]))
        (line,) = traces(figure, "trajectory")
        assert "−8.50 min-max [−9.00, −8.00]" in line.hovertext[1]

    def test_bars_are_inside_the_panel(self, fabric: Fabric) -> None:
        runs = [fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.2, 0.8))]
        (figure,) = pareto(table([*references(fabric), *runs]))
        left, right = figure.layout.xaxis.range
        assert left < 0.2 < 0.883 < right

    def test_the_hover_text_of_a_collapsed_point_warns(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -9.0), (0.2, -0.5)))
        (figure,) = pareto(table([*references(fabric), run]))
        (line,) = traces(figure, "trajectory")
        assert ["collapsed" in text for text in line.hovertext] == [False, False, True]

    def test_leading_settings_are_the_best_and_the_front(self, fabric: Fabric) -> None:
        records = [
            *references(fabric),
            fabric.run(rate=1e-5, points=((0.75, -9.0),)),
            fabric.run(rate=1e-4, points=((0.8, -3.0),)),
        ]
        (figure,) = pareto(table(records))
        leading = {t.meta["rate"]: t.meta["leading"] for t in traces(figure, "trajectory")}
        assert leading == {"1e-5": False, "1e-4": True}

    def test_seeds_are_one_line_with_bars_from_smallest_to_largest(self, fabric: Fabric) -> None:
        runs = [
            fabric.run(points=((u, q),), seed=s) for s, (u, q) in enumerate([(0.6, -9), (0.8, -5)])
        ]
        (figure,) = pareto(table([*references(fabric), *runs]))
        (line,) = traces(figure, "trajectory")
        assert line.x[1] == pytest.approx(0.7)
        assert line.error_y.array == (0.0, 2.0)
        assert line.error_y.arrayminus == (0.0, 2.0)
        assert line.error_x.array[1] == pytest.approx(0.1)

    def test_levels_and_the_collapse_region_are_where_they_belong(self, fabric: Fabric) -> None:
        (figure,) = pareto(table([*references(fabric), fabric.run()]))
        shapes = {shape.name: shape for shape in figure.layout.shapes}
        assert shapes["significance"].y0 == pytest.approx(math.log10(0.05))
        assert shapes["floor"].y0 == pytest.approx(data.ks_floor(80))
        assert shapes["collapse"].x1 == pytest.approx(0.4415)

    def test_published_points_are_initially_hidden(self, fabric: Fabric) -> None:
        run = fabric.run(model="llama2-7b", fraction=0.05)
        (with_them,) = pareto(table([run]), published=True)
        (without,) = pareto(table([run]))
        assert {t.visible for t in traces(with_them, "published")} == {False}
        assert not traces(without, "published")

    def test_names_cannot_carry_markup(self, fabric: Fabric) -> None:
        run = replace(fabric.run(), method="<img src=x>")
        (figure,) = pareto(table([*references(fabric), run]))
        (line,) = traces(figure, "trajectory")
        assert "<img" not in "".join(line.hovertext)
        assert all("<img" not in t.text[0] for t in traces(figure, "best"))

    def test_empty_and_numberless_tables_draw(self, fabric: Fabric) -> None:
        assert pareto([]) == ()
        (figure,) = pareto(table([fabric.run(points=((None, None),))]))
        assert not figure.data


class TestStyle:
    def test_rates_have_dashes_until_there_are_more_rates_than_dashes(self, fabric: Fabric) -> None:
        rates = (1e-5, 1e-4, 1e-3)
        look = plot.Style.of(table([fabric.run(rate=r) for r in rates]))
        assert [look.dashes[r] for r in rates] == ["solid", "dash", "dot"]
        many = plot.Style.of(table([fabric.run(rate=r * 1e-5) for r in range(1, 21)]))
        assert set(many.dashes.values()) == {"solid"}
