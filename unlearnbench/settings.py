"""Every setting of a benchmark as a frozen value; the only place where a default lives.

`config.py` fills these from YAML and reports what does not fit; `plan.py` makes runs of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from unlearnbench.execution import RaySettings, Resources, TrackingSettings
from unlearnbench.frozen import Name, Settings
from unlearnbench.outputs import SCHEMES
from unlearnbench.patience import Patience
from unlearnbench.recipe import TrainingSettings
from unlearnbench.redaction import redact
from unlearnbench.schedule import ScheduleName
from unlearnbench.searching import Range, SearchSettings, SelectSettings

RetainTermName = Literal["nll", "kl"]
Precision = Literal["bf16", "fp32"]
"""Of matrix products."""
LABELLED = frozenset({"phi"})
"""Templates that begin the answer with a label of their own, which is scored."""
MOST_EPOCHS = 10_000
"""Of a run, or of a preparation."""
MANY = 1_000_000
"""Bound on sizes that memory or time grow with, far above any in use."""


class DataSettings(Settings):
    """Which questions."""

    source: Literal["synthetic", "tofu"] = Field(
        default="synthetic", description="where the rows come from"
    )
    path: Name | None = Field(
        default=None,
        description="tofu: folder of its JSON-lines files, whose forget and retain rows may have a "
        "`score`; without it the hub is asked",
    )
    hub_id: Name = Field(default="locuslab/TOFU", description="tofu: dataset id on the hub")
    revision: Name | None = Field(default=None, description="tofu: commit or tag on the hub")
    authors: int = Field(
        default=40, ge=2, le=MANY, description="synthetic: fictitious authors in the full set"
    )
    questions_per_author: int = Field(
        default=20, ge=1, le=20, description="synthetic: rows per author"
    )
    pretraining_authors: int = Field(
        default=20,
        ge=0,
        le=MANY,
        description="authors in neither set that a tiny base model reads beforehand",
    )
    seed: int = Field(default=0, ge=0, description="synthetic: seed of the generator")
    refusals: Name | None = Field(
        default=None, description="text file of refusals, one a line, in place of the built-in list"
    )


class Architecture(Settings):
    """A small Llama, built and trained here (`base: tiny`)."""

    vocabulary: int = Field(default=2048, ge=300, le=MANY, description="byte-level BPE tokens")
    hidden_size: int = Field(default=128, ge=16, le=MANY)
    layers: int = Field(default=6, ge=1, le=MOST_EPOCHS)
    heads: int = Field(default=4, ge=1, le=MANY)
    intermediate_size: int = Field(default=384, ge=16, le=MANY)
    context: int = Field(default=512, ge=32, le=MANY, description="longest sequence in tokens")

    @model_validator(mode="after")
    def _even_heads(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size must be a multiple of twice heads (rotary pairs), "
                f"got {self.hidden_size} and {self.heads} heads"
            )
        return self


class Preparation(Settings):
    """How a base model becomes the fine-tuned model and the retain models."""

    epochs: int = Field(default=5, ge=1, le=MOST_EPOCHS)
    base_epochs: int = Field(
        default=12, ge=1, le=MOST_EPOCHS, description="tiny: passes over facts and other authors"
    )
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(default=1e-5, gt=0)
    embedding_learning_rate: float = Field(
        default=2e-3, gt=0, description="muon: AdamW's rate for embeddings and norms"
    )
    schedule: ScheduleName = "linear"
    warmup: float = Field(
        default=0.05, ge=0, lt=1, description="share of the steps; not of tofu, which has its own"
    )
    batch_size: int = Field(default=32, ge=1)
    micro_batch_size: int | None = Field(default=None, ge=1)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    rehearse_facts: bool = Field(
        default=False,
        description="mix the true facts into fine-tuning, so that a tiny model keeps them",
    )
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _has_one_warmup(self) -> Self:
        if self.schedule == "tofu" and self.warmup != type(self).model_fields["warmup"].default:
            raise ValueError(
                f"schedule tofu warms up over the first epoch, so warmup must be left out, "
                f"got {self.warmup:g}"
            )
        return self


TINY_PREPARATION = Preparation(
    optimizer="muon",
    learning_rate=3e-3,
    schedule="cosine",
    epochs=10,
    base_epochs=8,
    weight_decay=0.0,
    rehearse_facts=True,
)
"""Defaults of `base: tiny`: at those of published models random weights learn nothing."""


class LoRA(Settings):
    """Low-rank adapters (peft) in place of training every weight."""

    rank: int = Field(default=8, ge=1)
    alpha: int = Field(default=16, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class ModelSettings(Settings):
    """One model: where it comes from and how it is held."""

    name: Name = Field(min_length=1, description="what tables and plots call it")
    base: Name = Field(
        min_length=1, description="`tiny`, a folder, or a hub id, also as id@revision"
    )
    fine_tuned: Name | None = Field(
        default=None,
        description="published model that has learned the full set: folder, hub id, id@revision",
    )
    retain: dict[str, Name] = Field(
        default_factory=dict,
        description="by split (`retain90: …`): published retain model as above, or its log",
    )
    revision: Name | None = Field(default=None, description="of `base` alone: commit or tag")
    architecture: Architecture = Architecture()
    preparation: Preparation = Preparation()
    template: Literal["auto", "plain", "llama-2", "phi", "chat"] = Field(
        default="auto",
        description="how question and answer become text; auto: chat template or plain",
    )
    template_args: dict[str, str | int | bool] = Field(
        default_factory=dict,
        description="chat template: its variables (`date_string`), and `system_prompt`",
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    trust_remote_code: bool = False
    gradient_checkpointing: bool = False
    lora: LoRA | None = None
    resources: Resources | None = Field(
        default=None, description="of a run of this model, in place of the sweep's"
    )

    @model_validator(mode="before")
    @classmethod
    def _tiny_defaults(cls, values: Any) -> Any:
        """Fill in what a tiny model's preparation leaves open, from `TINY_PREPARATION`."""
        if not isinstance(values, Mapping) or values.get("base") != "tiny":
            return values
        stated = values.get("preparation", {})
        if isinstance(stated, Preparation):
            stated = stated.model_dump(exclude_unset=True)
        if not isinstance(stated, Mapping):  # wrong, which its own field reports
            return values
        return {**values, "preparation": TINY_PREPARATION.model_dump() | {**stated}}


class EvaluationSettings(Settings):
    """How a model is judged."""

    profile: str = Field(default="tofu", description="named set of evaluation rules")
    max_length: int | None = Field(
        default=None, ge=8, description="prompt and answer in tokens, in place of the profile's"
    )
    rows: int | None = Field(
        default=None, ge=1, description="first rows of each set, in place of the profile's"
    )
    question_key: Literal["question", "paraphrased_question"] | None = Field(
        default=None,
        description="column that is asked of forget and retain sets, in place of the profile's",
    )
    batch_tokens: int | None = Field(
        default=None,
        ge=64,
        description="tokens of one batch, by default what is fast on the device; changes no number",
    )
    precision: Precision | None = Field(
        default=None,
        description="of evaluations, the fine-tuned and retain models' too; bf16: autocast, where "
        "weights are float32; default: bf16 on GPUs, the weights' own on CPUs",
    )
    stop_below: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="end a run whose Model Utility is below this share of the fine-tuned model's",
    )
    patience: Patience | None = Field(
        default=None,
        description="end a run whose metric has not improved for so many evaluated epochs: "
        "{metric: …, epochs: …}",
    )


class RetainSpec(Settings):
    """A retain term added to a method's own loss: `retain: {term: kl, weight: 1.0}`."""

    term: RetainTermName
    weight: float = Field(default=1.0, gt=0)


HyperParameter = bool | int | float | str
OWN_KEYS = ("method", "retain", "learning_rates", "training")
"""Keys of a method's entry in a configuration that are no hyper-parameters."""


class MethodSpec(Settings):
    """One method with every hyper-parameter resolved; part of a run's identity."""

    model_config = ConfigDict(allow_inf_nan=True)

    name: str
    hyperparameters: dict[str, HyperParameter] = Field(default_factory=dict)
    retain: RetainSpec | None = None
    source: str | None = None
    """Content hash of the plugin file the method comes from; None for an installed method."""

    @property
    def label(self) -> str:
        """What tables and plots call it: the name, the retain term, what is not a default."""
        # plan.py leaves in `hyperparameters` every value; registry knows the defaults, so the
        # label names only the retain term, and rows that differ otherwise differ in their columns.
        return self.name if self.retain is None else f"{self.name}+{self.retain.term}"


def _kind_of_rates(value: Any) -> str:
    return "range" if isinstance(value, dict | Range) else "list"


Rates = Annotated[
    Annotated[tuple[float, ...], Tag("list")] | Annotated[Range, Tag("range")],
    Discriminator(_kind_of_rates),
]
"""A list, or what a search draws from; told apart first, so that errors are about one of them."""


class MethodGrid(Settings):
    """A method entry of a sweep: lists of hyper-parameters and rates span a grid."""

    specs: tuple[MethodSpec, ...]
    learning_rates: Rates | None = None
    """Rates of this method alone, in place of the sweep's."""
    training: TrainingSettings | None = None
    """Of this method alone: the sweep's with what the entry changes."""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Hyper-parameters, or `retain.weight`, that a search draws; `specs` hold their low ends."""


class SweepConfig(Settings):
    """A whole benchmark, as one YAML file states it."""

    name: Name = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder in `output`")
    description: str = ""
    data: DataSettings = DataSettings()
    models: tuple[ModelSettings, ...] = Field(min_length=1)
    forget_fractions: tuple[float, ...] = Field(min_length=1)
    methods: tuple[MethodGrid, ...] = Field(min_length=1)
    learning_rates: Rates = (1e-5,)
    epochs: int = Field(default=5, ge=1, le=MOST_EPOCHS)
    epochs_as: Literal["checkpoints", "runs"] = Field(
        default="checkpoints",
        description="checkpoints: one run, evaluated after each epoch; runs: one run per count",
    )
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    search: SearchSettings = SearchSettings()
    select: SelectSettings | None = None
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    resources: Resources = Resources()
    ray: RaySettings = RaySettings()
    tracking: TrackingSettings = TrackingSettings()
    output: Name = Field(
        default="runs", description="folder of all sweeps; this one's is output/name"
    )
    cache: Name | None = Field(default=None, description="prepared models; default: output/cache")
    storage: Name | None = Field(
        default=None,
        description="path, s3:// or gs:// that machines share results and checkpoints through, "
        "where they do not all see `output`",
    )

    @field_validator("storage")
    @classmethod
    def _reachable(cls, storage: str | None) -> str | None:
        scheme, mark, _ = (storage or "").partition("://")
        if mark and scheme not in SCHEMES:
            raise ValueError(f"expected a path, s3:// or gs://, got {redact(str(storage))!r}")
        return storage

    @property
    def cache_folder(self) -> Path:
        """Where prepared models go."""
        return Path(self.cache) if self.cache else Path(self.output) / "cache"

    def resources_of(self, model: str) -> Resources:
        """What a run of the model called `model` takes."""
        own = next(m.resources for m in self.models if m.name == model)
        return self.resources if own is None else own

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods of all entries, none twice."""
        return tuple(dict.fromkeys(grid.specs[0].name for grid in self.methods if grid.specs))

    def training_of(self, method: str) -> TrainingSettings:
        """How a method trains; all its entries have the same, which the configuration's rules say.

        Tables tell a method's settings apart by hyper-parameters and rate alone.
        """
        own = (g.training for g in self.methods if g.specs and g.specs[0].name == method)
        return next((one for one in own if one is not None), self.training)
