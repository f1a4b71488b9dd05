"""Methods on answers that a model writes itself, against their equations in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part, Sampling, Terms

from .conftest import (
    Toy,
    assert_same,
    ce_towards,
    make_toy,
    mean,
    method,
    nll,
    total,
    unlearning_target,
)

REWARDS = (0.9, 0.1, 0.4, 0.5, 0.5, 0.5)
"""Rewards of two questions with three samples each; the second has nothing to prefer."""


@pytest.fixture
def samples() -> Toy:
    return make_toy({"sample": (2, 3, 1, 4, 1, 2)}, seed=3)


def judged(toy: Toy, rewards: tuple[float, ...] = REWARDS) -> LossBatch:
    return replace(toy.batch(), rewards=torch.tensor(rewards, dtype=torch.float64))


def advantage(i: int) -> float:
    group = REWARDS[i // 3 * 3 : i // 3 * 3 + 3]
    middle = sum(group) / 3
    std = math.sqrt(sum((r - middle) ** 2 for r in group) / 3)
    return (REWARDS[i] - middle) / std if std else 0.0


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("name", "winner"), [("altpo", "alternative"), ("dpo", "refusal")])
def test_preference_of_another_answer(toy: Toy, name: str, winner: Part, scaled: bool) -> None:
    beta, pairs = 0.3, zip(toy.log_ratios(winner), toy.log_ratios("forget"), strict=True)
    values = [-torch.log(1 / (1 + torch.exp(-beta * (win - lose)))) for win, lose in pairs]
    made, factor = method(name, beta=beta, scaled=scaled), 2 / beta if scaled else 1.0
    assert_same(toy, made.loss(toy.batch()), factor * mean(values))
    assert made.value_at_reference() == pytest.approx(factor * math.log(2))


def test_grpo(samples: Toy) -> None:
    by_sample: list[Tensor] = []
    for i, tokens in enumerate(samples.sequences("sample")):
        ratios = [torch.exp(nll(z, y).detach() - nll(z, y)) for z, y, _ in tokens]
        by_sample.append(-advantage(i) * torch.stack(ratios).sum() / len(tokens))
    formula = torch.stack(by_sample).sum() / 6
    assert_same(samples, method("grpo", samples=3).loss(judged(samples)), formula)


def kl(samples: Toy) -> Tensor:
    by_sample: list[Tensor] = []
    for tokens in samples.sequences("sample"):
        terms: list[Tensor] = []
        for z, y, ref in tokens:
            ratio = torch.exp(nll(z, y) - nll(ref, y))
            terms.append(ratio - torch.log(ratio) - 1)
        by_sample.append(torch.stack(terms).sum() / len(tokens))
    return torch.stack(by_sample).sum() / 6


@pytest.mark.parametrize("name", ["grpo", "grpo-ceu"])
def test_their_kl_has_a_weight(samples: Toy, name: str) -> None:
    without = total(method(name, samples=3).loss(judged(samples)))
    found: Tensor | Terms = method(name, samples=3, beta=0.2).loss(judged(samples))
    assert not isinstance(found, Tensor)
    assert [*found] == ["policy", "kl"]
    assert_same(samples, found, without + 0.2 * kl(samples))


def test_grpo_ceu_unlearns_bad_samples_and_learns_good_ones(samples: Toy) -> None:
    by_sample: list[Tensor] = []
    for i, tokens in enumerate(samples.sequences("sample")):
        terms: list[Tensor] = []
        for z, y, _ in tokens:
            unlearned = ce_towards(unlearning_target(z, y), z)
            terms.append(nll(z, y) if advantage(i) > 0 else unlearned)
        by_sample.append(abs(advantage(i)) * torch.stack(terms).sum() / len(tokens))
    formula = torch.stack(by_sample).sum() / 6
    assert_same(samples, method("grpo-ceu", samples=3).loss(judged(samples)), formula)


@pytest.mark.parametrize("name", ["grpo", "grpo-ceu"])
def test_they_report_the_mean_reward_and_need_a_reference_only_for_the_kl(
    samples: Toy, name: str
) -> None:
    batch = judged(samples)
    method(name, samples=3).loss(batch)
    assert batch.reported["reward"].item() == pytest.approx(sum(REWARDS) / 6)
    assert method(name).needed().reference == frozenset()
    assert method(name, beta=0.1).needed().reference == {"sample"}
    assert method(name, samples=5, max_new_tokens=7).needed().samples == Sampling(5, 1.0, 7)
