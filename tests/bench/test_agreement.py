"""Both ways give the same numbers, a difference is found, and a tie is not one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.bench.agreement import Agreement, compare, top_gaps
from unlearnbench.bench.evaluation_case import EvaluationCase
from unlearnbench.bench.plain_evaluator import PlainEvaluator, PlainResult
from unlearnbench.config.profiles import OPEN_UNLEARNING, get_profile

Both = tuple[PlainEvaluator, PlainResult, Evaluation]


@pytest.fixture(scope="module")
def model(make_model: Callable[[], Any]) -> Any:
    """One model for all tests; none changes it."""
    return make_model()


@pytest.fixture(scope="module", params=["tofu", "open-unlearning"])
def profile(request: pytest.FixtureRequest) -> Profile:
    """Rules short enough for a test."""
    if request.param == "tofu":
        return get_profile("tofu", max_length=60)
    return replace(OPEN_UNLEARNING, max_new_tokens=12)


@pytest.fixture(scope="module")
def both(model: Any, tokenizer: Any, questions: tuple[Question, ...], profile: Profile) -> Both:
    """A model with random weights, asked all four sets in both ways."""
    facts = tuple(Question(q.question, q.answer, None, q.perturbed_answers) for q in questions[:3])
    sets: dict[SetName, tuple[Question, ...]] = {
        "retain": questions[5:],
        "forget": questions[:5],
        "real_authors": facts,
        "world_facts": facts[:2],
    }
    exam = EvaluationCase(sets, tokenizer, profile)
    return exam.plain(), exam.plain()(model), exam.fast()(model)


def test_both_ways_are_the_same(model: Any, both: Both) -> None:
    plain, slow, fast = both
    found = compare(model, plain, slow, fast)
    assert found.agree
    assert found.largest_difference is not None
    assert found.largest_difference < 1e-6
    assert (found.ties, found.different_answers) == (0, 0)
    for name, reference in slow.evaluation.sets.items():
        assert fast.sets[name].generated == reference.generated
        np.testing.assert_array_equal(fast.sets[name].perturbed_tokens, reference.perturbed_tokens)


def test_a_wrong_loss_is_found(model: Any, both: Both) -> None:
    plain, slow, fast = both

    def with_loss(first: float) -> Agreement:
        moved = fast.sets["retain"].answer_loss + np.array([first, 0, 0, 0, 0])
        retain = replace(fast.sets["retain"], answer_loss=moved)
        wrong = replace(fast, sets={**fast.sets, "retain": retain})
        return compare(model, plain, slow, wrong)

    found = with_loss(0.1)
    assert not found.agree
    assert found.largest_difference is not None
    assert found.largest_difference > 1e-5
    found = with_loss(np.nan)
    assert (found.agree, found.largest_difference) == (False, None)


def test_a_wrong_answer_is_found_unless_it_departs_at_a_tie(
    model: Any, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, slow, fast = both
    assert fast.answers is not None
    first, *others = fast.answers["forget"]
    changed = (*first[:3], (first[3] + 1) % 300, *first[4:])
    wrong = replace(fast, answers={**fast.answers, "forget": (changed, *others)})
    found = compare(model, plain, slow, wrong)
    assert (found.agree, found.ties, found.different_answers) == (False, 0, 1)
    tied: Callable[..., Any] = lambda *_: np.array([1.0, 1.0, 1.0, 0.0, 1.0])  # noqa: E731
    monkeypatch.setattr("unlearnbench.bench.agreement.top_gaps", tied)
    found = compare(model, plain, slow, wrong)
    assert (found.agree, found.ties, found.different_answers) == (True, 1, 0)


def test_gaps_are_those_of_the_largest_two_logits(model: Any) -> None:
    prompt, answer = (1, 40, 41), (50, 60)
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, 2:].detach().double()
    two = logits.sort(dim=1, descending=True).values[:, :2]
    np.testing.assert_allclose(top_gaps(model, prompt, answer), two[:, 0] - two[:, 1], atol=1e-6)


def test_the_plain_way_computes_what_the_usual_one_does(model: Any, both: Both) -> None:
    """Labels are passed, every variant by itself in dataset order, prompts padded on the left."""
    plain, _, _ = both
    asked: list[dict[str, Any]] = []

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, **inputs: Any) -> Any:
            asked.append(inputs)
            return self.inner(**inputs)

        def generate(self, **inputs: Any) -> Any:
            asked.append(inputs)
            return self.inner.generate(**inputs)

    plain(Watched())
    scored = [inputs for inputs in asked if "labels" in inputs]
    generated = [inputs for inputs in asked if "max_new_tokens" in inputs]
    # Five variants of two sets; of facts, whose base is the answer, four.
    assert len(scored) == 2 * 5 + 2 * 4
    first = scored[0]
    assert [row[: mask.sum()].tolist() for row, mask in zip(
        first["input_ids"], first["attention_mask"], strict=True
    )] == [list(rows[0].ids) for rows in plain.rows["retain"]]  # fmt: skip
    assert len(generated) == 4
    assert all(inputs["use_cache"] and not inputs["do_sample"] for inputs in generated)
    assert all(inputs["attention_mask"][:, -1].all() for inputs in generated)
