"""Settings of runs: which runs differ only in their seeds, and in what all others differ.

Seeds are averaged, so two runs count as one setting only if their specs would give them one id at
the same seed.
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

_IN_ROWS = frozenset[Path](
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
_FOLLOWING = frozenset({"leaves_out_label", "evaluate_at", "after"})
"""Settings that usually follow from others of the same run: from the template and a hyperparameter,
from the number of epochs, and from the setting itself, which goes on from its own run on the split
before."""


def run_settings(records: Iterable[Record]) -> dict[str, SettingValue]:
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
    settings: dict[str, SettingValue] = {}
    for group in groups.values():
        # Seeds of a setting have the same value, which takes longer to make than to look up.
        first_of = {(ids[run.id], run.learning_rate): run for run in reversed(group)}
        differing = _differing_settings([*first_of.values()], runs, entries, ids)
        value_of: dict[tuple[str, float | None], SettingValue] = {}
        for (setting_id, rate), others in zip(first_of, differing, strict=True):
            method = first_of[setting_id, rate].spec.get("method") or {}
            value_of[setting_id, rate] = SettingValue.of(method, rate, others, setting_id)
        for run in group:
            settings[run.id] = value_of[ids[run.id], run.learning_rate]
    return settings


def _add_id(
    run: Record,
    runs: Mapping[str, Record],
    entries: Mapping[str, Entries],
    ids: dict[str, str],
) -> None:
    """Add the id of a run's setting to `ids`, after those of the runs that it goes on from."""
    waiting = [run]
    while waiting:
        current = waiting[-1]
        of_setting = entries[current.id]
        before = runs.get(_run_before(of_setting))
        if before is not None and before.id not in ids and before not in waiting:
            waiting.append(before)
            continue
        waiting.pop()
        if before is not None:
            # The id of the run before has its seed, and the id of its setting has not.
            id_before = ids.get(before.id, before.id)
            of_setting = Entries({**of_setting, "after": (id_before, id_before)})
        ids[current.id] = of_setting.hash


def _run_before(entries: Entries) -> str:
    """Return the id of the run that one goes on from; empty if there is none."""
    return str(entries["after"][0]) if "after" in entries else ""


def _differing_settings(
    group: Sequence[Record],
    runs: Mapping[str, Record],
    entries: Mapping[str, Entries],
    ids: Mapping[str, str],
) -> list[dict[Path, Any]]:
    """Return the settings in which runs of one method, model and split differ, run by run.

    Settings that a table shows anyway are left out: hyperparameters, retain term, learning rate.

    Args:
        group: One run of each setting.
        runs: All runs by id.
        entries: Entries of the id of each run's setting, by the run's id.
        ids: Id of each run's setting, by the run's id.
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
    shown: list[dict[Path, Any]] = []
    for run in group:
        setting = {name: entry for name, (entry, _) in entries[run.id].items() if name in several}
        before = runs.get(_run_before(entries[run.id]))
        if before is not None and "after" in setting:
            setting["after"] = f"{split_label(before.forget_fraction)} {ids[before.id][:8]}"
        shown.append(dict(_leaves(setting)))
    paths = sorted({path for values in shown for path in values})
    differing = [
        path for path in paths if len({value_text(values.get(path, UNSET)) for values in shown}) > 1
    ]
    needed = [path for path in differing if path[0] not in _FOLLOWING]
    described = {
        SettingValue.of(run.spec.get("method") or {}, run.learning_rate, _those(needed, values))
        for run, values in zip(group, shown, strict=True)
    }
    if len(described) < len({ids[run.id] for run in group}):
        needed = differing
    return [_those(needed, values) for values in shown]


def _those(paths: Iterable[Path], values: Mapping[Path, Any]) -> dict[Path, Any]:
    return {path: values.get(path, UNSET) for path in paths}


def _leaves(settings: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) of every setting that a table has no column for."""
    for key, value in settings.items():
        path = (*above, key)
        if path in _IN_ROWS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value
