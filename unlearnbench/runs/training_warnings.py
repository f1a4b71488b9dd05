"""Warnings of a plan about numbers of optimiser steps and learning rates that are hardly meant.

None of these settings is an error. A setting may be far from what others use for a reason, such as
to show that it fails.
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
"""Relative error of the ratio of two rates that are written as decimal numbers."""


def training_warnings(
    config: SweepConfig, forget_rows: Mapping[SplitKey, int], models: Sequence[ModelSources]
) -> Iterator[str]:
    """Yield a line for each unlikely setting of runs, and of a model's preparation.

    Args:
        config: The sweep.
        forget_rows: Number of forget rows by split.
        models: The models of the sweep.
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
    """Return the number of weights of a model. None: its configuration cannot be read."""
    settings = sources.settings
    with suppress(ModelError):
        return number_of_weights(config_of(settings, sources.base()), settings)
    return None


def usual_preparation_rate(sources: ModelSources, weights: int) -> float | None:
    """Return the learning rate at which models of this size learn rows in their preparation.

    The preparation trains the start model on all rows, so that there is something to forget.

    Args:
        sources: The model.
        weights: Its number of weights.

    Returns:
        The rate, or None if no rate is known: if adapters are trained, or if the preparation has
        another optimiser than the known value and the model is not tiny.
    """
    settings = sources.settings
    if settings.lora is not None:
        return None
    size = ModelSize.of(weights)
    value = preparation_value(size)
    known_optimizer = value.settings.get("optimizer", "adamw")
    if settings.preparation.optimizer == known_optimizer:
        return float(value.settings["learning_rate"])
    if size is ModelSize.TINY:
        # The known value of tiny models is for Muon. With AdamW, tiny models learn rows at the rate
        # at which NPO makes them forget rows.
        return starting_values("npo", size)[0].learning_rate
    return None


def _run_step_warnings(config: SweepConfig, forget_rows: Mapping[SplitKey, int]) -> Iterator[str]:
    """Yield a line for each batch size that is as large as a split's forget rows."""
    # A budget in steps does not depend on how many steps an epoch has.
    if config.unit is Unit.STEP:
        return
    trained = filter(registry.trains, config.method_names)
    batch_sizes = {config.training_of(name).batch_size for name in trained}
    for batch_size in sorted(batch_sizes):
        small_splits = [
            f"{split_label(split)} ({count} rows)"
            for split, count in forget_rows.items()
            if count <= batch_size
        ]
        if not small_splits:
            continue
        yield (
            f"training.batch_size {batch_size} holds all forget rows of {', '.join(small_splits)}: "
            f"an epoch is one optimiser step, and a run has {config.budget} in all; set a smaller "
            "batch_size or more epochs, or state steps in place of epochs"
        )


def _unused_rate_warnings(config: SweepConfig) -> Iterator[str]:
    """Yield a line if the sweep states learning rates, and every entry has its own.

    This happens if a file extends one that `configs new` wrote for a user's own rows.
    """
    if "learning_rates" not in config.model_fields_set or config.learning_rates is None:
        return
    trained = [
        entry for entry in config.methods if entry.specs and registry.trains(entry.specs[0].name)
    ]
    if trained and all(entry.learning_rates is not None for entry in trained):
        yield (
            f"learning_rates {_rates_text(config.learning_rates)} has no effect: every entry of "
            "methods that trains has learning_rates of its own; change those, or leave this out"
        )


def _preparation_step_warnings(sources: ModelSources) -> Iterator[str]:
    """Yield a line if a batch of the preparation is as large as all rows."""
    settings = sources.settings
    if settings.fine_tuned is not None:
        return
    preparation = settings.preparation
    rows = len(sources.tuning_rows("full"))
    if rows <= preparation.batch_size:
        yield (
            f"{settings.name}: preparation.batch_size {preparation.batch_size} holds all {rows} "
            "rows: an epoch is one optimiser step, and the start model is "
            f"trained for {preparation.epochs} in all; set a smaller batch_size or more epochs"
        )


def _rate_warnings(config: SweepConfig, sources: ModelSources, weights: int) -> Iterator[str]:
    """Yield a line about the method entries whose rates are far from all known ones.

    Known are the starting values of the entry's method for models of this size. An entry is named
    if even its nearest rate differs from the nearest known rate by more than a factor of ten. It is
    not an error, because somebody may want to show what happens there.
    """
    size = ModelSize.of(weights)
    trains_adapters = sources.settings.lora is not None
    far_methods: dict[str, None] = {}
    for entry in config.methods:
        rates = entry.learning_rates or config.learning_rates
        if not entry.specs or rates is None:
            continue
        name = entry.specs[0].name  # all settings of an entry are of one method
        if not registry.trains(name):
            continue
        nearest = _nearest(rates, starting_values(name, size, adapters=trains_adapters))
        if nearest is not None and is_other_order(_ratio(rates, nearest.learning_rate)):
            far_methods[f"{name} {_rates_text(rates)} ({_value_text(nearest)})"] = None
    if far_methods:
        yield (
            f"{sources.settings.name}: learning rates of another order than a model of "
            f"{_count_text(weights)} weights suggests: {', '.join(far_methods)}; the page "
            "Starting values has the sources"
        )


def _nearest(
    rates: Sequence[float] | Range, known: Sequence[StartingValue]
) -> StartingValue | None:
    """Return the known value with the smallest ratio to some rates. None: no value is known."""
    return min(known, key=lambda value: _ratio(rates, value.learning_rate), default=None)


def _preparation_rate_warnings(sources: ModelSources, weights: int) -> Iterator[str]:
    """Yield a line if the learning rate of the preparation is far from the usual one."""
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
    """Return by which factor the nearest of some rates differs from a known rate.

    Returns:
        A factor of at least 1, whether the rate is larger or smaller.
    """
    if isinstance(rates, Range):
        nearest_rate = min(max(known, rates.low), rates.high)
        rates = (nearest_rate,)
    return min(math.exp(abs(math.log(rate / known))) for rate in rates)


def _rates_text(rates: Sequence[float] | Range) -> str:
    """Return rates as in `1e-05 and 2e-05`, or `1e-05 to 1e-03`."""
    if isinstance(rates, Range):
        return f"{float_text(rates.low)} to {float_text(rates.high)}"
    return " and ".join(float_text(rate) for rate in rates)


def _value_text(value: StartingValue) -> str:
    """Return a known rate and its origin, as in `1e-05, published`."""
    return f"{float_text(value.learning_rate)}, {value.origin.value}"


def _count_text(weights: int) -> str:
    """Return a number of weights as in `1.7 million` or `6.7 billion`."""
    if weights >= 1e9:
        return f"{weights / 1e9:.2g} billion"
    return f"{weights / 1e6:.2g} million" if weights < 1e8 else f"{weights / 1e6:.0f} million"
