"""From a configuration to runs: pure, so that it can be printed before anything is spent.

A run's id is the hash of everything its numbers depend on. What changes no number (the size of an
evaluation batch, where the data lie) stays out of it, so that moving a folder re-runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unlearnbench import registry
from unlearnbench.bounded import parse_json
from unlearnbench.errors import ConfigError, Problem
from unlearnbench.frozen import Settings
from unlearnbench.recipe import TrainingSettings
from unlearnbench.redaction import redact, redacted
from unlearnbench.schedule import Schedule
from unlearnbench.settings import (
    LABELLED,
    DataSettings,
    EvaluationSettings,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.spaces import Point, points_of

SCHEMA = 1
PLAN_FILE = "plan.json"
ONCE = ((1,),)
"""When a model that is not trained is evaluated; epoch 0 is the start itself."""


def json_ready(value: Any) -> Any:
    """`value` with every float that JSON lacks as text: `"inf"`, `"-inf"`, `"nan"`."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def content_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(
        json_ready(value),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class RunSpec(Settings):
    """One training run: everything that its numbers depend on, and how to get at it."""

    data: DataSettings
    data_fingerprint: str
    """Hash of the rows themselves: a path can stay while the file changes."""
    model: ModelSettings
    forget_fraction: float
    method: MethodSpec
    learning_rate: float | None
    """None where the method trains nothing."""
    epochs: int
    evaluate_at: tuple[int, ...]
    """Epochs after which the model is evaluated."""
    seed: int
    training: TrainingSettings
    evaluation: EvaluationSettings
    template_digest: str = ""
    """Of the model's rendered chat template; empty for the templates that are fixed here."""

    leaves_out_label: bool = False
    """Tokens that the template scores are left out of the loss, being its label. False in specs of
    versions that counted them among the first answer tokens."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the id is the hash of, ready for JSON."""
        # The fingerprint stands for the data, wherever they lie; recomputing activations and the
        # size of an evaluation batch change time and memory, not numbers.
        changes_no_number: Any = {
            "data": True,
            "evaluation": {"batch_tokens"},
            "model": {"gradient_checkpointing", "resources"},
        }
        # A rule that is not there changes nothing either.
        rules = ("stop_below", "question_key", "patience", "precision")
        absent = {key for key in rules if getattr(self.evaluation, key) is None}
        if self.learning_rate is None:
            absent.add("patience")  # what trains nothing is evaluated once
        changes_no_number["evaluation"] |= absent
        identity: dict[str, Any] = redacted(
            json_ready(self.model_dump(mode="json", exclude=changes_no_number))
        )
        if self.training.precision == "bf16" and self.evaluation.precision is None:
            # Evaluated under training's autocast once, and not since: other numbers.
            identity["evaluation"]["precision"] = self.model.dtype
        if self.training.optimizer == "adamw":  # as in runs from before there was a choice
            del identity["training"]["optimizer"]
        if not self.training.deterministic:
            del identity["training"]["deterministic"]
        if not self.model.template_args:
            del identity["model"]["template_args"]
        if not self.template_digest:
            del identity["template_digest"]
        del identity["training"]["ignore_label"]  # `leaves_out_label` is where it counts
        if not self.leaves_out_label:  # as in runs from before labels were left out
            del identity["leaves_out_label"]
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        return content_hash(self.identity)

    def schedule(self, rows: int) -> Schedule:
        """The steps of the run, given `rows` rows to forget. Raises: TrainingError for none."""
        how = self.training
        return Schedule(how.schedule, rows, how.batch_size, self.epochs, how.warmup_steps)

    @property
    def title(self) -> str:
        """For people: `ce-u · tiny · forget 0.1 · lr 2e-05 · 5 epochs · seed 0`."""
        epochs = f"{self.epochs} epoch{'s' if self.epochs != 1 else ''}"
        rate = self.learning_rate
        return " · ".join(
            (
                self.method.label,
                self.model.name,
                f"forget {self.forget_fraction:g}",
                *(() if rate is None else (f"lr {rate:g}", epochs)),
                f"seed {self.seed}",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for JSON: infinite floats become text, secrets are removed."""
        fields: dict[str, Any] = redacted(json_ready(self.model_dump(mode="json")))
        return fields


def planned_commits(folder: Path) -> dict[str, str]:
    """The commits that the plan in a sweep's folder names; none where no plan can be read."""
    try:
        text = (folder / PLAN_FILE).read_text(encoding="utf-8")
        commits = dict(parse_json(text).get("hub", {}))
    except (OSError, ValueError, TypeError, AttributeError):  # `check_owner` reports it
        return {}
    return {label: commit for label, commit in commits.items() if isinstance(commit, str)}


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep."""

    config: SweepConfig
    fingerprints: Mapping[float, str]
    """Hash of the rows that runs at each forget fraction can see."""
    runs: tuple[RunSpec, ...]
    """In an order that keeps one model and one forget set together."""
    rows: Mapping[float, Mapping[str, int]] = field(default_factory=dict[float, Mapping[str, int]])
    """How many rows each set has at each forget fraction, for whoever wants to tell of them."""
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Digest of the rendered chat template by model name, for models that have one."""
    commits: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the hub's repositories that the runs read, by `Repository.label`. No part of ids: they
    hold what the configuration names, and finished runs stay finished where a branch moves on."""

    @property
    def folder(self) -> Path:
        """Where the sweep's files go."""
        return Path(self.config.output) / self.config.name

    def runs_of(self, model: ModelSettings, fraction: float, point: Point) -> list[RunSpec]:
        """The runs of one setting: a seed each, or those that a choice is made on."""
        config, (spec, rate) = self.config, point
        training = TrainingSettings() if rate is None else config.training_of(spec.name)
        first = spec.hyperparameters.get("ignore_first_answer_tokens", 0)
        labelled = training.ignore_label and model.template in LABELLED
        return [
            RunSpec(
                data=config.data,
                data_fingerprint=self.fingerprints[fraction],
                model=model,
                forget_fraction=fraction,
                method=spec,
                learning_rate=rate,
                epochs=evaluate_at[-1],
                evaluate_at=evaluate_at,
                seed=seed,
                training=training,
                evaluation=config.evaluation,
                template_digest=self.templates.get(model.name, ""),
                leaves_out_label=bool(first) and labelled,
            )
            for seed in (config.select.seeds if config.select else config.seeds)
            # What trains nothing is the same however long it would be trained.
            for evaluate_at in (ONCE if rate is None else _evaluations(config))
        ]

    def counts(self) -> dict[str, int]:
        """How many different values each axis has, and the runs."""
        axes: dict[str, set[Any]] = {
            "models": {run.model.name for run in self.runs},
            "forget_fractions": {run.forget_fraction for run in self.runs},
            "methods": {repr(run.method) for run in self.runs},
            "learning_rates": {run.learning_rate for run in self.runs},
            "seeds": {run.seed for run in self.runs},
            "epochs": {epoch for run in self.runs for epoch in run.evaluate_at},
        }
        return {name: len(values) for name, values in axes.items()} | {"runs": len(self.runs)}

    def to_json(self) -> dict[str, Any]:
        """The whole plan as `plan.json` holds it."""
        return {
            "schema": SCHEMA,
            "name": self.config.name,
            "description": redact(self.config.description),
            "data": {f"{fraction:g}": value for fraction, value in self.fingerprints.items()},
            "rows": {f"{fraction:g}": dict(sets) for fraction, sets in self.rows.items()},
            "hub": dict(self.commits),
            "plugin_files": [str(path) for path in registry.plugin_files()],
            "config": redacted(json_ready(self.config.model_dump(mode="json"))),
            "runs": [
                {"id": run.id, "title": run.title, "spec": run.to_json()} for run in self.runs
            ],
        }


def make_plan(
    config: SweepConfig,
    fingerprint: str | Mapping[float, str],
    templates: Mapping[str, str] | None = None,
) -> Plan:
    """The product of models, fractions, settings, seeds (and epoch counts), none twice.

    A method that trains nothing has one run in place of all rates and epoch counts. Not among the
    runs is what depends on results: `stages.following` adds it.

    fingerprint  of the data, by forget fraction (so that runs stay the same when a sweep is given
                 another fraction), or one for all
    templates    digests of rendered chat templates by model name, see `Plan.templates`
    """
    fingerprints = {
        fraction: fingerprint if isinstance(fingerprint, str) else fingerprint[fraction]
        for fraction in config.forget_fractions
    }
    empty = Plan(config, fingerprints, (), templates=templates or {})
    points = [point for grid in config.methods for point in points_of(grid, config)]
    runs: dict[str, RunSpec] = {}
    for model in config.models:
        for fraction in config.forget_fractions:
            for point in points:
                for run in empty.runs_of(model, fraction, point):
                    runs.setdefault(run.id, run)
    if not runs and config.search.kind != "optuna":
        problem = "a sweep of zero runs: give each axis of the grid at least one value"
        raise ConfigError([Problem(config.name, "methods", problem)])
    return replace(empty, runs=tuple(runs.values()))


def _evaluations(config: SweepConfig) -> list[tuple[int, ...]]:
    """The epochs after which each run of one point of the grid is evaluated."""
    counts = range(1, config.epochs + 1)
    return [(count,) for count in counts] if config.epochs_as == "runs" else [tuple(counts)]
