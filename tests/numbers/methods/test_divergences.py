"""Methods on whole distributions or on probabilities: UNDIAL, FLAT, PDU."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .conftest import (
    PROMPTED,
    Toy,
    assert_same,
    assert_same_gradients,
    ce_towards,
    loss_of,
    mean,
    method,
    nll,
    total,
)


def lowered(ref: Tensor, y: int, beta: float) -> Tensor:
    z = ref.clone()
    z[y] -= beta
    return torch.softmax(z, 0)


def test_undial(toy: Toy) -> None:
    beta, entropies, values = 3.0, list[Tensor](), list[Tensor]()
    for z, y, ref in toy.tokens("forget"):
        target = lowered(ref, y, beta)
        values.append(ce_towards(target, z))
        entropies.append(-(target * torch.log(target)).sum())
    loss = loss_of(toy, "undial", beta=beta)
    assert_same(toy, loss, mean(values) - mean(entropies))
    assert_same_gradients(toy, loss, mean(values))


def test_elm(toy: Toy) -> None:
    eta, weight, values, held = 2.5, 0.7, list[Tensor](), list[Tensor]()
    for z, _, ref in toy.tokens("forget"):
        expert, novice = (change(ref[None])[0].softmax(0) for change in PROMPTED)
        target = ref.softmax(0) * (novice / expert) ** eta
        target = target / target.sum()
        values.append((target * (target.log() - z.log_softmax(0))).sum())
    for z, _, ref in toy.tokens("retain"):
        target = ref.softmax(0)
        held.append((target * (target.log() - z.log_softmax(0))).sum())
    expected = mean(values) + weight * mean(held)
    loss = loss_of(toy, "elm", eta=eta, retain_weight=weight)
    assert_same(toy, loss, expected)


Function = Callable[[Tensor], Tensor]

GENERATORS: dict[str, tuple[Function, Function]] = {
    "jeffreys": (lambda u: (u - 1) * torch.log(u), lambda v: v),
    "jensen-shannon": (
        lambda u: u * torch.log(u) - (u + 1) * torch.log((u + 1) / 2),
        lambda v: torch.log(2 / (1 + torch.exp(-v))),
    ),
    "kl": (lambda u: u * torch.log(u), lambda v: v),
    "neyman": (lambda u: (1 - u) ** 2 / u, lambda v: 1 - torch.exp(-v)),
    "pearson": (lambda u: (u - 1) ** 2, lambda v: v),
    "reverse-kl": (lambda u: -torch.log(u), lambda v: -torch.exp(-v)),
    "squared-hellinger": (lambda u: (torch.sqrt(u) - 1) ** 2, lambda v: 1 - torch.exp(-v)),
    "total-variation": (lambda u: (u - 1).abs() / 2, lambda v: torch.tanh(v) / 2),
}
"""f of D_f(P ‖ Q) = E_Q f(P/Q), and the output activation g."""


def conjugate(f: Function, t: Tensor) -> Tensor:
    """f*(t) = max_u t u − f(u) by search: finer and finer grids; ∂f*/∂t is the maximal u."""
    low, best, high = math.log(1e-3), 0.0, math.log(1e3)
    for _ in range(12):
        grid = torch.linspace(low, high, 2001, dtype=torch.float64)
        i = int((t.detach() * grid.exp() - f(grid.exp())).argmax())
        low, best, high = (grid[max(0, min(k, 2000))].item() for k in (i - 1, i, i + 1))
    u = torch.tensor(best, dtype=torch.float64).exp()
    return t * u - f(u)


def row_probabilities(toy: Toy, part: str) -> list[Tensor]:
    rows = toy.sequences("forget" if part == "forget" else "refusal")
    return [mean([torch.exp(-nll(z, y)) for z, y, _ in row]) for row in rows]


@pytest.mark.parametrize("name", GENERATORS)
def test_flat(toy: Toy, name: str) -> None:
    f, g = GENERATORS[name]
    learned = [-g(p) for p in row_probabilities(toy, "refusal")]
    unlearned = [conjugate(f, g(p)) for p in row_probabilities(toy, "forget")]
    loss, formula = total(loss_of(toy, "flat", divergence=name)), mean(learned) + mean(unlearned)
    torch.testing.assert_close(loss, formula, rtol=1e-10, atol=1e-10)
    mine, theirs = (torch.autograd.grad(x, toy.logits["forget"]) for x in (loss, formula))
    for a, b in zip(mine, theirs, strict=True):  # u is known to half the digits of its maximum
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_pdu(toy: Toy) -> None:
    dual, epsilon = 2.5, 0.4
    margins = [(z.max() - z.sum() / len(z)) ** 2 for z, _, _ in toy.tokens("forget")]
    violation = mean([nll(z, y) for z, y, _ in toy.tokens("retain")]) - epsilon
    made = method("pdu", epsilon=epsilon, dual_start=dual)
    batch = toy.batch_for(made)
    assert_same(toy, made.loss(batch), mean(margins) + dual * violation)
    assert not batch.reported["violation"].requires_grad
    torch.testing.assert_close(batch.reported["violation"], violation.detach())


def test_the_dual_variable_rises_with_the_violation_and_is_never_negative() -> None:
    made = method("pdu", dual_start=1.0, dual_rate=0.5, warmup_epochs=2)
    state = made.start()
    assert state == {"dual": 1.0}
    assert made.advance(state, {"violation": 4.0}, 2) == state, "warm-up"
    assert made.advance(state, {"violation": 4.0}, 3) == {"dual": 3.0}
    assert made.advance(state, {"violation": -1.0}, 3) == {"dual": 0.5}
    assert made.advance(state, {"violation": -9.0}, 3) == {"dual": 0.0}
