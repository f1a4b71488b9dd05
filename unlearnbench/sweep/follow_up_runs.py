"""Runs that depend on results: settings that a search suggests, and the best ones on other seeds.

Everything is also on the disk, so the same command can continue after it was killed at any time.
The file `search.jsonl` in the sweep's folder has a line for each setting that a search has
suggested. If a recorded run fits a study, it is one of the study's trials, even if another command
planned it.
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.analysis.choice_plan import ChoicePlan
from unlearnbench.analysis.selection import chosen_settings
from unlearnbench.analysis.selection_rule import RULES
from unlearnbench.api.benchmark import SplitKey, split_order
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.entry_labels import entry_labels
from unlearnbench.config.plan import Plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodSpec, ModelSettings
from unlearnbench.config.search import SelectSettings
from unlearnbench.config.search_space import Point, Space
from unlearnbench.config.trial import Entry, Trials, add_trials, entries_of
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record, planned_records, read_records
from unlearnbench.results.rules import named_metrics
from unlearnbench.results.sweep_folder import claim_folder

SEARCH_FILE = "search.jsonl"
PLAN_SECONDS = 60.0
"""Seconds between updates of `plan.json` during a search. A report shows the runs in that file."""


class Study:
    """The trials of one method entry on one model and split."""

    def __init__(
        self, plan: Plan, model: ModelSettings, fraction: SplitKey, space: Space, trials: int
    ) -> None:
        """Begin without any suggestion.

        Args:
            plan: The plan of the sweep.
            model: Settings of the model.
            fraction: The split.
            space: The settings of the method entry.
            trials: Largest number of settings to suggest.
        """
        self.plan = plan
        self.model = model
        self.fraction = fraction
        self.space = space
        self.trials = trials
        self.points: list[Point] = []
        """Suggested settings, in the order in which they were suggested."""

    @property
    def left(self) -> int:
        """Number of settings that may still be suggested."""
        return self.trials - len(self.points)

    def runs(self, point: Point) -> list[RunSpec]:
        """Return the runs of a setting, on all seeds."""
        return self.plan.runs_of(self.model, self.fraction, point)

    def placeholders(self) -> list[RunSpec]:
        """Return stand-ins for the runs that are still to be suggested.

        The plan counts runs and estimates their work before the first suggestion. A stand-in has
        the setting of a random point: what a run costs hardly depends on its hyperparameters.

        The seeds are -1, -2 and so on, so that no two stand-ins of a study have the same id, and
        none has the id of a run.
        """
        typical_runs = self.runs(next(self.space.draws(seed=0)))
        placeholders: list[RunSpec] = []
        for _ in range(self.left):
            for run in typical_runs:
                seed = -1 - len(placeholders)
                placeholders.append(run.model_copy(update={"seed": seed}))
        return placeholders

    def add(self, point: Point) -> bool:
        """Add a setting, if it is new, lies in the space, and is not one trial too many.

        Returns:
            Whether it was added.
        """
        if self.left <= 0 or point in self.points or self.space.values(point) is None:
            return False
        self.points.append(point)
        return True


def studies_of(plan: Plan) -> list[Study]:
    """Return the studies of a plan. Only a search that learns from results has studies."""
    config = plan.config
    trials = config.search.trials
    if config.search.kind != "optuna" or trials is None:
        return []
    spaces = [Space(grid, config) for grid in config.methods]
    # A space with few settings is planned as a grid.
    large_spaces = [space for space in spaces if space.count is None or space.count > trials]
    # Splits with the longest runs come first.
    splits = sorted(config.split_keys, key=split_order, reverse=True)
    return [
        Study(plan, model, split, space, trials)
        for model in config.models
        for split in splits
        for space in large_spaces
    ]


@dataclass(frozen=True)
class Stage:
    """A part of a sweep, as it is known before the first result.

    Attributes:
        title: What the runs are for.
        runs: Number of runs.
        at_most: Whether this number is a limit, because results decide the number.
    """

    title: str
    runs: int
    at_most: bool


def pending_runs(plan: Plan) -> list[RunSpec]:
    """Return stand-ins for the runs that a search will suggest, with the same cost."""
    return [run for study in studies_of(plan) for run in study.placeholders()]


def stages_of(plan: Plan) -> list[Stage]:
    """Return the parts of a plan, in their order. A plain grid has one part."""
    stages = [_search_stage(plan)]
    if plan.config.select is not None:
        stages.append(_reporting_stage(plan, plan.config.select))
    return stages


def _search_stage(plan: Plan) -> Stage:
    """Return the part in which settings are tried, on the seeds of the choice if there is one."""
    search = plan.config.search
    if search.trials is None:
        title = f"{search.kind} search: all settings"
    else:
        title = f"{search.kind} search: {search.trials} settings of each method entry at most"
    if plan.config.select is not None:
        title += f", on seeds {', '.join(map(str, plan.config.select.seeds))}"
    pending = pending_runs(plan)
    return Stage(title, len(plan.runs) + len(pending), at_most=bool(pending))


def _reporting_stage(plan: Plan, select: SelectSettings) -> Stage:
    """Return the part in which the best settings are run on the other seeds."""
    config = plan.config
    names_of_entries = {name for labels in entry_labels(config.methods) for name in labels.values()}
    methods = {spec.label for grid in config.methods for spec in grid.specs}
    has_trials = config.search.trials is not None
    # A method may have several entries with trials of their own.
    by_entry = has_trials and len(names_of_entries) > len(methods)
    chooser = "method entry" if by_entry else "method"
    choosers = len(names_of_entries) if by_entry else len(methods)

    # A quasi-random search reports the defaults, too.
    reports_defaults = config.search.kind == "quasi-random"
    subject = "the best and the defaults" if reports_defaults else "the best"
    seeds = [seed for seed in config.seeds if seed not in select.seeds]
    title = f"{subject} of each {chooser} by {select.rule}, on seeds {', '.join(map(str, seeds))}"

    settings = 2 if reports_defaults else 1
    # With `epochs_as: runs`, some rules choose a setting with its runs of all lengths.
    is_chosen_with_lengths = config.epochs_as == "runs" and RULES[select.rule].spans_epochs
    lengths = len(config.evaluate_at) if is_chosen_with_lengths else 1
    panels = len(config.models) * len(config.split_keys)
    most = choosers * panels * len(seeds) * lengths * settings
    return Stage(title, most, at_most=True)


@dataclass
class _Report:
    """A run that reports a choice on a seed that the choice has not seen.

    Attributes:
        run: The run.
        chosen: Ids of the runs that were chosen, and differ from it only in their seeds.
    """

    run: RunSpec
    chosen: list[str]


class FollowUpRuns:
    """The plan of a sweep, which results extend."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Take up the settings that earlier commands have suggested or recorded.

        Args:
            plan: The plan, as it was before the first result.
            folder: The sweep's folder.
        """
        self.folder = folder
        self.config = plan.config
        self.studies = studies_of(plan)
        self._initial = plan
        self._reports: dict[str, _Report] = {}
        """By id of the run that reports a choice."""
        self._written = time.monotonic()
        if self.studies:
            for line in _lines(folder / SEARCH_FILE):
                self._add_suggestion(line)
            for record in read_records(folder):
                self._add_record(record)

    @property
    def has_search(self) -> bool:
        """Whether a search may still suggest settings."""
        return any(study.left for study in self.studies)

    def current_plan(self) -> Plan:
        """Return the plan with the runs that results have added so far."""
        reporting_runs = {run_id: report.run for run_id, report in self._reports.items()}
        chosen_runs = {run_id: tuple(report.chosen) for run_id, report in self._reports.items()}
        return replace(
            self._initial,
            runs=tuple((self._candidates() | reporting_runs).values()),
            trials=self.trials,
            reports=chosen_runs,
            unknown_runs=sum(study.left for study in self.studies),
        )

    def _candidates(self) -> dict[str, RunSpec]:
        """Return planned and suggested runs by id. The best are selected among them."""
        runs = [*self._initial.runs]
        for study in self.studies:
            for point in study.points:
                runs += study.runs(point)
        return {run.id: run for run in runs}

    @cached_property
    def _entries(self) -> tuple[Entry, ...]:
        """The method entries of the configuration."""
        return entries_of(self.config)

    @cached_property
    def trials(self) -> Trials:
        """The trials of the runs, with those of the settings that a search has suggested."""
        trials: Trials = {run_id: dict(of_run) for run_id, of_run in self._initial.trials.items()}
        for study in self.studies:
            for point in study.points:
                self._add_trials(trials, study, point)
        return trials

    def _add_trials(self, trials: Trials, study: Study, point: Point) -> None:
        """Note that the entry of a study tries a setting."""
        entry = next(entry for entry in self._entries if entry.grid is study.space.grid)
        add_trials(trials, entry, point, [run.id for run in study.runs(point)])

    def entry_of(self, run_id: str) -> str:
        """Return the name of the entry that a run is a trial of.

        The name is empty for a run of a grid, and for a run of no entry.
        """
        if self.config.search.trials is None:
            return ""
        return next(iter(self.trials.get(run_id, ())), "")

    def _add_suggestion(self, line: Mapping[str, Any]) -> None:
        """Add a setting that the search of an earlier command suggested.

        Nothing is added if no study takes it: because its line cannot be read, because the
        configuration has changed and no space contains it, or because all trials are taken.

        Args:
            line: Of the search file, as `add` writes it.
        """
        point = _readable_point(line)
        if point is None:
            return
        current = self._studies_at(line["model"], line["forget_fraction"])
        # Spaces of two entries may overlap. The entry whose search suggested the setting comes
        # first.
        for study in sorted(current, key=lambda study: study.space.key != line["space"]):
            if study.add(point):
                return

    def _add_record(self, record: Record) -> None:
        """Add a run that no search suggested but that fits one of the studies."""
        if record.kind != "run":
            return
        current = self._studies_at(record.model, record.forget_fraction)
        point = _readable_point(record.spec)
        if point is None:
            return
        if any(point in study.points for study in current):
            return
        for study in current:
            if record.id in {run.id for run in study.runs(point)} and study.add(point):
                return

    def _studies_at(self, model: str, fraction: SplitKey) -> list[Study]:
        """Return the studies of a model and split."""
        return [
            study
            for study in self.studies
            if study.model.name == model and study.fraction == fraction
        ]

    def add(self, study: Study, point: Point) -> list[RunSpec]:
        """Add a suggested setting to a study, and write it to the disk.

        Returns:
            The runs of the setting. Some may have a record already.
        """
        spec, rate = point
        line = {
            "space": study.space.key,
            "model": study.model.name,
            "forget_fraction": study.fraction,
            "method": json_ready(spec.model_dump(mode="json")),
            "learning_rate": rate,
        }
        with (self.folder / SEARCH_FILE).open("a", encoding="utf-8") as file:
            # The newline comes first, because a kill may have cut the last line.
            file.write(f"\n{json.dumps(line)}" if file.tell() else json.dumps(line))
        study.add(point)
        self._add_trials(self.trials, study, point)
        if time.monotonic() - self._written > PLAN_SECONDS:
            claim_folder(self.current_plan())
            self._written = time.monotonic()
        return study.runs(point)

    def ready_to_select(self, ended: Collection[str]) -> bool:
        """Whether settings are to be selected, and all candidates are among the ended runs."""
        return (
            self.config.select is not None
            and not self.has_search
            and self._candidates().keys() <= set(ended)
        )

    def select(self) -> None:
        """Select the best settings, and add their runs on the other seeds to the plan.

        The defaults of a quasi-random search are reported on these seeds as well.
        """
        plan = ChoicePlan.read(self.current_plan().to_json())
        if plan is None:
            return
        candidates = self._candidates()
        records = planned_records(
            read_records(self.folder), candidates.keys(), self._initial.references
        )
        table = table_of(records, named_metrics(self.config.model_dump(mode="json")))
        choices = chosen_settings(table.rows, plan)
        chosen = {run_id for choice in choices for run_id in choice.runs}
        untuned = {run.id for run in plan.trials if run.is_untuned}
        for run_id in sorted((chosen | untuned) & candidates.keys()):
            for seed in plan.reporting_seeds:
                run = candidates[run_id].model_copy(update={"seed": seed})
                # A setting that was tried on several seeds has one run for each other seed.
                report = self._reports.setdefault(run.id, _Report(run, []))
                report.chosen.append(run_id)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of JSON, if there is one. A line that a kill has cut is skipped."""
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        yield line


def stored_point(document: Mapping[str, Any]) -> Point:
    """Read the setting of a run from JSON."""
    return Point(MethodSpec.model_validate(document["method"]), document["learning_rate"])


def _readable_point(document: Mapping[str, Any]) -> Point | None:
    """Read the setting of a run from JSON, or return None if another version wrote it.

    A method may have lost or renamed a setting since. Such a run is no trial of today's method.
    """
    try:
        return stored_point(document)
    except (ValidationError, KeyError, TypeError):
        return None
