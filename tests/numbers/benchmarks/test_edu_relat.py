"""EDU-RELAT: recall and accuracy of deep unlearning against the published example."""

import json
from dataclasses import replace

import pytest

from tests.conftest import shared_data
from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.benchmarks.edu_relat import EduRelat
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics.deep_unlearning import DeepUnlearning
from unlearnbench.models.rows_loading import load_benchmark


def facts(known: list[bool], labels: list[tuple[str, ...]]) -> SetEvaluation:
    return replace(
        made_up_set(n=len(known)),
        references=("father",) * len(known),
        generated=tuple("the Father." if each else "uncle" for each in known),
        labels=tuple(labels),
    )


def scored(seen: SetEvaluation) -> list[float | None]:
    values = DeepUnlearning(set="relationships").compute(
        MetricInputs(EvaluatedModel({"relationships": seen}))
    )
    return [values.get(name) for name in ("deep_recall", "deep_accuracy", "target_known")]


def test_by_hand() -> None:
    labels = [("target", "minimal-0", "minimal-1"), ("minimal-0",), ("minimal-1",), (), ()]
    # Of both sets half is gone; outside of them 2 of 3, and 1 of 3, are known.
    assert scored(facts([False, True, True, True, False], labels)) == [0.5, pytest.approx(2 / 3), 0]
    assert scored(facts([False, False, True, True, True], labels)) == [1.0, 1.0, 0.0]
    assert scored(facts([True, False, True, True, True], labels))[2] == 1.0
    assert scored(facts([True] * 5, [()] * 5)) == [None] * 3


def test_the_published_example() -> None:
    folder = shared_data("benchmarks/edu_relat")
    example = json.loads((folder / "example_evaluation.json").read_text(encoding="utf-8"))
    rows = load_benchmark(EduRelat(path=str(folder)), ["target2"])
    split = rows.splits["target2"]
    questions = split.sets["relationships"]
    assert (len(rows.full), len(split.forget), len(split.retain)) == (700, 1, 699)
    assert questions[272].labels[0] == "target"
    assert split.forget[0].question == questions[272].question
    recall, accuracy, *_ = scored(
        facts(example["relationships_correct"], [row.labels for row in questions])
    )
    published = example["rec_acc"]
    assert [recall, accuracy] == pytest.approx(published[:2], abs=1e-12)


def test_every_request_has_minimal_sets() -> None:
    benchmark = EduRelat(path=str(shared_data("benchmarks/edu_relat")))
    rows = load_benchmark(benchmark, benchmark.splits)
    assert len(rows.splits) == 55
    for split in rows.splits.values():
        target = [row for row in split.sets["relationships"] if "target" in row.labels]
        assert len(target) == 1
        assert len(target[0].labels) >= 3, "it is in each of its minimal sets"
