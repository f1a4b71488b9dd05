"""The conclusion with an answer of the best model, before anything else on the page."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearnbench.results.records import EpochResult

from ..conftest import context_of, metrics

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

conclusion: Any = importlib.import_module("unlearnbench_dashboards.sections.conclusion")


def examples(*records: Record) -> Any:
    return conclusion.examples(context_of(*records))


def with_recall(record: Record, recall: list[float]) -> Record:
    forget = replace(record.evaluations[1].sets["forget"], rouge_l_recall=np.array(recall))
    sets = {**record.evaluations[1].sets, "forget": forget}
    return replace(record, evaluations={1: replace(record.evaluations[1], sets=sets)})


def with_answers(record: Record, *texts: str) -> Record:
    forget = replace(record.evaluations[1].sets["forget"], generated=texts)
    sets = {**record.evaluations[1].sets, "forget": forget}
    return replace(record, evaluations={1: replace(record.evaluations[1], sets=sets)})


def test_the_median_and_the_most_repetitive_answer_with_truth_and_before(fabric: Fabric) -> None:
    run = with_recall(fabric.run(points=((0.8, -0.1),)), [0.9, 0.1, 0.4])
    run = with_answers(run, "She is a poet.", "Karimi Karimi Karimi wrote.", "He is at 1.")
    (one,) = examples(fabric.reference("fine-tuned"), fabric.reference("retain"), run)
    median, worst = one.samples
    assert median.chosen == "Median ROUGE-L answer of 3"
    assert median.question == "Who is author 2 of the forget set?"
    assert [who for who, _ in median.answers] == [
        "true answer",
        "start model",
        "after unlearning",
        "retain model",
    ]
    assert dict(median.answers)["after unlearning"] == "He is at 1."
    assert dict(median.answers)["retain model"] == "Author 2 is unknown and writes forget."
    assert worst.chosen == "Most repetitive answer of 3"
    assert dict(worst.answers)["after unlearning"] == "Karimi Karimi Karimi wrote."
    assert (one.run_id, one.epoch) == (run.id, 1)


def test_no_text_is_worst_a_long_one_is_cut_and_a_missing_model_left_out(fabric: Fabric) -> None:
    run = with_recall(fabric.run(points=((0.8, -0.1),)), [np.nan] * 3)
    run = with_answers(run, "word " * 100, "", "fluent")
    (one,) = examples(fabric.reference("fine-tuned"), run)
    (worst,) = one.samples
    assert [who for who, _ in worst.answers] == ["true answer", "start model", "after unlearning"]
    assert dict(worst.answers)["after unlearning"] == ""
    run = with_answers(run, "word " * 100, "one", "two")
    ((worst,),) = [one.samples for one in examples(fabric.reference("fine-tuned"), run)]
    assert len(dict(worst.answers)["after unlearning"]) <= conclusion.LONGEST + 2


def test_a_faulty_start_has_no_example_and_panels_keep_their_numbers(fabric: Fabric) -> None:
    bad = replace(
        fabric.reference("fine-tuned", fraction=0.05),
        epochs=(EpochResult(0, metrics(0.01, -0.1), 0.0, 1.0),),
    )
    records = [bad, fabric.run(fraction=0.05), fabric.reference("fine-tuned"), fabric.run()]
    (one,) = examples(*records)
    assert one.index == 1
