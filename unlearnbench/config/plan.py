"""The plan of a sweep: all its runs. Pure, so that it can be printed before any work."""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey, split_label, split_text
from unlearnbench.api.identity import (
    ALWAYS,
    IF_SET,
    LEFT_OUT,
    NEVER,
    Id,
    Place,
    Rule,
    identity_of,
)
from unlearnbench.base.errors import ConfigError, Problem
from unlearnbench.base.hashing import content_hash, json_ready
from unlearnbench.base.number_text import float_text
from unlearnbench.base.redaction import redact, redact_tree
from unlearnbench.config.entries import AttackSpec, BenchmarkSection
from unlearnbench.config.method_specs import removes_dropout, starts_exactly, takes_roles_apart
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import (
    LABELLED,
    EvaluationSettings,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.config.search_space import Point, PointSequence, points_of
from unlearnbench.config.section import Settings
from unlearnbench.config.step_schedule import Schedule
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.config.trial import Trial, Trials, add_trials, entries_of
from unlearnbench.config.unit import Unit


def _unless_it_follows(place: Place) -> Any:
    """Leave out the number of epochs of a run that is evaluated only after the last one.

    With `epochs_as: runs`, a setting has a run for each number of epochs. Its rows differ in their
    epoch, so they are never averaged.
    """
    return LEFT_OUT if _is_at_end(place) else place.value


def _is_at_end(place: Place) -> bool:
    steps = place.read("steps")
    return bool(place.read("evaluate_at") == [place.read("epochs") if steps is None else steps])


def _steps_of_setting(place: Place) -> Any:
    """Leave out the number of steps as that of epochs, but not that the run is by steps."""
    if place.value is None:
        return LEFT_OUT
    return _FOLLOWS if _is_at_end(place) else place.value


_FOLLOWS = "those of the row"
_LENGTH = ("epochs", "steps", "evaluate_at")
UNLESS_IT_FOLLOWS: Final = Rule(
    "unless the epoch of a row tells it", _unless_it_follows, reads=_LENGTH
)
IF_SET_UNLESS_IT_FOLLOWS: Final = Rule(
    "only if set; unless the step of a row tells it, the number", _steps_of_setting, reads=_LENGTH
)


class RunSpec(Settings):
    """One run: everything that its numbers depend on, and where to find it."""

    data: Annotated[BenchmarkSection, NEVER]  # `data_fingerprint` represents it
    data_fingerprint: Annotated[str, ALWAYS.because("the rows of the benchmark have changed")]
    """Hash of the rows themselves: a file can change while its path stays the same."""
    model: Annotated[ModelSettings, ALWAYS]
    content: Annotated[
        dict[str, str],
        NEVER.because("a model folder or a log that the configuration names has changed"),
    ] = Field(default_factory=dict)
    """Hashes of the folders and logs that `model` names, by its setting (`retain.retain90`). They
    stand in place of their paths, see `BY_CONTENT`. Empty in specs of versions that had the paths
    in the id."""
    forget_fraction: Annotated[SplitKey, ALWAYS]
    """The fraction of the rows to forget, or the name of the split."""
    method: Annotated[MethodSpec, ALWAYS]
    learning_rate: Annotated[float | None, ALWAYS]
    """None for a method that trains nothing."""
    epochs: Annotated[int | None, ALWAYS.of(Id.RUN, Id.STATED), UNLESS_IT_FOLLOWS.of(Id.SETTING)]
    """None for a run by steps."""
    steps: Annotated[
        int | None, IF_SET.of(Id.RUN, Id.STATED), IF_SET_UNLESS_IT_FOLLOWS.of(Id.SETTING)
    ] = Field(default=None, exclude_if=lambda steps: steps is None)
    """Optimiser steps of a run by steps; None for a run by epochs, and for one that trains nothing
    and has a single evaluation."""
    evaluate_at: Annotated[
        tuple[int, ...], ALWAYS.of(Id.RUN, Id.STATED), UNLESS_IT_FOLLOWS.of(Id.SETTING)
    ]
    """Epochs, or steps, after which the model is evaluated."""
    seed: Annotated[int, ALWAYS.of(Id.RUN, Id.STATED)]
    training: Annotated[TrainingSettings, ALWAYS]
    evaluation: Annotated[EvaluationSettings, ALWAYS]
    attacks: Annotated[tuple[AttackSpec, ...], IF_SET] = ()
    """Under which the run is evaluated, too."""
    attack_training: Annotated[
        dict[str, Any], IF_SET.because("attacks train with other settings")
    ] = Field(default_factory=dict)
    """By which these train, where the run's own training has others."""
    template_digest: Annotated[str, IF_SET.because("the rendered chat template has changed")] = ""
    """See `loading.template_digest`: of a chat template or llama-2; empty for others."""
    turn_digest: Annotated[
        str, IF_SET.because("answers now end where the chat template ends a turn")
    ] = ""
    """See `ModelSources.turn_digest`: of what ends turns and answers; empty if it is EOS alone."""
    leaves_out_label: Annotated[
        bool, IF_SET.because("the label of the prompt is no longer part of the loss")
    ] = False
    """The label of the template is no part of the loss. False in specs of versions that counted its
    tokens as the first of the answer."""
    takes_roles_apart: Annotated[
        bool,
        IF_SET.because("modifiers now see the gradient of one role where the loss joins both"),
    ] = False
    """Whether a mean over forget and retain rows together is divided by role for a modifier that
    asks for the gradient of one role. False in specs of versions that gave it both gradients."""
    removes_dropout: Annotated[
        bool,
        IF_SET.because("dropout is now removed for losses that compare with the start model"),
    ] = False
    """Whether the model has dropout, and trains without it. False in specs of versions that always
    kept it."""
    corrections: Annotated[
        tuple[str, ...],
        IF_SET.because("earlier versions computed wrong numbers for the model's architecture"),
    ] = ()
    """Corrected faults that concern the model's architecture, see `models/corrections.py`. Empty in
    specs of versions that had the faults."""
    starts_exactly: Annotated[
        bool,
        IF_SET.because("the retain gradient of the first step is now 0, and was rounding errors"),
    ] = False
    """Whether the gradient of a divergence from the start model is exactly 0 in the first step, see
    `method_specs.starts_exactly`. False in specs of versions in which it was rounding errors."""
    profile_version: Annotated[int, IF_SET.because("the evaluation profile has a new version")] = 1
    """Version of the evaluation's profile."""
    after: Annotated[str, IF_SET.because("the run that they continue is repeated")] = Field(
        default="", exclude_if=lambda run: not run
    )
    """Id of the run from whose model this one goes on; empty: it starts from the start model."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values that the id is the hash of, ready for JSON."""
        identity: dict[str, Any] = redact_tree(identity_of(self))
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        return content_hash(self.identity)

    @property
    def unit(self) -> Unit:
        """What its length, and the moments of its evaluations, are counted in."""
        return Unit.EPOCH if self.steps is None else Unit.STEP

    @property
    def budget(self) -> int:
        """Its epochs, or its steps."""
        length = self.epochs if self.steps is None else self.steps
        return self.evaluate_at[-1] if length is None else length

    def schedule(self, rows: int) -> Schedule:
        """The steps of the run on `rows` forget rows. Raises: TrainingError for no steps."""
        return schedule_of(self.training, rows, self.unit, self.budget)

    @property
    def title(self) -> str:
        """Name for people: `ce-u · tiny · forget 0.1 · lr 2e-05 · 5 epochs · seed 0`."""
        length = self.unit.counted(self.budget)
        rate = self.learning_rate
        return " · ".join(
            (
                self.method.label,
                self.model.name,
                split_label(self.forget_fraction),
                *(() if rate is None else (f"lr {float_text(rate)}", length)),
                f"seed {self.seed}",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for JSON: infinite floats become text, secrets are removed."""
        fields: dict[str, Any] = redact_tree(json_ready(self.model_dump(mode="json")))
        return fields


def schedule_of(training: TrainingSettings, rows: int, unit: Unit, budget: int) -> Schedule:
    """Return the steps of a run on some forget rows, whose length is `budget` epochs or steps.

    Raises:
        TrainingError: If there are no steps.
    """
    name, size, warmup = training.schedule, training.batch_size, training.warmup_steps
    if unit is Unit.STEP:
        return Schedule.of_steps(name, rows, size, budget, warmup)
    return Schedule(name, rows, size, budget, warmup)


@dataclass(frozen=True)
class PreparationTask:
    """A model to prepare, or a start or retain model to evaluate."""

    label: str
    after: tuple[str, ...]
    """Ids of the tasks that it waits for."""
    model: str
    target: str
    """Model to prepare or evaluate: `base`, `full`, or the retain model's name."""
    fraction: SplitKey | None = None
    """Split of an evaluation; None for a model to prepare."""
    attack: str = ""
    """Attack under which it is evaluated; empty for the plain evaluation."""
    done: bool = False

    @property
    def id(self) -> str:
        """Such as `tiny/retain90@0.1 under relearning`."""
        at = "" if self.fraction is None else f"@{split_text(self.fraction)}"
        under = f" under {self.attack}" if self.attack else ""
        return f"{self.model}/{self.target}{at}{under}"


SCHEMA = 1
PLAN_FILE = "plan.json"
SEQUENCE = "sequence"
"""Key in `plan.json` of quasi-random searches; plans of earlier versions do not have it."""
TRIAL = "trial"
"""Key of a run in `plan.json` that says why the run is there, see `config/trial.py`. Plans of
earlier versions do not have it."""
UNKNOWN_RUNS = "unknown_runs"
"""Key in `plan.json` of `Plan.unknown_runs`; left out if there are none."""
ONCE = ((1,),)
"""Epochs at which a model that is not trained is evaluated; epoch 0 is the start model."""


def planned_commits(folder: Path) -> dict[str, str]:
    """Read the commits from the plan in a sweep's folder; none where it cannot be read."""
    try:
        plan = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # `check_owner` reports it
        return {}
    return dict(plan.get("hub", {}))


def planned_sequence(folder: Path) -> PointSequence:
    """Read which quasi-random points a sweep began with; those of today where none are planned."""
    try:
        plan = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        if plan["config"]["search"]["kind"] != "quasi-random":
            return "sobol"
        return "sobol" if plan.get(SEQUENCE) == "sobol" else "recurrence"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "sobol"  # no plan, or a damaged one: `check_owner` reports it


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep."""

    config: SweepConfig
    fingerprints: Mapping[SplitKey, str]
    """Hash of the rows that runs on each split read."""
    runs: tuple[RunSpec, ...]
    """Grouped by model and forget set."""
    rows: Mapping[SplitKey, Mapping[str, int]] = field(
        default_factory=dict[SplitKey, Mapping[str, int]]
    )
    """Number of rows of each set of each split, for display."""
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digest of the rendered chat template by model name, for models with one."""
    contents: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Hashes of local folders and logs by model name, see `RunSpec.content`."""
    turns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digest of how turns and answers end by model name, see `RunSpec.turn_digest`."""
    with_dropout: frozenset[str] = frozenset()
    """Names of the models whose configuration sets dropout, as far as it can be read."""
    corrections: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Corrected faults by model name, see `RunSpec.corrections`."""
    references: tuple[str, ...] | None = None
    """Ids of the records of start and retain models; None where the hub does not answer."""
    commits: Mapping[str, str] = field(default_factory=dict[str, str])
    """Commits of the hub repositories that the runs read, by `Repository.label`. No part of ids, so
    that finished runs stay finished when a branch moves on."""
    sequence: PointSequence = "sobol"
    """Points of a quasi-random search. A sweep goes on with the points that it began with."""
    trials: Mapping[str, Mapping[str, Trial]] = field(
        default_factory=dict[str, Mapping[str, Trial]]
    )
    """The entries that try the setting of a run, by the run's id and the entry's name."""
    reports: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Ids of the trials that were chosen, by the id of a run that reports the choice."""
    unknown_runs: int = 0
    """Number of settings that a search may still suggest."""

    @property
    def folder(self) -> Path:
        """Folder of the sweep's files."""
        return Path(self.config.output) / self.config.name

    def runs_of(self, model: ModelSettings, fraction: SplitKey, point: Point) -> list[RunSpec]:
        """The runs of one setting: one per seed, or per seed of the selection."""
        config, (spec, rate) = self.config, point
        training = TrainingSettings() if rate is None else config.training_of(spec.name)
        first = spec.hyperparameters.get("ignore_first_answer_tokens", 0)
        labelled = training.ignore_label and model.template in LABELLED
        has_dropout = model.name in self.with_dropout
        removes = has_dropout and rate is not None and removes_dropout(spec, training)
        # With dropout, predictions differ from the start model's before any weight has moved.
        predicts_as_start = removes or not has_dropout
        attacking = config.training.of_attacks if config.attacks else training.of_attacks
        by_steps = config.unit is Unit.STEP and rate is not None
        return [
            RunSpec(
                data=config.data,
                data_fingerprint=self.fingerprints[fraction],
                model=model,
                content=dict(self.contents.get(model.name, {})),
                forget_fraction=fraction,
                method=spec,
                learning_rate=rate,
                epochs=None if by_steps else evaluate_at[-1],
                steps=evaluate_at[-1] if by_steps else None,
                evaluate_at=evaluate_at,
                seed=seed,
                training=training,
                evaluation=config.evaluation,
                attacks=config.attacks,
                attack_training=attacking if attacking != training.of_attacks else {},
                template_digest=self.templates.get(model.name, ""),
                turn_digest=self.turns.get(model.name, ""),
                corrections=self.corrections.get(model.name, ()),
                leaves_out_label=bool(first) and labelled,
                takes_roles_apart=takes_roles_apart(spec),
                removes_dropout=removes,
                starts_exactly=rate is not None and predicts_as_start and starts_exactly(spec),
                profile_version=profile_of(config.evaluation).version,
            )
            for seed in (config.select.seeds if config.select else config.seeds)
            # A method that trains nothing has one evaluation, whatever the number of epochs or
            # steps.
            for evaluate_at in (ONCE if rate is None else _evaluations(config, spec.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """The content of `plan.json`."""
        return {
            "schema": SCHEMA,
            "name": self.config.name,
            "description": redact(self.config.description),
            "data": {split_text(fraction): value for fraction, value in self.fingerprints.items()},
            "rows": {split_text(fraction): dict(sets) for fraction, sets in self.rows.items()},
            "hub": dict(self.commits),
            "plugin_files": [str(path) for path, _ in registry.plugin_files()],
            "config": redact_tree(json_ready(self.config.model_dump(mode="json"))),
            **({SEQUENCE: self.sequence} if self.config.search.kind == "quasi-random" else {}),
            **({} if self.references is None else {"references": list(self.references)}),
            **({UNKNOWN_RUNS: self.unknown_runs} if self.unknown_runs else {}),
            "runs": [self._run_to_json(run) for run in self.runs],
        }

    def _run_to_json(self, run: RunSpec) -> dict[str, Any]:
        """Return a run as it stands in `plan.json`."""
        id_ = run.id
        trials = self.trials.get(id_, {})
        reason: dict[str, Any] = {}
        if trials:
            reason["entries"] = {name: trial.to_json() for name, trial in trials.items()}
        if reported := self.reports.get(id_):
            reason["reports"] = list(reported)
        return {"id": id_, "title": run.title, TRIAL: reason, "spec": run.to_json()}


def make_plan(
    config: SweepConfig,
    fingerprint: str | Mapping[SplitKey, str],
    templates: Mapping[str, str] | None = None,
    contents: Mapping[str, Mapping[str, str]] | None = None,
    turns: Mapping[str, str] | None = None,
    with_dropout: Iterable[str] = (),
    sequence: PointSequence = "sobol",
    corrections: Mapping[str, tuple[str, ...]] | None = None,
) -> Plan:
    """Plan the product of models, splits, settings, seeds (and epoch counts) without duplicates.

    A method that trains nothing has one run for all rates and epoch or step counts. Runs that
    depend on results are added later (`sweep/follow_up_runs.py`).

    fingerprint  of the data by split (so that runs do not change when a split is added), or one
                 for all
    templates    digests of rendered chat templates by model name, see `Plan.templates`
    contents     hashes of local folders and logs by model name, see `Plan.contents`
    turns        digests of how turns and answers end by model name, see `Plan.turns`
    with_dropout names of the models whose configuration sets dropout
    sequence     points of a quasi-random search, see `Plan.sequence`
    corrections  corrected faults by model name, see `Plan.corrections`
    """
    fingerprints = {
        fraction: fingerprint if isinstance(fingerprint, str) else fingerprint[fraction]
        for fraction in config.split_keys
    }
    empty = Plan(
        config,
        fingerprints,
        (),
        templates=templates or {},
        contents=contents or {},
        turns=turns or {},
        with_dropout=frozenset(with_dropout),
        sequence=sequence,
        corrections=corrections or {},
    )
    points = [
        (entry, point)
        for entry in entries_of(config)
        for point in points_of(entry.grid, config, sequence)
    ]
    settings = itertools.product(config.models, config.split_keys, enumerate(points))
    runs: dict[str, RunSpec] = {}
    trials: Trials = {}
    before: dict[tuple[str, int], list[RunSpec]] = {}
    for model, key, (number, (entry, point)) in settings:
        made = empty.runs_of(model, key, point)
        if config.requests == "in-sequence":
            if previous := before.get((model.name, number)):
                pairs = zip(made, previous, strict=True)
                made = [run.model_copy(update={"after": other.id}) for run, other in pairs]
            before[model.name, number] = made
        made_by_id = {run.id: run for run in made}
        runs |= made_by_id
        add_trials(trials, entry, point, made_by_id)
    if not runs and config.search.kind != "optuna":
        problem = "there would be no run; give each axis of the grid at least one value"
        raise ConfigError([Problem(config.name, "methods", problem)])
    return replace(empty, runs=tuple(runs.values()), trials=trials)


def _evaluations(config: SweepConfig, method: str) -> list[tuple[int, ...]]:
    """The epochs, or steps, after which each run of one point of the grid is evaluated."""
    counts = config.evaluate_at_of(method)
    return [(count,) for count in counts] if config.epochs_as == "runs" else [counts]
