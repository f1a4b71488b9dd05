"""Losses, their terms and gradient norms by step, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from unlearnbench.results.table import table
from unlearnbench.training.step_result import StepResult

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.figures.step_plot")
plot: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_plot")


def steps_of(records: list[Record]) -> Any:
    rows = table(records)
    figures = module.steps(records, rows, plot.Style.of(rows))
    return {name: go.Figure(figure) for name, figure in figures.items()}


def test_losses_by_step_with_their_terms(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    figures = steps_of([run])
    assert figures["Loss"].data[0].y == (2.0, 1.9, 1.8)
    assert figures["Loss term: retain"].data[0].y == (1.0, 0.9, 0.8)
    assert figures["Gradient norm"].layout.yaxis.type == "log"


def test_a_single_term_has_no_figure_and_nan_is_a_gap(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = (StepResult(0, 1, 1e-5, float("nan"), {"forget": float("nan")}, 1.0),)
    figures = steps_of([replace(run, steps=steps)])
    assert list(figures) == ["Loss", "Gradient norm"]
    assert figures["Loss"].data[0].y == (None,)


def test_long_runs_are_thinned(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = tuple(StepResult(i, 1, 1e-5, 1.0, {}, 1.0) for i in range(1001))
    figures = steps_of([replace(run, steps=steps)])
    assert len(figures["Loss"].data[0].x) <= module.MAX_STEPS


def test_runs_are_labelled_by_their_setting(fabric: Fabric) -> None:
    runs = [fabric.run(hyperparameters={"beta": b}, points=((0.8, -9.0),)) for b in (0.1, 0.5)]
    names = [trace.name for trace in steps_of(runs)["Loss"].data]
    assert names == ["npo (beta=0.1), rate 1e-4, seed 0", "npo (beta=0.5), rate 1e-4, seed 0"]


def test_a_loss_of_another_scale_is_outside_the_range(fabric: Fabric) -> None:
    def run(method: str, scale: float) -> Record:
        steps = tuple(StepResult(i, 1, 1e-5, scale * (2 - i), {}, 1.0) for i in range(3))
        return replace(fabric.run(method, points=((0.8, -9.0),)), steps=steps)

    figure = steps_of([run("npo", 1), run("dpo", 1.1), run("idk", 0.9), run("rmu", 500)])["Loss"]
    assert figure.layout.meta == {"outside": ["rmu, rate 1e-4, seed 0 (1000)"]}
    assert figure.layout.yaxis.range[1] < 3


def test_many_runs_are_drawn_by_fewer_steps(fabric: Fabric) -> None:
    one = fabric.run(points=((0.8, -9.0),) * 300)  # 900 steps, 4 quantities
    assert module.max_steps([one]) == module.MAX_STEPS
    many = [one] * 600
    most = module.max_steps(many)
    assert most == module.MAX_NUMBERS // (4 * 600)
    rows = table([one])
    figures = module.steps([one], rows, plot.Style.of(rows), most)
    assert len(figures["Loss"]["data"][0]["x"]) <= most
