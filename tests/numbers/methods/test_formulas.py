"""The TOFU paper's methods, NPO, DPO and CE-U against their equations, written token by token."""

import math

import pytest
import torch
from torch import Tensor

from .conftest import (
    Toy,
    assert_same,
    ce_towards,
    kl,
    make_toy,
    mean,
    method,
    nll,
    total,
    unlearning_target,
)


def test_ce_u(toy: Toy) -> None:
    formula = mean([ce_towards(unlearning_target(z, y), z) for z, y, _ in toy.tokens("forget")])
    assert_same(toy, method("ce-u").loss(toy.batch()), formula)


def test_ce_u_gradient_is_p_minus_q_and_that_of_unlikelihood(toy: Toy) -> None:
    loss = total(method("ce-u").loss(toy.batch()))
    got = torch.autograd.grad(loss, toy.logits["forget"])
    unlikelihood = mean(
        [-torch.log(1 - torch.softmax(z, 0)[y]) for z, y, _ in toy.tokens("forget")]
    )
    same = torch.autograd.grad(unlikelihood, toy.logits["forget"])
    count = len(toy.tokens("forget"))
    for gradient, other, zs, ys in zip(
        got, same, toy.logits["forget"], toy.labels["forget"], strict=True
    ):
        torch.testing.assert_close(gradient, other)
        for row, z, y in zip(gradient, zs, ys, strict=True):
            by_hand = (torch.softmax(z, 0) - unlearning_target(z, y)) / count
            torch.testing.assert_close(row, by_hand)


def test_ce_u_worked_by_hand() -> None:
    # z = (log 2, 0, 0), y = 0: p = (1/2, 1/4, 1/4), q = (0, 1/2, 1/2), −Σ q log p = log 4.
    toy = make_toy({"forget": (1,)})
    toy.logits["forget"][0].data = torch.zeros(1, 3, dtype=torch.float64)
    toy.logits["forget"][0].data[0, 0] = math.log(2)
    toy.labels["forget"][0][0] = 0
    toy.reference["forget"][0] = torch.zeros(1, 3, dtype=torch.float64)
    loss = total(method("ce-u").loss(toy.batch()))
    assert loss.item() == pytest.approx(math.log(4), rel=1e-14)
    (gradient,) = torch.autograd.grad(loss, toy.logits["forget"])
    assert gradient.tolist()[0] == pytest.approx([0.5, -0.25, -0.25], rel=1e-14)


@pytest.mark.parametrize(("forget", "retain"), [(0.0, 1.0), (0.3, 0.8), (1.0, 0.0)])
def test_general_ce_u(toy: Toy, forget: float, retain: float) -> None:
    values: list[Tensor] = []
    for score, part in ((forget, "forget"), (retain, "retain")):
        for z, y, _ in toy.tokens("forget" if part == "forget" else "retain"):
            one = torch.zeros_like(z)
            one[y] = 1
            values.append(ce_towards(score * one + (1 - score) * unlearning_target(z, y), z))
    loss = method("general-ce-u", forget_score=forget, retain_score=retain).loss(toy.batch())
    assert_same(toy, loss, mean(values))


@pytest.mark.parametrize("score", [-math.inf, -1.5, 0.0, 2.0, math.inf])
def test_general_ce_u_with_a_raw_score_in_place_of_the_true_logit(toy: Toy, score: float) -> None:
    values: list[Tensor] = []
    for part in ("forget", "retain"):
        for z, y, _ in toy.tokens("forget" if part == "forget" else "retain"):
            target = torch.zeros_like(z)
            target[y] = 1
            if score != math.inf:  # softmax of an infinite logit is the limit, written out above
                replaced = z.detach().clone()
                replaced[y] = score
                target = torch.softmax(replaced, 0)
            values.append(ce_towards(target, z))
    made = method("general-ce-u", forget_score=score, retain_score=score, raw=True)
    assert_same(toy, made.loss(toy.batch()), mean(values))


def test_general_ce_u_with_score_0_is_ce_u_and_with_1_is_learning(toy: Toy) -> None:
    batch = toy.batch()
    forget = batch.forget
    torch.testing.assert_close(
        forget.unified_cross_entropy(0.0), forget.unlearning_cross_entropy, rtol=0, atol=0
    )
    torch.testing.assert_close(
        forget.unified_cross_entropy(1.0), forget.cross_entropy(), rtol=0, atol=0
    )


def test_gradient_ascent(toy: Toy) -> None:
    formula = -mean([nll(z, y) for z, y, _ in toy.tokens("forget")])
    assert_same(toy, method("gradient-ascent").loss(toy.batch()), formula)


def test_gradient_difference(toy: Toy) -> None:
    forget = mean([nll(z, y) for z, y, _ in toy.tokens("forget")])
    retain = mean([nll(z, y) for z, y, _ in toy.tokens("retain")])
    loss = method("gradient-difference", retain_weight=0.7).loss(toy.batch())
    assert_same(toy, loss, -forget + 0.7 * retain)


def test_kl_minimization(toy: Toy) -> None:
    forget = mean([nll(z, y) for z, y, _ in toy.tokens("forget")])
    divergences = [kl(ref, z) for z, _, ref in toy.tokens("retain")]
    loss = method("kl-minimization", retain_weight=1.3).loss(toy.batch())
    assert_same(toy, loss, -forget + 1.3 * mean(divergences))


def test_idk(toy: Toy) -> None:
    tokens = [*toy.tokens("refusal"), *toy.tokens("retain")]
    formula = mean([nll(z, y) for z, y, _ in tokens])
    assert_same(toy, method("idk").loss(toy.batch()), formula)


def test_npo(toy: Toy) -> None:
    beta = 0.3
    values = [
        2 / beta * torch.log(1 + (torch.exp(s) / torch.exp(ref)) ** beta)
        for s, ref in zip(
            toy.sequence_logprobs("forget"),
            toy.sequence_logprobs("forget", reference=True),
            strict=True,
        )
    ]
    assert_same(toy, method("npo", beta=beta).loss(toy.batch()), mean(values))


def test_npo_tends_to_gradient_ascent_on_sequences(toy: Toy) -> None:
    loss = total(method("npo", beta=1e-7).loss(toy.batch()))
    ascent = mean(toy.sequence_logprobs("forget"))
    got = torch.autograd.grad(loss, toy.logits["forget"])
    wanted = torch.autograd.grad(ascent, toy.logits["forget"])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


def test_dpo(toy: Toy) -> None:
    beta = 0.4
    values: list[Tensor] = []
    for win, win_ref, lose, lose_ref in zip(
        toy.sequence_logprobs("refusal"),
        toy.sequence_logprobs("refusal", reference=True),
        toy.sequence_logprobs("forget"),
        toy.sequence_logprobs("forget", reference=True),
        strict=True,
    ):
        margin = beta * ((win - win_ref) - (lose - lose_ref))
        values.append(-torch.log(1 / (1 + torch.exp(-margin))))
    assert_same(toy, method("dpo", beta=beta).loss(toy.batch()), mean(values))
