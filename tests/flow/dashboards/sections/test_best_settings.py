"""The tables of best settings."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.results.records import Record
from unlearnbench.stats.t_interval import t_interval

from ....numbers.analysis.conftest import choosing
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


POINTS = ((0.8, -3.0), (0.7, -4.0), (0.75, -6.0), (0.8, -8.0))
"""(Model Utility, log10 Forget Quality) after the first epoch, by seed."""


def runs_of(fabric: Fabric, second: tuple[float, float] = (0.1, -1.0)) -> list[Record]:
    """A run for each seed, which all forget more at the second epoch and keep less."""
    return [fabric.run(points=(point, second), seed=seed) for seed, point in enumerate(POINTS)]


def context(fabric: Fabric, runs: Sequence[Record], seeds: Sequence[int] = range(4)) -> Any:
    """What sections share, in a sweep that chooses on seed 0."""
    report = choosing([fabric.reference("fine-tuned"), *runs], seeds=seeds)
    module: Any = importlib.import_module("unlearnbench_dashboards.report_section")
    return module.PageContext.of(report)


def test_a_choice_has_the_numbers_of_the_reporting_seeds_and_is_the_only_table(
    fabric: Fabric,
) -> None:
    # By the page's own rule, and on all seeds, the second epoch would be the best.
    runs = runs_of(fabric, (0.9, -1.0))
    low = fabric.run(points=((0.8, -3.0), (0.2, -1.0)), seed=0)
    found = context(fabric, [low, *runs[1:]])
    table = best.settings_table(found)
    (line,) = table.lines
    assert (table.seeds, table.chosen_apart) == ((1, 2, 3), True)
    assert table.rule == f"{found.report.selection['rule']}; numbers are means over seeds 1, 2, 3"
    assert line.setting.epoch == 1
    assert line.setting.metrics["log10_forget_quality"] == pytest.approx(-6.0)
    assert [row.seed for row in line.setting.rows] == [1, 2, 3]
    assert line.tried == 1


def test_a_missing_choice_has_its_reason(fabric: Fabric) -> None:
    lost = fabric.run(points=((0.1, -3.0),), seed=0)
    (line,) = best.settings_table(context(fabric, [lost])).lines
    assert line.setting is None
    assert "no setting keeps at least 80 %" in line.why_not
    found = context(fabric, runs_of(fabric)[:1])
    table = best.settings_table(found)
    (line,) = table.lines
    assert line.setting is None
    assert line.why_not == "chosen; it has not been run on seeds 1, 2, 3 yet"
    copied = best.texts(table, found)
    assert f"{line.method}: {line.why_not}." in copied["Markdown"]
    assert copied.keys() == best.FORMATS.keys(), "the page has a button for each"


def test_the_copied_table_is_of_the_choice(fabric: Fabric) -> None:
    found = context(fabric, runs_of(fabric))
    table = best.settings_table(found)
    (line,) = csv.DictReader(best.texts(table, found)["CSV"].splitlines())
    interval = t_interval([-4.0, -6.0, -8.0])
    assert interval is not None
    assert line["seeds"] == "1 2 3"
    assert float(line["log10_forget_quality"]) == pytest.approx(-6.0)
    assert float(line["log10_forget_quality_low"]) == pytest.approx(interval.low)
    assert "numbers are means over seeds 1, 2, 3" in best.texts(table, found)["Markdown"]


def test_a_choice_that_keeps_too_little_elsewhere_says_so(fabric: Fabric) -> None:
    runs = runs_of(fabric)
    poor = [fabric.run(points=((0.5, -1.0), (0.1, -1.0)), seed=seed) for seed in range(1, 4)]
    html = best.BestSettings().render(context(fabric, [runs[0], *poor]).report)
    assert "keeps less than 80 % of the start model&#39;s utility on seeds 1, 2, 3" in html


def test_lines_are_by_panel_then_by_quality(fabric: Fabric) -> None:
    table = best.settings_table(context_of(*fabric.sweep(epochs=3)))
    places = [(line.forget_fraction, line.method) for line in table.lines]
    assert [f for f, _ in places] == sorted(f for f, _ in places)
    here = [line.setting.forgotten for line in table.lines[:9] if line.setting]
    assert here == sorted(here, reverse=True)
