"""Composition: any forget term with any retain term is their sum, in value and gradient."""

import pytest
from torch import Tensor

from unlearnbench.config.schema import RetainSpec, RetainTermName
from unlearnbench.training.objective import Objective

from .conftest import Toy, assert_same, kl, mean, method, nll, total

WEIGHT = 0.5
TERMS: tuple[RetainTermName, ...] = ("nll", "kl")


def retain_term(toy: Toy, term: RetainTermName) -> Tensor:
    tokens = toy.tokens("retain")
    return mean([nll(z, y) if term == "nll" else kl(ref, z) for z, y, ref in tokens])


@pytest.mark.parametrize("name", ["ce-u", "dpo", "npo"])
@pytest.mark.parametrize("term", [None, *TERMS])
def test_a_forget_term_with_and_without_a_retain_term(
    toy: Toy, name: str, term: RetainTermName | None
) -> None:
    formula = total(method(name).loss(toy.batch()))
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
