"""From the values of a configuration to the spec of a method, and from a spec to a method again.

A spec (`MethodSpec`) is plain data and part of a run's identity. It has the method's name, all of
its hyperparameters with the defaults filled in, its retain term, and the digests of plug-in files.
A modifier's hyperparameters stand among the method's under names such as `sam.rho`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import broken, file_digest, find, load, load_method, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.config.entries import made
from unlearnbench.config.method_entry import default_of
from unlearnbench.config.method_settings import MethodSpec, RetainSpec
from unlearnbench.config.training_settings import TrainingSettings

if TYPE_CHECKING:  # these import torch
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.api.modifier import Modifier


def default_hyperparameters(name: str, modifiers: Iterable[str] = ()) -> dict[str, Any]:
    """Return the defaults of the hyperparameters of a method and its modifiers.

    Those of modifiers have names such as `sam.rho`. Hyperparameters without a default are left out.
    """
    # By what precedes the names of their hyperparameters: nothing, or `sam.` as in `sam.rho`.
    plugins = {"": load_method(name)}
    for modifier in modifiers:
        plugins[f"{modifier}."] = load("modifiers", modifier)
    defaults: dict[str, Any] = {}
    for prefix, plugin in plugins.items():
        for key, field in plugin.model_fields.items():
            if not field.is_required():
                defaults[prefix + key] = default_of(field)
    return defaults


def method_spec(
    name: str,
    hyperparameters: Mapping[str, Any],
    retain: RetainSpec | None = None,
    modifiers: Iterable[str] = (),
) -> MethodSpec:
    """Make the spec of a method.

    Args:
        name: The method.
        hyperparameters: Values that differ from the defaults; those of modifiers as `sam.rho`.
        retain: A retain term to add to the method's loss.
        modifiers: Names of modifiers, in any order.

    Returns:
        A spec with all hyperparameters, and its modifiers in the order in which they are applied.

    Raises:
        ValidationError: A hyperparameter is wrong.
        PluginError: Method, retain term and modifiers do not go together.
    """
    method_class = load_method(name)
    made_modifiers = _made_modifiers(modifiers, hyperparameters)
    with plugin_code(f"method {name!r}", passing=ValidationError):
        method: Any = method_class.model_validate(_of_method(hyperparameters))
    if not trains(name) and (retain is not None or made_modifiers):
        refused = "modifiers" if made_modifiers else "retain term"
        raise PluginError(f"method {name!r} trains nothing: it takes no {refused}")
    _check_roles(name, method, retain, made_modifiers)

    resolved: dict[str, Any] = method.resolved()
    settings_of_modifiers: dict[str, dict[str, Any]] = {}
    for modifier_name, modifier in made_modifiers.items():
        settings_of_modifiers[modifier_name] = modifier.resolved()
    _check_plain("methods", name, resolved)
    for modifier_name, settings in settings_of_modifiers.items():
        _check_plain("modifiers", modifier_name, settings)
        resolved |= {f"{modifier_name}.{key}": value for key, value in settings.items()}
    return MethodSpec(
        name=name,
        hyperparameters=resolved,
        retain=retain,
        source=file_digest(name) or None,
        modifiers={modifier: file_digest(modifier) or None for modifier in made_modifiers},
    )


def _check_roles(
    name: str, method: Any, retain: RetainSpec | None, modifiers: Mapping[str, Modifier]
) -> None:
    """Check the modifiers that need separate gradients of forget rows and of retain rows.

    Args:
        name: Name of the method, for messages.
        method: The method.
        retain: Retain term that is added to the method's loss.
        modifiers: Modifiers by name.

    Raises:
        PluginError: The loss has only one of the two gradients, or two modifiers would both make
            one gradient of the two.
    """
    by_role = [key for key, modifier in modifiers.items() if modifier.two_roles]
    if not by_role:
        return
    parts = method.needed().parts | ({"retain"} if retain else frozenset())
    has_both_roles = parts > {"retain"}  # retain rows, and something to forget
    if not has_both_roles:
        raise PluginError(
            f"modifiers: {by_role[0]} needs a retain term beside what {name} forgets; "
            "add retain: nll"
        )
    # A filter only reads the gradients of the roles. The other kinds make one gradient of them.
    merging = [key for key in by_role if modifiers[key].kind != "filter"]
    if len(merging) > 1:
        raise PluginError(
            f"modifiers: {' and '.join(merging)} each take the gradients of the roles apart; "
            "keep one"
        )


def _check_plain(
    kind: Literal["methods", "modifiers"], name: str, values: Mapping[str, Any]
) -> None:
    """Check that values can be part of a run's identity.

    Raises:
        PluginError: The plug-in has a hyperparameter of another type. Its author has to change it.
    """
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise broken(
                find(kind, name),
                f"hyperparameter {key!r} is a {type(value).__name__}, "
                "where only true/false, numbers and text can be part of a run's identity",
            )


def _of_method(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Select the method's own hyperparameters. Only those of modifiers have a dot: `sam.rho`."""
    return {key: value for key, value in hyperparameters.items() if "." not in key}


def _made_modifiers(
    names: Iterable[str], hyperparameters: Mapping[str, Any]
) -> dict[str, Modifier]:
    """Make modifiers from the hyperparameters of a spec.

    Args:
        names: Names of the modifiers.
        hyperparameters: Those of a modifier have names such as `sam.rho`. Others are ignored.

    Returns:
        Modifiers by name, in the order in which they are applied: by kind, then by name.
    """
    modifiers: dict[str, Modifier] = {}
    for name in names:
        prefix = f"{name}."
        settings: dict[str, Any] = {}
        for key, value in hyperparameters.items():
            if key.startswith(prefix):
                settings[key.removeprefix(prefix)] = value
        with plugin_code(f"modifier {name!r}", passing=ValidationError):
            modifiers[name] = load("modifiers", name).model_validate(settings)
    return dict(sorted(modifiers.items(), key=lambda named: (named[1].kind, named[0])))


def method_from_spec(spec: MethodSpec) -> Method | Wrapper:
    """Make the method of a spec.

    Raises:
        PluginError: The method that is installed here is another one, or refuses the values.
    """
    method_class = load_method(spec.name)
    _check_sources({spec.name: spec.source}, "method")
    with plugin_code(f"method {spec.name!r}"):
        return made(
            method_class,
            _of_method(spec.hyperparameters),
            f"method {spec.name!r}, as planned with another version,",
        )


def modifiers_from_spec(spec: MethodSpec) -> list[Modifier]:
    """Make the modifiers of a spec, in the order in which they are applied.

    Raises:
        PluginError: A modifier that is installed here is another one.
    """
    _check_sources(spec.modifiers, "modifier")
    return list(_made_modifiers(spec.modifiers, spec.hyperparameters).values())


def _check_sources(planned: Mapping[str, str | None], kind: str) -> None:
    """Check that plug-in files are those of the plan.

    Args:
        planned: Digests by plug-in; None for an installed one, which has no file of its own.
        kind: The word for the plug-ins in the message.

    Raises:
        PluginError: A file has changed since, or is missing.
    """
    for name, source in planned.items():
        digest = file_digest(name) or None
        if digest != source:
            raise PluginError(
                f"{kind} {name!r} differs from the one that was planned "
                f"({source or 'installed'}, now {digest or 'installed'}): its plugin file "
                "changed or is missing; start again with the same --plugin"
            )


def takes_roles_apart(spec: MethodSpec) -> bool:
    """Whether the loss's mean over forget and retain rows is split by role for a modifier.

    It is split if a modifier needs the gradient of one role. Earlier versions gave such a modifier
    the gradient of both roles. Modifiers that combine two gradients (`pcgrad`) always had the
    split, so this is False for them.
    """
    if not spec.modifiers:
        return False
    from unlearnbench.api.modifier import Filter  # it imports torch

    # The names in the loss's code tell whether it calls `mean_over_union`. They are known before a
    # model is loaded, and no plug-in can forget to declare them.
    method: Any = load_method(spec.name)
    loss = getattr(method.loss, "__code__", None)
    if loss is None or "mean_over_union" not in loss.co_names:
        return False
    modifiers = modifiers_from_spec(spec)
    if any(modifier.two_roles for modifier in modifiers):
        return False
    for modifier in modifiers:
        selects = isinstance(modifier, Filter) and type(modifier).select is not Filter.select
        asks_by_role = modifier.kind == "perturb" or selects
        if asks_by_role and not _changes_nothing(modifier):
            return True
    return False


def starts_exactly(spec: MethodSpec) -> bool:
    """Whether the retain rows' loss has a gradient of exactly 0 in the first step.

    This holds if the loss is only a divergence from the start model. Earlier versions had rounding
    errors in place of this 0. Adam divides a gradient by its own size, so that even such errors
    change the weights that no other gradient reaches. In the quickstart, `kl-minimization` differs
    by up to 0.2 % of a metric after eight epochs.
    """
    method: Any = method_from_spec(spec)
    needs = method.needed()
    is_divergence = "retain" in needs.distributions | needs.states
    if spec.retain is not None:
        has_other_loss = "retain" in needs.parts and not is_divergence
        is_divergence = spec.retain.term == "kl" and not has_other_loss
    if not is_divergence or not spec.modifiers:
        return is_divergence
    from unlearnbench.api.modifier import WeightEdit  # it imports torch

    # A modifier that changes the start weights leaves a divergence before the first step.
    return not any(
        isinstance(modifier, WeightEdit) and type(modifier).before is not WeightEdit.before
        for modifier in modifiers_from_spec(spec)
    )


def _changes_nothing(modifier: Modifier) -> bool:
    """Whether a modifier has the settings that it declares to be neutral."""
    if modifier.neutral is None:
        return False
    settings = modifier.model_dump()
    return all(settings.get(name) == value for name, value in modifier.neutral.items())


def removes_dropout(spec: MethodSpec, training: TrainingSettings) -> bool:
    """Whether a method trains a model without the dropout of the model's configuration."""
    if training.dropout != "auto":
        return training.dropout == "remove"
    return compares_with_start(spec)


def compares_with_start(spec: MethodSpec) -> bool:
    """Whether the loss reads predictions of the frozen start model, also for a retain term."""
    method: Any = method_from_spec(spec)
    needs = method.needed()
    has_kl_term = spec.retain is not None and spec.retain.term == "kl"
    return bool(needs.reference or needs.prompts or has_kl_term)
