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
from unlearnbench.models.loading import Source

MASKS = "masks of llama4"
"""Packed rows had neither chunks nor the scales of queries by position."""
EXPERTS = "quantised experts"
"""The attack `quantization` left out the matrices of experts."""
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names that families give to the number of experts of a layer."""


def corrections_of(settings: ModelSettings) -> frozenset[str]:
    """The corrections that concern a model.

    Reads the base's config.json. Empty where there is no such file, as of `tiny`. A hub is only
    asked if its commit is known: a plan can be shown without a hub.
    """
    if settings.base == "tiny":
        return frozenset()
    source = Source.parse(settings.base, settings.revision)
    if source.folder is None and not hub.commits_of([source.repository]):
        return frozenset()
    path = source.files() / "config.json"
    config: Any = None
    with suppress(OSError, ValueError):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        return frozenset()
    text_config = config.get("text_config")
    found: set[str] = set()
    for part in (config, text_config if isinstance(text_config, Mapping) else {}):
        if str(part.get("model_type", "")).startswith("llama4"):
            found.add(MASKS)
        counts = (part.get(name) for name in _EXPERT_COUNTS)
        if any(isinstance(count, int) and count > 1 for count in counts):
            found.add(EXPERTS)
    return frozenset(found)


def corrections_under(corrections: Iterable[str], attacks: Iterable[AttackSpec]) -> tuple[str, ...]:
    """Those of a model's corrections that concern an evaluation, plain and under attacks."""
    is_quantised = any(attack.name == "quantization" for attack in attacks)
    return tuple(sorted(name for name in corrections if name != EXPERTS or is_quantised))
