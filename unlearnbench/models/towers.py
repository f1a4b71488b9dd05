"""Weights that no text reaches, such as the vision tower of a multimodal model.

A model with a tower for images or sound runs only its text decoder on a text. The tower's weights
have no gradient then, so they are frozen. The text decoder and the output layer are never frozen:
if a loss does not reach one of their weights, that is an error of the method. Whether a text
reaches a weight outside of them, such as an embedding, is found by a backward pass, not by its
name.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.base.deferred_warnings import warn_once

_TOKENS = 5
"""Number of tokens of the text that is tried."""
_PEFT_PREFIX = "base_model.model."


def text_decoder(model: nn.Module) -> nn.Module:
    """Return the part of a causal language model that reads texts.

    In most families that is the whole model.
    """
    get_decoder = getattr(model, "get_decoder", None)
    decoder = None if get_decoder is None else get_decoder()
    return decoder if isinstance(decoder, nn.Module) else model


def freeze_unreached(model: nn.Module) -> None:
    """Freeze the trained weights that no text reaches, with a notice that names their modules."""
    unreached = unreached_weights(model)
    if not unreached:
        return
    modules = ", ".join(_modules(model, unreached))
    for parameter in unreached.values():
        parameter.requires_grad_(False)
    count = sum(parameter.numel() for parameter in unreached.values())
    warn_once(
        f"{type(model).__name__}: no text reaches {modules}, so {count:,} weights there are not "
        "trained"
    )


def unreached_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained weights that no text reaches, by name. Nothing is changed."""
    own_weights: set[int] = set()
    for part in (text_decoder(model), _output_embeddings(model)):
        if part is not None:
            own_weights.update(id(parameter) for parameter in part.parameters())
    outside = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in own_weights
    }
    if not outside:  # as in most families
        return {}
    gradients = _gradients(model, [*outside.values()])
    unreached: dict[str, nn.Parameter] = {}
    for (name, parameter), gradient in zip(outside.items(), gradients, strict=True):
        if gradient is None:
            unreached[name] = parameter
    return unreached


def _output_embeddings(model: Any) -> nn.Module | None:
    layer: nn.Module | None = model.get_output_embeddings()
    return layer


def _gradients(model: Any, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor | None]:
    """Return the gradients of a text's logits; None for a weight that they do not depend on."""
    embedding = model.get_input_embeddings().weight
    ids = torch.arange(1, 1 + _TOKENS, device=embedding.device).unsqueeze(0) % len(embedding)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            logits = model.eval()(input_ids=ids, use_cache=False).logits
            if not logits.requires_grad:
                return [None] * len(parameters)
            return torch.autograd.grad(logits.sum(), parameters, allow_unused=True)
    finally:
        for module, training in modes.items():
            module.training = training


def _modules(model: nn.Module, names: Collection[str]) -> Iterator[str]:
    """Yield the names of the largest modules whose trained weights are all among `names`.

    For example, the names of all weights in a vision tower give `model.vision_tower`. A prefix of
    peft is left out.
    """
    others = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in names
    ]
    largest_modules: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            module = ".".join(parts[:depth])
            if not any(other == module or other.startswith(f"{module}.") for other in others):
                largest_modules[module] = None
                break
    for module in largest_modules:
        yield module.removeprefix(_PEFT_PREFIX)
