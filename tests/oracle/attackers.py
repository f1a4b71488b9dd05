"""Which attacker of a search is reported for a model (docs/concepts/lasting.md).

A search evaluates each model under the same attackers, at some steps, on two parts of the rows:
`relearning@t3.13` is the third attacker after 13 steps on the rows that are reported, and
`relearning@t3.13.choice` is the same model on the other rows.

The first third of a setting's seeds, at least one, chooses on the latter, and the other seeds
report on the former. A single seed does both. An attacker counts if each choosing seed reached it
and keeps, on average, a share of its own utility. Of those, the one is chosen under which the seeds
gain most, less what the retain model gains under the same attacker. Of equal gains it is the one
after most steps, and of these the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.oracle.means import mean_of

TUNED = "tuned"
"""Point of the variant that stands for a search."""
_TRIAL = re.compile(r".+@t(\d+)\.(\d+)(\.choice)?")
MOVED = 0.001
"""Most that a number changes under attackers that do not move a model."""
TIED = 1e-9
"""Gains that differ by less come from sums in another order."""


def is_trial(variant: str) -> bool:
    """Whether a variant is of one attacker of a search."""
    return _TRIAL.fullmatch(variant) is not None


def is_choice(variant: str) -> bool:
    """Whether a variant is on the rows that choose an attacker."""
    return variant.endswith(".choice")


def points_of_search(variants: Iterable[str], attacks: Collection[str]) -> Mapping[str, list[str]]:
    """Return, by attack, the variants of attackers on the reported rows, in their order."""
    of_attack: dict[str, dict[str, tuple[int, int]]] = {}
    for variant in variants:
        match = _TRIAL.fullmatch(variant)
        attack = variant.partition("@")[0]
        if match is not None and match[3] is None and attack in attacks:
            of_attack.setdefault(attack, {})[variant] = int(match[1]), int(match[2])
    return {attack: sorted(of, key=of.__getitem__) for attack, of in of_attack.items()}


@dataclass(frozen=True)
class SearchedModel:
    """One model under the attackers of a search."""

    utility: Callable[[str], float | None]
    """What is kept, by variant; None if the variant was not reached."""
    gain: Callable[[str], float | None]
    """Number under a variant less the one before the attack on the same rows."""
    first: str
    """Variant before the first step."""

    def keeps(self, variant: str) -> float | None:
        """Return the share of its own utility that is left."""
        before, after = self.utility(self.first), self.utility(variant)
        return after / before if before and after is not None else None

    def moves(self, variants: Sequence[str]) -> bool:
        """Whether any attacker changes the measured number, or the utility."""
        for variant in variants:
            kept = self.keeps(variant)
            if kept is not None and abs(kept - 1) > MOVED:
                return True
            for part in ("", ".choice"):
                gain = self.gain(variant + part)
                if gain is not None and abs(gain) > MOVED:
                    return True
        return False


@dataclass(frozen=True)
class Chosen:
    """The attacker of a setting."""

    variant: str | None
    """Its variant on the reported rows; None if no attacker can be reported."""
    choosing: range
    """Places of the seeds that choose."""
    reporting: range
    """Places of the seeds that are reported."""
    trials: int
    """Attackers that were tried."""
    counting: tuple[str, ...]
    """Variants that leave enough utility."""
    kept: float | None
    """Share of its own utility that the attacked model keeps, a mean over the reported seeds."""


def _counting(
    models: Sequence[SearchedModel], variants: Sequence[str], least: float
) -> tuple[str, ...]:
    found: list[str] = []
    for variant in variants:
        kept = mean_of(model.keeps(variant) for model in models)
        if kept is not None and kept >= least:
            found.append(variant)
    return tuple(found)


def _strongest(gains: Mapping[str, float]) -> str | None:
    """Return the variant with the largest gain; of equal ones the first after most steps."""
    most = max(gains.values(), default=0.0)
    strongest: str | None = None
    most_steps = 0
    for variant, gain in gains.items():
        steps = int(variant.rpartition(".")[2])
        if gain > most - TIED and steps > most_steps:
            strongest, most_steps = variant, steps
    return strongest


def chosen_for_reference(
    model: SearchedModel, variants: Sequence[str], least: float, sign: float = 1.0
) -> str | None:
    """Return the strongest attacker of the retain or the start model itself."""
    gains: dict[str, float] = {}
    for variant in _counting([model], variants, least):
        gain = model.gain(f"{variant}.choice")
        if gain is not None:
            gains[variant] = sign * gain
    return _strongest(gains)


def chosen_for_setting(
    seeds: Sequence[SearchedModel],
    retain: SearchedModel | None,
    start: SearchedModel | None,
    variants: Sequence[str],
    least: float,
    sign: float,
) -> Chosen:
    """Choose the attacker of a setting.

    Args:
        seeds: Its seeds, in their order.
        retain: The retain model; None if it was not attacked, or if there is none.
        start: The start model.
        variants: Of the search.
        least: Share of utility that an attacker has to leave.
        sign: -1 if a smaller number means that more is memorised.
    """
    count = len(seeds)
    choosing = range(max(1, count // 3))
    reporting = range(len(choosing), count) if count > 1 else range(1)
    models = [seeds[place] for place in choosing]
    counting = _counting(models, variants, least)
    gains: dict[str, float] = {}
    for variant in counting:
        gain = mean_of(model.gain(f"{variant}.choice") for model in models)
        taught = 0.0 if retain is None else retain.gain(f"{variant}.choice")
        if gain is not None and taught is not None:
            gains[variant] = sign * gain - max(0.0, sign * taught)
    others = [model for model in (retain, start) if model is not None]
    strongest = _strongest(gains)
    if not any(model.moves(variants) for model in (*models, *others)):
        strongest = None
    trials = len({variant.partition("@t")[2].partition(".")[0] for variant in variants})
    kept = None
    if strongest is not None:
        kept = mean_of(seeds[place].keeps(strongest) for place in reporting)
    return Chosen(strongest, choosing, reporting, trials, counting, kept)
