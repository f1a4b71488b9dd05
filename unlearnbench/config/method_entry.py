"""The keys of a method's entry in a configuration, each of which takes one value or several.

The keys of an entry are the fields of its method's class. The method has one value of each, but an
entry may state several:

    {method: npo, beta: 0.1}                                  one value
    {method: npo, beta: [0.1, 0.5]}                           a list, which spans a grid
    {method: npo, beta: {low: 0.05, high: 1.0, log: true}}    a range, which a search draws from

So each method has an entry model, generated from its class: the same fields, each with an *axis*
(one of these three forms) in place of the value. Each value is checked by the rules of the method's
own field, and pydantic reports a wrong one with its place, such as `methods.0.beta.1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    create_model,
)
from pydantic.fields import FieldInfo

from unlearnbench.api.hyperparameters import OWN_KEYS
from unlearnbench.api.registry import load_method, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.base.messages import describe_value, errors_below
from unlearnbench.config.entries import read_entries
from unlearnbench.config.evaluation_settings import EntryEvaluation
from unlearnbench.config.method_settings import Positive, Rates, RetainSpec, RetainTermName
from unlearnbench.config.search import Range
from unlearnbench.config.section import Settings
from unlearnbench.config.training_settings import TrainingSettings

if TYPE_CHECKING:  # it imports torch
    from unlearnbench.api.modifier import Modifier

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Axis = tuple[Any, ...] | Range
"""The values of a hyperparameter, after validation. A single value is a tuple of one."""


def axis(value_type: Any, *rules: Any) -> Any:
    """Make the type of a key that takes one value, a list of values, or a range.

    Args:
        value_type: Type of one value, for example `float`.
        rules: Constraints of the value, such as `Gt(0)` in a field's metadata.

    Returns:
        An annotation for pydantic, whose validated value is an `Axis`.
    """
    value: Any = Annotated[value_type, *rules] if rules else value_type
    values: Any = Annotated[tuple[value, ...], Field(min_length=1)]
    read = partial(_read_axis, value)
    return Annotated[values, WrapValidator(read, json_schema_input_type=value | values | Range)]


def _read_axis(value_type: Any, stated: Any, read_list: Callable[[Any], Any]) -> Axis:
    """Read an axis in the form in which it is stated, so that an error is about this form.

    Args:
        value_type: Type of one value, which may be `Annotated` with constraints.
        stated: The value of the key in the YAML.
        read_list: Checks a tuple of values, and each value in it.
    """
    if isinstance(stated, Mapping) and stated.keys() & Range.model_fields.keys():
        return _check_range(value_type, Range.model_validate(stated))
    if isinstance(stated, tuple | list):
        values: tuple[Any, ...] = read_list(stated)
        return values
    # The place of an error ends in an index of 0, which the loader drops: the YAML has no list.
    one_value: tuple[Any, ...] = read_list((stated,))
    return one_value


def _check_range(value_type: Any, values: Range) -> Range:
    """Check that both ends of a range are values of a type.

    Args:
        value_type: Type of one value, which may be `Annotated` with constraints.
        values: The range.

    Returns:
        The range, with floats in place of whole numbers if the type takes floats.
    """
    is_annotated = hasattr(value_type, "__metadata__")
    bare_type = get_args(value_type)[0] if is_annotated else value_type
    alternatives = get_args(bare_type) or (bare_type,)  # `int | None` has two
    takes_floats = float in alternatives
    if not takes_floats and int not in alternatives:
        raise ValueError("takes no range, because only numbers have ranges; write a list")
    if not takes_floats and not values.whole:
        raise ValueError("low, high and step must be whole numbers")

    for end in ("low", "high"):
        try:
            TypeAdapter(value_type).validate_python(getattr(values, end), strict=True)
        except ValidationError as error:
            raise errors_below(error, (end,)) from None
    return values.of_floats if takes_floats else values


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


def _retain_section(value: Any) -> Any:
    """Write `nll` as `{term: nll}`."""
    return {"term": value} if isinstance(value, str) else value


def _as_tuple(value: Any) -> Any:
    """Write `nll` as `[nll]`."""
    return value if isinstance(value, tuple) else (value,)


_StatedRetain = RetainTermName | RetainEntry | None
RetainEntries = Annotated[
    tuple[Annotated[RetainEntry | None, BeforeValidator(_retain_section)], ...],
    Field(min_length=1),
    BeforeValidator(
        _as_tuple,
        json_schema_input_type=_StatedRetain
        | Annotated[tuple[_StatedRetain, ...], Field(min_length=1)],
    ),
]
"""The value of `retain`: `nll`, `{term: kl}`, null for no term, or a list of these."""


def entry_model(name: Any) -> type[BaseModel]:
    """Return the keys of an entry, with the hyperparameters of its method.

    Args:
        name: The value of `method` in the entry. If it is no method, all other keys are allowed,
            because the name is the mistake to report, not the keys.
    """
    if isinstance(name, str):
        with suppress(PluginError):
            return _entry_model(name, load_method(name))
    return _unknown_method_model()


@cache
def _entry_model(name: str, method: type[BaseModel]) -> type[BaseModel]:
    """Generate the entry model of a method.

    The class is an argument so that the cache notices when another plug-in with the same name is
    loaded.
    """
    fields = {"method": _METHOD, **_axes_of(method)}
    if trains(name):
        fields |= _KEYS_OF_TRAINING
    model: type[BaseModel] = create_model("MethodEntry", __config__=_STRICT, **fields)
    return model


@cache
def _unknown_method_model() -> type[BaseModel]:
    """Generate the model of an entry without a known method, which ignores all other keys."""
    fields: dict[str, Any] = {"method": _METHOD}
    any_keys = ConfigDict(extra="ignore")
    model: type[BaseModel] = create_model("MethodEntry", __config__=any_keys, **fields)
    return model


def axes_model(plugin: type[BaseModel]) -> type[BaseModel]:
    """Generate a model with the fields of a modifier, each as an axis."""
    model: type[BaseModel] = create_model(plugin.__name__, __config__=_STRICT, **_axes_of(plugin))
    return model


def _axes_of(plugin: type[BaseModel]) -> dict[str, Any]:
    """Turn each field of a plug-in into an axis, in the form that `create_model` takes."""
    fields: dict[str, Any] = {}
    for key, info in plugin.model_fields.items():
        default = ... if info.is_required() else default_of(info)
        field = Field(default, description=info.description)
        fields[key] = (axis(info.annotation, *info.metadata), field)
    return fields


def default_of(info: FieldInfo) -> Any:
    """Return the default of a field, which may have a factory in place of a value."""
    return info.get_default(call_default_factory=True, validated_data={})


def _method_name(value: Any) -> str:
    """Check that there is a method with this name."""
    if not isinstance(value, str):
        raise ValueError(f"expected a method's name or a section, got {describe_value(value)}")
    try:
        load_method(value)
    except PluginError as error:
        raise ValueError(str(error)) from None
    return value


def _modifiers(value: Any, *, of_one_method: bool) -> dict[str, dict[str, Axis]]:
    """Read a list of modifiers.

    Args:
        value: Names, or sections such as `{sam: {rho: [0.01, 0.1]}}`.
        of_one_method: Whether all of them change the same method. Then a method takes at most one
            modifier of each kind, except of kinds that allow `several`.

    Returns:
        The settings that are stated, by modifier. A modifier without settings has an empty mapping.

    Raises:
        ValidationError: With the errors of all entries: an unknown name, a name that is there
            twice or is a key of an entry, a wrong setting, two modifiers of one kind.
    """
    name_of_kind: dict[str, str] = {}

    def read(
        name: str, plugin: type[Modifier], settings: Mapping[str, Any]
    ) -> tuple[str, dict[str, Axis]]:
        if name in OWN_KEYS:
            # Its settings would have the names of others, such as `retain.weight`.
            raise PluginError(
                f"a modifier cannot be called {name!r}, which is a key of a method's entry; "
                "rename its file"
            )
        if of_one_method and not plugin.several:
            first = name_of_kind.setdefault(plugin.kind, name)
            if first != name:
                raise PluginError(f"{first}, of the kind {plugin.kind}, is there already; keep one")
        axes = axes_model(plugin).model_validate(settings)
        return name, {key: getattr(axes, key) for key in settings}

    return dict(read_entries(value, "modifiers", read))


_StatedModifiers = tuple[str | dict[str, Any], ...]
MODIFIERS = PlainValidator(
    partial(_modifiers, of_one_method=False), json_schema_input_type=_StatedModifiers
)
"""Reads the sweep's modifiers. Each of them is tried by itself."""
_MODIFIERS_OF_ENTRY = PlainValidator(
    partial(_modifiers, of_one_method=True), json_schema_input_type=_StatedModifiers
)
"""Reads an entry's modifiers, which are applied together."""

_METHOD: Any = (Annotated[str, BeforeValidator(_method_name)], Field(description="its name"))
_KEYS_OF_TRAINING: dict[str, Any] = {
    "retain": (
        RetainEntries,
        Field((None,), description="a term that keeps the other rows, or {term: …, weight: …}"),
    ),
    "modifiers": (
        Annotated[dict[str, dict[str, Axis]], _MODIFIERS_OF_ENTRY],
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
"""Keys of a method that trains, besides its hyperparameters, as `create_model` takes them."""
