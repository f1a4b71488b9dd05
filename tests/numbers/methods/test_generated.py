"""Methods on answers that a model writes itself, against their equations in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part, Sampling, Terms

from .conftest import Toy, assert_same, make_toy, method, total

REWARDS = (0.9, 0.1, 0.4, 0.5, 0.5, 0.5)
"""Rewards of two questions with three samples each; the second has nothing to prefer."""


@pytest.fixture
def samples() -> Toy:
    return make_toy({"sample": (2, 3, 1, 4, 1, 2)}, seed=3)


def judged(toy: Toy, rewards: tuple[float, ...] = REWARDS) -> LossBatch:
    return replace(toy.batch(), rewards=torch.tensor(rewards, dtype=torch.float64))


def log_p(z: Tensor, y: int) -> Tensor:
    return z[y] - torch.log(torch.exp(z).sum())


def advantage(i: int) -> float:
    group = REWARDS[i // 3 * 3 : i // 3 * 3 + 3]
    mean = sum(group) / 3
    std = math.sqrt(sum((r - mean) ** 2 for r in group) / 3)
    return (REWARDS[i] - mean) / std if std else 0.0


def rows(toy: Toy) -> list[list[tuple[Tensor, int, Tensor]]]:
    """(logits, token, reference logits) of each token, by sample."""
    return [
        list(zip(*each, strict=True))
        for each in zip(
            toy.logits["sample"], toy.labels["sample"], toy.reference["sample"], strict=True
        )
    ]


@pytest.mark.parametrize("scaled", [True, False])
def test_altpo_is_dpo_with_alternatives_as_winners(scaled: bool) -> None:
    toy, beta = make_toy({"forget": (4, 1, 3), "alternative": (2, 2, 5)}), 0.3
    pairs: list[Tensor] = []
    pair: tuple[Part, ...] = ("alternative", "forget")
    for b in range(3):
        win, lose = (
            toy.sequence_logprobs(part)[b] - toy.sequence_logprobs(part, reference=True)[b]
            for part in pair
        )
        pairs.append(-torch.log(1 / (1 + torch.exp(-beta * (win - lose)))))
    mean = torch.stack(pairs).sum() / 3
    loss = method("altpo", beta=beta, scaled=scaled).loss(toy.batch())
    assert_same(toy, loss, 2 / beta * mean if scaled else mean)


def test_grpo(samples: Toy) -> None:
    by_sample: list[Tensor] = []
    for i, tokens in enumerate(rows(samples)):
        ratios = [torch.exp(log_p(z, y) - log_p(z, y).detach()) for z, y, _ in tokens]
        by_sample.append(-advantage(i) * torch.stack(ratios).sum() / len(tokens))
    formula = torch.stack(by_sample).sum() / 6
    assert_same(samples, method("grpo", samples=3).loss(judged(samples)), formula)


def kl(samples: Toy) -> Tensor:
    by_sample: list[Tensor] = []
    for tokens in rows(samples):
        terms: list[Tensor] = []
        for z, y, ref in tokens:
            ratio = torch.exp(log_p(ref, y)) / torch.exp(log_p(z, y))
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
    for i, tokens in enumerate(rows(samples)):
        terms: list[Tensor] = []
        for z, y, _ in tokens:
            others = z.detach().clone()
            others[y] = -math.inf
            q = torch.softmax(others, 0)
            towards_others = -(q * (z - torch.log(torch.exp(z).sum()))).sum()
            terms.append(-log_p(z, y) if advantage(i) > 0 else towards_others)
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
