"""Settings of one model: its sources, its architecture, its preparation and its precision.

A *base* is a model that has not learned the rows of the benchmark. *Preparation* trains it into the
start model, which has learned all rows, and into a retain model for each split. Each field declares
its part in ids (`api/identity.py`), and the rules that only these fields need stand first.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from unlearnbench.api.identity import ALWAYS, IF_SET, LEFT_OUT, NEVER, RUNS, Id, Place, Rule
from unlearnbench.base.messages import fault
from unlearnbench.config.precision import Attention, Dtype, Precision, Template
from unlearnbench.config.resources import Resources
from unlearnbench.config.section import LARGEST_SIZE, MOST_EPOCHS, Settings
from unlearnbench.config.step_schedule import ScheduleName
from unlearnbench.config.stored_values import with_tuples
from unlearnbench.config.training_settings import IF_WEIGHTS_DECAY, MAX_LENGTH

LABELLED = frozenset({"phi"})
"""Templates that put a scored label in front of the answer."""
MOST_LAYERS = 10_000
"""Largest number of decoder layers."""

AFTER_BASE: Final = ALWAYS.of(*RUNS, Id.PREPARED)
"""For fields that the tiny base model does not depend on."""
OF_WEIGHTS: Final = ALWAYS.of(*RUNS, Id.PREPARED)
"""For fields that change weights. Ids of evaluations have the hash of the weights instead."""


def _by_content(place: Place) -> Any:
    """Return the hash of a folder or log, or its path if the hash is not known.

    The field has one path (`base`), or paths by split (`retain`).
    """
    # Hashes by the setting that names the folder: `base`, or `retain.retain90`.
    hashes: Mapping[str, str] = {}
    if place.kind is not Id.STATED:
        hashes = place.read("content") or {}
    if isinstance(place.value, Mapping):
        paths: Mapping[str, str] = place.value
        return {split: hashes.get(f"{place.name}.{split}", path) for split, path in paths.items()}
    return hashes.get(place.name, place.value)


BY_CONTENT: Final = Rule("by its content", _by_content, reads=("content",))
"""The hash of a folder or log stands in place of its path, if the hash is known."""


def _if_not_digested(place: Place) -> Any:
    """Return a template that is in the id by its name, or leave it out."""
    # Chat templates and llama-2 are in the id by the digest of the rendered text. A plain text has
    # no digest, and needs none.
    return place.value if place.value in LABELLED else LEFT_OUT


IF_NOT_DIGESTED: Final = Rule("only if no digest represents the template", _if_not_digested)
"""For the template in ids of evaluations."""


class Architecture(Settings):
    """A small Llama, built and trained here (`base: tiny`)."""

    vocabulary: Annotated[int, ALWAYS] = Field(
        default=2048, ge=300, le=LARGEST_SIZE, description="byte-level BPE tokens"
    )
    hidden_size: Annotated[int, ALWAYS] = Field(
        default=128, ge=16, le=LARGEST_SIZE, description="width, a multiple of twice `heads`"
    )
    layers: Annotated[int, ALWAYS] = Field(
        default=6, ge=1, le=MOST_LAYERS, description="decoder layers"
    )
    heads: Annotated[int, ALWAYS] = Field(
        default=4, ge=1, le=LARGEST_SIZE, description="attention heads of a layer"
    )
    intermediate_size: Annotated[int, ALWAYS] = Field(
        default=384, ge=16, le=LARGEST_SIZE, description="width of the feed-forward layers"
    )
    context: Annotated[int, ALWAYS] = Field(
        default=512, ge=32, le=LARGEST_SIZE, description="longest sequence in tokens"
    )


class Preparation(Settings):
    """Training of the start model and the retain models from a base model."""

    epochs: Annotated[int, AFTER_BASE] = Field(
        default=5,
        ge=1,
        le=MOST_EPOCHS,
        description="number of passes over the rows of the benchmark",
    )
    base_epochs: Annotated[int, ALWAYS] = Field(
        default=12,
        ge=1,
        le=MOST_EPOCHS,
        description="with `base: tiny`, number of passes over facts and other authors in the "
        "pretraining",
    )
    optimizer: Annotated[Literal["adamw", "muon"], ALWAYS] = Field(
        default="adamw", description="optimiser; muon uses orthogonalised momentum for matrices"
    )
    learning_rate: Annotated[float, ALWAYS] = Field(
        default=1e-5, gt=0, description="highest rate of the schedule"
    )
    embedding_learning_rate: Annotated[float, ALWAYS] = Field(
        default=2e-3, gt=0, description="with muon, AdamW's learning rate for embeddings and norms"
    )
    schedule: Annotated[ScheduleName, ALWAYS] = Field(
        default="linear", description="schedule of the learning rate after its warm-up"
    )
    warmup: Annotated[float, ALWAYS] = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="fraction of steps used for warm-up (ignored for `schedule: tofu`)",
    )
    batch_size: Annotated[int, ALWAYS] = Field(
        default=32, ge=1, description="number of rows in an optimiser step"
    )
    micro_batch_size: Annotated[int | None, ALWAYS] = Field(
        default=None,
        ge=1,
        description="number of rows in a forward pass; default: all rows of a step",
    )
    weight_decay: Annotated[float, ALWAYS] = Field(
        default=0.01, ge=0, description="decoupled weight decay, as in AdamW"
    )
    decay_norms_and_biases: Annotated[bool, IF_WEIGHTS_DECAY] = Field(
        default=True,
        description="false: weight decay leaves out normalisation weights and biases, as in "
        "`training`",
    )
    max_grad_norm: Annotated[float, ALWAYS] = Field(
        default=1.0, gt=0, description="norm to which the gradient of a step is clipped"
    )
    max_length: Annotated[int, IF_SET] = Field(
        default=MAX_LENGTH,
        ge=8,
        description="maximal number of tokens of a training sequence; longer sequences are cut",
    )
    precision: Annotated[Precision, IF_SET] = Field(
        default="fp32", description="precision of the training, as in `training`"
    )
    rehearse_facts: Annotated[bool, AFTER_BASE] = Field(
        default=False,
        description="mix the true facts into fine-tuning, so that a tiny model remembers them",
    )
    seed: Annotated[int, ALWAYS] = Field(
        default=0, ge=0, description="seed of the weights and of the order of rows"
    )


TINY_PREPARATION = Preparation(
    optimizer="muon",
    learning_rate=3e-3,
    schedule="cosine",
    epochs=10,
    base_epochs=8,
    weight_decay=0.0,
    rehearse_facts=True,
)
"""Defaults of `base: tiny`. With the defaults of published models random weights learn nothing."""


class LoRA(Settings):
    """Low-rank adapters (peft) in place of training all weights."""

    rank: Annotated[int, ALWAYS] = Field(default=8, ge=1, description="rank of each update")
    alpha: Annotated[int, ALWAYS] = Field(
        default=16, ge=1, description="an update is scaled by alpha / rank"
    )
    dropout: Annotated[float, ALWAYS] = Field(
        default=0.0, ge=0, lt=1, description="dropout of an adapter's input"
    )
    target_modules: Annotated[tuple[str, ...] | Literal["all-linear"], ALWAYS] = Field(
        default="all-linear", description="ends of the names of the layers that are adapted"
    )
    target_parameters: Annotated[tuple[str, ...], IF_SET] = Field(
        default=(),
        description="ends of the names of parameters that are also adapted although they are not "
        "linear layers, such as the experts in mlp.experts.down_proj",
    )


class ModelSettings(Settings):
    """Settings of one model: its sources, architecture, preparation and precision."""

    name: Annotated[str, ALWAYS.of(*RUNS)] = Field(
        min_length=1, description="name in tables and plots"
    )
    base: Annotated[str | None, BY_CONTENT.of(*RUNS, Id.PREPARED)] = Field(
        default=None,
        min_length=1,
        description="model that has not learned the rows: `tiny`, a folder, or a hub id, also as "
        "id@revision; if you do not give start and retain models, they are trained "
        "from this model",
    )
    fine_tuned: Annotated[str | None, BY_CONTENT.of(*RUNS)] = Field(
        default=None,
        min_length=1,
        description="start model, which has learned all rows: a folder or a hub id, also as "
        "id@revision",
    )
    retain: Annotated[dict[str, str], BY_CONTENT.of(*RUNS)] = Field(
        default_factory=dict,
        description="retain model of each split (`retain90: …`): a folder, a hub id, or the "
        "model's evaluation log",
    )
    revision: Annotated[str | None, OF_WEIGHTS] = Field(
        default=None, description="commit or tag of `base`; it does not apply to other models"
    )
    adapter_base: Annotated[str | None, NEVER] = Field(
        default=None,
        description="base model of the LoRA adapters, if `base`, `fine_tuned` or `retain` are "
        "folders of adapters: a folder or a hub id, also as id@revision; default: "
        "the model that adapter_config.json names",
    )
    architecture: Annotated[Architecture, OF_WEIGHTS] = Field(
        default=Architecture(),
        description="size of the model for `base: tiny`; other models have their own architecture",
    )
    preparation: Annotated[Preparation, OF_WEIGHTS] = Field(
        default=Preparation(),
        description="training of the start and retain models that you do not give",
    )
    template: Annotated[Template, OF_WEIGHTS, IF_NOT_DIGESTED.of(Id.EVALUATION)] = Field(
        default="auto",
        description="how a question and its answer become text; auto: the model's chat template, "
        "or plain if it has none",
    )
    template_args: Annotated[dict[str, str | int | bool], IF_SET.of(*RUNS, Id.PREPARED)] = Field(
        default_factory=dict,
        description="variables of the chat template, such as `date_string`, and `system_prompt`",
    )
    eos_as_padding: Annotated[bool, IF_SET.of(*RUNS, Id.PREPARED, Id.ATTACK)] = Field(
        default=False,
        description="train as open-unlearning does: if EOS serves as padding, it is also masked "
        "inside texts, and another EOS is learned after the last line break of a "
        "chat template",
    )
    dtype: Annotated[Dtype, OF_WEIGHTS, IF_SET.of(Id.EVALUATION)] = Field(
        default="float32",
        description="data type of the weights; use float16 only for evaluations, and for frozen "
        "weights under adapters (`lora`)",
    )
    attention: Annotated[Attention, OF_WEIGHTS] = Field(
        default="sdpa",
        description="implementation of attention, by its name in transformers; with sdpa, models "
        "without SDPA use eager; flash_attention_2 pads rows, which is slower than "
        "packing them",
    )
    trust_remote_code: Annotated[bool, OF_WEIGHTS] = Field(
        default=False, description="whether Python code that comes with the model may run"
    )
    gradient_checkpointing: Annotated[bool, NEVER] = Field(
        default=False,
        description="compute activations again instead of storing them, which saves memory",
    )
    lora: Annotated[LoRA | None, OF_WEIGHTS] = Field(
        default=None, description="train low-rank adapters instead of all weights"
    )
    resources: Annotated[Resources | None, NEVER] = Field(
        default=None, description="resources of a run of this model, instead of those of the sweep"
    )

    @property
    def origin(self) -> str:
        """The model that tokenizer, chat template and architecture are read from.

        It is the base, because not every fine-tuned checkpoint has a tokenizer. Without a base it
        is the start model.
        """
        origin = self.fine_tuned if self.base is None else self.base
        assert origin is not None, "a validator asks for one of the two"
        return origin

    @property
    def has_retain(self) -> bool:
        """Whether there is a retain model: one that is given, or trained from the base."""
        return self.base is not None or bool(self.retain)

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        """Check that a model is named, and that `revision` has a model that it applies to."""
        if self.base is not None:
            return self
        if self.fine_tuned is None:
            raise fault(
                "missing: name a model; `base` has not learned the rows (start and retain "
                "models are trained from it), and `fine_tuned` has learned them",
                "base",
            )
        if self.revision is not None:
            raise fault(
                "belongs to `base`, which is missing; write the revision of fine_tuned as "
                "id@revision",
                "revision",
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _tiny_defaults(cls, values: Any, info: ValidationInfo) -> Any:
        """Give a tiny model the values of `TINY_PREPARATION` that the configuration leaves out."""
        if info.mode == "json":
            # From here on, fields are validated as values of Python, and a list is no tuple there.
            values = with_tuples(values)
        if not isinstance(values, Mapping) or values.get("base") != "tiny":
            return values
        stated = values.get("preparation", {})
        if isinstance(stated, Preparation):
            stated = stated.model_dump(exclude_unset=True)
        if not isinstance(stated, Mapping):
            return values  # the field `preparation` reports what is wrong
        return {**values, "preparation": TINY_PREPARATION.model_dump() | {**stated}}
