"""The table, the rule behind «best», the CSV, and a sweep's folder read and written."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from unlearnbench.errors import RecordError
from unlearnbench.records import EpochResult, Record, write_record
from unlearnbench.report import (
    COLUMNS,
    METRICS,
    average_seeds,
    best_per_method,
    build_report,
    make_report,
    start_utility,
    table,
    to_csv,
    write_report,
)

Points = tuple[tuple[float | None, float | None], ...]


def record(
    name: str,
    points: Points = ((0.8, -5.0),),
    *,
    kind: Literal["run", "fine-tuned", "retain"] = "run",
    method: str = "npo",
    rate: float | None = 1e-5,
    seed: int = 0,
    told: Mapping[str, Any] | None = None,
    retain: Mapping[str, Any] | None = None,
    status: Literal["finished", "collapsed", "failed"] = "finished",
) -> Record:
    """A record with these (Model Utility, log10 Forget Quality) points, epoch by epoch."""
    first = 0 if kind != "run" else 1
    return Record(
        id=name,
        kind=kind,
        model="tiny",
        forget_fraction=0.1,
        method=method if kind == "run" else kind,
        learning_rate=rate if kind == "run" else None,
        seed=seed,
        spec={"method": {"name": method, "hyperparameters": dict(told or {}), "retain": retain}},
        status=status,
        profile="tofu@1",
        epochs=tuple(
            EpochResult(epoch, {"model_utility": u, "log10_forget_quality": q}, 1.0, 1.0)
            for epoch, (u, q) in enumerate(points, start=first)
        ),
        error="TrainingError: no" if status == "failed" else None,
    )


START = record("start", ((0.9, -16.0),), kind="fine-tuned")
GOAL = record("goal", ((0.88, 0.0),), kind="retain")


class TestTable:
    def test_rows_come_by_place_kind_method_rate_seed_epoch_whatever_the_order_given(self) -> None:
        records = [
            GOAL,
            record("d", method="npo", rate=1e-4),
            record("c", method="npo", rate=2e-5, seed=1),
            record("b", ((0.8, -5.0), (0.7, -4.0)), method="npo", rate=2e-5),
            record("a", method="ce-u", rate=1e-3),
            START,
        ]
        expected = [("start", 0), ("goal", 0), ("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1)]
        assert [(r.run_id, r.epoch) for r in table(records)] == expected
        shuffled = random.Random(0).sample(records, len(records))
        assert table(shuffled) == table(records)

    def test_a_label_names_only_the_hyper_parameters_that_differ(self) -> None:
        rows = table(
            [
                record("a", told={"beta": 0.1, "n": 1}),
                record("b", told={"beta": 0.5, "n": 1}),
                record("c", method="ce-u", told={"n": 1}),
            ]
        )
        assert [r.method for r in rows] == ["ce-u", "npo (beta=0.1)", "npo (beta=0.5)"]
        assert {r.family for r in rows} == {"ce-u", "npo"}

    def test_a_label_names_retain_weights_that_differ(self) -> None:
        rows = table(
            record(name, method="npo+kl", retain={"term": "kl", "weight": weight})
            for name, weight in (("a", 1.0), ("b", 2.0))
        )
        assert [r.method for r in rows] == ["npo+kl (retain_weight=1)", "npo+kl (retain_weight=2)"]

    def test_what_is_not_finite_or_missing_is_none(self) -> None:
        (row,) = table([record("a", ((math.nan, -math.inf),))])
        assert row.metrics == dict.fromkeys(METRICS)

    def test_numbers_of_different_profiles_do_not_come_into_one_table(self) -> None:
        with pytest.raises(RecordError, match=r"tofu@1 \(record start\), tofu@2 \(record a\)"):
            table([START, replace(record("a"), profile="tofu@2")])

    def test_a_run_that_failed_before_any_evaluation_has_no_profile_to_mix(self) -> None:
        failed = replace(record("a", (), status="failed"), profile="")
        assert [r.run_id for r in table([START, failed])] == ["start"]


class TestCsv:
    def test_every_number_reads_back_exactly_and_none_is_empty(self) -> None:
        rows = table([START, record("a", ((1 / 3, None),), told={"beta": 0.1, "x": math.inf})])
        lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
        assert tuple(lines[0]) == COLUMNS
        assert [line["method"] for line in lines] == ["fine-tuned", "npo"]
        assert float(lines[1]["model_utility"]) == 1 / 3
        assert lines[1]["learning_rate"] == "1e-05"
        assert lines[1]["log10_forget_quality"] == ""
        assert lines[0]["learning_rate"] == ""
        assert json.loads(lines[1]["hyperparameters"]) == {"beta": 0.1, "x": "inf"}

    def test_equal_runs_give_equal_bytes(self) -> None:
        records = [START, GOAL, record("a"), record("b", rate=1e-4)]
        assert to_csv(table(records)) == to_csv(table(reversed(records)))

    def test_the_columns_are_those_the_readme_and_the_issue_name(self) -> None:
        assert COLUMNS[:11] == (
            *("method", "model", "forget_fraction", "learning_rate", "seed", "epoch"),
            *("model_utility", "forget_quality", "log10_forget_quality", "ks_statistic", "ks_n"),
        )
        assert COLUMNS[11:15] == (
            *("rouge_retain", "rouge_real_authors", "rouge_world_facts", "rouge_forget"),
        )
        assert len(COLUMNS) == 6 + 5 + 12 + 4


class TestSeedsAndBest:
    def test_seeds_are_averaged_and_their_range_kept(self) -> None:
        rows = table([record(f"s{s}", ((u, -4.0),), seed=s) for s, u in enumerate((0.5, 0.7, 0.9))])
        (setting,) = average_seeds(rows)
        assert setting.metrics["model_utility"] == pytest.approx(0.7)
        assert setting.spread("model_utility") == (0.5, 0.9)
        assert len(setting.rows) == 3

    def test_a_seed_without_a_number_leaves_its_setting_without_one(self) -> None:
        rows = table([record("a", ((0.8, -1.0),)), record("b", ((None, None),), seed=1)])
        (setting,) = average_seeds(rows)
        assert setting.metrics["model_utility"] is None
        assert best_per_method([*table([START]), *rows])[0].setting is None

    def test_best_is_the_highest_quality_that_keeps_eighty_percent_of_utility(self) -> None:
        # 80 % of 0.9 is 0.72: epoch 3 has forgotten most but has lost too much.
        points: Points = ((0.85, -12.0), (0.73, -6.0), (0.71, -1.0))
        rows = table([START, GOAL, record("a", points), record("b", ((0.88, -9.0),), rate=1e-4)])
        (best,) = best_per_method(rows)
        assert best.setting is not None
        assert (best.setting.learning_rate, best.setting.epoch) == (1e-5, 2)

    def test_exactly_eighty_percent_is_enough_and_a_lower_share_lets_more_through(self) -> None:
        rows = table([record("s", ((1.0, -9.0),), kind="fine-tuned"), record("a", ((0.8, -5.0),))])
        assert best_per_method(rows)[0].setting is not None
        assert best_per_method(rows, utility_share=0.81)[0].setting is None

    def test_without_a_start_nothing_is_best(self) -> None:
        (best,) = best_per_method(table([record("a")]))
        assert best.setting is None
        assert best.method == "npo"

    def test_a_runs_own_epoch_0_stands_in_for_a_missing_anchor_and_is_never_best(self) -> None:
        run = record("a", ((0.9, -1.0), (0.85, -5.0)))
        run = replace(run, epochs=tuple(replace(e, epoch=e.epoch - 1) for e in run.epochs))
        rows = table([run])
        assert start_utility(rows, "tiny", 0.1) == 0.9
        (best,) = best_per_method(rows)
        assert best.setting is not None
        assert best.setting.epoch == 1

    def test_hyper_parameter_settings_of_a_method_compete(self) -> None:
        records = [START, *(record(f"b{b}", ((0.8, -b),), told={"beta": b}) for b in (2.0, 5.0))]
        (best,) = best_per_method(table(records))
        assert best.method == "npo (beta=2)"


class TestFolder:
    def sweep(self, folder: Path, *records: Record, planned: tuple[str, ...] = ("a", "b")) -> Path:
        for one in records:
            write_record(one, folder)
        plan = {
            "name": "quick",
            "config": {"name": "quick", "description": "two runs"},
            "runs": [{"id": name} for name in planned],
        }
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        return folder

    def test_an_unfinished_sweep_has_a_report(self, tmp_path: Path) -> None:
        report = build_report(self.sweep(tmp_path, START, record("a")))
        assert (report.name, report.description) == ("quick", "two runs")
        assert (report.finished, report.planned) == (1, 2)

    def test_runs_that_the_plan_does_not_name_are_left_out_and_counted(
        self, tmp_path: Path
    ) -> None:
        report = build_report(self.sweep(tmp_path, START, record("a"), record("old", rate=1.0)))
        assert {r.run_id for r in report.rows} == {"start", "a"}
        assert report.strangers == 1

    def test_failed_runs_are_listed_and_not_counted_as_finished(self, tmp_path: Path) -> None:
        failed = record("b", (), status="failed", rate=1e-4)
        report = build_report(self.sweep(tmp_path, START, record("a"), failed))
        assert [r.error for r in report.failures] == ["TrainingError: no"]
        assert report.finished == 1

    def test_a_folder_of_single_runs_needs_no_plan(self, tmp_path: Path) -> None:
        write_record(record("a"), tmp_path)
        report = build_report(tmp_path)
        assert (report.name, report.planned) == (tmp_path.name, None)

    def test_no_records_is_one_clear_line(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="no records to report"):
            build_report(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"name": "x", "runs": [1]}'])
    def test_a_damaged_plan_is_one_clear_line(self, tmp_path: Path, text: str) -> None:
        self.sweep(tmp_path, record("a"))
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")
        with pytest.raises(RecordError, match=r"plan\.json: damaged"):
            build_report(tmp_path)

    def test_page_and_table_lie_in_the_folder(self, tmp_path: Path) -> None:
        folder = self.sweep(tmp_path, START, record("a"))
        page = write_report(folder)
        assert page == folder / "report.html"
        assert "quick" in page.read_text(encoding="utf-8")
        written = (folder / "results.csv").read_text(encoding="utf-8")
        assert written == to_csv(build_report(folder).rows)
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            ["records", "plan.json", "report.html", "results.csv"]
        )

    def test_elsewhere_the_table_takes_the_pages_name(self, tmp_path: Path) -> None:
        folder = self.sweep(tmp_path / "sweep", START, record("a"))
        page = write_report(folder, tmp_path / "out" / "mine.html")
        assert page.is_file()
        assert page.with_suffix(".csv").is_file()
        assert not (folder / "results.csv").exists()

    def test_records_given_directly(self) -> None:
        report = make_report([START, record("a")], name="x")
        assert (report.finished, report.planned, report.strangers) == (1, None, 0)
