"""Load the models of a sweep: whole models and adapter folders, for training and evaluation."""

from typing import Any

from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.lora import add_lora, check_adapter, load_merged
from unlearnbench.models.named_models import local_sources
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.source import Source
from unlearnbench.models.whole_model import read_weights


def load_model(source: Source, settings: ModelSettings, *, train: bool = False) -> Any:
    """Load a causal language model in the settings' dtype on the fastest device.

    An adapter folder is merged into its base, because a run trains the merged weights. Only
    safetensors are read.

    Args:
        source: The model.
        settings: dtype, attention, LoRA and gradient checkpointing.
        train: Whether the model is to be trained. It then gets the settings' LoRA, gradient
            checkpointing and training mode.

    Raises:
        ModelError: The model cannot be loaded, or its weights do not fit its architecture.
    """
    model = load_merged(source, settings)
    if not train:
        return model
    if settings.lora is not None:
        model = add_lora(model, settings.lora)
    if settings.gradient_checkpointing:
        # Renamed in transformers 5.2x; earlier versions have the old name.
        enable = getattr(model, "activation_checkpointing_enable", None)
        enable = enable or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        # Without this, the adapters below the first checkpoint get no gradient.
        model.enable_input_require_grads()
    return model.train()


def check_weights(settings: ModelSettings) -> None:
    """Check that the weights of local models match their architectures.

    Only names and shapes are read, which takes no memory.

    Raises:
        ModelError: Weights are missing, unexpected or of another shape.
    """
    for source in local_sources(settings):
        if not any(source.files().glob("*.safetensors")):
            continue
        quiet_transformers()
        # Flash attention need not be installed on the machine where a sweep is planned.
        model = read_weights(source, settings, device_map="meta", attn_implementation="eager")
        if source.is_adapter:
            check_adapter(source, model)
