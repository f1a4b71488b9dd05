"""Find out which runs differ only in their seeds, and in which settings all others differ.

Numbers are averaged over seeds. Two runs therefore count as one setting only if they would have the
same id with the same seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.api.identity import Entries, Id, StoredIdentities
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.results.records import Record
from unlearnbench.results.setting_value import UNSET, Path, SettingValue, value_text

_HAVE_COLUMNS = frozenset[Path](
    {
        ("method", "name"),
        ("method", "hyperparameters"),
        ("method", "retain"),
        ("model", "name"),
        ("forget_fraction",),
        ("learning_rate",),
    }
)
"""Settings that a table shows in columns of their own."""
_DERIVED = frozenset({"leaves_out_label", "evaluate_at", "after"})
"""Settings that usually follow from others of the same run, and are shown only if they do not.

`leaves_out_label` follows from the template and a hyperparameter, `evaluate_at` from the number of
epochs, and `after` from the setting, because a run goes on from the same setting's run on the
split before.
"""


def run_settings(records: Iterable[Record]) -> dict[str, SettingValue]:
    """Return the settings of the runs among some records, by record id.

    A run of requests in sequence goes on from a run with the same seed on the split before. Such
    runs are one setting only if the runs before them are one setting.

    Args:
        records: All records of a table, with those of the runs that others go on from.
    """
    runs = {record.id: record for record in records if record.kind == "run"}
    identities = StoredIdentities(RunSpec, Id.SETTING)
    entries = {run.id: identities.entries(run.spec) for run in runs.values()}
    ids: dict[str, str] = {}
    for run in runs.values():
        _add_id(run, runs, entries, ids)
    runs_of_method: dict[tuple[str, SplitKey, str], list[Record]] = defaultdict(list)
    for run in runs.values():
        runs_of_method[*run.panel, run.method].append(run)

    settings: dict[str, SettingValue] = {}
    for group in runs_of_method.values():
        # All seeds of a setting share one value, because to make a value takes long. The order is
        # reversed so that the first run of a setting is the one that stays.
        run_of_setting = {(ids[run.id], run.learning_rate): run for run in reversed(group)}
        differing = _differing_settings([*run_of_setting.values()], runs, entries, ids)
        value_of_setting: dict[tuple[str, float | None], SettingValue] = {}
        for (key, run), others in zip(run_of_setting.items(), differing, strict=True):
            setting_id, learning_rate = key
            method = run.spec.get("method") or {}
            value_of_setting[key] = SettingValue.of(method, learning_rate, others, setting_id)
        for run in group:
            settings[run.id] = value_of_setting[ids[run.id], run.learning_rate]
    return settings


def _add_id(
    run: Record,
    runs: Mapping[str, Record],
    entries: Mapping[str, Entries],
    ids: dict[str, str],
) -> None:
    """Add the id of a run's setting to `ids`, after the ids of the runs that it goes on from.

    Args:
        run: The run.
        runs: All runs by id.
        entries: What the id of each run's setting depends on, by the run's id.
        ids: Ids of settings by the run's id. They are added here.
    """
    waiting = [run]
    """Runs without an id, each followed by the run that it goes on from."""
    while waiting:
        current = waiting[-1]
        own_entries = entries[current.id]
        before = runs.get(_run_before(own_entries))
        if before is not None and before.id not in ids and before not in waiting:
            waiting.append(before)
            continue
        waiting.pop()
        if before is not None:
            # The id of the run before depends on its seed. The id of its setting does not.
            id_before = ids.get(before.id, before.id)
            own_entries = Entries({**own_entries, "after": (id_before, id_before)})
        ids[current.id] = own_entries.hash


def _run_before(entries: Entries) -> str:
    """Return the id of the run that a run goes on from; empty if there is none."""
    return str(entries["after"][0]) if "after" in entries else ""


def _differing_settings(
    group: Sequence[Record],
    runs: Mapping[str, Record],
    entries: Mapping[str, Entries],
    ids: Mapping[str, str],
) -> list[dict[Path, Any]]:
    """Return the settings in which runs of one method, model and split differ.

    Settings that a table shows anyway are left out: hyperparameters, retain term, learning rate.

    Args:
        group: One run of each setting.
        runs: All runs by id.
        entries: What the id of each run's setting depends on, by the run's id.
        ids: Id of each run's setting, by the run's id.

    Returns:
        For each run of the group, the values by path.
    """
    names = _differing_entries([entries[run.id] for run in group])
    values_of_runs: list[dict[Path, Any]] = []
    for run in group:
        setting = {name: value for name, (value, _) in entries[run.id].items() if name in names}
        before = runs.get(_run_before(entries[run.id]))
        if before is not None and "after" in setting:
            setting["after"] = f"{split_label(before.forget_fraction)} {ids[before.id][:8]}"
        values_of_runs.append(dict(_leaves(setting)))

    # An entry may be a section with many values, of which only some differ.
    differing: list[Path] = []
    for path in sorted({path for values in values_of_runs for path in values}):
        texts = {value_text(values.get(path, UNSET)) for values in values_of_runs}
        if len(texts) > 1:
            differing.append(path)

    needed = [path for path in differing if path[0] not in _DERIVED]
    described = {
        SettingValue.of(run.spec.get("method") or {}, run.learning_rate, _at(needed, values))
        for run, values in zip(group, values_of_runs, strict=True)
    }
    setting_count = len({ids[run.id] for run in group})
    if len(described) < setting_count:
        # Two settings differ only in a value that usually follows from the others.
        needed = differing
    return [_at(needed, values) for values in values_of_runs]


def _differing_entries(entries_of_runs: Sequence[Entries]) -> set[str]:
    """Return the names of the entries that some runs lack, or in which runs differ."""
    texts_of_name: dict[str, set[str]] = defaultdict(set)
    for entries in entries_of_runs:
        for name, (_, text) in entries.items():
            texts_of_name[name].add(text)
    return {
        name
        for name, texts in texts_of_name.items()
        if len(texts) > 1 or any(name not in entries for entries in entries_of_runs)
    }


def _at(paths: Iterable[Path], values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the values at some paths, with `UNSET` for those that are not there."""
    return {path: values.get(path, UNSET) for path in paths}


def _leaves(settings: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value of every setting that a table has no column for.

    Args:
        settings: A section of a specification.
        above: Path of the section.
    """
    for key, value in settings.items():
        path = (*above, key)
        if path in _HAVE_COLUMNS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
