"""Messages about wrong values: pydantic's errors in the words of a user of YAML."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from unlearnbench.base.errors import did_you_mean, shortened

Loc = tuple[str | int, ...]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """A mistake in a section of a configuration."""

    loc: Loc
    """Path from the section."""
    text: str


def fault(text: str, *loc: str | int) -> ValidationError:
    """The error that has one mistake."""
    return _errors([Fault(loc, text)])


def raise_faults(faults: Iterable[Fault], kind: Literal["fault", "rule"] = "fault") -> None:
    """Raise a ValidationError that has these faults, if there are any.

    kind  `rule`: messages name the whole path, even where the file ends above it
    """
    if listed := [*faults]:
        raise _errors(listed, kind)


def _errors(faults: Iterable[Fault], kind: Literal["fault", "rule"] = "fault") -> ValidationError:
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(kind, "{text}", {"text": mistake.text}),
            loc=mistake.loc,
            input=None,
        )
        for mistake in faults
    ]
    return ValidationError.from_exception_data("configuration", errors)


def errors_below(error: ValidationError, loc: Loc) -> ValidationError:
    """The errors of a value that is at `loc` of the section that is validated."""
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(
                details["type"],  # pyright: ignore[reportArgumentType]
                "{text}",
                {**details.get("ctx", {}), "text": details["msg"]},
            ),
            loc=(*loc, *details["loc"]),
            input=details["input"],
        )
        for details in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, errors)


def distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    """Refuse a list that has a value twice; 1 and 1.0 are equal, 1 and true are not."""
    first: dict[Any, int] = {}
    keys = [(value, isinstance(value, bool)) for value in values]
    places = [first.setdefault(key, i) for i, key in enumerate(keys)]
    raise_faults(
        Fault((i,), f"the same as entry {other}: duplicate run")
        for i, other in enumerate(places)
        if other != i
    )
    return values


def describe_error(error: ErrorDetails) -> str:
    """One pydantic error, naming the rule and the value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {describe_value(value)}{_hint(kind, value)}"
    if kind in _RULES:
        return f"{_RULES[kind].format_map(context)}, got {describe_value(value)}"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        near = meant(value) or did_you_mean(value, options) if isinstance(value, str) else ""
        any_of = "one of " if len(options) > 1 else ""
        return f"expected {any_of}{', '.join(options)}, got {describe_value(value)}{near}"
    if kind == "missing":
        return "missing: this key is required"
    if kind == "too_short":
        return "is empty: a sweep of zero runs"
    if kind == "extra_forbidden":
        return "unknown key"
    if kind in ("fault", "rule", "value_error"):
        return str(context.get("error", error["msg"]))
    return f"{error['msg']}, got {describe_value(value)}"


def describe_errors(error: ValidationError, noun: str = "settings") -> str:
    """All errors of the values of a plug-in's fields, which are called `noun`, on one line."""
    return "; ".join(
        f"{'.'.join(map(str, details['loc'])) or noun}: {describe_error(details)}"
        for details in error.errors(include_url=False)
    )


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
"""Meaning of names that no key or value is like."""


def meant(name: str) -> str:
    """The end of a message about a name that is not known."""
    return f"; did you mean '{_MEANT[name]}'?" if name in _MEANT else ""


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
