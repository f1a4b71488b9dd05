"""LoRA adapter folders as models: the base model that an adapter names, with the adapter on it.

There are two forms. An evaluation of one model leaves the adapter beside the base's weights,
because merging rounds them in bf16. In a sweep the adapter is merged, because a run trains the
weights of its start model, and is compared with the same start model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.loading import (
    ADAPTER_WEIGHTS,
    Source,
    import_peft,
    load_model,
    quiet_peft,
    reading,
)


def load_any_model(source: Source, settings: ModelSettings) -> Any:
    """Load a model or an adapter folder for evaluation; an adapter is not merged."""
    return load_adapted(source, settings) if source.is_adapter else load_model(source, settings)


def load_adapted(source: Source, settings: ModelSettings) -> Any:
    """Load an adapter folder for evaluation, with the adapter around its base.

    Raises: ModelError where the adapter does not fit its base.
    """
    source.check()
    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    base = load_model(source.base, settings)
    with reading("adapter", source), quiet_peft():
        model = peft.PeftModel.from_pretrained(base, source.place)
        _check_names(source, set(peft.get_peft_model_state_dict(model)))
    return model.eval()


def check_adapter(source: Source, base: Any) -> None:
    """Raise ModelError where an adapter has other tensors than it needs on `base`.

    base  on the meta device
    """
    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    with reading("adapter", source), quiet_peft():
        config = peft.PeftConfig.from_pretrained(source.place)
        model = peft.get_peft_model(base, config)
        _check_names(source, set(peft.get_peft_model_state_dict(model)))


def _check_names(source: Source, expected: set[str]) -> None:
    """Raise ModelError where the adapter's file has other tensors than these."""
    from safetensors import safe_open

    with safe_open(Path(source.place) / ADAPTER_WEIGHTS, framework="pt") as file:
        present = set(file.keys())
    for which, names in (("missing", expected - present), ("unexpected", present - expected)):
        if names:
            raise ModelError(
                f"{source.place}: the adapter does not fit its base model ({len(names)} tensors "
                f"{which}, such as {min(names)}); copy or save the adapter again"
            )


def merged(model: Any) -> Any:
    """The model that computes what `model`, with adapters, computes: they are added to its weights.

    An embedding and an output layer that share one weight get a weight each if an adapter changes
    one of them: peft would add the adapter's update to both.
    """
    base = model.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    layers = [end for end in ends if end is not None and hasattr(end, "base_layer")]
    weights = [getattr(end, "weight", None) for end in ends]
    if layers and weights[0] is not None and weights[0] is weights[1]:
        import torch

        for layer in layers:
            inner = layer.get_base_layer()
            inner.weight = torch.nn.Parameter(inner.weight.detach().clone(), requires_grad=False)
        for config in (base.config, base.config.get_text_config()):
            config.tie_word_embeddings = False
    with quiet_peft():
        return model.merge_and_unload()
