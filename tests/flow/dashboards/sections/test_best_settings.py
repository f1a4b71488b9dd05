"""The tables of best settings."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.results.records import Record
from unlearnbench.stats.t_interval import t_interval

from ..conftest import context_of

if TYPE_CHECKING:
    from ..conftest import Fabric

best: Any = importlib.import_module("unlearnbench_dashboards.sections.best_settings")


def test_a_panel_of_failed_runs_alone_is_in_the_table(fabric: Fabric) -> None:
    failed = replace(fabric.run("idk"), model="other", status="failed", error="no memory")
    failed = replace(failed, epochs=(), evaluations={})
    context = context_of(fabric.reference("fine-tuned"), fabric.run("npo+nll"), failed)
    html = best.BestSettings().render(context.report)
    assert "no number: failed, no memory" in html


def selected(runs: list[Record], *, why_not: str = "", epoch: int | None = 1) -> dict[str, Any]:
    """`selection.json` of one choice, reported on `runs`."""
    chosen = not why_not
    return {
        "rule": "the highest of all",
        "chosen_on_seeds": [0],
        "reported_on_seeds": [1, 2, 3],
        "choices": [
            {
                "model": "tiny",
                "forget_fraction": 0.1,
                "method": "npo",
                "candidates": 7,
                "why_not": why_not,
                "setting": "npo" if chosen else "",
                "learning_rate": 1e-4 if chosen else None,
                "epoch": epoch,
                "model_utility": 0.81 if chosen else None,
                "log10_forget_quality": -2.5 if chosen else None,
                "reported_runs": [r.id for r in runs],
            }
        ],
    }


def context(fabric: Fabric, selection: Any) -> Any:
    runs = [
        fabric.run(points=((u, q), (0.9, -1.0)), seed=s)
        for s, (u, q) in enumerate([(0.8, -3.0), (0.7, -4.0), (0.75, -6.0), (0.8, -8.0)])
    ]
    found = context_of(fabric.reference("fine-tuned"), *runs)
    return replace(found, report=replace(found.report, selection=selection(runs[1:])))


def test_the_declared_rule_comes_first_with_numbers_of_the_reported_seeds(fabric: Fabric) -> None:
    declared, default = best.settings_tables(context(fabric, selected))
    (line,) = declared.lines
    assert (declared.rule, declared.seeds, declared.chosen_apart) == (
        "the highest of all",
        (1, 2, 3),
        True,
    )
    assert line.setting.metrics["log10_forget_quality"] == pytest.approx(-6.0)
    assert [row.seed for row in line.setting.rows] == [1, 2, 3]
    assert line.tried == 7
    assert not default.chosen_apart
    assert default.lines[0].setting.epoch == 2


@pytest.mark.parametrize("reason", ["nothing keeps its utility", ""])
def test_a_missing_choice_has_its_reason(fabric: Fabric, reason: str) -> None:
    choice = selected([], why_not=reason, epoch=None if reason else 1)

    def chosen(_: Any) -> Any:
        return choice

    declared, _ = best.settings_tables(context(fabric, chosen))
    assert declared.lines[0].setting is None
    wanted = reason or "chosen; no run on the other seeds has ended yet"
    assert declared.lines[0].why_not == wanted


def test_the_copied_table_is_of_the_rules_own_settings(fabric: Fabric) -> None:
    found = context(fabric, selected)
    declared, own = best.settings_tables(found)
    (line,) = csv.DictReader(best.texts(declared, found)["CSV"].splitlines())
    interval = t_interval([-4.0, -6.0, -8.0])
    assert interval is not None
    assert line["seeds"] == "1 2 3"
    assert float(line["log10_forget_quality"]) == pytest.approx(-6.0)
    assert float(line["log10_forget_quality_low"]) == pytest.approx(interval.low)
    assert best.texts(own, found) != best.texts(declared, found)
    assert (
        "Best setting of each method: the highest of all."
        in (best.texts(declared, found)["Markdown"])
    )


def test_lines_are_by_panel_then_by_quality(fabric: Fabric) -> None:
    (table,) = best.settings_tables(context_of(*fabric.sweep(epochs=3)))
    places = [(line.forget_fraction, line.method) for line in table.lines]
    assert [f for f, _ in places] == sorted(f for f, _ in places)
    here = [line.setting.forgotten for line in table.lines[:9] if line.setting]
    assert here == sorted(here, reverse=True)
