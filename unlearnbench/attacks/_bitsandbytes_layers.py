"""Layers of bitsandbytes in the place of a model's linear layers, for the attack `quantization`."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from unlearnbench.attacks._quantized_layers import LinearLayer
from unlearnbench.base.errors import EvaluationError, UnavailableError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.stats.quantized_weights import Code

OUTLIERS = 6.0
"""Activations above this size stay in 16 bits in LLM.int8(), in its paper and by default in
transformers."""


def bitsandbytes_for(device: torch.device) -> Any:
    """Import the package bitsandbytes, for layers on a device.

    Raises:
        EvaluationError: The device is not CUDA. On a CPU, bitsandbytes 0.50.2 dequantises wrongly
            if a row is no multiple of the block.
        UnavailableError: The package is not installed.
    """
    if device.type != "cuda":
        raise EvaluationError(
            f"attack quantization: backend: bitsandbytes runs on CUDA, and the model is on "
            f"{device.type}; leave the key out: `exact` rounds alike on every device"
        )
    try:
        return import_optional("bitsandbytes")
    except ImportError as error:
        raise UnavailableError(
            f"attack quantization: backend: bitsandbytes needs bitsandbytes ({error}): "
            "pip install 'unlearnbench[8bit]', or leave the key out for `exact`"
        ) from None


@contextmanager
def replaced(layers: list[LinearLayer], code: Code, package: Any) -> Generator[None, None, None]:
    """Replace layers by layers of bitsandbytes within the block.

    Args:
        layers: Linear layers of a model.
        code: Code of the quantised weights.
        package: The package bitsandbytes.
    """
    before = [layer.outer for layer in layers]
    try:
        for layer in layers:
            setattr(layer.parent, layer.name, _kernel_layer(layer, code, package))
        yield
    finally:
        for layer, outer in zip(layers, before, strict=True):
            setattr(layer.parent, layer.name, outer)


@torch.no_grad()
def _kernel_layer(layer: LinearLayer, code: Code, package: Any) -> nn.Module:
    """Return a quantised copy of a layer, of a class of bitsandbytes."""
    matrix = layer.matrix.contiguous()
    bias: Any = layer.base.bias
    if bias is not None:
        # A copy, because bitsandbytes converts the bias of its layer in place.
        bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    out_size, in_size = matrix.shape
    meta = torch.device("meta")  # the weight is set below
    kernel: Any
    if code == "int8-weights":
        kernel = package.nn.Linear8bitLt(
            in_size,
            out_size,
            bias is not None,
            has_fp16_weights=False,
            threshold=OUTLIERS,
            device=meta,
        )
        rows, scale, _ = package.functional.int8_vectorwise_quant(matrix.half())
        kernel.weight = package.nn.Int8Params(rows, requires_grad=False, CB=rows, SCB=scale)
    else:
        kernel = package.nn.Linear4bit(
            in_size, out_size, bias is not None, compute_dtype=matrix.dtype, device=meta
        )
        weight = package.nn.Params4bit(
            matrix, requires_grad=False, compress_statistics=False, quant_type=code, module=kernel
        )
        kernel.weight = weight.to(matrix.device)  # quantises
    kernel.bias = bias
    kernel.eval()
    return cast("nn.Module", kernel)
