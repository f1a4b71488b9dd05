"""The specification of a run, whose hash is the run's id.

The id covers everything that the run's numbers depend on. Settings that change no number (the size
of an evaluation batch, the folder of the data) are no part of it, so that finished runs stay
finished when a folder moves.
"""

from __future__ import annotations

from typing import Any

from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.config.attack_entries import AttackSpec
from unlearnbench.config.benchmark_section import BenchmarkSection
from unlearnbench.config.schema import EvaluationSettings, MethodSpec, ModelSettings
from unlearnbench.config.section import Settings
from unlearnbench.config.step_schedule import Schedule
from unlearnbench.config.training_settings import MAX_LENGTH, TrainingSettings
from unlearnbench.files.canonical_json import content_hash, json_ready
from unlearnbench.runtime.redaction import redact_tree


class RunSpec(Settings):
    """One run: everything that its numbers depend on, and where to find it."""

    data: BenchmarkSection
    data_fingerprint: str
    """Hash of the rows themselves: a file can change while its path stays the same."""
    model: ModelSettings
    forget_fraction: SplitKey
    """The fraction of the rows to forget, or the name of the split."""
    method: MethodSpec
    learning_rate: float | None
    """None for a method that trains nothing."""
    epochs: int
    evaluate_at: tuple[int, ...]
    """Epochs after which the model is evaluated."""
    seed: int
    training: TrainingSettings
    evaluation: EvaluationSettings
    attacks: tuple[AttackSpec, ...] = ()
    """Under which the run is evaluated, too."""
    template_digest: str = ""
    """Digest of the model's rendered chat template; empty for built-in templates."""

    leaves_out_label: bool = False
    """The label of the template is no part of the loss. False in specs of versions that counted its
    tokens as the first of the answer."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values that the id is the hash of, ready for JSON."""
        # The fingerprint represents the data; gradient checkpointing and the size of an evaluation
        # batch change time and memory, not numbers.
        changes_no_number: Any = {
            "data": True,
            "evaluation": {"batch_tokens", "every"},  # `evaluate_at` has its effect
            "model": {"gradient_checkpointing", "resources"},
        }
        # Rules that are not set are left out, as in runs from before they existed.
        rules = ("stop_below", "question_key", "patience", "precision")
        absent = {key for key in rules if getattr(self.evaluation, key) is None}
        if self.learning_rate is None:
            absent.add("patience")  # one evaluation cannot end early
        if absent >= {"stop_below", "patience"} or not self.evaluation.metrics:
            absent.add("metrics")  # read from the same observations, unless one of them ends a run
        changes_no_number["evaluation"] |= absent
        identity: dict[str, Any] = redact_tree(
            json_ready(self.model_dump(mode="json", exclude=changes_no_number))
        )
        if self.training.precision == "bf16" and self.evaluation.precision is None:
            # Earlier versions evaluated under training's autocast, which gives other numbers.
            identity["evaluation"]["precision"] = self.model.dtype
        if self.training.optimizer == "adamw":  # as in runs from before there was a choice
            del identity["training"]["optimizer"]
        if not self.training.deterministic:
            del identity["training"]["deterministic"]
        if not self.model.template_args:
            del identity["model"]["template_args"]
        preparation = identity["model"]["preparation"]
        if preparation["max_length"] == MAX_LENGTH:  # as in runs from before there was a choice
            del preparation["max_length"]
        if not self.attacks:  # as in runs from before there were attacks
            del identity["attacks"]
        if not self.template_digest:
            del identity["template_digest"]
        del identity["training"]["ignore_label"]  # `leaves_out_label` has its effect
        if not self.leaves_out_label:  # as in runs from before labels were left out
            del identity["leaves_out_label"]
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        return content_hash(self.identity)

    def schedule(self, rows: int) -> Schedule:
        """The steps of the run on `rows` forget rows. Raises: TrainingError for no steps."""
        how = self.training
        return Schedule(how.schedule, rows, how.batch_size, self.epochs, how.warmup_steps)

    @property
    def title(self) -> str:
        """Name for people: `ce-u · tiny · forget 0.1 · lr 2e-05 · 5 epochs · seed 0`."""
        epochs = f"{self.epochs} epoch{'s' if self.epochs != 1 else ''}"
        rate = self.learning_rate
        return " · ".join(
            (
                self.method.label,
                self.model.name,
                split_label(self.forget_fraction),
                *(() if rate is None else (f"lr {rate:g}", epochs)),
                f"seed {self.seed}",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for JSON: infinite floats become text, secrets are removed."""
        fields: dict[str, Any] = redact_tree(json_ready(self.model_dump(mode="json")))
        return fields
