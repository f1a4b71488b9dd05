"""Settings as they were before they were stored as JSON.

JSON has lists in place of tuples, and no infinite floats. `json_ready` writes these floats as the
texts `inf` and `-inf`.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo


def with_tuples(value: Any) -> Any:
    """Return a value of JSON or YAML with tuples in place of lists, as settings have them."""
    if isinstance(value, Mapping):
        return {key: with_tuples(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return tuple(with_tuples(below) for below in value)
    return value


INFINITE = {"inf": math.inf, "-inf": -math.inf}
"""Floats by the text that `json_ready` writes for them."""


def restored(kind: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plug-in's settings as they were before they were stored as JSON.

    The text `inf` stays a text if the plug-in's field takes it.

    Args:
        kind: The plug-in's class.
        settings: The stored settings. A setting without a field keeps its texts.
    """
    values: dict[str, Any] = {}
    for key, stored in settings.items():
        value = with_tuples(stored)
        info = kind.model_fields.get(key)
        if info is not None and has_infinite_text(value) and not _admits(info, value):
            value = _with_infinite_floats(value)
        values[key] = value
    return values


def _admits(info: FieldInfo, value: Any) -> bool:
    """Whether a field takes a value as it is, without a conversion."""
    declared: Any = info.annotation
    if info.metadata:
        declared = Annotated[info.annotation, *info.metadata]
    try:
        TypeAdapter(declared).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def has_infinite_text(value: Any) -> bool:
    """Whether a value is, or contains, a text that stands for an infinite float."""
    if isinstance(value, Mapping):
        return any(map(has_infinite_text, value.values()))
    if isinstance(value, tuple):
        return any(map(has_infinite_text, value))
    return isinstance(value, str) and value in INFINITE


def _with_infinite_floats(value: Any) -> Any:
    """Return a value with floats in place of the texts that stand for infinite ones."""
    if isinstance(value, Mapping):
        return {key: _with_infinite_floats(below) for key, below in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_infinite_floats, value))
    return INFINITE.get(value, value) if isinstance(value, str) else value
