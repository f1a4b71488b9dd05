"""What follows in a sweep from its records: settings that a search asked for, chosen ones' seeds.

A plan is made before anything is run; this is the part of it that only results decide. All of it
is found again from the folder: `search.jsonl` holds every setting that a search has asked for, a
line each, and a run that fits a study is one of its trials, whoever ran it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.bounded import parse_json
from unlearnbench.folder import claim_folder
from unlearnbench.plan import Plan, RunSpec, json_ready
from unlearnbench.records import Record, read_records
from unlearnbench.selection import Choice, choose, report, write_selection
from unlearnbench.settings import MethodSpec, ModelSettings, RetainSpec
from unlearnbench.spaces import Point, Space
from unlearnbench.table import table

SEARCH_FILE = "search.jsonl"
PLAN_SECONDS = 60.0
"""Between writings of `plan.json` while a search asks: a report shows the runs it names."""


class Study:
    """The trials of one method entry on one model and forget fraction."""

    def __init__(
        self, plan: Plan, model: ModelSettings, fraction: float, space: Space, trials: int
    ) -> None:
        self.plan, self.model, self.fraction = plan, model, fraction
        self.space, self.trials = space, trials
        self.points: list[Point] = []
        """Settings asked for, in their order."""

    @property
    def left(self) -> int:
        """How many more may be asked for."""
        return self.trials - len(self.points)

    def runs(self, point: Point) -> list[RunSpec]:
        """The runs of a setting."""
        return self.plan.runs_of(self.model, self.fraction, point)

    def stand_ins(self) -> list[RunSpec]:
        """A run for each that is still to be asked for, like those in kind and length."""
        typical = self.runs(next(self.space.draws(0)))
        return [
            run.model_copy(update={"seed": -1 - count * len(typical) - index})
            for count in range(self.left)
            for index, run in enumerate(typical)
        ]

    def add(self, point: Point) -> bool:
        """Count a setting as asked for, if it is new, one of its space, and within the trials."""
        if self.left <= 0 or point in self.points or self.space.values(point) is None:
            return False
        self.points.append(point)
        return True


def studies_of(plan: Plan) -> list[Study]:
    """Every study of a plan; none unless its search learns from results."""
    config = plan.config
    trials = config.search.trials
    if config.search.kind != "optuna" or trials is None:
        return []
    spaces = [Space(grid, config) for grid in config.methods]
    return [
        Study(plan, model, fraction, space, trials)
        for model in config.models
        for fraction in sorted(config.forget_fractions, reverse=True)  # the longest runs first
        for space in spaces
        if space.count is None or space.count > trials
    ]


@dataclass(frozen=True)
class Stage:
    """A part of a sweep, before its results are known."""

    title: str
    runs: int
    at_most: bool
    """Whether results decide how many runs there are."""


def asked_later(plan: Plan) -> list[RunSpec]:
    """A run for each that a search will ask for, like those in kind and length."""
    return [run for study in studies_of(plan) for run in study.stand_ins()]


def stages_of(plan: Plan) -> list[Stage]:
    """The parts of a plan, in their order; one for a plain grid."""
    config = plan.config
    asked = asked_later(plan)
    what = "all settings" if config.search.trials is None else f"{config.search.trials} settings"
    whose = "" if config.search.trials is None else " of each method entry at most"
    select = config.select
    on = "" if select is None else f", on seeds {', '.join(map(str, select.seeds))}"
    first = Stage(
        f"{config.search.kind} search: {what}{whose}{on}",
        len(plan.runs) + len(asked),
        at_most=bool(asked),
    )
    if select is None:
        return [first]
    labels = {spec.label for grid in config.methods for spec in grid.specs}
    others = [seed for seed in config.seeds if seed not in select.seeds]
    counts = config.epochs if config.epochs_as == "runs" and select.rule == "hypervolume" else 1
    places = len(config.models) * len(config.forget_fractions)
    listed = ", ".join(map(str, others))
    title = f"the best of each method by {select.rule}, on seeds {listed}"
    return [first, Stage(title, len(labels) * places * len(others) * counts, at_most=True)]


class Stages:
    """A sweep's runs as far as its records decide them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.studies = studies_of(plan)
        self.choices: tuple[Choice, ...] | None = None
        """None until they can be made."""
        self._followed: dict[str, list[RunSpec]] = {}
        self._written = time.monotonic()
        if self.studies:
            for line in _lines(folder / SEARCH_FILE):
                self._take_up_line(line)
            for record in read_records(folder):
                self._take_up_record(record)

    def _take_up_line(self, line: Mapping[str, Any]) -> None:
        """A setting that an earlier command has asked for."""
        point = _point(line)
        here = self._at(line["model"], line["forget_fraction"])
        # Spaces of two entries may overlap: a setting belongs to the one that asked for it.
        for study in sorted(here, key=lambda s: s.space.told != line["space"]):
            if study.add(point):
                return

    def _take_up_record(self, record: Record) -> None:
        """A run that was not asked for, but is one of a study's all the same."""
        here = self._at(record.model, record.forget_fraction) if record.kind == "run" else []
        if not here:
            return
        try:
            point = _point(record.spec)
        except (ValidationError, KeyError, TypeError):  # of another version of its method
            return
        if any(point in study.points for study in here):
            return
        for study in here:
            if record.id in {run.id for run in study.runs(point)} and study.add(point):
                return

    def _at(self, model: str, fraction: float) -> list[Study]:
        return [s for s in self.studies if (s.model.name, s.fraction) == (model, fraction)]

    def ask(self, study: Study, point: Point) -> list[RunSpec]:
        """The runs of a setting that a search asks for; kept on disk before they begin."""
        spec, rate = point
        line = {
            "space": study.space.told,
            "model": study.model.name,
            "forget_fraction": study.fraction,
            "method": json_ready(spec.model_dump(mode="json")),
            "learning_rate": rate,
        }
        with (self.folder / SEARCH_FILE).open("a", encoding="utf-8") as file:
            # On a line of its own even after one that a kill has cut.
            file.write(f"\n{json.dumps(line)}" if file.tell() else json.dumps(line))
        study.add(point)
        if time.monotonic() - self._written > PLAN_SECONDS:
            claim_folder(self.following(()))
            self._written = time.monotonic()
        return study.runs(point)

    def following(self, settled: Collection[str]) -> Plan:
        """The plan as it is now; `settled`: ids of runs that have ended, one way or another."""
        runs = {run.id: run for run in self.plan.runs}
        for study in self.studies:
            for point in study.points:
                runs |= {run.id: run for run in study.runs(point)}
        ended = runs.keys() <= set(settled) and not any(study.left for study in self.studies)
        if self.plan.config.select is not None and ended:
            self._choose(runs)
        more = {run.id: run for chosen in self._followed.values() for run in chosen}
        return replace(self.plan, runs=tuple((runs | more).values()))

    def _choose(self, runs: Mapping[str, RunSpec]) -> None:
        config = self.plan.config
        if config.select is None or self.choices is not None:
            return
        seeds = [seed for seed in config.seeds if seed not in config.select.seeds]
        self.choices = choose(table(self._records(runs)), config.select)
        for chosen in {one for choice in self.choices for one in choice.runs}:
            # Runs that are chosen differ in their seeds too, and are followed by the same ones.
            self._followed[chosen] = [
                runs[chosen].model_copy(update={"seed": seed}) for seed in seeds
            ]

    def _records(self, runs: Collection[str]) -> list[Record]:
        """Those of these runs, and of what they are measured against."""
        return [r for r in read_records(self.folder) if r.kind != "run" or r.id in runs]

    def conclude(self) -> None:
        """Write what was chosen, and what the other seeds say of it."""
        select = self.plan.config.select
        if select is None or self.choices is None:
            return
        followed = {key: [run.id for run in runs] for key, runs in self._followed.items()}
        ids = {one for many in followed.values() for one in many}
        rows = table(self._records(ids))
        told = report(self.choices, rows, followed)
        write_selection(self.folder, select, self.plan.config.seeds, told, followed)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of JSON; one that a kill has cut is passed over."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = parse_json(text)
            _ = line["space"], line["model"], line["forget_fraction"], _point(line)
        except (ValueError, KeyError, TypeError):
            continue
        yield line


def _point(held: Mapping[str, Any]) -> Point:
    """The setting of a run from JSON, where infinite floats are text."""
    method = held["method"]
    values = {
        key: float(value) if value in ("inf", "-inf") else value
        for key, value in method["hyperparameters"].items()
    }
    retain = method["retain"]
    term = None if retain is None else RetainSpec.model_validate(retain)
    spec = MethodSpec(
        name=method["name"], hyperparameters=values, retain=term, source=method["source"]
    )
    return spec, held["learning_rate"]
