"""Names beside marks: they cover no other text, and no mark if there is room."""

from __future__ import annotations

import importlib
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unlearnbench.report.figures import pareto, trajectories

from ..conftest import METHODS

if TYPE_CHECKING:
    from ..conftest import Fabric

mark_names: Any = importlib.import_module("unlearnbench_dashboards.figures.mark_names")
palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")
Box, Name, Plot = mark_names.Box, mark_names.Name, mark_names.Plot


@pytest.mark.parametrize("seed", range(6))
def test_names_of_random_marks_cover_neither_each_other_nor_marks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    marks = [tuple(map(float, xy)) for xy in rng.uniform(40, 260, (8, 2))]
    names = [Name(mark, 60.0, 13.0) for mark in marks]
    places = mark_names.place_names(names, Plot(300.0, 300.0, marks))
    boxes = [Box.around(place, 60.0, 13.0) for place in places]
    for a, b in combinations(boxes, 2):
        assert not a.overlaps(b)
    for box, (x, y) in product(boxes, marks):
        assert not (box.left < x < box.right and box.top < y < box.bottom)
        assert box.left >= 0
        assert box.right <= 300
        assert box.top >= 0
        assert box.bottom <= 300
    assert places == mark_names.place_names(names, Plot(300.0, 300.0, marks)), "the same again"


def test_a_name_evades_a_line_and_a_text_that_stands_already() -> None:
    mark = (100.0, 100.0)
    line = ((100.0, 100.0), (200.0, 100.0))
    text = Box(0.0, 90.0, 95.0, 110.0)
    (place,) = mark_names.place_names(
        [Name(mark, 50.0, 13.0)], Plot(200.0, 200.0, [mark], [line], [text])
    )
    box = Box.around(place, 50.0, 13.0)
    assert not box.is_crossed(*line)
    assert not box.overlaps(text)


def test_crossings_are_those_of_many_points_on_the_line() -> None:
    rng = np.random.default_rng(3)
    box = Box(3.0, 4.0, 7.0, 6.0)
    for start, end in rng.uniform(0, 10, (200, 2, 2)):
        steps = np.linspace(0, 1, 4001)[:, None]
        x, y = (start + steps * (end - start)).T
        inside = bool(((x >= 3) & (x <= 7) & (y >= 4) & (y <= 6)).any())
        assert box.is_crossed(tuple(start.tolist()), tuple(end.tolist())) is inside


@pytest.mark.parametrize("seed", range(8))
def test_spread_moves_as_little_as_possible(seed: int) -> None:
    """By least squares under constraints, solved by scipy."""
    from scipy.optimize import LinearConstraint, minimize

    wishes = np.random.default_rng(seed).uniform(20, 80, 6)
    moved = mark_names.spread(wishes.tolist(), 10.0, 0.0, 100.0)
    order = np.argsort(wishes)
    gaps = np.zeros((5, 6))
    for line, (a, b) in enumerate(pairwise(order)):
        gaps[line, a], gaps[line, b] = -1.0, 1.0

    def moved_by(places: Any) -> float:
        return float(((places - wishes) ** 2).sum())

    found: Any = minimize(
        moved_by,
        wishes,
        constraints=[LinearConstraint(gaps, 10.0, np.inf)],
        bounds=[(0.0, 100.0)] * 6,
        method="SLSQP",
    )
    assert moved == pytest.approx(found.x.tolist(), abs=1e-3)


def named(figure: Any) -> dict[str, Any]:
    return {note.text: note for note in figure.layout.annotations if note.name == "method"}


def test_a_column_names_methods_at_their_best_settings_in_place_of_a_legend(
    fabric: Fabric,
) -> None:
    records = fabric.sweep(fractions=(0.1,), rates=(1e-4,), seeds=(0, 1, 2), epochs=3)
    figure = pareto(records, width="column")
    assert not any(trace.showlegend for trace in figure.data), "one rate has no legend either"
    names = named(figure)
    assert {*names} == {*METHODS, "start", "retain"}
    for trace in figure.data:
        if trace.meta["role"] == "best":
            note = names[trace.meta["method"]]
            assert (note.x, note.y) == (trace.x[0], trace.y[0])
    assert figure.layout.height < figure.layout.width, "no legend takes the height"
    wide = pareto(records)
    assert {trace.name for trace in wide.data if trace.showlegend} == {*METHODS}


def test_a_column_of_curves_names_lines_at_their_ends(fabric: Fabric) -> None:
    records = fabric.sweep(fractions=(0.1,), seeds=(0, 1, 2), epochs=3)
    figure = trajectories(records, ["model_utility"], width="column")
    names = named(figure)
    assert {*METHODS} < {*names}
    assert [trace.name for trace in figure.data if trace.showlegend] == ["rate 3e-5", "rate 1e-4"]
    (low, high) = figure.layout.yaxis.range
    tall = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    places = sorted(tall * (high - n.y) / (high - low) + n.ay for n in names.values())
    assert all(b - a >= 12.9 for a, b in pairwise(places))
    curves = [trace for trace in figure.data if trace.meta["role"] == "curve"]
    assert sum("0.25" in trace.line.color for trace in curves) == len(METHODS), "half are pale"


def test_swept_values_look_different_and_are_named(fabric: Fabric) -> None:
    runs = [
        fabric.run("npo", points=((0.85, -9.0 + 5 * beta),), hyperparameters={"beta": beta})
        for beta in (0.05, 0.1, 0.5)
    ]
    figure = pareto([fabric.reference("fine-tuned"), *runs, fabric.run("dpo")], width="column")
    points = [trace for trace in figure.data if trace.meta["role"] == "trajectory"]
    symbols = {trace.meta["method"]: trace.marker.symbol for trace in points}
    of_npo = [symbol for method, symbol in symbols.items() if method.startswith("npo")]
    assert len({*of_npo}) == 3
    assert len({symbol.partition("-open")[0].removesuffix("-dot") for symbol in of_npo}) == 1
    assert {*named(figure)} == {"npo (beta=0.5)", "beta=0.05", "beta=0.1", "dpo", "start"}
