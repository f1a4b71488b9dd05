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
"""Tokens of the text that is tried."""


def text_decoder(model: nn.Module) -> nn.Module:
    """The part of a causal language model that reads texts: the whole model in most families."""
    find = getattr(model, "get_decoder", None)
    decoder = None if find is None else find()
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
    """The trained weights that no text reaches, by name. Nothing is changed."""
    output: Any = model
    own = [text_decoder(model), output.get_output_embeddings()]
    inside = {id(p) for part in own if part is not None for p in part.parameters()}
    outside = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in inside
    }
    if not outside:  # of most families
        return {}
    gradients = _gradients(model, [*outside.values()])
    reached = [gradient is not None for gradient in gradients]
    pairs = zip(outside.items(), reached, strict=True)
    return {name: parameter for (name, parameter), is_reached in pairs if not is_reached}


def _gradients(model: Any, parameters: Sequence[nn.Parameter]) -> Sequence[Tensor | None]:
    """Gradients of the logits of a text; None for a weight that they do not depend on."""
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
    """The largest modules whose trained weights are all among `names`, without peft's prefix."""
    others = [n for n, p in model.named_parameters() if p.requires_grad and n not in names]
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            if not any(other == module or other.startswith(f"{module}.") for other in others):
                found[module] = None
                break
    yield from (module.removeprefix("base_model.model.") for module in found)
