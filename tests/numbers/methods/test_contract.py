"""Every registered method reads exactly the declared parts, and has a finite loss."""

import math

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.method import PARTS, Part

from .conftest import Toy, gradients, loss_of, make_toy, method, total

NAMES = [name for name in registry.names("methods") if registry.trains(name)]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_reads_exactly_what_it_declares(name: str, toy: Toy) -> None:
    loss = total(loss_of(toy, name))  # of a batch that holds nothing else
    for part in method(name).needed().parts:
        leaves = [*toy.logits[part], *toy.states[part]]
        found = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        assert any(g is not None and bool(g.abs().sum() > 0) for g in found), part


@pytest.mark.parametrize("name", NAMES)
def test_finite_at_extreme_logits(name: str) -> None:
    lengths: dict[Part, tuple[int, ...]] = {"forget": (1, 2), "retain": (2, 1), "refusal": (1, 1)}
    lengths |= {"alternative": (2, 1), "sample": (1, 2) * 4}
    lengths |= {"whole": (2, 3), "retain_refusal": (1, 2)}
    toy = make_toy(lengths)
    for part, sequences in toy.logits.items():
        references = toy.reference[part]
        for leaf, labels, ref in zip(sequences, toy.labels[part], references, strict=True):
            leaf.data.mul_(40)
            for row, label, ref_row in zip(leaf.data, labels, ref, strict=True):
                row[label] = 300.0  # p_y rounds to 1 and 1 − p_y to 0
                masked = (label + 1) % len(row)  # a vocabulary entry that is never predicted
                row[masked] = ref_row[masked] = -math.inf
    loss = loss_of(toy, name)
    assert torch.isfinite(total(loss))
    for gradient in gradients(toy, loss):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_selection_is_finite_with_gradient_zero(name: str) -> None:
    toy = make_toy({part: (0,) * 8 for part in PARTS})
    loss = total(loss_of(toy, name))
    # Sequence methods have a value where nothing is scored: NPO that of a log-ratio of 0.
    assert torch.isfinite(loss)
    for gradient in gradients(toy, loss):
        assert gradient.numel() == 0
