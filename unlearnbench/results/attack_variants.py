"""Read the names of variants, which are evaluations under attacks.

`relearning@13` is the attack `relearning` at its point `13`. `paraphrase` is an attack with only
one point. The class of an attack declares what its points mean, but it may not be installed here.

If an attack searches, `relearning@t3.13` is its third attacker after 13 steps, on the rows that are
reported. `relearning@t3.13.choice` is the same model on the rows on which the attacker is chosen.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from unlearnbench.api.attack import (
    CHOICE,
    FIRST_POINT,
    Attack,
    PromptAttack,
    has_steps,
    only_samples,
)
from unlearnbench.api.registry import load
from unlearnbench.base.errors import PluginError
from unlearnbench.results.table import TableRow

TUNED = "tuned"
"""Point of the variant that stands for all attackers of a search: `relearning@tuned`."""
_TRIAL = re.compile(r"t(\d+)\.(\d+)")


class Trial(NamedTuple):
    """A point of one attacker of a search."""

    number: int
    """Number of the attacker, from 1."""
    step: int
    """Optimiser steps that it has done."""


def attack_of(variant: str) -> str:
    """Return the name of the attack: `relearning` for `relearning@13`."""
    return variant.partition("@")[0]


def point_of(variant: str) -> str:
    """Return the point: `13` for `relearning@13`. Empty for an attack with one point."""
    return variant.partition("@")[2]


def attack_class(name: str) -> type[Attack] | None:
    """Return the class of an attack; None if it is not installed."""
    try:
        kind: type[Attack] = load("attacks", name)
    except PluginError:
        return None
    return kind


def step_of(variant: str) -> int | None:
    """Return the optimiser step after which a variant is evaluated.

    Returns:
        None if the point is not known to be a step. Digits may also be the number of a layer or the
        name of a text, and an attack that is not installed does not say what its digits are.
    """
    point = point_of(variant)
    return int(point) if point.isdecimal() and _has_steps(variant) else None


def trial_of(variant: str) -> Trial | None:
    """Return the attacker and step of a point of a search; None for any other variant."""
    match = _TRIAL.fullmatch(point_of(variant).removesuffix(CHOICE))
    if match is None or not _has_steps(variant):
        return None
    return Trial(int(match[1]), int(match[2]))


def trial_points(variants: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the points of attackers on the rows of the report, by attack that searches.

    They are in the order of attackers and steps. The order of the rows does not show it, because a
    model lacks the points of an attacker that has failed on it.
    """
    trials: dict[str, dict[str, Trial]] = defaultdict(dict)
    for variant in variants:
        trial = trial_of(variant)
        if trial is not None and not is_choice(variant):
            trials[attack_of(variant)][variant] = trial
    return {attack: tuple(sorted(of, key=of.__getitem__)) for attack, of in trials.items()}


def is_choice(variant: str) -> bool:
    """Whether a variant is on the rows on which a search chooses its attacker."""
    return variant.endswith(CHOICE) and _has_steps(variant)


def tuned_variant(attack: str) -> str:
    """Return the name of the variant that stands for all attackers of a search."""
    return f"{attack}@{TUNED}"


def is_tuned(variant: str) -> bool:
    """Whether a variant stands for all attackers of a search."""
    return point_of(variant) == TUNED and _has_steps(variant)


def asked_part(variant: str) -> str:
    """Return the part of a variant's name that says which rows are asked.

    All points of an attack ask the same rows, except that a search has two parts of them.
    """
    return attack_of(variant) + (CHOICE if is_choice(variant) else "")


def is_before_attack(variant: str) -> bool:
    """Whether a variant is the model before the first step of an attack that trains."""
    return point_of(variant).removesuffix(CHOICE) == FIRST_POINT and _has_steps(variant)


def _has_steps(variant: str) -> bool:
    """Whether the points of a variant's attack are known to be steps."""
    kind = attack_class(attack_of(variant))
    return kind is not None and has_steps(kind)


def is_white_box(attack: str) -> bool:
    """Whether an installed attack runs the bare weights, without a method at inference time."""
    kind = attack_class(attack)
    return kind is not None and kind.white_box


def prompt_variants(variants: Iterable[str]) -> list[str]:
    """Return the variants whose attacks are installed and change what is asked."""
    prompts: list[str] = []
    for variant in variants:
        kind = attack_class(attack_of(variant))
        if kind is not None and issubclass(kind, PromptAttack):
            prompts.append(variant)
    return prompts


def may_leave_rows_out(variant: str) -> bool:
    """Whether an attack may ask only some rows; also True if it is not installed here.

    A search asks every row, but each of its two parts has only some of them.
    """
    kind = attack_class(attack_of(variant))
    return kind is None or kind.selects is not Attack.selects or trial_of(variant) is not None


def asks_all_models_alike(variant: str) -> bool:
    """Whether the rows that are asked are known not to depend on the model's own answers."""
    kind = attack_class(attack_of(variant))
    return kind is not None and not kind.reads_answers


def leaves_greedy(variant: str, attacked: Iterable[TableRow]) -> bool:
    """Whether the greedy answers and losses of a variant equal those of the plain evaluation.

    They do if the attack only samples answers. An attack that is not installed here counts as such
    an attack if it has numbers of samples.

    Args:
        variant: Name of the variant.
        attacked: Rows of evaluations under attacks.
    """
    kind = attack_class(attack_of(variant))
    if kind is not None:
        return only_samples(kind)
    return any(
        row.metrics.get(column.name) is not None
        for row in attacked
        if row.variant == variant
        for column in row.schema.plan.under_attack
    )
