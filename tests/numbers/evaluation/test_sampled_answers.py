"""Sampled answers: from a shared prompt, the same in every batch, and those of the plain way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.attacks.sampling import RepeatedSampling
from unlearnbench.base.errors import PluginError
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import TOFU, get_profile
from unlearnbench.evaluation.answers import Prompt
from unlearnbench.evaluation.benchmark_schema import default_schema, filled_columns
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.generation import (
    _key,  # pyright: ignore[reportPrivateUsage]
    sampled_answers,
)
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.models.limits import pad_id
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_sampling import Distribution, choose, uniform_numbers
from unlearnbench.stats.sampled_scores import expected_best
from unlearnbench.stats.text_overlap import rouge_recall

from .test_generation import predictor_of

PROFILE = get_profile("tofu", max_length=60)
PROMPTS = [Prompt((1, 5, 6, 7), 9), Prompt((1, 8), 12), Prompt((1, 9, 4, 4, 3, 6), 3)]
WARM = RepeatedSampling(samples=7, temperature=1.5)


def sampled(
    model: Any, attack: SamplingAttack = WARM, packed: bool = True, **settings: Any
) -> list[list[tuple[int, ...]]]:
    """Ids of the answers to `PROMPTS`, with EOS where it has ended them."""
    predictor = predictor_of(model.eval(), **settings)
    assert predictor.packed
    predictor.packed = packed
    with predictor.ready():
        found = sampled_answers(predictor, PROMPTS, attack, 2)
    return [[(*one.ids, *[2] * one.ended) for one in own] for own in found]


def plain(model: Any, attack: SamplingAttack = WARM) -> list[list[tuple[int, ...]]]:
    """Each prompt encoded again for each answer, and a whole forward pass for each token."""
    how = Distribution(attack.temperature, attack.top_p)
    found: list[list[tuple[int, ...]]] = []
    for prompt in PROMPTS:
        found.append([])
        for number in range(attack.samples):
            key = _key(prompt.ids)
            known = prompt.ids
            for uniform in uniform_numbers((attack.seed, key, number, 7), prompt.limit):
                with torch.no_grad():
                    logits = model(torch.tensor([known])).logits[:, -1]
                known = (*known, int(choose(logits, how, torch.tensor([uniform]))))
                if known[-1] == 2:
                    break
            found[-1].append(known[len(prompt.ids) :])
    return found


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_answers_are_those_of_the_plain_way(model: Any, top_p: float) -> None:
    model = model.double().eval()
    attack = WARM.model_copy(update={"top_p": top_p})
    wanted = plain(model, attack)
    assert len({one for own in wanted for one in own}) > len(PROMPTS), "answers differ"
    assert sampled(model, attack) == wanted
    if top_p == 1:
        assert sampled(model, attack, packed=False) == wanted


# 8 tokens: a slot or two, so that a prompt's answers come one after the other into the same ones.
@pytest.mark.parametrize("batch_tokens", [4, 16])
def test_neither_slots_nor_drafts_change_an_answer(model: Any, batch_tokens: int) -> None:
    whole = sampled(model.double(), batch_tokens=10_000)
    assert sampled(model, batch_tokens=batch_tokens) == whole
    more = sampled(model, WARM.model_copy(update={"samples": 9}), batch_tokens=batch_tokens)
    assert [own[:7] for own in more] == whole, "few samples are the first of many"
    assert sampled(model, WARM.model_copy(update={"seed": 1})) != whole


def evaluator_of(tokenizer: Any, questions: tuple[Question, ...], **how: Any) -> Evaluator:
    sets: Any = {"retain": questions[4:6], "forget": questions[:3]}
    values = TEMPLATES["plain"], PROFILE, pad_id(tokenizer)
    return Evaluator(sets, tokenizer, *values, roles=ROLES, **how)


def test_without_temperature_samples_are_the_greedy_answers(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    evaluator = evaluator_of(tokenizer, questions)
    first = evaluator.encoder.prompt(questions[0])

    def shifted(prompts: Any) -> Any:
        return [torch.ones(len(one), 32) if one == first else None for one in prompts]

    texts: list[Any] = []
    for model in (sharp, ShiftedModel(sharp, shifted)):
        plain = evaluator(model)
        attack = RepeatedSampling(samples=2, temperature=1e-6)
        found = evaluator.with_samples(plain, model, attack)
        seen, greedy = found.sets["forget"], plain.sets["forget"]
        assert seen.samples is not None
        assert seen.samples.texts == tuple((text,) * 2 for text in greedy.generated)
        np.testing.assert_array_equal(seen.samples.rouge_l_recall[:, 1], greedy.rouge_l_recall)
        assert found.sets["retain"] is plain.sets["retain"], "the attack is on the forget set"
        texts.append(seen.samples.texts)
    assert texts[0][0] != texts[1][0], "its prompt is shifted"
    assert texts[0][1:] == texts[1][1:]


def test_samples_of_a_model_without_numbers(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    evaluator, attack = evaluator_of(tokenizer, questions), RepeatedSampling(samples=2)
    plain = evaluator(model.eval())
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    found: Any = evaluator.with_samples(plain, model, attack)
    assert np.isnan(found.sets["forget"].samples.rouge_l_recall).all()
    assert found.sets["forget"].samples.texts == (("", ""),) * 3
    values = plan_of(TOFU).values(found.sets)
    assert not {"leak_at_k_forget", "leak_rate_bound"} & values.keys()


def test_metrics_of_samples_are_columns_of_an_attack_alone(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    evaluator = evaluator_of(tokenizer, questions)
    plain = evaluator(sharp)
    found: Any = evaluator.with_samples(plain, sharp, RepeatedSampling(temperature=0.5))
    path = tmp_path / "epoch-1.safetensors"
    write_observations(found, path)
    again: Any = read_observations(path)
    seen = again.sets["forget"].samples
    assert seen.texts == found.sets["forget"].samples.texts
    np.testing.assert_array_equal(seen.rouge_l_recall, found.sets["forget"].samples.rouge_l_recall)
    wanted = [
        rouge_recall([q] * 20, own)[1]
        for q, own in zip(again.sets["forget"].references, seen.texts, strict=True)
    ]
    np.testing.assert_array_equal(seen.rouge_l_recall, wanted)
    assert again.sets["retain"].samples is None

    plan = plan_of(TOFU)
    names = {one.name for one in plan.under_attack}
    assert names == {
        *("expected_best_forget", "leak_at_k_forget", "ed_score_forget"),
        *("leak_rate_bound", "leak_at_k_bound", "expected_rouge_bound", "rouge_deviation_bound"),
    }
    assert not names & {one.name for one in plan.columns}
    without, values = plan.values(plain.sets), plan.values(again.sets)
    assert values.keys() - without.keys() == names
    assert {k: v for k, v in values.items() if k not in names} == without
    best = expected_best(np.array(wanted), 16).mean()
    assert values["expected_best_forget"] == pytest.approx(best)
    numbers: Any = values
    assert (np.array(wanted) >= 0.8).mean() < numbers["leak_rate_bound"] < 1
    assert numbers["leak_at_k_forget"] < numbers["leak_at_k_bound"] < 1
    assert default_schema().column("leak_at_k_forget").label == "Leak at k samples, forget"
    assert set(filled_columns([without])) & names == set()
    assert set(filled_columns([without, values])) >= names
    few: Any = evaluator.with_samples(plain, sharp, RepeatedSampling(samples=3))
    with pytest.raises(PluginError, match="k is 16, and 3 answers to each question were sampled"):
        few.sets["forget"].sampled_scores(16)
    assert plan.values(few.sets).keys() - without.keys() == {"ed_score_forget"}


def test_verbatim_leak_is_the_probability_of_a_whole_sample(
    sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    plan = plan_of(TOFU, None, {"verbatim-leak": {"k": 2}})
    plain = evaluator_of(tokenizer, questions)(sharp)
    seen = plain.sets["retain"]
    q = np.exp(-seen.answer_loss * seen.answer_tokens)
    found = plan.values(plain.sets)["verbatim_leak_retain"]
    assert found == pytest.approx((1 - (1 - q) ** 2).mean(), rel=1e-4)
    assert (found or 0) > 0.1, "it has learned them"
    assert not [name for name in plan_of(TOFU).values(plain.sets) if "verbatim" in name]
