"""What may be claimed from a sweep: by panel the methods' order, and where it is in doubt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import forget_ratios
from unlearnbench.front import hypervolume
from unlearnbench.intervals import ENOUGH_SEEDS, Interval
from unlearnbench.power import Sensitivity, ks_power
from unlearnbench.ranking import (
    UTILITY_SHARE,
    Setting,
    average_seeds,
    best_per_method,
    start_corner,
)
from unlearnbench.ranks import QUALITY, Ranks, rank_methods
from unlearnbench.records import Record
from unlearnbench.rivals import Rivals, rivals
from unlearnbench.table import Row
from unlearnbench.unequal import unequal

UTILITY = "model_utility"


@dataclass(frozen=True)
class Standing:
    """One method on one panel."""

    method: str
    """Label without hyper-parameters."""
    best: Setting | None
    """None where no setting keeps its utility."""
    quality: Interval | None
    """log10 Forget Quality of the best setting over its seeds; None for one seed."""
    utility: Interval | None
    hypervolume: float | None
    """Of all its settings and epochs, over `PanelClaims.corner`; None without a corner."""

    @property
    def log10_quality(self) -> float | None:
        """Of the best setting, which the order is by."""
        return None if self.best is None else self.best.metrics[QUALITY]

    @property
    def seeds(self) -> int:
        """Of the best setting."""
        return 0 if self.best is None else len({row.seed for row in self.best.rows})


@dataclass(frozen=True)
class Doubt:
    """Two neighbours of an order, and why they might change places."""

    higher: Standing
    lower: Standing
    few_seeds: bool
    """Fewer than three behind one of them."""
    equal: bool
    """Their means are the same number."""
    close: bool
    """Their intervals over seeds overlap."""

    @property
    def told(self) -> str:
        """For people."""
        names = f"{self.higher.method} before {self.lower.method}"
        reasons: list[str] = []
        if self.equal:
            reasons.append("they are equal")
        elif self.close:
            reasons.append("the difference is inside their intervals over seeds")
        if self.few_seeds:
            seeds = sorted({self.higher.seeds, self.lower.seeds})
            counts = " and ".join(map(str, seeds))
            reasons.append(f"it rests on {counts} seed{'s' * (seeds[-1] > 1)}")
        return f"{names} is in doubt: {', and '.join(reasons)}."


@dataclass(frozen=True)
class PanelClaims:
    """One model and forget fraction."""

    model: str
    forget_fraction: float
    corner: tuple[float, float] | None
    """What hypervolumes are measured from: (0, the fine-tuned model's log10 Forget Quality)."""
    standings: tuple[Standing, ...]
    """Best first, by log10 Forget Quality of the best setting; those without one come last."""
    doubts: tuple[Doubt, ...]
    sensitivity: Sensitivity | None
    """None where no Forget Quality is known."""
    rivals: Rivals | None
    """How the leading method stands to the others; None without one."""
    unequal: tuple[str, ...]
    """Settings that the methods share and that are not the same for them."""

    @property
    def unequal_sentences(self) -> tuple[str, ...]:
        """Settings in which the methods differ, for people."""
        return tuple(f"Not the same for all: {one}." for one in self.unequal)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts in few sentences, and which methods are in no order at all."""
        return _warnings(self.standings, self.doubts)


@dataclass(frozen=True)
class Claims:
    """A sweep."""

    panels: tuple[PanelClaims, ...]
    ranks: Ranks


def claims(
    rows: Sequence[Row], records: Iterable[Record], utility_share: float = UTILITY_SHARE
) -> Claims:
    """What a table's rows, and the evaluations of `records`, let one claim.

    Reads the retain models' evaluations, one a panel, those of each method's best setting, and of
    the leading method's others that were about as good.
    """
    records = tuple(records)
    best = best_per_method(rows, utility_share)
    retains = {(r.model, r.forget_fraction): r for r in records if r.kind == "retain"}
    panels: list[PanelClaims] = []
    for place in dict.fromkeys((one.model, one.forget_fraction) for one in best):
        here = [row for row in rows if (row.model, row.forget_fraction) == place]
        corner = start_corner(here, *place)
        settings = average_seeds(here)
        standings = order(
            Standing(
                method=one.family,
                best=one.setting,
                quality=None if one.setting is None else one.setting.interval(QUALITY),
                utility=None if one.setting is None else one.setting.interval(UTILITY),
                hypervolume=None
                if corner is None
                else hypervolume(_points(settings, one.family), corner),
            )
            for one in best
            if (one.model, one.forget_fraction) == place
        )
        sensitivity = _sensitivity(here, retains.get(place))
        by_id = {one.id: one for one in records}
        panels.append(
            PanelClaims(
                *place,
                corner,
                standings,
                doubts(standings),
                sensitivity,
                rivals(here, records, *place, utility_share),
                unequal(
                    {
                        one.method: by_id[one.best.rows[0].run_id]
                        for one in standings
                        if one.best is not None
                    }
                ),
            )
        )
    return Claims(tuple(panels), rank_methods(best))


def order(standings: Iterable[Standing]) -> tuple[Standing, ...]:
    """Best first; ties go to the higher utility, as in choosing settings, then to the name."""

    def place(one: Standing) -> tuple[float, float, str]:
        if one.best is None:
            return float("inf"), 0.0, one.method
        return -(one.log10_quality or 0.0), -(one.best.metrics[UTILITY] or 0.0), one.method

    return tuple(sorted(standings, key=place))


def doubts(standings: Sequence[Standing]) -> tuple[Doubt, ...]:
    """Neighbours, both with a setting, whose order three seeds a method do not bear out."""
    placed = [one for one in standings if one.best is not None]
    found = [
        Doubt(
            higher,
            lower,
            few_seeds=min(higher.seeds, lower.seeds) < ENOUGH_SEEDS,
            equal=higher.log10_quality == lower.log10_quality,
            close=_overlap(higher.quality, lower.quality),
        )
        for higher, lower in pairwise(placed)
    ]
    return tuple(one for one in found if one.few_seeds or one.equal or one.close)


def _overlap(higher: Interval | None, lower: Interval | None) -> bool:
    return higher is not None and lower is not None and higher.low <= lower.high


def _warnings(standings: Sequence[Standing], found: Sequence[Doubt]) -> tuple[str, ...]:
    told: list[str] = []
    placed = [one for one in standings if one.best is not None]
    few = [one for one in placed if one.seeds < ENOUGH_SEEDS]
    if few:
        one = max(each.seeds for each in few) == 1
        seeds = "one seed" if one else "fewer than three seeds"
        names = ", ".join(each.method + ("" if one else f" ({each.seeds})") for each in few)
        where = "" if len(few) == len(placed) else f" for {names}"
        rests, them = ("This order rests", "it") if placed[1:] else ("These numbers rest", "them")
        told.append(f"{rests} on {seeds}{where}: other seeds may change {them}.")
    for what, pairs in (
        ("The difference is inside the intervals over seeds", [d for d in found if d.close]),
        ("Equal, and in no order", [d for d in found if d.equal and not d.close]),
    ):
        if pairs:
            names = "; ".join(f"{d.higher.method} and {d.lower.method}" for d in pairs)
            told.append(f"{what}: {names}.")
    without = [one.method for one in standings if one.best is None]
    if without:
        told.append(f"Last, for want of a setting that keeps its utility: {', '.join(without)}.")
    return tuple(told)


def _points(settings: Iterable[Setting], family: str) -> list[tuple[float, float]]:
    """(Model Utility, log10 Forget Quality) of all that a method reached."""
    return [
        (utility, quality)
        for one in settings
        if one.family == family
        and one.epoch > 0
        and (utility := one.metrics[UTILITY]) is not None
        and (quality := one.metrics[QUALITY]) is not None
    ]


def _sensitivity(rows: Sequence[Row], retain: Record | None) -> Sensitivity | None:
    """From the retain model's own truth ratios, or at least from their number."""
    if retain is not None and retain.evaluations:
        first = min(retain.evaluations)
        try:
            return ks_power(forget_ratios(retain.evaluations[first]))
        except EvaluationError:  # a profile of another version: its ratios cannot be made again
            pass
    counts = {int(n) for row in rows if (n := row.metrics["ks_n"]) is not None}
    return ks_power(counts.pop()) if len(counts) == 1 else None
