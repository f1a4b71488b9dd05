"""A configuration as YAML states it, from which the configuration itself is made.

A rule on one key, and on keys before it in the class, is a validator of that key. So it is also
checked if other keys are wrong. All other rules are in `cross_key_rules`, and are checked as soon
as every key is right by itself.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import (
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticKnownError

from unlearnbench.api.benchmark import Benchmark, split_name
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import PluginError
from unlearnbench.base.messages import Fault, errors_below, fault, raise_faults
from unlearnbench.config.cross_key_rules import faults_across_keys
from unlearnbench.config.method_entry import MODIFIERS, Axis
from unlearnbench.config.method_grid import crossed, read_grid, tuned
from unlearnbench.config.method_settings import MethodGrid
from unlearnbench.config.model_settings import ModelSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import RATES, SearchSettings, SelectSettings, TuneSettings
from unlearnbench.config.training_settings import TrainingSettings


class WrittenConfig(SweepConfig):
    """The keys of a YAML file: those of a configuration, and short forms that stand for them."""

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
        """Make the configuration that the keys state, and check the rules across keys.

        Entries get the training settings of the sweep that they do not change, and `tune` and
        `modifiers` are replaced by what they stand for.

        Raises:
            ValidationError: With all faults across keys, or in the training settings of an entry.
        """
        values = {name: getattr(self, name) for name in SweepConfig.model_fields}
        values["methods"] = tuple(self._completed(i, grid) for i, grid in enumerate(self.methods))
        if self.tune is not None:
            values |= self._values_of_tune(self.tune)
        config = SweepConfig.model_construct(self.model_fields_set, **values)
        raise_faults(faults_across_keys(config, self.modifiers), "rule")

        if self.steps is not None:
            values["epochs"] = None  # only the default: two budgets are a fault
        methods = (*config.methods, *self._crossed(config.methods))
        if self.tune is not None:
            methods = tuple(tuned(grid) for grid in methods)
        values["methods"] = methods
        return SweepConfig.model_construct(self.model_fields_set, **values)

    def _completed(self, index: int, grid: MethodGrid) -> MethodGrid:
        """Add the sweep's training settings to an entry that changes some of them."""
        if grid.training is None:
            return grid
        of_sweep = self.training.model_dump(exclude_unset=True)
        changes = grid.training.model_dump(exclude_unset=True)
        try:
            training = TrainingSettings.model_validate(of_sweep | changes)
        except ValidationError as error:
            raise errors_below(error, ("methods", index, "training")) from None
        return grid.model_copy(update={"training": training})

    def _values_of_tune(self, tune: TuneSettings) -> dict[str, Any]:
        """Return the values of the keys that `tune` sets.

        Raises:
            ValidationError: One of the keys is stated as well.
        """
        raise_faults(
            Fault((key,), "tune sets it; leave one of the two out")
            for key in ("search", "select")
            if key in self.model_fields_set
        )
        of_select = {key: getattr(tune, key) for key in SelectSettings.model_fields}
        values: dict[str, Any] = {
            "search": SearchSettings(kind="quasi-random", trials=tune.trials),
            "select": SelectSettings.model_construct(**of_select),
        }
        if "learning_rates" not in self.model_fields_set:
            values["learning_rates"] = RATES
        return values

    def _crossed(self, methods: Sequence[MethodGrid]) -> Iterator[MethodGrid]:
        """Yield every entry with each of the sweep's modifiers.

        A modifier that does not go together with an entry is left out there, with a warning.
        """
        for name, settings in self.modifiers.items():
            for grid in methods:
                try:
                    yield crossed(grid, name, settings)
                except PluginError as error:
                    warn_later(f"{grid.specs[0].label} goes without {name}: {error}")

    @field_validator("models")
    @classmethod
    def _models_suit_benchmark(
        cls, models: tuple[ModelSettings, ...], info: ValidationInfo
    ) -> tuple[ModelSettings, ...]:
        """Refuse two models of one name, unknown retain models, and a base that is missing."""
        names = [model.name for model in models]
        raise_faults(
            Fault(
                (index, "name"),
                f"{name!r} is already the name of models.{names.index(name)}; choose another",
            )
            for index, name in enumerate(names)
            if name in names[:index]
        )
        data: Benchmark | None = info.data.get("data")
        raise_faults(_faults_of_retain_models(data, models))
        if data:
            raise_faults(_faults_of_bases(data, models), "rule")
        return models

    @field_validator("forget_fractions", "splits")
    @classmethod
    def _splits_exist(cls, keys: tuple[Any, ...] | None, info: ValidationInfo) -> Any:
        """Refuse splits that the benchmark does not have.

        A benchmark has splits by fraction (`forget_fractions`) or by name (`splits`), and a
        configuration states the key of this kind.
        """
        data: Benchmark | None = info.data.get("data")
        if data is None:
            return keys
        names = data.split_names
        key_of_kind = "splits" if names else "forget_fractions"
        if info.field_name != key_of_kind and keys is not None:
            kind = "splits by fraction, such as 0.1"
            if names:
                kind = f"named splits ({', '.join(names)})"
            raise ValueError(
                f"{data.source} has {kind}; list them in `{key_of_kind}` and leave this key out "
                "(null if another file sets it)"
            )
        if info.field_name == key_of_kind and keys is None and not names:
            raise PydanticKnownError("missing")
        problems = [data.problem_with(key) for key in keys or ()]
        raise_faults(Fault((i,), problem) for i, problem in enumerate(problems) if problem)
        return keys

    @field_validator("select", "tune")
    @classmethod
    def _seeds_are_left_to_report_on(
        cls, select: SelectSettings | None, info: ValidationInfo
    ) -> SelectSettings | None:
        """Refuse a choice on seeds that the sweep does not have, or on all of its seeds."""
        seeds: tuple[int, ...] | None = info.data.get("seeds")
        if select is None or seeds is None:
            return select
        unknown = [seed for seed in select.seeds if seed not in seeds]
        if unknown:
            listed = ", ".join(map(str, seeds))
            raise fault(f"{unknown[0]} is not one of the sweep's seeds ({listed})", "seeds")
        if {*select.seeds} == {*seeds}:
            text = "these are all seeds of the sweep, so none is left to report the choice on"
            raise fault(f"{text}; add more to `seeds`", "seeds")
        return select


def _faults_of_retain_models(
    data: Benchmark | None, models: Sequence[ModelSettings]
) -> Iterator[Fault]:
    """Yield the retain models whose split does not exist.

    Args:
        data: The benchmark. None if it is wrong itself, and then any fraction may be a split.
        models: The models.
    """
    known = [split_name("retain", name) for name in data.split_names] if data else []
    rule = f"expected one of {', '.join(known)}" if known else "expected a split, as retain90"
    for index, model in enumerate(models):
        for split in model.retain:
            is_known = split in known
            if not known:
                # The benchmark has splits by fraction, so any `retain90` or `retain99.5` will do.
                is_known = re.fullmatch(r"retain\d\d(\.\d+)?", split) is not None
            if not is_known:
                yield Fault((index, "retain", split), rule)


def _faults_of_bases(data: Benchmark, models: Sequence[ModelSettings]) -> Iterator[Fault]:
    """Yield models without a base, if the benchmark or a comparison with other models needs one."""
    without_base = [index for index, model in enumerate(models) if model.base is None]
    if data.needs_base:
        for index in without_base:
            yield Fault(
                (index, "base"),
                f"missing: {data.source} compares with a retain model, which is trained from the "
                "base; name the model that fine_tuned was trained from",
            )
        return
    retain_names = [split_name("retain", name) for name in data.split_names]
    for index in without_base:
        stated = models[index].retain
        missing = [name for name in retain_names if name not in stated]
        if stated and missing:
            yield Fault(
                (index, "retain"),
                f"no {missing[0]}, and no base to train it from; name it, or a base, or leave "
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
