"""All settings of a sweep as frozen values. Only this module defines defaults.

The file goes from small to large: the rules by which fields count in ids (`api/identity.py`), then
models, evaluation, methods, and the whole sweep (`SweepConfig`). A sweep is also read from stored
JSON, so these classes check each key only by itself. `written.py` adds the keys and rules of YAML.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticKnownError

from unlearnbench.api.benchmark import Headline, Reference, SplitKey, references_with
from unlearnbench.api.identity import ALWAYS, IF_SET, LEFT_OUT, NEVER, RUNS, Id, Place, Rule
from unlearnbench.api.profile import QuestionKey
from unlearnbench.api.registry import load, load_method
from unlearnbench.base.errors import ConfigError, PluginError, Problem
from unlearnbench.base.messages import fault
from unlearnbench.base.outputs import SCHEMES
from unlearnbench.config.entries import (
    DEFAULT,
    INFINITE,
    AttackEntries,
    BenchmarkSection,
    MetricEntries,
    benchmark_named,
    restored,
    with_tuples,
)
from unlearnbench.config.precision import Attention, Dtype, Precision, Template
from unlearnbench.config.profile_names import ProfileName
from unlearnbench.config.resources import RaySettings, Resources, TrackingSettings
from unlearnbench.config.search import Range, SearchSettings, SelectSettings
from unlearnbench.config.section import Settings
from unlearnbench.config.step_schedule import ScheduleName
from unlearnbench.config.training_settings import (
    IF_WEIGHTS_DECAY,
    MAX_LENGTH,
    TrainingSettings,
)
from unlearnbench.config.unit import Unit

RetainTermName = Literal["nll", "kl"]
LABELLED = frozenset({"phi"})
"""Templates that put a scored label in front of the answer."""
MOST_EPOCHS = 10_000
"""Largest number of epochs of a run or of a preparation."""
NO_BUDGET = "is null, and there are no steps: state epochs or steps"
MANY = 1_000_000
"""Upper limit of sizes that memory or time depend on, far above any in use."""


AFTER_BASE: Final = ALWAYS.of(*RUNS, Id.PREPARED)
"""For fields that the tiny base model does not depend on."""
OF_WEIGHTS: Final = ALWAYS.of(*RUNS, Id.PREPARED)
"""For fields that change weights. Ids of evaluations have the hash of the weights instead."""
OF_PROFILE: Final = ALWAYS.of(*RUNS)
"""For fields that change the profile. Ids of evaluations have the hash of the profile instead."""


def _by_content(place: Place) -> Any:
    """Return the hash of a folder or log, or its path if the hash is not known."""
    # `content` has hashes by the setting that names a folder: `base`, or `retain.retain90`.
    contents: Mapping[str, str] = {}
    if place.kind is not Id.STATED:
        contents = place.read("content") or {}
    if not isinstance(place.value, Mapping):
        return contents.get(place.name, place.value)
    return {
        key: contents.get(f"{place.name}.{key}", location) for key, location in place.value.items()
    }


BY_CONTENT: Final = Rule("by its content", _by_content, reads=("content",))
"""The hash of a folder or log stands in place of its path, if the hash is known."""


def _if_not_digested(place: Place) -> Any:
    # The digest of the rendered text stands for chat templates and llama-2. A plain text has no
    # digest, and needs none.
    return place.value if place.value in LABELLED else LEFT_OUT


IF_NOT_DIGESTED: Final = Rule("only if no digest represents the template", _if_not_digested)
"""For the template in ids of evaluations."""


def _if_trained(place: Place) -> Any:
    is_trained = place.read("learning_rate") is not None
    return place.value if is_trained and place.value != place.default else LEFT_OUT


IF_TRAINED: Final = Rule("only if set, and the run trains", _if_trained, reads=("learning_rate",))
"""A method that trains nothing has one evaluation, after which nothing can end early."""


def _if_a_run_may_end_early(place: Place) -> Any:
    is_trained = place.read("learning_rate") is not None
    has_patience = place.section.get("patience") is not None and is_trained
    may_end = has_patience or place.section.get("stop_below") is not None
    return place.value if may_end and place.value != place.default else LEFT_OUT


IF_A_RUN_MAY_END_EARLY: Final = Rule(
    "only if set, and a run may end early", _if_a_run_may_end_early, reads=("learning_rate",)
)
"""Metrics are read from the same observations, whichever are asked for. They change a run only if
one of them can end the run."""


def _in_effect(place: Place) -> Any:
    """Return the precision of evaluations that a run has, also if the configuration states none."""
    if place.value is not None:
        return place.value
    # Earlier versions evaluated under training's autocast, which gives other numbers.
    return place.read("model.dtype") if place.read("training.precision") == "bf16" else LEFT_OUT


IN_EFFECT: Final = Rule(
    "if set; the weights' own if the run trains in bf16", _in_effect, reads=("model", "training")
)
"""For the precision of evaluations."""


def _is_none(value: object) -> bool:
    """Whether a field is left out of files, so that files of sweeps without it stay the same."""
    return value is None


def _is_true(value: object) -> bool:
    """Whether a field with default true is left out of files, see `_is_none`."""
    return value is True


class Architecture(Settings):
    """A small Llama, built and trained here (`base: tiny`)."""

    vocabulary: Annotated[int, ALWAYS] = Field(
        default=2048, ge=300, le=MANY, description="byte-level BPE tokens"
    )
    hidden_size: Annotated[int, ALWAYS] = Field(
        default=128, ge=16, le=MANY, description="width, a multiple of twice `heads`"
    )
    layers: Annotated[int, ALWAYS] = Field(
        default=6, ge=1, le=MOST_EPOCHS, description="decoder layers"
    )
    heads: Annotated[int, ALWAYS] = Field(
        default=4, ge=1, le=MANY, description="attention heads of a layer"
    )
    intermediate_size: Annotated[int, ALWAYS] = Field(
        default=384, ge=16, le=MANY, description="width of the feed-forward layers"
    )
    context: Annotated[int, ALWAYS] = Field(
        default=512, ge=32, le=MANY, description="longest sequence in tokens"
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
        """Complete a tiny model's preparation from `TINY_PREPARATION`."""
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


class Patience(Settings):
    """Early stopping of a run whose metric has not improved for some evaluated epochs, or steps.

    For example, write `{metric: log10_forget_quality, epochs: 2}`, or in a sweep by steps
    `{metric: …, steps: 50}`. The rule looks only at the run itself, and it is part of the run's
    identity. A scheduler, in contrast, compares a run with other runs (status `stopped`).

    Runs with the same rule may end after different numbers of epochs. If you need equal budgets,
    leave the rule out and choose epochs afterwards. A setting has no mean at an epoch that one of
    its seeds did not reach.
    """

    metric: Annotated[str, ALWAYS] = Field(description="a column of results.csv")
    steps: Annotated[int | None, IF_SET] = Field(
        default=None,
        ge=1,
        le=MANY,
        exclude_if=_is_none,
        description="in a sweep by steps, number of steps without improvement after which a run "
        "ends, instead of `epochs`",
    )
    epochs: Annotated[int | None, ALWAYS] = Field(
        default=None,
        ge=1,
        validate_default=True,
        description="number of evaluated epochs without improvement after which a run ends",
    )
    min_delta: Annotated[float, ALWAYS] = Field(
        default=0.0, ge=0, description="smallest improvement that counts"
    )
    mode: Annotated[Literal["max", "min"] | None, ALWAYS] = Field(
        default=None,
        description="whether a larger or a smaller value is better; default: the metric's own "
        "direction, otherwise max",
    )

    @field_validator("epochs")
    @classmethod
    def _one_of_two(cls, epochs: int | None, info: ValidationInfo) -> int | None:
        # If the stated `steps` are wrong, they are missing in the data, and their field reports it.
        if epochs is None and info.data.get("steps", 1) is None:
            raise PydanticKnownError("missing")
        return epochs

    def ended(
        self,
        evaluated: Iterable[tuple[int, Mapping[str, float | None]]],
        better: Literal["higher", "lower"] | None,
    ) -> str | None:
        """Return the reason to end a run after these evaluations; None to continue.

        An evaluation without a value counts as one without improvement.

        Args:
            evaluated: Moment (epoch or step) and metrics of each evaluation.
            better: Direction of the metric's column, if it has one.
        """
        is_minimised = self.mode == "min" or (self.mode is None and better == "lower")
        sign = -1.0 if is_minimised else 1.0
        best = -math.inf
        best_moment = 0
        last_moment = 0
        without_improvement = 0
        for moment, metrics in evaluated:
            last_moment = moment
            value = metrics.get(self.metric)
            score = math.nan if value is None else sign * value
            is_first_value = math.isinf(best)
            if score > best and (is_first_value or score - best > self.min_delta):
                best = score
                best_moment = moment
                without_improvement = 0
            else:
                without_improvement += 1

        if self.steps is None:
            unit = Unit.EPOCH
            is_over = self.epochs is not None and without_improvement >= self.epochs
        else:
            unit = Unit.STEP
            is_over = last_moment - best_moment >= self.steps
        if not is_over:
            return None
        reason = "never had a number"
        if best_moment:
            reason = f"has not improved since {unit.at(best_moment)} ({sign * best:.4g})"
        more = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"{unit.at(last_moment)}: {self.metric} {reason}{more} (evaluation.patience)"


class EvaluationSettings(Settings):
    """Rules and precision of evaluations, and early stopping."""

    profile: Annotated[ProfileName, OF_PROFILE] = Field(
        default="tofu", description="named set of evaluation rules"
    )
    max_length: Annotated[int | None, OF_PROFILE] = Field(
        default=None,
        ge=8,
        description="maximal length of prompt and answer in tokens, instead of the profile's value",
    )
    rows: Annotated[int | None, OF_PROFILE] = Field(
        default=None,
        ge=1,
        description="number of first rows of each set that are evaluated, instead of the "
        "profile's value",
    )
    question_key: Annotated[QuestionKey | None, IF_SET.of(*RUNS)] = Field(
        default=None,
        description="column of the questions in forget and retain sets, instead of the profile's "
        "column",
    )
    batch_tokens: Annotated[int | None, NEVER] = Field(
        default=None,
        ge=64,
        description="number of tokens in a batch; default: a fast size for the device; it "
        "changes no results",
    )
    precision: Annotated[Precision | None, IN_EFFECT.of(*RUNS), IF_SET.of(Id.EVALUATION)] = Field(
        default=None,
        description="precision of evaluations, including those of the start and retain models; "
        "bf16, fp16: autocast, if the weights are float32; default: bf16 on GPUs, "
        "and the type of the weights on CPUs",
    )
    every: Annotated[int | None, NEVER] = Field(
        default=1,
        ge=1,
        le=MOST_EPOCHS,
        description="number of epochs between two evaluations of a run; the last epoch is always "
        "evaluated",
    )
    every_steps: Annotated[int | None, NEVER] = Field(
        default=None,
        ge=1,
        le=MANY,
        exclude_if=_is_none,
        description="in a sweep by `steps`, number of steps between two evaluations of a run, "
        "instead of `every`; the last step is always evaluated; default: only the "
        "last step",
    )
    stop_below: Annotated[float | None, IF_SET.of(*RUNS)] = Field(
        default=None,
        gt=0,
        le=1,
        description="end a run whose Model Utility is below this share of the start model's "
        "Model Utility",
    )
    patience: Annotated[Patience | None, IF_TRAINED.of(*RUNS)] = Field(
        default=None,
        description="end a run whose metric has not improved for this number of evaluated "
        "epochs: {metric: …, epochs: …}",
    )
    metrics: Annotated[MetricEntries, IF_A_RUN_MAY_END_EARLY.of(*RUNS)] = Field(
        default={},
        description="metrics to report in addition to the usual ones, or with other settings: "
        "[fluency, …], or {mia-min-k: {share: 0.2}, …}; `unlearnbench metrics list` "
        "prints the names",
    )


class EntryEvaluation(Settings):
    """When runs of one method are evaluated, in place of the sweep's `evaluation`."""

    every: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EPOCHS,
        description="number of epochs between two evaluations of a run; the last epoch is always "
        "evaluated",
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=MANY,
        description="in a sweep by `steps`: steps between two evaluations of a run",
    )


class RetainSpec(Settings):
    """A retain term added to a method's own loss: `retain: {term: kl, weight: 1.0}`."""

    term: Annotated[RetainTermName, ALWAYS] = Field(
        description="nll: cross-entropy of the retain rows; kl: divergence from the start model "
        "on the retain rows"
    )
    weight: Annotated[float, ALWAYS] = Field(
        default=1.0, gt=0, description="factor of the retain term"
    )


HyperParameter = bool | int | float | str


class MethodSpec(Settings):
    """One method with all of its hyperparameters; part of a run's identity."""

    model_config = ConfigDict(allow_inf_nan=True)

    name: Annotated[str, ALWAYS]
    hyperparameters: Annotated[dict[str, HyperParameter], ALWAYS] = Field(default_factory=dict)
    retain: Annotated[RetainSpec | None, ALWAYS] = None
    source: Annotated[str | None, ALWAYS] = None
    """Content hash of the plug-in file; None for an installed method."""
    modifiers: Annotated[dict[str, str | None], IF_SET] = Field(
        default_factory=dict, exclude_if=lambda few: not few
    )
    """Content hashes as in `source`, by modifier, in the order in which modifiers are applied.
    Their settings are hyperparameters such as `sam.rho`. The field is left out if it is empty, as
    in runs from before there were modifiers."""

    @field_validator("hyperparameters")
    @classmethod
    def _with_infinite_floats(
        cls, values: dict[str, HyperParameter], info: ValidationInfo
    ) -> dict[str, HyperParameter]:
        """Read infinite floats, which are text in records and plans (`inf`)."""
        floats: dict[str, HyperParameter] = {}
        for key, value in values.items():
            if value not in INFINITE:
                continue
            modifier, _, setting = key.rpartition(".")
            # A record may name a plug-in that is not available here.
            with suppress(PluginError, KeyError):
                plugin = load("modifiers", modifier) if modifier else load_method(info.data["name"])
                floats[key] = restored(plugin, {setting: value})[setting]
        return values | floats

    @property
    def label(self) -> str:
        """Name in tables and plots: the method, its retain term and its modifiers."""
        # Hyperparameters are left out, because they have columns of their own.
        retain = () if self.retain is None else (self.retain.term,)
        return "+".join((self.name, *retain, *self.modifiers))


def _positive_floats(values: Range) -> Range:
    """Check that the rates of a range are positive, and make them floats."""
    if values.low <= 0:
        raise fault(f"must be above 0, got {values.low:g}", "low")
    return values.of_floats


def _form_of_rates(value: Any) -> str:
    """Return the tag of the form in which rates are stated."""
    return "<range>" if isinstance(value, dict | Range) else "<list>"


Positive = Annotated[float, Field(gt=0)]
_Fractions = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)]
Rates = Annotated[
    Annotated[tuple[Positive, ...], Field(min_length=1), Tag("<list>")]
    | Annotated[Range, AfterValidator(_positive_floats), Tag("<range>")],
    Discriminator(_form_of_rates),
]
"""Learning rates: a list, or a range that a search draws from.

The two forms are tagged. An error is then only about the form that is stated, while an untagged
union would report what is wrong by both forms."""


class MethodGrid(Settings):
    """A method entry of a sweep: the settings that its lists span, and its ranges."""

    specs: tuple[MethodSpec, ...]
    learning_rates: Rates | None = None
    """Rates of this entry. None if it has the sweep's rates."""
    training: TrainingSettings | None = None
    """The sweep's training settings with the changes of this entry. None if it changes none."""
    evaluation: EntryEvaluation | None = None
    """When the runs of this entry are evaluated. None if the sweep's `evaluation` says it."""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Ranges that a search draws from, by hyperparameter or `retain.weight`. `specs` have the low
    ends of stated ranges, and the defaults in place of ranges that `tune` adds."""
    fixed: frozenset[str] = Field(default=frozenset(), exclude=True)
    """Hyperparameters that the entry states, which `tune` leaves as they are."""


class SweepConfig(Settings):
    """A whole sweep, as one YAML file states it."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="name of the sweep, and of its folder in `output`",
    )
    description: str = Field(default="", description="one sentence, shown on the page")
    data: BenchmarkSection = Field(
        default_factory=lambda: benchmark_named(DEFAULT),
        description="the benchmark (`source`) and its settings",
    )
    models: tuple[ModelSettings, ...] = Field(
        min_length=1, description="models that forget; each method is run on each model"
    )
    # Null leaves out what another file has: a benchmark takes one of the two.
    forget_fractions: _Fractions | None = Field(
        default=None,
        validate_default=True,
        description="splits to run, for a benchmark that names its splits by fraction",
    )
    splits: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="splits to run, for a benchmark that gives its splits names; default: all of "
        "them",
    )
    methods: tuple[MethodGrid, ...] = Field(
        min_length=1,
        description="names of methods, or entries such as {method: npo, beta: [0.1, 0.5], "
        "retain: {term: nll}}; lists span a grid; `unlearnbench methods list` prints "
        "the names",
    )
    learning_rates: Rates | None = Field(
        default=None,
        description="learning rates of all methods that have none of their own: a list, or the "
        "range of a search; default: the method's own rate (`methods show`)",
    )
    # Null leaves out what another file has: a sweep takes one of the two.
    epochs: int | None = Field(
        default=5,
        ge=1,
        le=MOST_EPOCHS,
        description="number of passes over the forget rows in each run",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=MANY,
        exclude_if=_is_none,
        description="number of optimiser steps of each run, instead of `epochs`; a run is then "
        "evaluated after every `evaluation.every_steps` steps",
    )
    epochs_as: Literal["checkpoints", "runs"] = Field(
        default="checkpoints",
        description="checkpoints: one run is evaluated after each epoch; runs: each number of "
        "epochs, or of steps, is a run of its own",
    )
    requests: Literal["apart", "in-sequence"] = Field(
        default="apart",
        description="apart: each split begins with the start model; in-sequence: each split "
        "begins with the model that the same run left after the split before",
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0,), min_length=1, description="seeds; each setting is run once with each seed"
    )
    search: SearchSettings = Field(
        default=SearchSettings(),
        description="how settings are found: grid, random, quasi-random or optuna",
    )
    select: SelectSettings | None = Field(
        default=None,
        description="choose each method's best setting on some seeds, and report it on the others",
    )
    training: TrainingSettings = Field(
        default=TrainingSettings(), description="settings of the training in every run"
    )
    evaluation: EvaluationSettings = Field(
        default=EvaluationSettings(),
        validate_default=True,
        description="what is evaluated, and by which rules",
    )
    attacks: AttackEntries = Field(
        default=(),
        description="attacks under which runs, start models and retain models are also "
        "evaluated: [relearning, …], or {relearning: {…}, …}; `unlearnbench attacks "
        "list` prints the names",
    )
    resources: Resources = Field(
        default=Resources(), description="GPUs, cores and processes of a run"
    )
    ray: RaySettings = Field(
        default=RaySettings(), description="the Ray cluster, and the number of runs at a time"
    )
    tracking: TrackingSettings = Field(default=TrackingSettings(), description="logging to MLflow")
    keep_texts: bool = Field(
        default=True,
        exclude_if=_is_true,
        description="false: leave out questions, answers and generated texts from records, page, "
        "MLflow and messages, and keep the numbers",
    )
    output: str = Field(
        default="runs", description="folder of all sweeps; a sweep has the folder output/name"
    )
    cache: str | None = Field(
        default=None, description="folder of prepared models; default: output/cache"
    )
    storage: str | None = Field(
        default=None,
        pattern=rf"^(({'|'.join(SCHEMES)})://|([^:]|:[^/])*$)",
        description="path or URL (s3://, gs://) through which machines share results and "
        "checkpoints, if some of them cannot read `output`",
    )

    @field_validator("evaluation", mode="before")
    @classmethod
    def _rules_of_the_benchmark(cls, value: Any, info: ValidationInfo) -> Any:
        """Take the benchmark's own profile if the configuration names none."""
        data = info.data.get("data")
        if data is None or data.default_profile == EvaluationSettings().profile:
            return value
        if isinstance(value, EvaluationSettings) and "profile" not in value.model_fields_set:
            return value.model_copy(update={"profile": data.default_profile})
        if isinstance(value, Mapping) and "profile" not in value:
            return {**value, "profile": data.default_profile}
        return value

    @model_serializer(mode="wrap")
    def _one_kind_of_splits(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write only the kind of splits that the sweep has, and all named splits by their names."""
        document: dict[str, Any] = fields(self)
        if self.forget_fractions:
            del document["splits"]
        else:
            del document["forget_fractions"]
            document["splits"] = self.split_keys
        return document

    @property
    def split_keys(self) -> tuple[SplitKey, ...]:
        """The splits, in the order of the configuration."""
        return self.forget_fractions or self.splits or self.data.split_names

    @property
    def references(self) -> frozenset[Reference]:
        """Models that runs are compared with: the benchmark's, as far as the models have them."""
        has_retain = all(model.has_retain for model in self.models)
        return references_with(self.data, has_retain=has_retain)

    @property
    def headline(self) -> Headline:
        """The two numbers that methods are ranked by."""
        return self.data.headline_with(self.references)

    @property
    def unit(self) -> Unit:
        """The unit of a run's budget and of the moments of its evaluations."""
        return Unit.EPOCH if self.steps is None else Unit.STEP

    @property
    def budget(self) -> int:
        """Number of epochs of a run, or of steps."""
        budget = self.epochs if self.steps is None else self.steps
        if budget is None:
            raise ConfigError([Problem(self.name, "epochs", NO_BUDGET)])
        return budget

    @property
    def evaluate_at(self) -> tuple[int, ...]:
        """The epochs, or steps, after which runs are evaluated."""
        evaluation = self.evaluation
        every = evaluation.every if self.steps is None else evaluation.every_steps
        return self._evaluated_every(every)

    def evaluate_at_of(self, method: str) -> tuple[int, ...]:
        """Return the epochs, or steps, after which runs of a method are evaluated.

        All entries of a method have the same moments (`cross_key_rules.py`).
        """
        for grid in self._entries_of(method):
            if grid.evaluation is not None:
                is_by_epochs = self.steps is None
                every = grid.evaluation.every if is_by_epochs else grid.evaluation.every_steps
                return self.evaluate_at if every is None else self._evaluated_every(every)
        return self.evaluate_at

    def _evaluated_every(self, every: int | None) -> tuple[int, ...]:
        """Return the moments of evaluation, of which the last one is always the end of the run.

        Args:
            every: Epochs or steps between two evaluations. None: one epoch, or the whole run if
                it is by steps.
        """
        last = self.budget
        if every is None:
            every = 1 if self.steps is None else last
        return (*range(every, last, every), last)

    @property
    def cache_folder(self) -> Path:
        """Folder of prepared models."""
        return Path(self.cache) if self.cache else Path(self.output) / "cache"

    def resources_of(self, model: str) -> Resources:
        """Return the resources of a run of the model with this name."""
        own = next(settings.resources for settings in self.models if settings.name == model)
        return self.resources if own is None else own

    @property
    def method_names(self) -> tuple[str, ...]:
        """Distinct methods of all entries."""
        return tuple(dict.fromkeys(grid.specs[0].name for grid in self.methods if grid.specs))

    def training_of(self, method: str) -> TrainingSettings:
        """Return the training settings of a method.

        All entries of a method have the same settings (`cross_key_rules.py`).
        """
        for grid in self._entries_of(method):
            if grid.training is not None:
                return grid.training
        return self.training

    def _entries_of(self, method: str) -> Iterator[MethodGrid]:
        """Yield the entries of a method."""
        for grid in self.methods:
            if grid.specs and grid.specs[0].name == method:
                yield grid
