"""The conclusion with an answer of the best model, before anything else on the page."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearnbench.reporting.report import make_report
from unlearnbench.results.records import EpochResult

from ..conftest import metrics

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

conclusion: Any = importlib.import_module("unlearnbench_dashboards.sections.conclusion.data")
section: Any = importlib.import_module("unlearnbench_dashboards.report_section")


def results(*records: Record) -> Any:
    return conclusion.results(section.PageContext.of(make_report(records, name="x")))


def with_recall(record: Record, recall: list[float]) -> Record:
    forget = replace(record.evaluations[1].sets["forget"], rouge_l_recall=np.array(recall))
    sets = {**record.evaluations[1].sets, "forget": forget}
    return replace(record, evaluations={1: replace(record.evaluations[1], sets=sets)})


def test_the_sample_is_the_answer_of_middle_recall(fabric: Fabric) -> None:
    run = with_recall(fabric.run(points=((0.8, -0.1),)), [0.9, 0.1, 0.4])
    (one,) = results(fabric.reference("fine-tuned"), fabric.reference("retain"), run)
    sample = one.sample
    assert sample.question == "Who is author 2 of the forget set?"
    assert sample.answer == "Author 2 is npo at 1 and writes forget."
    assert sample.retain == "Author 2 is unknown and writes forget."
    assert (sample.run_id, sample.epoch) == (run.id, 1)
    assert sample.chosen == "the middle one by ROUGE-L of 3 questions of the forget set"
    assert one.conclusion.has_best


def test_a_long_answer_is_cut_and_a_missing_retain_model_left_out(fabric: Fabric) -> None:
    run = fabric.run(points=((0.8, -0.1),))
    forget = run.evaluations[1].sets["forget"]
    long = replace(forget, generated=("word " * 100,) * 3, rouge_l_recall=np.full(3, np.nan))
    sets = {**run.evaluations[1].sets, "forget": long}
    run = replace(run, evaluations={1: replace(run.evaluations[1], sets=sets)})
    (one,) = results(fabric.reference("fine-tuned"), run)
    assert len(one.sample.answer) <= conclusion.LONGEST + 2
    assert one.sample.retain is None
    assert one.sample.question == "Who is author 0 of the forget set?", "no recall is known"


def test_a_faulty_start_has_no_sample_and_panels_keep_their_numbers(fabric: Fabric) -> None:
    bad = replace(
        fabric.reference("fine-tuned", fraction=0.05),
        epochs=(EpochResult(0, metrics(0.01, -0.1), 0.0, 1.0),),
    )
    records = [bad, fabric.run(fraction=0.05), fabric.reference("fine-tuned"), fabric.run()]
    first, second = results(*records)
    assert (first.index, first.fault, first.sample) == (0, True, None)
    assert first.conclusion.found.startswith("No result")
    assert (second.index, second.fault) == (1, False)
    assert second.sample is not None
