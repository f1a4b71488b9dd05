"""Methods of 2024 to 2026 whose forget term is bounded, against their equations, token by token."""

import math
import sys

import pytest
import torch
from torch import Tensor

from .conftest import PROGRESS, TEXT, WIDTH, Toy, assert_same, kl, loss_of, mean, method, nll


def test_inverted_hinge(toy: Toy) -> None:
    values: list[Tensor] = []
    for z, y, _ in toy.tokens("forget"):
        p = torch.softmax(z, 0)
        values.append(1 + p[y] - max(p[v] for v in range(len(p)) if v != y))
    assert_same(toy, loss_of(toy, "ihl"), mean(values))


@pytest.mark.parametrize(("where", "part"), [("answer", "forget"), ("all", "whole")])
def test_maximum_entropy(toy: Toy, where: str, part: str) -> None:
    values = [kl(torch.zeros_like(z), z) for z, _, _ in toy.tokens(part)]  # type: ignore[arg-type]
    loss = loss_of(toy, "maximum-entropy", where=where, forget_weight=0.1)
    assert_same(toy, loss, 0.1 * mean(values))


def test_idk_with_answer_preservation(toy: Toy) -> None:
    beta, weight = 0.3, 0.7
    refused = [nll(z, y) for z, y, _ in toy.tokens("refusal")]
    answers, refusals = (toy.sequence_logprobs(part) for part in ("retain", "retain_refusal"))
    kept = [
        -torch.log(1 / (1 + torch.exp(-beta * (answer - refusal)))) / beta
        for answer, refusal in zip(answers, refusals, strict=True)
    ]
    loss = loss_of(toy, "idk-ap", beta=beta, retain_weight=weight)
    assert_same(toy, loss, mean(refused) + weight * mean(kept))


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """JSD, where 0 log 0 is 0."""
    m = (p + q) / 2
    sides = [(part * torch.log(part.clamp(min=1e-300) / m)).sum() for part in (p, q)]
    return (sides[0] + sides[1]) / 2


def test_jensen_shannon(toy: Toy) -> None:
    values: list[Tensor] = []
    for tokens in toy.sequences("forget"):
        for place, (z, _, _) in enumerate(tokens):
            target = torch.zeros_like(z)
            target[TEXT[place % len(TEXT)]] = 1.0
            values.append(divergence(torch.softmax(z, 0), target))
    drift = [
        divergence(torch.softmax(z, 0), torch.softmax(ref, 0)) for z, _, ref in toy.tokens("retain")
    ]
    loss = loss_of(toy, "jensun", forget_weight=0.5, retain_weight=2.0)
    assert_same(toy, loss, 0.5 * mean(values) + 2 * mean(drift))


def test_circuit_breakers(toy: Toy) -> None:
    alpha, horizon = 3.0, 1.5
    turned: list[Tensor] = []
    moved: list[Tensor] = []
    for h, ref in zip(toy.states["forget"], toy.reference_states["forget"], strict=True):
        for a, b in zip(h, ref, strict=True):
            turned.append(torch.relu((a * b).sum() / (a.norm() * b.norm())))
    for h, ref in zip(toy.states["retain"], toy.reference_states["retain"], strict=True):
        moved += [(a - b).norm() for a, b in zip(h, ref, strict=True)]
    share = PROGRESS / horizon
    loss = loss_of(toy, "circuit-breakers", weight=alpha, horizon=horizon)
    assert_same(toy, loss, alpha * ((1 - share) * mean(turned) + share * mean(moved)))


def test_balanced_rows_by_hand(toy: Toy) -> None:
    """The gradient is that of −κ log mean exp(−ℓ/κ), a soft minimum."""
    beta, kappa = 0.4, 1.3
    rows = [2 / beta * torch.log(1 + torch.exp(beta * r)) for r in toy.log_ratios("forget")]
    losses = torch.stack(rows)
    soft = -kappa * torch.log(torch.exp(-losses / kappa).mean())
    loss = loss_of(toy, "baldro", beta=beta, temperature=kappa)
    assert isinstance(loss, Tensor)
    weights = torch.softmax(-losses.detach() / kappa, 0)
    torch.testing.assert_close(loss, (weights * losses).sum(), rtol=1e-12, atol=1e-12)
    leaves = toy.logits["forget"]
    for mine, theirs in zip(
        torch.autograd.grad(loss, leaves, retain_graph=True),
        torch.autograd.grad(soft, leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert weights.argmax() == losses.argmin()


def test_steering_by_the_states_of_each_row(toy: Toy) -> None:
    c, alpha = 5.0, 3.0
    direction = method("rmu").direction(WIDTH)  # type: ignore[attr-defined]
    forget: list[Tensor] = []
    for h, ref in zip(toy.states["forget"], toy.reference_states["forget"], strict=True):
        length = mean([state.norm() for state in ref])
        forget.append(mean([(state - c * length * direction).square().sum() for state in h]))
    retain = [
        mean([(a - b).square().sum() for a, b in zip(h, ref, strict=True)])
        for h, ref in zip(toy.states["retain"], toy.reference_states["retain"], strict=True)
    ]
    loss = loss_of(toy, "rmu", adaptive=True, steering=c, retain_weight=alpha)
    assert_same(toy, loss, mean(forget) + alpha * mean(retain))


def test_a_one_hot_target_that_is_impossible_has_no_gradient() -> None:
    one_hot_jsd = sys.modules[type(method("jensun")).__module__].one_hot_jsd
    logprob = torch.tensor([-math.inf, -200.0, -1e-3], dtype=torch.float32, requires_grad=True)
    value = one_hot_jsd(logprob)
    assert value[0].item() == pytest.approx(math.log(2))
    value.sum().backward()
    assert logprob.grad is not None
    assert logprob.grad.isfinite().all()
    assert logprob.grad[0] == 0
