"""Quantisation of a model's layers: which, from which weights, and what stays."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.attacks._bitsandbytes_layers import replaced
from unlearnbench.attacks._quantized_layers import linear_layers
from unlearnbench.attacks.quantization import Quantization
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.schema import LoRA
from unlearnbench.models.lora import add_lora
from unlearnbench.runs.under_attack import restored
from unlearnbench.stats.quantized_weights import Code, quantized

from ...families import FAMILIES, Family

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


MIXTURES = {
    "mixtral": ("mlp.experts", False),
    "qwen3-moe": ("mlp.experts", False),
    "olmoe": ("mlp.experts", False),
    "deepseek-v3": ("mlp.experts", False),
    "gpt-oss": ("mlp.experts", True),
    "llama4": ("feed_forward.experts", True),
}
"""Where the experts of a family are, and whether their matrices are [in, out]."""


@pytest.mark.parametrize("code", ["nf4", "fp4", "int8-weights"])
@pytest.mark.parametrize("name", [*MIXTURES])
def test_the_matrix_of_each_expert_is_quantised_by_itself(name: str, code: Code) -> None:
    model = FAMILIES[name].build()
    before = state(model)
    ((_, after),) = at_points(model, Quantization(codes=(code,)))
    place, transposed = MIXTURES[name]
    stacks = {n for n in before if f".{place}." in n and before[n].ndim == 3}
    assert len(stacks) == 2 * len({n.split(".")[2] for n in stacks})
    linear = {
        f"{n}.weight"
        for n, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and n != "lm_head"
    }
    assert changed(before, after) == stacks | linear
    for stack in stacks:
        for old, new in zip(before[stack], after[stack], strict=True):
            expected = quantized(old.T, code).T if transposed else quantized(old, code)
            assert torch.equal(new, expected)


@pytest.mark.parametrize("code", ["nf4", "fp4"])
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_experts_are_quantised_as_bitsandbytes_does(name: str, code: Any) -> None:
    """Sizes are multiples of the block, as bitsandbytes needs on a CPU."""
    try:
        package = import_optional("bitsandbytes")
    except ImportError as error:
        pytest.skip(f"bitsandbytes is not installed: {error}")
    family = FAMILIES[name]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    model = Family(family.kind, {**family.sizes, **sizes}, {**family.changes, **sizes}).build()
    before = state(model)
    ((_, after),) = at_points(model, Quantization(codes=(code,)))
    stacks = [n for n in before if before[n].ndim == 3]
    assert len(stacks) == 2 * 2
    for stack in stacks:
        for old, new in zip(before[stack], after[stack], strict=True):
            # [out, in] in the memory of a layer of its own
            matrix = (old.T if MIXTURES[name][1] else old).contiguous()
            packed, how = package.functional.quantize_4bit(matrix, quant_type=code)
            theirs = package.functional.dequantize_4bit(packed, how)
            assert torch.equal(new.T if MIXTURES[name][1] else new, theirs)


STAYING = (
    *(
        "embed_tokens.weight",
        "lm_head.weight",
        "wte.weight",
        "wpe.weight",
        "embed_positions.weight",
    ),
    *("embed_in.weight", "embed_out.weight", "word_embeddings.weight", "embeddings.weight"),
    *("gate.weight", "router.weight", "bias", "conv1d.weight", "A_log"),
)
"""Ends of names: embeddings and output layers; routers, biases of experts, and Mamba's states."""


@pytest.mark.parametrize("name", [*FAMILIES])
def test_almost_all_weights_inside_the_layers_are_quantised(name: str) -> None:
    model = FAMILIES[name].build()
    before = state(model)
    ((_, after),) = at_points(model, Quantization())
    weights = {n: p for n, p in model.named_parameters() if "vision_tower" not in n}
    wanted = {n for n, p in weights.items() if p.ndim >= 2 and not n.endswith(STAYING)}
    if name == "llama4":  # whose router is a linear layer
        wanted |= {n for n in weights if n.endswith("router.weight")}
    if name == "gemma3-vision":
        wanted.remove("model.multi_modal_projector.mm_input_projection_weight")
    assert changed(before, after) & weights.keys() == wanted


def test_a_model_in_which_too_much_would_stay_is_refused() -> None:
    model = FAMILIES["llama"].build()
    model.model.layers[0].mlp.big = torch.nn.Parameter(torch.ones(64, 64))
    with pytest.raises(EvaluationError) as caught:
        next(Quantization().change(model, TOOLS))
    assert str(caught.value) == (
        "attack quantization: only 82% of the weights in matrices inside the layers of "
        "LlamaForCausalLM would be quantised, and at least 90% have to be; left out: "
        "model.layers.0.mlp.big; leave the attack out for this model"
    )


def test_kernels_for_linear_layers_alone_do_not_suit_experts() -> None:
    with pytest.raises(EvaluationError, match=r"only \d+% .* leave out `backend`"):
        next(Quantization(backend="bitsandbytes").change(FAMILIES["mixtral"].build(), TOOLS))


def test_adapters_on_experts_are_merged_then_quantised() -> None:
    peft = pytest.importorskip("peft")
    plain = FAMILIES["gpt-oss"].build()
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], target_parameters=names)

    def with_adapters(model: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft calls transformers by deprecated names
            return peft.get_peft_model(model, config).eval()

    adapted = with_adapters(plain)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(generator=torch.Generator().manual_seed(0))
    before, ids = state(adapted), torch.arange(12)[None]
    logits = adapted(input_ids=ids).logits
    other = with_adapters(FAMILIES["gpt-oss"].build())
    other.load_state_dict(adapted.state_dict())
    expected = state(other.merge_and_unload())
    with restored(adapted):
        for _ in Quantization().change(adapted, TOOLS):
            stack = adapted.get_base_model().model.layers[0].mlp.experts
            while hasattr(stack, "get_base_layer"):
                stack = stack.get_base_layer()
            old = expected["model.layers.0.mlp.experts.down_proj"]
            for matrix, new in zip(old, stack.down_proj, strict=True):
                assert torch.equal(new, quantized(matrix.T, "nf4").T)
    assert not changed(before, state(adapted))
    assert torch.equal(adapted(input_ids=ids).logits, logits)
