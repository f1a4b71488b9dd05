"""Find records that a fault of an earlier version may have made wrong, without another id.

The id of a run changes with a correction if the fault depends on what the id is made of
(`models/corrections.py`). Ids do not depend on resources, so that a sweep can go on with others. So
a fault that depends on resources is recognised here, by what a record says of its origin.
"""

from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from unlearnbench.api.attack import WeightAttack
from unlearnbench.results.attack_variants import attack_class
from unlearnbench.results.records import Record

_FIRST_VERSION_THAT_RESTORES = (0, 4, 1)


def was_not_restored(record: Record) -> bool:
    """Whether a run may have gone on with weights that an attack had trained.

    Before version 0.4.1, weights were not restored after an attack that trains if several processes
    trained on CPUs. What came next began with the attacked weights: the next attacker of a search,
    the next attack, the training that followed (`at: every` or `at: best`), and the run of the next
    request. A single attack at the end of a run was right.

    Start and retain models had the same fault, but their records do not say how many processes
    there were. So this function recognises only runs.
    """
    origin = record.provenance
    several_processes = (origin.get("processes") or 1) > 1
    on_cpus = str(origin.get("device")).startswith("cpu")
    if not several_processes or not on_cpus or _restores(origin.get("versions") or {}):
        return False
    attacks: list[Mapping[str, Any]] = record.spec.get("attacks") or []
    if not any(_trains(attack["name"]) for attack in attacks):
        return False
    continues_another_run = bool(record.spec.get("after"))
    if len(attacks) > 1 or continues_another_run:
        return True
    (only_attack,) = attacks
    return _goes_on(only_attack["settings"])


def _restores(versions: Mapping[str, str]) -> bool:
    """Whether the version that made a record restores weights. False if it is not known."""
    try:
        return Version(str(versions.get("unlearnbench"))).release >= _FIRST_VERSION_THAT_RESTORES
    except InvalidVersion:
        return False


def _trains(name: str) -> bool:
    """Whether an attack trains the model. False if it is not installed."""
    kind = attack_class(name)
    return kind is not None and issubclass(kind, WeightAttack) and kind.trains


def _goes_on(settings: Mapping[str, Any]) -> bool:
    """Whether something follows an attack: another attacker of its search, or training."""
    return settings.get("search") is not None or settings.get("at", "last") != "last"
