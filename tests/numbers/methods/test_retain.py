"""Composition: any forget term with any retain term is their sum, in value and gradient."""

import pytest
import torch
from torch import Tensor

from unlearnbench.config.schema import RetainSpec, RetainTermName
from unlearnbench.training.objective import Objective

from .conftest import (
    Toy,
    assert_same,
    ce_towards,
    kl,
    mean,
    method,
    nll,
    total,
    unlearning_target,
)

WEIGHT = 0.5
TERMS: tuple[RetainTermName, ...] = ("nll", "kl")


def retain_term(toy: Toy, term: RetainTermName) -> Tensor:
    tokens = toy.tokens("retain")
    return mean([nll(z, y) if term == "nll" else kl(ref, z) for z, y, ref in tokens])


def npo(toy: Toy) -> Tensor:
    ratios = toy.log_ratios("forget")
    return mean([2 / 0.1 * torch.log(1 + torch.exp(r) ** 0.1) for r in ratios])


def dpo(toy: Toy) -> Tensor:
    pairs = zip(toy.log_ratios("refusal"), toy.log_ratios("forget"), strict=True)
    return mean([-torch.log(1 / (1 + torch.exp(-0.1 * (win - lose)))) for win, lose in pairs])


def ce_u(toy: Toy) -> Tensor:
    return mean([ce_towards(unlearning_target(z, y), z) for z, y, _ in toy.tokens("forget")])


FORGET = {"ce-u": ce_u, "dpo": dpo, "npo": npo}


@pytest.mark.parametrize("name", FORGET)
@pytest.mark.parametrize("term", [None, *TERMS])
def test_a_forget_term_with_and_without_a_retain_term(
    toy: Toy, name: str, term: RetainTermName | None
) -> None:
    formula = FORGET[name](toy)
    spec = None
    if term is not None:
        formula = formula + WEIGHT * retain_term(toy, term)
        spec = RetainSpec(term=term, weight=WEIGHT)
    objective = Objective(method(name), spec)
    assert_same(toy, objective.terms(toy.batch()), formula)


def test_gradient_ascent_with_a_retain_term_is_the_named_method(toy: Toy) -> None:
    for name, term in (("gradient-difference", "nll"), ("kl-minimization", "kl")):
        spec = RetainSpec(term="nll" if term == "nll" else "kl", weight=WEIGHT)
        composed = Objective(method("gradient-ascent"), spec).terms(toy.batch())
        named = method(name, retain_weight=WEIGHT).loss(toy.batch())
        assert_same(toy, named, total(composed))
