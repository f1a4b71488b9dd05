"""Gradient ascent with a weight per token: WGA, TNPO and WTNPO, SatImp."""

import math

import pytest
import torch
from torch import Tensor

from .conftest import (
    Toy,
    assert_same,
    loss_of,
    make_toy,
    mean,
    nll,
    total,
)


def probability(z: Tensor, y: int) -> Tensor:
    return torch.exp(z[y]) / torch.exp(z).sum()


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.5])
def test_wga(toy: Toy, beta: float) -> None:
    values = [-(probability(z, y).detach() ** beta) * nll(z, y) for z, y, _ in toy.tokens("forget")]
    assert_same(toy, loss_of(toy, "wga", beta=beta), mean(values))


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_tnpo(toy: Toy, alpha: float) -> None:
    beta, values = 4.0, list[Tensor]()
    for z, y, ref in toy.tokens("forget"):
        p, p_ref = probability(z, y).detach(), probability(ref, y)
        weight = 2 * p**beta / (p**beta + p_ref**beta) * p**alpha
        values.append(-weight * nll(z, y))
    assert_same(toy, loss_of(toy, "tnpo", beta=beta, alpha=alpha), mean(values))


@pytest.mark.parametrize(("beta1", "beta2"), [(5.0, 1.0), (0.5, 2.0), (0.0, 0.0)])
def test_satimp(toy: Toy, beta1: float, beta2: float) -> None:
    values: list[Tensor] = []
    for z, y, _ in toy.tokens("forget"):
        p = probability(z, y).detach()
        values.append(-(p**beta1) * (1 - p) ** beta2 * nll(z, y))
    assert_same(toy, loss_of(toy, "satimp", beta1=beta1, beta2=beta2), mean(values))


def test_the_rest_of_a_certain_token_is_exact() -> None:
    # Log-odds 50: 1 − p = e^−50 is far below float64's 1 − p, and log p = −e^−50 to 22 digits.
    toy = make_toy({"forget": (1,)})
    toy.logits["forget"][0].data = torch.tensor([[50.0, -math.inf, 0.0]], dtype=torch.float64)
    toy.labels["forget"][0][0] = 0
    toy.reference["forget"][0] = torch.zeros(1, 3, dtype=torch.float64)
    loss = total(loss_of(toy, "satimp"))
    assert loss.item() == pytest.approx(-math.exp(-100), rel=1e-12)
