"""Quantisation of a model's layers: which, from which weights, and what stays."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.attacks.quantization import (
    Quantization,
    linear_layers,
    replaced,
)
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.schema import LoRA
from unlearnbench.models.loading import add_lora
from unlearnbench.runs.under_attack import restored
from unlearnbench.stats.quantized_weights import Code, quantized

TOOLS: Any = None
"""The attack uses none."""
OTHERS = {"GPT-2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2}), "tied": ("gemma", {})}


def state(model: Any) -> dict[str, Tensor]:
    """Every weight and buffer, as it is now."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in named}


def at_points(model: Any, attack: Quantization) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The points, with the weights at each."""
    for point in attack.change(model, TOOLS):
        yield point, state(model)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that differ."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_every_linear_layer_but_the_output_is_quantised_and_nothing_else(model: Any) -> None:
    before = state(model)
    ((point, after),) = at_points(model, Quantization())
    assert point == "nf4"
    layers = {name for name in before if name.endswith("proj.weight")}
    assert len(layers) == 2 * 7
    assert changed(before, after) == layers
    for name in layers:
        assert torch.equal(after[name], quantized(before[name], "nf4"))


@pytest.mark.parametrize("name", [*OTHERS])
def test_transposed_layers_and_tied_outputs(
    name: str, build: Callable[[str, dict[str, Any]], Any]
) -> None:
    model = build(*OTHERS[name])
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    before = state(model)
    ((_, after),) = at_points(model, Quantization(codes=("int8-weights",)))
    layers = {n for n in before if before[n].ndim == 2 and "embed" not in n and "wte" not in n}
    layers -= {"transformer.wpe.weight"}
    assert changed(before, after) == layers
    for layer in layers:
        # GPT-2 has its weights [in, out]; the scales are those of outputs.
        weight, found = before[layer], after[layer]
        if name == "GPT-2":
            weight, found = weight.T, found.T
        assert torch.equal(found, quantized(weight, "int8-weights"))


def test_an_adapter_is_merged_then_quantised_and_is_itself_again(model: Any) -> None:
    adapted = add_lora(model, LoRA(rank=2)).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    before = state(adapted)
    trained = {name: weight.requires_grad for name, weight in adapted.named_parameters()}
    ids = torch.arange(12)[None]
    plain = adapted(input_ids=ids).logits
    layers = linear_layers(adapted)
    assert len(layers) == 2 * 7
    merged = [(one.weight + one.outer.get_delta_weight("default")).detach() for one in layers]

    codes: tuple[Code, ...] = ("nf4", "fp4")
    with restored(adapted):
        points = Quantization(codes=codes).change(adapted, TOOLS)
        for code, point in zip(codes, points, strict=True):
            assert code == point
            for layer, weight in zip(layers, merged, strict=True):
                assert torch.equal(layer.weight, quantized(weight, code))
            assert all(one.outer.merged for one in layers)
            assert not torch.equal(adapted(input_ids=ids).logits, plain)
    assert not any(one.outer.merged for one in layers)
    assert not changed(before, state(adapted))
    assert trained == {name: weight.requires_grad for name, weight in adapted.named_parameters()}
    assert torch.equal(adapted(input_ids=ids).logits, plain)


@pytest.mark.parametrize("code", ["nf4", "fp4", "int8-weights"])
def test_its_layers_hold_the_same_weights_and_the_models_own_come_back(
    code: Any, build: Callable[[str, dict[str, Any]], Any]
) -> None:
    """Replacing works on any device; kernels are in `tests/gpu`."""
    try:
        package = import_optional("bitsandbytes")
    except ImportError as error:
        pytest.skip(f"bitsandbytes is not installed: {error}")
    # Rows of whole blocks, as bitsandbytes needs on a CPU.
    model = build("gpt2", {"hidden_size": 64, "n_layer": 1, "n_head": 2})
    before, modules = state(model), dict(model.named_modules())
    layers = linear_layers(model)
    with restored(model), replaced(layers, code, package):
        for layer in layers:
            now: Any = layer.outer
            exact = quantized(layer.matrix, code)
            if code == "int8-weights":
                rows = now.weight.CB, now.weight.SCB
                theirs = package.functional.int8_vectorwise_dequant(*rows)
            else:
                theirs = package.functional.dequantize_4bit(now.weight.data, now.weight.quant_state)
            assert torch.equal(theirs, exact)
            own: Any = layer.base.bias
            assert torch.equal(now.bias, own)
            assert now.bias.data_ptr() != own.data_ptr()
    assert dict(model.named_modules()) == modules
    assert not changed(before, state(model))
