"""The tables of best settings, the origin of the numbers, and the configuration of a run."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.intervals import bootstrap
from unlearnbench.records import Record
from unlearnbench.report import Report, make_report

if TYPE_CHECKING:
    from .conftest import Fabric

best: Any = importlib.import_module("unlearnbench_dashboards.best")
details: Any = importlib.import_module("unlearnbench_dashboards.details")
origin: Any = importlib.import_module("unlearnbench_dashboards.origin")
text: Any = importlib.import_module("unlearnbench_dashboards.text")


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


def report_of(fabric: Fabric, selection: Any = None) -> Report:
    runs = [
        fabric.run(points=((u, q), (0.9, -1.0)), seed=s)
        for s, (u, q) in enumerate([(0.8, -3.0), (0.7, -4.0), (0.75, -6.0), (0.8, -8.0)])
    ]
    report = make_report([fabric.anchor("fine-tuned"), *runs], name="x")
    return replace(report, selection=None if selection is None else selection(runs[1:]))


def test_the_declared_rule_comes_first_with_numbers_of_the_reported_seeds(fabric: Fabric) -> None:
    declared, default = best.tables(report_of(fabric, selected))
    (line,) = declared.lines
    assert (declared.rule, declared.seeds, declared.chosen_apart) == (
        "the highest of all",
        (1, 2, 3),
        True,
    )
    assert line.setting.metrics["log10_forget_quality"] == pytest.approx(-6.0)
    assert [row.seed for row in line.setting.rows] == [1, 2, 3]
    assert line.chosen_by == (-2.5, 0.81)
    assert line.tried == 7
    assert not default.chosen_apart
    assert default.lines[0].setting.epoch == 2


def test_a_choice_that_was_none_says_why(fabric: Fabric) -> None:
    def none(_: list[Record]) -> dict[str, Any]:
        return selected([], why_not="nothing keeps its utility", epoch=None)

    declared, _ = best.tables(report_of(fabric, none))
    assert declared.lines[0].setting is None
    assert declared.lines[0].why_not == "nothing keeps its utility"

    def unfinished(_: list[Record]) -> dict[str, Any]:
        return selected([])

    declared, _ = best.tables(report_of(fabric, unfinished))
    assert declared.lines[0].why_not == "chosen; no run on the other seeds has ended yet"


def test_what_is_copied_has_interval_and_spread(fabric: Fabric) -> None:
    declared, _ = best.tables(report_of(fabric, selected))
    (line,) = best.exported(declared)["lines"]
    interval = bootstrap([-4.0, -6.0, -8.0])
    assert interval is not None
    assert line["quality"] == {
        "mean": pytest.approx(-6.0),
        "low": interval.low,
        "high": interval.high,
        "spread": pytest.approx(2.0),
    }
    assert line["seeds"] == [1, 2, 3]


def test_lines_are_by_panel_then_by_quality(fabric: Fabric) -> None:
    (table,) = best.tables(make_report(fabric.sweep(epochs=3), name="x"))
    places = [(line.forget_fraction, line.method) for line in table.lines]
    assert [f for f, _ in places] == sorted(f for f, _ in places)
    here = [q for line in table.lines[:9] if (q := best._quality(line)) > float("-inf")]
    assert here == sorted(here, reverse=True)
    assert table.fewest_seeds == 1


def test_origin_is_in_groups_with_units(fabric: Fabric) -> None:
    runs = [fabric.run(seed=s) for s in range(5)]
    runs = [
        replace(
            r,
            provenance={
                "git": {"commit": "abc", "dirty": r.seed == 0, "of": "package"},
                "versions": {"torch": "2.0"},
                "data": "d1",
                "host": f"n{r.seed}",
                "peak_memory_mib": 100 + r.seed,
                "peak_memory_of": "resident",
                "started": f"2026-01-0{r.seed + 1}T00:00:00.000+00:00",
                "interruptions": [{}] if r.seed == 1 else [],
                "novelty": {"inner": 3},
            },
        )
        for r in runs
    ]
    found = {title: dict(pairs) for title, pairs in origin.origin(make_report(runs, name="x"))}
    assert found["Code"]["commit"] == (
        "abc (no uncommitted changes, of the package), "
        "abc (with uncommitted changes, of the package)"
    )
    assert found["Code"]["torch"] == "2.0"
    assert found["Data and models"] == {"data, hash": "d1"}
    assert found["Machine"]["host"] == "n0 … n4 (5 values)"
    spent = found["Time and memory"]
    assert spent["training, all runs"] == "40 s"
    assert spent["first started"] == "2026-01-01 00:00:00 UTC"
    assert spent["peak memory of a run"] == "100 to 104 MiB (resident)"
    assert spent["interruptions"] == "1, each gone on from a checkpoint"
    assert found["Also recorded"] == {"novelty · inner": "3"}
    assert found["This sweep"]["seeds"] == "0 … 4 (5 values)"


def test_equal_parts_of_configurations_are_held_once(fabric: Fabric) -> None:
    runs = [fabric.run(seed=0, hyperparameters={"beta": 0.1}, rate=r) for r in (1e-4, 1e-3)]
    found = details.collect(runs)
    titles = [[found["parts"][i][0] for i in found["runs"][r.id]] for r in runs]
    assert titles == [["Method", "Evaluation", "Data", "Run"]] * 2
    assert len(found["parts"]) == 5  # all but the first are shared
    assert ("beta", "0.1") in found["parts"][0][1]


@pytest.mark.parametrize(
    ("seconds", "said"), [(4.04, "4.0 s"), (40, "40 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations_have_the_unit_a_person_would_use(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said
