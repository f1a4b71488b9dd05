"""From the entry of a method to the grid of specs that it spans.

`{method: npo, beta: [0.1, 0.5], retain: [null, nll]}` spans four specs, one for each combination.
A range does not span specs: a search draws from it, and its low end stands for it in the specs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from unlearnbench.api.registry import load, load_method, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.base.messages import Fault, describe_error, fault, raise_faults
from unlearnbench.config.method_entry import Axis, entry_model
from unlearnbench.config.method_settings import MethodGrid, MethodSpec, RetainSpec
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import RETAIN_WEIGHT, Range

WEIGHT = "retain.weight"
"""Name of the axis of the retain term's weight."""


def read_grid(value: Any) -> MethodGrid:
    """Read the grid of one entry.

    Args:
        value: A section, or only the name of a method.

    Raises:
        ValidationError: With all mistakes of the entry, each at its key.
    """
    section = value if isinstance(value, Mapping) else {"method": value}
    entry: Any = entry_model(section.get("method")).model_validate(section)
    stated: dict[str, Any] = {key: getattr(entry, key) for key in section}
    method = stated.pop("method")
    modifiers = stated.pop("modifiers", {})
    retain_entries = stated.pop("retain", (None,))
    learning_rates = stated.pop("learning_rates", None)
    training = stated.pop("training", None)
    evaluation = stated.pop("evaluation", None)

    hyperparameters: dict[str, Axis] = stated  # all other keys
    for modifier, settings in modifiers.items():
        hyperparameters |= _prefixed(modifier, settings)
    retains, retain_weights = _retains(retain_entries)
    axes = _EntryAxes(method, hyperparameters, retains, retain_weights, tuple(modifiers))

    ranges = _ranges(hyperparameters)
    if retain_weights is not None:
        ranges[WEIGHT] = retain_weights
    if ranges:
        # A search may draw any combination, so each combination of the ends has to be valid.
        axes.expand(with_high_ends=True)
    fixed = set(hyperparameters)
    if any(entry and "weight" in entry.model_fields_set for entry in retain_entries):
        fixed.add(WEIGHT)
    return MethodGrid(
        specs=axes.expand(),
        learning_rates=learning_rates,
        training=training,
        evaluation=evaluation,
        ranges=ranges,
        fixed=frozenset(fixed),
    )


@dataclass(frozen=True)
class _EntryAxes:
    """The parts of an entry that its specs are made of."""

    method: str
    hyperparameters: Mapping[str, Axis]
    """Axes by hyperparameter. Those of modifiers have names such as `sam.rho`."""
    retains: tuple[RetainSpec | None, ...]
    retain_weights: Range | None
    """Range of the weight of all retain terms; None if each has its own."""
    modifiers: tuple[str, ...]

    def expand(self, *, with_high_ends: bool = False) -> tuple[MethodSpec, ...]:
        """Make a spec of every combination of values.

        Args:
            with_high_ends: Whether specs have both ends of each range, and not only the low end.

        Raises:
            ValidationError: With the faults that the method finds, each fault once.
        """
        choices = [
            _values_of(axis, with_high_end=with_high_ends) for axis in self.hyperparameters.values()
        ]
        retains = self._weighted_retains(with_high_end=with_high_ends)

        specs: list[MethodSpec] = []
        refused: dict[Fault, None] = {}  # an ordered set: many combinations have the same fault
        for *values, retain in itertools.product(*choices, retains):
            combination = dict(zip(self.hyperparameters, values, strict=True))
            try:
                specs.append(method_spec(self.method, combination, retain, self.modifiers))
            except ValidationError as error:
                # Each value is of its field's type. The method's own validators refuse a value, or
                # a combination.
                for details in error.errors(include_url=False):
                    is_of_a_key = {*details["loc"]} <= self.hyperparameters.keys()
                    loc = details["loc"] if is_of_a_key else ()
                    refused[Fault(loc, describe_error(details))] = None
            except PluginError as error:
                # The parts do not go together, whatever their values are.
                refused[Fault((), str(error))] = None
                break
        raise_faults(refused)
        return tuple(specs)

    def _weighted_retains(self, *, with_high_end: bool) -> list[RetainSpec | None]:
        """List the retain terms. If their weights have a range, list each term with its ends."""
        if self.retain_weights is None:
            return list(self.retains)
        weights = _values_of(self.retain_weights, with_high_end=with_high_end)
        weighted: list[RetainSpec | None] = []
        for retain in self.retains:
            if retain is not None:
                weighted += [retain.model_copy(update={"weight": weight}) for weight in weights]
        return weighted


def _values_of(axis: Axis, *, with_high_end: bool = False) -> Sequence[Any]:
    """Return the values of an axis that stand in specs: those of a list, or the ends of a range."""
    if not isinstance(axis, Range):
        return axis
    return (axis.low, axis.high) if with_high_end else (axis.low,)


def _ranges(axes: Mapping[str, Axis]) -> dict[str, Range]:
    """Select the axes that are ranges."""
    return {key: values for key, values in axes.items() if isinstance(values, Range)}


def _prefixed(modifier: str, settings: Mapping[str, Axis]) -> dict[str, Axis]:
    """Name a modifier's settings as hyperparameters of a spec: `sam.rho` for `rho` of sam."""
    return {f"{modifier}.{key}": values for key, values in settings.items()}


def _retains(entries: Sequence[Any]) -> tuple[tuple[RetainSpec | None, ...], Range | None]:
    """Read the retain terms of an entry.

    Args:
        entries: `RetainEntry` values, or None for no term.

    Returns:
        The terms, and the range of their weights. None if each term has its own weight.

    Raises:
        ValidationError: One of several terms has a range of weights.
    """
    retains: list[RetainSpec | None] = []
    for index, entry in enumerate(entries):
        if entry is None:
            retains.append(None)
        elif isinstance(entry.weight, Range):
            if len(entries) > 1:
                text = "a range of weights needs its retain term alone: write an entry for each"
                raise fault(text, "retain", index, "weight")
            low = float(entry.weight.low)
            return tuple(RetainSpec(term=term, weight=low) for term in entry.term), entry.weight
        else:
            for term, weight in itertools.product(entry.term, entry.weight):
                retains.append(RetainSpec(term=term, weight=weight))
    return tuple(retains), None


def tuned(grid: MethodGrid) -> MethodGrid:
    """Add the ranges that plug-ins declare for the hyperparameters that an entry does not state."""
    spec = grid.specs[0]
    # By what precedes the names of their hyperparameters: nothing, or `sam.` as in `sam.rho`.
    plugins = {"": load_method(spec.name)}
    for modifier in spec.modifiers:
        plugins[f"{modifier}."] = load("modifiers", modifier)
    declared: dict[str, Range] = {}
    for prefix, plugin in plugins.items():
        for key, (low, high) in plugin.ranges.items():
            declared[prefix + key] = Range(low=low, high=high, log=low > 0)
    if spec.retain is not None:
        declared[WEIGHT] = RETAIN_WEIGHT
    not_stated = {key: values for key, values in declared.items() if key not in grid.fixed}
    return grid.model_copy(update={"ranges": not_stated | grid.ranges})


def crossed(grid: MethodGrid, name: str, settings: Mapping[str, Axis]) -> MethodGrid:
    """Apply one more modifier to every spec of a grid.

    Args:
        grid: The grid of an entry.
        name: The modifier.
        settings: The settings of the modifier that are stated.

    Raises:
        PluginError: The modifier does not go together with the method or its modifiers.
    """
    modifier = load("modifiers", name)
    axes = _prefixed(name, settings)
    choices = [_values_of(axis) for axis in axes.values()]
    specs: list[MethodSpec] = []
    for spec in grid.specs:
        for other in spec.modifiers:
            is_of_same_kind = load("modifiers", other).kind == modifier.kind
            if other == name or (is_of_same_kind and not modifier.several):
                raise PluginError(f"{other}, of the kind {modifier.kind}, is there already")
        for values in itertools.product(*choices):
            hyperparameters = spec.hyperparameters | dict(zip(axes, values, strict=True))
            modifiers = (*spec.modifiers, name)
            specs.append(method_spec(spec.name, hyperparameters, spec.retain, modifiers))
    return grid.model_copy(
        update={
            "specs": tuple(specs),
            "ranges": grid.ranges | _ranges(axes),
            "fixed": grid.fixed | axes.keys(),
        }
    )


def rates_of(
    spec: MethodSpec, grid: MethodGrid, config: SweepConfig
) -> tuple[float | None, ...] | Range:
    """Return a method's learning rates: the entry's, or the sweep's, or the method's own default.

    Returns:
        Rates, or a range of them; (None,) if the method trains nothing.
    """
    if not trains(spec.name):
        return (None,)
    if grid.learning_rates is not None:
        return grid.learning_rates
    if config.learning_rates is not None:
        return config.learning_rates
    return (load("methods", spec.name).learning_rate,)
