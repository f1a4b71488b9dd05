"""Round the weights to four or eight bits."""

from collections.abc import Generator, Iterator, Sequence
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


LEAST_COVERED = 0.9
"""Least share of the weights in matrices inside the layers that has to be quantised."""
_NAMED = 3
"""Weights named in a message, at most."""


class Quantization(WeightAttack):
    """Quantise every matrix inside the layers; embeddings and the output layer stay.

    Zhang et al. 2025, arXiv:2410.16454: a low learning rate moves most weights by less than the
    width of a bin, so that at four bits the unlearned model is near the start model again.

    Conv1D layers of GPT-2 are quantised transposed, as transformers does. The experts of a mixture
    are stacked in parameters with three dimensions; each expert's matrix is quantised by itself.
    Routers, convolutions and state matrices stay. A model in which more than a tenth of such
    weights would stay is refused. An adapter is merged first: what it wrote passes through the
    rounding, as all of a fully trained model does.
    `backend: bitsandbytes` runs bitsandbytes' CUDA kernels in place of the layers; eight bits are
    LLM.int8() then, activations included, and their evaluation is named `llm-int8`.
    """

    label = "Quantisation"
    roles = frozenset({"forget", "retain", "general"})
    white_box = True

    codes: tuple[Code, ...] = Field(
        default=("nf4",),
        min_length=1,
        description="codes of the quantised weights; the model is evaluated with each code, "
        "always from the full weights",
    )
    backend: Literal["exact", "bitsandbytes"] = Field(
        default="exact",
        description="exact: weights are rounded in memory, on any device; bitsandbytes: layers "
        "of bitsandbytes, on CUDA",
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

        Raises: EvaluationError where there is nothing to quantise, where too much would stay, or no
        CUDA for `bitsandbytes`; UnavailableError where that is not installed.
        """
        kernels = self.backend == "bitsandbytes"
        layers = linear_layers(model)
        # bitsandbytes has layers in place of linear ones only.
        stacks = [] if kernels else expert_stacks(model)
        quantised: list[LinearLayer | ExpertStack] = [*layers, *stacks]
        check_coverage(model, quantised, kernels=kernels)
        package = bitsandbytes_for(layers[0].weight.device) if kernels else None
        for code, point in zip(self.codes, self.points(), strict=True):
            with _merged(quantised, restored=code != self.codes[-1]):
                if package is None:
                    for layer in layers:
                        layer.matrix.copy_(quantized(layer.matrix, code))
                    for stack in stacks:
                        for matrix in stack.matrices:
                            matrix.copy_(quantized(matrix, code))
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

    @property
    def adapters(self) -> list[Any]:
        """The adapters of the weight."""
        return [] if self.outer is self.base else [self.outer]


@dataclass(frozen=True, eq=False)
class ExpertStack:
    """The matrices of all experts of a layer, stacked in one parameter with three dimensions."""

    module: nn.Module
    """The experts, which hold the parameter."""
    name: str
    """Name of the parameter in `module`."""
    transposed: bool
    """True if the matrices are [in, out]."""
    adapters: list[Any]
    """Those of peft around this parameter."""

    @property
    def weight(self) -> Tensor:
        """The parameter [experts, ·, ·] as the module has it."""
        return torch.as_tensor(getattr(self.module, self.name)).detach()

    @property
    def matrices(self) -> list[Tensor]:
        """By expert, an [out, in] view of the matrix."""
        return [matrix.T if self.transposed else matrix for matrix in self.weight.unbind()]


def expert_stacks(model: nn.Module) -> list[ExpertStack]:
    """The stacked matrices of experts. Weights of convolutions are no such stacks."""
    adapters: dict[tuple[nn.Module, str], list[Any]] = {}
    for module in model.modules():
        name: Any = getattr(module, "parameter_name", None)
        if name is not None and hasattr(module, "get_base_layer"):  # peft's adapter of a parameter
            part: Any = module
            adapters.setdefault((part.get_base_layer(), name), []).append(part)
    stacks: list[ExpertStack] = []
    for module in model.modules():
        if isinstance(module, _CONVOLUTIONS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3 and len(parameter) > 1 and parameter.is_floating_point():
                around = adapters.get((module, name), [])
                stacks.append(ExpertStack(module, name, _is_transposed(module), around))
    return stacks


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _is_transposed(experts: Any) -> bool:
    """True if the experts' matrices are [in, out].

    transformers says so of experts with several implementations. Those of Llama 4 have only one, so
    their sizes tell: both matrices of an expert have the hidden size, where inputs come in and
    outputs go out.
    """
    stated = getattr(experts, "is_transposed", None)
    if isinstance(stated, bool):
        return stated
    up = getattr(experts, "gate_up_proj", None)
    down = getattr(experts, "down_proj", None)
    if not isinstance(up, Tensor) or not isinstance(down, Tensor) or not up.ndim == down.ndim == 3:
        return False
    # [experts, hidden, 2 · inner] and [experts, inner, hidden]
    return up.shape[1] == down.shape[2] and up.shape[2] == 2 * down.shape[1]


def check_coverage(
    model: Any, quantised: Sequence[LinearLayer | ExpertStack], *, kernels: bool
) -> None:
    """Raise EvaluationError where too few of the weights inside the layers are quantised.

    Args:
        model: The model, with adapters or without.
        quantised: Its weights that are quantised.
        kernels: Whether by layers of bitsandbytes, which experts cannot be put into.
    """
    covered = {part.weight.data_ptr() for part in quantised}
    left_out: dict[str, int] = {}
    total = 0
    for name, parameter in _matrices(model):
        total += parameter.numel()
        if parameter.data_ptr() not in covered:
            left_out[name] = parameter.numel()
    share = 1 - sum(left_out.values()) / max(total, 1)
    if share >= LEAST_COVERED:
        return
    largest = sorted(left_out, key=lambda name: -left_out[name])
    named = ", ".join(largest[:_NAMED]) + (", …" if len(largest) > _NAMED else "")
    fix = "leave the attack out for this model"
    if kernels:
        fix = f"leave out `backend`, which has no layers for experts, or {fix}"
    raise EvaluationError(
        f"attack quantization: only {share:.0%} of the weights in matrices inside the layers of "
        f"{type(model).__name__} would be quantised, and at least {LEAST_COVERED:.0%} have to be; "
        f"left out: {named}; {fix}"
    )


def _matrices(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights of the text decoder with two dimensions or more.

    Not those of embeddings, the output layer and adapters, nor those of a vision tower.
    """
    find_decoder = getattr(model, "get_decoder", None)
    decoder: nn.Module = model if find_decoder is None else find_decoder()
    inside = {id(parameter) for parameter in decoder.parameters()}
    ends = (model.get_output_embeddings(), *_embeddings(model))
    inside -= {id(p) for end in ends if end is not None for p in end.parameters()}
    for name, parameter in model.named_parameters():
        is_adapter = any(part.startswith("lora_") for part in name.split("."))
        if parameter.ndim >= 2 and id(parameter) in inside and not is_adapter:
            yield name.removeprefix("base_model.model."), parameter.detach()


def _embeddings(model: nn.Module) -> Iterator[nn.Module]:
    return (module for module in model.modules() if isinstance(module, nn.Embedding))


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
        elif not name.startswith("lora_"):  # the matrices of an adapter around experts
            yield from _linear(child)


@contextmanager
def _merged(
    layers: Sequence[LinearLayer | ExpertStack], *, restored: bool
) -> Generator[None, None, None]:
    """Merge the adapters of layers and experts within the block.

    restored  with the weights as before after it; else the caller restores them
    """
    copies = [layer.weight.clone() for layer in layers] if restored else []
    adapters = [part for layer in layers for part in layer.adapters if not part.merged]
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
