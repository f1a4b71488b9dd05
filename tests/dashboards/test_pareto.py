"""What the Pareto panels show, by value."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import ks_2samp

from unlearnbench.intervals import bootstrap
from unlearnbench.table import table

if TYPE_CHECKING:
    from .conftest import Fabric

pareto: Any = importlib.import_module("unlearnbench_dashboards.pareto")
drawing: Any = importlib.import_module("unlearnbench_dashboards.drawing")
palette: Any = importlib.import_module("unlearnbench_dashboards.palette")
labels: Any = importlib.import_module("unlearnbench_dashboards.labels")


def anchors(fabric: Fabric) -> list[Any]:
    return [fabric.anchor("fine-tuned"), fabric.anchor("retain")]


def traces(figure: Any, role: str) -> list[Any]:
    return [trace for trace in figure.data if trace.meta["role"] == role]


class TestPanels:
    def test_one_per_model_and_fraction_in_the_tables_order(self, fabric: Fabric) -> None:
        rows = table(fabric.sweep(models=("b", "a"), fractions=(0.1, 0.05), epochs=1))
        places = [(p.model, p.forget_fraction) for p in pareto.panels(rows)]
        assert places == [("a", 0.05), ("a", 0.1), ("b", 0.05), ("b", 0.1)]

    def test_front_collapse_and_floor(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0), (0.2, -30.0)))
        (panel,) = pareto.panels(table([*anchors(fabric), run]))
        assert [s.epoch for s in panel.front] == [3, 1]  # epoch 2 is beaten by 1, epoch 4 by all
        assert panel.collapse_below == pytest.approx(0.883 / 2)
        assert panel.questions == 80
        assert [s.epoch for s in panel.below] == [4]

    @pytest.mark.parametrize("n", [5, 40, 300])
    def test_the_floor_is_the_exact_tests_p_at_complete_separation(self, n: int) -> None:
        p = ks_2samp(range(n), range(1000, 1000 + n), method="exact").pvalue
        assert pareto.ks_floor(n) == pytest.approx(math.log10(p), rel=1e-9)

    def test_collapsed_models_do_not_squeeze_the_others(self, fabric: Fabric) -> None:
        run = fabric.run("gradient-ascent", points=((0.8, -15.0), (0.0, -300.0)))
        (panel,) = pareto.panels(table([*anchors(fabric), run]))
        assert panel.low == pytest.approx(-16.3 * 1.5)
        assert len(panel.below) == 1

    def test_a_working_model_is_inside_however_low_it_is(self, fabric: Fabric) -> None:
        (panel,) = pareto.panels(table([*anchors(fabric), fabric.run(points=((0.8, -300.0),))]))
        assert panel.low <= -300
        assert panel.below == ()

    def test_settings_without_a_number_are_counted_not_drawn(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (math.nan, -3.0), (None, None)))
        (panel,) = pareto.panels(table([*anchors(fabric), run]))
        assert panel.undrawn == 2
        assert [s.epoch for s in panel.trajectories[0].points] == [1]

    def test_published_points_by_model_and_fraction(self) -> None:
        series = {s.name: s for s in pareto.published_series("Llama2-7B-chat", 0.01)}
        first = series["CE-U (LR=2e-06)"].points[0]
        assert first == (0.624, -3.298)
        assert pareto.published_series("phi-1.5", 0.1)
        assert not pareto.published_series("tiny", 0.1)
        assert not pareto.published_series("phi-1.5", 0.2)


class TestFigure:
    def test_a_trajectory_starts_at_the_fine_tuned_model(self, fabric: Fabric) -> None:
        rows = table([*anchors(fabric), fabric.run(points=((0.8, -10.0), (0.7, -5.0)))])
        (figure,) = drawing.pareto(rows)
        (line,) = traces(figure, "trajectory")
        assert line.x == (0.883, 0.8, 0.7)
        assert line.y == (-16.3, -10.0, -5.0)
        assert line.marker.symbol in palette.SYMBOLS
        assert line.marker.size == (1.0, 6.5, 10.5)  # the last epoch is the large one
        assert [c[0] for c in line.customdata] == [0, 1, 2]

    def test_without_anchors_it_starts_at_its_first_epoch(self, fabric: Fabric) -> None:
        (figure,) = drawing.pareto(table([fabric.run(points=((0.8, -10.0),))]))
        (line,) = traces(figure, "trajectory")
        assert line.x == (0.8,)
        assert not traces(figure, "anchor")

    @pytest.mark.parametrize("kind", ["fine-tuned", "retain"])
    def test_one_anchor_is_enough(self, fabric: Fabric, kind: Any) -> None:
        (figure,) = drawing.pareto(table([fabric.anchor(kind), fabric.run()]))
        assert len(traces(figure, "anchor")) == 1

    def test_beaten_points_are_pale_and_the_front_is_full(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -10.0), (0.7, -12.0), (0.6, -5.0)))
        (figure,) = drawing.pareto(table([*anchors(fabric), run]))
        (line,) = traces(figure, "trajectory")
        assert line.marker.opacity == (0.0, 1.0, 0.4, 1.0)
        (front,) = traces(figure, "front")
        assert front.x == (0.6, 0.8)

    def test_the_best_of_each_method_is_ringed_and_named(self, fabric: Fabric) -> None:
        records = [
            *anchors(fabric),
            fabric.run("npo", points=((0.8, -10.0), (0.3, -2.0))),
            fabric.run("ce-u", points=((0.75, -8.0),)),
            fabric.run("gradient-ascent", points=((0.1, -3.0),)),
        ]
        (figure,) = drawing.pareto(table(records))
        rings = {t.text[0]: (t.x[0], t.y[0]) for t in traces(figure, "best")}
        assert rings == {"npo": (0.8, -10.0), "<b>ce-u</b>": (0.75, -8.0)}

    def test_bars_are_the_bootstrap_interval_not_the_range(self, fabric: Fabric) -> None:
        qualities = (-9.0, -7.0, -6.0, -5.0, -3.0)
        runs = [fabric.run(points=((0.7, q),), seed=s) for s, q in enumerate(qualities)]
        (figure,) = drawing.pareto(table([*anchors(fabric), *runs]))
        (line,) = traces(figure, "trajectory")
        interval = bootstrap(qualities)
        assert interval is not None
        assert line.error_y.array[1] == pytest.approx(interval.high + 6.0)
        assert line.error_y.arrayminus[1] == pytest.approx(-6.0 - interval.low)
        told = line.hovertext[1]
        assert f"[−{-interval.low:.2f}, −{-interval.high:.2f}]" in told
        assert "mean of 5 seeds; brackets: 95% interval of the mean" in told
        assert "range over seeds: 0.700 to 0.700, −9.00 to −3.00" in told

    def test_two_seeds_have_a_range_and_three_an_interval_with_its_coverage(
        self, fabric: Fabric
    ) -> None:
        runs = [fabric.run(points=((0.7, -9.0 + s),), seed=s) for s in range(3)]
        for count, wanted, unwanted in (
            (2, "mean of 2 seeds; min-max: their smallest and largest value", "95%"),
            (3, "(measured, it holds the mean in 75 % of cases, of skewed values in 70 %)", "min-"),
        ):
            (figure,) = drawing.pareto(table([*anchors(fabric), *runs[:count]]))
            (line,) = traces(figure, "trajectory")
            assert wanted in line.hovertext[1]
            assert unwanted not in line.hovertext[1]
        (figure,) = drawing.pareto(table([*anchors(fabric), *runs[:2]]))
        (line,) = traces(figure, "trajectory")
        assert "−8.50 min-max [−9.00, −8.00]" in line.hovertext[1]

    def test_bars_are_inside_the_panel(self, fabric: Fabric) -> None:
        runs = [fabric.run(points=((u, -9.0),), seed=s) for s, u in enumerate((0.2, 0.8))]
        (figure,) = drawing.pareto(table([*anchors(fabric), *runs]))
        left, right = figure.layout.xaxis.range
        assert left < 0.2 < 0.883 < right

    def test_a_collapsed_point_says_so(self, fabric: Fabric) -> None:
        run = fabric.run(points=((0.8, -9.0), (0.2, -0.5)))
        (figure,) = drawing.pareto(table([*anchors(fabric), run]))
        (line,) = traces(figure, "trajectory")
        assert ["collapsed" in text for text in line.hovertext] == [False, False, True]

    def test_leading_settings_are_the_best_and_the_front(self, fabric: Fabric) -> None:
        records = [
            *anchors(fabric),
            fabric.run(rate=1e-5, points=((0.75, -9.0),)),
            fabric.run(rate=1e-4, points=((0.8, -3.0),)),
        ]
        (figure,) = drawing.pareto(table(records))
        leading = {t.meta["rate"]: t.meta["leading"] for t in traces(figure, "trajectory")}
        assert leading == {"1e-5": False, "1e-4": True}

    def test_seeds_are_one_line_with_bars_from_smallest_to_largest(self, fabric: Fabric) -> None:
        runs = [
            fabric.run(points=((u, q),), seed=s) for s, (u, q) in enumerate([(0.6, -9), (0.8, -5)])
        ]
        (figure,) = drawing.pareto(table([*anchors(fabric), *runs]))
        (line,) = traces(figure, "trajectory")
        assert line.x[1] == pytest.approx(0.7)
        assert line.error_y.array == (0.0, 2.0)
        assert line.error_y.arrayminus == (0.0, 2.0)
        assert line.error_x.array[1] == pytest.approx(0.1)

    def test_levels_and_the_collapse_region_are_where_they_belong(self, fabric: Fabric) -> None:
        (figure,) = drawing.pareto(table([*anchors(fabric), fabric.run()]))
        shapes = {shape.name: shape for shape in figure.layout.shapes}
        assert shapes["significance"].y0 == pytest.approx(math.log10(0.05))
        assert shapes["floor"].y0 == pytest.approx(pareto.ks_floor(80))
        assert shapes["collapse"].x1 == pytest.approx(0.4415)

    def test_published_points_are_off_until_asked_for(self, fabric: Fabric) -> None:
        run = fabric.run(model="llama2-7b", fraction=0.05)
        (with_them,) = drawing.pareto(table([run]), published=True)
        (without,) = drawing.pareto(table([run]))
        assert {t.visible for t in traces(with_them, "published")} == {False}
        assert not traces(without, "published")

    def test_names_cannot_carry_markup(self, fabric: Fabric) -> None:
        run = replace(fabric.run(), method="<img src=x>")
        (figure,) = drawing.pareto(table([*anchors(fabric), run]))
        (line,) = traces(figure, "trajectory")
        assert "<img" not in "".join(line.hovertext)
        assert all("<img" not in t.text[0] for t in traces(figure, "best"))

    def test_empty_and_numberless_tables_draw(self, fabric: Fabric) -> None:
        assert drawing.pareto([]) == ()
        (figure,) = drawing.pareto(table([fabric.run(points=((None, None),))]))
        assert not figure.data


class TestLook:
    def test_rates_have_dashes_until_there_are_more_rates_than_dashes(self, fabric: Fabric) -> None:
        rates = (1e-5, 1e-4, 1e-3)
        look = drawing.Look.of(table([fabric.run(rate=r) for r in rates]))
        assert [look.dashes[r] for r in rates] == ["solid", "dash", "dot"]
        many = drawing.Look.of(table([fabric.run(rate=r * 1e-5) for r in range(1, 21)]))
        assert set(many.dashes.values()) == {"solid"}

    @pytest.mark.parametrize(
        ("rate", "text"), [(2e-5, "2e-5"), (1e-3, "1e-3"), (1.5e-4, "1.5e-4"), (None, "none")]
    )
    def test_rates_are_written_as_in_a_paper(self, rate: float | None, text: str) -> None:
        assert palette.rate_text(rate) == text


def test_labels_do_not_cover_each_other() -> None:
    wanted = [
        labels.Label(name, (0.5, -5.0 - i * 0.1), name, 1e-5) for i, name in enumerate("abcd")
    ]
    placed = labels.place(wanted, (0.0, 1.0), (-10.0, 0.0))
    assert len({side for _, side in placed}) == 4


def test_a_label_without_room_has_no_side() -> None:
    wanted = [labels.Label("gradient", (0.5, -5.0), str(i), 1e-5) for i in range(30)]
    sides = [side for _, side in labels.place(wanted, (0.0, 1.0), (-10.0, 0.0))]
    assert None in sides
    assert len(set(sides) - {None}) >= 4


def test_a_label_at_the_right_edge_turns_inwards() -> None:
    label = labels.Label("gradient-difference", (0.99, -5.0), "x", 1e-5)
    ((_, side),) = labels.place([label], (0.0, 1.0), (-10.0, 0.0))
    assert side.endswith("left")
