"""LoRA adapter folders as models: the base model that an adapter names, with the adapter on it.

There are two forms. An evaluation of one model leaves the adapter beside the base's weights,
because merging rounds them in bf16. In a sweep the adapter is merged, because a run trains the
weights of its start model, and is compared with the same start model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import ModelError, did_you_mean
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.loading import (
    ADAPTER_WEIGHTS,
    Source,
    add_lora,
    import_peft,
    load_model,
    quiet_peft,
    quiet_transformers,
    read_config,
    reading,
    source_of,
)
from unlearnbench.models.lora_targets import ExpertStacks


def load_any_model(source: Source, settings: ModelSettings) -> Any:
    """Load a model or an adapter folder for evaluation; an adapter is not merged."""
    return load_adapted(source, settings) if source.is_adapter else load_model(source, settings)


def load_adapted(source: Source, settings: ModelSettings) -> Any:
    """Load an adapter folder for evaluation, with the adapter around its base.

    Raises: ModelError where the adapter does not fit its base.
    """
    import torch

    source.check()
    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    base = load_model(source.base, settings)
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    # peft draws first values of the adapter, and then reads it. An adapter that a run adds must
    # begin as it does on the merged model.
    with torch.random.fork_rng(devices), reading("adapter", source), quiet_peft():
        model = peft.PeftModel.from_pretrained(base, source.place)
        _check_names(source, set(peft.get_peft_model_state_dict(model)))
    return model.eval()


def check_adapter(source: Source, base: Any) -> None:
    """Raise ModelError where an adapter has other tensors than it needs on `base`.

    base  on the meta device
    """
    import torch

    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    with torch.random.fork_rng(devices=[]), reading("adapter", source), quiet_peft():
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


_INCOMPLETE = "without also targeting"
"""In peft's message on old names of experts, of which some are missing: `w1` without `w3`."""


def check_targets(settings: ModelSettings) -> None:
    """Raise ModelError if `lora` names layers or parameters that the start model does not have.

    Reads the configuration, and no weights. Raises: UnreachableError where a hub has it.
    """
    import torch

    lora = settings.lora
    if lora is None:
        return
    model = _without_weights(settings)
    kind = type(model).__name__
    modules = [name for name, _ in model.named_modules()]
    layers = [name for name, module in model.named_modules() if _is_adaptable(module)]
    parameters = [name for name, _ in model.named_parameters()]
    where = f"models.{settings.name}.lora"
    for target in lora.target_parameters:
        if not _is_named(target, parameters):
            # The parameters of linear layers are adapted by the names of the layers.
            others = [name for name in parameters if name.rpartition(".")[0] not in layers]
            ends = {".".join(name.split(".")[-3:]) for name in others}
            experts = ", ".join(ExpertStacks(model).ends)
            fix = did_you_mean(target, sorted(ends)) or (
                f"; its experts are called {experts}"
                if experts
                else "; it has no stacked experts, so leave the key out"
            )
            raise ModelError(
                f"{where}.target_parameters: no parameter of {kind} is called {target!r}{fix}"
            )

    import_peft("lora needs")
    known = sorted({name.rpartition(".")[2] for name in layers})
    refusal: BaseException | None = None
    targets: Any = lora.target_modules
    try:
        with torch.random.fork_rng(devices=[]):
            adapted = add_lora(model, lora)
        # Without those that peft knows as other names of experts: `gate_proj` in Qwen's mixtures.
        targets = adapted.peft_config["default"].target_modules
    except (ModelError, TypeError, AttributeError, RuntimeError) as error:
        # Of peft: a norm or a whole block is no layer that an adapter can be around.
        refusal = error.__cause__ or error
        if _INCOMPLETE in str(refusal):
            targets = ()
    for target in () if isinstance(lora.target_modules, str) else lora.target_modules:
        if target in targets and not _is_named(target, modules):
            near = did_you_mean(target.rpartition(".")[2], known) or ";"
            raise ModelError(
                f"{where}.target_modules: no layer of {kind} is called {target!r}{near} its "
                f"layers are called {', '.join(known)}"
            )
    if refusal is not None:
        reason = " ".join(str(refusal).split())
        raise ModelError(
            f"{where}.target_modules: peft cannot put adapters on {lora.target_modules!r} of "
            f"{kind} ({type(refusal).__name__}: {reason[:300]}); layers that "
            f"take one are called {', '.join(known)}"
        )


def _is_named(target: str, names: Iterable[str]) -> bool:
    """Whether peft finds a target among names: it is one of them, or the end of one."""
    return any(name == target or name.endswith(f".{target}") for name in names)


def _is_adaptable(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | nn.Embedding | Conv1D)


def _without_weights(settings: ModelSettings) -> Any:
    """The start model on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM

    from unlearnbench.models.tiny import tiny_config

    if settings.base == "tiny" and settings.fine_tuned is None:
        config: Any = tiny_config(settings.architecture)
    else:
        quiet_transformers()
        config = read_config(source_of(settings, settings.fine_tuned), settings)
    # Building must not change the state of the random generators.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", trust_remote_code=settings.trust_remote_code
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
