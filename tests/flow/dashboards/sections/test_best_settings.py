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
from ..conftest import build, context_of, report_of

if TYPE_CHECKING:
    from ..conftest import Fabric

best: Any = importlib.import_module("unlearnbench_dashboards.sections.best_settings")


def test_a_panel_of_failed_runs_alone_is_in_the_table(fabric: Fabric) -> None:
    failed = replace(fabric.run("idk"), model="other", status="failed", error="no memory")
    failed = replace(failed, epochs=(), evaluations={})
    context = context_of(fabric.reference("fine-tuned"), fabric.run("npo+nll"), failed)
    html = best.BestSettings().render(context.report)
    assert "no number: failed, no memory" in html


def test_a_method_whose_runs_all_failed_later_is_in_the_table(fabric: Fabric) -> None:
    """A failed run says nothing, also at epochs that it had reached."""
    failed = replace(fabric.run("idk"), status="failed", error="no memory")
    context = context_of(fabric.reference("fine-tuned"), fabric.run("npo+nll"), failed)
    lines = {line.name: line.why_not for line in best.settings_table(context).lines}
    assert lines == {"npo+nll": "", "idk": "no number: failed, no memory"}


def test_methods_of_one_place_are_named_below_the_table(fabric: Fabric) -> None:
    qualities = {"npo": (-0.3, -0.1, -0.2), "dpo": (-0.1, -0.4, -0.3), "idk": (-9.0, -8.8, -9.1)}
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    for name, by_seed in qualities.items():
        for seed, quality in enumerate(by_seed):
            records.append(fabric.run(name, points=((0.85, quality),), seed=seed))
    context = context_of(*records)
    places = {line.name: line.rank for line in best.settings_table(context).lines}
    assert places == {"npo": 1, "dpo": 1, "idk": 3}
    copied = best.texts(best.settings_table(context), context)
    assert " tiny, forget 10 %. " in copied["Markdown"], "the caption names the panel"
    html = str(best.BestSettings().render(context.report))
    shown = html.partition("<details")[0]
    assert '<th scope="col" class="num">Place</th>' in shown
    assert (
        "Places are by Forget Quality. npo and dpo share place 1: the difference between them may "
        "be chance."
    ) in shown
    apart = context_of(*(record for record in records if record.method != "dpo"))
    assert "No two methods share a place." in str(best.BestSettings().render(apart.report))
    single = context_of(*(record for record in records if record.seed == 0))
    assert "Places are by" not in str(best.BestSettings().render(single.report))


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


def test_a_bar_has_the_numbers_of_its_line_on_the_scale_of_the_panel(fabric: Fabric) -> None:
    qualities = {"npo": (-2.0, -2.5, -3.0), "dpo": (-9.0, -9.0, -9.0)}
    runs = [
        fabric.run(method, points=((0.8 - 0.01 * seed, quality),), seed=seed)
        for method, values in qualities.items()
        for seed, quality in enumerate(values)
    ]
    found = context_of(fabric.reference("fine-tuned"), fabric.reference("retain"), *runs)
    lines = {line.family: line for line in best.settings_table(found).lines}
    bars = best._html_table(best.settings_table(found), found).bars
    assert list(bars) == ["log10 Forget Quality", "Model Utility"]
    # From the start model's -16.3, the lowest number, to the bound 0.
    forgotten = bars["log10 Forget Quality"]
    interval = t_interval(qualities["npo"])
    assert interval is not None
    npo = forgotten(lines["npo"])
    assert npo.value == pytest.approx((16.3 - 2.5) / 16.3)
    assert npo.interval.low == pytest.approx((16.3 + interval.low) / 16.3)
    assert npo.interval.high == pytest.approx((16.3 + min(interval.high, 0.0)) / 16.3)
    assert (npo.start, npo.retain) == (0.0, 1.0)
    assert forgotten(lines["dpo"]).value == pytest.approx((16.3 - 9.0) / 16.3)
    # A number between 0 and 1 is a share as it is.
    utility = bars["Model Utility"](lines["npo"])
    assert (utility.value, utility.start, utility.retain) == pytest.approx((0.79, 0.883, 0.87))


def test_a_bar_of_few_numbers_is_inside_its_ends(fabric: Fabric) -> None:
    """Of one seed, without a retain model, with the start model's number, and without a number."""
    same = fabric.run("npo", points=((0.8, -16.3),))
    without = fabric.run("dpo", points=((0.1, -3.0),))
    found = context_of(fabric.reference("fine-tuned"), same, without)
    table = best.settings_table(found)
    bars = best._html_table(table, found).bars
    drawn = [bar(line) for bar in bars.values() for line in table.lines]
    assert [one is None for one in drawn] == [False, True, False, True]
    assert all(0 <= one.value <= 1 for one in drawn if one)
    assert all(one.retain is one.interval is None for one in drawn if one)


def test_a_best_setting_whose_score_is_no_success_says_so(fabric: Fabric) -> None:
    stored = [fabric.reference("fine-tuned"), fabric.reference("retain"), fabric.run()]
    changed: list[Record] = []
    for record in stored:
        share = 0.3 if record.kind == "run" else 1.0
        epochs = tuple(
            replace(e, metrics={**e.metrics, "repetition_forget": share}) for e in record.epochs
        )
        changed.append(replace(record, epochs=epochs))
    assert "⚠ repetitive</a>" in best.BestSettings().render(report_of(changed))
    assert "⚠ repetitive" not in best.BestSettings().render(report_of(stored))


def test_copied_tables_have_neither_bars_nor_warnings(fabric: Fabric) -> None:
    found = context_of(*fabric.sweep(epochs=2))
    copied = "".join(best.texts(best.settings_table(found), found).values())
    assert "⚠" not in copied
    assert "score-bar" not in copied
    assert "score-bar" in build(found.report)
