"""What a plan says about optimiser steps and learning rates that are unlikely to do what is meant.

Nothing here is an error. A setting may be far from what others use for a reason, such as to show
that it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from unlearnbench.api import registry
from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.base.errors import ModelError
from unlearnbench.base.number_text import float_text
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.config.starting_values import (
    ModelSize,
    StartingValue,
    preparation_value,
    starting_values,
)
from unlearnbench.config.unit import Unit
from unlearnbench.results.model_shape import config_of, number_of_weights
from unlearnbench.runs.model_sources import ModelSources

ORDER = 10
"""Ratio beyond which a learning rate is of another order than a known one."""
_ROUNDING = 1e-9
"""Relative error that ratios of written rates have."""


def training_warnings(
    config: SweepConfig, forget_rows: Mapping[SplitKey, int], models: Sequence[ModelSources]
) -> Iterator[str]:
    """Yield a line for each kind of unlikely setting of runs, and of a model's preparation.

    Args:
        config: Of the sweep.
        forget_rows: Number of forget rows by split.
        models: Those that forget.
    """
    yield from _run_step_warnings(config, forget_rows)
    yield from _unused_rate_warnings(config)
    for sources in models:
        yield from _preparation_step_warnings(sources)
        weights = weights_of(sources)
        if weights is not None:
            yield from _rate_warnings(config, sources, weights)
            yield from _preparation_rate_warnings(sources, weights)


def weights_of(sources: ModelSources) -> int | None:
    """Count the weights of a model; None if its configuration cannot be read or built here."""
    settings = sources.settings
    with suppress(ModelError):
        return number_of_weights(config_of(settings, sources.base()), settings)
    return None


def usual_preparation_rate(sources: ModelSources, weights: int) -> float | None:
    """Return the learning rate at which models of this size learn rows.

    None if nothing is known, as of adapters, or of Muon for models of other sizes than tiny.
    """
    settings = sources.settings
    size = ModelSize.of(weights)
    value = preparation_value(size)
    if settings.lora is not None:
        return None
    if settings.preparation.optimizer == value.settings.get("optimizer", "adamw"):
        return float(value.settings["learning_rate"])
    if size is ModelSize.TINY:
        # Tiny models are prepared with Muon. With AdamW they forget at this rate, and learn alike.
        return starting_values("npo", size)[0].learning_rate
    return None


def _run_step_warnings(config: SweepConfig, forget_rows: Mapping[SplitKey, int]) -> Iterator[str]:
    """Yield a line for each batch size that holds all forget rows of a split."""
    # A budget in steps does not depend on how many of them an epoch has.
    if config.unit is Unit.STEP:
        return
    sizes = {
        config.training_of(name).batch_size for name in config.method_names if registry.trains(name)
    }
    for size in sorted(sizes):
        small = {split: count for split, count in forget_rows.items() if count <= size}
        if not small:
            continue
        splits = ", ".join(f"{split_label(split)} ({n} rows)" for split, n in small.items())
        yield (
            f"training.batch_size {size} holds all forget rows of {splits}: an epoch is one "
            f"optimiser step, and a run has {config.budget} in all; set a smaller batch_size "
            "or more epochs, or state steps in place of epochs"
        )


def _unused_rate_warnings(config: SweepConfig) -> Iterator[str]:
    """Yield a line if the sweep states learning rates, and every entry has its own.

    So it is if a file extends one that `configs new` wrote for rows of one's own.
    """
    if "learning_rates" not in config.model_fields_set or config.learning_rates is None:
        return
    trained = [
        grid for grid in config.methods if grid.specs and registry.trains(grid.specs[0].name)
    ]
    if trained and all(grid.learning_rates is not None for grid in trained):
        yield (
            f"learning_rates {_rates_text(config.learning_rates)} has no effect: every entry of "
            "methods that trains has learning_rates of its own; change those, or leave this out"
        )


def _preparation_step_warnings(sources: ModelSources) -> Iterator[str]:
    settings = sources.settings
    if settings.fine_tuned is not None:
        return
    rows, preparation = len(sources.tuning_rows("full")), settings.preparation
    if rows <= preparation.batch_size:
        yield (
            f"{settings.name}: preparation.batch_size {preparation.batch_size} holds all {rows} "
            "rows: an epoch is one optimiser step, and the start model is "
            f"trained for {preparation.epochs} in all; set a smaller batch_size or more epochs"
        )


def _rate_warnings(config: SweepConfig, sources: ModelSources, weights: int) -> Iterator[str]:
    """Yield a line if all rates of a method are far from all that are known for this size."""
    size = ModelSize.of(weights)
    far: list[str] = []
    for grid in config.methods:
        rates = grid.learning_rates or config.learning_rates
        name = grid.specs[0].name if grid.specs else ""
        if not name or rates is None or not registry.trains(name):
            continue
        known = starting_values(name, size, adapters=sources.settings.lora is not None)
        ratios = [_ratio(rates, value.learning_rate) for value in known]
        if ratios and is_other_order(min(ratios)):
            nearest = known[ratios.index(min(ratios))]
            far.append(f"{name} {_rates_text(rates)} ({_value_text(nearest)})")
    if far:
        yield (
            f"{sources.settings.name}: learning rates of another order than a model of "
            f"{_count_text(weights)} weights suggests: {', '.join(dict.fromkeys(far))}; the page "
            "Starting values has the sources"
        )


def _preparation_rate_warnings(sources: ModelSources, weights: int) -> Iterator[str]:
    settings = sources.settings
    if settings.fine_tuned is not None:
        return
    usual = usual_preparation_rate(sources, weights)
    rate = settings.preparation.learning_rate
    if usual is not None and is_other_order(_ratio((rate,), usual)):
        yield (
            f"{settings.name}: preparation.learning_rate {float_text(rate)} is of another order "
            f"than a model of {_count_text(weights)} weights suggests, which is "
            f"{float_text(usual)}: the start model may not learn its rows"
        )


def is_other_order(ratio: float) -> bool:
    """Whether a ratio of learning rates is larger than an order of magnitude."""
    return ratio > ORDER * (1 + _ROUNDING)


def _ratio(rates: Sequence[float] | Range, known: float) -> float:
    """Return by which factor the nearest of some rates differs from a known one, at least 1."""
    if isinstance(rates, Range):
        rates = (min(max(known, rates.low), rates.high),)
    return min(math.exp(abs(math.log(rate / known))) for rate in rates)


def _rates_text(rates: Sequence[float] | Range) -> str:
    if isinstance(rates, Range):
        return f"{float_text(rates.low)} to {float_text(rates.high)}"
    return " and ".join(float_text(rate) for rate in rates)


def _value_text(value: StartingValue) -> str:
    """`1e-05, published`."""
    return f"{float_text(value.learning_rate)}, {value.origin.value}"


def _count_text(weights: int) -> str:
    """`1.7 million`, `6.7 billion`."""
    if weights >= 1e9:
        return f"{weights / 1e9:.2g} billion"
    return f"{weights / 1e6:.2g} million" if weights < 1e8 else f"{weights / 1e6:.0f} million"
