"""Every built-in method against its equation, written out here in float64 token by token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unlearnbench import registry
from unlearnbench.retain import Objective
from unlearnbench.settings import RetainSpec

from .conftest import Toy, assert_same, make_toy, method, total


def nll(z: Tensor, y: int) -> Tensor:
    return torch.log(torch.exp(z).sum()) - z[y]


def ce_towards(target: Tensor, z: Tensor) -> Tensor:
    log_p = z - torch.log(torch.exp(z).sum())
    return -(target.detach() * log_p).sum()


def unlearning_target(z: Tensor, y: int) -> Tensor:
    """The paper's words: softmax of the detached logits with the true one at −inf."""
    others = z.detach().clone()
    others[y] = -math.inf
    return torch.softmax(others, 0)


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum() / len(values)


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
    divergences: list[Tensor] = []
    for z, _, ref in toy.tokens("retain"):
        p_ref, p = torch.softmax(ref, 0), torch.softmax(z, 0)
        divergences.append((p_ref * (torch.log(p_ref) - torch.log(p))).sum())
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


@pytest.mark.parametrize(("name", "value"), [("npo", 2 / 0.1 * math.log(2)), ("dpo", math.log(2))])
def test_value_where_policy_and_reference_agree(toy: Toy, name: str, value: float) -> None:
    agreeing = Toy(
        toy.logits, toy.labels, {p: [z.detach() for z in s] for p, s in toy.logits.items()}
    )
    assert total(method(name).loss(agreeing.batch())).item() == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("term", ["nll", "kl"])
def test_any_method_takes_a_retain_term(toy: Toy, term: str) -> None:
    spec = RetainSpec(term="nll" if term == "nll" else "kl", weight=0.5)
    retain: list[Tensor] = []
    for z, y, ref in toy.tokens("retain"):
        p_ref = torch.softmax(ref, 0)
        kl = (p_ref * (torch.log(p_ref) - torch.log(torch.softmax(z, 0)))).sum()
        retain.append(nll(z, y) if term == "nll" else kl)
    forget = mean([ce_towards(unlearning_target(z, y), z) for z, y, _ in toy.tokens("forget")])
    objective = Objective(method("ce-u"), spec)
    assert "retain" in objective.needs.parts
    assert_same(toy, objective.terms(toy.batch()), forget + 0.5 * mean(retain))


@pytest.mark.parametrize("name", registry.names("methods"))
def test_a_method_reads_exactly_what_it_declares(name: str, toy: Toy) -> None:
    full, made = toy.batch(), method(name)
    needs = made.needs
    # Every declared part must matter …
    leaves = {part: toy.logits[part] for part in needs.parts}
    loss = total(made.loss(full))
    for part, tensors in leaves.items():
        gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
        assert any(g is not None and bool(g.abs().sum() > 0) for g in gradients), part
    # … and nothing else may be read.
    declared = type(full)(
        {part: full.parts[part] for part in needs.parts},
        type(full.reference)(
            {p: full.reference.parts[p] for p in needs.logprobs | needs.distributions}
        ),
    )
    torch.testing.assert_close(total(made.loss(declared)), loss)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_finite_at_extreme_logits(name: str) -> None:
    toy = make_toy({"forget": (1, 2), "retain": (2, 1), "refusal": (1, 1)})
    for part, sequences in toy.logits.items():
        references = toy.reference[part]
        for leaf, labels, ref in zip(sequences, toy.labels[part], references, strict=True):
            leaf.data.mul_(40)
            for row, label, ref_row in zip(leaf.data, labels, ref, strict=True):
                row[label] = 300.0  # p_y rounds to 1 and 1 − p_y to 0
                masked = (label + 1) % len(row)  # a vocabulary entry that is never predicted
                row[masked] = ref_row[masked] = -math.inf
    loss = total(method(name).loss(toy.batch()))
    assert torch.isfinite(loss)
    for gradient in torch.autograd.grad(loss, toy.leaves(), allow_unused=True):
        assert gradient is None or torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", registry.names("methods"))
def test_an_empty_selection_is_zero_with_gradient_zero(name: str) -> None:
    toy = make_toy({"forget": (0, 0), "retain": (0, 0), "refusal": (0, 0)})
    loss = total(method(name).loss(toy.batch()))
    # NPO and DPO have a value where nothing is scored: that of a log-ratio of 0.
    assert torch.isfinite(loss)
    for gradient in torch.autograd.grad(loss, toy.leaves(), allow_unused=True):
        assert gradient is None or gradient.numel() == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("npo", {"beta": 0.0}),
        ("dpo", {"beta": -1.0}),
        ("general-ce-u", {"forget_score": 1.5}),
        ("general-ce-u", {"forget_score": math.nan, "raw": True}),
        ("ce-u", {"ignore_first_answer_tokens": -1}),
        ("gradient-difference", {"retain_wieght": 1.0}),
    ],
)
def test_hyperparameters_out_of_bounds_are_refused(name: str, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        method(name, **wrong)
