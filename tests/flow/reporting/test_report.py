"""The table, the CSV, and reports of a sweep's folder."""

import csv
import io
import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.report.report import finish
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.table import FIRST, LAST, to_csv

from ...numbers.analysis.conftest import pointed

METRICS = [
    *("model_utility", "forget_quality", "log10_forget_quality", "ks_statistic", "ks_n"),
    *("rouge_retain", "rouge_real_authors", "rouge_world_facts", "rouge_forget"),
    *("probability_retain", "probability_real_authors", "probability_world_facts"),
    *("probability_forget", "truth_ratio_retain", "truth_ratio_real_authors"),
    *("truth_ratio_world_facts", "truth_ratio_forget"),
]
"TOFU's columns, in the order in which `results.csv` has always had them."

START = pointed("start", ((0.9, -16.0),), "fine-tuned")
GOAL = pointed("goal", ((0.88, 0.0),), "retain")


class TestTable:
    def test_rows_are_sorted_in_any_input_order(self) -> None:
        records = [
            GOAL,
            pointed("d", method="npo", rate=1e-4),
            pointed("c", method="npo", rate=2e-5, seed=1),
            pointed("b", ((0.8, -5.0), (0.7, -4.0)), method="npo", rate=2e-5),
            pointed("a", method="ce-u", rate=1e-3),
            START,
        ]
        expected = [("start", 0), ("goal", 0), ("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1)]
        assert [(r.run_id, r.epoch) for r in table_of(records).rows] == expected
        shuffled = random.Random(0).sample(records, len(records))
        assert table_of(shuffled).rows == table_of(records).rows

    def test_a_label_names_only_the_hyper_parameters_that_differ(self) -> None:
        rows = table_of(
            [
                pointed("a", beta=0.1, n=1),
                pointed("b", beta=0.5, n=1),
                pointed("c", method="ce-u", n=1),
            ]
        ).rows
        assert [r.method for r in rows] == ["ce-u", "npo (beta=0.1)", "npo (beta=0.5)"]
        assert {r.family for r in rows} == {"ce-u", "npo"}

    def test_what_is_not_finite_or_missing_is_none(self) -> None:
        (row,) = table_of([pointed("a", ((math.nan, -math.inf),))]).rows
        assert row.metrics == dict.fromkeys(METRICS) | {"ks_n": 80.0}

    def test_numbers_of_different_profiles_do_not_come_into_one_table(self) -> None:
        with pytest.raises(RecordError, match=r"\(record a\).*\(record start\)"):
            table_of([START, replace(pointed("a"), profile="tofu@2")])


class TestCsv:
    def test_every_number_reads_back_exactly_and_none_is_empty(self) -> None:
        rows = table_of([START, pointed("a", ((1 / 3, None),), beta=0.1, x=math.inf)]).rows
        lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
        assert list(lines[0]) == [*FIRST, *METRICS, *LAST]
        assert [line["method"] for line in lines] == ["fine-tuned", "npo"]
        assert float(lines[1]["model_utility"]) == 1 / 3
        assert lines[1]["learning_rate"] == "1e-05"
        assert lines[1]["log10_forget_quality"] == ""
        assert lines[0]["learning_rate"] == ""
        assert json.loads(lines[1]["hyperparameters"]) == {"beta": 0.1, "x": "inf"}

    def test_new_columns_follow_those_of_tofu_and_empty_ones_are_left_out(self) -> None:
        new = {"of_no_metric": 0.5, "exact_memorization_forget": 0.25, "probability_holdout": None}
        (one,) = (replace(e, metrics={**new, **e.metrics}) for e in pointed("a").epochs)
        rows = table_of([START, replace(pointed("a"), epochs=(one,))]).rows
        text = to_csv(rows)
        header = [*FIRST, *METRICS, "exact_memorization_forget", "of_no_metric", *LAST]
        assert text.partition("\n")[0].split(",") == header
        assert [row.metrics["of_no_metric"] for row in rows] == [None, 0.5]
        assert to_csv(rows[:1]) == to_csv(table_of([START]).rows), "what is empty here, too"


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

    def test_runs_that_the_plan_does_not_name_are_left_out_and_counted(
        self, tmp_path: Path
    ) -> None:
        report = Results.read(self.sweep(tmp_path, START, pointed("a"), pointed("old", rate=1.0)))
        assert {r.run_id for r in report.rows} == {"start", "a"}
        assert report.unplanned == 1

    def test_a_folder_of_single_runs_needs_no_plan(self, tmp_path: Path) -> None:
        write_record(pointed("a"), tmp_path)
        report = Results.read(tmp_path)
        assert (report.name, report.planned) == (tmp_path.name, None)

    def test_page_and_table_lie_in_the_folder(self, tmp_path: Path) -> None:
        folder = self.sweep(tmp_path, START, pointed("a"))
        page = finish(folder).page
        assert page == folder / "report.html"
        assert "quick" in page.read_text(encoding="utf-8")
        written = (folder / "results.csv").read_text(encoding="utf-8")
        assert written == to_csv(Results.read(folder).rows)
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            [
                "conclusion.json",
                "plan.json",
                "records",
                "report.html",
                "results.csv",
                "table.json",
                "tradeoff.html",
                "tradeoff.svg",
            ]
        )


class TestAttacks:
    UNDER = replace(
        START,
        id="under",
        epochs=(),
        attacked=(EpochResult(0, {"rouge_forget": 0.75}, 0.0, 1.0, variant="relearning@13"),),
    )

    def test_the_table_of_attacks_has_the_variant_after_the_epoch(self, tmp_path: Path) -> None:
        for one in (START, GOAL, pointed("run"), self.UNDER):
            write_record(one, tmp_path)
        finish(tmp_path)
        text = (tmp_path / "attacks.csv").read_text()
        (line,) = csv.DictReader(io.StringIO(text))
        assert list(line)[: len(FIRST) + 1] == [*FIRST, "variant"]
        assert (line["kind"], line["variant"], line["rouge_forget"]) == (
            *("fine-tuned", "relearning@13", "0.75"),
        )
        plain = (tmp_path / "results.csv").read_text()
        finish(tmp_path, tmp_path / "page.html")
        assert (tmp_path / "page.attacks.csv").read_text() == text
        assert plain == to_csv(table_of([START, GOAL, pointed("run")]).rows), "as without attacks"
        shutil.rmtree(tmp_path / "records" / self.UNDER.place)
        finish(tmp_path)
        assert not (tmp_path / "attacks.csv").exists(), "it is of what is gone"
