"""Embedded answers: decodable, within the budget, with counts of what is left out."""

from __future__ import annotations

import importlib
import math
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..conftest import context_of

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

answers: Any = importlib.import_module("unlearnbench_dashboards.sections.answers")
page_data: Any = importlib.import_module("unlearnbench_dashboards.page_data")


def collect(records: list[Record], size: int = 10**9) -> Any:
    total = sum(len(record.evaluations) for record in records)
    return answers.answer_data(answers.chosen_evaluations(context_of(*records)), total, size)


def compressed(value: Any) -> int:
    return len(zlib.compress(page_data.to_json(value).encode(), 6)) * 4 // 3


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
    assert len(found["lists"]) == 4, "models share a list of questions per set"


def test_what_does_not_fit_is_cut_and_counted(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned", rows=120), fabric.run(rows=120)]
    whole = collect(records)
    assert whole["rows"]["forget"] == [120, 120]
    part = collect(records, compressed(whole) // 2)
    assert compressed(part) <= compressed(whole) // 2
    assert part["rows"]["forget"][0] < 120
    assert part["models"] == [3, 3], "questions are cut before evaluations"
    none = collect(records, size=0)
    assert (none["answers"], none["models"]) == ({}, [0, 3])


def test_the_most_useful_evaluations_come_first(fabric: Fabric) -> None:
    way = ((0.8, -10.0), (0.8, -1.0), (0.8, -4.0))
    seeds = [fabric.run(rate=1e-5, points=way, seed=seed) for seed in range(2)]
    other = fabric.run("dpo", rate=1e-4, points=((0.8, -9.0), (0.8, -8.0)), seed=7)
    records = [other, fabric.reference("fine-tuned"), *seeds]
    pairs = answers.by_usefulness(records, context_of(*records).best)
    assert [(record.id, epoch) for record, epoch in pairs] == [
        (records[1].id, 0),
        *((other.id, 2), (seeds[0].id, 2), (seeds[1].id, 2)),  # each at its method's best epoch
        *((other.id, 1), (seeds[0].id, 3), (seeds[0].id, 1)),
        *((seeds[1].id, 3), (seeds[1].id, 1)),
    ]


def test_published_logs_without_texts_have_no_answers(fabric: Fabric) -> None:
    run = fabric.run()
    evaluation = run.evaluations[1]
    sets = {n: replace(s, generated=()) for n, s in evaluation.sets.items()}
    found = collect([replace(run, evaluations={1: replace(evaluation, sets=sets)})])
    assert (found["answers"], found["rows"]) == ({}, {})


def test_answers_that_repeat_themselves_are_marked(fabric: Fabric) -> None:
    run = fabric.run()
    part = run.evaluations[2].sets["forget"]
    said = ("a b c d " * 9, "She was born in Paris and lives there.", "")
    sets = {**run.evaluations[2].sets, "forget": replace(part, generated=said)}
    run = replace(run, evaluations={2: replace(run.evaluations[2], sets=sets)})
    data = answers.Answers().data(context_of(fabric.reference("fine-tuned"), run))
    # 33 4-grams, 4 of them distinct; an empty answer says nothing twice.
    assert data["answers"][run.id]["2"]["forget"][5] == [0]
    assert data["answers"][run.id]["2"]["retain"][5] == []


def test_loops_of_marks_without_words_are_marked(fabric: Fabric) -> None:
    said = ("!" * 60, "。" * 40, "? ! ? ! ? ! ?", "...", "?", " ", "?!.,;")
    run = fabric.run(rows=len(said))
    part = run.evaluations[2].sets["forget"]
    sets = {
        **run.evaluations[2].sets,
        "forget": replace(part, generated=said, word_rule="unicode"),
    }
    run = replace(run, evaluations={2: replace(run.evaluations[2], sets=sets)})
    data = answers.Answers().data(context_of(fabric.reference("fine-tuned", rows=len(said)), run))
    assert data["answers"][run.id]["2"]["forget"][5] == [0, 1, 2]


def test_the_warnings_of_a_best_setting_stand_with_its_answers(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -5.0),))
    low = replace(run.epochs[0], metrics={**run.epochs[0].metrics, "repetition_forget": 0.3})
    start = fabric.reference("fine-tuned")
    high = replace(start.epochs[0], metrics={**start.epochs[0].metrics, "repetition_forget": 1.0})
    context = context_of(replace(start, epochs=(high,)), replace(run, epochs=(low,)))
    assert answers.Answers().data(context)["warnings"] == {f"1@{run.id}": "repetitive"}


def test_without_texts_there_are_neither_answers_nor_loops(fabric: Fabric) -> None:
    run = fabric.run()
    bare = {
        epoch: replace(
            evaluation,
            sets={
                name: replace(part, generated=(), questions=("",) * 3, references=("",) * 3)
                for name, part in evaluation.sets.items()
            },
        )
        for epoch, evaluation in run.evaluations.items()
    }
    data = answers.Answers().data(context_of(replace(run, evaluations=bare)))
    assert data["answers"] == {}
