"""What `select` and `tune` choose: each method's setting on some seeds, reported on the others.

The choice is a function of the table, the records and `plan.json`, and every view derives it again.
`selection.json` is one of these views. No other view reads it, except for plans of earlier versions
(see `stored_choices`).

`selection_rule` chooses, `choice_plan` reads the plan. This module reports the choices on the other
seeds (`selection_of`), and makes of them the values that panels use (`choices_of`). All of it is
computed from values in memory.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from unlearnbench.analysis.best_settings import Choice
from unlearnbench.analysis.choice_plan import ChoicePlan, PlannedRun
from unlearnbench.analysis.ended_early import EarlyEnd, early_ends
from unlearnbench.analysis.selection_rule import (
    NO_NUMBERS,
    ChosenSetting,
    choose,
    describe_rule,
    rule_of,
)
from unlearnbench.analysis.settings import PanelKey, average_seeds, headline_of_rows, is_evidence
from unlearnbench.analysis.tuning import summary
from unlearnbench.analysis.wording import counted
from unlearnbench.api.benchmark import Headline
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.unit import Unit, budget_of_spec
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

SELECTION_FILE = "selection.json"
SCHEMA = 1


# The content of selection.json


def selection_of(
    rows: Sequence[TableRow], records: Sequence[Record], plan: ChoicePlan
) -> dict[str, Any]:
    """Return the content of `selection.json`: rule, choices and their results on the other seeds.

    Args:
        rows: Rows of the table of all planned runs, and of the models that they are compared with.
        records: The records of the table.
        plan: The plan that the runs are from.
    """
    ends = early_ends(records, rows)
    reported: list[dict[str, Any]] = []
    for choice in chosen_settings(rows, plan):
        values = report_chosen(choice, rows, plan.reporting(choice.runs), ends)
        values["tuning"] = _tuning(choice, rows, records, plan)
        values["untuned"] = _report_untuned(choice, rows, records, plan, ends)
        reported.append(values)
    return _with_rule(reported, headline_of_rows(rows), plan)


def chosen_settings(rows: Sequence[TableRow], plan: ChoicePlan) -> tuple[ChosenSetting, ...]:
    """Choose from the trials of a plan by its rule."""
    return choose(rows, plan.select, plan.entries)


def _with_rule(
    reported: Sequence[Mapping[str, Any]], headline: Headline, plan: ChoicePlan
) -> dict[str, Any]:
    """Return the content of `selection.json` for choices that are reported already."""
    document: dict[str, Any] = json_ready(
        {
            "schema": SCHEMA,
            "rule": describe_rule(plan.select, headline, owner_of_choices(reported), plan.unit),
            "select": plan.rule,
            "chosen_on_seeds": plan.select.seeds,
            "reported_on_seeds": plan.reporting_seeds,
            "choices": reported,
        }
    )
    if plan.unit is not Unit.EPOCH:
        document["unit"] = plan.unit.value
    return document


def report_chosen(
    choice: ChosenSetting,
    rows: Sequence[TableRow],
    reporting: Iterable[str],
    ends: Iterable[EarlyEnd] = (),
) -> dict[str, Any]:
    """Report a choice on the other seeds, at the chosen epoch, as in `selection.json`.

    Args:
        choice: The choice.
        rows: Rows of the table.
        reporting: Ids of the runs of the chosen setting on the other seeds.
        ends: Runs that ended early.

    Returns:
        The fields of the choice, `reported_runs`, and `reported` with mean and deviation of the
        headline's two numbers. These two have the names of their columns, also among the fields.
    """
    run_ids = set(reporting)
    reporting_rows = [
        row
        for row in rows
        if row.run_id in run_ids and row.epoch == choice.epoch and is_evidence(row)
    ]
    settings = average_seeds(reporting_rows, [end for end in ends if end.run_id in run_ids])
    setting = settings[0] if settings else None

    headline = headline_of_rows(rows)
    column_of_field = {"kept": headline.kept.column, "forgotten": headline.forgotten.column}
    reported: dict[str, Any] = {"seeds": sorted({row.seed for row in reporting_rows})}
    for column in column_of_field.values():
        mean = None if setting is None else setting.metrics.get(column)
        numbers: list[float] = []
        if setting is not None and mean is not None:
            numbers = list(setting.by_seed(column).values())
        deviation = stdev(numbers) if len(numbers) > 1 else None
        reported[column] = {"mean": mean, "standard_deviation": deviation}
    values = {column_of_field.get(name, name): value for name, value in asdict(choice).items()}
    values["reported_runs"] = sorted(run_ids)
    values["reported"] = reported
    return values


def _trials_of(
    choice: ChosenSetting, records: Iterable[Record], plan: ChoicePlan
) -> tuple[PlannedRun, ...]:
    """Return the runs that a choice was made from, as far as they have records."""
    record_of_run = {record.id: record for record in records}
    trials: list[PlannedRun] = []
    for run in plan.trials:
        record = record_of_run.get(run.id)
        if record is None or record.panel != choice.panel or record.method != choice.method:
            continue
        entries = plan.entries.get(run.id) or (record.method,)
        if choice.entry in entries:
            trials.append(run)
    return tuple(trials)


def _tuning(
    choice: ChosenSetting, rows: Sequence[TableRow], records: Sequence[Record], plan: ChoicePlan
) -> dict[str, Any]:
    """Return what the trials of a choice were worth, and where in its ranges the choice is."""
    ids_of_point: dict[str, set[str]] = defaultdict(set)
    edges: Mapping[str, float] = {}
    for run in _trials_of(choice, records, plan):
        ids_of_point[run.point].add(run.id)
        if run.id in choice.runs:
            edges = run.entries.get(choice.entry, {}).get("position") or edges
    rows_of_panel = [
        row
        for row in rows
        if row.panel == choice.panel and (row.kind != "run" or row.seed in plan.select.seeds)
    ]
    trials = [frozenset(run_ids) for run_ids in ids_of_point.values()]
    tuning = summary(trials, rows_of_panel, records, plan.select)
    tuning["edges"] = dict(edges)
    return tuning


def _report_untuned(
    choice: ChosenSetting,
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
    ends: Iterable[EarlyEnd],
) -> dict[str, Any] | None:
    """Report the defaults of a choice's entry on the other seeds; None if they were not tried."""
    untuned_runs = {
        run.id: run
        for run in _trials_of(choice, records, plan)
        if run.entries.get(choice.entry, {}).get("untuned")
    }
    untuned_rows = [row for row in rows if row.run_id in untuned_runs or row.kind != "run"]
    chosen = choose(untuned_rows, plan.select)
    if not chosen:
        return None
    best = chosen[0]
    if not best.runs:
        # No epoch keeps enough utility, so the model is reported as it ends.
        last = max(budget_of_spec(run.spec) for run in untuned_runs.values())
        best = replace(best, runs=tuple(untuned_runs), epoch=last)
    report = report_chosen(best, rows, plan.reporting(best.runs), ends)
    return dict(report["reported"])


def stored_choices(
    stored: Mapping[str, Any] | None,
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
) -> dict[str, Any] | None:
    """Return the choices of an earlier version, whose plan does not say which entries runs are of.

    Their numbers on the other seeds are taken from the table.

    Args:
        stored: Content of `selection.json`; None without one.
        rows: Rows of the table of all planned runs.
        records: The records of the table.
        plan: The stored plan.

    Returns:
        None if the file is of another rule, or of runs that the plan does not have. Then a choice
        is made for each method, since its trials cannot be told apart by entry.
    """
    if stored is None or "select" not in stored or not plan.has_rule(stored["select"]):
        return None
    choices: list[Mapping[str, Any]] = stored.get("choices", [])
    if any(not plan.run_ids.issuperset(choice["reported_runs"]) for choice in choices):
        return None
    ends = early_ends(records, rows)
    headline = headline_of_rows(rows)
    columns = headline.kept.column, headline.forgotten.column
    reported: list[dict[str, Any]] = []
    for choice in choices:
        chosen = ChosenSetting(
            choice["model"],
            choice["forget_fraction"],
            choice["method"],
            choice["candidates"],
            epoch=choice["epoch"],
        )
        report = report_chosen(chosen, rows, choice["reported_runs"], ends)
        numbers = {column: choice.get(column) for column in columns}
        reported.append({**choice, **numbers, "reported": report["reported"]})
    return _with_rule(reported, headline, plan)


def entry_name(choice: Mapping[str, Any]) -> str:
    """Return the name of the entry that a choice in `selection.json` is of.

    Earlier versions had one choice for all entries of a method, and no names of entries.
    """
    name: str = choice.get("entry") or choice["method"]
    return name


def owner_of_choices(choices: Iterable[Mapping[str, Any]]) -> Literal["entry", "method"]:
    """Return what has a choice on each model and split.

    These are entries if several of them are of one method, and methods otherwise.
    """
    has_entries = any(entry_name(choice) != choice["method"] for choice in choices)
    return "entry" if has_entries else "method"


def selection_json(selection: Mapping[str, Any]) -> str:
    """Return the text of `selection.json`."""
    return json.dumps(selection, indent=1, allow_nan=False)


def read_selection(folder: Path) -> dict[str, Any] | None:
    """Read `selection.json`; None if nothing was chosen yet."""
    path = folder / SELECTION_FILE
    if not path.is_file():
        return None
    selection: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return selection


# Choices as panels use them


def choices_of(
    selection: Mapping[str, Any],
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
) -> tuple[Choice, ...]:
    """Return the choices of a selection as panels use them.

    Args:
        selection: From `selection_of` or `stored_choices`.
        rows: Rows of the table of all planned runs.
        records: The records of the table.
        plan: The plan that the runs are from.
    """
    headline = headline_of_rows(rows)
    choices = [_choice(chosen, headline, records, plan) for chosen in selection["choices"]]
    return (*choices, *_without_choice(choices, rows, plan, NO_NUMBERS))


def _choice(
    chosen: Mapping[str, Any], headline: Headline, records: Sequence[Record], plan: ChoicePlan
) -> Choice:
    """Return a choice in `selection.json` as panels use it."""
    panel: PanelKey = (chosen["model"], chosen["forget_fraction"])
    entry = entry_name(chosen)
    setting = ChosenSetting(*panel, chosen["method"], chosen["candidates"], entry=entry)
    trial_ids = [run.id for run in _trials_of(setting, records, plan)]

    why_not: str = chosen["why_not"]
    was_chosen = not why_not
    is_reported = bool(chosen["reported_runs"])
    has_reporting_runs = any(run.seed in plan.reporting_seeds for run in plan.runs)
    if was_chosen and not is_reported:
        seeds = ", ".join(map(str, plan.reporting_seeds))
        why_not = f"chosen; it has not been run on seeds {seeds} yet"
    return Choice(
        *panel,
        family=chosen["method"],
        entry=entry,
        label=chosen["setting"] or entry,
        epoch=chosen["epoch"],
        runs=frozenset(chosen["reported_runs"]),
        trials=frozenset(trial_ids or chosen["runs"]),
        chosen_on=plan.select.seeds,
        candidates=chosen["candidates"],
        worth=_worth(chosen, headline, plan),
        why_not=why_not,
        # The plan has runs on the reporting seeds, and none of this choice.
        has_moved=was_chosen and not is_reported and has_reporting_runs,
        sweep=plan.name,
        sweep_id=plan.id,
        sweep_runs=plan.run_ids,
        unit=plan.unit,
    )


def _worth(chosen: Mapping[str, Any], headline: Headline, plan: ChoicePlan) -> tuple[float, ...]:
    """Return a sort key of the choices of one method, by their numbers on the seeds of the choice.

    Empty without numbers.
    """
    forgotten = chosen.get(headline.forgotten.column)
    kept = chosen.get(headline.kept.column)
    if forgotten is None or kept is None:
        return ()
    return rule_of(plan.select, headline).worth(kept, forgotten, chosen.get("hypervolume"))


def _without_choice(
    choices: Iterable[Choice], rows: Iterable[TableRow], plan: ChoicePlan, why_not: str
) -> tuple[Choice, ...]:
    """Return the methods that have rows and no choice, each as a choice of nothing."""
    with_choice = {(choice.panel, choice.family) for choice in choices}
    runs_of_method: dict[tuple[PanelKey, str], set[str]] = defaultdict(set)
    for row in rows:
        if row.kind == "run" and (row.panel, row.family) not in with_choice:
            runs_of_method[row.panel, row.family].add(row.run_id)
    return tuple(
        Choice(
            *panel,
            family=family,
            entry=family,
            label=family,
            epoch=None,
            runs=frozenset(),
            trials=frozenset(run_ids),
            chosen_on=plan.select.seeds,
            why_not=why_not,
            sweep=plan.name,
            sweep_id=plan.id,
            sweep_runs=plan.run_ids,
        )
        for (panel, family), run_ids in runs_of_method.items()
    )


def no_choices_yet(
    rows: Iterable[TableRow], records: Iterable[Record], plan: ChoicePlan
) -> tuple[Choice, ...]:
    """Return the methods of a sweep that has to choose, and whose trials have not all ended."""
    missing = plan.missing(records)
    have = "has" if missing == 1 else "have"
    why_not = f"nothing is chosen yet: {counted(missing, 'trial')} {have} not ended"
    return _without_choice((), rows, plan, why_not)


def moved_choices(choices: Iterable[Choice]) -> tuple[str, ...]:
    """Return a warning for each choice that has moved away from the runs that were made for it."""
    return tuple(
        f"{choice.place}: the choice for {choice.entry} has moved to {choice.label}, "
        f"{choice.unit.at(choice.epoch)}, because numbers on seeds "
        f"{', '.join(map(str, choice.chosen_on))} have changed. It was not run on the "
        "other seeds: start the sweep again, which runs it"
        for choice in choices
        if choice.has_moved
    )
