"""Figures at a width in print: size, place of the legend, and proportions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.figures import pareto, trajectories
from unlearnbench.results.table import table

if TYPE_CHECKING:
    from ..conftest import Fabric

print_size: Any = importlib.import_module("unlearnbench_dashboards.figures.print_size")
export: Any = importlib.import_module("unlearnbench_dashboards.figures.export")


@pytest.fixture
def rows(fabric: Fabric) -> Any:
    """Nine methods on one model and two splits."""
    return table(fabric.sweep(epochs=2))


def legends(figure: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trace in figure.data:
        if trace.showlegend:
            found.setdefault(trace.legend, []).append(trace.name)
    return found


@pytest.mark.parametrize(("width", "pixels"), [("column", 312), ("text", 648), (4.0, 384)])
def test_a_figure_is_as_wide_as_asked_for(width: Any, pixels: int, rows: Any) -> None:
    figure = pareto(rows, width=width, fraction=0.1)
    assert figure.layout.width == pixels
    assert export._scale(figure, "png") * pixels == pytest.approx(pixels / 96 * 300)
    assert export._scale(figure, "pdf") == 1  # its page has the width in inches
    assert not figure.layout.title.text  # a caption has it


def test_fonts_and_marks_are_in_proportion(rows: Any) -> None:
    screen = pareto(rows, fraction=0.1)
    small = pareto(rows, fraction=0.1, width="column", font_size=6)
    assert small.layout.font.size == 8
    size = {t.name: t.marker.size for t in screen.data if t.meta["role"] == "best"}
    for trace in small.data:
        if trace.meta["role"] == "best":
            assert trace.marker.size == pytest.approx(size[trace.name] * 8 / 12 * 0.72)
        if trace.textfont.size:
            assert trace.textfont.size < 8.1


def test_panels_are_below_each_other_in_a_column(rows: Any) -> None:
    figure = pareto(rows, width="column")
    first, second = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert figure.layout.xaxis.domain == figure.layout.xaxis2.domain == (0, 1)
    assert first[1] == pytest.approx(1)
    gap = (first[0] - second[1]) * (
        figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    )
    assert gap > 2.5 * figure.layout.font.size  # of tick labels and a title
    titles = [n for n in figure.layout.annotations if n.name is None]
    assert [n.y for n in titles] == [first[1], second[1]]


def test_every_method_is_named_once_beside_its_point_or_in_the_legend(rows: Any) -> None:
    figure = pareto(rows, fraction=0.1, width="column")
    rings = [t for t in figure.data if t.meta["role"] == "best"]
    beside = {t.meta["family"] for t in rings if "text" in t.mode}
    listed = {name for names in legends(figure).values() for name in names}
    methods = {t.meta["family"] for t in figure.data if t.meta["role"] == "trajectory"}
    assert methods == beside | (listed & methods)
    assert not beside & listed


def test_legends_have_room_below_and_columns_of_equal_length(rows: Any) -> None:
    figure = trajectories(rows, width="column", fraction=0.1)
    found = legends(figure)
    lines = [len(names) for names in found.values()]
    assert max(lines) - lines[-1] <= max(lines)
    assert set(lines[:-1]) <= {max(lines)}
    places = [figure.layout[name].x for name in found]
    assert places == sorted(places)
    plot = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    top = figure.layout.legend.y * plot  # pixels from the plot's lower edge
    assert -top + max(lines) * 19 <= figure.layout.margin.b


def test_without_a_legend_its_room_goes_to_the_plot(rows: Any) -> None:
    wide = pareto(rows, width="text", fraction=0.1)
    bare = pareto(rows, width="text", fraction=0.1, legend=False, title="Given")
    assert not legends(bare)
    assert bare.layout.margin.r < wide.layout.margin.r
    assert bare.layout.title.text == "Given"
    assert not legends(pareto(rows, legend=False))


@pytest.mark.parametrize(
    "wrong", [{"width": "wide"}, {"width": 0.2}, {"font_size": 90}, {"font_size": float("nan")}]
)
def test_sizes_that_nobody_can_read_are_refused(wrong: Any, rows: Any) -> None:
    with pytest.raises(UnlearnbenchError, match="give"):
        pareto(rows, **wrong)
