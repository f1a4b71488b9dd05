"""Plug-ins made from settings; a wrong or missing one is a PluginError of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.config.messages import describe_errors
from unlearnbench.errors import PluginError

_P = TypeVar("_P", bound=HyperParameters)


def made(
    kind: type[_P],
    settings: Mapping[str, Any],
    name: str,
    *,
    what: str = "settings",
    if_missing: str = "",
) -> _P:
    """Make a plug-in from its settings.

    what        its fields are called: `hyper-parameters`
    if_missing  advice where a value is missing

    Raises: PluginError where a value is missing or refused.
    """
    try:
        return kind.model_validate({**settings})
    except ValidationError as error:
        missing = any(one["type"] == "missing" for one in error.errors(include_url=False))
        text = describe_errors(error, what) + (if_missing if missing else "")
        raise PluginError(f"{name} cannot be made: {text}") from None


def example(
    kind: type[_P], settings: Mapping[str, Any], name: str, *, what: str = "settings"
) -> _P:
    """Make a plug-in with its defaults; required values come from a field's `examples`."""
    fields = kind.model_fields.items()
    known = {k: one.examples[0] for k, one in fields if one.is_required() and one.examples}
    hint = ". Give a value: --set KEY=VALUE, or `examples=[…]` in its Field"
    return made(kind, {**known, **settings}, name, what=what, if_missing=hint)


def with_tuples(value: Any) -> Any:
    """A value with tuples in place of lists, which settings have as JSON."""
    if isinstance(value, Mapping):
        return {key: with_tuples(one) for key, one in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list | tuple) else value
