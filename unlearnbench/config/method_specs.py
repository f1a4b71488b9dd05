"""Method specs: made from a configuration's values, and made into methods again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import broken, file_digest, find, load_method, trains
from unlearnbench.config.schema import MethodGrid, MethodSpec, RetainSpec, SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.errors import PluginError

if TYPE_CHECKING:  # these import torch
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method


def default_hyperparameters(name: str) -> dict[str, Any]:
    """The defaults of all hyper-parameters that have one."""
    fields = load_method(name).model_fields
    return {
        key: field.get_default(call_default_factory=True, validated_data={})
        for key, field in fields.items()
        if not field.is_required()
    }


def method_spec(
    name: str, hyperparameters: Mapping[str, Any], retain: RetainSpec | None = None
) -> MethodSpec:
    """Make a spec with all hyper-parameters. Raises: pydantic's ValidationError for a wrong one."""
    kind = load_method(name)
    with plugin_code(f"method {name!r}", passing=ValidationError):
        values = kind.model_validate(dict(hyperparameters)).resolved()
    if retain is not None and not trains(name):
        raise PluginError(f"method {name!r} trains nothing: it takes no retain term")
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise broken(
                find("methods", name),
                f"hyper-parameter {key!r} is a {type(value).__name__}, "
                "where only true/false, numbers and text can be part of a run's identity",
            )
    return MethodSpec(
        name=name, hyperparameters=values, retain=retain, source=file_digest(name) or None
    )


def method_from_spec(spec: MethodSpec) -> Method | Wrapper:
    """Make the method of a spec."""
    method = load_method(spec.name)
    digest = file_digest(spec.name) or None
    if digest != spec.source:
        raise PluginError(
            f"method {spec.name!r} differs from the one that was planned "
            f"({spec.source or 'installed'}, now {digest or 'installed'}): its plugin file "
            "changed or is missing; start again with the same --plugin"
        )
    try:
        with plugin_code(f"method {spec.name!r}", passing=ValidationError):
            return method.model_validate(spec.hyperparameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise PluginError(
            f"method {spec.name!r} does not accept its planned values: {key}: {first['msg']}; "
            "the installed version differs from the one the plan was made with"
        ) from None


def rates_of(
    spec: MethodSpec, grid: MethodGrid, config: SweepConfig
) -> tuple[float | None, ...] | Range:
    """The learning rates of a method; (None,) where it trains nothing."""
    if not trains(spec.name):
        return (None,)
    return config.learning_rates if grid.learning_rates is None else grid.learning_rates
