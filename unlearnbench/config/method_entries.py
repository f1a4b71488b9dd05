"""A method entry of a sweep: `{method: npo, beta: [0.1, 0.5], retain: {term: nll}}` → its grid.

Lists span the grid; a search may draw from ranges, `beta: {low: 0.05, high: 1.0, log: true}`. Each
value is checked by the method's own fields, so that a plug-in gets the messages of a built-in one.
Every function raises pydantic's ValidationError, whose paths begin at the value that it was given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
)
from pydantic_core import InitErrorDetails, PydanticKnownError

from unlearnbench.api import registry
from unlearnbench.api.hyperparameters import OWN_KEYS
from unlearnbench.config import method_specs
from unlearnbench.config.messages import (
    ZERO_RUNS,
    Fault,
    describe_error,
    describe_value,
    distinct,
    faults_of,
    raise_faults,
    repeats,
)
from unlearnbench.config.plugin_entries import Entry, read_entries
from unlearnbench.config.schema import (
    HyperParameter,
    MethodGrid,
    MethodSpec,
    RetainSpec,
    RetainTermName,
)
from unlearnbench.config.search import Range
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.errors import PluginError

if TYPE_CHECKING:  # imports torch
    from unlearnbench.api.modifier import Modifier

WEIGHT = "retain.weight"
MAX_RUNS = 100_000
"""Most runs of a sweep, all seeds counted."""
TOO_MANY = (
    f"a sweep has at most {MAX_RUNS} runs; shorten the lists, or search: "
    "{kind: random, trials: …}"
)
Axis = tuple[Any, ...] | Range
"""The values of a hyper-parameter."""


@dataclass(frozen=True)
class SweepContext:
    """The parts of a configuration that its method entries depend on."""

    searches: bool = False
    """There may be ranges."""
    training: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The sweep's own training section, which an entry's changes in part."""


def read_entry(value: Any, info: ValidationInfo) -> MethodGrid:
    """The grid of one entry, whose faults are told in the words of its method."""
    try:
        return read_grid(value, _sweep(info))
    except ValidationError as error:
        name = value.get("method") if isinstance(value, Mapping) else None
        raise_faults(faults_of(error, entry_model(value), str(name or "an entry")))
        raise


def read_grid(value: Any, sweep: SweepContext) -> MethodGrid:
    """The grid of one entry: a section, or the name of a method alone."""
    section = value if isinstance(value, Mapping) else {"method": value}
    entry: Any = entry_model(value).model_validate(section, context=sweep)
    axes: dict[str, Axis] = {
        key: getattr(entry, key) for key in section if key not in OWN_KEYS and key != "method"
    }
    axes |= {f"{m}.{k}": axis for m, own in entry.modifiers.items() for k, axis in own.items()}
    retains, weights = entry.retain or ((None,), None)
    ranges = {key: axis for key, axis in axes.items() if isinstance(axis, Range)}
    if weights is not None:
        ranges[WEIGHT] = weights
    if ranges:  # no combination of the ends may be refused
        expand(entry.method, axes, retains, weights, entry.modifiers, ends=("low", "high"))
    return MethodGrid(
        specs=expand(entry.method, axes, retains, weights, entry.modifiers),
        learning_rates=entry.learning_rates,
        training=entry.training,
        ranges=ranges,
    )


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
        [getattr(axis, end) for end in ends] if isinstance(axis, Range) else axis
        for axis in axes.values()
    ]
    if weights is not None:
        retains = tuple(
            retain.model_copy(update={"weight": getattr(weights, end)})
            for retain in retains
            if retain is not None
            for end in ends
        )
    if (count := math.prod(map(len, (*lists, retains)))) > MAX_RUNS:
        raise_faults([Fault((), f"{count} settings, and {TOO_MANY}")])
    specs: list[MethodSpec] = []
    refused: dict[str, None] = {}
    for *values, retain in itertools.product(*lists, retains):
        chosen = dict(zip(axes, values, strict=True))
        try:
            specs.append(method_specs.method_spec(name, chosen, retain, modifiers))
        except ValidationError as error:
            # Each value is right by itself: the method refuses their combination.
            refused |= dict.fromkeys(map(describe_error, error.errors(include_url=False)))
        except PluginError as error:
            refused[str(error)] = None
            break
    raise_faults(Fault((), text) for text in refused)
    return tuple(specs)


def entry_model(value: Any) -> type[BaseModel]:
    """The fields of an entry, the hyper-parameters of its method among them.

    Where no method can be found, any other key is allowed: the name is the mistake.
    """
    name = value.get("method") if isinstance(value, Mapping) else value
    try:
        method = registry.load_method(name) if isinstance(name, str) else None
    except PluginError:
        method = None
    return _entry_model(str(name), method)


@cache
def _entry_model(name: str, method: type[Any] | None) -> type[BaseModel]:
    fields: dict[str, Any] = {"method": (Annotated[str, BeforeValidator(_method_name)], ...)}
    fields |= _axes_of(method) if method is not None else {}
    fields |= {
        "modifiers": (Annotated[dict[str, dict[str, Axis]], PlainValidator(_modifiers)], {}),
        "retain": (Annotated[_RetainEntry | None, PlainValidator(_retain_terms)], None),
        "learning_rates": (Annotated[Axis | None, PlainValidator(_own_rates)], None),
        "training": (Annotated[TrainingSettings | None, PlainValidator(_own_training)], None),
    }
    if method is not None and not registry.trains(name):
        for key in OWN_KEYS[1:]:
            default: Any = {} if key == "modifiers" else None
            fields[key] = (Annotated[Any, PlainValidator(partial(_refuse, name, key))], default)
    config = ConfigDict(extra="ignore" if method is None else "forbid", strict=True)
    model: type[BaseModel] = create_model("MethodEntry", __config__=config, **fields)
    return model


def _axes_of(plugin: type[BaseModel]) -> dict[str, Any]:
    """Fields whose values are those of a plug-in's fields, or lists or ranges of them."""
    return {
        key: (
            Annotated[Axis, PlainValidator(partial(_axis, plugin, key))],
            ... if info.is_required() else None,
        )
        for key, info in plugin.model_fields.items()
    }


def _modifiers(value: Any, info: ValidationInfo) -> dict[str, dict[str, Axis]]:
    """The settings that a list of modifiers states, each as an axis of the grid, by name."""
    if not isinstance(value, tuple):
        raise ValueError(f"expected a list, such as [gru, {{sam: …}}], got {describe_value(value)}")
    kinds: dict[str, str] = {}

    def read(
        name: str, plugin: type[Modifier], settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Axis]]:
        kind = name if plugin.several else plugin.kind
        if kind in kinds:
            text = f"{kinds[kind]}, of the kind {plugin.kind}, is in the list already; keep one"
            raise PluginError(text)
        kinds[kind] = name
        model: Any = create_model("Settings", __config__=_STRICT, **_axes_of(plugin))
        axes = model.model_validate(settings, context=info.context)
        return name, {key: getattr(axes, key) for key in settings}

    entries: list[Entry] = []
    for index, item in enumerate(value):
        if isinstance(item, Mapping) and len(item) == 1:
            entries += [((index, name), name, own) for name, own in item.items()]
        else:
            entries.append(((index,), item, {}))
    return dict(read_entries(entries, "modifiers", read))


def _sweep(info: ValidationInfo) -> SweepContext:
    return info.context if isinstance(info.context, SweepContext) else SweepContext()


def _method_name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a method's name or a section, got {describe_value(value)}")
    try:
        registry.load_method(value)
    except PluginError as error:
        raise ValueError(str(error)) from None
    return value


def _refuse(name: str, key: str, value: Any) -> None:
    if value is not None:
        noun = "retain term" if key == "retain" else key.replace("_", " ")
        raise ValueError(
            f"{name} changes the model's input and trains nothing: it takes no {noun}; "
            "remove the key"
        )


def _axis(method: type[BaseModel], key: str, value: Any, info: ValidationInfo) -> Axis:
    """The values of one hyper-parameter, each checked by the method's own field."""
    if isinstance(value, Mapping) and value.keys() & Range.model_fields.keys():
        annotation = method.model_fields[key].annotation
        kinds = get_args(annotation) or (annotation,)
        kind = float if float in kinds else int if int in kinds else None
        found = read_range(value, kind, _sweep(info))
        ends = {"low": found.low, "high": found.high}.items()
        raise_faults(Fault((end,), t) for end, one in ends for t in _refusals(method, key, one))
        return found
    values = value if isinstance(value, tuple) else (value,)
    raise_faults([Fault((), ZERO_RUNS)] if not values else [])
    wrong = (Fault((i,), t) for i, one in enumerate(values) for t in _refusals(method, key, one))
    raise_faults([*wrong, *repeats(values)])
    return values


def _refusals(method: type[BaseModel], key: str, value: Any) -> Iterator[str]:
    """The reasons for which the method's field does not take a value."""
    if not isinstance(value, HyperParameter):
        yield f"expected one value or a list of values, got {describe_value(value)}"
    elif value != value:
        yield "expected a number, got nan"
    else:
        try:
            method.model_validate({key: value})
        except ValidationError as error:
            found = error.errors(include_url=False)
            yield from (describe_error(one) for one in found if one["loc"][:1] == (key,))


def read_range(value: Any, kind: type | None, sweep: SweepContext) -> Range:
    """A range of floats or whole numbers (`kind`; None: the axis takes neither)."""
    found = Range.model_validate(value)
    wrong = ""
    if not sweep.searches:
        wrong = (
            "a range is drawn from by a search, and a grid takes a list, such as "
            f"[{found.low:g}, {found.high:g}]; write one, or search: {{kind: random, trials: 20}}"
        )
    elif kind is None:
        wrong = "takes no range, which is of floats or whole numbers; write a list"
    elif kind is int and not found.whole:
        wrong = "low, high and step must be whole numbers"
    raise_faults([Fault((), wrong)] if wrong else [])
    if kind is float:
        numbers = found.model_dump(include={"low", "high", "step"}, exclude_none=True)
        found = found.model_copy(update={name: float(one) for name, one in numbers.items()})
    return found


_STRICT = ConfigDict(extra="forbid", strict=True)
_Positive = Annotated[FiniteFloat, Field(gt=0)]
_RATES = TypeAdapter(
    Annotated[tuple[_Positive, ...], Field(min_length=1), AfterValidator(distinct)]
)


def read_rates(value: Any, info: ValidationInfo) -> tuple[float, ...] | Range:
    """A list of positive numbers, none twice, or a range of them."""
    if isinstance(value, Mapping):
        found = read_range(value, float, _sweep(info))
        if found.low <= 0:
            raise_faults([Fault(("low",), f"must be above 0, got {found.low:g}")])
        return found
    return _RATES.validate_python(value, strict=True)


def _own_rates(value: Any, info: ValidationInfo) -> Axis | None:
    return None if value is None else read_rates(value, info)


def _own_training(value: Any, info: ValidationInfo) -> TrainingSettings | None:
    """The sweep's settings with the keys that the entry states."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise PydanticKnownError("model_type", {"class_name": "TrainingSettings"})
    try:
        return TrainingSettings.model_validate({**_sweep(info).training, **value})
    except ValidationError as error:
        own = [
            InitErrorDetails(type=e["type"], loc=e["loc"], input=e["input"], ctx=e.get("ctx", {}))
            for e in error.errors()
            if not e["loc"] or e["loc"][0] in value
        ]
        if not own:  # the others are the sweep's own, and reported there
            return None
        raise ValidationError.from_exception_data(error.title, own) from None


def _listed(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _weights(value: Any, info: ValidationInfo) -> tuple[float, ...] | Range:
    return read_rates(value if isinstance(value, Mapping) else _listed(value), info)


class _RetainEntry(BaseModel):
    """`{term: nll, weight: 1.0}`; both may be lists, and the weight a range."""

    model_config = ConfigDict(extra="forbid", strict=True)

    term: Annotated[tuple[RetainTermName, ...], BeforeValidator(_listed), Field(min_length=1)]
    weight: Annotated[tuple[float, ...] | Range, PlainValidator(_weights)] = (1.0,)


_Retain = tuple[tuple[RetainSpec | None, ...], Range | None]
"""Retain terms, and the range of their weights where there is one."""


def _retain_term(value: Any, info: ValidationInfo) -> _Retain:
    if value is None:
        return (None,), None
    section = value if isinstance(value, Mapping) else {"term": value}
    entry = _RetainEntry.model_validate(section, context=info.context)
    if isinstance(entry.weight, Range):
        low = float(entry.weight.low)
        return tuple(RetainSpec(term=term, weight=low) for term in entry.term), entry.weight
    pairs = itertools.product(entry.term, entry.weight)
    return tuple(RetainSpec(term=term, weight=weight) for term, weight in pairs), None


_RETAINS = TypeAdapter(tuple[Annotated[Any, PlainValidator(_retain_term)], ...])


def _retain_terms(value: Any, info: ValidationInfo) -> _Retain:
    """Retain terms; a list, or a list within a term, spans the grid."""
    if not isinstance(value, tuple):
        return _retain_term(value, info)
    if not value:
        raise_faults([Fault((), f"{ZERO_RUNS}; null is no retain term")])
    found: list[RetainSpec | None] = []
    faults: list[Fault] = []
    for index, (terms, weights) in enumerate(_RETAINS.validate_python(value, context=info.context)):
        if weights is not None:
            text = "a range of weights needs its retain term alone: write an entry for each term"
            faults.append(Fault((index, "weight"), text))
        if any(term in found for term in terms):
            faults.append(Fault((index,), "the same retain term again: duplicate run"))
        found += terms
    raise_faults(faults)
    return tuple(found), None
