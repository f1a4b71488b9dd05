"""Method specs: made from a configuration's values, and made into methods again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import broken, file_digest, find, load, load_method, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.config.schema import MethodGrid, MethodSpec, RetainSpec, SweepConfig
from unlearnbench.config.search import Range

if TYPE_CHECKING:  # these import torch
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.api.modifier import Modifier


def default_hyperparameters(name: str, modifiers: Iterable[str] = ()) -> dict[str, Any]:
    """The defaults of all hyper-parameters that have one, and of modifiers' settings."""
    kinds = {
        "": load_method(name),
        **{f"{modifier}.": load("modifiers", modifier) for modifier in modifiers},
    }
    return {
        prefix + key: field.get_default(call_default_factory=True, validated_data={})
        for prefix, kind in kinds.items()
        for key, field in kind.model_fields.items()
        if not field.is_required()
    }


def method_spec(
    name: str,
    hyperparameters: Mapping[str, Any],
    retain: RetainSpec | None = None,
    modifiers: Iterable[str] = (),
) -> MethodSpec:
    """Make a spec with all hyper-parameters, also `sam.rho` of modifiers.

    Raises: pydantic's ValidationError for a wrong one, PluginError for what does not go together.
    """
    kind, made = load_method(name), _modifiers(modifiers, hyperparameters)
    with plugin_code(f"method {name!r}", passing=ValidationError):
        method: Any = kind.model_validate(
            {k: v for k, v in hyperparameters.items() if "." not in k}
        )
    if retain is not None and not trains(name):
        raise PluginError(f"method {name!r} trains nothing: it takes no retain term")
    if apart := [item for item, modifier in made.items() if modifier.two_roles]:
        parts = method.needed().parts | ({"retain"} if retain else frozenset())
        faults = ""
        if not parts > {"retain"}:
            faults = f"{apart[0]} needs a retain term beside what {name} forgets; add retain: nll"
        elif len(apart) > 1:
            faults = f"{' and '.join(apart)} each take the gradients of the roles apart; keep one"
        if faults:
            raise PluginError(f"modifiers: {faults}")
    values = method.resolved()
    for item, modifier in made.items():
        values |= {f"{item}.{key}": value for key, value in modifier.resolved().items()}
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            of, _, setting = key.rpartition(".")
            raise broken(
                find("modifiers", of) if of else find("methods", name),
                f"hyper-parameter {setting!r} is a {type(value).__name__}, "
                "where only true/false, numbers and text can be part of a run's identity",
            )
    return MethodSpec(
        name=name,
        hyperparameters=values,
        retain=retain,
        source=file_digest(name) or None,
        modifiers={item: file_digest(item) or None for item in made},
    )


def _modifiers(names: Iterable[str], values: Mapping[str, Any]) -> dict[str, Modifier]:
    """The modifiers by name, sorted by kind; `values` have their settings as `sam.rho`."""
    made: dict[str, Modifier] = {}
    for name in names:
        start = f"{name}."
        part = {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
        with plugin_code(f"modifier {name!r}", passing=ValidationError):
            made[name] = load("modifiers", name).model_validate(part)
    return dict(sorted(made.items(), key=lambda item: (item[1].kind, item[0])))


def modifiers_from_spec(spec: MethodSpec) -> list[Modifier]:
    """Make the modifiers of a spec."""
    _check_sources(spec.modifiers, "modifier")
    return [*_modifiers(spec.modifiers, spec.hyperparameters).values()]


def _check_sources(planned: Mapping[str, str | None], kind: str) -> None:
    """Raise PluginError where a plug-in's file is not the one of the plan."""
    for name, source in planned.items():
        digest = file_digest(name) or None
        if digest != source:
            raise PluginError(
                f"{kind} {name!r} differs from the one that was planned "
                f"({source or 'installed'}, now {digest or 'installed'}): its plugin file "
                "changed or is missing; start again with the same --plugin"
            )


def method_from_spec(spec: MethodSpec) -> Method | Wrapper:
    """Make the method of a spec."""
    method = load_method(spec.name)
    _check_sources({spec.name: spec.source}, "method")
    try:
        with plugin_code(f"method {spec.name!r}", passing=ValidationError):
            return method.model_validate(
                {k: v for k, v in spec.hyperparameters.items() if "." not in k}
            )
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
