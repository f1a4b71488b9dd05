"""What `select` and `tune` choose: each method's setting on some seeds, reported on the others.

Pure. The choice is a function of the table, the records and `plan.json`, and every view derives it
again. `selection.json` is one of these views, and no other one reads it, except of plans of earlier
versions (see `stored_choices`). A setting counts only if every seed of the choice has a number.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

from pydantic import ValidationError

from unlearnbench.analysis.best_settings import (
    Choice,
    EarlyEnd,
    OnPanel,
    PanelKey,
    Setting,
    Start,
    average_seeds,
    best_of,
    early_ends,
    headline_of_rows,
    is_evidence,
    merit_of,
    panels,
)
from unlearnbench.analysis.tuning import summary
from unlearnbench.analysis.wording import best_rule, counted, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.base.errors import RecordError
from unlearnbench.base.hashing import content_hash, json_ready
from unlearnbench.config.plan import PLAN_FILE, TRIAL, UNKNOWN_RUNS
from unlearnbench.config.search import SelectSettings
from unlearnbench.config.unit import Unit, budget_of_spec
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.pareto_front import hypervolume

SELECTION_FILE = "selection.json"
CHOICES = "choices"
"""Key of the choices in the provenance of a line of a leaderboard."""
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


def describe_rule(
    select: SelectSettings,
    headline: Headline,
    chosen_of: str = "method",
    unit: Unit = Unit.EPOCH,
) -> str:
    """Describe the rule of `choose` in a sentence.

    Args:
        select: The rule.
        headline: The two numbers that methods are ranked by.
        chosen_of: What has a choice on each model and split: a method, or an entry.
        unit: What the evaluations of the sweep are counted in.
    """
    kept, forgotten = headline.kept, headline.forgotten
    seeds = ", ".join(map(str, select.seeds))
    if select.rule == "forget-quality":
        rule = (
            f"{best_rule(headline, select.utility)}; ties go to the higher {kept.plain_short}, "
            f"then to the earlier {unit}"
        )
    else:
        corner = select.reference
        above = "above" if forgotten.better == "higher" else "better than"
        where = f"({corner[0]:g}, {corner[1]:g})" if corner else "(0, the start model's)"
        rule = (
            f"the setting whose {unit.plural} span the largest area of {kept.plain_label} × "
            f"{forgotten.plain_label} {above} {where}, and of them the {unit} that spans most "
            f"by itself; ties go to the {forgotten.better} {forgotten.name}, then to the higher "
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
            tried = len({setting.trajectory for setting in complete})
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
        spanned.setdefault(setting.trajectory, []).append(_position(setting))
    areas = {key: hypervolume(points, reference) for key, points in spanned.items()}
    merits = [
        (
            areas[setting.trajectory],
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


def _position(setting: Setting) -> tuple[float, float]:
    """Kept and forgotten, larger is better in both."""
    oriented = setting.headline.forgotten.oriented
    return setting.kept or 0.0, oriented(setting.forgotten or 0.0)


def _choice(
    best: Setting, area: float | None, settings: Sequence[Setting], tried: int
) -> ChosenSetting:
    # A trajectory is one run per seed, but with `epochs_as: runs` one per number of epochs.
    rows = [row for s in settings if s.trajectory == best.trajectory for row in s.rows]
    chosen = rows if area is not None else best.rows
    return ChosenSetting(
        model=best.model,
        forget_fraction=best.forget_fraction,
        method=best.family,
        candidates=tried,
        setting=best.method,
        hyperparameters=best.rows[0].setting.flat,
        learning_rate=best.learning_rate,
        epoch=best.epoch,
        kept=best.kept,
        forgotten=best.forgotten,
        hypervolume=area,
        runs=tuple(sorted({row.run_id for row in chosen})),
    )


@dataclass(frozen=True)
class PlannedRun:
    """A run in `plan.json`, as far as a choice depends on it."""

    id: str
    spec: Mapping[str, Any]
    trial: Mapping[str, Any]
    """Why the run is there, see `config/trial.py`."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        seed: int = self.spec["seed"]
        return seed

    @property
    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """The trials that it belongs to, by entry."""
        entries: Mapping[str, Mapping[str, Any]] = self.trial.get("entries", {})
        return entries

    @property
    def is_untuned(self) -> bool:
        """Whether it has the defaults of an entry."""
        return any(trial.get("untuned") for trial in self.entries.values())

    @cached_property
    def point(self) -> str:
        """The method with its hyperparameters and its learning rate, as text."""
        point = [self.spec["method"], self.spec["learning_rate"]]
        return json.dumps(point, sort_keys=True)

    @cached_property
    def seedless(self) -> str:
        """The specification without the seed, as text."""
        values = {name: value for name, value in self.spec.items() if name != "seed"}
        return json.dumps(values, sort_keys=True)


@dataclass(frozen=True)
class ChoicePlan:
    """The part of `plan.json` that a choice depends on."""

    select: SelectSettings
    seeds: tuple[int, ...]
    """All seeds of the sweep."""
    runs: tuple[PlannedRun, ...]
    is_searched: bool = False
    """Whether the settings are trials of a search, so that each entry has its own choice."""
    unknown_runs: int = 0
    """Number of settings that the search may still suggest."""
    name: str = ""
    """Name of the sweep."""
    unit: Unit = Unit.EPOCH
    """What the evaluations of the sweep are counted in."""

    @classmethod
    def read(cls, plan: Mapping[str, Any]) -> "ChoicePlan | None":
        """Read the content of `plan.json`; None for a sweep that chooses nothing."""
        config: Mapping[str, Any] = plan.get("config", {})
        if not config.get("select"):
            return None
        try:
            select = SelectSettings.model_validate_json(json.dumps(config["select"]))
        except ValidationError as error:
            raise RecordError(
                f"{PLAN_FILE}: select: {error.errors(include_url=False)[0]['msg']}; start the "
                "sweep again, which rewrites it"
            ) from None
        return cls(
            select=select,
            seeds=tuple(config["seeds"]),
            runs=tuple(
                PlannedRun(run["id"], run["spec"], run.get(TRIAL, {})) for run in plan["runs"]
            ),
            is_searched=config.get("search", {}).get("trials") is not None,
            unknown_runs=plan.get(UNKNOWN_RUNS, 0),
            name=plan.get("name", ""),
            unit=Unit.of_spec(config),
        )

    @cached_property
    def id(self) -> str:
        """Hash of the rule and of the runs that it chooses from."""
        trials = sorted(run.id for run in self.trials)
        return content_hash([self.name, self.select.model_dump(mode="json"), trials])

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """Ids of all runs."""
        return frozenset(run.id for run in self.runs)

    @property
    def reporting_seeds(self) -> tuple[int, ...]:
        """The seeds that report a choice."""
        return tuple(seed for seed in self.seeds if seed not in self.select.seeds)

    @cached_property
    def trials(self) -> tuple[PlannedRun, ...]:
        """The runs that settings are chosen from."""
        return tuple(run for run in self.runs if run.seed in self.select.seeds)

    @cached_property
    def says_why(self) -> bool:
        """Whether the plan says why its runs are there. Plans of earlier versions do not."""
        return any(run.trial for run in self.trials)

    @cached_property
    def entries(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the entries that a run is a trial of, by its id; empty for a plain grid."""
        if not self.is_searched:
            return {}
        return {run.id: tuple(run.entries) for run in self.trials if run.entries}

    @cached_property
    def _by_id(self) -> Mapping[str, PlannedRun]:
        return {run.id: run for run in self.runs}

    @cached_property
    def _reporting_runs(self) -> Mapping[str, Sequence[str]]:
        """Ids of the runs on the reporting seeds, by `PlannedRun.seedless`."""
        runs: dict[str, list[str]] = defaultdict(list)
        for run in self.runs:
            if run.seed in self.reporting_seeds:
                runs[run.seedless].append(run.id)
        return runs

    def reporting(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Ids of the runs that differ from some runs only in the seed, which is a reporting one."""
        known = [self._by_id[run_id] for run_id in run_ids if run_id in self._by_id]
        return frozenset(id_ for run in known for id_ in self._reporting_runs.get(run.seedless, ()))

    def missing(self, records: Iterable[Record]) -> int:
        """Number of trials that have no record yet, with those that are not suggested yet."""
        recorded = {record.id for record in records}
        return self.unknown_runs + sum(run.id not in recorded for run in self.trials)


def chosen_settings(rows: Sequence[TableRow], plan: ChoicePlan) -> tuple[ChosenSetting, ...]:
    """Choose from the trials of a plan by its rule."""
    return choose(rows, plan.select, plan.entries)


def selection_of(
    rows: Sequence[TableRow], records: Sequence[Record], plan: ChoicePlan
) -> dict[str, Any]:
    """The rule, the choices and their results on the other seeds: the content of `selection.json`.

    Args:
        rows: Of the table of all planned runs, and of the models that they are compared with.
        records: Those of the table.
        plan: The plan that the runs are from.
    """
    return _document(chosen_settings(rows, plan), rows, records, plan)


def _document(
    choices: Iterable[ChosenSetting],
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
) -> dict[str, Any]:
    ends = early_ends(records, rows)
    reported = [
        report_chosen(choice, rows, plan.reporting(choice.runs), ends)
        | {"tuning": _tuning(choice, rows, records, plan)}
        | {"untuned": _report_untuned(choice, rows, records, plan, ends)}
        for choice in choices
    ]
    return _with_rule(reported, headline_of_rows(rows), plan)


def _with_rule(
    reported: Sequence[Mapping[str, Any]], headline: Headline, plan: ChoicePlan
) -> dict[str, Any]:
    document: dict[str, Any] = json_ready(
        {
            "schema": SCHEMA,
            "rule": describe_rule(plan.select, headline, owner_of_choices(reported), plan.unit),
            "select": plan.select.model_dump(mode="json"),
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

    The headline's numbers have the names of their columns.

    Args:
        choice: The choice.
        rows: Rows of the table.
        reporting: Ids of the runs of the chosen setting on the other seeds.
        ends: Runs that ended early.
    """
    ids = set(reporting)
    current = [
        row for row in rows if row.run_id in ids and row.epoch == choice.epoch and is_evidence(row)
    ]
    reported: dict[str, Any] = {"seeds": sorted({row.seed for row in current})}
    headline = headline_of_rows(rows)
    columns = {"kept": headline.kept.column, "forgotten": headline.forgotten.column}
    settings = average_seeds(current, [end for end in ends if end.run_id in ids])
    for column in columns.values():
        mean = settings[0].metrics.get(column) if settings else None
        numbers = [] if mean is None else list(settings[0].by_seed(column).values())
        reported[column] = {
            "mean": mean,
            "standard_deviation": stdev(numbers) if len(numbers) > 1 else None,
        }
    result = {columns.get(key, key): value for key, value in asdict(choice).items()}
    return result | {"reported_runs": sorted(ids), "reported": reported}


def _trials_of(
    choice: ChosenSetting, records: Iterable[Record], plan: ChoicePlan
) -> tuple[PlannedRun, ...]:
    """The runs that a choice was made from."""
    record_of_run = {record.id: record for record in records}
    trials: list[PlannedRun] = []
    for run in plan.trials:
        record = record_of_run.get(run.id)
        if record is None or (*record.panel, record.method) != (*choice.panel, choice.method):
            continue
        names = plan.entries.get(run.id) or (record.method,)
        if choice.entry in names:
            trials.append(run)
    return tuple(trials)


def _tuning(
    choice: ChosenSetting, rows: Sequence[TableRow], records: Sequence[Record], plan: ChoicePlan
) -> dict[str, Any]:
    """What the trials of a choice were worth, and where in its ranges it is."""
    run_ids: dict[str, set[str]] = {}
    edges: Mapping[str, float] = {}
    for run in _trials_of(choice, records, plan):
        run_ids.setdefault(run.point, set()).add(run.id)
        if run.id in choice.runs:
            edges = run.entries.get(choice.entry, {}).get("position") or edges
    seeds = plan.select.seeds
    of_panel = [
        row
        for row in rows
        if row.panel == choice.panel and (row.kind != "run" or row.seed in seeds)
    ]
    trials = [*map(frozenset, run_ids.values())]
    return summary(trials, of_panel, records, plan.select) | {"edges": dict(edges)}


def _report_untuned(
    choice: ChosenSetting,
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
    ends: Iterable[EarlyEnd],
) -> dict[str, Any] | None:
    """The numbers of the entry's defaults on the other seeds; None if they were not tried."""
    untuned = {
        run.id: run
        for run in _trials_of(choice, records, plan)
        if run.entries.get(choice.entry, {}).get("untuned")
    }
    subset = [row for row in rows if row.run_id in untuned or row.kind != "run"]
    for item in choose(subset, plan.select):
        best = item
        if not item.runs:
            # No epoch keeps enough: the model as it ends.
            last = max(budget_of_spec(run.spec) for run in untuned.values())
            best = replace(item, runs=tuple(untuned), epoch=last)
        return dict(report_chosen(best, rows, plan.reporting(best.runs), ends)["reported"])
    return None


def stored_choices(
    stored: Mapping[str, Any] | None,
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
) -> dict[str, Any] | None:
    """The choices of an earlier version, whose plan does not say which entries its runs are of.

    Their numbers on the other seeds are those of the table.

    Args:
        stored: Content of `selection.json`; None without one.
        rows: Of the table of all planned runs.
        records: Those of the table.
        plan: The stored plan.

    Returns:
        None if the file is of another rule, or of runs that the plan does not have. Then a choice
        is made for each method, since its trials cannot be told apart by entry.
    """
    if stored is None or stored.get("select") != plan.select.model_dump(mode="json"):
        return None
    planned = {run.id for run in plan.runs}
    choices: list[Mapping[str, Any]] = stored.get("choices", [])
    if any(not planned.issuperset(choice["reported_runs"]) for choice in choices):
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
        numbers = report_chosen(chosen, rows, choice["reported_runs"], ends)["reported"]
        more = {name: choice.get(name) for name in columns}
        reported.append({**choice, **more, "reported": numbers})
    return _with_rule(reported, headline, plan)


def choices_of(
    selection: Mapping[str, Any],
    rows: Sequence[TableRow],
    records: Sequence[Record],
    plan: ChoicePlan,
) -> tuple[Choice, ...]:
    """The choices of a selection as panels use them.

    Args:
        selection: From `selection_of` or `stored_choices`.
        rows: Of the table of all planned runs.
        records: Those of the table.
        plan: The plan that the runs are from.
    """
    headline = headline_of_rows(rows)
    has_reports = any(run.seed in plan.reporting_seeds for run in plan.runs)
    choices: list[Choice] = []
    for chosen in selection["choices"]:
        panel: PanelKey = (chosen["model"], chosen["forget_fraction"])
        entry = entry_name(chosen)
        setting = ChosenSetting(*panel, chosen["method"], chosen["candidates"], entry=entry)
        trials = [run.id for run in _trials_of(setting, records, plan)] or chosen["runs"]
        why_not = chosen["why_not"]
        has_moved = has_reports and not why_not and not chosen["reported_runs"]
        if not why_not and not chosen["reported_runs"]:
            seeds = ", ".join(map(str, plan.reporting_seeds))
            why_not = f"chosen; it has not been run on seeds {seeds} yet"
        choices.append(
            Choice(
                *panel,
                family=chosen["method"],
                entry=entry,
                label=chosen["setting"] or entry,
                epoch=chosen["epoch"],
                runs=frozenset(chosen["reported_runs"]),
                trials=frozenset(trials),
                chosen_on=plan.select.seeds,
                candidates=chosen["candidates"],
                worth=_worth(chosen, headline),
                why_not=why_not,
                has_moved=has_moved,
                sweep=plan.name,
                sweep_id=plan.id,
                sweep_runs=plan.run_ids,
                unit=plan.unit,
            )
        )
    return (*choices, *_without_choice(choices, rows, plan, NO_NUMBERS))


def _without_choice(
    choices: Iterable[Choice], rows: Iterable[TableRow], plan: ChoicePlan, why_not: str
) -> tuple[Choice, ...]:
    """The methods that have rows and no choice, each as a choice of nothing."""
    known = {(choice.panel, choice.family) for choice in choices}
    runs_of_family: dict[tuple[PanelKey, str], set[str]] = defaultdict(set)
    for row in rows:
        if row.kind == "run" and (row.panel, row.family) not in known:
            runs_of_family[row.panel, row.family].add(row.run_id)
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
        for (panel, family), run_ids in runs_of_family.items()
    )


def _worth(chosen: Mapping[str, Any], headline: Headline) -> tuple[float, ...]:
    """Sort key of the choices of one method, by their numbers on the seeds of the choice."""
    forgotten, kept = (chosen.get(m.column) for m in (headline.forgotten, headline.kept))
    if forgotten is None or kept is None:
        return ()
    return chosen.get("hypervolume") or 0.0, headline.forgotten.oriented(forgotten), kept


def no_choices_yet(
    rows: Iterable[TableRow], records: Iterable[Record], plan: ChoicePlan
) -> tuple[Choice, ...]:
    """The methods of a sweep that has to choose, and whose trials have not all ended."""
    missing = plan.missing(records)
    have = "has" if missing == 1 else "have"
    why_not = f"nothing is chosen yet: {counted(missing, 'trial')} {have} not ended"
    return _without_choice((), rows, plan, why_not)


def moved_choices(choices: Iterable[Choice]) -> tuple[str, ...]:
    """A line for each choice that has moved away from the runs that were made for it."""
    return tuple(
        f"{choice.place}: the choice for {choice.entry} has moved to {choice.label}, "
        f"{choice.unit.at(choice.epoch)}, because numbers on seeds "
        f"{', '.join(map(str, choice.chosen_on))} have changed. It was not run on the "
        "other seeds: start the sweep again, which runs it"
        for choice in choices
        if choice.has_moved
    )


_DESCRIPTION = ("family", "entry", "label", "epoch", "candidates", "why_not")
"""Fields of a choice that a line of a leaderboard has as they are."""


def choices_by_run(choices: Iterable[Choice]) -> dict[str, dict[str, Any]]:
    """What the lines of a leaderboard have to say about the choices of a sweep, by run id.

    Returns:
        By id of the sweep: its name, and the choices that the run was a trial of or reports.
    """
    lines: dict[str, dict[str, Any]] = {}
    for choice in choices:
        description: dict[str, Any] = {name: getattr(choice, name) for name in _DESCRIPTION}
        description["chosen_on"] = list(choice.chosen_on)
        description["worth"] = list(choice.worth)
        for run_id in choice.sweep_runs:
            of_sweep = lines.setdefault(run_id, {}).setdefault(
                choice.sweep_id, {"sweep": choice.sweep, "tries": [], "reports": []}
            )
            if run_id in choice.trials:
                of_sweep["tries"].append(description)
            if run_id in choice.runs:
                of_sweep["reports"].append(description)
    return lines


def choices_on_board(records: Iterable[Record]) -> tuple[Choice, ...]:
    """The choices that the lines of a leaderboard state, see `choices_by_run`."""
    sweep_runs: dict[str, set[str]] = defaultdict(set)
    run_ids: dict[str, dict[str, set[str]]] = {"tries": {}, "reports": {}}
    choices: dict[str, Choice] = {}
    for record in records:
        for sweep_id, of_sweep in record.provenance.get(CHOICES, {}).items():
            sweep_runs[sweep_id].add(record.id)
            for role, ids in run_ids.items():
                for stated in of_sweep[role]:
                    key = json.dumps([sweep_id, *record.panel, stated["family"], stated["entry"]])
                    ids.setdefault(key, set()).add(record.id)
                    choice = _stated_choice(stated, record, of_sweep["sweep"], sweep_id)
                    known = choices.setdefault(key, choice)
                    # A line that was exported earlier may not know the choice yet.
                    if known.why_not and not choice.why_not:
                        choices[key] = choice
    return tuple(
        replace(
            choice,
            runs=frozenset(run_ids["reports"].get(key, ())),
            trials=frozenset(run_ids["tries"].get(key, ())),
            sweep_runs=frozenset(sweep_runs[choice.sweep_id]),
        )
        for key, choice in sorted(choices.items())
    )


def _stated_choice(stated: Mapping[str, Any], record: Record, sweep: str, sweep_id: str) -> Choice:
    """A choice that a line states, without its runs."""
    return Choice(
        *record.panel,
        **{name: stated[name] for name in _DESCRIPTION},
        chosen_on=tuple(stated["chosen_on"]),
        worth=tuple(stated["worth"]),
        runs=frozenset(),
        trials=frozenset(),
        sweep=sweep,
        sweep_id=sweep_id,
    )


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


def selection_json(selection: Mapping[str, Any]) -> str:
    """The text of `selection.json`."""
    return json.dumps(selection, indent=1, allow_nan=False)


def read_selection(folder: Path) -> dict[str, Any] | None:
    """Read `selection.json`; None if nothing was chosen yet."""
    path = folder / SELECTION_FILE
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
