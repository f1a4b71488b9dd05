"""A sweep that chooses on seed 0: every view has the choice, on the seeds that report it."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from unlearnbench.analysis import order_confidence
from unlearnbench.analysis.best_text import best_lines
from unlearnbench.analysis.compare import NoMatch, compare
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.named_contender import find_contender
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.main import main
from unlearnbench.report.best_table import best_table
from unlearnbench.report.exported_model import choose
from unlearnbench.report.leaderboard import Board, boards, exported, merge
from unlearnbench.report.report import finish
from unlearnbench.report.tracked_runs import (
    RowsByRun,
    SweepFacts,
    chosen_epochs,
    tracked_run,
)
from unlearnbench.results.records import Record
from unlearnbench.stats.t_interval import t_interval

from ...made_up_numbers import write_with_made_up_numbers
from ...numbers.analysis.conftest import REFERENCES, TINY, attacked_by, off
from ...numbers.analysis.conftest import run as record_of_run


def run(method: str, epochs: Sequence[Any], seed: int, learning_rate: float = 1e-5) -> Record:
    """A run whose id can be the name of a folder."""
    name = f"{method}-{1e6 * learning_rate:.0f}-{seed}"
    return record_of_run(method, epochs, seed=seed, learning_rate=learning_rate, id=name)


CHOSEN = [run("near", [(0.84, off(1.5, s)), (0.84, off(0.1, s))], seed=s) for s in (1, 2, 3)]
"""The chosen setting on the seeds that report it, where the second epoch would be much better."""
TRIALS = [
    run("near", [(0.85, off(1.2)), (0.5, off(0.1))], seed=0),
    run("near", [(0.85, off(2.0)), (0.85, off(2.0))], seed=0, learning_rate=1e-4),
    run("far", [(0.88, off(2.5)), (0.6, off(1.0))], seed=0),
]
OTHERS = [run("far", [(0.88, off(2.4, s)), (0.87, off(2.0, s))], seed=s) for s in (1, 2, 3)]
RUNS = [*TRIALS, *CHOSEN, *OTHERS]


def a_folder(
    folder: Path,
    records: Iterable[Record] = RUNS,
    planned: Sequence[Record] | None = None,
    entries: Mapping[str, str] | None = None,
    references: Sequence[Record] = (),
) -> Path:
    """A sweep's folder that chooses on seed 0.

    Args:
        folder: Where it is written.
        records: Runs with a record.
        planned: Runs of the plan. Defaults to those with a record.
        entries: Entry of a trial by run id. By default the sweep is a grid.
        references: Further records of start and retain models.
    """
    records = [with_spec(record) for record in records]
    planned = records if planned is None else [with_spec(record) for record in planned]
    write_with_made_up_numbers([*REFERENCES, *references, *records], folder)
    runs: list[dict[str, Any]] = []
    for record in planned:
        names = [] if entries is None or record.id not in entries else [entries[record.id]]
        trial: dict[str, Any] = {"entries": {name: {} for name in names}} if names else {}
        runs.append({"id": record.id, "title": "", "trial": trial, "spec": record.spec})
    trials = None if entries is None else 2
    select = {"rule": "forget-quality", "utility": 0.8, "reference": None, "seeds": [0]}
    config = {"select": select, "seeds": [0, 1, 2, 3], "search": {"trials": trials}}
    plan = {
        "name": folder.name,
        "config": config,
        "references": [record.id for record in (*REFERENCES, *references)],
        "runs": runs,
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return folder


def with_spec(record: Record) -> Record:
    """A run whose specification tells it apart from others."""
    spec = {
        "method": {"name": record.method},
        "learning_rate": record.learning_rate,
        "epochs": 2,
        "evaluate_at": [1, 2],
        "seed": record.seed,
    }
    return replace(record, spec=spec)


def quality(records: Iterable[Record], epoch: int) -> float:
    """Mean of log10 Forget Quality at an epoch."""
    values = [record.epochs[epoch - 1].metrics["log10_forget_quality"] for record in records]
    return fmean(value for value in values if value is not None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_folder(tmp_path / "small")


def test_panel_and_conclusion(folder: Path) -> None:
    results = Results.read(folder)
    (panel,) = results.panels
    assert [best.name for best in panel.best] == ["near", "far"]
    for best, runs in zip(panel.best, (CHOSEN, OTHERS), strict=True):
        assert best.setting is not None
        assert best.setting.epoch == 1
        assert [row.seed for row in best.setting.rows] == [1, 2, 3]
        assert best.setting.forgotten == pytest.approx(quality(runs, 1))
    (conclusion,) = results.conclusions
    assert (
        "near at learning rate 1e-05, epoch 1, chosen on seed 0, comes closest: "
        in conclusion.found
    )
    assert "Based on 3 seeds." in conclusion.sure
    (order,) = results.claims.panels
    assert [method.seeds for method in order.methods] == [3, 3]
    assert order.methods[0].forgotten == pytest.approx(quality(CHOSEN, 1))
    assert order.rivals is not None
    assert order.rivals.leader == "near"
    heading, _, near, *_ = best_lines(panel, 3)
    assert heading == "choices of tiny, forget 10 %, made on seed 0, on the other seeds"
    assert near.split()[:3] == ["near", "1e-05", "1"]


def test_tables_for_papers(folder: Path) -> None:
    near, _ = csv.DictReader(io.StringIO(best_table(Results.read(folder), "csv")))
    assert (near["method"], near["epoch"], near["seeds"]) == ("near", "1", "1 2 3")
    assert float(near["log10_forget_quality"]) == pytest.approx(quality(CHOSEN, 1))
    assert "on means over seeds 0; numbers are means over seeds 1, 2, 3" in best_table(
        Results.read(folder)
    )


def test_page(folder: Path) -> None:
    module: Any = importlib.import_module("unlearnbench_dashboards.report_section")
    context = module.PageContext.of(Results.read(folder))
    best: Any = importlib.import_module("unlearnbench_dashboards.sections.best_settings")
    scorecard: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard")
    plot: Any = importlib.import_module("unlearnbench_dashboards.figures.tradeoff_plot")
    table = best.settings_table(context)
    expected = [("near", 1, [1, 2, 3]), ("far", 1, [1, 2, 3])]

    def places(lines: Any) -> list[Any]:
        return [
            (line.method, line.setting.epoch, [row.seed for row in line.setting.rows])
            for line in lines
        ]

    assert places(table.lines) == expected
    (panel,) = scorecard.score_panels(context)
    assert places(line.setting for line in panel.lines) == expected
    rings = [
        trace
        for trace in plot.draw(context.panels[0], context.style)["data"]
        if trace["meta"]["role"] == "best"
    ]
    drawn = [(trace["y"][0], trace["customdata"][0][0]) for trace in rings]
    assert drawn == [(pytest.approx(quality(runs, 1)), 1) for runs in (CHOSEN, OTHERS)]


def test_an_export_does_not_ask_for_a_failed_run_of_another_split(tmp_path: Path) -> None:
    failed = replace(CHOSEN[0], id="failed", forget_fraction=0.05, status="failed", error="full")
    folder = a_folder(tmp_path / "failed", [*RUNS, failed])
    assert choose(folder, "near").record.id == CHOSEN[0].id


def test_the_card_of_a_chosen_point_is_of_the_reporting_seeds(folder: Path) -> None:
    """Of several settings that a row belongs to, a card shows the last one."""
    module: Any = importlib.import_module("unlearnbench_dashboards.report_section")
    page: Any = importlib.import_module("unlearnbench_dashboards.page")
    results = Results.read(folder)
    data = page._data(module.PageContext.of(results))
    column = data["means"].index("log10_forget_quality")
    shown: dict[tuple[str, int], tuple[list[int], float]] = {}
    for places, means in data["settings"]:
        rows = [results.rows[place] for place in places]
        for row in rows:
            shown[row.run_id, row.epoch] = ([one.seed for one in rows], means[column])
    seeds, mean = shown[CHOSEN[0].id, 1]
    assert seeds == [1, 2, 3]
    assert mean == pytest.approx(quality(CHOSEN, 1), rel=1e-5)
    seeds, _ = shown[TRIALS[0].id, 1]
    assert seeds == [0, 1, 2, 3]


def test_leaderboard_alone_and_merged(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sweep of one method has no rule, and is judged by the page's."""
    board = merge(("a", line) for line in exported(folder).text.splitlines())
    (shown,) = boards(board.records).values()
    page, line = (best_table(one, "csv") for one in (Results.read(folder), shown))
    assert line == page
    plain = tmp_path / "plain"
    free = [run("far", [(0.8, off(0.4, s))], seed=s, learning_rate=3e-4) for s in (0, 1)]
    write_with_made_up_numbers([*REFERENCES, *map(with_spec, free)], plain)
    several = [*exported(folder).text.splitlines(), *exported(plain).text.splitlines()]
    merged: Board = merge(("b", line) for line in reversed(several))
    (shown,) = boards(merged.records).values()
    (panel,) = shown.panels
    found = {best.name: best for best in panel.best}
    assert found.keys() == {"near", "far", "far (small)"}
    assert found["far"].choice is None
    by_rule, chosen = found["far"].setting, found["far (small)"].setting
    assert by_rule is not None
    assert chosen is not None
    assert by_rule.learning_rate == 3e-4
    assert [row.seed for row in by_rule.rows] == [0, 1]
    assert chosen.forgotten == pytest.approx(quality(OTHERS, 1))

    def hypervolume_of_far(results: Results) -> float | None:
        (order,) = results.claims.panels
        return next(method.hypervolume for method in order.methods if method.method == "far")

    alone: Board = merge(("b", line) for line in exported(plain).text.splitlines())
    (expected,) = boards(alone.records).values()
    assert hypervolume_of_far(shown) == hypervolume_of_far(expected)
    runs_of_method: dict[str, set[str]] = {}

    def noted(a: Contender, b: Contender, *_: Any) -> NoMatch:
        for side in (a, b):
            runs_of_method[side.name] = {row.run_id for row in side.rows}
        return NoMatch("not compared")

    monkeypatch.setattr(order_confidence, "match", noted)
    order_confidence.rivals(panel, shown.records)
    assert runs_of_method["far"] == {record.id for record in free}, "none of the other sweep"


def test_export(folder: Path) -> None:
    choice = choose(folder, "near")
    assert (choice.row.seed, choice.row.epoch, choice.row.learning_rate) == (1, 1, 1e-5)
    assert [row.seed for row in choice.setting.rows] == [1, 2, 3]
    named = choose(folder, CHOSEN[1].id)
    assert (named.row.seed, named.row.epoch) == (2, 1)
    trial = choose(folder, TRIALS[1].id)
    assert (trial.row.learning_rate, trial.row.seed) == (1e-4, 0), "a trial is itself"
    last = choose(folder, "near", "last")
    assert (last.row.epoch, last.row.seed, last.row.learning_rate) == (2, 1, 1e-5)


def test_sentences_speak_of_the_choice_and_of_its_seeds(tmp_path: Path) -> None:
    results = Results.read(a_folder(tmp_path / "one", [*TRIALS, CHOSEN[0], OTHERS[0]]))
    (conclusion,) = results.conclusions
    assert "Based on one seed: use at least 3 to rank methods." in conclusion.sure, (
        "two seeds were run"
    )
    near, far = (find_contender(name, name, results) for name in ("near", "far"))
    (panel,) = compare(near, far).panels
    assert panel.why_not == (
        "near's chosen setting forgets more and has less utility than far's best (0.840 and 0.880, "
        "more than 0.02 apart)"
    ), "other settings of near may keep more, and take no part"
    assert panel.advice == "Try a larger --within"
    assert "--within" not in " ".join(conclusion.sentences), "the page has no such option"


def test_compare(folder: Path) -> None:
    results = Results.read(folder)
    near, far = (find_contender(name, name, results) for name in ("near", "far"))
    (panel,) = compare(near, far, tolerance=0.1).panels
    assert panel.a is not None
    assert panel.b is not None
    assert (panel.a.epoch, panel.a.seeds, panel.a.chosen_on, panel.a.tried) == (
        1,
        (1, 2, 3),
        (0,),
        2,
    )
    assert (panel.b.epoch, panel.b.seeds, panel.b.tried) == (1, (1, 2, 3), 1)


def test_compare_under_an_attack_takes_no_other_setting(tmp_path: Path) -> None:
    """Attacks were run after the last epoch, and the first one was chosen."""
    attacked = attacked_by([*REFERENCES, *RUNS], 1.0, "relearning@13")
    runs = [record for record in attacked if record.kind == "run"]
    folder = a_folder(tmp_path / "under", runs)
    results = Results.read(folder)
    near, far = (
        find_contender(name, f"{name} under", results, "relearning@13") for name in ("near", "far")
    )
    (panel,) = compare(near, far).panels
    assert panel.a is None
    assert panel.why_not == (
        "near under's chosen setting, near at learning rate 1e-05, epoch 1, was not evaluated "
        "under relearning@13 on seeds 1, 2, 3. No other setting takes its place"
    )


def test_compare_under_an_attack_needs_all_seeds(tmp_path: Path) -> None:
    """A choice at the attacked epoch, of which one seed was not attacked."""
    last = {"near": 0.85, "far": 0.86}
    trials = [run(name, [(kept, off(1.2))], seed=0) for name, kept in last.items()]
    others = [
        run(name, [(kept, off(1.5, s))], seed=s) for name, kept in last.items() for s in (1, 2, 3)
    ]
    attacked = attacked_by([*REFERENCES, *trials, *others], 1.0, "relearning@13")
    under = {record.id: record for record in attacked if record.kind != "fine-tuned"}
    whole = [under[record.id] for record in (*trials, *others)]
    partly = [record if record.id == others[1].id else under[record.id] for record in others]

    def compared(runs: Sequence[Record], name: str) -> Any:
        retain = [record for record in attacked if record.kind == "retain" and not record.epochs]
        results = Results.read(a_folder(tmp_path / name, runs, references=retain))
        near, far = (find_contender(one, one, results, "relearning@13") for one in last)
        (panel,) = compare(near, far).panels
        return panel

    panel = compared(whole, "whole")
    assert panel.a.seeds == (1, 2, 3)
    panel = compared([under[trials[0].id], under[trials[1].id], *partly], "partly")
    assert panel.a is None
    assert "was not evaluated under relearning@13 on seeds 2." in panel.why_not


def test_mlflow_marks_the_chosen_epoch_of_reporting_runs(folder: Path) -> None:
    results = Results.read(folder)
    rows = RowsByRun(results.table, chosen_epochs(results))
    sweep = SweepFacts("small", folder, "tofu")
    for record in results.records:
        points = tracked_run(record, rows.of(record), sweep).points
        best = {point.name: (point.value, point.step) for point in points if "best/" in point.name}
        if record.id not in {run.id for run in (*CHOSEN, *OTHERS)}:
            assert best == {}
            continue
        metrics = record.epochs[0].metrics
        assert best["best/epoch"] == (1.0, 0)
        assert best["best/log10_forget_quality"] == (metrics["log10_forget_quality"], 0)


def test_a_choice_without_runs_has_no_number_anywhere(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "small", TRIALS)
    reason = "chosen; it has not been run on seeds 1, 2, 3 yet"
    results = Results.read(folder)
    assert [best.why_not for panel in results.panels for best in panel.best] == [reason] * 2
    (conclusion,) = results.conclusions
    assert conclusion.found == f"No method has a place: {reason} (far, near)."
    scorecard: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard")
    assert f"% near: {reason}." in scorecard.scorecard_latex(results)
    assert not conclusion.has_best
    text = best_table(results)
    assert f"near: {reason}." in text
    assert "| near |  |" in text
    with pytest.raises(RecordError, match=f"'near': {reason}; name a run by its id"):
        choose(folder, "near")
    near, far = (find_contender(name, name, results) for name in ("near", "far"))
    (panel,) = compare(near, far).panels
    assert panel.why_not == f"near has no numbers to compare: near: {reason}"
    finish(folder)
    assert reason in (folder / "report.html").read_text(encoding="utf-8")


def test_nothing_is_chosen_while_trials_run(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "small", TRIALS[:2], planned=TRIALS)
    results = Results.read(folder)
    assert results.selection is None
    (best,) = (best for panel in results.panels for best in panel.best)
    assert best.why_not == "nothing is chosen yet: 1 trial has not ended"
    assert results.claims.summary.endswith("this model and split only. Last without a place: near.")
    (folder / "selection.json").write_text("{}", encoding="utf-8")
    finish(folder)
    assert not (folder / "selection.json").exists(), "of an earlier plan"


def test_a_choice_that_has_moved_says_so(tmp_path: Path) -> None:
    """The other rate was run on the other seeds, and is no longer the choice."""
    other = [run("near", [(0.85, off(2.0, s))] * 2, seed=s, learning_rate=1e-4) for s in (1, 2, 3)]
    folder = a_folder(tmp_path / "small", [*TRIALS, *other, *OTHERS])
    results = Results.read(folder)
    near = next(best for panel in results.panels for best in panel.best if best.name == "near")
    assert near.setting is None
    (warning,) = (line for line in results.warnings if "has moved" in line)
    assert warning == (
        "tiny, forget 10 %: the choice for near has moved to near, epoch 1, because numbers on "
        "seeds 0 have changed. It was not run on the other seeds: start the sweep again, which "
        "runs it"
    )


def test_entries_of_one_method_stand_apart(tmp_path: Path) -> None:
    entries = {TRIALS[0].id: "near (slow)", TRIALS[1].id: "near (fast)", TRIALS[2].id: "far"}
    fast = [run("near", [(0.85, off(2.0, s))] * 2, seed=s, learning_rate=1e-4) for s in (1, 2)]
    folder = a_folder(tmp_path / "small", [*RUNS, *fast], entries=entries)
    results = Results.read(folder)
    (panel,) = results.panels
    assert [(best.name, best.family) for best in panel.best] == [
        ("near (slow)", "near"),
        ("near (fast)", "near"),
        ("far", "far"),
    ]
    (order,) = results.claims.panels
    assert [method.method for method in order.methods] == ["near (slow)", "near (fast)", "far"]
    assert [method.seeds for method in order.methods] == [3, 2, 3]
    slow, fast_side = (
        find_contender(name, name, results) for name in ("near (slow)", "near (fast)")
    )
    assert slow.settings(TINY)[0].learning_rate == 1e-5
    assert fast_side.settings(TINY)[0].learning_rate == 1e-4
    whole = find_contender("near", "near", results)
    assert whole.settings(TINY)[0].learning_rate == 1e-5, "the better one on seed 0"
    assert whole.pool(whole.settings(TINY)[0]).tried == 2
    board = merge(("a", line) for line in exported(folder).text.splitlines())
    (shown,) = boards(board.records).values()
    assert best_table(shown, "csv") == best_table(results, "csv")


def test_the_interval_is_over_the_reporting_seeds(folder: Path) -> None:
    near, _ = csv.DictReader(io.StringIO(best_table(Results.read(folder), "csv")))
    values = [record.epochs[0].metrics["log10_forget_quality"] or 0.0 for record in CHOSEN]
    interval = t_interval(values)
    assert interval is not None
    assert float(near["log10_forget_quality_low"]) == pytest.approx(interval.low)


def test_a_seed_that_collapsed_leaves_the_choice_without_a_number(tmp_path: Path) -> None:
    lost = replace(CHOSEN[1], status="collapsed", epochs=(), evaluations={}, error="NaN loss")
    folder = a_folder(tmp_path / "small", [*TRIALS, CHOSEN[0], lost, CHOSEN[2], *OTHERS])
    results = Results.read(folder)
    (panel,) = results.panels
    far, near = panel.best
    assert (far.name, near.name) == ("far", "near")
    assert near.setting is not None
    assert near.setting.forgotten is None
    assert near.why_not == "seed 2 collapsed at epoch 1"
    assert near.ranked is None
    assert "near: seed 2 collapsed at epoch 1." in best_table(results)
    assert "  near: seed 2 collapsed at epoch 1" in best_lines(panel, 3)
    (conclusion,) = results.conclusions
    assert "near has no place: seed 2 collapsed at epoch 1." in conclusion.sure
    selection = results.selection
    assert selection is not None
    reported = {choice["method"]: choice["reported"] for choice in selection["choices"]}
    assert reported["near"]["log10_forget_quality"]["mean"] is None
    finish(folder)
    assert "seed 2 collapsed at epoch 1" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_writes_the_selection(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    stored = json.loads((folder / "selection.json").read_text(encoding="utf-8"))
    assert stored == Results.read(folder).selection
    assert main(["compare", "near", "far", "--within", "0.1", "--in", str(folder)]) == 0
    assert "chosen from 2 settings on seed 0" in capsys.readouterr().out


@pytest.mark.parametrize("epoch", ["best", "1", "last"])
def test_an_exported_model_hides_no_seed_of_its_choice(tmp_path: Path, epoch: str) -> None:
    """Its card shows the mean over seeds beside its own numbers."""
    lost = replace(CHOSEN[1], status="collapsed", epochs=(), evaluations={}, error="NaN loss")
    folder = a_folder(tmp_path / "small", [*TRIALS, CHOSEN[0], lost, CHOSEN[2], *OTHERS])
    choice = choose(folder, "near", epoch)
    assert [row.seed for row in choice.setting.rows] == [1, 3]
    assert choice.setting.why_not == "seed 2 collapsed at epoch 1"
    assert choice.setting.interval("log10_forget_quality") is None
