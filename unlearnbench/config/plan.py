"""The plan of a sweep: all its runs, each with an id that is a hash of what its numbers depend on.

`make_plan` reads only its arguments. It reads no file and needs no model, so a plan can be printed
before any work. `runs/plan_sweep.py` reads data and models, and calls it.

A *point* is one setting: a method with all its hyperparameters, and a learning rate. Each point
becomes a run for every model, split and seed (`Plan.runs_of`). `run_spec.py` describes a run, and
`plan_file.py` the file in which a plan is stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey, split_text
from unlearnbench.base.errors import ConfigError, Problem
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.redaction import redact, redact_tree
from unlearnbench.config.method_settings import MethodSpec
from unlearnbench.config.method_specs import removes_dropout, starts_exactly, takes_roles_apart
from unlearnbench.config.model_settings import LABELLED, ModelSettings
from unlearnbench.config.plan_file import SCHEMA, SEQUENCE, TRIAL, UNKNOWN_RUNS
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search_space import Point, points_of
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.config.trial import Entry, Trial, Trials, add_trials, entries_of
from unlearnbench.config.unit import Unit
from unlearnbench.stats.point_sequences import PointSequence

_MOMENTS_WITHOUT_TRAINING: tuple[int, ...] = (1,)
"""Moments of evaluation of a model that is not trained. Moment 0 is the start model."""


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
    """Grouped by model and split."""
    rows: Mapping[SplitKey, Mapping[str, int]] = field(
        default_factory=dict[SplitKey, Mapping[str, int]]
    )
    """Number of rows by split and by set, for display."""
    facts: Mapping[str, ModelFacts] = field(default_factory=dict[str, ModelFacts])
    """Facts by model name."""
    references: tuple[str, ...] | None = None
    """Ids of the records of start and retain models. None if the hub does not answer."""
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
        return self.config.folder

    def runs_of(self, model: ModelSettings, fraction: SplitKey, point: Point) -> list[RunSpec]:
        """Make the runs of one setting on one split.

        Returns:
            A run for each seed; with `select`, only for the seeds on which settings are chosen.
            With `epochs_as: runs`, each seed has a run for each length.
        """
        config = self.config
        method, learning_rate = point
        is_trained = learning_rate is not None
        is_by_steps = config.unit is Unit.STEP and is_trained
        facts = self.facts.get(model.name, ModelFacts())
        training = config.training_of(method.name) if is_trained else TrainingSettings()
        drops_dropout = facts.has_dropout and is_trained and removes_dropout(method, training)
        # With dropout, predictions differ from the start model's before any weight has moved.
        predicts_as_start = drops_dropout or not facts.has_dropout
        is_exact = is_trained and predicts_as_start and starts_exactly(method)
        splits_roles = takes_roles_apart(method)
        attack_training = _attack_training(config, training)

        moments_of_runs = _moments_of_runs(config, method, is_trained=is_trained)
        runs: list[RunSpec] = []
        for seed in config.select.seeds if config.select else config.seeds:
            for moments in moments_of_runs:
                run = RunSpec(
                    data=config.data,
                    data_fingerprint=self.fingerprints[fraction],
                    model=model,
                    content=dict(facts.content),
                    forget_fraction=fraction,
                    method=method,
                    learning_rate=learning_rate,
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
                    leaves_out_label=_leaves_out_label(method, training, model),
                    takes_roles_apart=splits_roles,
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
        """Return a run as it stands in `plan.json`, with the reason why it is there."""
        run_id = run.id
        reason: dict[str, Any] = {}
        trials = self.trials.get(run_id)
        if trials:
            reason["entries"] = {name: trial.to_json() for name, trial in trials.items()}
        chosen_ids = self.reports.get(run_id)
        if chosen_ids:
            reason["reports"] = list(chosen_ids)
        return {"id": run_id, "title": run.title, TRIAL: reason, "spec": run.to_json()}


def _attack_training(config: SweepConfig, training: TrainingSettings) -> dict[str, Any]:
    """Return the training settings of attacks; empty if a run trains by the same settings."""
    of_sweep = config.training.of_attacks
    if not config.attacks or of_sweep == training.of_attacks:
        return {}
    return of_sweep


def _leaves_out_label(method: MethodSpec, training: TrainingSettings, model: ModelSettings) -> bool:
    """Whether the label of the model's template is left out, see `RunSpec.leaves_out_label`."""
    ignores_first_tokens = bool(method.hyperparameters.get("ignore_first_answer_tokens", 0))
    return ignores_first_tokens and training.ignore_label and model.template in LABELLED


def _moments_of_runs(
    config: SweepConfig, method: MethodSpec, *, is_trained: bool
) -> list[tuple[int, ...]]:
    """List the runs of one setting and seed, each by its moments of evaluation.

    Returns:
        `[(1, 2, 3)]` for a run of three epochs; with `epochs_as: runs`, `[(1,), (2,), (3,)]`.
    """
    if not is_trained:
        # There is one evaluation, whatever the number of epochs or steps is.
        return [_MOMENTS_WITHOUT_TRAINING]
    moments = config.evaluate_at_of(method.name)
    if config.epochs_as == "runs":
        return [(moment,) for moment in moments]
    return [moments]


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
        # Runs on the split before this one, by place of the setting in `tried`.
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
    continued: list[RunSpec] = []
    for before, run in zip(earlier, later, strict=True):
        continued.append(run.model_copy(update={"after": before.id}))
    return continued
