"""Load configuration, tokenizer and weights of a whole model, without adapters."""

import re
from collections.abc import Mapping
from typing import Any

from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.folder_kinds import prefixed_names
from unlearnbench.models.loading_errors import reading
from unlearnbench.models.source import Source, pickled_weights
from unlearnbench.models.transformers_import import import_transformers

_CONSTANT_BUFFERS = re.compile(
    r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias)$"
)
"""Ends of names of position tables and causal masks in old checkpoints.

The model computes these constants itself, and no weight has such a name.
"""
_MOST_NAMED = 5
"""Largest number of tensors that a message names."""


def load_tokenizer(source: Source, settings: ModelSettings) -> Any:
    """Load the model's tokenizer.

    Raises:
        ModelError: The tokenizer is missing or damaged.
    """
    import_transformers()
    from transformers import AutoTokenizer

    source.check()
    source.check_tokenizer()
    folder = source.tokenizer.folder or source.files()
    with reading("tokenizer", source), deferred_imports():
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)


def read_config(source: Source, settings: ModelSettings) -> Any:
    """Read the model's configuration.

    Raises:
        ModelError: The configuration is damaged, needs code that the settings forbid, or is that
            of an encoder.
    """
    import_transformers()
    from transformers import AutoConfig

    folder = source.files()
    with reading("model", source), deferred_imports():
        config: Any = AutoConfig.from_pretrained(
            folder, trust_remote_code=settings.trust_remote_code
        )
    check_causal(source.place, config)
    return config


def check_causal(location: str, config: Any) -> None:
    """Raise ModelError if the architecture of `config` attends in both directions, as BERT does."""
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if config.model_type in encoders and not getattr(config, "is_decoder", False):
        raise ModelError(
            f"{location}: a {config.model_type} model is an encoder, which predicts no next token; "
            "give a causal language model"
        )


def load_whole_model(source: Source, settings: ModelSettings) -> Any:
    """Load a causal language model in the settings' dtype on the fastest device.

    Only safetensors are read.

    Raises:
        ModelError: The model cannot be loaded, or its weights do not fit its architecture.
    """
    import torch

    source.check()
    if not any(source.files(weights=True).glob("*.safetensors")):
        raise pickled_weights(source)
    model = read_weights(source, settings)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def read_weights(source: Source, settings: ModelSettings, **options: Any) -> Any:
    """Return the model as transformers loads it.

    Args:
        source: The model. For an adapter, the whole model below it is loaded.
        settings: dtype, attention and whether remote code is trusted.
        options: Further arguments of `from_pretrained`, which replace the settings' own.

    Raises:
        ModelError: A file is damaged, or weights and architecture differ.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from unlearnbench.models.meta_weights import MetaWeights

    config = read_config(source, settings)
    # Without a name, transformers takes SDPA, or eager attention in models without SDPA. The
    # configuration is given because it could name another implementation, which None replaces.
    attention = None if settings.attention == "sdpa" else settings.attention
    folder = source.files(weights=True)
    # transformers builds the model on the meta device, and then reads the weights.
    with reading("model", source), deferred_imports(), MetaWeights():
        if (reason := prefixed_names(folder)) is not None:
            raise ModelError(f"{source.place}: {reason}")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, settings.dtype),
            trust_remote_code=settings.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `check_tensors` reports them by name
            output_loading_info=True,
            **{"attn_implementation": attention} | options,
        )
        model, loading_info = loaded
        check_tensors(source.place, model, loading_info)
    return model


def check_tensors(location: str, model: Any, loading_info: Mapping[str, Any]) -> None:
    """Check that the weights that were read are those of the architecture.

    Args:
        location: The model's place, for the message.
        model: The model as transformers loaded it.
        loading_info: What `from_pretrained` returns for `output_loading_info=True`.

    Raises:
        ModelError: Weights are missing, unexpected or of another shape. The message names them.
    """
    unexpected_keys = loading_info["unexpected_keys"]
    unexpected = sorted(name for name in unexpected_keys if not _CONSTANT_BUFFERS.search(name))
    faults = [f"{name} is missing" for name in sorted(loading_info["missing_keys"])]
    faults += [f"{name} is unexpected" for name in unexpected]
    for name, shape_read, shape_needed in sorted(loading_info["mismatched_keys"]):
        faults.append(f"{name} is {[*shape_read]} for {[*shape_needed]}")
    if not faults:
        return
    named = ", ".join(faults[:_MOST_NAMED]) + (", …" if len(faults) > _MOST_NAMED else "")
    raise ModelError(
        f"{location}: the weights are not those of a {type(model).__name__}: {named}; copy or "
        "save the weights again, correct config.json, or give a causal language model if this "
        "is an encoder, a classifier or a bare backbone"
    )
