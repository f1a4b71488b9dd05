"""Messages about wrong values: pydantic's errors in the words of a user of YAML."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from unlearnbench.base.errors import did_you_mean, shortened

Loc = tuple[str | int, ...]


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


def describe_error(error: ErrorDetails) -> str:
    """One pydantic error, naming the rule and the value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in ("fault", "rule", "value_error"):
        return str(context.get("error", error["msg"]))
    if kind in _WHOLE:
        return _WHOLE[kind]
    hint = _hint(kind, value)
    if kind == "literal_error" and isinstance(value, str):
        hint = did_you_mean(value, re.findall(r"'([^']*)'", context["expected"]))
    rule = _YAML.get(kind, error["msg"].removeprefix("Input "))
    if kind == "string_pattern_mismatch":
        rule = _rule_of_pattern(context["pattern"])
    return f"{rule}, got {describe_value(value)}{hint}"


def _rule_of_pattern(pattern: str) -> str:
    """The rule of a regular expression in words, if it is one of places or names."""
    schemes = re.match(r"\^\(\(([a-z0-9|]+)\)://", pattern)
    if schemes:
        *first, last = [f"{scheme}://" for scheme in schemes[1].split("|")]
        return f"should be a path, or an address that begins with {', '.join(first)} or {last}"
    if pattern == "^[A-Za-z0-9][A-Za-z0-9._-]*$":
        return "should begin with a letter or digit, and have only these, '.', '_' and '-'"
    return f"should have the form {pattern}"


def describe_errors(error: ValidationError) -> str:
    """All errors of the values of a plug-in's fields, on one line."""
    return "; ".join(
        f"{'.'.join(map(str, details['loc'])) or 'settings'}: {describe_error(details)}"
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
        return " (only hyperparameters and the sweep's own lists span a grid)"
    if kind == "tuple_type" and isinstance(value, str | int | float):
        return f" (write [{value}])"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (quote it to make it text)"
    return ""


_WHOLE = {
    "missing": "missing: this key is required",
    "too_short": "is empty, so there would be no run; give at least one",
    "extra_forbidden": "unknown key",
}
_SECTION = "should be a section of keys"
_YAML = {
    "tuple_type": "should be a list",
    "dict_type": _SECTION,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
}
"""Python's types by the names that YAML has for them."""
