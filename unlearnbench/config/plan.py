"""The plan of a sweep: all its runs, each with an id that is a hash of what its numbers depend on.

`make_plan` reads only its arguments. It reads no file and needs no model, so a plan can be printed
before any work. `runs/plan_sweep.py` reads data and models, and calls it.

A *point* is one setting: a method with all its hyperparameters, and a learning rate. Each point
becomes a run for every model, split and seed (`Plan.runs_of`).
"""

import json
from collections.abc import Mapping, Sequence
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
from unlearnbench.config.trial import Entry, Trial, Trials, add_trials, entries_of
from unlearnbench.config.unit import Unit

_LENGTH = ("epochs", "steps", "evaluate_at")
"""Values of a run that say how long it is and when it is evaluated."""
_THAT_OF_THE_ROW = "those of the row"
"""Stands for the number of steps in the id of a setting. Stored ids contain these words."""


def _is_evaluated_only_at_end(place: Place) -> bool:
    steps = place.read("steps")
    length = place.read("epochs") if steps is None else steps
    return bool(place.read("evaluate_at") == [length])


def _unless_the_row_tells_it(place: Place) -> Any:
    """Leave out the number of epochs of a run that is evaluated only after the last one.

    With `epochs_as: runs`, a setting has a run for each number of epochs. Their rows in the table
    differ in the epoch, so they are never averaged, and the setting has one id.
    """
    return LEFT_OUT if _is_evaluated_only_at_end(place) else place.value


def _steps_unless_the_row_tells_them(place: Place) -> Any:
    """Leave out the number of steps in the same way, but not the fact that the run is by steps."""
    if place.value is None:
        return LEFT_OUT
    return _THAT_OF_THE_ROW if _is_evaluated_only_at_end(place) else place.value


UNLESS_IT_FOLLOWS: Final = Rule(
    "unless the epoch of a row tells it", _unless_the_row_tells_it, reads=_LENGTH
)
IF_SET_UNLESS_IT_FOLLOWS: Final = Rule(
    "only if set; unless the step of a row tells it, the number",
    _steps_unless_the_row_tells_them,
    reads=_LENGTH,
)


class RunSpec(Settings):
    """One run: everything that its numbers depend on, and where its data are.

    Fields that were added later have a default that stands for the behaviour of the versions
    before, so that the ids of their runs stay as they are.
    """

    data: Annotated[BenchmarkSection, NEVER]  # `data_fingerprint` represents it
    data_fingerprint: Annotated[str, ALWAYS.because("the rows of the benchmark have changed")]
    """Hash of the rows themselves: a file can change while its path stays the same."""
    model: Annotated[ModelSettings, ALWAYS]
    content: Annotated[
        dict[str, str],
        NEVER.because("a model folder or a log that the configuration names has changed"),
    ] = Field(default_factory=dict)
    """Hashes of the folders and logs that `model` names, by setting (such as `retain.retain90`).
    The hashes stand in the id in place of the paths, see `BY_CONTENT`. Empty in specs of versions
    that had the paths in the id."""
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
    """Optimiser steps of a run by steps. None for a run by epochs, and for a run that trains
    nothing."""
    evaluate_at: Annotated[
        tuple[int, ...], ALWAYS.of(Id.RUN, Id.STATED), UNLESS_IT_FOLLOWS.of(Id.SETTING)
    ]
    """Epochs, or steps, after which the model is evaluated."""
    seed: Annotated[int, ALWAYS.of(Id.RUN, Id.STATED)]
    training: Annotated[TrainingSettings, ALWAYS]
    evaluation: Annotated[EvaluationSettings, ALWAYS]
    attacks: Annotated[tuple[AttackSpec, ...], IF_SET] = ()
    """Attacks under which the run is evaluated, besides its plain evaluation."""
    attack_training: Annotated[
        dict[str, Any], IF_SET.because("attacks train with other settings")
    ] = Field(default_factory=dict)
    """Training settings of the attacks, if they differ from the run's own; empty if not."""
    template_digest: Annotated[str, IF_SET.because("the rendered chat template has changed")] = ""
    """Digest of the rendered prompt, see `loading.template_digest`. Empty for templates other than
    a model's chat template and llama-2."""
    turn_digest: Annotated[
        str, IF_SET.because("answers now end where the chat template ends a turn")
    ] = ""
    """Digest of the tokens that end turns and answers, see `ModelSources.turn_digest`. Empty if
    only EOS ends them."""
    leaves_out_label: Annotated[
        bool, IF_SET.because("the label of the prompt is no longer part of the loss")
    ] = False
    """Whether the label of the template (phi's `Answer:`) is left out of a loss that leaves out the
    first answer tokens. False in specs of versions that counted the label's tokens as these."""
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
    """Version of the evaluation profile."""
    after: Annotated[str, IF_SET.because("the run that they continue is repeated")] = Field(
        default="", exclude_if=lambda run: not run
    )
    """Id of the run whose model this run continues. Empty if it begins from the start model."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values whose hash is the id, ready for JSON."""
        identity: dict[str, Any] = redact_tree(identity_of(self))
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        return content_hash(self.identity)

    @property
    def unit(self) -> Unit:
        """The unit of its length and of the moments of its evaluations."""
        return Unit.EPOCH if self.steps is None else Unit.STEP

    @property
    def budget(self) -> int:
        """Its number of epochs, or of steps.

        A stored run may have neither. Then it ends with its last evaluation.
        """
        length = self.epochs if self.steps is None else self.steps
        return self.evaluate_at[-1] if length is None else length

    def schedule(self, rows: int) -> Schedule:
        """Return the steps of the run.

        Args:
            rows: Number of forget rows.

        Raises:
            TrainingError: There would be no steps.
        """
        return schedule_of(self.training, rows, self.unit, self.budget)

    @property
    def title(self) -> str:
        """Name for people: `ce-u · tiny · forget 0.1 · lr 2e-05 · 5 epochs · seed 0`."""
        parts = [self.method.label, self.model.name, split_label(self.forget_fraction)]
        if self.learning_rate is not None:
            parts.append(f"lr {float_text(self.learning_rate)}")
            parts.append(self.unit.counted(self.budget))
        parts.append(f"seed {self.seed}")
        return " · ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for JSON: infinite floats become text, secrets are removed."""
        fields: dict[str, Any] = redact_tree(json_ready(self.model_dump(mode="json")))
        return fields


def schedule_of(training: TrainingSettings, rows: int, unit: Unit, budget: int) -> Schedule:
    """Return the optimiser steps of a training.

    Args:
        training: Settings of the training.
        rows: Number of forget rows.
        unit: Unit of the budget.
        budget: Length of the training in this unit.

    Raises:
        TrainingError: There would be no steps.
    """
    name, size, warmup = training.schedule, training.batch_size, training.warmup_steps
    if unit is Unit.STEP:
        return Schedule.of_steps(name, rows, size, budget, warmup)
    return Schedule(name, rows, size, budget, warmup)


@dataclass(frozen=True)
class PreparationTask:
    """A task before the runs: prepare a model, or evaluate a start or retain model."""

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
        """Id such as `tiny/retain90@0.1 under relearning`: model, target, split and attack."""
        at = "" if self.fraction is None else f"@{split_text(self.fraction)}"
        under = f" under {self.attack}" if self.attack else ""
        return f"{self.model}/{self.target}{at}{under}"


SCHEMA = 1
PLAN_FILE = "plan.json"
SEQUENCE = "sequence"
"""Key in `plan.json` of the sequence of a quasi-random search. Plans of earlier versions have no
such key."""
TRIAL = "trial"
"""Key of a run in `plan.json` that says why the run is there, see `config/trial.py`. Plans of
earlier versions do not have it."""
UNKNOWN_RUNS = "unknown_runs"
"""Key in `plan.json` of `Plan.unknown_runs`; left out if there are none."""
_MOMENTS_WITHOUT_TRAINING: tuple[int, ...] = (1,)
"""Moments of evaluation of a model that is not trained. Moment 0 is the start model."""


def planned_commits(folder: Path) -> dict[str, str]:
    """Read the commits from the plan in a sweep's folder; empty if there is no readable plan."""
    try:
        plan = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no plan, or a damaged one: `check_owner` reports it
        return {}
    return dict(plan.get("hub", {}))


def planned_sequence(folder: Path) -> PointSequence:
    """Read with which quasi-random sequence a sweep began; today's if no such search is planned."""
    try:
        plan = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        if plan["config"]["search"]["kind"] != "quasi-random":
            return "sobol"
        return "sobol" if plan.get(SEQUENCE) == "sobol" else "recurrence"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "sobol"  # no plan, or a damaged one: `check_owner` reports it


@dataclass(frozen=True)
class ModelFacts:
    """What is read from the files of a model, and stands in the specs of its runs."""

    content: Mapping[str, str] = field(default_factory=dict[str, str])
    """Hashes of local folders and logs, see `RunSpec.content`."""
    template_digest: str = ""
    """See `RunSpec.template_digest`."""
    turn_digest: str = ""
    """See `RunSpec.turn_digest`."""
    has_dropout: bool = False
    """Whether the model's configuration sets dropout, as far as it can be read."""
    corrections: tuple[str, ...] = ()
    """See `RunSpec.corrections`."""


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
    facts: Mapping[str, ModelFacts] = field(default_factory=dict[str, ModelFacts])
    """Facts by model name."""
    references: tuple[str, ...] | None = None
    """Ids of the records of start and retain models; None if the hub does not answer."""
    commits: Mapping[str, str] = field(default_factory=dict[str, str])
    """Commits of the hub repositories that the runs read, by `Repository.label`. They are no part
    of ids, so finished runs stay finished when a branch moves on."""
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
        """Make the runs of one setting on one split.

        Returns:
            A run for each seed; with `select`, only for the seeds on which settings are chosen.
            With `epochs_as: runs`, each seed has a run for each length.
        """
        config = self.config
        spec, rate = point
        facts = self.facts.get(model.name, ModelFacts())
        is_trained = rate is not None
        training = config.training_of(spec.name) if is_trained else TrainingSettings()

        ignores_first_tokens = bool(spec.hyperparameters.get("ignore_first_answer_tokens", 0))
        ignores_label = training.ignore_label and model.template in LABELLED
        drops_dropout = facts.has_dropout and is_trained and removes_dropout(spec, training)
        # With dropout, predictions differ from the start model's before any weight has moved.
        predicts_as_start = drops_dropout or not facts.has_dropout
        is_exact = is_trained and predicts_as_start and starts_exactly(spec)
        sees_roles_apart = takes_roles_apart(spec)
        attack_training: dict[str, Any] = {}
        if config.attacks and config.training.of_attacks != training.of_attacks:
            attack_training = config.training.of_attacks

        is_by_steps = config.unit is Unit.STEP and is_trained
        # Without training there is one evaluation, whatever the number of epochs or steps is.
        moments_of_runs = [_MOMENTS_WITHOUT_TRAINING]
        if is_trained:
            moments_of_runs = _moments_of_runs(config, spec.name)
        runs: list[RunSpec] = []
        for seed in config.select.seeds if config.select else config.seeds:
            for moments in moments_of_runs:
                run = RunSpec(
                    data=config.data,
                    data_fingerprint=self.fingerprints[fraction],
                    model=model,
                    content=dict(facts.content),
                    forget_fraction=fraction,
                    method=spec,
                    learning_rate=rate,
                    epochs=None if is_by_steps else moments[-1],
                    steps=moments[-1] if is_by_steps else None,
                    evaluate_at=moments,
                    seed=seed,
                    training=training,
                    evaluation=config.evaluation,
                    attacks=config.attacks,
                    attack_training=attack_training,
                    template_digest=facts.template_digest,
                    turn_digest=facts.turn_digest,
                    corrections=facts.corrections,
                    leaves_out_label=ignores_first_tokens and ignores_label,
                    takes_roles_apart=sees_roles_apart,
                    removes_dropout=drops_dropout,
                    starts_exactly=is_exact,
                    profile_version=profile_of(config.evaluation).version,
                )
                runs.append(run)
        return runs

    def to_json(self) -> dict[str, Any]:
        """Return the content of `plan.json`."""
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "name": self.config.name,
            "description": redact(self.config.description),
            "data": {split_text(fraction): value for fraction, value in self.fingerprints.items()},
            "rows": {split_text(fraction): dict(sets) for fraction, sets in self.rows.items()},
            "hub": dict(self.commits),
            "plugin_files": [str(path) for path, _ in registry.plugin_files()],
            "config": redact_tree(json_ready(self.config.model_dump(mode="json"))),
        }
        if self.config.search.kind == "quasi-random":
            document[SEQUENCE] = self.sequence
        if self.references is not None:
            document["references"] = list(self.references)
        if self.unknown_runs:
            document[UNKNOWN_RUNS] = self.unknown_runs
        document["runs"] = [self._run_to_json(run) for run in self.runs]
        return document

    def _run_to_json(self, run: RunSpec) -> dict[str, Any]:
        """Return a run as it stands in `plan.json`."""
        run_id = run.id
        reason: dict[str, Any] = {}
        if trials := self.trials.get(run_id):
            reason["entries"] = {name: trial.to_json() for name, trial in trials.items()}
        if chosen := self.reports.get(run_id):
            reason["reports"] = list(chosen)
        return {"id": run_id, "title": run.title, TRIAL: reason, "spec": run.to_json()}


def make_plan(
    config: SweepConfig,
    fingerprint: str | Mapping[SplitKey, str],
    facts: Mapping[str, ModelFacts] | None = None,
    sequence: PointSequence = "sobol",
) -> Plan:
    """Plan the product of models, splits, settings and seeds, without duplicates.

    A method that trains nothing has one run for all rates and epoch or step counts. Runs that
    depend on results are added later (`sweep/follow_up_runs.py`).

    Args:
        config: The sweep.
        fingerprint: Hash of the rows by split, or one hash for all splits. Each split has its own
            so that runs do not change when a split is added.
        facts: Facts by model name, for models with files.
        sequence: Points of a quasi-random search, see `Plan.sequence`.

    Raises:
        ConfigError: There would be no run.
    """
    fingerprints = {
        fraction: fingerprint if isinstance(fingerprint, str) else fingerprint[fraction]
        for fraction in config.split_keys
    }
    empty = Plan(config, fingerprints, runs=(), facts=facts or {}, sequence=sequence)
    tried: list[tuple[Entry, Point]] = []
    for entry in entries_of(config):
        for point in points_of(entry.grid, config, sequence):
            tried.append((entry, point))

    runs: dict[str, RunSpec] = {}
    trials: Trials = {}
    for model in config.models:
        # Runs of the split before, by place of the setting in `tried`.
        runs_before: dict[int, list[RunSpec]] = {}
        for fraction in config.split_keys:
            for place, (entry, point) in enumerate(tried):
                runs_of_point = empty.runs_of(model, fraction, point)
                if config.requests == "in-sequence":
                    if place in runs_before:
                        runs_of_point = _continuing(runs_before[place], runs_of_point)
                    runs_before[place] = runs_of_point
                run_by_id = {run.id: run for run in runs_of_point}
                runs |= run_by_id
                add_trials(trials, entry, point, run_by_id)
    if not runs and config.search.kind != "optuna":
        problem = "there would be no run; give each axis of the grid at least one value"
        raise ConfigError([Problem(config.name, "methods", problem)])
    return replace(empty, runs=tuple(runs.values()), trials=trials)


def _continuing(earlier: Sequence[RunSpec], later: Sequence[RunSpec]) -> list[RunSpec]:
    """Let each run continue the model of the run before it, which has the same seed and length."""
    pairs = zip(earlier, later, strict=True)
    return [run.model_copy(update={"after": before.id}) for before, run in pairs]


def _moments_of_runs(config: SweepConfig, method: str) -> list[tuple[int, ...]]:
    """List the runs of one setting and seed, each by its moments of evaluation.

    Returns:
        `[(1, 2, 3)]` for a run of three epochs; with `epochs_as: runs`, `[(1,), (2,), (3,)]`.
    """
    moments = config.evaluate_at_of(method)
    if config.epochs_as == "runs":
        return [(moment,) for moment in moments]
    return [moments]
