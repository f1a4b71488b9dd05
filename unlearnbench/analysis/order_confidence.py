"""Order of the methods on each panel, and where it is in doubt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unlearnbench.analysis.best_settings import (
    Setting,
    average_seeds,
    best_per_method,
    headline_of_rows,
    merit_of,
    on_panel,
    start_corner,
)
from unlearnbench.analysis.mean_ranks import Ranks, rank_methods
from unlearnbench.analysis.rivals import Rivals, rivals
from unlearnbench.analysis.training_differences import training_differences
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import Sensitivity, ks_power
from unlearnbench.stats.pareto_front import hypervolume
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval


@dataclass(frozen=True)
class RankedMethod:
    """One method on one panel."""

    method: str
    """Label without hyper-parameters."""
    best: Setting | None
    """None if no setting keeps its utility."""
    hypervolume: float | None
    """Of all its settings and epochs above the start model's corner; None without one."""

    @property
    def forgotten(self) -> float | None:
        """The headline's number of the best setting, by which methods are ordered."""
        return None if self.best is None else self.best.forgotten

    @property
    def interval(self) -> Interval | None:
        """Interval of `forgotten` over seeds; None for one seed."""
        if self.best is None:
            return None
        return self.best.interval(self.best.headline.forgotten.column)

    @property
    def seeds(self) -> int:
        """Number of seeds of the best setting."""
        return 0 if self.best is None else len({row.seed for row in self.best.rows})


@dataclass(frozen=True)
class PanelOrder:
    """Order of the methods on one model and split."""

    model: str
    forget_fraction: SplitKey
    methods: tuple[RankedMethod, ...]
    """Best first, by what the best setting has forgotten; methods without one come last."""
    warnings: tuple[str, ...]
    """Sentences on neighbours that might change places, and on methods without a best setting."""
    sensitivity: Sensitivity | None
    """None where no test is behind the headline, or none has a number."""
    rivals: Rivals | None
    """Tests of the leading method against the others; None without one, or without a test."""
    unequal: tuple[str, ...]
    """Sentences on differences in training between the methods."""


@dataclass(frozen=True)
class OrderConfidence:
    """Order of the methods of a sweep: on each panel, and by mean rank."""

    panels: tuple[PanelOrder, ...]
    ranks: Ranks


def assess_order(rows: Sequence[TableRow], records: Iterable[Record]) -> OrderConfidence:
    """Order the methods on each panel, with tests of the leading one.

    Reads from disk the evaluations of the retain models, of each method's best setting, and of the
    leading method's other settings that were about as good.
    """
    by_id = {one.id: one for one in records}
    retains = {(r.model, r.forget_fraction): r for r in by_id.values() if r.kind == "retain"}
    best = best_per_method(rows)
    panels: list[PanelOrder] = []
    for place in dict.fromkeys((one.model, one.forget_fraction) for one in best):
        here = on_panel(rows, place)
        corner, settings = start_corner(here, *place), average_seeds(here)
        methods = [
            RankedMethod(
                one.family,
                one.setting,
                None if corner is None else hypervolume(_points(settings, one.family), corner),
            )
            for one in best
            if (one.model, one.forget_fraction) == place
        ]
        methods.sort(key=_place)
        compared = {one.method: by_id[one.best.rows[0].run_id] for one in methods if one.best}
        unequal = training_differences(compared)
        panels.append(
            PanelOrder(
                *place,
                methods=tuple(methods),
                warnings=tuple(_warnings(methods)),
                sensitivity=_sensitivity(here, retains.get(place)),
                rivals=rivals(here, by_id.values(), *place),
                unequal=tuple(f"Trained differently: {one}." for one in unequal),
            )
        )
    return OrderConfidence(tuple(panels), rank_methods(best))


def _place(one: RankedMethod) -> tuple[float, float, int, str]:
    """Sort key, best first as by `merit_of`; then the name."""
    merit = None if one.best is None else merit_of(one.best)
    forgotten, kept, minus_epoch = merit or (float("-inf"), 0.0, 0)
    return -forgotten, -kept, -minus_epoch, one.method


def _warnings(methods: Sequence[RankedMethod]) -> Iterator[str]:
    placed = [one for one in methods if one.best is not None]
    few = [one for one in placed if one.seeds < ENOUGH_SEEDS]
    if few:
        one = max(each.seeds for each in few) == 1
        seeds = "one seed" if one else "fewer than three seeds"
        names = ", ".join(each.method + ("" if one else f" ({each.seeds})") for each in few)
        where = "" if len(few) == len(placed) else f" for {names}"
        rests, them = ("This order rests", "it") if placed[1:] else ("These numbers rest", "them")
        yield f"{rests} on {seeds}{where}: other seeds may change {them}."
    close, equal = list[str](), list[str]()
    for higher, lower in pairwise(placed):
        names = f"{higher.method} and {lower.method}"
        if higher.interval and lower.interval and _overlap(higher.interval, lower.interval):
            close.append(names)
        elif higher.forgotten == lower.forgotten:
            equal.append(names)
    if close:
        yield f"Intervals over seeds overlap: {'; '.join(close)}."
    if equal:
        yield f"Equal, so in no order: {'; '.join(equal)}."
    if without := [one.method for one in methods if one.best is None]:
        yield f"Last because no setting keeps its utility: {', '.join(without)}."


def _overlap(one: Interval, other: Interval) -> bool:
    return one.low <= other.high and other.low <= one.high


def _points(settings: Iterable[Setting], family: str) -> list[tuple[float, float]]:
    """(kept, forgotten) of all settings and epochs of a method, larger is better in both."""
    merits = [merit_of(one) for one in settings if one.family == family]
    return [(merit[1], merit[0]) for merit in merits if merit is not None]


def _sensitivity(rows: Sequence[TableRow], retain: Record | None) -> Sensitivity | None:
    """Sensitivity by the retain model's truth ratios, or else by their number."""
    test = headline_of_rows(rows).forgotten.test
    if test is None:
        return None
    if retain is not None and retain.evaluations:
        first = min(retain.evaluations)
        try:
            return ks_power(forget_ratios(retain.evaluations[first]))
        except EvaluationError:  # a profile of another version, whose ratios cannot be computed
            pass
    counts = {int(n) for row in rows if (n := row.metrics.get(test.questions)) is not None}
    return ks_power(counts.pop()) if len(counts) == 1 else None
