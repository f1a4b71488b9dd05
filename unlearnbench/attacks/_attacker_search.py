"""The attackers that a search tries: the stated settings first, then settings that it draws.

All models of a sweep meet the same attackers, so that a gain can be held against the retain model's
gain under the same attacker. An adaptive search would give each model attackers of its own.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import ValidationError

from unlearnbench.api.ranges import Range
from unlearnbench.base.messages import describe_error
from unlearnbench.stats.point_sequences import even_points

SEARCHED = ("learning_rate", "lora_rank", "batch_size", "schedule", "optimizer")
"""Settings of an attacker that a search may draw."""
LEAST_TRIALS, MOST_TRIALS = 2, 1_000
_DRAWS = 1_000
"""Draws for each wanted attacker after which the space counts as too small."""
Axis = Range | tuple[Any, ...]
"""A range, or a list of values."""


def axes_of(search: Mapping[str, Any]) -> dict[str, Axis]:
    """Check what a search states, and return its ranges and lists by setting.

    Raises:
        ValueError: A setting cannot be searched, or has no two values.
    """
    if not search:
        raise ValueError(f"names no setting; name one or more of {', '.join(SEARCHED)}")
    axes: dict[str, Axis] = {}
    for name, stated in search.items():
        if name not in SEARCHED:
            raise ValueError(
                f"{name} is no setting of an attacker; use {', '.join(SEARCHED)}, and state other "
                "settings outside of `search`"
            )
        axes[name] = _axis(name, stated)
    return axes


def _axis(name: str, stated: Any) -> Axis:
    """Return a range, or a list with two different values."""
    if isinstance(stated, Range):
        return stated
    if isinstance(stated, tuple) and any(value != stated[0] for value in stated):
        return stated
    if not isinstance(stated, Mapping):
        raise ValueError(
            f"{name} needs a range, such as {{low: 1.0e-6, high: 1.0e-3, log: true}}, or a list of "
            f"two different values or more, got {stated}"
        )
    try:
        return Range.model_validate(stated)
    except ValidationError as error:
        raise ValueError(f"{name}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """Return the first of pydantic's errors in our words, with the key that it is about."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    message = describe_error(first)
    return f"{place}: {message}" if place else message


def drawn_settings(
    search: Mapping[str, Axis], trials: int, stated: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the settings of all attackers: the stated ones first, then those that are drawn.

    With more trials the first attackers stay the same.

    Args:
        search: Ranges and lists by setting.
        trials: Number of attackers.
        stated: The stated values of the searched settings.

    Raises:
        ValueError: The search has fewer different attackers.
    """
    settings: list[dict[str, Any]] = [dict(stated)]
    for drawn in islice(_draws(search), _DRAWS * trials):
        if drawn not in settings:
            settings.append(drawn)
        if len(settings) == trials:
            return settings
    raise ValueError(
        f"the search has only {len(settings)} different attackers (with the stated one), and "
        f"trials is {trials}; widen the search, or lower trials"
    )


def _draws(search: Mapping[str, Axis]) -> Iterator[dict[str, Any]]:
    """Yield settings that fill the space evenly. Some may repeat."""
    # The seed is fixed: `seed` of an attack is that of its rows, and sweeps compare attackers.
    source = random.Random("attackers " + ", ".join(search))
    for shares in even_points("sobol", len(search), source):
        drawn: dict[str, Any] = {}
        for (name, axis), share in zip(search.items(), shares, strict=True):
            if isinstance(axis, Range):
                drawn[name] = axis.value(share)
            else:
                drawn[name] = axis[int(share * len(axis))]
        yield drawn
