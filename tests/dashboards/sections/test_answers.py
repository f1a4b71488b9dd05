"""Embedded answers: decodable, within the budget, with counts of what is left out."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unlearnbench.results.table import table

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

answers: Any = importlib.import_module("unlearnbench_dashboards.sections.answers.data")
page_data: Any = importlib.import_module("unlearnbench_dashboards.page_data")
budget: Any = importlib.import_module("unlearnbench_dashboards.page_budget")
PLENTY = 10**9


def collect(records: list[Record], size: int = PLENTY, limit: int | None = None) -> Any:
    return answers.answer_data(budget.embedded_evaluations(records, table(records), limit), size)


def test_each_answer_is_stored_once_and_can_be_decoded(fabric: Fabric) -> None:
    run = fabric.run()
    found = collect([fabric.reference("fine-tuned"), run])
    number, chosen, rouge, probability = found["answers"][run.id]["2"]["forget"]
    part = run.evaluations[2].sets["forget"]
    questions, texts = found["lists"][number]
    assert tuple(questions) == part.questions
    assert tuple(one[i] for one, i in zip(texts, chosen, strict=True)) == part.generated
    assert tuple(one[0] for one in texts) == part.references
    assert all(len(set(one)) == len(one) for one in texts)
    assert rouge == [round(100 * r) for r in part.rouge_l_recall]
    assert probability == [round(100 * math.exp(-loss)) for loss in part.answer_loss]


def test_models_share_the_list_of_questions(fabric: Fabric) -> None:
    assert len(collect([fabric.reference("fine-tuned"), fabric.run()])["lists"]) == 4  # one per set


def test_questions_that_do_not_fit_are_cut_and_counted(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned", rows=120), fabric.run(rows=120)]
    whole = collect(records)
    assert whole["rows"]["forget"] == [120, 120]
    size = page_data.compressed_size(whole)
    part = collect(records, size // 3)
    assert page_data.compressed_size(part) <= size // 3
    rows, there = part["rows"]["forget"]
    assert (rows, there) == (25, 120)
    assert part["models"] == [3, 3]  # questions are cut before evaluations


def test_without_room_no_answer_is_embedded_and_all_are_counted(fabric: Fabric) -> None:
    found = collect([fabric.reference("fine-tuned"), fabric.run()], size=0)
    assert found["answers"] == {}
    assert found["models"] == [0, 3]


def test_every_epoch_of_the_best_setting_then_last_epochs(fabric: Fabric) -> None:
    start = fabric.reference("fine-tuned")
    best = fabric.run(rate=1e-5, points=((0.8, -10.0), (0.8, -1.0)))
    other = fabric.run(rate=1e-4, points=((0.8, -10.0), (0.8, -5.0)))
    found = collect([other, start, best], limit=4)
    assert found["models"] == [4, 5]
    assert list(found["answers"]) == [start.id, best.id, other.id]
    assert list(found["answers"][best.id]) == ["2", "1"]
    assert list(found["answers"][other.id]) == ["2"]


def test_all_epochs_of_the_first_seed_come_before_those_of_other_seeds(fabric: Fabric) -> None:
    way = ((0.8, -10.0), (0.8, -1.0), (0.8, -4.0))
    seeds = [fabric.run(rate=1e-5, points=way, seed=seed) for seed in range(2)]
    other = fabric.run("dpo", rate=1e-4, points=((0.8, -9.0), (0.8, -8.0)), seed=7)
    records = [other, fabric.reference("fine-tuned"), *seeds]
    pairs = budget.by_usefulness(records, budget.best_settings(table(records)))
    assert [(record.id, epoch) for record, epoch in pairs] == [
        (records[1].id, 0),
        *((other.id, 2), (seeds[0].id, 2), (seeds[1].id, 2)),  # each at its method's best epoch
        *((other.id, 1), (seeds[0].id, 3), (seeds[0].id, 1)),
        *((seeds[1].id, 3), (seeds[1].id, 1)),
    ]


def test_the_initial_selection_is_the_best_setting_that_forgets_most(fabric: Fabric) -> None:
    records = [
        fabric.reference("fine-tuned"),
        fabric.run("dpo", points=((0.8, -10.0), (0.8, -9.0))),
        fabric.run("npo", points=((0.8, -4.0), (0.8, -6.0))),
        fabric.run("gradient-ascent", points=((0.1, -1.0),)),
    ]
    assert budget.initial_selection(table(records)) == (records[2].id, 1)
    assert budget.initial_selection(table(records[1:])) is None  # no start model


def test_published_logs_without_texts_have_no_answers(fabric: Fabric) -> None:
    run = fabric.run()
    evaluation = run.evaluations[1]
    sets = {n: replace(s, generated=()) for n, s in evaluation.sets.items()}
    found = collect([replace(run, evaluations={1: replace(evaluation, sets=sets)})])
    assert found["answers"] == {}
    assert found["rows"] == {}
