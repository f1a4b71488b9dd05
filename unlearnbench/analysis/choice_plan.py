"""The part of `plan.json` that a choice of `select` or `tune` depends on."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from unlearnbench.api.identity import Id, identity_of, stored_identity
from unlearnbench.base.errors import RecordError
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.plan_file import PLAN_FILE, TRIAL, UNKNOWN_RUNS
from unlearnbench.config.search import SelectSettings
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record


@dataclass(frozen=True)
class PlannedRun:
    """A run in `plan.json`, as far as a choice depends on it."""

    id: str
    spec: Mapping[str, Any]
    """The run's specification, as it was written."""
    trial: Mapping[str, Any]
    """Why the run is there, see `config/trial.py`."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        seed: int = self.spec["seed"]
        return seed

    @property
    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """The trials that the run belongs to, by entry of the configuration."""
        entries: Mapping[str, Mapping[str, Any]] = self.trial.get("entries", {})
        return entries

    @property
    def is_untuned(self) -> bool:
        """Whether the run has the defaults of an entry."""
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
    """The rule of a choice, and the runs that it chooses from and is reported by."""

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
        """Read the content of `plan.json`.

        Returns:
            None for a sweep that chooses nothing.

        Raises:
            RecordError: If the rule in it is not valid.
        """
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
        trial_ids = sorted(run.id for run in self.trials)
        return content_hash([self.name, self.rule, trial_ids])

    @cached_property
    def rule(self) -> Mapping[str, Any]:
        """The keys of `select` that belong to ids, as in `selection.json`."""
        return identity_of(self.select, Id.CHOICE)

    def has_rule(self, stored: Mapping[str, Any]) -> bool:
        """Whether a rule in `selection.json`, also of another version, is the rule of this plan."""
        return stored_identity(SelectSettings, stored, Id.CHOICE) == self.rule

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """Ids of all runs."""
        return frozenset(run.id for run in self.runs)

    @property
    def reporting_seeds(self) -> tuple[int, ...]:
        """The seeds that report a choice: those that it was not made on."""
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
    def _run_of_id(self) -> Mapping[str, PlannedRun]:
        return {run.id: run for run in self.runs}

    @cached_property
    def _reporting_ids(self) -> Mapping[str, Sequence[str]]:
        """Ids of the runs on the reporting seeds, by `PlannedRun.seedless`."""
        ids: dict[str, list[str]] = defaultdict(list)
        for run in self.runs:
            if run.seed in self.reporting_seeds:
                ids[run.seedless].append(run.id)
        return ids

    def reporting(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Return the ids of the runs that report some runs.

        These are the runs that differ from one of them only in the seed, which is a reporting one.

        Args:
            run_ids: Ids of the chosen runs. An id that the plan does not have is left out.
        """
        reporting: set[str] = set()
        for run_id in run_ids:
            run = self._run_of_id.get(run_id)
            if run is not None:
                reporting.update(self._reporting_ids.get(run.seedless, ()))
        return frozenset(reporting)

    def missing(self, records: Iterable[Record]) -> int:
        """Count the trials without a record, including trials that are not suggested yet."""
        recorded = {record.id for record in records}
        return self.unknown_runs + sum(run.id not in recorded for run in self.trials)
