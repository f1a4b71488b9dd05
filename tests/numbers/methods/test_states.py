"""RMU: hidden states, the direction they are steered to, and which weights change."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from unlearnbench.api.method import Part

from .conftest import DIRECTION, WIDTH, Toy, assert_same, loss_of, mean, method


def made(**hyperparameters: Any) -> Any:
    return method("rmu", **hyperparameters)


def row_mean(states: Tensor, targets: Tensor) -> Tensor:
    pairs = zip(states, targets, strict=True)
    return mean([sum_of_squares(h - target) for h, target in pairs])


def sum_of_squares(vector: Tensor) -> Tensor:
    return torch.stack([x * x for x in vector]).sum()


def test_rmu(toy: Toy) -> None:
    alpha, c = 3.0, 1.5
    target = c * made().direction(WIDTH)
    forget = [row_mean(h, target.expand_as(h)) for h in toy.states["forget"]]
    kept = zip(toy.states["retain"], toy.reference_states["retain"], strict=True)
    retain = [row_mean(h, ref) for h, ref in kept]
    loss = loss_of(toy, "rmu", steering=c, retain_weight=alpha)
    assert_same(toy, loss, mean(forget) + alpha * mean(retain))


def test_lunar(toy: Toy) -> None:
    alpha, c = 3.0, 1.5
    terms: dict[Part, list[Tensor]] = {"forget": [], "retain": []}
    targets: dict[Part, Tensor] = {"forget": c * DIRECTION, "retain": 0 * DIRECTION}
    for part, target in targets.items():
        for states, starts in zip(toy.states[part], toy.reference_states[part], strict=True):
            for h, ref in zip(states, starts, strict=True):
                terms[part].append(sum_of_squares(h - ref - target) / WIDTH)
    loss = loss_of(toy, "lunar", steering=c, retain_weight=alpha)
    assert_same(toy, loss, mean(terms["forget"]) + alpha * mean(terms["retain"]))


def test_lunar_needs_a_question_on_each_side() -> None:
    with pytest.raises(ValidationError, match="there must be a question on each side"):
        method("lunar", questions="What is it? |")
    assert method("lunar", questions="What? | Who?").needed().questions == ("What?", "Who?")


def test_states_in_half_precision_are_compared_in_single(toy: Toy) -> None:
    for states in (toy.states, toy.reference_states):
        for leaves in states.values():
            leaves[:] = [leaf.detach().bfloat16() for leaf in leaves]
    loss = loss_of(toy, "rmu")
    assert not isinstance(loss, Tensor)
    assert {term.dtype for term in loss.values()} == {torch.float32}


def test_the_direction_comes_from_its_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    direction = made(direction_seed=3).direction(64)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    torch.manual_seed(2)
    assert torch.equal(made(direction_seed=3).direction(64), direction)
    assert not torch.allclose(made(direction_seed=4).direction(64), direction)
    assert direction.norm().item() == pytest.approx(1.0, rel=1e-12)
    assert bool((direction >= 0).all())


@pytest.mark.parametrize(
    ("parameter", "trained"),
    [
        ("model.layers.3.mlp.down_proj.weight", False),
        ("model.layers.4.mlp.down_proj.weight", True),
        ("model.layers.6.mlp.down_proj.weight", True),
        ("model.layers.7.mlp.down_proj.weight", False),
        ("model.layers.5.mlp.up_proj.weight", False),
        ("model.layers.5.self_attn.o_proj.weight", False),
        ("base_model.model.model.layers.5.mlp.down_proj.lora_A.default.weight", True),
        ("model.layers.5.mlp.fc2.weight", True),
        ("model.layers.5.mlp.fc2.bias", False),
        ("gpt_neox.layers.5.mlp.dense_4h_to_h.weight", True),
        ("transformer.h.5.mlp.c_proj.weight", True),
        ("transformer.h.5.attn.c_proj.weight", False),
        ("model.layers.5.block_sparse_moe.experts.0.w2.weight", True),
        ("model.embed_tokens.weight", False),
        ("lm_head.weight", False),
    ],
)
def test_which_weights_are_trained(parameter: str, trained: bool) -> None:
    assert made(layer=7).trains(parameter, 32) is trained
    assert method("lunar", layer=7).trains(parameter, 32) is (trained and ".6." in parameter)
