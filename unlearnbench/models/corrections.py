"""Corrected faults that concern some architectures, for the ids of what was computed with them.

If numbers of an architecture were wrong and are right now, the ids of its runs and evaluations
have to change, so that they are computed again. The ids of all other models stay.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from unlearnbench.base import hub
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.named_models import source_of
from unlearnbench.models.whole_model import read_config

MASKS = "masks of llama4"
"""Packed rows had neither chunks nor the scales of queries by position."""
EXPERTS = "quantised experts"
"""The attack `quantization` left out the matrices of experts."""
TIED = "merged adapters of tied weights"
"""An adapter on an embedding or output layer was merged into both if they shared their weight, in
start and retain models that were prepared with such adapters."""
_ENDS = frozenset(
    {"embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings", "embeddings"}
)
"""Names that families give to their embedding and output layer."""
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names that families give to the number of experts of a layer."""


def corrections_of(settings: ModelSettings) -> frozenset[str]:
    """The corrections that concern a model.

    Reads the base's config.json. Empty where there is no such file, as of `tiny`. A hub is only
    asked if its commit is known: a plan can be shown without a hub.
    """
    found = {TIED} if _adapts_tied_weights(settings) else set[str]()
    if settings.base == "tiny":
        return frozenset(found)
    source = source_of(settings)
    if source.whole.folder is None and not hub.commits_of([source.whole.repository]):
        return frozenset(found)
    path = source.files() / "config.json"
    config: Any = None
    with suppress(OSError, ValueError):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        return frozenset(found)
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, Mapping) else {}):
        if str(part.get("model_type", "")).startswith("llama4"):
            found.add(MASKS)
        counts = (part.get(name) for name in _EXPERT_COUNTS)
        if any(isinstance(count, int) and count > 1 for count in counts):
            found.add(EXPERTS)
    return frozenset(found)


def _adapts_tied_weights(settings: ModelSettings) -> bool:
    """Whether `lora` names an embedding or output layer of a model in which they share a weight."""
    targets = () if settings.lora is None else settings.lora.target_modules
    if isinstance(targets, str) or not any(name.split(".")[-1] in _ENDS for name in targets):
        return False
    if settings.base == "tiny":
        return True
    source = source_of(settings)
    if source.whole.folder is None and not hub.commits_of([source.whole.repository]):
        return False
    config = read_config(source, settings)
    return bool(config.tie_word_embeddings or config.get_text_config().tie_word_embeddings)


def corrections_under(corrections: Iterable[str], attacks: Iterable[AttackSpec]) -> tuple[str, ...]:
    """Those of a model's corrections that concern an evaluation, plain and under attacks."""
    is_quantised = any(attack.name == "quantization" for attack in attacks)
    return tuple(sorted(name for name in corrections if name != EXPERTS or is_quantised))
