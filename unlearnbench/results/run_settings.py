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
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.plan import RunSpec
from unlearnbench.config.schema import EvaluationSettings, ModelSettings
from unlearnbench.config.section import NEVER, Settings
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.results.records import Record

_SECTIONS: Mapping[str, type[Settings]] = {
    "model": ModelSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
}
_NO_PART_OF_IDS = frozenset(
    f"{section}.{name}"
    for section, settings in _SECTIONS.items()
    for name, field in settings.model_fields.items()
    if NEVER in field.metadata
)
"""Dotted names of settings that change no number, such as `evaluation.batch_tokens`."""
_IN_ROWS = frozenset(
    {
        "method.name",
        "method.hyperparameters",
        "method.retain",
        "model.name",
        "forget_fraction",
        "learning_rate",
        "seed",
        "evaluate_at",
    }
)
"""Dotted names of settings that a table shows in columns of their own."""
DEFAULT = "default"
"""Stands for a setting that a spec leaves out because it has its default."""
_FOLLOWING = frozenset({"leaves_out_label", "after"})
"""Settings that usually follow from others of the same run: from the template and a hyperparameter,
and from the setting itself, which goes on from its own run on the split before."""


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
    groups: dict[tuple[str, SplitKey, str], list[Record]] = defaultdict(list)
    for run in runs.values():
        groups[*run.panel, run.method].append(run)
    identities: dict[str, Mapping[str, Any]] = {}
    for group in groups.values():
        identities |= _identities(group)
    ids: dict[str, str] = {}
    for run in runs.values():
        _add_id(run, runs, identities, ids)
    settings: dict[str, RunSettings] = {}
    for group in groups.values():
        for run, apart in zip(group, _apart(group, runs, identities, ids), strict=True):
            flat = hyperparameters_of(run)
            for name, value in apart.items():
                flat[free_name(name, flat, "run")] = value
            settings[run.id] = RunSettings(ids[run.id], flat)
    return settings


def _identities(runs: Sequence[Record]) -> dict[str, Mapping[str, Any]]:
    """Return the values that each run's id is made from.

    If one of the specs cannot be read, all of them are taken as they are stored. Specs of other
    versions, or of plug-ins that are not installed here, cannot be read.
    """
    try:
        return {run.id: RunSpec.model_validate_json(json.dumps(run.spec)).identity for run in runs}
    except (ValueError, TypeError, KeyError, UnlearnbenchError):
        return {run.id: _stored_identity(run.spec) for run in runs}


def _stored_identity(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored spec without the settings that change no number."""
    identity: dict[str, Any] = {}
    for section, value in spec.items():
        if section == "data":  # its fingerprint stands beside it
            continue
        identity[section] = value
        if section in _SECTIONS and isinstance(value, Mapping):
            identity[section] = {
                name: below
                for name, below in value.items()
                if f"{section}.{name}" not in _NO_PART_OF_IDS
            }
    return identity


def _add_id(
    run: Record,
    runs: Mapping[str, Record],
    identities: Mapping[str, Mapping[str, Any]],
    ids: dict[str, str],
) -> None:
    """Add the id of a run's setting to `ids`, after those of the runs that it goes on from."""
    waiting = [run]
    while waiting:
        current = waiting[-1]
        identity = identities[current.id]
        before = runs.get(str(identity.get("after", "")))
        if before is not None and before.id not in ids and before not in waiting:
            waiting.append(before)
            continue
        waiting.pop()
        counted = {k: v for k, v in identity.items() if k not in ("seed", "evaluate_at")}
        if before is not None:
            counted["after"] = ids.get(before.id, before.id)
        if _has_one_evaluation(identity):
            # With `epochs_as: runs`, a setting has a run for each number of epochs.
            counted.pop("epochs", None)
        ids[current.id] = content_hash(counted)


def _has_one_evaluation(identity: Mapping[str, Any]) -> bool:
    """Whether a run is evaluated only after its last epoch, which tells its number of epochs."""
    return list(identity.get("evaluate_at") or ()) == [identity.get("epochs")]


def _apart(
    group: Sequence[Record],
    runs: Mapping[str, Record],
    identities: Mapping[str, Mapping[str, Any]],
    ids: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the settings in which runs of one method, model and split differ, run by run.

    Without those that a table shows anyway: hyperparameters, the retain term, the learning rate.
    """
    shown: list[dict[str, Any]] = []
    for run in group:
        identity = identities[run.id]
        values = dict(_leaves(identity))
        if _has_one_evaluation(identity):
            values.pop("epochs", None)
        before = runs.get(str(identity.get("after", "")))
        if before is not None:
            values["after"] = f"{split_label(before.forget_fraction)} {ids[before.id][:8]}"
        shown.append(values)
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
