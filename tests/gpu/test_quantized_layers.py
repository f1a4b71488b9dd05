"""Quantisation on a GPU: the exact rule as on a CPU, and the kernels of bitsandbytes.

pytest -m gpu tests/gpu/test_quantized_layers.py     takes seconds; needs bitsandbytes
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unlearnbench.attacks._bitsandbytes_layers import replaced
from unlearnbench.attacks._quantized_layers import linear_layers
from unlearnbench.attacks.quantization import Quantization
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.stats.quantized_weights import Code, quantized

CODES: tuple[Code, ...] = ("nf4", "fp4", "int8-weights")
TOOLS: Any = None
SHAPE = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
TIES = 2e-3
"""Largest share of FP4 weights halfway between two codes, which the kernel rounds otherwise."""

pytestmark = pytest.mark.gpu
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: run `pytest -m gpu` where there is one")


@every_type
@pytest.mark.parametrize("code", CODES)
def test_the_rule_is_that_of_a_cpu(code: Code, dtype: torch.dtype) -> None:
    weight = (torch.randn(333, 190, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    assert torch.equal(quantized(weight.cuda(), code).cpu(), quantized(weight, code))


@every_type
@pytest.mark.parametrize("code", CODES)
def test_kernels_hold_the_weights_of_the_rule(
    code: Code, dtype: torch.dtype, build: Callable[[str, dict[str, Any]], Any]
) -> None:
    package = import_optional("bitsandbytes")
    model = build("qwen2", SHAPE).to("cuda", dtype)
    layers = linear_layers(model)
    with replaced(layers, code, package):
        for layer in layers:
            held, exact = layer.outer.weight, quantized(layer.matrix, code)
            if code == "int8-weights":
                rows = package.functional.int8_vectorwise_dequant(held.CB, held.SCB).to(dtype)
                # The kernel's division is approximate: halves can go the other way.
                step = held.SCB[:, None] / 127
                rounding = torch.finfo(dtype).eps * exact.float().abs()  # of two values
                assert ((rows - exact).float().abs() <= step * 1.01 + rounding).all()
                assert (rows != exact).float().mean() < TIES
                continue
            theirs = package.functional.dequantize_4bit(held.data, held.quant_state)
            differ = theirs != exact
            assert differ.float().mean() <= (TIES if code == "fp4" else 0)
            far, near = ((one - layer.matrix)[differ].abs().float() for one in (theirs, exact))
            assert torch.allclose(far, near, rtol=2**-7)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_answers_of_the_kernels_are_those_of_the_rule(
    code: Code, kind: str, build: Callable[[str, dict[str, Any]], Any]
) -> None:
    changes = SHAPE if kind == "qwen2" else {"hidden_size": 128, "n_layer": 2, "n_head": 2}
    model = build(kind, changes).to("cuda", torch.bfloat16)
    ids = torch.arange(64, device="cuda").view(2, 32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = dict(model.named_modules())
    found: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        full = model(input_ids=ids).logits.float().log_softmax(-1)
        for backend in ("bitsandbytes", "exact"):
            for _ in Quantization(codes=(code,), backend=backend).change(model, TOOLS):
                found[backend] = model(input_ids=ids).logits.float().log_softmax(-1)
            if backend == "bitsandbytes":
                assert dict(model.named_modules()) == modules
                after = model.state_dict()
                assert all(torch.equal(before[name], after[name]) for name in before)
    moved = (found["exact"] - full).abs().mean()
    apart = (found["exact"] - found["bitsandbytes"]).abs().mean()
    if code == "int8-weights":
        assert apart < 0.5  # LLM.int8() rounds activations too
    else:
        assert apart < moved / 4
