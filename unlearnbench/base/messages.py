"""Messages about wrong values: pydantic's errors in the words of a user of YAML."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from unlearnbench.base.errors import did_you_mean, shortened

Loc = tuple[str | int, ...]
"""Path of keys and indices: `("methods", 0, "beta")`."""
FaultKind = Literal["fault", "rule"]
"""Type of the errors in `ValidationError`. Messages about a `rule` name the whole path of the
value, even if the file ends above it."""


@dataclass(frozen=True)
class Fault:
    """A mistake in a section of a configuration."""

    loc: Loc
    """Path of the value from the section."""
    text: str
    """The message."""


def fault(text: str, *loc: str | int) -> ValidationError:
    """Return the error of one mistake.

    Args:
        text: The message.
        loc: Path of the value from the section that is validated.
    """
    return _errors([Fault(loc, text)])


def raise_faults(faults: Iterable[Fault], kind: FaultKind = "fault") -> None:
    """Raise one ValidationError for all faults, if there are any."""
    listed = list(faults)
    if listed:
        raise _errors(listed, kind)


def _errors(faults: Iterable[Fault], kind: FaultKind = "fault") -> ValidationError:
    """Return one error for all faults."""
    errors: list[InitErrorDetails] = []
    for mistake in faults:
        # The text stands in the context, because pydantic would read braces in a message.
        error = PydanticCustomError(kind, "{text}", {"text": mistake.text})
        errors.append(InitErrorDetails(type=error, loc=mistake.loc, input=None))
    return ValidationError.from_exception_data("configuration", errors)


def errors_below(error: ValidationError, loc: Loc) -> ValidationError:
    """Return the errors of a part of a section as errors of the section.

    Args:
        error: Errors of the part, with paths from the part.
        loc: Path of the part from the section.
    """
    errors: list[InitErrorDetails] = []
    for details in error.errors(include_url=False):
        part_error = PydanticCustomError(
            details["type"],  # pyright: ignore[reportArgumentType]
            "{text}",
            {**details.get("ctx", {}), "text": details["msg"]},
        )
        errors.append(
            InitErrorDetails(type=part_error, loc=(*loc, *details["loc"]), input=details["input"])
        )
    return ValidationError.from_exception_data(error.title, errors)


def describe_error(error: ErrorDetails) -> str:
    """Describe one pydantic error by the rule, the value and, if one is known, the fix.

    For example: `should be a valid number, got the text '1' (without the quotes it is a number)`.
    """
    kind = error["type"]
    value = error["input"]
    context = error.get("ctx", {})
    if kind in ("fault", "rule", "value_error"):
        return str(context.get("error", error["msg"]))
    if kind in _WHOLE:
        return _WHOLE[kind]

    if kind == "string_pattern_mismatch":
        rule = _rule_of_pattern(context["pattern"])
    else:
        rule = _YAML.get(kind, error["msg"].removeprefix("Input "))
    if kind == "literal_error" and isinstance(value, str):
        allowed = re.findall(r"'([^']*)'", context["expected"])
        hint = did_you_mean(value, allowed)
    else:
        hint = _hint(kind, value)
    return f"{rule}, got {describe_value(value)}{hint}"


def _rule_of_pattern(pattern: str) -> str:
    """Return the rule of a regular expression, in words if it is one of places or names."""
    schemes = re.match(r"\^\(\(([a-z0-9|]+)\)://", pattern)
    if schemes:
        *first, last = [f"{scheme}://" for scheme in schemes[1].split("|")]
        return f"should be a path, or an address that begins with {', '.join(first)} or {last}"
    if pattern == "^[A-Za-z0-9][A-Za-z0-9._-]*$":
        return "should begin with a letter or digit, and have only these, '.', '_' and '-'"
    return f"should have the form {pattern}"


def describe_errors(error: ValidationError) -> str:
    """Describe all errors of the values of a plug-in's fields, on one line."""
    described: list[str] = []
    for details in error.errors(include_url=False):
        place = ".".join(map(str, details["loc"])) or "settings"
        described.append(f"{place}: {describe_error(details)}")
    return "; ".join(described)


def describe_value(value: Any) -> str:
    """Return the kind and the text of a YAML value: `the text 'npo'`, `a list`, `2.0`."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shortened(value)}"
    if isinstance(value, float):
        # 2.0 is shown with its point, because it is another value than 2.
        text = f"{value:g}"
        return f"{text}.0" if text.lstrip("-").isdigit() else text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return "a list"
    if isinstance(value, Mapping):
        return "a section of keys"
    return f"the {type(value).__name__} {shortened(value)}"


def _hint(kind: str, value: Any) -> str:
    """Return how to correct a value of a wrong type; empty if that is not known."""
    if kind in ("float_type", "int_type") and isinstance(value, str):
        is_number = re.fullmatch(_NUMBER, value.strip()) is not None
        return " (without the quotes it is a number)" if is_number else ""
    if kind in ("float_type", "int_type") and isinstance(value, tuple):
        return " (only hyperparameters and the sweep's own lists span a grid)"
    if kind == "tuple_type" and isinstance(value, str | int | float):
        return f" (write [{value}])"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (quote it to make it text)"
    return ""


_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
_WHOLE = {
    "missing": "missing: this key is required",
    "too_short": "is empty, so there would be no run; give at least one",
    "extra_forbidden": "unknown key",
}
"""Messages that do not name the value, by pydantic's types of errors."""
_SECTION = "should be a section of keys"
_YAML = {
    "tuple_type": "should be a list",
    "dict_type": _SECTION,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
}
"""Rules about types in the words of YAML, by pydantic's types of errors."""
