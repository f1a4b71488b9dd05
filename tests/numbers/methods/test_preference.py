"""Methods on the log-probability of whole answers: SimNPO, KTO, DPO with CE-U."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from .conftest import (
    Toy,
    assert_same,
    ce_towards,
    loss_of,
    mean,
    unlearning_target,
)


def log_sigmoid(x: Tensor) -> Tensor:
    return torch.log(1 / (1 + torch.exp(-x)))


@pytest.mark.parametrize(("gamma", "scaled"), [(0.0, False), (0.7, False), (0.7, True)])
def test_simnpo(toy: Toy, gamma: float, scaled: bool) -> None:
    beta, weight, values = 2.5, 0.125, list[Tensor]()
    for s, labels in zip(toy.sequence_logprobs("forget"), toy.labels["forget"], strict=True):
        if scaled:  # the authors' code: β (NLL − γ)
            values.append(-2 / beta * log_sigmoid(beta * (-s / len(labels) - gamma)))
        else:  # the paper
            values.append(-2 / beta * log_sigmoid(-beta / len(labels) * s - gamma))
    loss = loss_of(toy, "simnpo", beta=beta, gamma=gamma, scale_gamma=scaled, forget_weight=weight)
    assert_same(toy, loss, weight * mean(values))


def drifted(toy: Toy, up: bool) -> Toy:
    """The same with refusals that the policy has made likelier or less likely: z₀ is not 0."""
    for z, labels in zip(toy.logits["refusal"], toy.labels["refusal"], strict=True):
        for row, label in zip(z.data, labels, strict=True):
            row[label] += 3.0 if up else -3.0
    return toy


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("value", ["sigmoid", "log-sigmoid"])
def test_kto(toy: Toy, up: bool, clamp: bool, value: Literal["sigmoid", "log-sigmoid"]) -> None:
    beta, weight, toy = 0.3, 1.7, drifted(toy, up)
    z0 = mean(toy.log_ratios("refusal")).detach()
    assert bool(z0 > 0) == up
    z0 = torch.clamp(z0, min=0) if clamp else z0
    values: list[Tensor] = []
    for ratio in toy.log_ratios("forget"):
        v = 1 / (1 + torch.exp(-beta * (z0 - ratio)))
        values.append(1 - v if value == "sigmoid" else -torch.log(v))
    loss = loss_of(toy, "kto", beta=beta, weight=weight, value=value, clamp=clamp)
    assert_same(toy, loss, weight * mean(values))


def test_kto_as_the_npo_repository_has_it(toy: Toy) -> None:
    beta = 0.1
    z0 = mean(toy.log_ratios("refusal")).detach()
    values = [-2 / beta * log_sigmoid(z0 - beta * ratio) for ratio in toy.log_ratios("forget")]
    loss = loss_of(toy, "kto", weight=20.0, value="log-sigmoid", clamp=False, scale_baseline=False)
    assert_same(toy, loss, mean(values))


def pair_weights(toy: Toy, beta: float) -> list[Tensor]:
    pairs = zip(toy.log_ratios("refusal"), toy.log_ratios("forget"), strict=True)
    return [beta / (1 + torch.exp(beta * (win - lose))).detach() for win, lose in pairs]


@pytest.mark.parametrize("score", [0.0, 0.3, 1.0])
def test_dpo_ceu(toy: Toy, score: float) -> None:
    beta, values = 0.4, list[Tensor]()
    rows = zip(
        pair_weights(toy, beta),
        toy.sequence_logprobs("refusal"),
        toy.sequences("forget"),
        strict=True,
    )
    for weight, win, tokens in rows:
        unlearned = torch.zeros((), dtype=torch.float64)
        for z, y, _ in tokens:
            one = torch.zeros_like(z)
            one[y] = 1
            target = score * one + (1 - score) * unlearning_target(z, y)
            unlearned = unlearned + ce_towards(target, z)
        values.append(weight * (unlearned - win))
    assert_same(toy, loss_of(toy, "dpo-ceu", beta=beta, score=score), mean(values))
