"""Methods of a configuration: an entry becomes a grid of specs, and a spec a method again.

`{method: npo, beta: [0.1, 0.5], retain: {term: nll}}`: lists span the grid; a search may draw from
ranges, `beta: {low: 0.05, high: 1.0, log: true}`. The keys of an entry are the fields of its
method, each of which takes a value, a list or a range.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo

from unlearnbench.api.hyperparameters import OWN_KEYS
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import broken, file_digest, find, load, load_method, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.base.messages import (
    Fault,
    describe_error,
    describe_value,
    errors_below,
    fault,
    raise_faults,
)
from unlearnbench.config.entries import made, read_entries
from unlearnbench.config.schema import (
    EntryEvaluation,
    MethodGrid,
    MethodSpec,
    Positive,
    Rates,
    RetainSpec,
    RetainTermName,
    SweepConfig,
)
from unlearnbench.config.search import RETAIN_WEIGHT, Range, form_of
from unlearnbench.config.section import Settings
from unlearnbench.config.training_settings import TrainingSettings

if TYPE_CHECKING:  # these import torch
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.api.modifier import Modifier

WEIGHT = "retain.weight"
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Axis = tuple[Any, ...] | Range
"""The values of a hyper-parameter."""


def axis(kind: Any, *rules: Any) -> Any:
    """The type of a key whose values are of a type: one value, a list of them, or a range."""
    value: Any = Annotated[kind, *rules] if rules else kind
    return Annotated[
        Annotated[value, AfterValidator(lambda item: (item,)), Tag("<value>")]
        | Annotated[tuple[value, ...], Field(min_length=1), Tag("<list>")]
        | Annotated[Range, AfterValidator(partial(_of_kind, value)), Tag("<range>")],
        Discriminator(form_of),
    ]


def _of_kind(value: Any, spanned: Range) -> Range:
    """A range whose ends are values of an annotation, floats or whole numbers."""
    annotation = get_args(value)[0] if hasattr(value, "__metadata__") else value
    kinds = get_args(annotation) or (annotation,)
    if float not in kinds and int not in kinds:
        raise ValueError("takes no range, because only numbers have ranges; write a list")
    if float not in kinds and not spanned.whole:
        raise ValueError("low, high and step must be whole numbers")
    for end in ("low", "high"):
        try:
            TypeAdapter(value).validate_python(getattr(spanned, end), strict=True)
        except ValidationError as error:
            raise errors_below(error, (end,)) from None
    return spanned.of_floats if float in kinds else spanned


RetainEntry: Any = create_model(
    "RetainEntry",
    __base__=Settings,
    __doc__="`{term: nll, weight: 1.0}`; both may be lists, and the weight a range.",
    term=(axis(RetainTermName), Field(description=RetainSpec.model_fields["term"].description)),
    weight=(
        axis(Positive),
        Field((1.0,), description=RetainSpec.model_fields["weight"].description),
    ),
)


def _retain_term(value: Any) -> Any:
    return {"term": value} if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


_Term = RetainTermName | RetainEntry | None
RetainEntries = Annotated[
    tuple[Annotated[RetainEntry | None, BeforeValidator(_retain_term)], ...],
    Field(min_length=1),
    BeforeValidator(
        _listed,
        json_schema_input_type=_Term | Annotated[tuple[_Term, ...], Field(min_length=1)],
    ),
]


def read_grid(value: Any) -> MethodGrid:
    """The grid of one entry: a section, or the name of a method alone."""
    section = value if isinstance(value, Mapping) else {"method": value}
    entry: Any = entry_model(section.get("method")).model_validate(section)
    stated: dict[str, Any] = {key: getattr(entry, key) for key in section}
    name, modifiers = stated.pop("method"), stated.pop("modifiers", {})
    terms = stated.pop("retain", (None,))
    weighed = next((t for t in terms if t and "weight" in t.model_fields_set), None)
    retains, weights = _retains(terms)
    rates = stated.pop("learning_rates", None)
    training = stated.pop("training", None)
    evaluation = stated.pop("evaluation", None)
    axes: dict[str, Axis] = stated
    for modifier, settings in modifiers.items():
        axes |= {f"{modifier}.{key}": values for key, values in settings.items()}
    ranges = {key: values for key, values in axes.items() if isinstance(values, Range)}
    if weights is not None:
        ranges[WEIGHT] = weights
    if ranges:  # no combination of the ends may be refused
        expand(name, axes, retains, weights, modifiers, ends=("low", "high"))
    specs = expand(name, axes, retains, weights, modifiers)
    fixed = {*axes, *([] if weighed is None else [WEIGHT])}
    return MethodGrid(
        specs=specs,
        learning_rates=rates,
        training=training,
        evaluation=evaluation,
        ranges=ranges,
        fixed=frozenset(fixed),
    )


def tuned(grid: MethodGrid) -> MethodGrid:
    """The grid of an entry with the declared ranges of all that it does not state."""
    base = grid.specs[0]
    kinds = {"": load_method(base.name)} | {f"{m}.": load("modifiers", m) for m in base.modifiers}
    ranges = {
        prefix + key: Range(low=low, high=high, log=low > 0)
        for prefix, kind in kinds.items()
        for key, (low, high) in kind.ranges.items()
    }
    if base.retain is not None:
        ranges[WEIGHT] = RETAIN_WEIGHT
    new = {key: spanned for key, spanned in ranges.items() if key not in grid.fixed}
    return grid.model_copy(update={"ranges": new | grid.ranges})


def expand(
    name: str,
    axes: Mapping[str, Axis],
    retains: tuple[RetainSpec | None, ...],
    weights: Range | None,
    modifiers: Iterable[str] = (),
    ends: tuple[str, ...] = ("low",),
) -> tuple[MethodSpec, ...]:
    """Every combination of the values; a range stands for its `ends`."""
    lists = [
        [getattr(values, end) for end in ends] if isinstance(values, Range) else values
        for values in axes.values()
    ]
    if weights is not None:
        retains = tuple(
            retain.model_copy(update={"weight": getattr(weights, end)})
            for retain in retains
            if retain is not None
            for end in ends
        )
    specs: list[MethodSpec] = []
    refused: dict[Fault, None] = {}
    for *values, retain in itertools.product(*lists, retains):
        chosen = dict(zip(axes, values, strict=True))
        try:
            specs.append(method_spec(name, chosen, retain, modifiers))
        except ValidationError as error:
            # Each value is of its field's type: the method's own validators refuse it.
            for details in error.errors(include_url=False):
                loc = details["loc"] if {*details["loc"]} <= axes.keys() else ()
                refused[Fault(loc, describe_error(details))] = None
        except PluginError as error:
            refused[Fault((), str(error))] = None
            break
    raise_faults(refused)
    return tuple(specs)


def entry_model(name: Any) -> type[BaseModel]:
    """The keys of an entry, the hyper-parameters of its method among them.

    Where no method can be found, any other key is allowed: the name is the mistake.
    """
    if isinstance(name, str):
        with suppress(PluginError):
            return _entry_model(name, load_method(name))
    return _entry_model(None, None)


@cache
def _entry_model(name: str | None, method: type[BaseModel] | None) -> type[BaseModel]:
    fields: dict[str, Any] = {
        "method": (Annotated[str, BeforeValidator(_method_name)], Field(description="its name"))
    }
    if name is not None and method is not None:
        fields |= _axes_of(method)
    if name is not None and trains(name):
        fields |= OF_TRAINING
    config = _STRICT if name is not None else ConfigDict(extra="ignore")
    model: type[BaseModel] = create_model("MethodEntry", __config__=config, **fields)
    return model


def axes_model(plugin: type[BaseModel]) -> type[BaseModel]:
    """The settings of a modifier, each as an axis."""
    model: type[BaseModel] = create_model(plugin.__name__, __config__=_STRICT, **_axes_of(plugin))
    return model


def default_of(info: FieldInfo) -> Any:
    """The default of a field."""
    return info.get_default(call_default_factory=True, validated_data={})


def _axes_of(plugin: type[BaseModel]) -> dict[str, Any]:
    """Fields whose values are those of a plug-in's fields, or lists or ranges of them."""
    return {
        key: (
            axis(info.annotation, *info.metadata),
            Field(
                ... if info.is_required() else default_of(info),
                description=info.description,
            ),
        )
        for key, info in plugin.model_fields.items()
    }


def _modifiers(value: Any, *, together: bool) -> dict[str, dict[str, Axis]]:
    """The settings that a list of modifiers states, each as an axis of the grid, by name.

    together  they are applied to one method
    """
    kinds: dict[str, str] = {}

    def read(
        name: str, plugin: type[Modifier], settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Axis]]:
        if name in OWN_KEYS:
            # Its settings would have the names of others, such as `retain.weight`.
            raise PluginError(
                f"a modifier cannot be called {name!r}, which is a key of a method's entry; "
                "rename its file"
            )
        once = together and not plugin.several
        if once and (other := kinds.setdefault(plugin.kind, name)) != name:
            raise PluginError(f"{other}, of the kind {plugin.kind}, is there already; keep one")
        axes = axes_model(plugin).model_validate(settings)
        return name, {key: getattr(axes, key) for key in settings}

    return dict(read_entries(value, "modifiers", read))


_LISTED = tuple[str | dict[str, Any], ...]
MODIFIERS = PlainValidator(partial(_modifiers, together=False), json_schema_input_type=_LISTED)
"""Reads modifiers, each of which is applied by itself."""
_TOGETHER = PlainValidator(partial(_modifiers, together=True), json_schema_input_type=_LISTED)


def crossed(grid: MethodGrid, name: str, settings: Mapping[str, Axis]) -> MethodGrid:
    """The grid of an entry with one more modifier.

    Raises: PluginError where it does not apply.
    """
    axes = {f"{name}.{key}": values for key, values in settings.items()}
    ranges = {key: values for key, values in axes.items() if isinstance(values, Range)}
    lists = [[values.low] if isinstance(values, Range) else values for values in axes.values()]
    kind, specs = load("modifiers", name), list[MethodSpec]()
    for base in grid.specs:
        for other in base.modifiers:
            if other == name or (load("modifiers", other).kind == kind.kind and not kind.several):
                raise PluginError(f"{other}, of the kind {kind.kind}, is there already")
        for values in itertools.product(*lists):
            chosen = base.hyperparameters | dict(zip(axes, values, strict=True))
            specs.append(method_spec(base.name, chosen, base.retain, (*base.modifiers, name)))
    changed = {"ranges": grid.ranges | ranges, "fixed": grid.fixed | axes.keys()}
    return grid.model_copy(update={"specs": (*specs,), **changed})


def _method_name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a method's name or a section, got {describe_value(value)}")
    try:
        load_method(value)
    except PluginError as error:
        raise ValueError(str(error)) from None
    return value


def _retains(
    entries: tuple[Any, ...],
) -> tuple[tuple[RetainSpec | None, ...], Range | None]:
    """Retain terms, and the range of their weights where there is one."""
    terms: list[RetainSpec | None] = []
    for index, entry in enumerate(entries):
        if entry is None:
            terms.append(None)
        elif isinstance(entry.weight, Range):
            if len(entries) > 1:
                text = "a range of weights needs its retain term alone: write an entry for each"
                raise fault(text, "retain", index, "weight")
            low = float(entry.weight.low)
            return tuple(RetainSpec(term=term, weight=low) for term in entry.term), entry.weight
        else:
            pairs = itertools.product(entry.term, entry.weight)
            terms += [RetainSpec(term=term, weight=weight) for term, weight in pairs]
    return tuple(terms), None


OF_TRAINING: dict[str, Any] = {
    "retain": (
        RetainEntries,
        Field((None,), description="a term that keeps the other rows, or {term: …, weight: …}"),
    ),
    "modifiers": (
        Annotated[dict[str, dict[str, Axis]], _TOGETHER],
        Field({}, description="names, or {sam: {rho: 0.01}}"),
    ),
    "learning_rates": (
        Rates | None,  # pyright: ignore[reportOperatorIssue]
        Field(None, description="in place of the sweep's"),
    ),
    "training": (
        TrainingSettings | None,
        Field(None, description="changes of the sweep's training settings"),
    ),
    "evaluation": (
        EntryEvaluation | None,
        Field(None, description="{every: 1}: when its runs are evaluated, in place of the sweep's"),
    ),
}
"""Keys of the entry of a method that trains, besides its hyper-parameters."""


def default_hyperparameters(name: str, modifiers: Iterable[str] = ()) -> dict[str, Any]:
    """The defaults of all hyper-parameters that have one, and of modifiers' settings."""
    kinds = {
        "": load_method(name),
        **{f"{modifier}.": load("modifiers", modifier) for modifier in modifiers},
    }
    return {
        prefix + key: default_of(field)
        for prefix, kind in kinds.items()
        for key, field in kind.model_fields.items()
        if not field.is_required()
    }


def method_spec(
    name: str,
    hyperparameters: Mapping[str, Any],
    retain: RetainSpec | None = None,
    modifiers: Iterable[str] = (),
) -> MethodSpec:
    """Make a spec with all hyper-parameters, also `sam.rho` of modifiers.

    Raises: pydantic's ValidationError for a wrong one, PluginError for what does not go together.
    """
    kind, made = load_method(name), _made_modifiers(modifiers, hyperparameters)
    with plugin_code(f"method {name!r}", passing=ValidationError):
        method: Any = kind.model_validate(
            {k: v for k, v in hyperparameters.items() if "." not in k}
        )
    if (retain is not None or made) and not trains(name):
        refused = "modifiers" if made else "retain term"
        raise PluginError(f"method {name!r} trains nothing: it takes no {refused}")
    if apart := [item for item, modifier in made.items() if modifier.two_roles]:
        parts = method.needed().parts | ({"retain"} if retain else frozenset())
        faults = ""
        if not parts > {"retain"}:
            faults = f"{apart[0]} needs a retain term beside what {name} forgets; add retain: nll"
        elif len(last := [item for item in apart if made[item].kind != "filter"]) > 1:
            faults = f"{' and '.join(last)} each take the gradients of the roles apart; keep one"
        if faults:
            raise PluginError(f"modifiers: {faults}")
    values = method.resolved()
    for item, modifier in made.items():
        values |= {f"{item}.{key}": value for key, value in modifier.resolved().items()}
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            of, _, setting = key.rpartition(".")
            raise broken(
                find("modifiers", of) if of else find("methods", name),
                f"hyperparameter {setting!r} is a {type(value).__name__}, "
                "where only true/false, numbers and text can be part of a run's identity",
            )
    return MethodSpec(
        name=name,
        hyperparameters=values,
        retain=retain,
        source=file_digest(name) or None,
        modifiers={item: file_digest(item) or None for item in made},
    )


def _made_modifiers(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Modifier]:
    """The modifiers by name, sorted by kind; `values` have their settings as `sam.rho`."""
    made: dict[str, Modifier] = {}
    for name in names:
        start = f"{name}."
        part = {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
        with plugin_code(f"modifier {name!r}", passing=ValidationError):
            made[name] = load("modifiers", name).model_validate(part)
    return dict(sorted(made.items(), key=lambda item: (item[1].kind, item[0])))


def modifiers_from_spec(spec: MethodSpec) -> list[Modifier]:
    """Make the modifiers of a spec."""
    _check_sources(spec.modifiers, "modifier")
    return [*_made_modifiers(spec.modifiers, spec.hyperparameters).values()]


def takes_roles_apart(spec: MethodSpec) -> bool:
    """Whether the loss's mean over forget and retain rows is split by role for a modifier.

    It is split if a modifier needs the gradient of one role. Earlier versions gave such a modifier
    the gradient of both roles. Modifiers that combine two gradients (`pcgrad`) always had the
    split, so this is False for them.
    """
    if not spec.modifiers:
        return False
    from unlearnbench.api.modifier import Filter  # it imports torch

    # The names in the loss's code tell whether it calls `mean_over_union`. They are known before a
    # model is loaded, and no plug-in can forget to declare them.
    method: Any = load_method(spec.name)
    loss = getattr(method.loss, "__code__", None)
    if loss is None or "mean_over_union" not in loss.co_names:
        return False
    modifiers = modifiers_from_spec(spec)
    if any(modifier.two_roles for modifier in modifiers):
        return False
    for modifier in modifiers:
        selects = isinstance(modifier, Filter) and type(modifier).select is not Filter.select
        asks_by_role = modifier.kind == "perturb" or selects
        if asks_by_role and not _changes_nothing(modifier):
            return True
    return False


def starts_exactly(spec: MethodSpec) -> bool:
    """Whether the retain rows' loss has a gradient of exactly 0 in the first step.

    This holds if the loss is only a divergence from the start model. Earlier versions had rounding
    errors in place of this 0. Adam divides a gradient by its own size, so that even such errors
    change the weights that no other gradient reaches. In the quickstart, `kl-minimization` differs
    by up to 0.2 % of a metric after eight epochs.
    """
    method: Any = method_from_spec(spec)
    needs = method.needed()
    is_divergence = "retain" in needs.distributions | needs.states
    if spec.retain is not None:
        has_other_loss = "retain" in needs.parts and not is_divergence
        is_divergence = spec.retain.term == "kl" and not has_other_loss
    if not is_divergence or not spec.modifiers:
        return is_divergence
    from unlearnbench.api.modifier import WeightEdit  # it imports torch

    # A modifier that changes the start weights leaves a divergence before the first step.
    return not any(
        isinstance(modifier, WeightEdit) and type(modifier).before is not WeightEdit.before
        for modifier in modifiers_from_spec(spec)
    )


def _changes_nothing(modifier: Modifier) -> bool:
    """Whether a modifier has the settings that it declares to be neutral."""
    if modifier.neutral is None:
        return False
    settings = modifier.model_dump()
    return all(settings.get(name) == value for name, value in modifier.neutral.items())


def removes_dropout(spec: MethodSpec, training: TrainingSettings) -> bool:
    """Whether a method trains a model without the dropout of the model's configuration."""
    if training.dropout != "auto":
        return training.dropout == "remove"
    return compares_with_start(spec)


def compares_with_start(spec: MethodSpec) -> bool:
    """Whether the loss reads predictions of the frozen start model, also for a retain term."""
    method: Any = method_from_spec(spec)
    needs = method.needed()
    has_kl_term = spec.retain is not None and spec.retain.term == "kl"
    return bool(needs.reference or needs.prompts or has_kl_term)


def _check_sources(planned: Mapping[str, str | None], kind: str) -> None:
    """Raise PluginError where a plug-in's file is not the one of the plan."""
    for name, source in planned.items():
        digest = file_digest(name) or None
        if digest != source:
            raise PluginError(
                f"{kind} {name!r} differs from the one that was planned "
                f"({source or 'installed'}, now {digest or 'installed'}): its plugin file "
                "changed or is missing; start again with the same --plugin"
            )


def method_from_spec(spec: MethodSpec) -> Method | Wrapper:
    """Make the method of a spec."""
    kind = load_method(spec.name)
    _check_sources({spec.name: spec.source}, "method")
    values = {k: v for k, v in spec.hyperparameters.items() if "." not in k}
    with plugin_code(f"method {spec.name!r}"):
        return made(kind, values, f"method {spec.name!r}, as planned with another version,")


def rates_of(
    spec: MethodSpec, grid: MethodGrid, config: SweepConfig
) -> tuple[float | None, ...] | Range:
    """The learning rates of a method; (None,) where it trains nothing."""
    if not trains(spec.name):
        return (None,)
    stated = (rates for rates in (grid.learning_rates, config.learning_rates) if rates is not None)
    return next(stated, (load("methods", spec.name).learning_rate,))
