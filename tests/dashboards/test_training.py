"""Losses, their terms and gradient norms by step, by value."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unlearnbench.step import StepResult
from unlearnbench.table import table

if TYPE_CHECKING:
    from unlearnbench.records import Record

    from .conftest import Fabric

training: Any = importlib.import_module("unlearnbench_dashboards.training")
drawing: Any = importlib.import_module("unlearnbench_dashboards.drawing")


def steps_of(records: list[Record]) -> Any:
    rows = table(records)
    return training.steps(records, rows, drawing.Look.of(rows))


def test_losses_by_step_with_their_terms(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    figures = steps_of([run])
    assert figures["Loss"].data[0].y == (2.0, 1.9, 1.8)
    assert figures["Loss term: retain"].data[0].y == (1.0, 0.9, 0.8)
    assert figures["Gradient norm"].layout.yaxis.type == "log"


def test_one_term_is_no_figure_of_its_own_and_nan_is_a_gap(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = (StepResult(0, 1, 1e-5, float("nan"), {"forget": float("nan")}, 1.0),)
    figures = steps_of([replace(run, steps=steps)])
    assert list(figures) == ["Loss", "Gradient norm"]
    assert figures["Loss"].data[0].y == (None,)


def test_long_runs_are_thinned(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -9.0),))
    steps = tuple(StepResult(i, 1, 1e-5, 1.0, {}, 1.0) for i in range(1001))
    figures = steps_of([replace(run, steps=steps)])
    assert len(figures["Loss"].data[0].x) <= training.MAX_STEPS


def test_runs_are_called_by_their_setting(fabric: Fabric) -> None:
    runs = [fabric.run(hyperparameters={"beta": b}, points=((0.8, -9.0),)) for b in (0.1, 0.5)]
    names = [trace.name for trace in steps_of(runs)["Loss"].data]
    assert names == ["npo (beta=0.1), rate 1e-4, seed 0", "npo (beta=0.5), rate 1e-4, seed 0"]


def test_a_loss_of_another_scale_leaves_the_frame(fabric: Fabric) -> None:
    def run(method: str, scale: float) -> Record:
        steps = tuple(StepResult(i, 1, 1e-5, scale * (2 - i), {}, 1.0) for i in range(3))
        return replace(fabric.run(method, points=((0.8, -9.0),)), steps=steps)

    figure = steps_of([run("npo", 1), run("dpo", 1.1), run("idk", 0.9), run("rmu", 500)])["Loss"]
    assert figure.layout.meta == {"outside": ["rmu, rate 1e-4, seed 0 (1000)"]}
    assert figure.layout.yaxis.range[1] < 3


def test_many_runs_are_drawn_by_fewer_steps(fabric: Fabric) -> None:
    one = fabric.run(points=((0.8, -9.0),) * 300)  # 900 steps, 4 quantities
    assert training.steps_drawn([one]) == training.MAX_STEPS
    many = [one] * 600
    most = training.steps_drawn(many)
    assert most == training.MAX_NUMBERS // (4 * 600)
    rows = table([one])
    figures = training.steps([one], rows, drawing.Look.of(rows), most)
    assert len(figures["Loss"].data[0].x) <= most
