"""LUME's rows and its official aggregate."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import shared_data
from tests.made_up_benchmarks import lume
from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.lume import LUME
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics.answer_match import AnswerMatch
from unlearnbench.metrics.task_aggregate import TaskAggregate
from unlearnbench.models.rows_loading import load_benchmark


def test_rows_by_task_and_kind(tmp_path: Path) -> None:
    lume(tmp_path)
    split = load_benchmark(LUME(path=str(tmp_path)), ["all"]).splits["all"]
    assert {name: len(rows) for name, rows in split.sets.items()} == {
        f"{part}_task{i}_{kind}": count
        for part in ("retain", "forget")
        for i in (1, 2, 3)
        for kind, count in (("sc", 2), ("qa", 4))
    }
    row = split.sets["forget_task2_qa"][0]
    assert (row.question, row.answer, row.format) == ("forget Task2 qa0 0.", " Ada.", "text")
    assert (row.max_new_tokens, row.max_length) == (256, 2048)
    few = load_benchmark(LUME(path=str(tmp_path), per_task=1), ["all"])
    assert [len(few.splits["all"].forget), len(few.full)] == [6, 12]


def test_a_wrong_task_is_refused(tmp_path: Path) -> None:
    lume(tmp_path)
    file = tmp_path / "retain.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("Task3", "Task4"), encoding="utf-8")
    with pytest.raises(DataError, match=r"retain\.jsonl:13: column 'task'"):
        load_benchmark(LUME(path=str(tmp_path)), ["all"])


def test_the_published_rows() -> None:
    rows = load_benchmark(LUME(path=str(shared_data("benchmarks/lume"))), ["all"])
    assert (len(rows.splits["all"].forget), len(rows.splits["all"].retain)) == (2732, 2734)
    assert len(rows.splits["all"].sets["forget_task2_qa"]) == 1250


def aggregate(kept: list[float], gone: list[float]) -> float | None:
    names = [f"kept{i}" for i in range(len(kept))], [f"gone{i}" for i in range(len(gone))]
    values = dict(zip([*names[0], *names[1]], [*kept, *gone], strict=True))
    summary = TaskAggregate(kept=tuple(names[0]), gone=tuple(names[1]))
    model = EvaluatedModel({"forget": made_up_set()}, values)
    return summary.compute(MetricInputs(model))["task_aggregate"]


def test_the_aggregate_is_a_harmonic_mean_of_what_is_kept_and_gone() -> None:
    assert aggregate([0.5, 1.0], [0.5, 0.0]) == pytest.approx(4 / (2 + 1 + 2 + 1), abs=1e-15)
    assert aggregate([0.0, 1.0], [0.5, 0.0]) == 0
    assert aggregate([1.0], [1.0]) == 0


def test_the_aggregates_of_published_logs() -> None:
    logs: dict[str, dict[str, float]] = {}
    with (shared_data("anchors") / "semeval25.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["source"] == "semeval25-log":
                logs.setdefault(row["reference"], {})[row["metric"]] = float(row["value"])
    assert len(logs) == 6
    for log in logs.values():
        parts = [
            [log[f"{half}-set/Task{i}/{kind}-score"] for i in (1, 2, 3) for kind in kinds]
            for half, kinds in ((h, ("regurgitation", "knowledge")) for h in ("retain", "forget"))
        ]
        assert aggregate(*parts) == pytest.approx(log["harmonic-mean-task-aggregate"], abs=1e-12)


def test_every_column_of_the_aggregate_is_there() -> None:
    own = benchmark_plan(TOFU, LUME()).own
    uses = LUME().metrics(TOFU)
    assert {*uses[0].settings["kept"], *uses[0].settings["gone"]} <= own


def test_answers_match_whole_or_in_part() -> None:
    from dataclasses import replace

    seen = replace(
        made_up_set(n=3), references=("Ada", "Rome", "poet"), generated=(" ada ", "in Rome.", "x")
    )
    np.testing.assert_array_equal(AnswerMatch().per_example(seen), [1, 0, 0])
    np.testing.assert_array_equal(AnswerMatch(rule="contains").per_example(seen), [1, 1, 0])
