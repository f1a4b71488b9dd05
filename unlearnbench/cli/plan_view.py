"""What `unlearnbench plan` prints: the runs of a sweep and the work that they are."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from unlearnbench.api.attack import searches
from unlearnbench.base.console import Console
from unlearnbench.base.number_text import float_text
from unlearnbench.cli.plan_cost import time_here
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.results.effort import efforts_of, planned_work
from unlearnbench.results.records import PROVISIONAL
from unlearnbench.results.repeated_runs import repeated_runs, repetition_lines
from unlearnbench.runs.prepared_models import planned_models
from unlearnbench.sweep.follow_up_runs import pending_runs, stages_of

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset, SplitKey
    from unlearnbench.cli.plan_cost import GpuCosts
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.config.plan import Plan
    from unlearnbench.config.run_spec import RunSpec
    from unlearnbench.config.schema import HyperParameter
    from unlearnbench.runs.prepared_models import PlannedModel
    from unlearnbench.sweep.follow_up_runs import Stage

_DEFAULTS = "defaults"
"""What stands for hyperparameters that all have their defaults."""


@dataclass(frozen=True)
class PlanView:
    """A plan, and what is known before its first run."""

    plan: Plan
    """Without the runs that a search will draw."""
    rows: Dataset
    whole: Plan
    """With stand-ins for the runs that a search will draw."""
    stages: Sequence[Stage]
    """A plain grid has one; a selection or a search has more."""
    models: Sequence[PlannedModel]
    """Models that the runs start from or are compared with, in the order of their training."""
    work: dict[str, int]
    """Of all runs of `whole`, as `plan --json` names it."""
    left: Sequence[RunSpec]
    """Runs of `whole` that have no record in the sweep's folder."""
    repeated: Sequence[str]
    """Lines about records of older versions of runs, which are run again."""
    lacking: Sequence[str]
    """Sentences about models whose runs need more than this machine has."""

    @classmethod
    def of(cls, plan: Plan, rows: Dataset) -> PlanView:
        """Find out what a plan needs, and what of it is done."""
        from unlearnbench.models.device import device_count
        from unlearnbench.sweep.ray_cluster import lacking_resources

        lacking = lacking_resources(plan.config, device_count(), os.cpu_count() or 1)
        whole = replace(plan, runs=(*plan.runs, *pending_runs(plan)))
        return cls(
            plan=plan,
            rows=rows,
            whole=whole,
            stages=stages_of(plan),
            models=list(planned_models(whole, rows)),
            work=planned_work(efforts_of(whole.runs, rows)),
            left=_runs_without_record(whole),
            repeated=repetition_lines(repeated_runs(plan.runs, plan.folder, plan.references)),
            lacking=lacking,
        )

    @property
    def recorded(self) -> int:
        """Number of planned runs that have a record."""
        left = {run.id for run in self.left}
        return len({run.id for run in self.plan.runs} - left)

    def document(self, costs: GpuCosts | None) -> dict[str, Any]:
        """Return the plan as JSON, with the costs if they are given."""
        document: dict[str, Any] = {
            **self.plan.to_json(),
            "work": self.work,
            "recorded": self.recorded,
            "repeated": self.repeated,
        }
        if self.rows.notes:
            document["rows_read"] = list(self.rows.notes)
        if self.lacking:
            document["cannot_run_here"] = self.lacking
        document["stages"] = [asdict(stage) for stage in self.stages]
        if costs is not None:
            document["memory"] = costs.document()
        document["trained_first"] = [asdict(model) for model in self.models]
        return document

    def print(self, console: Console) -> None:
        """Print the runs, their work, what is done already, and how long the rest takes."""
        for note in self.rows.notes:
            console.paragraph(note, indent="  ")
        self._print_runs(console)
        self._print_work(console)
        self._print_models(console)
        if self.recorded:
            console.paragraph(
                f"{self.recorded} of {self.work['runs']} runs are recorded already and are not run "
                "again"
            )
        for line in self.repeated:
            console.paragraph(line)
        if self.left:
            plan_left = replace(self.plan, runs=tuple(self.left))
            console.paragraph(time_here(plan_left, self.rows, self.models))

    def _print_runs(self, console: Console) -> None:
        """Print how many runs there are, what they lack here, and the table of planned runs.

        The table has only runs whose settings are known. If a search draws more of them later, or a
        selection trains more seeds, a line for each stage explains the number in the headline.
        """
        is_limit = any(stage.at_most for stage in self.stages)
        up_to = "up to " if is_limit else ""
        run_count = sum(stage.runs for stage in self.stages)
        console.paragraph(
            f"{self.plan.config.name}: {up_to}{run_count} runs into {self.plan.folder}"
        )
        for sentence in self.lacking:
            console.paragraph(f"cannot run here: {sentence}")
        print_runs(self.plan.runs, console)
        if is_limit or run_count > len(self.plan.runs):
            for stage in self.stages:
                at_most = "up to " if stage.at_most else ""
                console.print(f"{stage.title}: {at_most}{stage.runs} runs")

    def _print_work(self, console: Console) -> None:
        work = self.work
        if len(self.stages) > 1:
            console.print("work of the first of these stages:")
        console.print(
            f"training: {work['optimiser_steps']} optimiser steps, {work['training_rows']} rows"
        )
        console.print(
            f"evaluation: {work['evaluations']} evaluations, "
            f"{work['evaluated_questions']} questions in all"
        )
        for line in budget_lines(self.plan.runs, self.rows):
            console.paragraph(line)
        config = self.plan.config
        if config.attacks:
            names = ", ".join(map(_attack_name, config.attacks))
            # It is not known yet at which epoch a run is best, and so attacked.
            at_best = any(spec.settings["at"] == "best" for spec in config.attacks)
            has_retain = "retain" in config.references
            baselines = "retain and start models" if has_retain else "start models"
            console.paragraph(
                f"under attacks: {'up to ' if at_best else ''}{work['attacked_evaluations']} "
                f"times, and the {baselines} likewise ({names})"
            )

    def _print_models(self, console: Console) -> None:
        untrained = [model for model in self.models if not model.done]
        done = len(self.models) - len(untrained)
        if done:
            console.print(f"{done} models are prepared, in {self.plan.config.cache_folder}")
        if untrained:
            console.print("models trained first, each once:")
        for model in untrained:
            console.paragraph(f"  {model.title}", indent="    ")


def _runs_without_record(plan: Plan) -> list[RunSpec]:
    """Return the runs that are still to be done.

    A run that a scheduler has stopped counts as done, because it would be stopped again.
    """
    suffixes = ["", PROVISIONAL["stopped"]] if plan.config.search.scheduler else [""]
    recorded = {file.parent.name for file in plan.folder.glob("records/*/record.json")}
    return [run for run in plan.runs if recorded.isdisjoint(run.id + suffix for suffix in suffixes)]


class RunGroup(NamedTuple):
    """Runs that differ only in learning rate and seed."""

    model: str
    split: SplitKey
    method: str
    hyperparameters: str
    """Those that are not the defaults: `beta=0.1, gamma=2`."""
    learning_rates: str
    seeds: str
    run_count: int


_HEADINGS = {
    "model": "model",
    "split": "forget",
    "method": "method",
    "hyperparameters": "hyperparameters",
    "learning_rates": "learning rates",
    "seeds": "seeds",
    "run_count": "runs",
}
"""Headings of the table of runs, by the field of `RunGroup`."""


def group_runs(runs: Sequence[RunSpec]) -> list[RunGroup]:
    """Group runs by model, split, method and hyperparameters, in the order of their first runs."""
    runs_of_group: dict[tuple[str, SplitKey, str, str], list[RunSpec]] = defaultdict(list)
    for run in runs:
        changed = ", ".join(f"{name}={value}" for name, value in _changed_hyperparameters(run))
        key = (run.model.name, run.forget_fraction, run.method.label, changed or _DEFAULTS)
        runs_of_group[key].append(run)

    groups: list[RunGroup] = []
    for key, members in runs_of_group.items():
        # Dictionaries keep the order of the configuration; sets would not.
        rates = dict.fromkeys(_rate_text(run.learning_rate) for run in members)
        seeds = dict.fromkeys(str(run.seed) for run in members)
        groups.append(RunGroup(*key, ", ".join(rates), ", ".join(seeds), len(members)))
    return groups


def _rate_text(rate: float | None) -> str:
    return "none" if rate is None else float_text(rate)


def _changed_hyperparameters(run: RunSpec) -> Iterator[tuple[str, HyperParameter]]:
    """Yield the hyperparameters of a run that are not the defaults, and its retain weight."""
    from unlearnbench.config.method_specs import default_hyperparameters

    defaults = default_hyperparameters(run.method.name, run.method.modifiers)
    for name, value in run.method.hyperparameters.items():
        if defaults.get(name) != value:
            yield name, value
    if run.method.retain and run.method.retain.weight != 1.0:
        yield "retain.weight", run.method.retain.weight


def print_runs(runs: Sequence[RunSpec], console: Console) -> None:
    """Print the runs as a table. What all of them have in common stands above it, once."""
    groups = group_runs(runs)
    common = _common_fields(groups)
    if common:
        plural = "s" if len({run.seed for run in runs}) > 1 else ""
        text_of_field = {
            "model": f"model {groups[0].model}",
            "split": _split_text(groups[0].split),
            "hyperparameters": "hyperparameters by default",
            "seeds": f"seed{plural} {groups[0].seeds}",
        }
        texts = [text for field, text in text_of_field.items() if field in common]
        console.paragraph(f"all runs: {', '.join(texts)}")
    fields = [field for field in RunGroup._fields if field not in common]
    console.table(
        [_HEADINGS[field] for field in fields],
        [[getattr(group, field) for field in fields] for group in groups],
        flowing={"hyperparameters", "learning rates", "seeds"},
        keys=sum(field in ("model", "split", "method") for field in fields),
    )


def _common_fields(groups: Sequence[RunGroup]) -> set[str]:
    """Return the fields that stand above the table because all groups have the same value."""
    common: set[str] = set()
    for field in ("model", "split", "seeds"):
        if len({getattr(group, field) for group in groups}) == 1:
            common.add(field)
    if {group.hyperparameters for group in groups} == {_DEFAULTS}:
        common.add("hyperparameters")
    return common


def _split_text(key: SplitKey) -> str:
    """Return `forget 10 %` for a fraction, and `split books` for a name."""
    from unlearnbench.api.benchmark import split_percent

    return f"split {key}" if isinstance(key, str) else split_percent(key)


def budget_lines(runs: Iterable[RunSpec], rows: Dataset) -> list[str]:
    """Say how many epochs the steps of runs by steps are, for each split and batch size."""
    from unlearnbench.api.benchmark import split_label
    from unlearnbench.config.unit import Unit

    # A dictionary, because most runs have the same line as others.
    lines: dict[str, None] = {}
    for run in runs:
        if run.unit is Unit.EPOCH:
            continue
        forget_count = len(rows.splits[run.forget_fraction].forget)
        steps_per_epoch = run.schedule(forget_count).steps_per_epoch
        epochs = f"{run.budget / steps_per_epoch:.3g}"
        plural = "" if epochs == "1" else "s"
        line = (
            f"{split_label(run.forget_fraction)}: {run.unit.counted(run.budget)} are {epochs} "
            f"epoch{plural}, of {run.unit.counted(steps_per_epoch)} each (batch_size "
            f"{run.training.batch_size})"
        )
        lines[line] = None
    return list(lines)


def _attack_name(spec: AttackSpec) -> str:
    """Return `paraphrase`, or `relearning with 8 attackers` of an attack that searches."""
    attack = attack_from_spec(spec)
    if not searches(attack):
        return spec.name
    return f"{spec.name} with {len(attack.attackers())} attackers"
