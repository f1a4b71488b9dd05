"""Drafts, statistics and bad input: the answers stay the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import AnswerTokens, Evaluation, Statistics
from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.answers import Answer, Prompt
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.generation import decode
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.evaluation.summary import summarize
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row

PROFILE = get_profile("tofu", max_length=90)


@pytest.fixture
def evaluator(tokenizer: Any, questions: tuple[Question, ...]) -> Evaluator:
    return make(tokenizer, questions, PROFILE)


def make(tokenizer: Any, rows: tuple[Question, ...], profile: Profile) -> Evaluator:
    sets: Any = {"retain": rows[3:], "forget": rows[:3]}
    sets |= {"real_authors": rows[:1], "world_facts": rows[4:5]}
    return Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, pad_id(tokenizer), 200)


def statistics(evaluation: Evaluation) -> Statistics:
    assert evaluation.statistics is not None
    return evaluation.statistics


def assert_same(a: Evaluation, b: Evaluation) -> None:
    assert a.answers == b.answers
    for name, found in a.sets.items():
        assert_equal_columns(found, b.sets[name])


def assert_equal_columns(one: Any, other: Any) -> None:
    for key, value in vars(one).items():
        wanted = getattr(other, key)
        if isinstance(value, AnswerTokens):
            assert_equal_columns(value, wanted)
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, wanted, equal_nan=value.dtype.kind == "f"), key
        else:
            assert value == wanted, key


def disturbed(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
            parameter.add_(0.3 * parameter.std() * noise)
    return model


def test_its_own_answers_as_drafts_are_verified_in_one_step(
    sharp: Any, evaluator: Evaluator
) -> None:
    first = evaluator(sharp)
    again = evaluator(sharp, first)
    assert_same(first, again)
    before, after = statistics(first), statistics(again)
    assert 0 < before.drafted < before.generated
    assert (after.steps, after.generated) == (1, before.generated)
    assert after.generated - after.drafted < 12, "all but what corrected the true answer"


@pytest.mark.parametrize("answers", [True, False])
def test_drafts_of_another_model_change_nothing(
    answers: bool, sharp: Any, evaluator: Evaluator
) -> None:
    """Equal to the last bit: drafts share no pass with scored rows."""
    previous = evaluator(sharp)
    previous = previous if answers else replace(previous, answers=None)
    model = disturbed(sharp)
    plain, drafted = evaluator(model), evaluator(model, previous)
    assert_same(plain, drafted)
    other = [i for name in plain.sets for i in (previous.sets[name].generated,)]
    assert other != [plain.sets[name].generated for name in plain.sets], "or this tests nothing"


def predictor_of(model: Any, **settings: Any) -> Predictor:
    trial = build_tree([Row((1, 5, 6, 7), 2), Row((1, 5, 8, 9), 2)])
    values: dict[str, Any] = {"pad": 0, "longest": 60, **settings}
    return Predictor(model, trial, **values)


@pytest.mark.parametrize("packed", [True, False])
def test_drafts_save_steps_and_change_no_token(packed: bool, model: Any, tokenizer: Any) -> None:
    words = ("Where", "Who is Ada", "When was it", "Lima")
    prompts = [tuple(tokenizer(f"Question: {w}?")["input_ids"]) for w in words]
    plain: list[tuple[int, ...]] = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(40):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        plain.append(tuple(ids[len(prompt) :]))
    predictor = predictor_of(model, batch_tokens=40)  # three slots for four answers
    predictor.packed = packed
    # Right, wrong in places, and for another row: what is guessed wrong must leave no trace.
    wrong = [tuple(t if i % 6 != 3 else 9 for i, t in enumerate(ids)) for ids in plain]
    alone = 0
    for like in ([()] * 4, [(ids,) for ids in plain], [(ids,) for ids in wrong], [(*wrong,)] * 4):
        for drafts in ([()] * 4, plain, wrong, [ids[:20] for ids in plain]):
            given = [Prompt(*each) for each in zip(prompts, [40] * 4, drafts, like, strict=True)]
            begun = [Answer([*ids[:2]]) for ids in plain]
            with predictor.ready():
                answers, steps = decode(predictor, given, begun, eos=-7)
            assert [tuple(answer.ids) for answer in answers] == plain
            assert [tuple(answer.ids) for answer in begun] == [ids[:2] for ids in plain]
            assert not alone or steps < alone
            alone = alone or steps  # without any
            if drafts == plain:
                assert steps <= 2 + 2 * packed
                assert all(answer.drafted == 37 for answer in answers)


def test_ties_are_counted_and_named(sharp: Any, evaluator: Evaluator) -> None:
    assert statistics(evaluator(sharp)).ties == ()
    with torch.no_grad():
        sharp.model.norm.weight.zero_()  # all logits are equal
    found = evaluator(sharp)
    assert statistics(found).ties == tuple(q for s in found.sets.values() for q in s.questions)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_give_nan_and_name_the_first_question(
    value: float, model: Any, evaluator: Evaluator
) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(value)
    found = evaluator(model)
    assert np.isnan(found.sets["forget"].answer_loss).all()
    assert np.isnan(found.sets["forget"].rouge_l_recall).all()
    assert summarize(found, None, PROFILE)["model_utility"] is None
    assert statistics(found).not_finite == found.sets["retain"].questions[0]
