"""Check the names in `lora` against the start model, when a sweep is planned."""

from collections.abc import Collection
from typing import Any

from unlearnbench.base.errors import ModelError, did_you_mean
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.models.lora import add_lora, import_peft
from unlearnbench.models.lora_targets import ExpertStacks
from unlearnbench.models.named_models import source_of
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.tiny import tiny_config
from unlearnbench.models.whole_model import read_config

_LACKS_AN_EXPERT = "without also targeting"
"""In peft's message on old names of experts, of which some are missing: `w1` without `w3`."""


def check_targets(settings: ModelSettings) -> None:
    """Check that the start model has the layers and parameters that `lora` names.

    Only the model's configuration is read, and no weights.

    Raises:
        ModelError: A name is unknown, or peft cannot put an adapter there.
        UnreachableError: The configuration is on a hub that cannot be reached.
    """
    lora = settings.lora
    if lora is None:
        return
    model = _without_weights(settings)
    layers = [name for name, module in model.named_modules() if _is_adaptable(module)]
    where = f"models.{settings.name}.lora"
    _check_parameters(model, lora, layers, f"{where}.target_parameters")
    import_peft("lora needs")
    _check_modules(model, lora, layers, f"{where}.target_modules")


def _without_weights(settings: ModelSettings) -> Any:
    """Build the start model on the meta device."""
    import torch
    from transformers import AutoModelForCausalLM

    if settings.base == "tiny" and settings.fine_tuned is None:
        config: Any = tiny_config(settings.architecture)
    else:
        quiet_transformers()
        config = read_config(source_of(settings, settings.fine_tuned), settings)
    # Building the model must not change the state of the random generators.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", trust_remote_code=settings.trust_remote_code
        )


def _is_adaptable(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | nn.Embedding | Conv1D)


def _is_named(target: str, names: Collection[str]) -> bool:
    """Whether peft finds a target among names: it is one of them, or the end of one."""
    return any(name == target or name.endswith(f".{target}") for name in names)


def _check_parameters(model: Any, lora: LoRA, layers: Collection[str], where: str) -> None:
    """Check `lora.target_parameters`, which names the stacked weights of experts.

    Args:
        model: The start model on the meta device.
        lora: The settings.
        layers: Names of the layers that an adapter can be put around.
        where: The key, for the message.
    """
    parameters = [name for name, _ in model.named_parameters()]
    for target in lora.target_parameters:
        if _is_named(target, parameters):
            continue
        # The parameters of these layers are adapted by the names of the layers.
        of_no_layer = [name for name in parameters if name.rpartition(".")[0] not in layers]
        endings = sorted({".".join(name.split(".")[-3:]) for name in of_no_layer})
        experts = ", ".join(ExpertStacks(model).ends)
        if near := did_you_mean(target, endings):
            fix = near
        elif experts:
            fix = f"; its experts are called {experts}"
        else:
            fix = "; it has no stacked experts, so leave the key out"
        kind = type(model).__name__
        raise ModelError(f"{where}: no parameter of {kind} is called {target!r}{fix}")


def _check_modules(model: Any, lora: LoRA, layers: Collection[str], where: str) -> None:
    """Check `lora.target_modules` by putting adapters on the model.

    Args:
        model: The start model on the meta device. It is changed.
        lora: The settings.
        layers: Names of the layers that an adapter can be put around.
        where: The key, for the message.
    """
    import torch

    kind = type(model).__name__
    modules = [name for name, _ in model.named_modules()]
    adaptable = sorted({name.rpartition(".")[2] for name in layers})
    refusal: BaseException | None = None
    targets: Any = lora.target_modules
    try:
        with torch.random.fork_rng(devices=[]):
            adapted = add_lora(model, lora)
        # peft has removed the names that it knows as other names of experts, such as `gate_proj`
        # in Qwen's mixtures.
        targets = adapted.peft_config["default"].target_modules
    except (ModelError, TypeError, AttributeError, RuntimeError) as error:
        # For example, an adapter cannot be put around a norm or a whole block.
        refusal = error.__cause__ or error
        if _LACKS_AN_EXPERT in str(refusal):
            targets = ()
    for target in () if isinstance(lora.target_modules, str) else lora.target_modules:
        if target in targets and not _is_named(target, modules):
            near = did_you_mean(target.rpartition(".")[2], adaptable) or ";"
            raise ModelError(
                f"{where}: no layer of {kind} is called {target!r}{near} its "
                f"layers are called {', '.join(adaptable)}"
            )
    if refusal is not None:
        reason = " ".join(str(refusal).split())
        raise ModelError(
            f"{where}: peft cannot put adapters on {lora.target_modules!r} of "
            f"{kind} ({type(refusal).__name__}: {reason[:300]}); layers that "
            f"take one are called {', '.join(adaptable)}"
        )
