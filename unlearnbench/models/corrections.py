"""Corrected faults of some architectures, which are entries of the ids of their runs.

If numbers of an architecture were wrong and are right now, the ids of its runs and evaluations have
to change, so that they are computed again. The ids of all other models stay as they are.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from unlearnbench.base import hub
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.named_models import source_of
from unlearnbench.models.source import Source
from unlearnbench.models.whole_model import read_config

MASKS = "masks of llama4"
"""The fault: packed rows had neither chunks nor the scales of queries by position."""
EXPERTS = "quantised experts"
"""The fault: the attack `quantization` left out the matrices of experts."""
TIED = "merged adapters of tied weights"
"""The fault: an adapter on an embedding or output layer was merged into both layers if they shared
their weight. It concerns start and retain models that were prepared with such adapters."""
_EMBEDDING_AND_OUTPUT = frozenset(
    {"embed_tokens", "lm_head", "wte", "embed_in", "embed_out", "word_embeddings", "embeddings"}
)
"""Names that families give to their embedding and output layers."""
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names that families give to the number of experts of a layer."""


def corrections_of(settings: ModelSettings) -> frozenset[str]:
    """Return the corrections that concern a model.

    They are found in the config.json of the base. A base without this file, such as `tiny`, has
    only the corrections that its settings show. The same holds for a hub's model whose commit is
    not known yet, because a plan can be shown without a hub.
    """
    corrections: set[str] = set()
    if _adapts_tied_weights(settings):
        corrections.add(TIED)
    config = _stored_config(settings)
    text_config = config.get("text_config")
    sections = [config, text_config] if isinstance(text_config, Mapping) else [config]
    for section in sections:
        if str(section.get("model_type", "")).startswith("llama4"):
            corrections.add(MASKS)
        expert_counts = [section.get(name) for name in _EXPERT_COUNTS]
        if any(isinstance(count, int) and count > 1 for count in expert_counts):
            corrections.add(EXPERTS)
    return frozenset(corrections)


def _stored_config(settings: ModelSettings) -> Mapping[str, Any]:
    """Return the content of the base's config.json; empty if it is not there to be read."""
    if settings.base == "tiny":
        return {}
    source = source_of(settings)
    if not _is_known(source):
        return {}
    path = source.files() / "config.json"
    with suppress(OSError, ValueError):
        config = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config, Mapping):
            return config
    return {}


def _is_known(source: Source) -> bool:
    """Whether the model is in a folder, or at a commit of a hub that is known."""
    whole = source.whole
    return whole.folder is not None or bool(hub.commits_of([whole.repository]))


def _adapts_tied_weights(settings: ModelSettings) -> bool:
    """Whether `lora` names an embedding or output layer of a model in which they share a weight."""
    targets = () if settings.lora is None else settings.lora.target_modules
    if isinstance(targets, str):  # a keyword such as `all-linear`, or a pattern
        return False
    if not any(name.split(".")[-1] in _EMBEDDING_AND_OUTPUT for name in targets):
        return False
    if settings.base == "tiny":
        return True
    source = source_of(settings)
    if not _is_known(source):
        return False
    config = read_config(source, settings)
    return bool(config.tie_word_embeddings or config.get_text_config().tie_word_embeddings)


def corrections_under(corrections: Iterable[str], attacks: Iterable[AttackSpec]) -> tuple[str, ...]:
    """Return the corrections of a model that concern its evaluations, plain and under attacks."""
    is_quantised = any(attack.name == "quantization" for attack in attacks)
    return tuple(sorted(name for name in corrections if name != EXPERTS or is_quantised))
