"""Checks that the weights of a loaded model belong to its architecture.

transformers fills missing tensors with random numbers and drops unknown ones, with a report that
nobody sees.
"""

import re
from collections.abc import Mapping
from typing import Any

from unlearnbench.base.errors import ModelError

_BUFFERS = re.compile(r"(rotary_emb\.inv_freq|\.attn\.(masked_)?bias|\.attention\.(masked_)?bias)$")
"""Ends of names of position tables and causal masks in old checkpoints: constants that the model
computes, and names that no weight has."""
_NAMED = 5
"""Tensors named in a message, at most."""


def check_causal(location: str, config: Any) -> None:
    """Raise ModelError where the architecture of `config` attends in both directions, as BERT."""
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if config.model_type in encoders and not getattr(config, "is_decoder", False):
        raise ModelError(
            f"{location}: a {config.model_type} model is an encoder, which predicts no next token; "
            "give a causal language model"
        )


def check_tensors(location: str, model: Any, result: Mapping[str, Any]) -> None:
    """Raise a ModelError that names the tensors in which weights and architecture differ."""
    missing = sorted(result["missing_keys"])
    unexpected = sorted(name for name in result["unexpected_keys"] if not _BUFFERS.search(name))
    mismatched = sorted(
        f"{name} {list(present)} for {list(current)}"
        for name, present, current in result["mismatched_keys"]
    )
    if not (missing or unexpected or mismatched):
        return
    parts = [
        f"{len(names)} {subject}: {', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''}"
        for names, subject in (
            (missing, "missing"),
            (unexpected, "unexpected"),
            (mismatched, "of another shape"),
        )
        if names
    ]
    raise ModelError(
        f"{location}: the weights are not those of a {type(model).__name__}: tensors "
        f"{'; '.join(parts)}; copy or save the weights again, correct config.json, or give a "
        "causal language model if this is an encoder, a classifier or a bare backbone"
    )
