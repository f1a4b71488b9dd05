"""The evaluator against a deliberately plain one: one sequence at a time, no cache, no batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.data.benchmark import Question
from unlearnbench.data.encoding import TEMPLATES, Encoder, Template
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.generation import greedy
from unlearnbench.evaluation.profiles import OPEN_UNLEARNING, TOFU, Profile, get_profile
from unlearnbench.evaluation.result import Evaluation, SetEvaluation
from unlearnbench.evaluation.scoring import score
from unlearnbench.models.loading import pad_id


def plain_loss(model: Any, ids: tuple[int, ...], start: int) -> float:
    logits = model(torch.tensor([ids])).logits[0].double()
    losses: list[float] = [
        -logits[i - 1].log_softmax(0)[ids[i]].item() for i in range(start, len(ids))
    ]
    return sum(losses) / len(losses)


def plain_greedy(model: Any, prompt: tuple[int, ...], eos: int, limit: int) -> tuple[int, ...]:
    ids = list(prompt)
    while len(ids) < len(prompt) + limit:
        token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == eos:
            break
        ids.append(token)
    return tuple(ids[len(prompt) :])


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: tuple[Question, ...],
    profile: Profile = TOFU,
    template: Template = TEMPLATES["plain"],
    batch_tokens: int = 8192,
) -> Evaluation:
    facts = tuple(Question(q.question, q.answer, None, q.perturbed_answers) for q in rows[:3])
    sets: Any = {"retain": rows[5:], "forget": rows[:5], "real_authors": facts}
    return Evaluator(sets, tokenizer, template, profile, pad_id(tokenizer), batch_tokens)(model)


@pytest.fixture
def sharp(model: Any, tokenizer: Any, questions: tuple[Question, ...]) -> Any:
    """The model after it has learned some of the answers, so that drafts are partly right."""
    from unlearnbench.data.draws import TrainingRows
    from unlearnbench.retain import Objective
    from unlearnbench.training import Learn, Optimisation, Trainer

    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = TrainingRows(retain=[encoder.row(q.question, q.answer) for q in questions[2:8]])
    how = Optimisation(epochs=40, batch_size=3, learning_rate=3e-3, seed=0)
    trainer = Trainer(model, Objective(Learn()), rows, how, pad_id(tokenizer))
    for epoch in range(1, 41):
        list(trainer.epoch(epoch))
    return model.eval()


def assert_equal(a: SetEvaluation, b: SetEvaluation, tolerance: float) -> None:
    assert (a.questions, a.generated, a.references) == (b.questions, b.generated, b.references)
    for name in ("answer_loss", "base_loss", "perturbed_loss", "rouge1_recall", "rouge_l_recall"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=tolerance)


@pytest.mark.parametrize("template", ["plain", "phi", "llama-2"])
@pytest.mark.parametrize("profile", [get_profile("tofu", max_length=60), OPEN_UNLEARNING])
def test_equals_the_plain_evaluator(
    template: str,
    profile: Profile,
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
) -> None:
    got = evaluate(sharp, tokenizer, questions, profile, TEMPLATES[template])
    encoder = Encoder(tokenizer, TEMPLATES[template], profile.max_length, profile.eos_after_cut)
    for name, rows in {"retain": questions[5:], "forget": questions[:5]}.items():
        found = got.sets["retain" if name == "retain" else "forget"]
        for i, question in enumerate(rows):
            variants = (question.answer, question.paraphrased_answer, *question.perturbed_answers)
            wanted = []
            for text in variants:
                row = encoder.row(question.question, text or "")
                wanted.append(plain_loss(sharp, row.ids, row.start))
            mine = [found.answer_loss[i], found.base_loss[i], *found.perturbed_loss[i]]
            assert mine == pytest.approx(wanted, abs=1e-5)
            prompt = encoder.prompt(question.question)
            new = profile.max_new_tokens
            limit = profile.max_length - len(prompt) if new is None else new
            said = plain_greedy(sharp, prompt, encoder.eos, limit)
            assert found.generated[i] == encoder.decode(said)


def test_some_drafts_are_kept_whole_some_in_part_and_some_not_at_all(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """Otherwise the test above would not reach the paths it is there for."""
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = [[encoder.row(q.question, q.answer)] for q in questions]
    scores = [s for (s,) in score(sharp, rows, 0, 4096)]
    assert any(s.agreed == s.tokens for s in scores)
    assert any(0 < s.agreed < s.tokens for s in scores)


@pytest.mark.parametrize("batch_tokens", [64, 300, 100_000])
def test_batch_size_and_row_order_change_nothing(
    batch_tokens: int, sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    whole = evaluate(sharp, tokenizer, questions)
    other = evaluate(sharp, tokenizer, questions, batch_tokens=batch_tokens)
    for name, found in whole.sets.items():
        assert_equal(found, other.sets[name], 1e-5)
    turned = evaluate(sharp, tokenizer, (*questions[4::-1], *questions[:4:-1]))
    back = turned.sets["forget"]
    assert back.generated[::-1] == whole.sets["forget"].generated
    np.testing.assert_allclose(
        back.perturbed_loss[::-1], whole.sets["forget"].perturbed_loss, atol=1e-5
    )


def test_facts_are_judged_by_their_answer(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    facts = evaluate(sharp, tokenizer, questions).sets["real_authors"]
    np.testing.assert_array_equal(facts.base_loss, facts.answer_loss)
    assert facts.perturbed_loss.shape == (3, 3)


def test_greedy_stops_at_eos_and_at_the_limit(model: Any, tokenizer: Any) -> None:
    start = tuple(tokenizer("Question: Where?")["input_ids"])
    limits = [0, 1, 7, 20]
    got = greedy(model, [start] * 4, limits, eos=2, pad=0, batch_tokens=64)
    for answer, limit in zip(got, limits, strict=True):
        assert answer == plain_greedy(model, start, 2, limit)
    first = plain_greedy(model, start, -1, 5)
    assert greedy(model, [start], [9], eos=first[3], pad=0, batch_tokens=64) == [
        plain_greedy(model, start, first[3], 9)
    ]


def test_logits_that_are_not_finite_give_nan_and_no_crash(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    from unlearnbench.evaluation.metrics import summarize

    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    got = evaluate(model, tokenizer, questions)
    assert np.isnan(got.sets["forget"].answer_loss).all()
    sets: Any = {**got.sets, "world_facts": got.sets["real_authors"]}
    metrics = summarize(Evaluation(got.profile, sets), None, TOFU)
    assert metrics["model_utility"] is None
