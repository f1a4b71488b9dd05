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
_OWN = ("seed", "method", "learning_rate", "epochs", "evaluate_at", "after")
"""Names of values in which the runs of one method in a sweep may differ."""
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
    identities: dict[str, _Identity] = {}
    for group in groups.values():
        identities |= _identities(group)
    ids: dict[str, str] = {}
    for run in runs.values():
        _add_id(run, runs, identities, ids)
    settings: dict[str, RunSettings] = {}
    for group in groups.values():
        differing = _differing_settings(group, runs, identities, ids)
        for run, settings_of_run in zip(group, differing, strict=True):
            flat = hyperparameters_of(run)
            for name, value in settings_of_run.items():
                flat[free_name(name, flat, "run")] = value
            settings[run.id] = RunSettings(ids[run.id], flat)
    return settings


@dataclass(frozen=True)
class _Identity:
    """The values that the id of a run is made from."""

    shared: Mapping[str, Any]
    """Those that all runs of one method in a sweep share: data, model, training, evaluation."""
    shared_hash: str
    own: Mapping[str, Any]
    """Those by the names in `_OWN`."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> _Identity:
        """Sort the values."""
        shared = {key: value for key, value in values.items() if key not in _OWN}
        own = {key: value for key, value in values.items() if key in _OWN}
        return cls(shared, content_hash(shared), own)

    @property
    def after(self) -> str:
        """Id of the run that this one goes on from; empty if there is none."""
        return str(self.own.get("after", ""))

    @property
    def setting(self) -> dict[str, Any]:
        """The values that runs on other seeds have as well; `shared` by its hash."""
        setting = {k: v for k, v in self.own.items() if k not in ("seed", "evaluate_at")}
        if list(self.own.get("evaluate_at") or ()) == [self.own.get("epochs")]:
            # Evaluated only after its last epoch, which tells its number of epochs. With
            # `epochs_as: runs`, a setting has a run for each number of epochs.
            setting.pop("epochs", None)
        return setting | {"shared": self.shared_hash}


def _identities(runs: Sequence[Record]) -> dict[str, _Identity]:
    """Return the values that the ids of runs of one method, model and split are made from.

    If one of the specs cannot be read, all of them are taken as they are stored. Specs of other
    versions, or of plug-ins that are not installed here, cannot be read.
    """
    try:
        first = _read_identity(runs[0].spec)
        if _differ_only_in_own(runs, first):
            # Reading a spec takes longer than anything else here.
            return {
                run.id: _Identity(
                    first.shared,
                    first.shared_hash,
                    {key: run.spec[key] for key in _OWN if run.spec.get(key)},
                )
                for run in runs
            }
        return {run.id: _read_identity(run.spec) for run in runs}
    except (ValueError, TypeError, KeyError, UnlearnbenchError):
        return {run.id: _Identity.of(_stored_identity(run.spec)) for run in runs}


def _read_identity(spec: Mapping[str, Any]) -> _Identity:
    values = RunSpec.model_validate_json(json.dumps(spec)).identity
    # As in specs, where a key without a value is left out.
    return _Identity.of({k: v for k, v in values.items() if k not in _OWN or v})


def _differ_only_in_own(runs: Sequence[Record], first: _Identity) -> bool:
    """Whether the specs of runs are equal except for values that ids contain as they are stored.

    Args:
        runs: At least one.
        first: Identity of the first run.
    """
    stored = runs[0].spec
    if any(stored.get(key) != value for key, value in first.own.items()):
        return False
    shared = {key: value for key, value in stored.items() if key not in _OWN}
    trains = stored.get("learning_rate") is not None
    return all(
        {key: value for key, value in run.spec.items() if key not in _OWN} == shared
        and (run.spec.get("learning_rate") is not None) is trains
        for run in runs
    )


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
    identities: Mapping[str, _Identity],
    ids: dict[str, str],
) -> None:
    """Add the id of a run's setting to `ids`, after those of the runs that it goes on from."""
    waiting = [run]
    while waiting:
        current = waiting[-1]
        identity = identities[current.id]
        before = runs.get(identity.after)
        if before is not None and before.id not in ids and before not in waiting:
            waiting.append(before)
            continue
        waiting.pop()
        setting = identity.setting
        if before is not None:
            setting["after"] = ids.get(before.id, before.id)
        ids[current.id] = content_hash(setting)


def _differing_settings(
    group: Sequence[Record],
    runs: Mapping[str, Record],
    identities: Mapping[str, _Identity],
    ids: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the settings in which runs of one method, model and split differ, run by run.

    Settings that a table shows anyway are left out: hyperparameters, retain term, learning rate.
    """
    several = len({identities[run.id].shared_hash for run in group}) > 1
    shown: list[dict[str, Any]] = []
    for run in group:
        identity = identities[run.id]
        setting = identity.setting
        del setting["shared"]
        before = runs.get(identity.after)
        if before is not None:
            setting["after"] = f"{split_label(before.forget_fraction)} {ids[before.id][:8]}"
        shown.append(dict(_leaves({**identity.shared, **setting} if several else setting)))
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
