"""The logit lens: a model that ends behind an inner layer, and the same model afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unlearnbench.attacks.logit_lens import LogitLens
from unlearnbench.config.schema import LoRA
from unlearnbench.models.lora import add_lora

from .conftest import PlainTools

IDS = torch.arange(3, 30).unsqueeze(0)


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("adapter", [False, True])
def test_states_are_read_by_the_start_models_norm_and_output_layer(
    adapter: bool, model: Any, make_model: Callable[[], Any], tools: Callable[..., PlainTools]
) -> None:
    """With tied embeddings: the input stays the unlearned model's own."""
    start = make_model()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        for own, parameter in enumerate(model.parameters()):
            parameter.mul_(1 + 0.1 * (own % 3))
    attacked = add_lora(model, LoRA(rank=2)).eval() if adapter else model
    before = logits(attacked), [*attacked.named_modules()], [*attacked.named_parameters()]
    with torch.no_grad():
        states = attacked(input_ids=IDS, output_hidden_states=True).hidden_states
        # The library's last state has been normed by the model's own norm.
        last: list[Tensor] = []

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            last.append(inputs[0])

        norm = model.model.norm.register_forward_pre_hook(note)
        attacked(input_ids=IDS)
        norm.remove()
        expected = [start.lm_head(start.model.norm(state)) for state in (states[1], last[0])]
    points = LogitLens(depths=(50, 51, 100)).change(attacked, tools(start=start))
    found = {point: logits(attacked) for point in points}
    assert [*found] == ["50", "51", "100"]
    for point, state in zip(found, (expected[0], expected[1], expected[1]), strict=True):
        torch.testing.assert_close(found[point], state, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found["100"], before[0], atol=1e-2)
    assert torch.equal(logits(attacked), before[0])
    assert [*attacked.named_modules()] == before[1]
    assert [name for name, _ in attacked.named_parameters()] == [name for name, _ in before[2]]
    assert model.config.num_hidden_layers == 2
