"""Selection of each method's best setting on some seeds, reported on the others.

Pure, except for `selection.json`, which stores the rule, the choices and their numbers. A setting
counts only if every seed of the choice has a number.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from unlearnbench.analysis.best_settings import (
    OnPanel,
    Setting,
    Start,
    best_of,
    headline_of_rows,
    merit_of,
    panels,
)
from unlearnbench.analysis.text import best_rule, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.base.atomic import write_text
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.search import SelectSettings
from unlearnbench.results.table import TableRow
from unlearnbench.stats.pareto_front import hypervolume

SELECTION_FILE = "selection.json"
SCHEMA = 1
NO_NUMBERS = "no setting has numbers for all seeds of the choice"


@dataclass(frozen=True)
class ChosenSetting(OnPanel):
    """A method's best setting on one model and split, or why there is none."""

    method: str
    """Label without hyper-parameters."""
    candidates: int
    """Number of settings that have all seeds of the choice."""
    why_not: str = ""
    setting: str = ""
    """Label with hyper-parameters."""
    hyperparameters: Mapping[str, Any] | None = None
    learning_rate: float | None = None
    epoch: int | None = None
    kept: float | None = None
    """The headline's number; mean over the seeds of the choice, as is the next one."""
    forgotten: float | None = None
    hypervolume: float | None = None
    runs: tuple[str, ...] = ()
    """Ids of the runs that it was chosen by: one per seed, or with `epochs_as: runs` several."""
    entry: str = ""
    """Name of the entry whose trials it was chosen from; the method, unless several entries have
    it."""


def describe_rule(select: SelectSettings, headline: Headline, chosen_of: str = "method") -> str:
    """Describe the rule of `choose` in a sentence.

    chosen_of  what has a choice on each model and split: a method, or an entry
    """
    kept, forgotten = headline.kept, headline.forgotten
    seeds = ", ".join(map(str, select.seeds))
    if select.rule == "forget-quality":
        rule = (
            f"{best_rule(headline, select.utility)}; ties go to the higher {kept.plain_short}, "
            "then to the earlier epoch"
        )
    else:
        corner = select.reference
        above = "above" if forgotten.better == "higher" else "better than"
        where = f"({corner[0]:g}, {corner[1]:g})" if corner else "(0, the start model's)"
        rule = (
            f"the setting whose epochs span the largest area of {kept.plain_label} × "
            f"{forgotten.plain_label} {above} {where}, and of them the epoch that spans most by "
            f"itself; ties go to the {forgotten.better} {forgotten.name}, then to the higher "
            f"{kept.plain_short}"
        )
    return f"per model, split and {chosen_of}: {rule}; on means over seeds {seeds}"


def choose(
    rows: Sequence[TableRow],
    select: SelectSettings,
    entries: Mapping[str, Sequence[str]] | None = None,
) -> tuple[ChosenSetting, ...]:
    """Choose each method's best setting by the rule, from runs on the seeds of the choice alone.

    entries  names of the entries that a run is a trial of, by its id. Each entry of a method then
             has a choice of its own. A run without an entry counts for its method.
    """
    rule = _by_quality if select.rule == "forget-quality" else _by_hypervolume
    choices: list[ChosenSetting] = []
    for panel in panels(row for row in rows if row.kind != "run" or row.seed in select.seeds):
        trials: dict[tuple[str, str], list[Setting]] = {}
        for setting in panel.settings:
            of_run = (entries or {}).get(setting.rows[0].run_id) or (setting.family,)
            for entry in of_run:
                trials.setdefault((setting.family, entry), []).append(setting)
        for (family, entry), settings in sorted(trials.items()):
            complete = [
                setting
                for setting in settings
                if merit_of(setting) is not None
                and {row.seed for row in setting.rows} == set(select.seeds)
            ]
            tried = len({_trajectory(setting) for setting in complete})
            result = rule(complete, select, panel.start) if complete else NO_NUMBERS
            if isinstance(result, str):
                choice = ChosenSetting(*panel.panel, family, tried, why_not=result)
            else:
                best, area = result
                choice = _choice(best, area, complete, tried)
            choices.append(replace(choice, entry=entry))
    return tuple(choices)


def _by_quality(
    settings: Sequence[Setting], select: SelectSettings, start: Start
) -> tuple[Setting, None] | str:
    """The setting that forgets most and keeps its utility, or why there is none."""
    if start.utility is None:
        return "the start model was not evaluated: no utility to keep"
    best = best_of(settings, select.utility * start.utility)
    if best is None:
        share = share_kept(start.headline, select.utility)
        return f"no setting keeps {share}, {start.utility:.4g}"
    return best, None


def _by_hypervolume(
    settings: Sequence[Setting], select: SelectSettings, start: Start
) -> tuple[Setting, float] | str:
    """The setting of largest area at the epoch of largest own area, or why there is none."""
    oriented, reference = start.headline.forgotten.oriented, start.corner
    if select.reference is not None:
        reference = select.reference[0], oriented(select.reference[1])
    if reference is None:
        return "the start model was not evaluated: give select.reference"
    spanned: dict[Any, list[tuple[float, float]]] = {}
    for setting in settings:
        spanned.setdefault(_trajectory(setting), []).append(_position(setting))
    areas = {key: hypervolume(points, reference) for key, points in spanned.items()}
    merits = [
        (
            areas[_trajectory(setting)],
            hypervolume([_position(setting)], reference),
            merit_of(setting) or (),
            i,
        )
        for i, setting in enumerate(settings)
    ]
    area, *_, index = max(merits)
    if area <= 0:
        return f"no setting is above ({reference[0]:g}, {oriented(reference[1]):g}) in both"
    return settings[index], area


def _trajectory(setting: Setting) -> tuple[Any, ...]:
    """Key that all epochs of a setting share."""
    return setting.key[:-1]


def _position(setting: Setting) -> tuple[float, float]:
    """Kept and forgotten, larger is better in both."""
    oriented = setting.headline.forgotten.oriented
    return setting.kept or 0.0, oriented(setting.forgotten or 0.0)


def _choice(
    best: Setting, area: float | None, settings: Sequence[Setting], tried: int
) -> ChosenSetting:
    # A trajectory is one run per seed, but with `epochs_as: runs` one per number of epochs.
    rows = [row for s in settings if _trajectory(s) == _trajectory(best) for row in s.rows]
    chosen = rows if area is not None else best.rows
    return ChosenSetting(
        model=best.model,
        forget_fraction=best.forget_fraction,
        method=best.family,
        candidates=tried,
        setting=best.method,
        hyperparameters=best.rows[0].hyperparameters,
        learning_rate=best.learning_rate,
        epoch=best.epoch,
        kept=best.kept,
        forgotten=best.forgotten,
        hypervolume=area,
        runs=tuple(sorted({row.run_id for row in chosen})),
    )


def report_chosen(
    choice: ChosenSetting, rows: Sequence[TableRow], runs: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Report a choice on the other seeds, at the chosen epoch, as in `selection.json`.

    The headline's numbers have the names of their columns.

    runs  ids of the runs on the other seeds, by the id of the chosen run
    """
    ids = {item for chosen in choice.runs for item in runs.get(chosen, ())}
    current = [row for row in rows if row.run_id in ids and row.epoch == choice.epoch]
    reported: dict[str, Any] = {"seeds": sorted({row.seed for row in current})}
    headline = headline_of_rows(rows)
    columns = {"kept": headline.kept.column, "forgotten": headline.forgotten.column}
    for column in columns.values():
        numbers = [value for row in current if (value := row.metrics.get(column)) is not None]
        whole = numbers and len(numbers) == len(current)  # a collapsed seed must not disappear
        reported[column] = {
            "mean": fmean(numbers) if whole else None,
            "standard_deviation": stdev(numbers) if whole and len(numbers) > 1 else None,
        }
    result = {columns.get(key, key): value for key, value in asdict(choice).items()}
    return result | {"reported_runs": sorted(ids), "reported": reported}


def write_selection(
    folder: Path,
    select: SelectSettings,
    seeds: Sequence[int],
    reported: Sequence[Mapping[str, Any]],
    headline: Headline,
) -> Path:
    """Write `selection.json` into a sweep's folder: the rule, the choices and their results.

    seeds     all seeds of the sweep
    reported  each choice by `report_chosen`
    headline  of the sweep's benchmark
    """
    document = {
        "schema": SCHEMA,
        "rule": describe_rule(select, headline, owner_of_choices(reported)),
        "select": select.model_dump(mode="json"),
        "chosen_on_seeds": select.seeds,
        "reported_on_seeds": [seed for seed in seeds if seed not in select.seeds],
        "choices": reported,
    }
    path = folder / SELECTION_FILE
    write_text(path, json.dumps(json_ready(document), indent=1, allow_nan=False))
    return path


def entry_name(choice: Mapping[str, Any]) -> str:
    """The name of the entry that a choice in `selection.json` is of.

    Earlier versions had one choice for all entries of a method, and no names of entries.
    """
    name: str = choice.get("entry") or choice["method"]
    return name


def owner_of_choices(choices: Iterable[Mapping[str, Any]]) -> Literal["entry", "method"]:
    """What has a choice on each model and split: entries, if several of them are of one method."""
    has_entries = any(entry_name(choice) != choice["method"] for choice in choices)
    return "entry" if has_entries else "method"


def is_stale(selection: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> bool:
    """Whether a selection is by another rule than that of a stored plan, or of other runs."""
    planned = {run["id"] for run in plan["runs"]}
    if selection is None:
        return False
    reported = {run for choice in selection.get("choices", ()) for run in choice["reported_runs"]}
    return selection.get("select") != plan["config"].get("select") or not reported <= planned


def read_selection(folder: Path) -> dict[str, Any] | None:
    """Read what `write_selection` wrote; None if nothing was chosen yet."""
    path = folder / SELECTION_FILE
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
