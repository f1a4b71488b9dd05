"""A configuration as YAML states it, and the rules that concern several of its keys.

A rule on one key and those before it is a validator of that key, so that it holds where others are
wrong; all others are looked at once every key is right by itself. They are no part of
`SweepConfig`, which reads what is stored as well, with metrics that may not be installed here.
"""

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack, WeightAttack
from unlearnbench.api.benchmark import Benchmark, split_name
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import EvaluationError, PluginError, did_you_mean
from unlearnbench.base.messages import Fault, Loc, errors_below, fault, raise_faults
from unlearnbench.config.method_entry import MODIFIERS, Axis
from unlearnbench.config.method_grid import crossed, read_grid, tuned
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.precision import FLOAT16_IS_NOT_TRAINED, resolve_precision
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.schema import (
    NO_BUDGET,
    EntryEvaluation,
    MethodGrid,
    ModelSettings,
    Patience,
    Rates,
    SweepConfig,
)
from unlearnbench.config.search import (
    RATES,
    Metric,
    Range,
    Scheduler,
    SearchSettings,
    SelectSettings,
    TuneSettings,
)
from unlearnbench.config.training_settings import EIGHT_BIT, ONE_PROCESS, TrainingSettings


class WrittenConfig(SweepConfig):
    """The keys of a YAML file: those of a configuration, and those from which one is made."""

    methods: tuple[Annotated[MethodGrid, PlainValidator(read_grid)], ...] = Field(
        min_length=1, description=SweepConfig.model_fields["methods"].description
    )
    modifiers: Annotated[dict[str, dict[str, Axis]], MODIFIERS] = Field(
        default_factory=dict,
        description="modifiers as in an entry of `methods`: each is tried on every entry that it "
        "applies to, beside the entry as it stands",
    )
    tune: TuneSettings | None = Field(
        default=None,
        description="a fair budget: as many trials for each entry, from declared ranges, chosen on "
        "some seeds and reported on the others",
    )
    extends: str | None = Field(
        default=None,
        description="a configuration that this one changes: a shipped one's name, or a file beside "
        "this one; sections are merged key by key, other values replaced",
    )
    benchmarks: dict[str, dict[str, Any]] | None = Field(
        default=None,
        description="by a name of yours, keys that are merged over the others: a sweep for each",
    )
    benchmark: str | None = Field(default=None, description="the one of these that is meant")
    plugins: tuple[str, ...] | None = Field(
        default=None,
        description="Python files with a method, metric, benchmark or attack each, named as the "
        "file; relative to this one",
    )

    def resolved(self) -> SweepConfig:
        """The configuration itself."""
        values = {name: getattr(self, name) for name in SweepConfig.model_fields}
        return SweepConfig.model_construct(self.model_fields_set, **values)

    @field_validator("models")
    @classmethod
    def _models(
        cls, models: tuple[ModelSettings, ...], info: ValidationInfo
    ) -> tuple[ModelSettings, ...]:
        data, names = info.data.get("data"), [model.name for model in models]
        known = [split_name("retain", name) for name in data.split_names] if data else []
        rule = f"expected one of {', '.join(known)}" if known else "expected a split, as retain90"
        raise_faults(
            Fault(
                (i, "name"),
                f"{name!r} is already the name of models.{names.index(name)}; choose another",
            )
            for i, name in enumerate(names)
            if name in names[:i]
        )
        raise_faults(
            Fault((i, "retain", split), rule)
            for i, model in enumerate(models)
            for split in model.retain
            if not (split in known if known else re.fullmatch(r"retain\d\d(\.\d+)?", split))
        )
        if data:
            raise_faults(_faults_of_bases(data, models), "rule")
        return models

    @field_validator("forget_fractions", "splits")
    @classmethod
    def _splits(cls, keys: tuple[Any, ...] | None, info: ValidationInfo) -> Any:
        """Splits by fraction or by name, of which a benchmark has one kind."""
        data = info.data.get("data")
        if data is None:
            return keys
        names = data.split_names
        used = "splits" if names else "forget_fractions"
        if info.field_name != used:
            if keys is not None:
                kind = (
                    f"named splits ({', '.join(names)})"
                    if names
                    else "splits by fraction, such as 0.1"
                )
                fix = f"list them in `{used}` and leave this key out (null if another file sets it)"
                raise ValueError(f"{data.source} has {kind}; {fix}")
        elif keys is None and not names:
            raise PydanticKnownError("missing")
        problems = [(i, data.problem_with(key)) for i, key in enumerate(keys or ())]
        raise_faults(Fault((i,), problem) for i, problem in problems if problem)
        return keys

    @field_validator("select", "tune")
    @classmethod
    def _select(cls, select: SelectSettings | None, info: ValidationInfo) -> SelectSettings | None:
        """Seeds to choose on: some of the sweep's, and not all of them."""
        seeds = info.data.get("seeds")
        if select is None or seeds is None:
            return select
        if unknown := [seed for seed in select.seeds if seed not in seeds]:
            listed = ", ".join(map(str, seeds))
            raise fault(f"{unknown[0]} is not one of the sweep's seeds ({listed})", "seeds")
        if {*select.seeds} == {*seeds}:
            text = "these are all seeds of the sweep, so none is left to report the choice on"
            raise fault(f"{text}; add more to `seeds`", "seeds")
        return select

    @model_validator(mode="after")
    def _across(self) -> Self:
        """Apply the rules across keys, and complete the training settings of entries."""
        methods = tuple(self._completed(i, grid) for i, grid in enumerate(self.methods))
        vars(self)["methods"] = methods  # frozen for all others
        if self.tune is not None:
            self._tune(self.tune)
        rules = (
            self._budget,
            self._entries,
            self._processes,
            self._metrics,
            self._search,
            self._precision,
            self._float16,
            self._texts,
            self._requests,
        )
        raise_faults((Fault(loc, text) for rule in rules for loc, text in rule()), "rule")
        if self.steps is not None:
            vars(self)["epochs"] = None
        methods = (*methods, *self._crossed(methods))
        vars(self)["methods"] = methods if self.tune is None else (*map(tuned, methods),)
        return self

    def _tune(self, tune: TuneSettings) -> None:
        """Set what `tune` stands for."""
        raise_faults(
            (Fault((key,), "tune sets it; leave one of the two out"))
            for key in ("search", "select")
            if key in self.model_fields_set
        )
        select = SelectSettings.model_construct(
            **{key: getattr(tune, key) for key in SelectSettings.model_fields}
        )
        vars(self)["search"] = SearchSettings(kind="quasi-random", trials=tune.trials)
        vars(self)["select"] = select
        if "learning_rates" not in self.model_fields_set:
            vars(self)["learning_rates"] = RATES

    def _crossed(self, methods: Sequence[MethodGrid]) -> Iterator[MethodGrid]:
        """Every entry with each of the sweep's modifiers that applies to it."""
        for name, settings in self.modifiers.items():
            for grid in methods:
                try:
                    yield crossed(grid, name, settings)
                except PluginError as error:
                    warn_later(f"{grid.specs[0].label} goes without {name}: {error}")

    def _completed(self, index: int, grid: MethodGrid) -> MethodGrid:
        """An entry with the sweep's training settings where it changes some of them."""
        if grid.training is None:
            return grid
        sweep, changes = (s.model_dump(exclude_unset=True) for s in (self.training, grid.training))
        try:
            training = TrainingSettings.model_validate(sweep | changes)
        except ValidationError as error:
            raise errors_below(error, ("methods", index, "training")) from None
        return grid.model_copy(update={"training": training})

    def _budget(self) -> Iterator[tuple[Loc, str]]:
        """A budget in two units, and evaluations or patience in another unit than the budget."""
        evaluation, patience = self.evaluation, self.evaluation.patience
        states_every = "every" in evaluation.model_fields_set and evaluation.every is not None
        of_patience = ("evaluation", "patience")
        if self.steps is None:
            if self.epochs is None:
                yield ("epochs",), NO_BUDGET
            if evaluation.every_steps is not None:
                text = "counts steps, and the budget of this sweep is in epochs"
                fix = "state steps in place of epochs, or evaluation.every in place of this"
                yield ("evaluation", "every_steps"), f"{text}; {fix}"
            if patience is not None and patience.steps is not None:
                text = "counts steps, and the budget of this sweep is in epochs"
                yield (*of_patience, "steps"), f"{text}; state the patience in epochs"
            return
        if "epochs" in self.model_fields_set and self.epochs is not None:
            text = "epochs are stated as well, and a run has one budget"
            yield ("steps",), f"{text}; leave one of the two out (null, where another file has it)"
        if states_every:
            text = "counts epochs, and the budget of this sweep is in steps"
            fix = "state evaluation.every_steps in place of this (null, where another file has it)"
            yield ("evaluation", "every"), f"{text}; {fix}"
        if patience is not None and patience.epochs is not None:
            text = "counts epochs, and the budget of this sweep is in steps"
            yield (*of_patience, "epochs"), f"{text}; state the patience in steps"

    def _entry_evaluation(
        self, index: int, evaluation: EntryEvaluation | None
    ) -> Iterator[tuple[Loc, str]]:
        """An entry's evaluations in another unit than the budget, or where they cannot differ."""
        if evaluation is None:
            return
        place: Loc = ("methods", index, "evaluation")
        if self.steps is None and evaluation.every_steps is not None:
            text = "counts steps, and the budget of this sweep is in epochs; write every"
            yield (*place, "every_steps"), text
        if self.steps is not None and evaluation.every is not None:
            text = "counts epochs, and the budget of this sweep is in steps; write every_steps"
            yield (*place, "every"), f"{text} (if another file has it, state methods in yours)"
        if self.epochs_as == "runs":
            text = "epochs_as: runs makes a run of each evaluation, for all methods alike"
            yield place, f"{text}; leave this out, or epochs_as"
        if self.search.scheduler is not None:
            text = "search.scheduler compares runs at the same evaluations"
            yield place, f"{text}; leave this out, or the scheduler"

    def _entries(self) -> Iterator[tuple[Loc, str]]:
        """Entries of a method that differ in `training`, or state ranges for a grid."""
        first: dict[str, int] = {}
        for i, grid in enumerate(self.methods):
            name = grid.specs[0].name
            other = first.setdefault(name, i)
            if (grid.training or self.training) != (self.methods[other].training or self.training):
                yield (
                    ("methods", i, "training"),
                    f"{name} has other training settings in methods.{other}, and tables would mix "
                    "the two; give all entries of a method the same, or another sweep",
                )
            if grid.evaluation != self.methods[other].evaluation:
                yield (
                    ("methods", i, "evaluation"),
                    f"{name} is evaluated at other times in methods.{other}; give all entries of a "
                    "method the same",
                )
            yield from self._entry_evaluation(i, grid.evaluation)
        ranges: dict[Loc, Rates | None] = {("learning_rates",): self.learning_rates}
        for i, grid in enumerate(self.methods):
            ranges["methods", i, "learning_rates"] = grid.learning_rates
            ranges |= {("methods", i, *key.split(".")): value for key, value in grid.ranges.items()}
        for name, axes in self.modifiers.items():
            ranges |= {
                ("modifiers", name, key): v for key, v in axes.items() if isinstance(v, Range)
            }
        for loc, values in ranges.items() if self.search.kind == "grid" else ():
            if isinstance(values, Range):
                yield (
                    loc,
                    "only a search draws from a range, and this is a grid; write a list such as "
                    f"[{values.low:g}, {values.high:g}], or add search: {{kind: random, "
                    "trials: 20}",
                )

    def _processes(self) -> Iterator[tuple[Loc, str]]:
        """8-bit optimisers of runs with several processes."""
        trainings = {("training",): self.training} | {
            ("methods", i, "training"): grid.training for i, grid in enumerate(self.methods)
        }
        for model in self.models:
            processes = self.resources_of(model.name).world_size
            for loc, training in trainings.items() if processes > 1 else ():
                if training is not None and training.optimizer in EIGHT_BIT:
                    text = f"{training.optimizer} works in one process, and a run of {model.name}"
                    yield (*loc, "optimizer"), f"{text} has {processes}: {ONE_PROCESS}"

    def _metrics(self) -> Iterator[tuple[Loc, str]]:
        """Chosen metrics that this benchmark cannot report, or sharded weights do not allow."""
        resources = {model.name: self.resources_of(model.name) for model in self.models}
        sharded = [k for k, r in resources.items() if r.world_size > 1 and r.parallel == "fsdp"]
        for name, settings in self.evaluation.metrics.items():
            loc = ("evaluation", "metrics", name)
            try:
                plan = benchmark_plan(TOFU, self.data, {name: settings}, self.references)
            except PluginError as error:
                yield loc, str(error)
                continue
            every = benchmark_plan(TOFU, self.data, {name: settings})
            if name in every.summaries and name not in plan.summaries:
                yield (
                    loc,
                    "it compares with the retain model, which these models do not have; leave the "
                    "metric out, or give each model a base",
                )
            if plan.extra and sharded:
                text = f"needs whole weights in each process, and runs of {sharded[0]} shard theirs"
                yield loc, f"{text}; set resources.parallel: ddp, or leave the metric out"

    def _search(self) -> Iterator[tuple[Loc, str]]:
        """A search without its package, unknown metrics, and what cannot end a run early."""
        search = self.search
        if search.kind == "optuna" and find_spec("optuna") is None:
            fix = "pip install 'unlearnbench[search]'"
            yield ("search", "kind"), f"optuna is not installed; {fix}, or take kind random"
        if search.metric is not None:
            yield from self._metric(search.metric, "search")
        early: dict[Loc, Scheduler | Patience | None] = {
            ("search", "scheduler"): search.scheduler,
            ("evaluation", "patience"): self.evaluation.patience,
        }
        for loc, rule in early.items():
            if rule is not None:
                yield from self._metric(rule.metric, *loc)
                if self.epochs_as == "runs":
                    text = "with epochs_as: runs, a run is evaluated only at its end"
                    yield loc, f"{text}, so none can end early; set epochs_as: checkpoints"

    def _metric(self, metric: Metric, *above: str | int) -> Iterator[tuple[Loc, str]]:
        names = [metric] if isinstance(metric, str) else list(metric)
        try:  # columns have the same names under every profile
            plan = benchmark_plan(TOFU, self.data, self.evaluation.metrics, self.references)
        except PluginError:  # of a chosen metric, which is reported itself
            return
        known = [column.name for column in plan.columns]
        for name in names:
            if name not in known:
                near = did_you_mean(name, known) or ";"
                yield (*above, "metric"), f"unknown metric {name!r}{near} known: {', '.join(known)}"

    def _requests(self) -> Iterator[tuple[Loc, str]]:
        """What cannot be run request after request."""
        if self.requests == "apart":
            return
        loc: Loc = ("requests",)
        if self.search.kind != "grid" or self.select is not None:
            yield loc, "in-sequence takes a grid; leave search, select and tune out, or take apart"
        for grid in self.methods:
            if not registry.trains(name := grid.specs[0].name):
                yield loc, f"{name} trains nothing that the next request could go on from"
        resources = [self.resources_of(model.name) for model in self.models]
        if any(each.world_size > 1 and each.parallel == "fsdp" for each in resources):
            yield loc, "in-sequence needs whole weights in a process; set resources.parallel: ddp"

    def _precision(self) -> Iterator[tuple[Loc, str]]:
        """An evaluation precision that a model does not allow."""
        for i, model in enumerate(self.models):
            try:
                resolve_precision("cpu", model.dtype, self.evaluation.precision)
            except EvaluationError as error:
                yield ("evaluation", "precision"), f"models.{i}: {error}"

    def _float16(self) -> Iterator[tuple[Loc, str]]:
        """Weights of float16 that something would train."""
        for i, model in enumerate(self.models):
            if model.dtype != "float16":
                continue
            works = [*self._trained_weights(model), *self._trained_by_attacks()]
            if works:
                yield ("models", i, "dtype"), f"{works[0]}: {FLOAT16_IS_NOT_TRAINED}"

    def _texts(self) -> Iterator[tuple[Loc, str]]:
        """Attacks that read answers, which a sweep without texts does not keep."""
        for spec in () if self.keep_texts else self.attacks:
            if registry.load("attacks", spec.name).reads_answers:
                yield (
                    ("attacks", spec.name),
                    "reads the model's own answers, and keep_texts: false keeps none of them; "
                    "leave the attack out",
                )

    def _trained_weights(self, model: ModelSettings) -> Iterator[str]:
        """What trains weights of `model` other than adapters in float16."""
        if model.fine_tuned is None:
            yield "the start model is trained here"
        needed = [split_name("retain", split) for split in self.split_keys]
        if "retain" in self.references and not {*needed} <= {*model.retain}:
            yield "the retain model is trained here"
        for grid in self.methods:
            training = grid.training or self.training
            has_adapters = model.lora is not None and training.precision == "fp16"
            if registry.trains(name := grid.specs[0].name) and not has_adapters:
                yield f"{name} trains this model"

    def _trained_by_attacks(self) -> Iterator[str]:
        """Attacks that train whole weights, or adapters in another precision."""
        for spec in self.attacks:
            kind: type[Attack] = registry.load("attacks", spec.name)
            has_adapters = spec.settings.get("lora_rank") and self.training.precision == "fp16"
            if issubclass(kind, WeightAttack) and kind.trains and not has_adapters:
                yield f"the attack {spec.name} trains this model (with lora_rank, adapters)"


def _faults_of_bases(data: Benchmark, models: Sequence[ModelSettings]) -> Iterator[Fault]:
    """Yield models without a base that this benchmark needs, or that the sweep's others have."""
    without = [i for i, model in enumerate(models) if model.base is None]
    if data.needs_base:
        for i in without:
            yield Fault(
                (i, "base"),
                f"missing: {data.source} compares with a retain model, which is trained from the "
                "base; name the model that fine_tuned was trained from",
            )
        return
    names = data.split_names
    for i in without:
        lacking = [split_name("retain", name) for name in names]
        lacking = [name for name in lacking if name not in models[i].retain]
        if models[i].retain and lacking:
            yield Fault(
                (i, "retain"),
                f"no {lacking[0]}, and no base to train it from; name it, or a base, or leave "
                "retain out",
            )
    has_retain = [model.has_retain for model in models]
    if any(has_retain) and not all(has_retain):
        first = has_retain.index(False)
        other = models[has_retain.index(True)].name
        yield Fault(
            (first, "base"),
            f"missing: {models[first].name} has no retain model and {other} has one, and a table "
            "would rank them by different numbers; give each model a base, or none of them",
        )
