"""Settings of runs: which runs differ only in their seeds, and distinct names for all values.

Seeds are averaged, so two runs count as one setting only if their specs would give them one id at
the same seed. Names matter because tables, labels and trackers put the values of several sections
side by side: a method's own `retain_weight` and the weight of an added retain term, for example.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.api.identity import Id, StoredIdentities, hash_of_entries
from unlearnbench.config.plan import RunSpec
from unlearnbench.results.records import Record

_IN_ROWS = frozenset(
    {
        "method.name",
        "method.hyperparameters",
        "method.retain",
        "model.name",
        "forget_fraction",
        "learning_rate",
    }
)
"""Dotted names of settings that a table shows in columns of their own."""
DEFAULT = "default"
"""Stands for a setting that a spec leaves out because it has its default."""
_FOLLOWING = frozenset({"leaves_out_label", "evaluate_at", "after"})
"""Settings that usually follow from others of the same run: from the template and a hyperparameter,
from the number of epochs, and from the setting itself, which goes on from its own run on the split
before."""


@dataclass(frozen=True)
class RunSettings:
    """What distinguishes a run from the other runs of a table."""

    id: str
    """Hash of everything that the numbers depend on, except the seed. Equal for the seeds of one
    setting, and only for them."""
    hyperparameters: Mapping[str, Any]
    """Hyperparameters and retain term by name, then all other settings in which the runs of this
    method, model and split differ (`training.batch_size`)."""


def free_name(name: str, taken: Collection[str], section: str, key: str | None = None) -> str:
    """Return `name`, or its name within a section where another setting is called `name`.

    Args:
        name: `retain_weight`.
        taken: Names of other settings.
        section: Where the setting stands in the configuration: `retain`.
        key: Its name there: `weight`, for `retain.weight`. Defaults to `name`.
    """
    if name not in taken:
        return name
    qualified = f"{section}.{name if key is None else key}"
    # Only a modifier that is called like the section has settings of such a name.
    return free_name(qualified, taken, section)


def flat_hyperparameters(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters and the retain term of a method's specification in one mapping.

    The weight of the term is called `retain_weight`, or `retain.weight` for methods that have a
    hyperparameter called `retain_weight`.
    """
    flat = dict(method.get("hyperparameters") or {})
    if retain := method.get("retain"):
        flat[free_name("retain", flat, "retain", "term")] = retain["term"]
        flat[free_name("retain_weight", flat, "retain", "weight")] = retain["weight"]
    return flat


def hyperparameters_of(record: Record) -> dict[str, Any]:
    """Return `flat_hyperparameters` of a run; nothing for other models."""
    method = record.spec.get("method")
    return flat_hyperparameters(method) if record.kind == "run" and method else {}


def run_settings(records: Iterable[Record]) -> dict[str, RunSettings]:
    """Return the settings of the runs among some records, by record id.

    Runs of requests in sequence name the run that they go on from, which has their own seed. They
    are one setting if the runs before them are one, so `records` should include those.
    """
    runs = {record.id: record for record in records if record.kind == "run"}
    identities = StoredIdentities(RunSpec, Id.SETTING)
    entries = {run.id: identities.entries(run.spec) for run in runs.values()}
    ids: dict[str, str] = {}
    for run in runs.values():
        _add_id(run, runs, entries, ids)
    groups: dict[tuple[str, SplitKey, str], list[Record]] = defaultdict(list)
    for run in runs.values():
        groups[*run.panel, run.method].append(run)
    settings: dict[str, RunSettings] = {}
    for group in groups.values():
        differing = _differing_settings(group, runs, entries, ids)
        for run, settings_of_run in zip(group, differing, strict=True):
            flat = hyperparameters_of(run)
            for name, value in settings_of_run.items():
                flat[free_name(name, flat, "run")] = value
            settings[run.id] = RunSettings(ids[run.id], flat)
    return settings


_Entries = Mapping[str, tuple[Any, str]]
"""Entries of a setting's identity with their canonical JSON, by field; see `StoredIdentities`."""


def _add_id(
    run: Record,
    runs: Mapping[str, Record],
    entries: Mapping[str, _Entries],
    ids: dict[str, str],
) -> None:
    """Add the id of a run's setting to `ids`, after those of the runs that it goes on from."""
    waiting = [run]
    while waiting:
        current = waiting[-1]
        of_setting = dict(entries[current.id])
        before = runs.get(_run_before(of_setting))
        if before is not None and before.id not in ids and before not in waiting:
            waiting.append(before)
            continue
        waiting.pop()
        if before is not None:
            id_before = ids.get(before.id, before.id)
            of_setting["after"] = id_before, id_before
        ids[current.id] = hash_of_entries(of_setting)


def _run_before(entries: _Entries) -> str:
    """Return the id of the run that one goes on from; empty if there is none."""
    return str(entries["after"][0]) if "after" in entries else ""


def _differing_settings(
    group: Sequence[Record],
    runs: Mapping[str, Record],
    entries: Mapping[str, _Entries],
    ids: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the settings in which runs of one method, model and split differ, run by run.

    Settings that a table shows anyway are left out: hyperparameters, retain term, learning rate.
    """
    texts: dict[str, set[str]] = defaultdict(set)
    for run in group:
        for name, (_, text) in entries[run.id].items():
            texts[name].add(text)
    several = {
        name
        for name in texts
        if len(texts[name]) > 1 or any(name not in entries[run.id] for run in group)
    }
    shown: list[dict[str, Any]] = []
    for run in group:
        setting = {name: entry for name, (entry, _) in entries[run.id].items() if name in several}
        before = runs.get(_run_before(entries[run.id]))
        if before is not None and "after" in setting:
            setting["after"] = f"{split_label(before.forget_fraction)} {ids[before.id][:8]}"
        shown.append(dict(_leaves(setting)))
    names = {name for values in shown for name in values}
    differing = sorted(
        name
        for name in names
        if len({json.dumps(values.get(name, DEFAULT), sort_keys=True) for values in shown}) > 1
    )
    needed = [name for name in differing if name not in _FOLLOWING]
    described = {
        (
            run.learning_rate,
            json.dumps(hyperparameters_of(run), sort_keys=True),
            *(json.dumps(values.get(name, DEFAULT), sort_keys=True) for name in needed),
        )
        for run, values in zip(group, shown, strict=True)
    }
    if len(described) < len({ids[run.id] for run in group}):
        needed = differing
    return [{name: values.get(name, DEFAULT) for name in needed} for values in shown]


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every setting that a table has no column for."""
    for key, value in settings.items():
        name = f"{above}{key}"
        if name in _IN_ROWS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, json.dumps(value) if isinstance(value, list | tuple) else value
