"""Messages about wrong values: pydantic's errors in the words of a user of YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from unlearnbench.config.yaml_tree import Loc
from unlearnbench.errors import did_you_mean, shortened

_T = TypeVar("_T")
MISSING = "missing: this key is required"
ZERO_RUNS = "is empty: a sweep of zero runs"
LIKE_ENOUGH = 0.8
"""Least similarity of a key to another of its section, such as `learning_rates` to `learning_rate`,
at which no other section is searched for it."""


@dataclass(frozen=True)
class Fault:
    """A mistake in a section of a configuration."""

    loc: Loc
    """Path from the section; may go on into the members of a union."""
    text: str


def raise_faults(faults: Iterable[Fault]) -> None:
    """Raise a ValidationError that has these faults, if there are any."""
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("fault", "{text}", {"text": one.text}), loc=one.loc, input=None
        )
        for one in faults
    ]
    if errors:
        raise ValidationError.from_exception_data("configuration", errors)


def faults_of(error: ValidationError, model: type[BaseModel], owner: str) -> Iterator[Fault]:
    """The faults of a section that `model` describes and messages call `owner`."""
    for one in error.errors(include_url=False):
        loc, kind = one["loc"], one["type"]
        if kind == "extra_forbidden":
            yield Fault(loc, _unknown_key(model, loc, owner))
        elif kind != "too_short":
            yield Fault(loc, describe_error(one))
        elif not one["input"]:  # else it is short because its items are wrong
            yield Fault(loc, ZERO_RUNS)


def repeats(values: Iterable[Any]) -> Iterator[Fault]:
    """Faults for values that are in a list twice; 1 and 1.0 are equal, 1 and true are not."""
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        other = first.setdefault(repr(float(value) if is_number else value), index)
        if other != index:
            yield Fault((index,), f"the same as entry {other}: duplicate run")


def distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """Refuse a list that has a value twice."""
    raise_faults(repeats(values))
    return values


def describe_error(error: ErrorDetails) -> str:
    """One pydantic error, naming the rule and the value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    expected = _EXPECTED.get(kind)
    if expected is not None:
        hint = " (write {retain95: ID})" if error["loc"][-1:] == ("retain",) else ""
        return f"expected {expected}, got {describe_value(value)}{_hint(kind, value) or hint}"
    rule = _RULES.get(kind)
    if rule is not None:
        return f"{rule.format_map(context)}, got {describe_value(value)}"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        near = did_you_mean(_MEANT.get(value, value), options) if isinstance(value, str) else ""
        one_of = "one of " if len(options) > 1 else ""
        return f"expected {one_of}{', '.join(options)}, got {describe_value(value)}{near}"
    if kind == "missing":
        return MISSING
    if kind in ("fault", "value_error"):
        return str(context.get("error", error["msg"]))
    return f"{error['msg']}, got {describe_value(value)}"


def describe_errors(error: ValidationError, what: str = "settings") -> str:
    """All errors of the values of a plug-in's fields, which are called `what`, on one line."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or what}: {describe_error(one)}"
        for one in error.errors(include_url=False)
    )


def _unknown_key(model: type[BaseModel], loc: Loc, owner: str) -> str:
    """The nearest known key, in this section or another, and the keys of this one."""
    section = _section_of(model, loc[:-1]) or model
    key, fields = str(loc[-1]), section.model_fields
    names = [str(step) for step in loc[:-1] if isinstance(step, str)]
    near = (
        (f"; did you mean '{_MEANT[key]}'?" if key in _MEANT else "")
        or did_you_mean(key, fields, LIKE_ENOUGH)
        or _elsewhere(model, key, names)
        or did_you_mean(key, fields)
        or ";"
    )
    listed = ", ".join(fields) or "no settings"
    return f"unknown key{near} {names[-1] if names else owner} takes: {listed}"


def _elsewhere(model: type[BaseModel], key: str, names: Sequence[str]) -> str:
    """Hint at the section that has a key of this name, where that may be what is meant.

    Preparation has a learning rate and a warm-up, too, and they change the start model of every
    run: they are no hint to a key that stands outside `models`.
    """
    everywhere = _paths_to(model, key)
    found = [one for one in everywhere if names[:1] == ["models"] or ".preparation." not in one]
    if everywhere and not found:
        section = everywhere[0].removesuffix(f".{key}")
        return f"; it is a key of {section}, which changes the start model;"
    least = min((path.count(".") for path in found), default=0)
    nearest = [path for path in found if path.count(".") == least]
    if len(nearest) > 1:
        return f"; it is a key of other sections: {' and '.join(nearest)};"
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def describe_value(value: Any) -> str:
    """The kind and text of a YAML value."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shortened(value)}"
    if isinstance(value, float):
        text = f"{value:g}"  # 2.0 stays a float to the reader
        return f"{text}.0" if text.lstrip("-").isdigit() else text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return "a list"
    if isinstance(value, Mapping):
        return "a section of keys"
    return f"the {type(value).__name__} {shortened(value)}"


def _section_of(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The settings class of the section at a path."""
    found: type[BaseModel] | None = model
    for step in loc:
        if isinstance(step, str):
            info = found.model_fields.get(step) if found else None
            found = _model_in(info.annotation) if info else None
    return found


def _paths_to(model: type[BaseModel], key: str, above: str = "") -> list[str]:
    """Dotted paths of every setting of that name."""
    found: list[str] = []
    for name, info in model.model_fields.items():
        if name == key:
            found.append(above + name)
        if below := _model_in(info.annotation):
            is_list = str(info.annotation).startswith("tuple")
            found += _paths_to(below, key, f"{above}{name}.{'0.' if is_list else ''}")
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _hint(kind: str, value: Any) -> str:
    if kind in ("float_type", "int_type") and isinstance(value, str):
        number = re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", value.strip())
        return " (without the quotes it is a number)" if number else ""
    if kind in ("float_type", "int_type") and isinstance(value, tuple):
        return " (only hyper-parameters and the sweep's own lists span a grid)"
    if kind == "tuple_type" and isinstance(value, str | int | float):
        return f" (write [{value}])"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (quote it to make it text)"
    return ""


_MEANT = {
    "gpus": "resources.gpu",
    "forget_split": "forget_fractions: [0.05]",
    "llama3": "chat",
    "llama-3": "chat",
}
"""What is meant by names that no key or value is like."""

_EXPECTED = {
    "float_type": "a float",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "finite_number": "a finite number",
}

_RULES = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "multiple_of": "must be a multiple of {multiple_of:g}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
}
