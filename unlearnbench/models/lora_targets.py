"""Weights that `target_modules: all-linear` of LoRA does not adapt: routers and experts."""

from typing import Any

_NAMED = 2
"""Largest number of parameters that a message names."""
_STACK_DIMENSIONS = 3
"""Dimensions of a stack of matrices: experts, and the two of a matrix."""


def linear_routers(model: Any) -> list[str]:
    """Return the names of linear layers that route tokens to experts, as in Llama 4.

    They have to be left out: they return scores and logits, and peft's layer for linear layers
    fails on them.
    """
    from torch import nn

    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
    ]


class ExpertStacks:
    """The matrices of experts, which transformers stacks in parameters with three dimensions.

    They are no linear layers, so `all-linear` does not name them. peft adapts those of some
    families nevertheless: Mixtral's and Qwen's experts are linear layers in old checkpoints, and
    peft knows their names there.
    """

    def __init__(self, model: Any) -> None:
        """Find the stacks of a model that has no adapters yet."""
        from torch import nn

        self._model_class = type(model).__name__
        self._stacks: dict[str, Any] = {}
        self._weights_of_matrices = 0
        embeddings_and_output = _embedding_and_output_weights(model)
        for module_name, module in model.named_modules():
            if isinstance(module, nn.Embedding):
                continue
            is_convolution = isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            for name, parameter in module.named_parameters(recurse=False):
                is_inside_layers = id(parameter) not in embeddings_and_output
                if parameter.ndim < 2 or not is_inside_layers:
                    continue
                self._weights_of_matrices += parameter.numel()
                is_stack = parameter.ndim == _STACK_DIMENSIONS and len(parameter) > 1
                if is_stack and not is_convolution:
                    self._stacks[f"{module_name}.{name}"] = parameter

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
            # An adapter of a parameter, not of a layer, has the parameter's name.
            name = getattr(module, "parameter_name", None)
            if name is not None and hasattr(module, "get_base_layer"):
                with_adapter.add(id(getattr(module.get_base_layer(), name)))
        sizes = {
            name: parameter.numel()
            for name, parameter in self._stacks.items()
            if id(parameter) not in with_adapter
        }
        if not sizes:
            return None
        named = ", ".join([*sizes][:_NAMED])
        if len(sizes) > _NAMED:
            named += ", …"
        share = sum(sizes.values()) / self._weights_of_matrices
        return (
            f"lora: all-linear leaves out the experts of {self._model_class}, {share:.0%} of the "
            f"weights in matrices inside the layers ({named}); name them in "
            "lora.target_parameters to adapt them"
        )


def _embedding_and_output_weights(model: Any) -> set[int]:
    """Return the Python ids of the parameters in front of the layers and after them."""
    weights: set[int] = set()
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if layer is not None:
            weights.update(id(parameter) for parameter in layer.parameters())
    return weights
