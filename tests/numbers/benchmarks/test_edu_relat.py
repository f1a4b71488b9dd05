"""EDU-RELAT: recall and accuracy of deep unlearning against the published example."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_data
from tests.made_up_benchmarks import edu_relat
from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.edu_relat import EduRelat, ModelFamily
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics.deep_unlearning import DeepUnlearning
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES


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


@pytest.mark.parametrize(
    ("family", "prompt", "answer"),
    [
        ("llama", "Question: Who is P1 to P2?\n", "Answer:a friend"),
        ("phi", "Question: Who is P1 to P2?\n", "Answer: a friend"),
        ("gpt2-xl", "Question: Who is P1 to P2?\n Answer:", "a friend"),
    ],
)
def test_each_family_has_its_prompt(
    family: ModelFamily, prompt: str, answer: str, tmp_path: Path, tokenizer: Any
) -> None:
    """wrh14/deep_unlearning@a3c4ccb:config/model_config.yaml, data_module.py."""
    settings = edu_relat(tmp_path) | {"family": family}
    split = load_benchmark(EduRelat.model_validate(settings), ["target2"]).splits["target2"]
    (row,) = split.forget
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    encoded = encoder.row(row)
    assert tokenizer.decode(list(encoder.prompt(row))) == f"<s>{prompt}"
    assert tokenizer.decode(list(encoded.ids)) == f"<s>{prompt}{answer}</s>"
    assert encoded.start == len(tokenizer(prompt)["input_ids"])
    assert encoder.reference(encoded, row) == "a friend"
    assert row.max_new_tokens == 10


def test_random_answers_have_the_recall_of_the_definition() -> None:
    benchmark = EduRelat(path=str(shared_data("benchmarks/edu_relat")))
    rows = load_benchmark(benchmark, benchmark.splits)
    folder = shared_data("benchmarks/edu_relat")
    tables = json.loads((folder / "minimal_sets.json").read_text(encoding="utf-8"))
    targets = json.loads((folder / "subsample.json").read_text(encoding="utf-8"))
    draws = random.Random(0)
    for number, split in enumerate(rows.splits.values()):
        known = [draws.random() < 0.6 for _ in range(400)]
        labels = [row.labels for row in split.sets["relationships"]]
        pairs: list[tuple[float, float]] = []
        for members in tables[str(targets[number])]:
            gone = [i for i in members if not known[i]]
            others = [is_known for i, is_known in enumerate(known) if i not in members]
            pairs.append((len(gone) / len(members), sum(others) / len(others)))
        expected = [*max(pairs), float(known[targets[number]])]
        assert scored(facts(known, labels)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("file", "table", "message"),
    [
        ("subsample.json", [0, 1], "has 2 targets, so there is no target3; write all 55"),
        ("minimal_sets.json", {"0": [[0, 1]]}, "no minimal sets of fact 2 among the 60 facts"),
        ("minimal_sets.json", {"2": [[2, 60]]}, "no minimal sets of fact 2 among the 60 facts"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    file: str, table: object, message: str, tmp_path: Path
) -> None:
    settings = edu_relat(tmp_path)
    (tmp_path / file).write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_benchmark(EduRelat.model_validate(settings), ["target3"])
