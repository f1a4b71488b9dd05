"""The specification of a run, whose hash is the run's id.

The id covers everything that the run's numbers depend on. Settings that change no number (the size
of an evaluation batch) are no part of it, and local files and folders are represented by their
content, so that finished runs stay finished when a folder moves, and only then.
"""

from typing import Annotated, Any

from pydantic import Field

from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.base.canonical_json import content_hash, json_ready
from unlearnbench.base.redaction import redact_tree
from unlearnbench.config.entries import AttackSpec, BenchmarkSection
from unlearnbench.config.schema import EvaluationSettings, MethodSpec, ModelSettings
from unlearnbench.config.section import IF_SET, NEVER, Settings
from unlearnbench.config.step_schedule import Schedule
from unlearnbench.config.training_settings import TrainingSettings


class RunSpec(Settings):
    """One run: everything that its numbers depend on, and where to find it."""

    data: Annotated[BenchmarkSection, NEVER]  # `data_fingerprint` represents it
    data_fingerprint: str
    """Hash of the rows themselves: a file can change while its path stays the same."""
    model: ModelSettings
    content: dict[str, str] = Field(default_factory=dict)
    """Hashes of the folders and logs that `model` names, by its setting (`retain.retain90`); empty
    in specs of versions that had their paths in the id."""
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
    attacks: Annotated[tuple[AttackSpec, ...], IF_SET] = ()
    """Under which the run is evaluated, too."""
    template_digest: Annotated[str, IF_SET] = ""
    """See `loading.template_digest`: of a chat template or llama-2; empty for others."""

    leaves_out_label: Annotated[bool, IF_SET] = False
    """The label of the template is no part of the loss. False in specs of versions that counted its
    tokens as the first of the answer."""
    profile_version: Annotated[int, IF_SET] = 1
    """Version of the evaluation's profile."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values that the id is the hash of, ready for JSON."""
        fields = self.identity_fields()
        evaluation = fields["evaluation"]
        if self.learning_rate is None:
            evaluation.pop("patience", None)  # one evaluation cannot end early
        if not evaluation.keys() & {"stop_below", "patience"}:
            evaluation.pop(
                "metrics", None
            )  # read from the same observations, unless one ends a run
        if self.training.precision == "bf16" and self.evaluation.precision is None:
            # Earlier versions evaluated under training's autocast, which gives other numbers.
            evaluation["precision"] = self.model.dtype
        identity: dict[str, Any] = redact_tree(json_ready(fields))
        for setting, content in identity.pop("content").items():
            key, _, split = setting.partition(".")
            (identity["model"][key] if split else identity["model"])[split or key] = content
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        return content_hash(self.identity)

    def schedule(self, rows: int) -> Schedule:
        """The steps of the run on `rows` forget rows. Raises: TrainingError for no steps."""
        options = self.training
        return Schedule(
            options.schedule, rows, options.batch_size, self.epochs, options.warmup_steps
        )

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
