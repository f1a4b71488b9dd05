"""Records whose numbers may be wrong by a fault of an earlier version, although their ids stayed.

An id changes with a correction if the fault depends on what the id is made of
(`models/corrections.py`). The ids of runs do not depend on their resources, so that a sweep can go
on with others. A fault that depends on resources is recognised here, by what a record says of its
origin.
"""

from collections.abc import Mapping
from typing import Any

from unlearnbench.results.records import Record

_TRAINING_ATTACKS = frozenset({"fine-tuning", "relearning"})
_LAST_VERSION_WITHOUT_RESTORING = "0.4.0"


def was_not_restored(record: Record) -> bool:
    """Whether the weights of a run may not have been restored after an attack that trains.

    Until version 0.4.0, they were not if several processes trained on CPUs. The next attack and the
    next attacker of a search, and with `at: every` the training, began with the attacked weights.
    """
    origin = record.provenance
    if origin.get("processes", 1) == 1 or not str(origin.get("device", "")).startswith("cpu"):
        return False
    attacks: list[Mapping[str, Any]] = record.spec.get("attacks") or []
    if not any(attack["name"] in _TRAINING_ATTACKS for attack in attacks):
        return False
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(str(origin.get("versions", {}).get("unlearnbench")))
    except InvalidVersion:
        return True
    return version <= Version(_LAST_VERSION_WITHOUT_RESTORING)
