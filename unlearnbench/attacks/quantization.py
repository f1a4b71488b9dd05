"""Weights of four or eight bits."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from unlearnbench.api.attack import AttackTools, WeightAttack
from unlearnbench.base.errors import EvaluationError, UnavailableError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.stats.quantized_weights import Code, quantized

OUTLIERS = 6.0
"""Activations beyond it stay in 16 bits in LLM.int8(), by its paper and by transformers' default.
"""


class Quantization(WeightAttack):
    """Quantise every linear layer but the output; embeddings stay.

    Zhang et al. 2025, arXiv:2410.16454: a low learning rate moves most weights by less than the
    width of a bin, so that at four bits the unlearned model is near the start model again.

    Conv1D layers of GPT-2 are quantised transposed, as transformers does. An adapter is merged
    first: what it wrote passes through the rounding, as all of a fully trained model does.
    `backend: bitsandbytes` runs bitsandbytes' CUDA kernels in place of the layers; eight bits are
    LLM.int8() then, activations included, and their evaluation is named `llm-int8`.
    """

    label = "Quantisation"
    roles = frozenset({"forget", "retain", "general"})
    white_box = True

    codes: tuple[Code, ...] = Field(
        default=("nf4",), min_length=1, description="each is evaluated, from the full weights"
    )
    backend: Literal["exact", "bitsandbytes"] = Field(
        default="exact",
        description="exact: weights are rounded in memory, on any device; bitsandbytes: its layers "
        "on CUDA",
    )

    @field_validator("codes")
    @classmethod
    def _once(cls, codes: tuple[Code, ...]) -> tuple[Code, ...]:
        if len(set(codes)) < len(codes):
            raise ValueError("expected each code once")
        return codes

    def points(self) -> tuple[str, ...]:
        """The codes."""
        kernels = self.backend == "bitsandbytes"
        return tuple("llm-int8" if kernels and c == "int8-weights" else c for c in self.codes)

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Yield with the weights of each code in turn.

        Raises: EvaluationError where there is nothing to quantise, or no CUDA for `bitsandbytes`;
        UnavailableError where that is not installed.
        """
        layers = linear_layers(model)
        package = None
        if self.backend == "bitsandbytes":
            package = bitsandbytes_for(layers[0].weight.device)
        for code, point in zip(self.codes, self.points(), strict=True):
            with _merged(layers, restored=code != self.codes[-1]):
                if package is None:
                    for layer in layers:
                        layer.matrix.copy_(quantized(layer.matrix, code))
                    yield point
                else:
                    with replaced(layers, code, package):
                        yield point


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer in its place in the model."""

    parent: nn.Module
    name: str
    """Name of the attribute of `parent`."""
    base: nn.Module
    """Holds weight and bias; within `parent.name` where an adapter of peft is around it."""
    transposed: bool = False
    """True if `weight` is [in, out]."""

    @property
    def weight(self) -> Tensor:
        """The weight as the layer has it."""
        return torch.as_tensor(self.base.weight).detach()

    @property
    def matrix(self) -> Tensor:
        """[out, in] a view of the weight."""
        return self.weight.T if self.transposed else self.weight

    @property
    def outer(self) -> Any:
        """The layer, or the adapter around it."""
        return self.parent.get_submodule(self.name)


def linear_layers(model: Any) -> list[LinearLayer]:
    """Linear layers with weights of their own, without those of adapters and of the output.

    Raises: EvaluationError where there is none, or where one is quantised already.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    seen = {id(p) for end in ends if end is not None for p in end.parameters()}
    layers: list[LinearLayer] = []
    for layer in _linear(model):
        if id(layer.base.weight) not in seen:
            seen.add(id(layer.base.weight))
            layers.append(layer)
    if not layers:
        raise EvaluationError(
            f"attack quantization: {type(model).__name__} has no linear layer besides its output; "
            "leave the attack out for this model"
        )
    other = next((item for item in layers if not item.weight.is_floating_point()), None)
    if other is not None:
        raise EvaluationError(
            f"attack quantization: {other.name} has weights of type {other.weight.dtype}: the "
            "model is quantised already; attack the model that it was made from"
        )
    return layers


def _linear(module: nn.Module) -> Iterator[LinearLayer]:
    # Loaded by then, as the model is one of its own; listing attacks must not need it.
    from transformers.pytorch_utils import Conv1D

    for name, child in module.named_children():
        base = getattr(child, "base_layer", child)  # peft's name for what an adapter is around
        if isinstance(base, nn.Linear | Conv1D):
            yield LinearLayer(module, name, base, isinstance(base, Conv1D))
        else:
            yield from _linear(child)


@contextmanager
def _merged(layers: list[LinearLayer], *, restored: bool) -> Generator[None, None, None]:
    """Merge the adapters of layers within the block.

    restored  with the weights as before after it; else the caller restores them
    """
    copies = [layer.weight.clone() for layer in layers] if restored else []
    adapters = [
        item.outer for item in layers if item.outer is not item.base and not item.outer.merged
    ]
    try:
        for adapter in adapters:
            adapter.merge()
        yield
    finally:
        for adapter in adapters:
            adapter.unmerge()  # of rounded weights: its mark alone counts
        for layer, copy in zip(layers, copies, strict=False):
            layer.weight.copy_(copy)


def bitsandbytes_for(device: torch.device) -> Any:
    """The package bitsandbytes, for layers on `device`.

    Raises: UnavailableError where it is not installed, EvaluationError for another device than
    CUDA: on a CPU it dequantises wrongly where a row is no multiple of the block (0.50.2).
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
    """Put layers of bitsandbytes in the place of `layers` within the block.

    package  bitsandbytes
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
    """A quantised copy of the layer, of bitsandbytes' class."""
    layers, matrix = package.nn, layer.matrix.contiguous()
    given: Any = layer.base.bias
    # A copy: bitsandbytes converts the bias of its layer in place.
    bias = None if given is None else nn.Parameter(given.detach().clone(), requires_grad=False)
    sizes = (matrix.shape[1], matrix.shape[0], bias is not None)
    made: Any
    if code == "int8-weights":
        made = layers.Linear8bitLt(
            *sizes, has_fp16_weights=False, threshold=OUTLIERS, device=torch.device("meta")
        )
        rows, scale, _ = package.functional.int8_vectorwise_quant(matrix.half())
        made.weight = layers.Int8Params(rows, requires_grad=False, CB=rows, SCB=scale)
    else:
        made = layers.Linear4bit(*sizes, compute_dtype=matrix.dtype, device=torch.device("meta"))
        weight = layers.Params4bit(
            matrix, requires_grad=False, compress_statistics=False, quant_type=code, module=made
        )
        made.weight = weight.to(matrix.device)  # quantises
    made.bias = bias
    made.eval()
    return cast("nn.Module", made)
