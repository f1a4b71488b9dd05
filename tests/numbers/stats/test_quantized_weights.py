"""Rounding of weights against plain loops, against bitsandbytes, and by its own rules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unlearnbench.base.optional_packages import import_optional
from unlearnbench.stats import quantized_weights
from unlearnbench.stats.quantized_weights import FP4, NF4, Code, quantized

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FOUR: tuple[tuple[Code, tuple[float, ...]], ...] = (("nf4", NF4), ("fp4", FP4))
every_code = pytest.mark.parametrize("code", ["nf4", "fp4", "int8-weights"])
every_type = pytest.mark.parametrize("dtype", DTYPES)


def some_weights(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed, with a row of zeros, a small one and one with an outlier."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 0.02
    weight[0] = 0
    weight[1] *= 1e-3
    weight[2, 3] = 4.0
    return weight.to(dtype)


def plain(weight: Tensor, code: Code) -> Tensor:
    """One weight after the other, in fp32."""
    single = np.float32
    if code == "int8-weights":
        rows = [[single(v) for v in row] for row in weight.half().float().tolist()]
        scales = [max(max(map(abs, row)), single(1e-8)) for row in rows]
        found = [
            [single(round(v * (single(127) / s))) * s * single(1 / 127) for v in row]
            for row, s in zip(rows, scales, strict=True)
        ]
        return torch.tensor(np.array(found)).to(weight.dtype)
    values = np.array(dict(FOUR)[code], dtype=single)
    line = np.array(weight.float().flatten().tolist(), dtype=single)
    for begin in range(0, len(line), 64):
        block = line[begin : begin + 64]
        scale = max(abs(v) for v in block)
        inverse = single(1) / max(scale, single(1e-38))
        block[:] = [
            values[np.argmin([abs(v * inverse - c) for c in values])] * scale for v in block
        ]
    return torch.tensor(line).view_as(weight).to(weight.dtype)


@every_code
@every_type
@pytest.mark.parametrize("shape", [(8, 64), (5, 70), (7, 9)])
def test_it_equals_plain_loops(
    code: Code, dtype: torch.dtype, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_weights, "_BLOCKS", 3)  # a large weight goes in parts
    weight = some_weights(*shape, dtype=dtype)
    before = weight.clone()
    found = quantized(weight, code)
    assert found.dtype == dtype
    assert torch.equal(found, plain(weight, code))
    assert torch.equal(weight, before)
    across = weight.T.contiguous().T  # another layout in memory, the same weight
    assert torch.equal(quantized(across, code), found)


def test_values_halfway_between_integers_go_to_the_even_one() -> None:
    row = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    found = quantized(row, "int8-weights")
    assert found.round().tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0]]


@every_type
@pytest.mark.parametrize("shape", [(64, 256), (16, 64), (96, 192)])
def test_it_equals_bitsandbytes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Rows are multiples of the block: on a CPU its result for others is wrong (0.50.2)."""
    try:
        functional: Any = import_optional("bitsandbytes").functional
    except ImportError as error:
        pytest.skip(f"bitsandbytes is not installed: {error}")
    weight = some_weights(*shape, dtype=dtype)
    quantize: Callable[..., Any] = functional.quantize_4bit
    for code, _ in FOUR:
        packed = quantize(weight.clone(), blocksize=64, quant_type=code)
        assert torch.equal(quantized(weight, code), functional.dequantize_4bit(*packed))
    rows, scales, _ = functional.int8_vectorwise_quant(weight.half())
    eight = functional.int8_vectorwise_dequant(rows, scales).to(dtype)
    assert torch.equal(quantized(weight, "int8-weights"), eight)
