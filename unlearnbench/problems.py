"""What is wrong with a value, in words: pydantic's errors as a user of YAML would say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from unlearnbench.bounded import shortened
from unlearnbench.document import Loc
from unlearnbench.errors import did_you_mean

ZERO_RUNS = "is empty: a sweep of zero runs"


def in_words(error: ErrorDetails) -> str:
    """One pydantic error, naming the rule and the value."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    expected = _EXPECTED.get(kind)
    if expected is not None:
        return f"expected {expected}, got {value_in_words(value)}{_hint(kind, value)}"
    rule = _RULES.get(kind)
    if rule is not None:
        return f"{rule(context)}, got {value_in_words(value)}"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        near = did_you_mean(value, options) if isinstance(value, str) else ""
        one_of = "one of " if len(options) > 1 else ""
        return f"expected {one_of}{', '.join(options)}, got {value_in_words(value)}{near}"
    if kind == "missing":
        return "missing: this key is required"
    if kind == "value_error":
        return str(context["error"])
    return f"{error['msg']}, got {value_in_words(value)}"


def unknown_key(key: str, known: Iterable[str], owner: str, hint: str = "") -> str:
    """An unknown key: the nearest valid one (`hint` is nearer), and what may stand here."""
    takes = f"{owner} takes: {', '.join(known)}"
    near = hint or did_you_mean(key, known)
    return f"unknown key{near} {takes}" if near else f"unknown key; {takes}"


def value_in_words(value: Any) -> str:
    """A YAML value as its reader would call it."""
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


def section_of(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The settings class that describes the section at a path."""
    for step in loc:
        if isinstance(step, int):
            continue
        if step not in model.model_fields:
            return None
        below = _model_in(model.model_fields[step].annotation)
        if below is None:
            return None
        model = below
    return model


def paths_to(model: type[BaseModel], key: str, above: str = "") -> list[str]:
    """Dotted paths of every setting of that name, to help a key that is in the wrong section."""
    found: list[str] = []
    for name, info in model.model_fields.items():
        if name == key:
            found.append(above + name)
        below = _model_in(info.annotation)
        if below is not None:
            is_list = str(info.annotation).startswith("tuple")
            found += paths_to(below, key, f"{above}{name}.{'0.' if is_list else ''}")
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


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

_RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"must be above {c['gt']:g}",
    "greater_than_equal": lambda c: f"must be at least {c['ge']:g}",
    "less_than": lambda c: f"must be below {c['lt']:g}",
    "less_than_equal": lambda c: f"must be at most {c['le']:g}",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']:g}",
    "string_too_short": lambda _: "must not be empty",
    "string_pattern_mismatch": lambda c: f"must match {c['pattern']}",
}
