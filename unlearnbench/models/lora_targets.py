"""What `target_modules: all-linear` of LoRA leaves out, and has to leave out."""

from typing import Any

_NAMED = 2
"""Parameters named in a message, at most."""


def linear_routers(model: Any) -> list[str]:
    """Names of linear layers that route tokens to experts, as in Llama 4.

    They return scores and logits, so peft's layer for linear ones fails on them.
    """
    from torch import nn

    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
    ]


def unadapted_notice(model: Any) -> str | None:
    """A line that says which experts linear layers do not include; None if there are none.

    transformers stacks the matrices of all experts of a layer in parameters with three dimensions.
    """
    from torch import nn

    stacks: dict[str, int] = {}
    total = 0
    ends = {id(p) for end in _ends(model) for p in end.parameters()}
    for place, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 2 or id(parameter) in ends or isinstance(module, nn.Embedding):
                continue
            total += parameter.numel()
            is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            if parameter.ndim == 3 and len(parameter) > 1 and not is_convolution:
                stacks[f"{place}.{name}"] = parameter.numel()
    if not stacks:
        return None
    named = ", ".join([*stacks][:_NAMED]) + (", …" if len(stacks) > _NAMED else "")
    share = sum(stacks.values()) / total
    return (
        f"lora: all-linear leaves out the experts of {type(model).__name__}, {share:.0%} of the "
        f"weights in matrices inside the layers ({named}); name them in lora.target_parameters to "
        "adapt them"
    )


def _ends(model: Any) -> list[Any]:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return [end for end in ends if end is not None]
