"""What a page holds of what the models said: readable back, in its budget, what is cut counted."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unlearnbench.table import table

if TYPE_CHECKING:
    from unlearnbench.records import Record

    from .conftest import Fabric

answers: Any = importlib.import_module("unlearnbench_dashboards.answers")
held: Any = importlib.import_module("unlearnbench_dashboards.held")
PLENTY = 10**9


def collect(records: list[Record], budget: int = PLENTY, limit: int | None = None) -> Any:
    return answers.collect(held.read(records, table(records), limit), budget)


def test_each_answer_to_a_question_is_held_once_and_can_be_read_back(fabric: Fabric) -> None:
    run = fabric.run()
    found = collect([fabric.anchor("fine-tuned"), run])
    number, said, rouge, probability = found["said"][run.id]["2"]["forget"]
    part = run.evaluations[2].sets["forget"]
    questions, texts = found["lists"][number]
    assert tuple(questions) == part.questions
    assert tuple(one[i] for one, i in zip(texts, said, strict=True)) == part.generated
    assert tuple(one[0] for one in texts) == part.references
    assert all(len(set(one)) == len(one) for one in texts)
    assert rouge == [round(100 * r) for r in part.rouge_l_recall]
    assert probability == [round(100 * math.exp(-loss)) for loss in part.answer_loss]


def test_models_share_the_list_of_questions(fabric: Fabric) -> None:
    assert len(collect([fabric.anchor("fine-tuned"), fabric.run()])["lists"]) == 4  # one per set


def test_what_does_not_fit_is_cut_and_counted(fabric: Fabric) -> None:
    records = [fabric.anchor("fine-tuned", rows=120), fabric.run(rows=120)]
    whole = collect(records)
    assert whole["rows"]["forget"] == [120, 120]
    size = answers.deflated_size(whole)
    part = collect(records, size // 3)
    assert answers.deflated_size(part) <= size // 3
    rows, there = part["rows"]["forget"]
    assert (rows, there) == (25, 120)
    assert part["models"] == [3, 3]  # questions are given up before evaluations


def test_without_any_room_no_answer_is_held_and_all_are_counted(fabric: Fabric) -> None:
    found = collect([fabric.anchor("fine-tuned"), fabric.run()], budget=0)
    assert found["said"] == {}
    assert found["models"] == [0, 3]


def test_every_epoch_of_the_best_then_last_epochs(fabric: Fabric) -> None:
    start = fabric.anchor("fine-tuned")
    best = fabric.run(rate=1e-5, points=((0.8, -10.0), (0.8, -1.0)))
    other = fabric.run(rate=1e-4, points=((0.8, -10.0), (0.8, -5.0)))
    found = collect([other, start, best], limit=4)
    assert found["models"] == [4, 5]
    assert list(found["said"]) == [start.id, best.id, other.id]
    assert list(found["said"][best.id]) == ["2", "1"]
    assert list(found["said"][other.id]) == ["2"]


def test_of_several_seeds_the_first_has_all_epochs_before_the_others_have(fabric: Fabric) -> None:
    way = ((0.8, -10.0), (0.8, -1.0), (0.8, -4.0))
    seeds = [fabric.run(rate=1e-5, points=way, seed=seed) for seed in range(2)]
    other = fabric.run("dpo", rate=1e-4, points=((0.8, -9.0), (0.8, -8.0)), seed=7)
    records = [other, fabric.anchor("fine-tuned"), *seeds]
    wanted = held.wanted_first(records, held.best_settings(table(records)))
    assert [(record.id, epoch) for record, epoch in wanted] == [
        (records[1].id, 0),
        *((other.id, 2), (seeds[0].id, 2), (seeds[1].id, 2)),  # each at its method's best epoch
        *((other.id, 1), (seeds[0].id, 3), (seeds[0].id, 1)),
        *((seeds[1].id, 3), (seeds[1].id, 1)),
    ]


def test_one_begins_with_the_method_that_forgets_most_and_works(fabric: Fabric) -> None:
    records = [
        fabric.anchor("fine-tuned"),
        fabric.run("dpo", points=((0.8, -10.0), (0.8, -9.0))),
        fabric.run("npo", points=((0.8, -4.0), (0.8, -6.0))),
        fabric.run("gradient-ascent", points=((0.1, -1.0),)),
    ]
    assert held.first_look(table(records)) == (records[2].id, 1)
    assert held.first_look(table(records[1:])) is None  # without a start nobody is best


def test_published_logs_without_texts_have_no_answers(fabric: Fabric) -> None:
    run = fabric.run()
    kept = run.evaluations[1]
    mute = replace(kept, sets={n: replace(s, generated=()) for n, s in kept.sets.items()})
    found = collect([replace(run, evaluations={1: mute})])
    assert found["said"] == {}
    assert found["rows"] == {}
