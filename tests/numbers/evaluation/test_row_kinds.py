"""Rows of every kind: plain text, completions, few-shot, multiple choice, limits of their own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.plain_evaluator import PlainEvaluator, PlainResult
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES

from ...conftest import QUESTIONS

Sets = dict[SetName, tuple[Question, ...]]
PROFILE = get_profile("tofu", max_length=160)
ANSWERS = [question.answer for question in QUESTIONS]
SHOWN = tuple((q.question, q.answer) for q in QUESTIONS[8:])
TEXTS = tuple((q.question, f" {q.answer}") for q in QUESTIONS[8:])
KINDS: Sets = {
    "passages": tuple(Question("", " ".join(ANSWERS[: i + 1]), format="text") for i in range(4)),
    "completions": tuple(
        Question(a[:9], a[9:], a[9:-1], format="text", max_new_tokens=3 + 5 * i)
        for i, a in enumerate(ANSWERS[2:6])
    ),
    "choices": tuple(
        Question(q.question, f" {q.answer}", None, tuple(f" {a}" for a in ANSWERS[1 : 2 + i]),
                 format="text", examples=TEXTS[:1])
        for i, q in enumerate(QUESTIONS[:4])
    ),
    "few-shot": tuple(replace(q, examples=SHOWN[:i], max_new_tokens=20) for i, q in
                      enumerate(QUESTIONS[2:5])),
    "begun": tuple(replace(q, prefix=prefix, max_new_tokens=9) for q, prefix in
                   zip(QUESTIONS[2:5], (QUESTIONS[2].answer[:9], "Sure:", "Yes: "), strict=True)),
    "chat": QUESTIONS[2:5],
}  # fmt: skip
COLUMNS = ("answer_loss", "base_loss", "perturbed_loss", "rouge1_recall", "rouge_l_recall")
COUNTS = ("answer_tokens", "base_tokens", "perturbed_tokens")


def evaluated(model: Any, tokenizer: Any, sets: Sets, batch_tokens: int = 2048) -> Evaluation:
    pad = pad_id(tokenizer)
    return Evaluator(sets, tokenizer, TEMPLATES["plain"], PROFILE, pad, batch_tokens)(model)


def assert_alike(one: SetEvaluation, other: SetEvaluation) -> None:
    for texts in ("questions", "generated", "references"):
        assert getattr(one, texts) == getattr(other, texts)
    for column in COLUMNS:
        mine, theirs = getattr(one, column), getattr(other, column)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    for column in COUNTS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


def test_the_plain_evaluator_finds_the_same(sharp: Any, tokenizer: Any) -> None:
    plain = PlainEvaluator(KINDS, tokenizer, TEMPLATES["plain"], PROFILE, pad_id(tokenizer))
    usual: PlainResult = plain(sharp)
    wanted = plain.exactly(sharp, usual.evaluation)
    found = evaluated(sharp, tokenizer, KINDS)
    for name, seen in found.sets.items():
        assert_alike(seen, wanted.sets[name])
    assert found.answers == usual.answers
    assert [len(ids) for ids in usual.answers["completions"]][:2] == [3, 8], "their own limits"
    assert max(map(len, usual.answers["few-shot"])) <= 20 < max(map(len, usual.answers["chat"]))
    passages, choices = found.sets["passages"], found.sets["choices"]
    assert passages.generated == ()
    assert np.isnan(passages.rouge_l_recall).all()
    assert passages.tokens.lengths.tolist() == passages.answer_tokens.tolist()
    assert choices.perturbed.sum(axis=1).tolist() == [1, 2, 3, 4]
    assert (choices.perturbed_tokens > 0).tolist() == choices.perturbed.tolist()


@pytest.mark.parametrize("batch_tokens", [100, 100_000])
def test_neither_order_nor_batch_changes_a_row(
    batch_tokens: int, sharp: Any, tokenizer: Any
) -> None:
    whole = evaluated(sharp, tokenizer, KINDS)
    turned = evaluated(
        sharp, tokenizer, {name: rows[::-1] for name, rows in KINDS.items()}, batch_tokens
    )
    for name, seen in turned.sets.items():
        changed = {c: getattr(seen, c)[::-1] for c in (*COLUMNS, *COUNTS)}
        texts = {c: getattr(seen, c)[::-1] for c in ("questions", "generated", "references")}
        assert_alike(replace(seen, **changed, **texts), whole.sets[name])


def test_a_row_longer_than_the_context_is_named(sharp: Any, tokenizer: Any) -> None:
    long = get_profile("tofu", max_length=900)
    text = Question("", " ".join(ANSWERS * 3), format="text", place="texts.json:4")
    sets = {"passages": (*KINDS["passages"][:1], text)}
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], long, pad_id(tokenizer))
    with pytest.raises(EvaluationError, match=r"texts\.json:4: 1 tokens as a prompt, .* is 256"):
        evaluator(sharp)
