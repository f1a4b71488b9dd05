"""Evaluations whose texts are not kept: the same numbers, and no text."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import Measure
from unlearnbench.api.observations import Evaluation, Samples
from unlearnbench.api.registry import load
from unlearnbench.base.row_texts import hide_row_texts, row_text
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.private_texts import without_texts
from unlearnbench.models.templates import TEMPLATES

SETS = ("retain", "forget")
READ_TEXTS = ("rouge-f1", "rouge-union", "compressibility", "repetition", "answer-match")


def measure(name: str, **settings: Any) -> Measure:
    return Measure(name.replace("-", "_"), load("metrics", name)(**settings), SETS)


@pytest.fixture
def whole(model: Any, tokenizer: Any, questions: tuple[Question, ...]) -> Evaluation:
    sets: Any = {"retain": questions[4:8], "forget": questions[:4]}
    profile = get_profile("tofu", max_length=80)
    evaluation = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0)(model)
    # A random model says nothing that has a word of the answers.
    said = {
        name: dataclasses.replace(seen, generated=tuple(f"{t} yes yes" for t in seen.references))
        for name, seen in evaluation.sets.items()
    }
    return dataclasses.replace(evaluation, sets=said)


def test_metrics_that_read_texts_have_the_same_values_without_them(
    whole: Evaluation, tmp_path: Path
) -> None:
    measures = [measure(name) for name in (*READ_TEXTS, "rouge", "extraction-strength")]
    write_observations(without_texts(whole, measures, "1a2b"), tmp_path / "a.safetensors")
    kept = read_observations(tmp_path / "a.safetensors")
    for one in measures:
        for name in SETS:
            wanted = one.per_example(whole.sets[name])
            assert wanted is not None
            np.testing.assert_array_equal(one.per_example(kept.sets[name]), wanted)
    stored = {key.split()[0] for key in kept.sets["forget"].text_values or ()}
    assert stored == {name.replace("-", "_") for name in READ_TEXTS}
    value = measure("rouge-f1").value(kept.sets["forget"])
    assert value is not None
    assert value > 0.5


def test_a_metric_with_other_settings_is_undefined_and_not_the_old_one(whole: Evaluation) -> None:
    kept = without_texts(whole, [measure("rouge-f1")], "1a2b").sets["forget"]
    assert measure("rouge-f1").per_example(kept) is not None
    assert measure("rouge-f1", stemmer=True).per_example(kept) is None
    assert measure("compressibility").per_example(kept) is None


def test_zlib_membership_needs_no_texts(whole: Evaluation) -> None:
    attack: Any = load("metrics", "mia-zlib")(members="forget", others="retain")
    kept = without_texts(whole, [], "1a2b")
    np.testing.assert_array_equal(
        attack.scores(kept.sets["forget"]), attack.scores(whole.sets["forget"])
    )


def test_no_text_is_left(whole: Evaluation) -> None:
    forget = whole.sets["forget"]
    options = tuple((q, "another") for q in forget.questions)
    samples = Samples(tuple((text, text) for text in forget.references), np.ones((4, 2)))
    forget = dataclasses.replace(forget, options=options, samples=samples)
    whole = dataclasses.replace(whole, sets={"forget": forget})
    kept = without_texts(whole, [measure("rouge-f1")], "1a2b").sets["forget"]
    assert kept.questions == tuple(f"row {i} of 1a2b" for i in (1, 2, 3, 4))
    assert (kept.generated, kept.references, kept.options) == ((), (), ())
    assert kept.samples is not None
    assert {*kept.samples.texts} == {("", "")}
    assert kept.samples.rouge_l_recall is samples.rouge_l_recall
    again = without_texts(dataclasses.replace(whole, sets={"forget": kept}), [], "other")
    assert again.sets["forget"] is kept


def test_rows_of_an_attack_are_named_by_their_places(whole: Evaluation) -> None:
    forget = dataclasses.replace(whole.sets["forget"], places=np.array([3, 5, 6, 9]))
    kept = without_texts(dataclasses.replace(whole, sets={"forget": forget}), [], "1a2b")
    assert kept.sets["forget"].questions[1] == "row 6 of 1a2b"


def test_an_evaluation_with_texts_is_the_same_file_as_before(
    whole: Evaluation, tmp_path: Path
) -> None:
    write_observations(whole, tmp_path / "a.safetensors")
    assert b"text_values" not in (tmp_path / "a.safetensors").read_bytes()
    assert read_observations(tmp_path / "a.safetensors").sets["forget"].text_values is None


def test_messages_say_how_long_a_hidden_text_is() -> None:
    assert row_text("Who is it?") == "'Who is it?'"
    hide_row_texts(hidden=True)
    try:
        assert row_text("Who is it?") == "<str of length 10, hidden by keep_texts: false>"
        assert "Who" not in row_text({"question": "Who is it?"})
    finally:
        hide_row_texts(hidden=False)
