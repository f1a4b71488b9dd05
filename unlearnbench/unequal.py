"""Settings that compared methods share and that are not the same for them. Pure.

A default of one method that another has otherwise, or sweeps that train by other rules, make a
comparison unequal without a mark on any number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unlearnbench.records import Record


def unequal(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Sentences on the settings in which these methods differ; empty where there is none.

    records  a run of each method, by the name it is to be called

    Looks at hyper-parameters that at least half of the methods have, and at the rules of training
    of those that train. Learning rate and epochs are chosen by method, and hyper-parameters of
    one method are what its settings are called by: neither is looked at.
    """
    same = len({one.method for one in records.values()}) == 1
    values: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        method: Any = record.spec.get("method") or {}
        if not same:
            _add(values, name, "", method.get("hyperparameters") or {})
        if record.learning_rate is not None:
            _add(values, name, "training.", record.spec.get("training") or {})
    return tuple(
        _sentence(setting, by_method)
        for setting, by_method in sorted(values.items())
        if len(set(by_method.values())) > 1 and 2 * len(by_method) >= len(records)
    )


def _add(
    values: dict[str, dict[str, str]], name: str, prefix: str, settings: Mapping[str, Any]
) -> None:
    for key, value in settings.items():
        text = f"{value:g}" if isinstance(value, float) else json.dumps(value)
        values.setdefault(prefix + key, {})[name] = text


def _sentence(setting: str, by_method: Mapping[str, str]) -> str:
    """`x is 1 for a and 0 for b`; the value that most have stands last, without their names."""
    groups: dict[str, list[str]] = {}
    for name, value in by_method.items():
        groups.setdefault(value, []).append(name)
    ordered = sorted(groups.items(), key=lambda pair: len(pair[1]))
    parts = [f"{value} for {', '.join(names)}" for value, names in ordered]
    if len(by_method) > 2 and len(ordered[-1][1]) > 1:
        parts[-1] = f"{ordered[-1][0]} for the other {len(ordered[-1][1])}"
    return f"{setting} is {'; '.join(parts[:-1])} and {parts[-1]}"
