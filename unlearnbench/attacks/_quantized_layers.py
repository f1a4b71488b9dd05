"""Which matrices of a model the attack `quantization` rounds: linear layers and stacked experts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.base.errors import EvaluationError

LEAST_COVERED = 0.9
"""Smallest share of the weights in matrices inside the layers that has to be quantised."""
_NAMED = 3
"""Largest number of weights that a message names."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer at its place in the model."""

    parent: nn.Module
    name: str
    """Name of the attribute of `parent`."""
    base: nn.Module
    """Module with weight and bias. If peft put an adapter around the layer, the adapter is
    `parent.name`, and contains this module."""
    transposed: bool = False
    """Whether `weight` is [in, out], as in Conv1D of GPT-2."""

    @property
    def weight(self) -> Tensor:
        """The weight as the layer has it."""
        return torch.as_tensor(self.base.weight).detach()

    @property
    def matrix(self) -> Tensor:
        """A view of the weight, [out, in]."""
        return self.weight.T if self.transposed else self.weight

    @property
    def outer(self) -> Any:
        """The layer, or the adapter around it."""
        return self.parent.get_submodule(self.name)

    @property
    def adapters(self) -> list[Any]:
        """The adapter around the layer, or none."""
        return [] if self.outer is self.base else [self.outer]


@dataclass(frozen=True, eq=False)
class ExpertStack:
    """The matrices of all experts of a layer, stacked in one parameter with three dimensions."""

    module: nn.Module
    """The experts, which have the parameter."""
    name: str
    """Name of the parameter in `module`."""
    transposed: bool
    """Whether the matrices are [in, out]."""
    adapters: list[Any]
    """Adapters of peft around this parameter."""

    @property
    def weight(self) -> Tensor:
        """The parameter as the module has it, [experts, ·, ·]."""
        return torch.as_tensor(getattr(self.module, self.name)).detach()

    @property
    def matrices(self) -> list[Tensor]:
        """A view of each expert's matrix, [out, in]."""
        return [matrix.T if self.transposed else matrix for matrix in self.weight.unbind()]


Quantised = LinearLayer | ExpertStack
"""Weights that are quantised."""


def linear_layers(model: Any) -> list[LinearLayer]:
    """Find the linear layers with weights of their own, without adapters and the output layer.

    Raises:
        EvaluationError: There is none, or one is quantised already.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    # Layers may share a weight. It is rounded once.
    known_weights = {id(p) for end in ends if end is not None for p in end.parameters()}
    layers: list[LinearLayer] = []
    for layer in _linear(model):
        if id(layer.base.weight) not in known_weights:
            known_weights.add(id(layer.base.weight))
            layers.append(layer)
    if not layers:
        raise EvaluationError(
            f"attack quantization: {type(model).__name__} has no linear layer besides its output; "
            "leave the attack out for this model"
        )
    for layer in layers:
        if not layer.weight.is_floating_point():
            raise EvaluationError(
                f"attack quantization: {layer.name} has weights of type {layer.weight.dtype}: the "
                "model is quantised already; attack the model that it was made from"
            )
    return layers


def _linear(module: nn.Module) -> Iterator[LinearLayer]:
    """Yield all linear layers below a module."""
    # The model is one of transformers, so the package is loaded by now. Imported above, it would
    # slow down commands that only list attacks.
    from transformers.pytorch_utils import Conv1D

    for name, child in module.named_children():
        # An adapter of peft has the layer that it is around as `base_layer`.
        base = getattr(child, "base_layer", child)
        if isinstance(base, nn.Linear | Conv1D):
            yield LinearLayer(module, name, base, transposed=isinstance(base, Conv1D))
        elif not name.startswith("lora_"):  # these are the matrices of an adapter around experts
            yield from _linear(child)


def expert_stacks(model: nn.Module) -> list[ExpertStack]:
    """Find the stacked matrices of experts. Weights of convolutions are no such stacks."""
    adapters: dict[tuple[nn.Module, str], list[Any]] = {}
    for module in model.modules():
        # An adapter of peft around a parameter has the name of the parameter.
        name: Any = getattr(module, "parameter_name", None)
        if name is not None and hasattr(module, "get_base_layer"):
            adapter: Any = module
            adapters.setdefault((adapter.get_base_layer(), name), []).append(adapter)
    stacks: list[ExpertStack] = []
    for module in model.modules():
        if isinstance(module, _CONVOLUTIONS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            is_stack = parameter.ndim == 3 and len(parameter) > 1
            if is_stack and parameter.is_floating_point():
                around = adapters.get((module, name), [])
                stacks.append(ExpertStack(module, name, _is_transposed(module), around))
    return stacks


def _is_transposed(experts: Any) -> bool:
    """Whether the experts' matrices are [in, out].

    transformers says so if it has several implementations of the experts. For Llama 4 it has only
    one. Then the sizes tell, because both matrices of an expert have the hidden size: one where
    inputs come in, the other where outputs go out.
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


def check_coverage(model: Any, quantised: Sequence[Quantised], *, kernels: bool) -> None:
    """Check that enough of the weights inside the layers are quantised.

    Args:
        model: The model, with adapters or without.
        quantised: Its weights that are quantised.
        kernels: Whether by layers of bitsandbytes, which experts cannot be put into.

    Raises:
        EvaluationError: Less than `LEAST_COVERED` of the weights are quantised.
    """
    covered = {weights.weight.data_ptr() for weights in quantised}
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
    """Yield the weights of the text decoder with two dimensions or more, by name.

    Embeddings, the output layer, adapters and a vision tower are left out.
    """
    find_decoder = getattr(model, "get_decoder", None)
    decoder: nn.Module = model if find_decoder is None else find_decoder()
    inside = {id(parameter) for parameter in decoder.parameters()}
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding))
    for end in (model.get_output_embeddings(), *embeddings):
        if end is not None:
            inside -= {id(parameter) for parameter in end.parameters()}
    for name, parameter in model.named_parameters():
        is_adapter = any(step.startswith("lora_") for step in name.split("."))
        if parameter.ndim >= 2 and id(parameter) in inside and not is_adapter:
            yield name.removeprefix("base_model.model."), parameter.detach()
