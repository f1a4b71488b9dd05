"""Differences in training between compared methods. Pure.

Different defaults of two methods, or sweeps with different training settings, make a comparison
unfair although no number shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from unlearnbench.results.records import Record


def training_differences(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Describe the settings in which these methods differ, a clause each.

    records  a run of each method, by the name to print

    Considers hyper-parameters that at least half of the methods have, and the training settings of
    methods that train. Learning rate and epochs are chosen per method, and settings of one method
    are named by their hyper-parameters, so these are not reported.
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
    """`x is 1 for a and 0 for b`; the most frequent value comes last, without its methods."""
    groups: dict[str, list[str]] = {}
    for name, value in by_method.items():
        groups.setdefault(value, []).append(name)
    ordered = sorted(groups.items(), key=lambda pair: len(pair[1]))
    parts = [f"{value} for {', '.join(names)}" for value, names in ordered]
    if len(by_method) > 2 and len(ordered[-1][1]) > 1:
        parts[-1] = f"{ordered[-1][0]} for the other {len(ordered[-1][1])}"
    return f"{setting} is {'; '.join(parts[:-1])} and {parts[-1]}"
