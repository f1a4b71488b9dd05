"""LoRA: adapters that a run trains, and adapter folders as models.

An adapter folder is the base model that the adapter names, with the adapter on it. There are two
forms. An evaluation of one model leaves the adapter beside the base's weights, because merging
rounds them in bf16. In a sweep the adapter is merged, because a run trains the weights of its start
model, and is compared with the same start model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import ModelError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.models.loading_errors import quoted_message, reading
from unlearnbench.models.lora_targets import ExpertStacks, linear_routers
from unlearnbench.models.quiet_libraries import quiet_peft
from unlearnbench.models.source import ADAPTER_WEIGHTS, Source
from unlearnbench.models.whole_model import load_whole_model


def import_peft(need: str) -> Any:
    """Import the package peft.

    Raises:
        ModelError: peft is not installed. The message begins with `need`.
    """
    try:
        return import_optional("peft")
    except ImportError:
        raise ModelError(f"{need} peft: pip install 'unlearnbench[lora]'") from None


def add_lora(model: Any, lora: LoRA) -> Any:
    """Return `model` with trainable low-rank adapters. All other weights are frozen.

    Raises:
        ModelError: peft cannot adapt the layers that the settings name.
    """
    peft = import_peft("lora needs")
    targets = lora.target_modules
    is_all_linear = targets == "all-linear"
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        target_parameters=list(lora.target_parameters) or None,
        exclude_modules=(linear_routers(model) or None) if is_all_linear else None,
        task_type="CAUSAL_LM",
    )
    experts = ExpertStacks(model)
    with quiet_peft():
        try:
            adapted = peft.get_peft_model(model, config)
        except ValueError as error:
            raise ModelError(
                f"lora: peft cannot adapt a {type(model).__name__} ({quoted_message(error)}); name "
                "other layers in lora.target_modules"
            ) from error
    may_leave_out_experts = is_all_linear and not lora.target_parameters
    if may_leave_out_experts and (notice := experts.unadapted_notice(adapted)):
        warn_once(notice)
    return adapted


def load_any_model(source: Source, settings: ModelSettings) -> Any:
    """Load a model or an adapter folder for evaluation. An adapter is not merged."""
    return load_adapted(source, settings) if source.is_adapter else load_merged(source, settings)


def load_merged(source: Source, settings: ModelSettings) -> Any:
    """Load a model or an adapter folder for evaluation. An adapter is merged into its base.

    Raises:
        ModelError: The model cannot be loaded, or the adapter does not fit its base.
    """
    if source.is_adapter:
        model = merged(load_adapted(source, settings))
        model.requires_grad_(True)  # peft has frozen the base
    else:
        model = load_whole_model(source, settings)
    model.config.use_cache = False
    return model.eval()


def load_adapted(source: Source, settings: ModelSettings) -> Any:
    """Load an adapter folder for evaluation, with the adapter around its base.

    Raises:
        ModelError: The adapter does not fit its base.
    """
    import torch

    source.check()
    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    base = load_merged(source.base, settings)
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    # peft draws first values of the adapter before it reads the adapter's weights. These draws must
    # not move the random state, because an adapter that a run adds later must begin with the same
    # values as it does on the merged model.
    with torch.random.fork_rng(devices), reading("adapter", source), quiet_peft():
        model = peft.PeftModel.from_pretrained(base, source.place)
        _check_names(source, set(peft.get_peft_model_state_dict(model)))
    return model.eval()


def check_adapter(source: Source, base: Any) -> None:
    """Check that an adapter has the tensors that it needs on `base`.

    Args:
        source: The adapter's folder.
        base: The base model, on the meta device.

    Raises:
        ModelError: Tensors are missing or unexpected.
    """
    import torch

    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    with torch.random.fork_rng(devices=[]), reading("adapter", source), quiet_peft():
        config = peft.PeftConfig.from_pretrained(source.place)
        model = peft.get_peft_model(base, config)
        _check_names(source, set(peft.get_peft_model_state_dict(model)))


def _check_names(source: Source, expected: set[str]) -> None:
    """Raise ModelError if the adapter's file has other tensors than the expected ones."""
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
    """Return a model without adapters that computes the same: they are added to its weights.

    If an adapter changes an embedding and an output layer that share one weight, each layer gets a
    weight of its own. Otherwise peft would add the adapter's update to both.
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
