"""All settings of a sweep as frozen values, with their defaults.

`SweepConfig` is the whole sweep. Its parts are divided by subject: `model_settings`,
`evaluation_settings`, `method_settings`, `training_settings`, `search` and `resources`. The
first three can also be imported from here, as other parts of the package and plug-ins do.

A sweep is also read from stored JSON, so these classes check each key only by itself. `written.py`
adds the keys and rules of YAML.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from unlearnbench.api.benchmark import Headline, Reference, SplitKey, references_with
from unlearnbench.base.errors import ConfigError, Problem
from unlearnbench.base.outputs import SCHEMES
from unlearnbench.config.entries import (
    DEFAULT,
    AttackEntries,
    BenchmarkSection,
    benchmark_named,
)
from unlearnbench.config.evaluation_settings import EntryEvaluation, EvaluationSettings, Patience
from unlearnbench.config.method_settings import (
    HyperParameter,
    MethodGrid,
    MethodSpec,
    Positive,
    Rates,
    RetainSpec,
    RetainTermName,
)
from unlearnbench.config.model_settings import (
    LABELLED,
    TINY_PREPARATION,
    Architecture,
    LoRA,
    ModelSettings,
    Preparation,
)
from unlearnbench.config.resources import RaySettings, Resources, TrackingSettings
from unlearnbench.config.search import SearchSettings, SelectSettings
from unlearnbench.config.section import LARGEST_SIZE, MOST_EPOCHS, Settings, is_none, is_true
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.config.unit import Unit

__all__ = [
    "LABELLED",
    "NO_BUDGET",
    "TINY_PREPARATION",
    "Architecture",
    "EntryEvaluation",
    "EvaluationSettings",
    "HyperParameter",
    "LoRA",
    "MethodGrid",
    "MethodSpec",
    "ModelSettings",
    "Patience",
    "Positive",
    "Preparation",
    "Rates",
    "RetainSpec",
    "RetainTermName",
    "SweepConfig",
]

NO_BUDGET = "is null, and there are no steps: state epochs or steps"
"""Message about the key `epochs`, if neither of the two budgets is stated."""
_Fractions = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)]


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
        le=LARGEST_SIZE,
        exclude_if=is_none,
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
        exclude_if=is_true,
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
    def _profile_of_the_benchmark(cls, value: Any, info: ValidationInfo) -> Any:
        """Take the benchmark's own profile if the configuration names none.

        Args:
            value: The section `evaluation`, as a mapping or as settings. Anything else is left to
                the field, which reports it.
            info: Has the benchmark (`data`), unless the benchmark is wrong itself.
        """
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
        """Models that runs are compared with.

        A benchmark that can do without a retain model has it only if every model of the sweep does.
        """
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
        return self._evaluated_every(self._interval(self.evaluation))

    def evaluate_at_of(self, method: str) -> tuple[int, ...]:
        """Return the epochs, or steps, after which runs of a method are evaluated.

        All entries of a method have the same moments (`cross_key_rules.py`).
        """
        for grid in self._entries_of(method):
            if grid.evaluation is None:
                continue
            interval = self._interval(grid.evaluation)
            return self.evaluate_at if interval is None else self._evaluated_every(interval)
        return self.evaluate_at

    def _interval(self, evaluation: EvaluationSettings | EntryEvaluation) -> int | None:
        """Return the stated number of epochs, or of steps, between two evaluations."""
        return evaluation.every if self.steps is None else evaluation.every_steps

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
    def folder(self) -> Path:
        """Folder of the sweep's files."""
        return Path(self.output) / self.name

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
        """Yield the entries of a method. All specs of an entry have the same method."""
        for grid in self.methods:
            if grid.specs and grid.specs[0].name == method:
                yield grid
