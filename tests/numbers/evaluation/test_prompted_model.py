"""Models that are asked other prompts: the numbers of a plain model that is asked these prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Question
from unlearnbench.api.inference_method import Prompt
from unlearnbench.attacks.in_context import InContext
from unlearnbench.attacks.paraphrase import Paraphrase
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.limits import pad_id
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.models.prompted_model import PromptedModel, bare_model
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.runs.under_attack import evaluations_under

from .test_evaluator import assert_equal, sets_of
from .test_under_attack import Rows

SHOWN = ("Where was Zoe born?", "In Rome.")


def in_turns(row: Question) -> Question:
    return replace(row, examples=(SHOWN, *row.examples))


def in_front(row: Question) -> Question:
    return replace(row, question=f"Be careful. {row.question}")


def evaluator_of(
    sets: Mapping[str, Sequence[Question]], tokenizer: Any, template: str = "plain", **values: Any
) -> Evaluator:
    """Roles are those of the sets' names. `max_length` cuts the longest rows."""
    profile = get_profile("tofu", max_length=values.pop("max_length", 40))
    roles: Any = {name: name if name in ("forget", "retain") else "general" for name in sets}
    return Evaluator(
        sets, tokenizer, TEMPLATES[template], profile, pad_id(tokenizer), 300, roles=roles, **values
    )


@pytest.mark.parametrize("ask", [in_turns, in_front])
@pytest.mark.parametrize("template", ["plain", "llama-2"])
def test_numbers_are_those_of_the_other_prompts(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...], template: str, ask: Any
) -> None:
    model, sets = sharp.double(), sets_of(questions)
    asked = {name: tuple(map(ask, rows)) for name, rows in sets.items()}
    by_hand = evaluator_of(asked, tokenizer, template, plain=sets)(model)
    evaluator = evaluator_of(sets, tokenizer, template, extra={"grad_norm"})
    before = evaluator(model)
    found = evaluator(PromptedModel(model, ask), before)
    for name, rows in sets.items():
        own = tuple(row.question for row in rows)
        assert found.sets[name].questions == own, "as of every other model"
        expected = replace(by_hand.sets[name], questions=own)
        assert_equal(replace(found.sets[name], grad_norm=None), expected, 1e-12)
        assert found.sets[name].references == before.sets[name].references
        assert (found.sets[name].answer_tokens == before.sets[name].answer_tokens).all(), (
            "added text does not count against max_length"
        )
    assert (found.sets["forget"].answer_loss != before.sets["forget"].answer_loss).all()
    assert found.sets["forget"].grad_norm is not None
    assert_equal(evaluator(model).sets["forget"], before.sets["forget"], 0)


def test_an_attack_asks_first_and_the_method_wraps_what_is_asked(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    forget = tuple(replace(q, paraphrased_question=f"Say: {q.question}") for q in questions[:4])
    retain = questions[4:]
    model, rows = sharp.double(), AttackRows(forget, retain)
    tools: Any = Rows(rows)
    evaluator = evaluator_of({"forget": forget, "retain": retain}, tokenizer)
    for attack in (InContext(k=2), Paraphrase()):
        ((_, found),) = evaluations_under(
            "x", attack, PromptedModel(model, in_turns), evaluator, tools
        )
        selected = [row for row in forget if attack.selects(row, rows)]
        both = {"forget": [in_turns(attack.asked(row, "", rows)) for row in selected]}
        by_hand = evaluator_of(both, tokenizer, plain={"forget": selected})(model)
        np.testing.assert_allclose(
            found.sets["forget"].answer_loss, by_hand.sets["forget"].answer_loss, rtol=1e-12
        )
        assert found.sets["forget"].generated == by_hand.sets["forget"].generated
        assert found.sets["forget"].questions == tuple(row.question for row in selected)


def test_samples_are_those_of_the_other_prompts(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    model, sets = sharp.double(), {"forget": questions[:4]}
    attack = RepeatedSampling(samples=4)
    asked = {"forget": tuple(map(in_front, sets["forget"]))}
    by_hand = evaluator_of(asked, tokenizer, plain=sets)
    expected = by_hand.with_samples(by_hand(model), model, attack).sets["forget"].samples
    evaluator, prompted = evaluator_of(sets, tokenizer), PromptedModel(model, in_front)
    found = evaluator.with_samples(evaluator(prompted), prompted, attack).sets["forget"]
    assert found.samples is not None
    assert expected is not None
    assert found.samples.texts == expected.texts
    assert found.questions == tuple(row.question for row in sets["forget"])


def test_a_shift_is_added_to_the_other_prompts(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    seen: list[Prompt] = []

    def shift(prompts: Sequence[Prompt]) -> list[torch.Tensor | None]:
        seen.extend(prompts)
        return [torch.ones(len(prompt), 3) for prompt in prompts]

    evaluator = evaluator_of({"forget": questions[:4]}, tokenizer)
    model = PromptedModel(ShiftedModel(sharp, shift), in_front)
    found = evaluator(model).sets["forget"].answer_loss
    assert sorted(seen) == sorted(evaluator.encoder.prompt(in_front(q)) for q in questions[:4])
    assert (found != evaluator(PromptedModel(sharp, in_front)).sets["forget"].answer_loss).all()
    assert bare_model(model) is sharp
    assert bare_model(sharp) is sharp


def test_a_prompt_that_the_model_cannot_read_is_refused_with_what_to_change(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    long = "word " * 600
    evaluator = evaluator_of({"forget": questions[:2]}, tokenizer)
    with pytest.raises(EvaluationError, match=r"are text that the method or the attack puts"):
        evaluator(PromptedModel(sharp, lambda row: replace(row, question=long + row.question)))
