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


class ExpertStacks:
    """The matrices of experts, which transformers stacks in parameters with three dimensions.

    They are no linear layers. peft adapts those of some families nevertheless: Mixtral's and
    Qwen's are layers in old checkpoints, under whose names peft looks for them.
    """

    def __init__(self, model: Any) -> None:
        """Find the stacks of a model that has no adapters yet."""
        from torch import nn

        self._kind = type(model).__name__
        self._stacks: dict[str, Any] = {}
        self._total = 0
        ends = {id(p) for end in _ends(model) for p in end.parameters()}
        for place, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                is_outside = id(parameter) in ends or isinstance(module, nn.Embedding)
                if parameter.ndim < 2 or is_outside:
                    continue
                self._total += parameter.numel()
                is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
                if parameter.ndim == 3 and len(parameter) > 1 and not is_convolution:
                    self._stacks[f"{place}.{name}"] = parameter

    @property
    def ends(self) -> list[str]:
        """Ends of the stacks' names, which are the same in all layers: `mlp.experts.down_proj`."""
        return sorted({".".join(name.split(".")[-3:]) for name in self._stacks})

    def unadapted_notice(self, adapted: Any) -> str | None:
        """Return a line that says which experts have no adapter; None if there are none.

        Args:
            adapted: The same model with peft's adapters.
        """
        with_adapter: set[int] = set()
        for module in adapted.modules():
            name = getattr(module, "parameter_name", None)
            if name is not None and hasattr(module, "get_base_layer"):  # of a parameter
                with_adapter.add(id(getattr(module.get_base_layer(), name)))
        sizes = {n: p.numel() for n, p in self._stacks.items() if id(p) not in with_adapter}
        if not sizes:
            return None
        named = ", ".join([*sizes][:_NAMED]) + (", …" if len(sizes) > _NAMED else "")
        share = sum(sizes.values()) / self._total
        return (
            f"lora: all-linear leaves out the experts of {self._kind}, {share:.0%} of the "
            f"weights in matrices inside the layers ({named}); name them in "
            "lora.target_parameters to adapt them"
        )


def _ends(model: Any) -> list[Any]:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    return [end for end in ends if end is not None]
